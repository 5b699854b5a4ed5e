//! Kernels on slices for the CPU: 2-D convolution with its exact gradients, activations whose gradient needs a bit or a
//! byte an element, max pooling whose gradient needs a byte an output, numbers kept in 8 or 4 bits, sums and spreads
//! over the tiles of a map, products of a tensor along one of its modes, and the matrix decompositions that go with
//! them.
//!
//! Nothing here depends on a tensor library: the kernels take plain slices of `f32` or `f64`, and [`ConvGeometry`],
//! [`PoolGeometry`], [`Tiles`] or [`Unfolding`] say how to read them. All maps are contiguous and row-major, with axes
//! `[batch, channels, height, width]`; weights are `[output channels, input channels / groups, kernel height, kernel
//! width]`.
//!
//! Work is split over the current `rayon` pool. With the same number of threads, the same arguments give the same bits
//! on every run. Memory beyond arguments and result is a scratch area per thread that does not grow with the batch; the
//! weight gradient and [`gram`] also need a copy or two of their result per thread, [`subspace_product`] up to four.
//! The decompositions run on one thread and copy their matrix.
//!
//! ```
//! use burn_frugal_kernels::{ConvGeometry, conv2d};
//!
//! // A 2x2 box filter over one 3x3 map.
//! let geometry = ConvGeometry {
//!     batch: 1,
//!     input_channels: 1,
//!     output_channels: 1,
//!     input: [3, 3],
//!     kernel: [2, 2],
//!     stride: [1, 1],
//!     padding: [(0, 0), (0, 0)],
//!     dilation: [1, 1],
//!     groups: 1,
//! };
//! geometry.check()?;
//! let input = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
//! let output = conv2d(&geometry, &input, &[1.0; 4], Some(&[0.5]));
//! assert_eq!(output, [12.5, 16.5, 24.5, 28.5]);
//! # Ok::<(), burn_frugal_kernels::GeometryError>(())
//! ```
#![warn(missing_docs)]

mod activations;
mod chunks;
mod conv;
mod decompositions;
mod element;
mod fresh;
mod geometry;
mod gram;
mod hard_swish;
mod invariant;
mod modes;
mod parts;
mod place;
mod pool;
mod process;
mod product;
mod quantize;
mod rows;
mod scratch;
mod sums;
mod tiles;

pub use activations::{Activation, activate, activate_with_mask, mask_gradient};
pub use chunks::LOW_RANK_WORKING_MEMORY;
pub use conv::{conv2d, conv2d_input_gradient, conv2d_weight_gradient, conv2d_working_memory};
pub use decompositions::{DecompositionError, orthonormalize, symmetric_eigen};
pub use element::Element;
pub use geometry::{ConvGeometry, GeometryError};
pub use gram::gram;
pub use modes::{Unfolding, mode_expand, mode_project, subspace_product};
pub use place::place;
pub use pool::{PoolGeometry, max_pool2d, max_pool2d_input_gradient, max_pool2d_with_taps};
pub use process::{ProcessError, prepare_process};
pub use quantize::{Bits, dequantize, quantize};
pub use scratch::{working_memory, working_memory_for};
pub use sums::channel_sums;
pub use tiles::{Span, Tiles, tile_spread, tile_sums};
