//! Drop-in layers: Burn's names, parameters and records, with a [`Method`](crate::Method) each.

mod activation;
mod conv2d;
mod layer;
mod linear;

pub use activation::{Relu, Relu6};
pub use conv2d::{Conv2d, Conv2dConfig};
pub use linear::{Linear, LinearConfig};
