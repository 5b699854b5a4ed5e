//! How a network's convolutions and normalizations are made, the same in all of its parts.

use burn::nn::PaddingConfig2d;
use burn::tensor::Device;
use burn_frugal::nn::{BatchNorm, BatchNormConfig, Conv2dConfig};
use serde::{Deserialize, Serialize};

use crate::config::BottleneckNetConfig;

/// Where a map is padded for a kernel larger than a pixel.
///
/// Both give maps of `size / stride` pixels, rounded up, and differ only where the stride is above 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// Half the kernel on every side, as networks trained in PyTorch have it.
    #[default]
    Symmetric,
    /// What the outputs need and no more, the surplus pixel at the bottom and right: TensorFlow's
    /// 'same' padding.
    Same,
}

impl Padding {
    fn around(self, kernel: usize) -> PaddingConfig2d {
        let pad = kernel / 2;
        match self {
            Self::Symmetric => PaddingConfig2d::Explicit(pad, pad, pad, pad),
            Self::Same => PaddingConfig2d::Same,
        }
    }
}

/// Makes the parts of one network.
pub(crate) struct Parts<'a> {
    config: &'a BottleneckNetConfig,
    pub(crate) device: &'a Device,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(config: &'a BottleneckNetConfig, device: &'a Device) -> Self {
        Self { config, device }
    }

    /// A convolution with a square kernel. Its bias is the normalization's, if there is one.
    pub(crate) fn conv(&self, channels: [usize; 2], kernel: usize) -> Conv2dConfig {
        Conv2dConfig::new(channels, [kernel, kernel])
            .with_padding(self.config.padding.around(kernel))
            .with_bias(!self.config.batch_norm)
    }

    /// The normalization behind a convolution with this many outputs, if the network has any.
    pub(crate) fn norm(&self, channels: usize) -> Option<BatchNorm> {
        let norm = BatchNormConfig::new(channels).with_epsilon(self.config.batch_norm_epsilon);
        self.config.batch_norm.then(|| norm.init(self.device))
    }
}
