//! HOSVD (arXiv 2411.06346): the input as a low-rank core and factors, with the smallest rank of
//! each mode that keeps a share of its energy.
//!
//! The factors are the leading eigenvectors of each mode's Gram matrix `X_m X_m^T`, which are the
//! left singular vectors of `X_m`, found from a `[size, size]` matrix in double precision instead of
//! a decomposition of the whole unfolding. The ranks depend on the values, so they are read back to
//! the host. A baseline: the activation shortcut comes close for a fraction of the work.

use burn::backend::{TensorMetadata, tensor::FloatTensor};
use burn::tensor::{TensorData, try_read_sync};
use burn_frugal_kernels::symmetric_eigen;
use serde::{Deserialize, Serialize};

use super::low_rank::{self, FactorArray, LowRank};
use super::route::{Route, cheapest_order};
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
            let Some((values, vectors)) = spectrum::<B>(&input, mode) else {
                return exact::keep(input);
            };
            let most = modes[mode].min(low_rank::columns(modes, mode));
            let rank = self.rank(&values).min(most);
            if rank < modes[mode] {
                *factor = Some(columns::<B>(&input, modes[mode], rank, &vectors));
            }
        }
        if factors.iter().all(Option::is_none) {
            return exact::keep(input);
        }
        Saved::LowRank(LowRank::project(input, factors))
    }

    /// The smallest rank that reaches the energy, at least 1.
    fn rank(&self, values: &[f64]) -> usize {
        if self.energy >= 1.0 {
            return values.len();
        }
        let total: f64 = values.iter().map(|value| value.max(0.0)).sum();
        let mut kept = 0.0;
        let short = values.iter().take_while(|value| {
            kept += value.max(0.0);
            kept < self.energy * total
        });
        (short.count() + 1).min(values.len())
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

/// The `rank` leading left singular vectors of the unfolding, `[size, rank]`; `None` if a value is
/// not finite.
pub(super) fn leading<B: FrugalOps>(
    input: &FloatTensor<B>,
    mode: usize,
    rank: usize,
) -> Option<FloatTensor<B>> {
    let (_, vectors) = spectrum::<B>(input, mode)?;
    Some(columns::<B>(input, input.shape()[mode], rank, &vectors))
}

/// Squared singular values, descending, and left singular vectors of the unfolding.
fn spectrum<B: FrugalOps>(input: &FloatTensor<B>, mode: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    symmetric_eigen(input.shape()[mode], &gram::<B>(input, mode)).ok()
}

/// The Gram matrix of the unfolding, read to the host.
pub(crate) fn gram<B: FrugalOps>(input: &FloatTensor<B>, mode: usize) -> Vec<f64> {
    let data = try_read_sync(B::float_into_data(B::gram(input.clone(), mode)));
    let data = data.expect("this platform reads tensors synchronously");
    let data = data.unwrap_or_else(|error| panic!("reading a Gram matrix: {error}"));
    data.iter::<f64>().collect()
}

/// The first `rank` columns of a row-major `[size, size]` matrix as a tensor like `like`.
pub(crate) fn columns<B: FrugalOps>(
    like: &FloatTensor<B>,
    size: usize,
    rank: usize,
    matrix: &[f64],
) -> FloatTensor<B> {
    let values: Vec<f64> = matrix
        .chunks_exact(size)
        .flat_map(|row| &row[..rank])
        .copied()
        .collect();
    let data = TensorData::new(values, [size, rank]).convert_dtype(like.dtype());
    B::float_from_data(data, &like.device())
}
