//! Decompositions of small matrices: orthonormal bases, and eigenvectors of symmetric matrices.

use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::{ComputeEigenvectors, self_adjoint_evd, self_adjoint_evd_scratch};
use faer::linalg::householder::{
    apply_block_householder_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_on_the_left_in_place_with_conj as apply,
};
use faer::linalg::qr::no_pivoting::factor::{
    qr_in_place, qr_in_place_scratch, recommended_block_size,
};
use faer::{Conj, Mat, Par};
use thiserror::Error;

use crate::Element;
use crate::invariant::expect_len;

/// Why a matrix has no decomposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecompositionError {
    /// A value is infinite or NaN.
    #[error("the matrix must be finite, found another value in row {row}, column {column}")]
    NotFinite {
        /// Row of the first such value.
        row: usize,
        /// Column of the first such value.
        column: usize,
    },
    /// The iteration for the eigenvalues did not end.
    #[error("the eigenvalues of a matrix of size {size} did not converge")]
    NoConvergence {
        /// Rows and columns of the matrix.
        size: usize,
    },
}

/// Replaces a matrix by orthonormal columns that span its columns: the `Q` of its thin QR decomposition, with the
/// diagonal of `R` not negative.
///
/// `matrix` has shape `[rows, columns]`. The result is always finite and orthonormal: where the columns are linearly
/// dependent up to the rounding of `f64`, pseudo-random directions, always the same, take the place of the missing ones,
/// and in a matrix with a value that is not finite all are missing. They are not rows of the identity because a subspace
/// iteration would never leave the places that are zero in all its data. The decomposition is computed in `f64`,
/// whatever the element.
///
/// # Panics
///
/// If there are more columns than rows, or the slice does not have the length of its shape.
pub fn orthonormalize<T: Element>(rows: usize, columns: usize, matrix: &mut [T]) {
    assert!(
        columns <= rows,
        "orthonormalize: columns must be at most rows, {rows}, found {columns}"
    );
    expect_len("orthonormalize", "matrix", rows * columns, matrix.len());
    if columns == 0 {
        return;
    }
    let basis = if matrix.iter().all(|value| value.is_finite()) {
        completed_basis(scaled(rows, columns, matrix))
    } else {
        thin_q(Mat::from_fn(rows, columns, pseudo_random)).0
    };
    for (row, values) in matrix.chunks_exact_mut(columns).enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            *value = T::from_f64(basis[(row, column)]);
        }
    }
}

/// The matrix with each column divided by its largest absolute value: `Q` is that of the columns in any scale, and in
/// this one no square of theirs overflows or vanishes.
fn scaled<T: Element>(rows: usize, columns: usize, matrix: &[T]) -> Mat<f64> {
    let mut largest = vec![0.0_f64; columns];
    for row in matrix.chunks_exact(columns) {
        for (largest, value) in largest.iter_mut().zip(row) {
            *largest = largest.max(value.to_f64().abs());
        }
    }
    Mat::from_fn(rows, columns, |row, column| {
        let value = matrix[row * columns + column].to_f64();
        if value == 0.0 {
            0.0
        } else {
            value / largest[column]
        }
    })
}

/// An orthonormal basis of the columns, completed by pseudo-random directions.
fn completed_basis(matrix: Mat<f64>) -> Mat<f64> {
    let (rows, columns) = (matrix.nrows(), matrix.ncols());
    let (basis, rank) = thin_q(matrix);
    if rank == columns {
        return basis;
    }
    let completed = Mat::from_fn(rows, columns, |row, column| {
        if column < rank {
            basis[(row, column)]
        } else {
            pseudo_random(row, column)
        }
    });
    thin_q(completed).0
}

/// A value in -1..1: SplitMix64 of the place.
fn pseudo_random(row: usize, column: usize) -> f64 {
    let mut state = (row as u64) << 32 | column as u64;
    state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((state ^ (state >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The first columns of the `Q` of a QR decomposition, with the diagonal of `R` not negative, and the rank: that many of
/// them span all columns of the matrix.
///
/// `faer` treats a column as dependent on those before it if what is left of it is around `16 * rows` roundings of its
/// length: harmless in `f64`, but in `f32` that is up to a thousandth, which drops directions that subspace iteration
/// needs. Hence `f64`.
fn thin_q(mut factors: Mat<f64>) -> (Mat<f64>, usize) {
    let lengths: Vec<f64> = factors.col_iter().map(|column| column.norm_l2()).collect();
    let (rows, columns) = (factors.nrows(), factors.ncols());
    let block = recommended_block_size::<f64>(rows, columns);
    let mut coefficients = Mat::zeros(block, columns);
    let mut memory = MemBuffer::new(
        qr_in_place_scratch::<f64>(rows, columns, block, Par::Seq, Default::default())
            .or(apply_scratch::<f64>(rows, block, columns)),
    );
    qr_in_place(
        factors.as_mut(),
        coefficients.as_mut(),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    );
    let mut basis = Mat::identity(rows, columns);
    // The last block first: until a block is applied, the rows and columns from its first on are all that it changes.
    for start in (0..columns).step_by(block).rev() {
        let stop = (start + block).min(columns);
        apply(
            factors.get(start.., start..stop),
            coefficients.get(..stop - start, start..stop),
            Conj::No,
            basis.get_mut(start.., start..),
            Par::Seq,
            MemStack::new(&mut memory),
        );
    }
    for (column, values) in basis.col_iter_mut().enumerate() {
        if factors[(column, column)] < 0.0 {
            values.iter_mut().for_each(|value| *value = -*value);
        }
    }
    let negligible = 16.0 * rows as f64 * f64::EPSILON;
    // `faer` leaves out a column that depends on others and goes on in the same row of `R`, so the rows that are not
    // negligible come first.
    let is_used = |&row: &usize| {
        (row..columns).any(|column| factors[(row, column)].abs() > negligible * lengths[column])
    };
    let rank = (0..columns).take_while(is_used).count();
    (basis, rank)
}

/// Eigenvalues, in descending order, and eigenvectors of a symmetric matrix.
///
/// `matrix` has shape `[size, size]`; only its lower triangle is used. The first vector returned holds the `size`
/// eigenvalues. The second is a matrix of shape `[size, size]` with orthonormal columns: column `k` is an eigenvector
/// to the `k`-th eigenvalue.
///
/// # Errors
///
/// If a value is not finite, or the iteration does not converge.
///
/// # Panics
///
/// If the slice does not have the length of its shape.
pub fn symmetric_eigen(
    size: usize,
    matrix: &[f64],
) -> Result<(Vec<f64>, Vec<f64>), DecompositionError> {
    expect_len("symmetric_eigen", "matrix", size * size, matrix.len());
    if let Some(index) = matrix.iter().position(|value| !value.is_finite()) {
        return Err(DecompositionError::NotFinite {
            row: index / size,
            column: index % size,
        });
    }
    let largest = matrix
        .iter()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    if largest == 0.0 {
        let identity = (0..size * size)
            .map(|index| f64::from(index / size == index % size))
            .collect();
        return Ok((vec![0.0; size], identity));
    }
    // In this scale no square overflows or vanishes.
    let scaled = Mat::from_fn(size, size, |row, column| {
        matrix[row * size + column] / largest
    });
    let mut ascending = vec![0.0; size];
    let mut vectors = Mat::zeros(size, size);
    let mut memory = MemBuffer::new(self_adjoint_evd_scratch::<f64>(
        size,
        ComputeEigenvectors::Yes,
        Par::Seq,
        Default::default(),
    ));
    self_adjoint_evd(
        scaled.as_ref(),
        DiagMut::from_slice_mut(&mut ascending),
        Some(vectors.as_mut()),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    )
    .map_err(|_| DecompositionError::NoConvergence { size })?;
    let values = ascending
        .iter()
        .rev()
        .map(|value| value * largest)
        .collect();
    let vectors = (0..size * size)
        .map(|index| vectors[(index / size, size - 1 - index % size)])
        .collect();
    Ok((values, vectors))
}
