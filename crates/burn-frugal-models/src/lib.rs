//! Small convolutional networks for fine-tuning with [`burn_frugal`], and their weights.
//!
//! One family: a first convolution, inverted bottlenecks with ReLU6, global average pooling and a
//! linear classifier, as in MobileNetV2 (arXiv 1801.04381), ProxylessNAS (arXiv 1812.00332),
//! MCUNet (arXiv 2007.10319) and EfficientNet-Lite0. All convolutions are [`burn_frugal::nn::Conv2d`], so a
//! [`Plan`](burn_frugal::plan::Plan) reaches each of them.
//!
//! # Example
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burn_frugal_models::BottleneckNetConfig;
//!
//! let device = Device::default();
//! let network = BottleneckNetConfig::mcunet_5fps().with_classes(10).init(&device);
//! let scores = network.forward(Tensor::zeros([1, 3, 64, 64], &device));
//! assert_eq!(scores.dims(), [1, 10]);
//! ```
#![warn(missing_docs)]

mod block;
mod config;
mod error;
mod images;
mod names;
mod network;
mod normalization;
mod parts;
mod weights;
mod zoo;

pub use block::{InvertedBottleneck, InvertedBottleneckConfig};
pub use config::{BottleneckNetConfig, InputConfig};
pub use error::Error;
pub use images::ImageSet;
pub use network::BottleneckNet;
pub use parts::Padding;
pub use weights::WeightReport;
