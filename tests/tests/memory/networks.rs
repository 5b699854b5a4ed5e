//! The networks whose whole steps are predicted and counted.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_frugal::methods::{ActivationShortcut, LayerKind};
use burn_frugal::plan::{Layer, Network, Plan};
use burn_frugal::{Method, PerMode};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::random;

/// Side of an image in pixels.
const SIZE: usize = 64;
const CLASSES: usize = 10;

pub fn networks() -> [BottleneckNetConfig; 3] {
    [
        BottleneckNetConfig::mcunet_5fps(),
        BottleneckNetConfig::mobilenet_v2(0.35),
        BottleneckNetConfig::efficientnet_lite0(),
    ]
    .map(|config| config.with_classes(CLASSES))
}

/// A method for a layer with this input.
pub type ByInput = fn(PerMode) -> Method;

pub fn methods() -> [(&'static str, ByInput); 6] {
    [
        ("exact", |_| Method::Exact),
        ("recomputed", |_| Method::Recomputed),
        ("filter", |_| Method::gradient_filter(2)),
        ("shortcut", |modes| {
            ActivationShortcut::new(quarters(modes)).into()
        }),
        ("channel-sparse", |_| Method::channel_sparse(0.1)),
        ("8 bits", |_| Method::quantized(8)),
    ]
}

/// A quarter of each size, rounded up.
pub fn quarters(modes: PerMode) -> PerMode {
    let quarters = modes.as_slice().iter().map(|size| size.div_ceil(4));
    PerMode::new(&quarters.collect::<Vec<_>>()).expect("as many as there were")
}

/// Images with their classes.
pub struct Batch {
    images: Tensor<4>,
    classes: Tensor<1, Int>,
}

impl Batch {
    pub fn new(samples: usize, device: &Device) -> Self {
        let classes: Vec<i64> = (0..samples)
            .map(|sample| (sample % CLASSES) as i64)
            .collect();
        Self {
            images: random(1, [samples, 3, SIZE, SIZE], device),
            classes: Tensor::from_data(classes.as_slice(), device),
        }
    }

    /// Bytes of the images.
    pub fn image_bytes(&self) -> usize {
        self.images.shape().num_elements() * size_of::<f32>()
    }

    pub fn loss(&self, network: &BottleneckNet) -> Tensor<1> {
        let scores = network.forward(self.images.clone());
        let loss = CrossEntropyLossConfig::new().init(&scores.device());
        loss.forward(scores, self.classes.clone())
    }
}

/// A trace of one image.
pub fn network(model: &BottleneckNet, device: &Device) -> Network {
    let batch = Batch::new(1, device);
    Network::of(model, |model| batch.loss(model)).expect("it has layers")
}

/// The convolutions, in order.
pub fn convolutions(model: &BottleneckNet) -> Vec<Layer> {
    let mut layers = Plan::layers(model);
    layers.retain(|layer| layer.shape.kind == LayerKind::Conv2d);
    layers
}

/// A method for each of the last `tuned` convolutions.
pub fn plan(
    model: &BottleneckNet,
    network: &Network,
    samples: usize,
    tuned: usize,
    method: ByInput,
) -> Plan {
    let convolutions = convolutions(model);
    let first = convolutions.len().saturating_sub(tuned);
    let layers = convolutions[first..].iter();
    let builder = layers.fold(Plan::builder(), |builder, layer| {
        let modes = network.input(&layer.path, samples).expect("it was traced");
        builder.layer(&layer.path, method(modes))
    });
    builder.build(model).expect("suitable")
}
