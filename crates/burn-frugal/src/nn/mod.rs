//! Drop-in layers: Burn's names, parameters and records, with a [`Method`](crate::Method) each.

mod conv2d;

pub use conv2d::{Conv2d, Conv2dConfig};
