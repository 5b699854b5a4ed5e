//! Fine-tune a [Burn](burn) model on the device that holds the data, within its memory.
//!
//! The layers of [`nn`] replace Burn's: same configuration, parameters and records. What differs is
//! what each layer *keeps* between forward and backward, and how it turns that into gradients: its
//! [`Method`]. A [`Plan`](plan::Plan) chooses a method for each layer of a model by the layer's
//! path.
//!
//! # Example
//! ```
//! use burn::module::Module;
//! use burn::tensor::{Device, Tensor};
//! use burn_frugal::{Method, nn::{Conv2d, Conv2dConfig}, plan::Plan};
//!
//! #[derive(Module, Debug)]
//! struct Network {
//!     first: Conv2d,
//!     second: Conv2d,
//! }
//!
//! let device = Device::default().autodiff();
//! let network = Network {
//!     first: Conv2dConfig::new([3, 8], [3, 3]).init(&device),
//!     second: Conv2dConfig::new([8, 8], [3, 3]).init(&device),
//! };
//! let plan = Plan::builder().last_convs(1, Method::gradient_filter(2)).build(&network)?;
//! let network = plan.apply(network)?;
//! let gradients = network.second.forward(Tensor::ones([1, 8, 9, 9], &device)).sum().backward();
//! assert!(network.second.weight.val().grad(&gradients).is_some());
//! # Ok::<(), burn_frugal::Error>(())
//! ```
//!
//! # Features
//! One a backend; each forwards to Burn's feature of the same name: `flex` and `ndarray` (both on
//! by default). Burn deprecates ndarray in 0.22 and drops it in 0.23; [`backends`] says why it is
//! here and how it goes.
#![warn(missing_docs)]
// Burn deprecates its ndarray backend, and the list of backends of an extension names it; see
// `backends/mod.rs` for why it is here and how it goes.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

pub mod backends;
mod error;
pub mod files;
mod geometry;
pub mod memory;
pub mod methods;
pub mod nn;
pub mod ops;
pub mod plan;

pub use burn_frugal_kernels as kernels;
pub use burn_frugal_kernels::{ProcessError, prepare_process};
pub use error::Error;
pub use geometry::{LayerGeometry, LinearGeometry, PerMode};
pub use methods::Method;
