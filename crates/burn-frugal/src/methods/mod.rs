//! What a layer keeps of its input, and how it turns that into gradients: one file a method.
//!
//! A method runs on plain tensors, outside the autodiff graph, and is written in the vocabulary of
//! [`FrugalOps`], so it runs on every backend.

mod exact;
mod gradient_filter;
mod saved;

use burn::backend::tensor::FloatTensor;
use burn_frugal_kernels::ConvGeometry;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use gradient_filter::{GradientFilter, Scaling};
pub use saved::Saved;

use crate::ops::FrugalOps;

/// What a layer keeps between forward and backward, and how it computes gradients.
///
/// Plain data: it is stored in a [`Plan`](crate::plan::Plan) and in each layer's
/// [`MethodSlot`](crate::plan::MethodSlot). The forward result is the same for all of them.
///
/// # Example
/// ```
/// use burn_frugal::Method;
///
/// assert_eq!(Method::gradient_filter(2).to_string(), "gradient filter, patch 2");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// The exact gradient; keeps the input when the weight is trained, nothing when it is frozen.
    #[default]
    Exact,
    /// Gradients that are constant on tiles (arXiv 2301.00330); keeps one number a tile.
    GradientFilter(GradientFilter),
}

/// The part of a layer that decides which methods it can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Input and output channels.
    pub channels: [usize; 2],
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

/// Why a layer cannot use a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// The patch of a gradient filter is zero.
    #[error("a gradient filter's patch is at least 1 pixel, found {found}")]
    Patch {
        /// The patch asked for.
        found: usize,
    },
    /// The released gradient filter knows dense and depthwise convolutions only.
    #[error(
        "the published gradient filter is defined for 1 group or depthwise convolutions, found \
         {groups} groups with {} -> {} channels (mass-preserving scaling has no such limit)",
        channels[0], channels[1]
    )]
    PublishedGroups {
        /// Input and output channels of the layer.
        channels: [usize; 2],
        /// Groups of the layer.
        groups: usize,
    },
}

impl Method {
    /// The gradient filter with mass-preserving scaling; `patch` is a tile's side in pixels.
    pub fn gradient_filter(patch: usize) -> Self {
        Self::GradientFilter(GradientFilter {
            patch,
            scaling: Scaling::MassPreserving,
        })
    }

    /// The gradient filter as its authors released it, for comparison with the paper.
    pub fn published_gradient_filter(patch: usize) -> Self {
        Self::GradientFilter(GradientFilter {
            patch,
            scaling: Scaling::Published,
        })
    }

    /// Checks that a layer can use this method.
    ///
    /// # Errors
    /// What is wrong with the method itself (a patch of 0) or with the pair (published scaling on
    /// a grouped convolution).
    pub fn check(&self, layer: &LayerShape) -> Result<(), Unsuitable> {
        match self {
            Self::Exact => Ok(()),
            Self::GradientFilter(filter) => filter.check(layer),
        }
    }

    /// Bytes that stay of the input between forward and backward while the weight is trained;
    /// `element_size` is the bytes of one element (4 for `f32`).
    ///
    /// A frozen weight keeps 0 bytes whatever the method. This is a prediction from the formula of
    /// the method; the tests compare it with what an allocator counts.
    ///
    /// # Panics
    /// When the method is one that [`check`](Self::check) refuses for every layer (a patch of 0).
    ///
    /// # Example
    /// ```
    /// use burn_frugal::Method;
    /// use burn_frugal::kernels::ConvGeometry;
    ///
    /// let geometry = ConvGeometry {
    ///     batch: 8,
    ///     input_channels: 16,
    ///     output_channels: 32,
    ///     input: [14, 14],
    ///     kernel: [3, 3],
    ///     stride: [1, 1],
    ///     padding: [(1, 1), (1, 1)],
    ///     dilation: [1, 1],
    ///     groups: 1,
    /// };
    /// assert_eq!(Method::Exact.bytes(&geometry, 4), 8 * 16 * 14 * 14 * 4);
    /// assert_eq!(Method::gradient_filter(2).bytes(&geometry, 4), 8 * 16 * 7 * 7 * 4);
    /// ```
    pub fn bytes(&self, geometry: &ConvGeometry, element_size: usize) -> usize {
        let elements = match self.resolved() {
            Self::Exact => exact::elements(geometry),
            Self::GradientFilter(filter) => filter.elements(geometry),
        };
        elements * element_size
    }

    /// What has to stay of `input` for [`weight_gradient`](Self::weight_gradient).
    pub(crate) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> Saved<B> {
        match self.resolved() {
            Self::Exact => exact::keep(input),
            Self::GradientFilter(filter) => filter.keep(input, geometry),
        }
    }

    /// The weight's gradient, in the weight's shape.
    pub(crate) fn weight_gradient<B: FrugalOps>(
        &self,
        saved: Saved<B>,
        output_gradient: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        match (self.resolved(), saved) {
            (Self::Exact, Saved::Full(input)) => {
                exact::weight_gradient::<B>(input, output_gradient, *geometry)
            }
            (Self::GradientFilter(filter), Saved::Tiles(kept)) => {
                filter.weight_gradient::<B>(kept, output_gradient, geometry)
            }
            (method, saved) => unreachable!("{method:?} does not keep {saved:?}"),
        }
    }

    /// The input's gradient, in the input's shape.
    pub(crate) fn input_gradient<B: FrugalOps>(
        &self,
        weight: FloatTensor<B>,
        output_gradient: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        match self.resolved() {
            Self::Exact => exact::input_gradient::<B>(weight, output_gradient, *geometry),
            Self::GradientFilter(filter) => {
                filter.input_gradient::<B>(weight, output_gradient, geometry)
            }
        }
    }

    /// A filter whose tiles are single pixels would still give every tap the same gradient; asked
    /// for patch 1, a user means "off".
    fn resolved(&self) -> Self {
        match self {
            Self::GradientFilter(GradientFilter { patch: 1, .. }) => Self::Exact,
            method => *method,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.pad("exact"),
            Self::GradientFilter(GradientFilter { patch, scaling }) => {
                let suffix = match scaling {
                    Scaling::MassPreserving => "",
                    Scaling::Published => ", published scaling",
                };
                f.pad(&format!("gradient filter, patch {patch}{suffix}"))
            }
        }
    }
}
