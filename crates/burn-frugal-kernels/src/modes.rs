//! Products of a tensor with a matrix along one of its modes, as in Tucker decompositions.

use gemm::Parallelism;

use crate::Element;
use crate::chunks::Chunks;
use crate::fresh::{in_parallel, in_turn};
use crate::gram;
use crate::invariant::expect_len;
use crate::parts::{PARALLEL_ELEMENTS, share, sum_of_parts};
use crate::product::{Matrix, MatrixMut, Store, multiply};
use crate::scratch::with_scratch;

/// A contiguous row-major tensor seen along one of its modes (axes): `[outer, size, inner]`.
///
/// Its matrix form, the unfolding of multilinear algebra, has the mode as rows and everything else as columns:
/// `[size, outer * inner]`. Any of the three sizes may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfolding {
    /// Product of the sizes of the axes before the mode.
    pub outer: usize,
    /// Size of the mode.
    pub size: usize,
    /// Product of the sizes of the axes after the mode.
    pub inner: usize,
}

impl Unfolding {
    /// The unfolding of a tensor of this shape along axis `mode`.
    ///
    /// # Panics
    ///
    /// If the shape has no such axis.
    pub fn new(shape: &[usize], mode: usize) -> Self {
        assert!(
            mode < shape.len(),
            "Unfolding: mode must be below the rank of {shape:?}, found {mode}"
        );
        Self {
            outer: shape[..mode].iter().product(),
            size: shape[mode],
            inner: shape[mode + 1..].iter().product(),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.outer * self.size * self.inner
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of columns: `outer * inner`.
    pub fn columns(&self) -> usize {
        self.outer * self.inner
    }

    fn with_size(self, size: usize) -> Self {
        Self { size, ..self }
    }
}

/// Product of a tensor with the transpose of a factor along one mode: its coordinates in the factor's columns, if
/// these are orthonormal.
///
/// `projected[o, r, i] = sum over d of tensor[o, d, i] * factor[d, r]`, with `tensor` of shape `[outer, size, inner]`
/// (`unfolding`), `factor` of shape `[size, rank]` and `projected` of shape `[outer, rank, inner]`.
///
/// # Panics
///
/// If a slice does not have the length of its shape.
pub fn mode_project<T: Element>(
    unfolding: &Unfolding,
    rank: usize,
    tensor: &[T],
    factor: &[T],
) -> Vec<T> {
    const NAME: &str = "mode_project";
    let small = unfolding.with_size(rank);
    expect_len(NAME, "tensor", unfolding.len(), tensor.len());
    expect_len(NAME, "factor", unfolding.size * rank, factor.len());
    let factor = Matrix::new(factor, unfolding.size, rank, rank);
    multiply_slabs(factor.transposed(), unfolding, tensor, &small)
}

/// Product of a tensor with a factor along one mode: the transpose of [`mode_project`].
///
/// `expanded[o, d, i] = sum over r of core[o, r, i] * factor[d, r]`, with `core` of shape `[outer, rank, inner]`,
/// `factor` of shape `[size, rank]` and `expanded` of shape `[outer, size, inner]` (`unfolding`).
///
/// # Panics
///
/// If a slice does not have the length of its shape.
pub fn mode_expand<T: Element>(
    unfolding: &Unfolding,
    rank: usize,
    core: &[T],
    factor: &[T],
) -> Vec<T> {
    const NAME: &str = "mode_expand";
    let small = unfolding.with_size(rank);
    expect_len(NAME, "core", small.len(), core.len());
    expect_len(NAME, "factor", unfolding.size * rank, factor.len());
    let factor = Matrix::new(factor, unfolding.size, rank, rank);
    multiply_slabs(factor, &small, core, unfolding)
}

/// One step of subspace iteration, without making the result orthonormal.
///
/// `product = X X^T factor`, where `X`, of shape `[size, outer * inner]`, is the unfolding of `tensor`, of shape
/// `[outer, size, inner]`. `factor` and `product` have shape `[size, rank]`.
///
/// # Panics
///
/// If a slice does not have the length of its shape.
pub fn subspace_product<T: Element>(
    unfolding: &Unfolding,
    rank: usize,
    tensor: &[T],
    factor: &[T],
) -> Vec<T> {
    const NAME: &str = "subspace_product";
    let size = unfolding.size;
    expect_len(NAME, "tensor", unfolding.len(), tensor.len());
    expect_len(NAME, "factor", size * rank, factor.len());
    let mut product = vec![T::ZERO; size * rank];
    if product.is_empty() || tensor.is_empty() {
        return product;
    }
    let factor = Matrix::new(factor, size, rank, rank);
    if gram::is_shorter(unfolding, rank) {
        let gram = gram::single(unfolding, tensor);
        let target = MatrixMut {
            data: &mut product,
            row_stride: rank,
        };
        let gram = Matrix::new(&gram, size, size, size);
        multiply(gram, factor, target, Store::Replace, Parallelism::Rayon(0));
        return product;
    }
    // The sums are kept as [rank, size], the mode contiguous: fast also when the mode is the last axis.
    sum_projections(unfolding, rank, tensor, factor, &mut product);
    with_scratch(product.len(), |transposed| {
        transposed.copy_from_slice(&product);
        for (position, row) in product.chunks_exact_mut(rank).enumerate() {
            for (value, column) in row.iter_mut().zip(transposed.chunks_exact(size)) {
                *value = column[position];
            }
        }
    });
    product
}

/// `target[o, t, i] = sum over s of matrix[t, s] * source[o, s, i]`.
fn multiply_slabs<T: Element>(
    matrix: Matrix<'_, T>,
    source_shape: &Unfolding,
    source: &[T],
    target_shape: &Unfolding,
) -> Vec<T> {
    let len = target_shape.len();
    if len == 0 || source.is_empty() {
        return vec![T::ZERO; len];
    }
    let Unfolding { outer, inner, .. } = *target_shape;
    let source_slab = source_shape.size * inner;
    let target_slab = target_shape.size * inner;
    let each_slab = |source: &[T], target: &mut [T], parallelism: Parallelism| {
        for (source, target) in source
            .chunks_exact(source_slab)
            .zip(target.chunks_exact_mut(target_slab))
        {
            multiply(
                matrix,
                Matrix::new(source, source_shape.size, inner, inner),
                MatrixMut {
                    data: target,
                    row_stride: inner,
                },
                Store::Replace,
                parallelism,
            );
        }
    };
    if outer < rayon::current_num_threads() {
        // Too few slabs to go round: the threads share each product instead.
        return in_turn(len, len, |_, target| {
            each_slab(source, target, Parallelism::Rayon(0));
        });
    }
    let larger = target_shape.with_size(source_shape.size.max(target_shape.size));
    let slabs = Chunks::new::<T>(&larger)
        .slabs()
        .max(PARALLEL_ELEMENTS.div_ceil(larger.size * inner));
    in_parallel(len, slabs * target_slab, |index, target| {
        let source = &source[index * slabs * source_slab..];
        let slabs = target.len() / target_slab;
        let source = &source[..slabs * source_slab];
        if inner == 1 {
            multiply(
                Matrix::new(source, slabs, source_slab, source_slab),
                matrix.transposed(),
                MatrixMut {
                    data: target,
                    row_stride: target_slab,
                },
                Store::Replace,
                Parallelism::None,
            );
        } else if source_shape.is_gathered() {
            multiply_gathered(
                matrix,
                &Unfolding {
                    outer: slabs,
                    ..*source_shape
                },
                source,
                &Unfolding {
                    outer: slabs,
                    ..*target_shape
                },
                target,
            );
        } else {
            each_slab(source, target, Parallelism::None);
        }
    })
}

/// As [`multiply_slabs`], with all slabs copied side by side into one product.
fn multiply_gathered<T: Element>(
    matrix: Matrix<'_, T>,
    source_shape: &Unfolding,
    source: &[T],
    target_shape: &Unfolding,
    target: &mut [T],
) {
    with_scratch(source.len() + target.len(), |scratch| {
        let (gathered, result) = scratch.split_at_mut(source.len());
        multiply(
            matrix,
            source_shape.copied(&source_shape.whole(), source, gathered, |value| value),
            MatrixMut {
                data: result,
                row_stride: target_shape.columns(),
            },
            Store::Replace,
            Parallelism::None,
        );
        target_shape.fold(result, target);
    });
}

/// `sums = factor^T X X^T`, of shape `[rank, size]`: `Y = factor^T X` one chunk at a time, and the sum of `Y X^T`.
///
/// Neither the tensor nor the sums may be empty.
fn sum_projections<T: Element>(
    unfolding: &Unfolding,
    rank: usize,
    tensor: &[T],
    factor: Matrix<'_, T>,
    sums: &mut [T],
) {
    let size = unfolding.size;
    let chunks = Chunks::new::<T>(unfolding);
    let gathered_len = if unfolding.is_gathered() {
        size * chunks.columns()
    } else {
        0
    };
    let parts = rayon::current_num_threads().min(chunks.count());
    sum_of_parts(parts, sums, |part, sums| {
        with_scratch(gathered_len + rank * chunks.columns(), |scratch| {
            let (gathered, projected) = scratch.split_at_mut(gathered_len);
            let indices = share(chunks.count(), part, parts);
            for index in indices.clone() {
                let chunk = chunks.get(index);
                let columns = chunk.columns();
                let matrix = if unfolding.is_gathered() {
                    unfolding.copied(&chunk, tensor, gathered, |value| value)
                } else {
                    unfolding.in_place(&chunk, tensor)
                };
                multiply(
                    factor.transposed(),
                    matrix,
                    MatrixMut {
                        data: projected,
                        row_stride: columns,
                    },
                    Store::Replace,
                    Parallelism::None,
                );
                multiply(
                    Matrix::new(projected, rank, columns, columns),
                    matrix.transposed(),
                    MatrixMut {
                        data: sums,
                        row_stride: size,
                    },
                    Store::add_if(index > indices.start),
                    Parallelism::None,
                );
            }
        });
    });
}
