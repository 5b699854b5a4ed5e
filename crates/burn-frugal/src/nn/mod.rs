//! Drop-in layers: Burn's names, parameters and records, with a [`Method`](crate::Method) each.

mod conv2d;
mod layer;
mod linear;

pub use conv2d::{Conv2d, Conv2dConfig};
pub use linear::{Linear, LinearConfig};
