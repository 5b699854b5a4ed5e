//! The activation shortcut (ASI, arXiv 2505.05086): the input as a low-rank core and factors, found
//! by one subspace iteration a mode and step that starts where the last step's ended.
//!
//! For every mode `m` with unfolding `X_m` (`[size, columns]`): `U_m <- Q of X_m (X_m^T U_m)`, then
//! the core is the input contracted with all `U_m`. The gradient is the exact one of the
//! reconstruction. Input gradients are exact.
//!
//! Differences from the released code, on purpose: the first step starts from a random factor
//! `[size, rank]` instead of a random `[columns, rank]` (far fewer numbers, one product further on),
//! drawn from the method's own seed and not the framework's; a mode whose rank is its size is left
//! alone; a mode whose size changes starts anew without touching the others.

use burn::backend::{TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Slice, TensorData};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use std::ops::Range;

use super::low_rank::{self, FactorArray, LowRank};
use super::route::{Route, cheapest_order};
use super::spectrum::Spectrum;
use super::{Flops, LayerKind, LayerShape, Method, Saved, Transient, Unsuitable, exact};
use crate::geometry::{LayerGeometry, PerMode};
use crate::ops::FrugalOps;

/// A low-rank input from warm-started subspace iterations.
///
/// # Example
/// ```
/// use burn_frugal::Method;
/// use burn_frugal::methods::ActivationShortcut;
///
/// // batch, channels, height, width
/// let method = Method::activation_shortcut([4, 16, 4, 4]);
/// // with options
/// let cheaper: Method = ActivationShortcut::new([4, 16, 4, 4]).sequential().into();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationShortcut {
    /// The rank of each mode of the input, in its order: batch, channels, height, width of a
    /// convolution. A rank above what the input's shape allows counts as the largest possible one.
    pub ranks: PerMode,
    /// Which tensor the iterations run on.
    #[serde(default)]
    pub truncation: Truncation,
    /// When the factors change.
    #[serde(default)]
    pub factors: FactorUpdate,
    /// Seed of the factors of the first step.
    #[serde(default)]
    pub seed: u64,
}

/// Which tensor the subspace iterations run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Every mode's on the whole input, as published.
    #[default]
    Independent,
    /// Every mode's on what the modes before it left, channels first (sequentially truncated HOSVD,
    /// doi 10.1137/110836067, with iterations in place of decompositions). Fewer operations where the
    /// channels' rank is low, more where it is high: [`Method::flops`] tells. On the inputs that we
    /// tried, a slightly smaller error.
    Sequential,
}

/// When the factors change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactorUpdate {
    /// One iteration at every step.
    #[default]
    EveryStep,
    /// Calibrated once, then kept (LANCE, arXiv 2509.21617): the leading eigenvectors of each
    /// mode's second moments, over the batches of [`calibrate`](crate::plan::calibrate) or, without
    /// it, over the first batch that is not all zeros. The batch's own mode is not compressed,
    /// whatever its rank: its samples change. Kept while a mode's size stays: a training pass at
    /// another resolution calibrates the modes that changed from that batch alone, and their earlier
    /// factors are gone.
    Frozen,
}

impl ActivationShortcut {
    /// The published form with these ranks.
    pub fn new(ranks: impl Into<PerMode>) -> Self {
        Self {
            ranks: ranks.into(),
            truncation: Truncation::default(),
            factors: FactorUpdate::default(),
            seed: 0,
        }
    }

    /// With [`Truncation::Sequential`].
    pub fn sequential(self) -> Self {
        Self {
            truncation: Truncation::Sequential,
            ..self
        }
    }

    /// With [`FactorUpdate::Frozen`].
    pub fn frozen(self) -> Self {
        Self {
            factors: FactorUpdate::Frozen,
            ..self
        }
    }

    /// With another seed.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    pub(super) fn check(&self, layer: &LayerShape) -> Result<(), Unsuitable> {
        let ranks = self.ranks;
        if ranks.as_slice().contains(&0) {
            return Err(Unsuitable::ZeroRank { found: ranks });
        }
        if layer.kind != LayerKind::Linear && ranks.len() != 4 {
            return Err(Unsuitable::RankCount {
                expected: "4",
                found: ranks,
            });
        }
        let found = ranks[layer.channel_mode(ranks.len())];
        let channels = layer.channels[0];
        if found > channels {
            return Err(Unsuitable::ChannelRank { found, channels });
        }
        Ok(())
    }

    /// The ranks that an input of this shape gets.
    ///
    /// # Panics
    /// When the input has another number of modes than there are ranks.
    pub fn ranks_for(&self, modes: PerMode) -> PerMode {
        let count = self.ranks.len();
        assert!(
            modes.len() == count,
            "activation shortcut: {count} ranks ({}) for an input {modes} with {} modes",
            self.ranks,
            modes.len(),
        );
        match self.factors {
            FactorUpdate::EveryStep => low_rank::clipped(self.ranks, modes),
            // a calibrated basis may have more columns than one batch could give
            FactorUpdate::Frozen => (1..count).fold(modes, |ranks, mode| {
                ranks.with(mode, self.ranks[mode].min(modes[mode]))
            }),
        }
    }

    pub(super) fn elements(&self, geometry: &LayerGeometry) -> usize {
        let modes = geometry.modes();
        low_rank::elements(modes, self.ranks_for(modes))
    }

    /// Elements of all factors.
    pub(super) fn factor_elements(&self, geometry: &LayerGeometry) -> usize {
        let modes = geometry.modes();
        let ranks = self.ranks_for(modes);
        low_rank::elements(modes, ranks) - ranks.product()
    }

    pub(super) fn transient(&self, geometry: &LayerGeometry) -> Transient {
        low_rank::transient(geometry, self.ranks_for(geometry.modes()))
    }

    pub(super) fn flops(&self, geometry: &LayerGeometry) -> Flops {
        let modes = geometry.modes();
        let ranks = self.ranks_for(modes);
        let route = Route::cheapest(geometry, ranks);
        let (_, projection) = cheapest_order(modes, ranks);
        let forward = match (self.factors, self.truncation) {
            (FactorUpdate::Frozen, _) => 2 * projection,
            (FactorUpdate::EveryStep, Truncation::Independent) => {
                let iterations = (0..modes.len()).map(|mode| iteration_flops(modes, ranks, mode));
                iterations.sum::<u64>() + 2 * projection
            }
            (FactorUpdate::EveryStep, Truncation::Sequential) => {
                let mut left = modes;
                let mut flops = 0;
                for mode in sequence(geometry) {
                    if ranks[mode] < modes[mode] {
                        flops += iteration_flops(left, ranks, mode);
                        flops += 2 * (left.product() * ranks[mode]) as u64;
                        left = left.with(mode, ranks[mode]);
                    }
                }
                flops
            }
        };
        Flops {
            forward,
            weight_gradient: 2 * route.products,
            ..exact::flops(geometry)
        }
    }

    /// Compresses `input`. `running` holds the factors of the last step and gets those of this one.
    pub(super) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &LayerGeometry,
        running: &mut FactorArray<B>,
    ) -> Saved<B> {
        let modes = geometry.modes();
        let ranks = self.ranks_for(modes);
        let input = B::float_reshape(input, modes.as_slice().to_vec().into());
        let compressed = |mode: usize| mode < modes.len() && ranks[mode] < modes[mode];
        for mode in (0..PerMode::MOST).filter(|&mode| !compressed(mode)) {
            running[mode] = None;
        }
        if modes.product() == 0 || ranks == modes {
            return exact::keep(input);
        }
        let mut factors = FactorArray::<B>::default();
        let mut left = input;
        for mode in sequence(geometry).filter(|&mode| compressed(mode)) {
            let before = running[mode]
                .take()
                .and_then(|factor| fitting::<B>(factor, &left, modes[mode], ranks[mode]));
            let factor = match (self.factors, &before) {
                (FactorUpdate::Frozen, Some(Before { leading, .. })) => Some(leading.clone()),
                (FactorUpdate::Frozen, None) => Spectrum::of_mode::<B>(&left, mode)
                    .filter(Spectrum::has_energy)
                    .map(|spectrum| spectrum.leading::<B>(ranks[mode], &left)),
                (FactorUpdate::EveryStep, _) => {
                    let start = before.as_ref().map(|before| before.leading.clone());
                    Some(self.iterate::<B>(&left, mode, ranks[mode], start))
                }
            };
            let clipped = ranks[mode] < self.ranks[mode].min(modes[mode]);
            running[mode] = match (before, factor.clone()) {
                // few columns: what this step can find must not cost the rest of the last one's
                (
                    Some(Before {
                        rest: Some(rest), ..
                    }),
                    Some(factor),
                ) if clipped => Some(B::orthonormalize(B::float_cat(vec![factor, rest], 1))),
                (_, factor) => factor,
            };
            if let (Truncation::Sequential, Some(factor)) = (self.truncation, &factor) {
                left = B::mode_project(left, factor.clone(), mode);
            }
            factors[mode] = factor;
        }
        Saved::LowRank(match self.truncation {
            Truncation::Independent => LowRank::project(left, factors),
            Truncation::Sequential => LowRank::new(left, factors),
        })
    }

    /// One subspace iteration along a mode.
    fn iterate<B: FrugalOps>(
        &self,
        input: &FloatTensor<B>,
        mode: usize,
        rank: usize,
        start: Option<FloatTensor<B>>,
    ) -> FloatTensor<B> {
        let start = start.unwrap_or_else(|| self.start::<B>(input, mode, rank));
        let product = B::subspace_product(input.clone(), start, mode);
        // half precision is iterated in single
        B::float_cast(B::orthonormalize(product), input.dtype().into())
    }

    /// Uniform values in -1..1 that depend on the seed, the mode and the shape only.
    fn start<B: FrugalOps>(
        &self,
        like: &FloatTensor<B>,
        mode: usize,
        rank: usize,
    ) -> FloatTensor<B> {
        let size = like.shape()[mode];
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_add(mode as u64));
        let values: Vec<f64> = (0..size * rank)
            .map(|_| random.random_range(-1.0..1.0))
            .collect();
        let data = TensorData::new(values, [size, rank]).convert_dtype(like.dtype());
        B::float_from_data(data, &like.device())
    }
}

impl From<ActivationShortcut> for Method {
    fn from(shortcut: ActivationShortcut) -> Self {
        Self::ActivationShortcut(shortcut)
    }
}

/// Channels, then the other modes in their order.
fn sequence(geometry: &LayerGeometry) -> impl Iterator<Item = usize> {
    let channels = geometry.channel_mode();
    let others = (0..geometry.modes().len()).filter(move |&mode| mode != channels);
    std::iter::once(channels).chain(others)
}

/// A factor of the last step that this one can start from.
struct Before<B: FrugalOps> {
    /// As many columns as this step uses.
    leading: FloatTensor<B>,
    /// Those that it does not use.
    rest: Option<FloatTensor<B>>,
}

/// `None` if the mode's size or its rank was another one.
fn fitting<B: FrugalOps>(
    factor: FloatTensor<B>,
    input: &FloatTensor<B>,
    size: usize,
    rank: usize,
) -> Option<Before<B>> {
    let [rows, columns] = factor.shape().dims();
    if rows != size || columns < rank {
        return None;
    }
    // one from elsewhere may have another precision
    let factor = B::float_cast(factor, input.dtype().into());
    if columns == rank {
        return Some(Before {
            leading: factor,
            rest: None,
        });
    }
    let part = |columns: Range<usize>| {
        B::float_slice(factor.clone(), &[Slice::full(), Slice::from(columns)])
    };
    Some(Before {
        leading: part(0..rank),
        rest: Some(part(rank..columns)),
    })
}

/// `X (X^T U)` by the cheaper of two ways, and a Householder QR with its thin Q.
fn iteration_flops(modes: PerMode, ranks: PerMode, mode: usize) -> u64 {
    let [size, rank] = [modes[mode] as u64, ranks[mode] as u64];
    if rank == size {
        return 0;
    }
    let columns = low_rank::columns(modes, mode) as u64;
    let products = if size < 2 * rank {
        // the Gram matrix first
        2 * size * size * columns + 2 * size * size * rank
    } else {
        4 * size * rank * columns
    };
    products + 4 * size * rank * rank
}
