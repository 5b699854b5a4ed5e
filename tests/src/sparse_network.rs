//! A network whose layers are channel-sparse, one of each kind.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, activation::tanh};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{MethodSlot, Plan};

use crate::channels::{channels_of_conv, channels_of_linear};
use crate::layers::{layer, same};
use crate::{random, random_dtype, values};

/// One of each kind of convolution, and a chain of two layers around them.
#[derive(Module, Debug)]
pub struct Network {
    /// The dense one.
    pub stem: Conv2d,
    /// The depthwise one, and the one in two groups.
    pub blocks: Vec<Conv2d>,
    /// The linear one.
    pub head: Linear,
}

/// The paths of its layers, in order: dense, depthwise, in two groups, linear.
pub const PATHS: [&str; 4] = ["stem", "blocks.0", "blocks.1", "head"];

impl Network {
    /// With reproducible parameters and exact gradients.
    pub fn new(device: &Device) -> Self {
        let conv = |config: Conv2dConfig| layer(&config, device, DType::F32);
        Self {
            stem: conv(same([3, 6], 3)),
            blocks: vec![
                conv(same([6, 6], 3).with_groups(6)),
                conv(same([6, 6], 3).with_groups(2)),
            ],
            head: linear(6, 5, device, DType::F32),
        }
    }

    /// Every layer channel-sparse.
    pub fn sparse(device: &Device, ratio: f64) -> Self {
        let network = Self::new(device);
        let plan = Plan::builder().pattern("", Method::channel_sparse(ratio));
        let plan = plan.build(&network).expect("suitable");
        plan.apply(network).expect("its layers")
    }

    /// A loss on a batch of images that depends on the seed, curved and without dead units: no
    /// weight of a trained channel has a gradient of exactly zero.
    pub fn loss(&self, seed: u64) -> Tensor<1> {
        let device = self.head.weight.val().device();
        let mut map = tanh(self.stem.forward(random(seed, [2, 3, 5, 6], &device)));
        for block in &self.blocks {
            map = tanh(block.forward(map));
        }
        let features = map.mean_dim(3).mean_dim(2).reshape([2, 6]);
        let weights = random(seed + 1, [2, 5], &device);
        (self.head.forward(features) * weights).sum()
    }

    /// The gradients of all weights, in the order of [`PATHS`].
    pub fn weight_gradients(&self, gradients: &Gradients) -> [Vec<f64>; 4] {
        let conv = |conv: &Conv2d| values(conv.weight.val().grad(gradients).expect("tracked"));
        [
            conv(&self.stem),
            conv(&self.blocks[0]),
            conv(&self.blocks[1]),
            values(self.head.weight.val().grad(gradients).expect("tracked")),
        ]
    }

    /// What the layers carry, in the order of [`PATHS`].
    pub fn slots(&self) -> [&MethodSlot; 4] {
        [
            &self.stem.method,
            &self.blocks[0].method,
            &self.blocks[1].method,
            &self.head.method,
        ]
    }

    /// The input channel of every weight, in the order of [`PATHS`].
    pub fn channels_of_weights(&self) -> [Vec<usize>; 4] {
        [
            channels_of_conv(&self.stem),
            channels_of_conv(&self.blocks[0]),
            channels_of_conv(&self.blocks[1]),
            channels_of_linear(&self.head),
        ]
    }
}

/// A linear layer with reproducible parameters.
pub fn linear(inputs: usize, outputs: usize, device: &Device, dtype: DType) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    linear.weight = Param::from_tensor(random_dtype(21, [inputs, outputs], device, dtype));
    linear.bias = Some(Param::from_tensor(random_dtype(
        22,
        [outputs],
        device,
        dtype,
    )));
    linear
}
