//! Guards what users of the memory code rely on: passes nobody runs backward go, counted steps are the
//! predicted ones, and what is kept beyond that is found.

mod abandoned;
mod counted;
mod networks;
mod threads;

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_frugal::nn::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, GlobalAveragePool2d, HardSwish, Linear,
    MaxPool2d, MaxPool2dConfig, Relu, Relu6,
};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{autodiff_devices, random, sparse_network};

/// Channels of the small model's maps.
const CHANNELS: usize = 8;
const CLASSES: usize = 5;

/// Every lean layer, and a residual connection.
#[derive(Module, Debug)]
struct Small {
    stem: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
    depthwise: Conv2d,
    project: Conv2d,
    head: Linear,
}

/// The paths of its layers, in the order of the pass.
const PATHS: [&str; 5] = ["stem", "norm", "depthwise", "project", "head"];

impl Small {
    /// Its values depend on the seed; batch normalization has fixed statistics.
    fn new(seed: u64, device: &Device) -> Self {
        let conv = |place, config: Conv2dConfig| {
            let mut conv = config.init(device);
            let shape = conv.weight.dims();
            conv.weight = Param::from_tensor(random(seed + place, shape, device));
            conv.bias = Some(Param::from_tensor(random(seed + place, [CHANNELS], device)));
            conv
        };
        let norm = BatchNormConfig::new(CHANNELS).init(device);
        Self {
            stem: conv(1, same([3, CHANNELS], 3)),
            norm: BatchNorm {
                training: norm.training.clone().with_value(false),
                ..norm
            },
            pool: MaxPool2dConfig::new([2, 2]).init(),
            depthwise: conv(2, same([CHANNELS, CHANNELS], 3).with_groups(CHANNELS)),
            project: conv(3, same([CHANNELS, CHANNELS], 1)),
            head: sparse_network::linear(CHANNELS, CLASSES, device, burn::tensor::DType::F32),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let map = self.norm.forward(self.stem.forward(images));
        let map = self.pool.forward(Relu::new().forward(map));
        let inner = Relu6::new().forward(self.depthwise.forward(map.clone()));
        let map = map + HardSwish::new().forward(self.project.forward(inner));
        self.head.forward(GlobalAveragePool2d::new().forward(map))
    }

    fn loss(&self, images: Tensor<4>) -> Tensor<1> {
        let device = images.device();
        let classes: Vec<i64> = (0..images.dims()[0])
            .map(|i| (i % CLASSES) as i64)
            .collect();
        let classes = Tensor::<1, Int>::from_data(classes.as_slice(), &device);
        let loss = CrossEntropyLossConfig::new().init(&device);
        loss.forward(self.forward(images), classes)
    }
}

/// The training devices that do not compute anything again.
fn plain_devices() -> impl Iterator<Item = (String, Device)> {
    let recomputes = |(name, _): &(String, Device)| name.contains("checkpointing");
    autodiff_devices()
        .into_iter()
        .filter(move |device| !recomputes(device))
}
