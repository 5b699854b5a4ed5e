//! What a layer keeps of its input, and how it turns that into gradients: one file a method.
//!
//! A method runs on plain tensors, outside the autodiff graph, and is written in the vocabulary of
//! [`FrugalOps`], so it runs on every backend.

mod activation_shortcut;
mod channel_sparse;
mod exact;
mod flops;
mod gradient_filter;
mod hosvd;
mod low_rank;
mod quantized;
mod route;
mod saved;
mod shape;
mod spectrum;
mod transient;

use burn::backend::tensor::FloatTensor;
use serde::{Deserialize, Serialize};
use std::fmt;

pub use activation_shortcut::{ActivationShortcut, FactorUpdate, Truncation};
pub use channel_sparse::ChannelSparse;
pub use flops::Flops;
pub use gradient_filter::{GradientFilter, Scaling};
pub use hosvd::Hosvd;
pub use low_rank::{Factors, LowRank};
pub use quantized::Quantized;
pub use saved::Saved;
pub use shape::{LayerKind, LayerShape, Unsuitable};

pub(crate) use low_rank::FactorArray;
pub(crate) use spectrum::{Spectrum, gram};
pub(crate) use transient::Transient;

use crate::geometry::{LayerGeometry, PerMode};
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// The exact gradient; keeps the input when the weight is trained, nothing when it is frozen.
    #[default]
    Exact,
    /// The exact gradient, bit for bit; computes the input again if the layer before it recomputes too
    /// and only activations and normalizations are between them (arXiv 1604.06174). The first layer of
    /// such a chain keeps its input, the next two keep nothing, another one begins a new chain.
    Recomputed,
    /// Gradients that are constant on tiles (arXiv 2301.00330); keeps one number a tile.
    GradientFilter(GradientFilter),
    /// The exact weight gradient on some input channels, zero on the others (arXiv 2503.17959);
    /// keeps those channels.
    ChannelSparse(ChannelSparse),
    /// The weight gradient of a low-rank input that follows the data from step to step
    /// (arXiv 2505.05086); keeps a core and factors.
    ActivationShortcut(ActivationShortcut),
    /// The weight gradient of a low-rank input with a given energy (arXiv 2411.06346); keeps a core
    /// and factors.
    Hosvd(Hosvd),
    /// The exact weight gradient of the input rounded to integers of 8 or 4 bits; keeps those and a
    /// scale a row.
    Quantized(Quantized),
}

/// Layers that are run again for one input at most: a longer chain would be run again and again.
pub(crate) const MOST_RECOMPUTED: usize = 2;

/// What a layer carries from step to step.
#[derive(Clone, Debug)]
pub(crate) struct Running<B: FrugalOps> {
    /// The input channels that are trained now, ascending; `None` until something chooses them.
    pub channels: Option<Vec<usize>>,
    /// The factors of the activation shortcut's last step.
    pub factors: FactorArray<B>,
}

impl<B: FrugalOps> Default for Running<B> {
    fn default() -> Self {
        Self {
            channels: None,
            factors: Default::default(),
        }
    }
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

    /// A channel-sparse update; `ratio` is the share of input channels that are trained at a time.
    /// Which, a [`Schedule`](crate::plan::schedule::Schedule) chooses; without one, those with the
    /// largest weights at the first training pass, from then on.
    pub fn channel_sparse(ratio: f64) -> Self {
        Self::ChannelSparse(ChannelSparse { ratio })
    }

    /// The activation shortcut (ASI) as published; `ranks` has the rank of each mode of the input,
    /// `[batch, channels, height, width]` for a convolution. [`ActivationShortcut`] has options.
    pub fn activation_shortcut(ranks: impl Into<PerMode>) -> Self {
        ActivationShortcut::new(ranks).into()
    }

    /// HOSVD with the smallest ranks that keep this share of the energy in every mode.
    pub fn hosvd(energy: f64) -> Self {
        Self::Hosvd(Hosvd { energy })
    }

    /// The input as integers of this many bits, 8 or 4, with a scale for each channel of each sample.
    pub fn quantized(bits: u8) -> Self {
        Self::Quantized(Quantized { bits })
    }

    /// Checks that a layer can use this method.
    ///
    /// # Errors
    /// What is wrong with the method itself (a patch of 0) or with the pair (published scaling on
    /// a grouped convolution, a rank above the layer's channels).
    pub fn check(&self, layer: &LayerShape) -> Result<(), Unsuitable> {
        match self {
            Self::Exact | Self::Recomputed => Ok(()),
            Self::GradientFilter(filter) => filter.check(layer),
            Self::ChannelSparse(sparse) => sparse.check(),
            Self::ActivationShortcut(shortcut) => shortcut.check(layer),
            Self::Hosvd(hosvd) => hosvd.check(),
            Self::Quantized(quantized) => quantized.check(),
        }
    }

    /// Bytes that stay of the input between forward and backward while the weight is trained;
    /// `element_size` is the bytes of one element (4 for `f32`).
    ///
    /// A frozen weight keeps 0 bytes whatever the method. This is a prediction from the formula of
    /// the method; the tests compare it with what an allocator counts. The factors of the activation
    /// shortcut are part of it; they also stay until the next step, which starts from them. HOSVD's
    /// ranks depend on the values, so for it this is an upper bound. Near full ranks, core and factors
    /// can be more than the whole input. What a channel-sparse layer keeps follows its ratio, except
    /// with a schedule of
    /// [`Amount::TotalWeights`](crate::plan::schedule::Amount::TotalWeights), where it can be anything
    /// up to the whole input. For a recomputed input it is what the first layer of a chain keeps;
    /// [`Network::predict`](crate::plan::Network::predict) knows the chains.
    ///
    /// # Panics
    /// When the method is one that [`check`](Self::check) refuses for every layer (a patch of 0), or
    /// the layer has no use for it.
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
    /// assert_eq!(Method::Exact.bytes(geometry, 4), 8 * 16 * 14 * 14 * 4);
    /// assert_eq!(Method::gradient_filter(2).bytes(geometry, 4), 8 * 16 * 7 * 7 * 4);
    /// ```
    pub fn bytes(&self, geometry: impl Into<LayerGeometry>, element_size: usize) -> usize {
        let geometry = geometry.into();
        let elements = match self.resolved() {
            Self::Exact | Self::Recomputed => exact::elements(&geometry),
            Self::GradientFilter(filter) => filter.elements(convolution(&geometry)),
            Self::ChannelSparse(sparse) => sparse.elements(&geometry),
            Self::ActivationShortcut(shortcut) => shortcut.elements(&geometry),
            Self::Hosvd(hosvd) => hosvd.elements(&geometry),
            Self::Quantized(quantized) => return quantized.bytes(&geometry, element_size),
        };
        elements * element_size
    }

    /// What training with this method takes beside the layer's own forward pass. HOSVD's ranks
    /// depend on the values: for it the gradient is counted at full ranks. What computing an input
    /// again takes depends on the layers before and is not part of it.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    ///
    /// # Example
    /// ```
    /// use burn_frugal::{LinearGeometry, Method};
    ///
    /// let geometry = LinearGeometry::new(&[8, 16], 4);
    /// let flops = Method::Exact.flops(geometry);
    /// assert_eq!(flops.weight_gradient, 2 * 8 * 16 * 4);
    /// assert_eq!(flops.forward, 0);
    /// ```
    pub fn flops(&self, geometry: impl Into<LayerGeometry>) -> Flops {
        let geometry = geometry.into();
        match self.resolved() {
            Self::Exact | Self::Recomputed => exact::flops(&geometry),
            Self::GradientFilter(filter) => filter.flops(convolution(&geometry)),
            Self::ChannelSparse(sparse) => sparse.flops(&geometry),
            Self::ActivationShortcut(shortcut) => shortcut.flops(&geometry),
            Self::Hosvd(_) => Hosvd::flops_at(&geometry, geometry.modes()),
            Self::Quantized(quantized) => quantized.flops(&geometry),
        }
    }

    /// Whether the whole input stays, not as a copy.
    pub(crate) fn keeps_whole(&self, geometry: &LayerGeometry) -> bool {
        let modes = geometry.modes();
        match self.resolved() {
            Self::Exact | Self::Recomputed => true,
            Self::ChannelSparse(sparse) => {
                let channels = modes[geometry.channel_mode()];
                sparse.selected(channels) == channels
            }
            Self::ActivationShortcut(shortcut) => shortcut.ranks_for(modes) == modes,
            Self::GradientFilter(_) | Self::Hosvd(_) | Self::Quantized(_) => modes.product() == 0,
        }
    }

    /// Bytes of what it keeps that the layer holds on to after the step, for the next one.
    pub(crate) fn carried_bytes(&self, geometry: &LayerGeometry, element_size: usize) -> usize {
        match self.resolved() {
            Self::ActivationShortcut(shortcut) if !self.keeps_whole(geometry) => {
                shortcut.factor_elements(geometry) * element_size
            }
            _ => 0,
        }
    }

    /// What its passes hold for a moment. For HOSVD, whose ranks depend on the values, what they hold
    /// at full ranks.
    pub(crate) fn transient(&self, geometry: &LayerGeometry) -> Transient {
        if self.keeps_whole(geometry) {
            return Transient::default();
        }
        match self.resolved() {
            Self::Exact | Self::Recomputed => Transient::default(),
            Self::GradientFilter(filter) => filter.transient(convolution(geometry)),
            Self::ChannelSparse(sparse) => sparse.transient(geometry),
            Self::ActivationShortcut(shortcut) => shortcut.transient(geometry),
            Self::Hosvd(_) => low_rank::transient(geometry, geometry.modes()),
            Self::Quantized(_) => Transient {
                weight_gradient: geometry.input_len(),
                ..Transient::default()
            },
        }
    }

    /// Elements of [`upstream`](Self::upstream).
    pub(crate) fn upstream_len(&self, geometry: &LayerGeometry) -> usize {
        match self.resolved() {
            Self::GradientFilter(filter) => filter.means_len(convolution(geometry)),
            _ => geometry.output_len(),
        }
    }

    /// What has to stay of `input` for [`weight_gradient`](Self::weight_gradient).
    pub(crate) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &LayerGeometry,
        running: &mut Running<B>,
    ) -> Saved<B> {
        match self.resolved() {
            Self::Exact | Self::Recomputed => exact::keep(input),
            Self::GradientFilter(filter) => filter.keep(input, convolution(geometry)),
            Self::ChannelSparse(_) => {
                let channels = running.channels.as_deref();
                let channels = channels.expect("the layer chose its channels");
                channel_sparse::keep(input, geometry, channels)
            }
            Self::ActivationShortcut(shortcut) => {
                shortcut.keep(input, geometry, &mut running.factors)
            }
            Self::Hosvd(hosvd) => hosvd.keep(input, geometry),
            Self::Quantized(quantized) => quantized.keep(input, geometry),
        }
    }

    /// What all gradients are computed from: the output's gradient, or a filter's means of it.
    pub(crate) fn upstream<B: FrugalOps>(
        &self,
        output_gradient: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        match self.resolved() {
            Self::GradientFilter(filter) => {
                filter.means::<B>(output_gradient, convolution(geometry))
            }
            _ => output_gradient,
        }
    }

    /// The bias' gradient, `[channels_out]`, from [`upstream`](Self::upstream). Exact up to rounding for all
    /// methods.
    pub(crate) fn bias_gradient<B: FrugalOps>(
        &self,
        upstream: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        match self.resolved() {
            Self::GradientFilter(filter) => {
                filter.bias_gradient::<B>(upstream, convolution(geometry))
            }
            // their upstream is the output's gradient itself
            Self::Exact
            | Self::Recomputed
            | Self::ChannelSparse(_)
            | Self::ActivationShortcut(_)
            | Self::Hosvd(_)
            | Self::Quantized(_) => exact::bias_gradient::<B>(upstream, geometry),
        }
    }

    /// The weight's gradient, in the weight's shape, from [`upstream`](Self::upstream).
    pub(crate) fn weight_gradient<B: FrugalOps>(
        &self,
        saved: Saved<B>,
        upstream: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        match (self.resolved(), saved) {
            // other methods keep the whole input where there is nothing to leave out
            (
                Self::Exact
                | Self::Recomputed
                | Self::ChannelSparse(_)
                | Self::ActivationShortcut(_)
                | Self::Hosvd(_),
                Saved::Full(input),
            ) => exact::weight_gradient::<B>(input, upstream, geometry),
            (Self::GradientFilter(filter), Saved::Tiles(kept)) => {
                filter.weight_gradient::<B>(kept, upstream, convolution(geometry))
            }
            (Self::ChannelSparse(_), Saved::Channels { input, channels }) => {
                channel_sparse::weight_gradient::<B>(input, &channels, upstream, geometry)
            }
            (Self::ActivationShortcut(_) | Self::Hosvd(_), Saved::LowRank(low_rank)) => {
                low_rank.weight_gradient(upstream, geometry)
            }
            (Self::Quantized(quantized), Saved::Quantized { codes, scales }) => {
                quantized.weight_gradient::<B>(codes, scales, upstream, geometry)
            }
            (method, saved) => unreachable!("{method:?} does not keep {saved:?}"),
        }
    }

    /// The input's gradient, in the input's shape, from [`upstream`](Self::upstream).
    pub(crate) fn input_gradient<B: FrugalOps>(
        &self,
        weight: FloatTensor<B>,
        upstream: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        match self.resolved() {
            Self::GradientFilter(filter) => {
                filter.input_gradient::<B>(weight, upstream, convolution(geometry))
            }
            _ => exact::input_gradient::<B>(weight, upstream, geometry),
        }
    }

    /// A method whose setting means "off". A filter whose tiles are single pixels would still give
    /// every tap the same gradient; asked for patch 1, a user means the exact gradient.
    fn resolved(&self) -> Self {
        match self {
            Self::GradientFilter(GradientFilter { patch: 1, .. }) => Self::Exact,
            Self::Hosvd(Hosvd { energy }) if *energy >= 1.0 => Self::Exact,
            method => *method,
        }
    }
}

/// The gradient filter's layer.
fn convolution(geometry: &LayerGeometry) -> &burn_frugal_kernels::ConvGeometry {
    match geometry {
        LayerGeometry::Conv2d(conv) => conv,
        LayerGeometry::Linear(_) => panic!("{}", Unsuitable::FilterOnLinear),
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.pad("exact"),
            Self::Recomputed => f.pad("exact, recomputed"),
            Self::GradientFilter(GradientFilter { patch, scaling }) => {
                let suffix = match scaling {
                    Scaling::MassPreserving => "",
                    Scaling::Published => ", published scaling",
                };
                f.pad(&format!("gradient filter, patch {patch}{suffix}"))
            }
            Self::ChannelSparse(ChannelSparse { ratio }) => {
                f.pad(&format!("channel-sparse, ratio {ratio}"))
            }
            Self::ActivationShortcut(ActivationShortcut {
                ranks,
                truncation,
                factors,
                ..
            }) => {
                let truncation = match truncation {
                    Truncation::Independent => "",
                    Truncation::Sequential => ", sequential",
                };
                let factors = match factors {
                    FactorUpdate::EveryStep => "",
                    FactorUpdate::Frozen => ", frozen factors",
                };
                f.pad(&format!("shortcut, ranks {ranks}{truncation}{factors}"))
            }
            Self::Hosvd(Hosvd { energy }) => f.pad(&format!("HOSVD, energy {energy}")),
            Self::Quantized(Quantized { bits }) => f.pad(&format!("quantized, {bits} bits")),
        }
    }
}
