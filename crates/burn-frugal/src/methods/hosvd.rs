//! HOSVD (arXiv 2411.06346): the input as a low-rank core and factors, with the smallest rank of
//! each mode that keeps a share of its energy.
//!
//! The factors are the leading eigenvectors of each mode's Gram matrix `X_m X_m^T`, which are the
//! left singular vectors of `X_m`, found from a `[size, size]` matrix in double precision instead of
//! a decomposition of the whole unfolding. The ranks depend on the values, so they are read back to
//! the host. A baseline: the activation shortcut comes close for a fraction of the work.

use burn::backend::tensor::FloatTensor;
use serde::{Deserialize, Serialize};

use super::low_rank::{self, FactorArray, LowRank};
use super::route::{Route, cheapest_order};
use super::spectrum::Spectrum;
use super::{Flops, Saved, Unsuitable, exact};
use crate::geometry::{LayerGeometry, PerMode};
use crate::ops::FrugalOps;

/// A low-rank input that keeps a share of its energy in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosvd {
    /// The share of the squared singular values that every mode keeps, above 0 and at most 1. 1 is
    /// the exact gradient.
    pub energy: f64,
}

impl Hosvd {
    pub(super) fn check(&self) -> Result<(), Unsuitable> {
        if self.energy > 0.0 && self.energy <= 1.0 {
            Ok(())
        } else {
            Err(Unsuitable::Energy { found: self.energy })
        }
    }

    /// The most elements that [`keep`](Self::keep)'s result can have.
    pub(super) fn elements(&self, geometry: &LayerGeometry) -> usize {
        let modes = geometry.modes();
        let mut most = modes.product();
        for mode in 0..modes.len() {
            let rank = modes[mode].min(low_rank::columns(modes, mode));
            most += modes[mode] * rank;
        }
        most
    }

    /// Compresses `input`; a value that is not finite makes it stay whole.
    pub(super) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &LayerGeometry,
    ) -> Saved<B> {
        let modes = geometry.modes();
        let input = B::float_reshape(input, modes.as_slice().to_vec().into());
        if modes.product() == 0 {
            return exact::keep(input);
        }
        let mut factors: FactorArray<B> = Default::default();
        for (mode, factor) in factors.iter_mut().enumerate().take(modes.len()) {
            let Some(spectrum) = Spectrum::of_mode::<B>(&input, mode) else {
                return exact::keep(input);
            };
            let most = modes[mode].min(low_rank::columns(modes, mode));
            let rank = self.rank(spectrum.energies()).min(most);
            if rank < modes[mode] {
                *factor = Some(spectrum.leading::<B>(rank, &input));
            }
        }
        if factors.iter().all(Option::is_none) {
            return exact::keep(input);
        }
        Saved::LowRank(LowRank::project(input, factors))
    }

    /// The smallest rank that reaches the energy, at least 1.
    fn rank(&self, energies: &[f64]) -> usize {
        let total: f64 = energies.iter().sum();
        let mut kept = 0.0;
        let short = energies.iter().take_while(|&energy| {
            kept += energy;
            kept < self.energy * total
        });
        (short.count() + 1).min(energies.len())
    }

    /// What a Tucker decomposition by Gram matrices costs, then the gradient, at given ranks.
    pub(crate) fn flops_at(geometry: &LayerGeometry, ranks: PerMode) -> Flops {
        let modes = geometry.modes();
        let decompositions = (0..modes.len()).map(|mode| {
            let size = modes[mode] as u64;
            // the Gram matrix; tridiagonalisation, QR iterations and vectors: about 9 n^3
            2 * size * size * low_rank::columns(modes, mode) as u64 + 9 * size * size * size
        });
        let (_, projection) = cheapest_order(modes, ranks);
        Flops {
            forward: decompositions.sum::<u64>() + 2 * projection,
            weight_gradient: 2 * Route::cheapest(geometry, ranks).products,
            ..exact::flops(geometry)
        }
    }
}
