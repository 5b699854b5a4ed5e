use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::{BatchNorm, Conv2d, GlobalAveragePool2d, Linear, LinearConfig};

use crate::block::InvertedBottleneck;
use crate::normalization::{fold, normalized, relu6};

/// A first convolution, inverted bottlenecks, in some networks a last convolution, global average
/// pooling and a linear classifier.
///
/// Created with [`BottleneckNetConfig`](crate::BottleneckNetConfig). The fields have the names of
/// the published weights, which [`load_safetensors`](Self::load_safetensors) reads.
#[derive(Module, Debug)]
pub struct BottleneckNet {
    /// The first convolution, 3x3.
    pub first_conv: Conv2d,
    /// Normalization of the first convolution while the network is trained from nothing.
    pub first_norm: Option<BatchNorm>,
    /// The bottlenecks.
    pub blocks: Vec<InvertedBottleneck>,
    /// The last convolution, 1x1, `None` in a network whose classifier sees the last bottleneck's
    /// output.
    pub last_conv: Option<Conv2d>,
    /// Normalization of the last convolution while the network is trained from nothing.
    pub last_norm: Option<BatchNorm>,
    /// From features to scores.
    pub classifier: Linear,
}

impl BottleneckNet {
    /// Scores (logits) of each class.
    ///
    /// # Shapes
    /// - `images`: `[batch, input_channels, height, width]`, normalised as the configuration's
    ///   [`InputConfig`](crate::InputConfig) says
    /// - output: `[batch, classes]`
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let map = self.first_conv.forward(images);
        let mut map = relu6(normalized(&self.first_norm, map));
        for block in &self.blocks {
            map = block.forward(map);
        }
        if let Some(last_conv) = &self.last_conv {
            map = relu6(normalized(&self.last_norm, last_conv.forward(map)));
        }
        self.classifier
            .forward(GlobalAveragePool2d::new().forward(map))
    }

    /// Replaces the classifier by a new one with random weights, for another number of classes.
    ///
    /// # Panics
    /// When there are no classes.
    pub fn with_classes(mut self, classes: usize, device: &Device) -> Self {
        assert!(classes > 0, "BottleneckNet::with_classes: no classes");
        let [features, _] = self.classifier.weight.dims();
        self.classifier = LinearConfig::new(features, classes).init(device);
        self
    }

    /// Moves batch normalization, with its running statistics, into the convolutions: the same
    /// function of the image as the [`valid`](Module::valid) network, in fewer tensors. A network
    /// without batch normalization is returned as it is.
    pub fn fold_batch_norm(self) -> Self {
        Self {
            first_conv: fold(self.first_conv, self.first_norm),
            first_norm: None,
            blocks: self
                .blocks
                .into_iter()
                .map(InvertedBottleneck::fold_batch_norm)
                .collect(),
            last_conv: self.last_conv.map(|conv| fold(conv, self.last_norm)),
            last_norm: None,
            classifier: self.classifier,
        }
    }
}
