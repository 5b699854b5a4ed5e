//! Activations as a small core and a factor a mode (a Tucker decomposition), and the weight's
//! gradient from them without rebuilding the activation where that is cheaper.

use burn::backend::{Backend, ExtensionType, TensorMetadata, tensor::FloatTensor};

use super::route::Route;
use super::{Transient, exact};
use crate::geometry::{LayerGeometry, PerMode};
use crate::ops::{FrugalOps, MaybeFloat};

/// An activation as `core x_0 U_0 x_1 U_1 ...`: the core is contracted along each mode with that
/// mode's factor. A mode whose rank is its size has no factor.
#[derive(ExtensionType, Clone, Debug)]
pub struct LowRank<B: Backend> {
    /// One axis a mode; its sizes are the ranks.
    pub core: FloatTensor<B>,
    /// `[size, rank]` with orthonormal columns, for each mode that has a factor.
    #[extension_type]
    pub factors: Factors<B>,
}

/// The factors of modes 0 to 3.
#[derive(ExtensionType, Clone, Debug)]
pub struct Factors<B: Backend>(
    #[extension_type] pub MaybeFloat<B>,
    #[extension_type] pub MaybeFloat<B>,
    #[extension_type] pub MaybeFloat<B>,
    #[extension_type] pub MaybeFloat<B>,
);

/// The factors by mode.
pub(crate) type FactorArray<B> = [Option<FloatTensor<B>>; PerMode::MOST];

impl<B: Backend> LowRank<B> {
    pub(crate) fn new(core: FloatTensor<B>, factors: FactorArray<B>) -> Self {
        let [a, b, c, d] = factors.map(MaybeFloat::from);
        Self {
            core,
            factors: Factors(a, b, c, d),
        }
    }

    /// The core and the factors by mode.
    pub(crate) fn into_parts(self) -> (FloatTensor<B>, FactorArray<B>) {
        let Factors(a, b, c, d) = self.factors;
        (self.core, [a, b, c, d].map(MaybeFloat::into_option))
    }

    /// The same with every tensor mapped.
    pub(crate) fn map<C: Backend>(
        self,
        tensor: impl Fn(FloatTensor<B>) -> FloatTensor<C>,
    ) -> LowRank<C> {
        let (core, factors) = self.into_parts();
        LowRank::new(tensor(core), factors.map(|factor| factor.map(&tensor)))
    }
}

impl<B: FrugalOps> LowRank<B> {
    /// Contracts `input` with every factor, in the order that takes the fewest products.
    pub(super) fn project(input: FloatTensor<B>, factors: FactorArray<B>) -> Self {
        let sizes = sizes::<B>(&input);
        let mut ranks = sizes;
        for (mode, factor) in factors.iter().enumerate() {
            if let Some(factor) = factor {
                ranks = ranks.with(mode, factor.shape()[1]);
            }
        }
        let (order, _) = super::route::cheapest_order(sizes, ranks);
        let mut core = input;
        for mode in order {
            if let Some(factor) = &factors[mode] {
                core = B::mode_project(core, factor.clone(), mode);
            }
        }
        Self::new(core, factors)
    }

    /// The exact weight gradient of the activation that this stands for.
    pub(super) fn weight_gradient(
        self,
        output_gradient: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> FloatTensor<B> {
        let (core, factors) = self.into_parts();
        let output_gradient = match geometry {
            LayerGeometry::Conv2d(_) => output_gradient,
            // it may have more axes than modes
            LayerGeometry::Linear(linear) => {
                let modes = linear
                    .input
                    .with(linear.input.len() - 1, linear.output_features);
                B::float_reshape(output_gradient, modes.as_slice().to_vec().into())
            }
        };
        let route = Route::cheapest(geometry, sizes::<B>(&core));
        let factor = |mode: usize| {
            let factor: &Option<FloatTensor<B>> = &factors[mode];
            factor.clone().expect("a route uses modes with a factor")
        };
        let core = route
            .expanded
            .iter()
            .fold(core, |core, &mode| B::mode_expand(core, factor(mode), mode));
        let output_gradient = route
            .projected
            .iter()
            .fold(output_gradient, |gradient, &mode| {
                B::mode_project(gradient, factor(mode), mode)
            });
        let gradient = exact::weight_gradient::<B>(core, output_gradient, &route.geometry);
        if !route.channels_in_rank {
            return gradient;
        }
        // the weight's axis of input channels
        let axis = match geometry {
            LayerGeometry::Conv2d(_) => 1,
            LayerGeometry::Linear(_) => 0,
        };
        B::mode_expand(gradient, factor(geometry.channel_mode()), axis)
    }
}

/// Elements of a core and its factors.
pub(super) fn elements(modes: PerMode, ranks: PerMode) -> usize {
    let pairs = modes.as_slice().iter().zip(ranks.as_slice());
    let factors = pairs.filter(|(size, rank)| rank < size);
    ranks.product() + factors.map(|(size, rank)| size * rank).sum::<usize>()
}

/// What projecting an input to these ranks and the gradient from there hold for a moment.
pub(super) fn transient(geometry: &LayerGeometry, ranks: PerMode) -> Transient {
    let modes = geometry.modes();
    let (order, _) = super::route::cheapest_order(modes, ranks);
    Transient {
        // the last one is the core, which is kept
        keep: super::transient::along(modes, ranks, &order).saturating_sub(ranks.product()),
        weight_gradient: Route::cheapest(geometry, ranks).transient(geometry, ranks),
        input_gradient: 0,
    }
}

/// The largest useful rank of each mode: an unfolding `[size, columns]` has rank at most the
/// smaller of the two.
pub(super) fn clipped(ranks: PerMode, modes: PerMode) -> PerMode {
    (0..modes.len()).fold(modes, |clipped, mode| {
        let columns = columns(modes, mode);
        clipped.with(mode, ranks[mode].min(modes[mode]).min(columns))
    })
}

/// Columns of the unfolding along a mode.
pub(super) fn columns(modes: PerMode, mode: usize) -> usize {
    modes.with(mode, 1).product()
}

/// The shape of an activation.
///
/// # Panics
/// When it has not 2 to 4 axes.
pub(super) fn sizes<B: Backend>(tensor: &FloatTensor<B>) -> PerMode {
    let shape = tensor.shape();
    PerMode::new(shape.as_slice()).unwrap_or_else(|| panic!("an activation with axes {shape:?}"))
}
