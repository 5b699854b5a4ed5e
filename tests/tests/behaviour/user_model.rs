//! A user's own model with every container of layers that Burn has, and plans for it.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::Plan;

/// Layers as fields, in a list, a tuple, an array and an enum.
#[derive(Module, Debug)]
pub struct Network {
    pub stem: Conv2d,
    pub blocks: Vec<Block>,
    pub pair: (Conv2d, Linear, Conv2d),
    pub array: [Conv2d; 2],
    pub choice: Choice,
    pub head: Linear,
}

#[derive(Module, Debug)]
pub struct Block {
    pub main: Conv2d,
    pub side: Option<Conv2d>,
    pub scale: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
pub enum Choice {
    Convolution(Conv2d),
    #[allow(dead_code, reason = "the other half of a user's choice")]
    Nothing(Linear),
}

/// Four channels to four, 3x3: one of the model's layers.
pub fn conv(device: &Device) -> Conv2d {
    Conv2dConfig::new([4, 4], [3, 3]).init(device)
}

fn grouped(device: &Device) -> Conv2d {
    Conv2dConfig::new([4, 4], [3, 3])
        .with_groups(2)
        .init(device)
}

/// The model on a device.
pub fn network(device: &Device) -> Network {
    let block = |side: Option<Conv2d>| Block {
        main: conv(device),
        side,
        scale: Param::from_tensor(Tensor::ones([1], device)),
    };
    let linear = || LinearConfig::new(4, 4).init(device);
    Network {
        stem: conv(device),
        blocks: vec![block(None), block(Some(grouped(device)))],
        pair: (conv(device), linear(), conv(device)),
        array: [conv(device), conv(device)],
        choice: Choice::Convolution(conv(device)),
        head: linear(),
    }
}

/// The paths of its convolutions, in order.
pub const PATHS: [&str; 9] = [
    "stem",
    "blocks.0.main",
    "blocks.1.main",
    "blocks.1.side",
    "pair.0",
    "pair.2",
    "array.0",
    "array.1",
    "choice.Convolution",
];

/// The filter of a patch size.
pub fn filter(patch: usize) -> Method {
    Method::gradient_filter(patch)
}

/// What `Plan::methods` should be.
pub fn expected<const N: usize>(layers: [(&str, Method); N]) -> BTreeMap<String, Method> {
    layers
        .map(|(path, method)| (path.to_string(), method))
        .into()
}

/// A plan for any path; no model is asked.
pub fn plan_with(path: &str, method: Method) -> Plan {
    let document = serde_json::json!({ "version": 1, "layers": { path: method } });
    Plan::from_json(&document.to_string()).expect("a plan")
}
