//! The same network from Burn's own layers, to compare with.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use crate::network::{NetworkConv, NetworkTable};

/// A network of inverted bottlenecks made of Burn's layers.
#[derive(Module, Debug)]
pub struct BurnNetwork {
    first_conv: Conv2d,
    blocks: Vec<BurnBlock>,
    classifier: Linear,
}

#[derive(Module, Debug)]
struct BurnBlock {
    pointwise1: Option<Conv2d>,
    depthwise: Conv2d,
    pointwise2: Conv2d,
    residual: bool,
}

impl BurnNetwork {
    /// With random weights, the last `tuned` convolutions and the classifier trained, the others
    /// frozen.
    pub fn new(table: &NetworkTable, tuned: usize, device: &Device) -> Self {
        let mut left = table.convolutions().len();
        let mut conv = |conv: &NetworkConv| {
            let pad = conv.padding;
            let layer = Conv2dConfig::new(
                [conv.channels_in, conv.channels_out],
                [conv.kernel, conv.kernel],
            )
            .with_stride([conv.stride, conv.stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_groups(conv.groups)
            .init(device);
            let frozen = left > tuned;
            left -= 1;
            if frozen { layer.no_grad() } else { layer }
        };
        Self {
            first_conv: conv(&table.first_conv),
            blocks: table
                .blocks
                .iter()
                .map(|block| BurnBlock {
                    pointwise1: block.pointwise1.as_ref().map(&mut conv),
                    depthwise: conv(&block.depthwise),
                    pointwise2: conv(&block.pointwise2),
                    residual: block.residual,
                })
                .collect(),
            classifier: LinearConfig::new(table.features, table.classes).init(device),
        }
    }

    /// Scores of each class, `[batch, classes]`, of images `[batch, channels, height, width]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let relu6 = |map: Tensor<4>| map.clamp(0.0, 6.0);
        let mut map = relu6(self.first_conv.forward(images));
        for block in &self.blocks {
            let input = map.clone();
            if let Some(pointwise1) = &block.pointwise1 {
                map = relu6(pointwise1.forward(map));
            }
            map = relu6(block.depthwise.forward(map));
            map = block.pointwise2.forward(map);
            if block.residual {
                map = map + input;
            }
        }
        let [batch, channels, height, width] = map.dims();
        let features = map.reshape([batch, channels, height * width]).mean_dim(2);
        self.classifier.forward(features.reshape([batch, channels]))
    }
}
