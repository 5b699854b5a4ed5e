//! The singular values and left singular vectors of an unfolding, on the host.

use burn::backend::{TensorMetadata, tensor::FloatTensor};
use burn::tensor::{TensorData, try_read_sync};
use burn_frugal_kernels::{DecompositionError, symmetric_eigen};

use crate::ops::FrugalOps;

/// What the Gram matrix `X X^T` of an unfolding `X`, `[size, columns]`, tells about it.
pub(crate) struct Spectrum {
    energies: Vec<f64>,
    /// Row-major `[size, size]`, one vector a column.
    vectors: Vec<f64>,
}

impl Spectrum {
    /// From a Gram matrix, row-major `[size, size]`, or a sum of several.
    pub(crate) fn of_gram(size: usize, gram: &[f64]) -> Result<Self, DecompositionError> {
        let (values, vectors) = symmetric_eigen(size, gram)?;
        // rounding can make a zero negative
        let energies = values.into_iter().map(|value| value.max(0.0)).collect();
        Ok(Self { energies, vectors })
    }

    /// Of the unfolding of a tensor along one of its axes; `None` if a value is not finite.
    pub(super) fn of_mode<B: FrugalOps>(tensor: &FloatTensor<B>, mode: usize) -> Option<Self> {
        Self::of_gram(tensor.shape()[mode], &gram::<B>(tensor, mode)).ok()
    }

    /// Whether there is anything but zeros: otherwise every vector is arbitrary.
    pub(crate) fn has_energy(&self) -> bool {
        self.energies.iter().any(|&energy| energy > 0.0)
    }

    /// The squared singular values, descending.
    pub(super) fn energies(&self) -> &[f64] {
        &self.energies
    }

    /// The first left singular vectors as a factor `[size, rank]`, on the device and of the type of
    /// `like`.
    pub(crate) fn leading<B: FrugalOps>(
        &self,
        rank: usize,
        like: &FloatTensor<B>,
    ) -> FloatTensor<B> {
        let size = self.energies.len();
        let rows = self.vectors.chunks_exact(size);
        let values: Vec<f64> = rows.flat_map(|row| &row[..rank]).copied().collect();
        let data = TensorData::new(values, [size, rank]).convert_dtype(like.dtype());
        B::float_from_data(data, &like.device())
    }
}

/// The Gram matrix of the unfolding of a tensor along one of its axes, read to the host.
pub(crate) fn gram<B: FrugalOps>(tensor: &FloatTensor<B>, mode: usize) -> Vec<f64> {
    let data = try_read_sync(B::float_into_data(B::gram(tensor.clone(), mode)));
    let data = data.expect("this platform reads tensors synchronously");
    let data = data.unwrap_or_else(|error| panic!("reading a Gram matrix: {error}"));
    data.iter::<f64>().collect()
}
