//! The convolutions that are timed.

use burn::nn::PaddingConfig2d;
use serde::Serialize;

/// Channels, height and width of the seven 3x3 convolutions of the gradient filter's latency table
/// (arXiv 2301.00330), as many channels out as in.
pub const SEVEN: [(usize, [usize; 2]); 7] = [
    (128, [120, 160]),
    (256, [60, 80]),
    (512, [30, 40]),
    (512, [14, 14]),
    (256, [14, 14]),
    (128, [28, 28]),
    (64, [56, 56]),
];

/// One convolution of a known network, square in every way, padded by half its kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Convolution {
    /// Where it comes from.
    pub name: &'static str,
    /// Channels in and out.
    pub channels: [usize; 2],
    /// Side of the input.
    pub size: usize,
    /// Side of the kernel.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Groups.
    pub groups: usize,
}

impl Convolution {
    /// Padding on each side.
    pub fn padding(&self) -> PaddingConfig2d {
        let pad = self.kernel / 2;
        PaddingConfig2d::Explicit(pad, pad, pad, pad)
    }
}

const fn dense(
    name: &'static str,
    channels: [usize; 2],
    size: usize,
    kernel: usize,
    stride: usize,
) -> Convolution {
    Convolution {
        name,
        channels,
        size,
        kernel,
        stride,
        groups: 1,
    }
}

const fn depthwise(
    name: &'static str,
    channels: usize,
    size: usize,
    kernel: usize,
    stride: usize,
) -> Convolution {
    Convolution {
        name,
        channels: [channels, channels],
        size,
        kernel,
        stride,
        groups: channels,
    }
}

/// Every kind of convolution of MobileNetV2 (224 pixels), MCUNet-5fps (128) and ResNet-18 (224).
pub const KERNELS: [Convolution; 16] = [
    dense("mbv2 stem", [3, 32], 224, 3, 2),
    dense("mbv2 expand 56", [24, 144], 56, 1, 1),
    dense("mbv2 project 56", [144, 24], 56, 1, 1),
    dense("mbv2 expand 7", [160, 960], 7, 1, 1),
    dense("mcunet project 4", [576, 160], 4, 1, 1),
    depthwise("mbv2 depthwise 56", 144, 56, 3, 1),
    depthwise("mbv2 depthwise 56 /2", 144, 56, 3, 2),
    depthwise("mcunet depthwise 5x5", 384, 8, 5, 1),
    depthwise("mcunet depthwise 7x7 /2", 48, 32, 7, 2),
    depthwise("mcunet depthwise 7x7", 160, 8, 7, 1),
    dense("resnet stem", [3, 64], 224, 7, 2),
    dense("resnet 56", [64, 64], 56, 3, 1),
    dense("resnet 56 /2", [64, 128], 56, 3, 2),
    dense("resnet 14", [256, 256], 14, 3, 1),
    dense("resnet 7", [512, 512], 7, 3, 1),
    dense("resnet shortcut /2", [64, 128], 56, 1, 2),
];
