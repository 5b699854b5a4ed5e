//! The networks of the family that have published or committed weights.

use crate::block::InvertedBottleneckConfig;
use crate::config::{BottleneckNetConfig, InputConfig};

/// One block of a table: expanded channels, kernel, stride, output channels.
type Row = (usize, usize, usize, usize);

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
        /// Expansion, output channels, repeats, stride of the first: table 2 of the paper.
        const STAGES: [(usize, usize, usize, usize); 7] = [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ];
        let mut rows = Vec::new();
        let mut channels = 32;
        for (expansion, output, repeats, stride) in STAGES {
            for repeat in 0..repeats {
                let stride = if repeat == 0 { stride } else { 1 };
                rows.push((channels * expansion, 3, stride, output));
                channels = output;
            }
        }
        let mut config = imagenet(&format!("mbv2-w{width}"), 32, &rows);
        if width != 1.0 {
            config = config.with_width(width);
        }
        config
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
            classes: 10,
            batch_norm: false,
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
        classes: 1000,
        batch_norm: false,
    }
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
