//! Drop-in layers: Burn's names, parameters and records. Those with parameters have a
//! [`Method`](crate::Method) each; the others keep as little as they can.

mod activation;
mod batch_norm;
mod conv2d;
mod global_average_pool2d;
mod layer;
mod linear;
mod max_pool2d;
mod padding;

pub use activation::{HardSwish, Relu, Relu6};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use conv2d::{Conv2d, Conv2dConfig};
pub use global_average_pool2d::GlobalAveragePool2d;
pub use linear::{Linear, LinearConfig};
pub use max_pool2d::{MaxPool2d, MaxPool2dConfig};
