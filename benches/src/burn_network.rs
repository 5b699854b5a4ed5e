//! The same network from Burn's own layers, to compare with.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use crate::network::{NetworkConv, NetworkTable};

/// A network of inverted bottlenecks made of Burn's layers.
#[derive(Module, Debug)]
pub struct BurnNetwork {
    first_conv: BurnConv,
    blocks: Vec<BurnBlock>,
    last_conv: Option<BurnConv>,
    classifier: Linear,
}

#[derive(Module, Debug)]
struct BurnBlock {
    pointwise1: Option<BurnConv>,
    depthwise: BurnConv,
    pointwise2: BurnConv,
    residual: bool,
}

/// A convolution and the batch normalization of its published weights, if there is any.
#[derive(Module, Debug)]
struct BurnConv {
    conv: Conv2d,
    norm: Option<BatchNorm>,
}

impl BurnConv {
    /// Frozen, a normalization uses its running statistics, as a fine-tuned network's does.
    fn new(conv: &NetworkConv, epsilon: Option<f64>, device: &Device) -> Self {
        let (before, after) = (conv.padding, conv.padding_after);
        let norm = |epsilon| {
            let norm = BatchNormConfig::new(conv.channels_out).with_epsilon(epsilon);
            norm.init(device).freeze()
        };
        let layer = Conv2dConfig::new(
            [conv.channels_in, conv.channels_out],
            [conv.kernel, conv.kernel],
        );
        Self {
            conv: layer
                .with_stride([conv.stride, conv.stride])
                .with_padding(PaddingConfig2d::Explicit(before, before, after, after))
                .with_groups(conv.groups)
                .with_bias(epsilon.is_none())
                .init(device),
            norm: epsilon.map(norm),
        }
    }

    fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        let map = self.conv.forward(map);
        match &self.norm {
            Some(norm) => norm.forward(map),
            None => map,
        }
    }
}

impl BurnNetwork {
    /// With random weights, the last `tuned` convolutions and the classifier trained, the others
    /// frozen.
    pub fn new(table: &NetworkTable, tuned: usize, device: &Device) -> Self {
        let mut left = table.convolutions().len();
        let mut conv = |conv: &NetworkConv| {
            let layer = BurnConv::new(conv, table.batch_norm, device);
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
            last_conv: table.last_conv.as_ref().map(conv),
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
        if let Some(last_conv) = &self.last_conv {
            map = relu6(last_conv.forward(map));
        }
        let [batch, channels, height, width] = map.dims();
        let features = map.reshape([batch, channels, height * width]).mean_dim(2);
        self.classifier.forward(features.reshape([batch, channels]))
    }
}
