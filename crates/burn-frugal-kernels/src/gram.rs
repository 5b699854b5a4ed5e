//! Gram matrices of a tensor's unfoldings.

use gemm::Parallelism;
use pulp::{Arch, Simd, WithSimd};

use crate::Element;
use crate::chunks::{Chunk, Chunks};
use crate::invariant::expect_len;
use crate::modes::Unfolding;
use crate::parts::{share, sum_of_parts};
use crate::product::{Matrix, MatrixMut, Store, multiply};
use crate::scratch::with_scratch;
use crate::sums::fold;

/// Rows of a Gram matrix that a product computes together, up to the diagonal.
const GRAM_ROWS: usize = 128;

/// Elements of a block: a short mode is looked at so many elements at a time, and a row in pieces of half as many.
const BLOCK: usize = 16;

/// Elements of a block that are multiplied with it in one pass: their sums stay in registers.
const FACTORS: usize = 4;

/// Partial sums of a dot product.
const LANES: usize = 8;

/// Rows whose dot products with each other are computed together.
const TILE: usize = 4;

/// Elements that stay in the fastest cache while all rows are multiplied with each other.
const CACHED: usize = 6 << 10;

/// Gram matrix of a tensor's unfolding, in double precision.
///
/// `gram = X X^T`, where `X`, of shape `[size, outer * inner]`, is the unfolding of `tensor`, of shape `[outer, size,
/// inner]`. `gram` has shape `[size, size]` and is exactly symmetric.
///
/// # Panics
///
/// If a slice does not have the length of its shape.
pub fn gram<T: Element>(unfolding: &Unfolding, tensor: &[T]) -> Vec<f64> {
    const NAME: &str = "gram";
    expect_len(NAME, "tensor", unfolding.len(), tensor.len());
    let mut gram = vec![0.0; unfolding.size * unfolding.size];
    if !tensor.is_empty() {
        by_products(unfolding, tensor, &mut gram, |tensor, chunk, scratch| {
            unfolding.copied(chunk, tensor, scratch, T::to_f64)
        });
    }
    gram
}

/// Whether [`single`] and a product with its result take less time than two products with a factor of this rank.
pub(crate) fn is_shorter(unfolding: &Unfolding, rank: usize) -> bool {
    match kind(unfolding) {
        Kind::Blocks { .. } => true,
        Kind::Rows => unfolding.size <= 4 * rank,
        Kind::Products => unfolding.size < 2 * rank,
    }
}

/// How a Gram matrix is computed fast.
enum Kind {
    /// The elements of a block are multiplied with each other; `period` of them are a slab.
    Blocks {
        /// Elements of a slab, a divisor of a block.
        period: usize,
    },
    /// Rows of a slab are long enough for dot products in memory's order, and few.
    Rows,
    /// Everything else: matrix products.
    Products,
}

fn kind(unfolding: &Unfolding) -> Kind {
    let slab = unfolding.size * unfolding.inner;
    if slab > 0 && BLOCK.is_multiple_of(slab) {
        Kind::Blocks { period: slab }
    } else if unfolding.inner >= LANES && unfolding.size <= BLOCK * TILE {
        Kind::Rows
    } else {
        Kind::Products
    }
}

/// Gram matrix of an unfolding in its own precision. Neither may be empty.
pub(crate) fn single<T: Element>(unfolding: &Unfolding, tensor: &[T]) -> Vec<T> {
    let size = unfolding.size;
    let mut gram = vec![T::ZERO; size * size];
    match kind(unfolding) {
        Kind::Blocks { period } => by_blocks(unfolding, period, tensor, &mut gram),
        Kind::Rows => by_rows(unfolding, tensor, &mut gram),
        Kind::Products => {
            by_products(unfolding, tensor, &mut gram, |tensor, chunk, scratch| {
                if unfolding.is_gathered() {
                    unfolding.copied(chunk, tensor, scratch, |value| value)
                } else {
                    unfolding.in_place(chunk, tensor)
                }
            });
        }
    }
    gram
}

/// Of a block of elements, multiplied with each other, come the sums for `period`, some more than are needed: but there
/// is nothing to copy and no loop over a few elements.
fn by_blocks<T: Element>(unfolding: &Unfolding, period: usize, tensor: &[T], gram: &mut [T]) {
    let Unfolding { size, inner, .. } = *unfolding;
    let arch = Arch::new();
    let parts = rayon::current_num_threads().min(tensor.len().div_ceil(CACHED));
    let mut all = [T::ZERO; BLOCK * BLOCK];
    sum_of_parts(parts, &mut all, |part, sums| {
        let blocks = share(tensor.len().div_ceil(BLOCK), part, parts);
        let stop = (blocks.end * BLOCK).min(tensor.len());
        // Sums of a piece at a time: long ones would lose small terms.
        for elements in tensor[blocks.start * BLOCK..stop].chunks(CACHED) {
            arch.dispatch(Blocks { elements, sums });
        }
    });
    for (row, gram) in gram.chunks_exact_mut(size).enumerate() {
        for (column, total) in gram.iter_mut().enumerate() {
            for slab in (0..BLOCK).step_by(period) {
                for position in 0..inner {
                    let left = slab + row * inner + position;
                    let right = slab + column * inner + position;
                    *total += all[left * BLOCK + right];
                }
            }
        }
    }
}

/// `sums[i, j] += sum over blocks of block[i] * block[j]`; elements missing in the last block are zero.
struct Blocks<'a, T> {
    elements: &'a [T],
    sums: &'a mut [T],
}

impl<T: Element> WithSimd for Blocks<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (blocks, rest) = self.elements.as_chunks::<BLOCK>();
        let mut last = [T::ZERO; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let (rows, _) = self.sums.as_chunks_mut::<BLOCK>();
        for (index, rows) in rows.chunks_exact_mut(FACTORS).enumerate() {
            let mut totals = [[T::ZERO; BLOCK]; FACTORS];
            for block in blocks {
                add_block(block, index * FACTORS, &mut totals);
            }
            add_block(&last, index * FACTORS, &mut totals);
            for (row, totals) in rows.iter_mut().zip(&totals) {
                for (total, &value) in row.iter_mut().zip(totals) {
                    *total += value;
                }
            }
        }
    }
}

/// Adds some elements' products with all elements of a block.
#[inline(always)]
fn add_block<T: Element>(block: &[T; BLOCK], first: usize, totals: &mut [[T; BLOCK]; FACTORS]) {
    for row in 0..FACTORS {
        let factor = block[first + row];
        for lane in 0..BLOCK {
            totals[row][lane] += factor * block[lane];
        }
    }
}

/// Dot products of the rows of slabs.
fn by_rows<T: Element>(unfolding: &Unfolding, tensor: &[T], gram: &mut [T]) {
    let Unfolding { outer, size, inner } = *unfolding;
    let arch = Arch::new();
    // Pieces of slabs: as much of every row as stays in the cache with the others.
    let piece = (CACHED / size).clamp(LANES, inner).next_multiple_of(LANES);
    let pieces = inner.div_ceil(piece);
    let slabs = (CACHED / (size * inner)).clamp(1, outer);
    let chunks = outer.div_ceil(slabs) * pieces;
    let parts = rayon::current_num_threads().min(chunks);
    sum_of_parts(parts, gram, |part, gram| {
        for index in share(chunks, part, parts) {
            let (slab, start) = (index / pieces * slabs, index % pieces * piece);
            let stop = (slab + slabs).min(outer);
            arch.dispatch(RowProducts {
                slabs: &tensor[slab * size * inner..stop * size * inner],
                size,
                inner,
                positions: start..(start + piece).min(inner),
                gram,
            });
        }
    });
    mirror(size, gram);
}

/// `gram[i, j] += sum over slabs, positions of slab[i, position] * slab[j, position]` for `j <= i`, and some others.
struct RowProducts<'a, T> {
    slabs: &'a [T],
    size: usize,
    inner: usize,
    positions: std::ops::Range<usize>,
    gram: &'a mut [T],
}

impl<T: Element> WithSimd for RowProducts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let size = self.size;
        for top in (0..size).step_by(TILE) {
            for left in (0..=top).step_by(TILE) {
                // Rows past the last are those before it once more; what they give is dropped.
                let rows = |first: usize| -> [usize; TILE] {
                    std::array::from_fn(|row| (first + row).min(size - 1))
                };
                let (tops, lefts) = (rows(top), rows(left));
                let mut totals = [[[T::ZERO; LANES]; TILE]; TILE];
                let mut rest = [[T::ZERO; TILE]; TILE];
                for slab in self.slabs.chunks_exact(size * self.inner) {
                    let row = |row: usize| &slab[row * self.inner..][self.positions.clone()];
                    let (upper, lower) = (tops.map(row), lefts.map(row));
                    add_dots(upper, lower, &mut totals, &mut rest);
                }
                for (row, (totals, rest)) in totals.iter_mut().zip(&rest).enumerate() {
                    for (column, (lanes, &rest)) in totals.iter_mut().zip(rest).enumerate() {
                        if top + row < size && left + column < size {
                            self.gram[(top + row) * size + left + column] += fold(lanes) + rest;
                        }
                    }
                }
            }
        }
    }
}

/// Adds the products of every pair of rows to its lanes, and those past the last whole piece to `rest`.
#[inline(always)]
fn add_dots<T: Element>(
    upper: [&[T]; TILE],
    lower: [&[T]; TILE],
    totals: &mut [[[T; LANES]; TILE]; TILE],
    rest: &mut [[T; TILE]; TILE],
) {
    let len = upper[0].len();
    let (upper_pieces, lower_pieces) = (
        upper.map(|row| row.as_chunks::<LANES>().0),
        lower.map(|row| row.as_chunks::<LANES>().0),
    );
    let mut sums = *totals;
    for index in 0..len / LANES {
        let left = lower_pieces.map(|row| row[index]);
        for (sums, row) in sums.iter_mut().zip(upper_pieces) {
            let right = row[index];
            for (sums, left) in sums.iter_mut().zip(left) {
                for lane in 0..LANES {
                    sums[lane] += right[lane] * left[lane];
                }
            }
        }
    }
    *totals = sums;
    for index in len / LANES * LANES..len {
        for (sums, upper) in rest.iter_mut().zip(upper) {
            for (sum, lower) in sums.iter_mut().zip(lower) {
                *sum += upper[index] * lower[index];
            }
        }
    }
}

/// `gram = X X^T` in the precision of `T`, with `matrix` the columns of a chunk, in scratch memory if need be. The
/// tensor must not be empty.
fn by_products<S: Element, T: Element>(
    unfolding: &Unfolding,
    tensor: &[S],
    gram: &mut [T],
    matrix: impl for<'a> Fn(&'a [S], &Chunk, &'a mut [T]) -> Matrix<'a, T> + Sync,
) {
    let size = unfolding.size;
    let chunks = Chunks::new::<T>(unfolding);
    let parts = rayon::current_num_threads().min(chunks.count());
    sum_of_parts(parts, gram, |part, gram| {
        with_scratch(size * chunks.columns(), |scratch| {
            let indices = share(chunks.count(), part, parts);
            for index in indices.clone() {
                let matrix = matrix(tensor, &chunks.get(index), scratch);
                for start in (0..size).step_by(GRAM_ROWS) {
                    let stop = (start + GRAM_ROWS).min(size);
                    multiply(
                        matrix.rows(start..stop),
                        matrix.rows(0..stop).transposed(),
                        MatrixMut {
                            data: &mut gram[start * size..],
                            row_stride: size,
                        },
                        Store::add_if(index > indices.start),
                        Parallelism::None,
                    );
                }
            }
        });
    });
    mirror(size, gram);
}

/// Copies what is below the diagonal of a matrix to above it.
fn mirror<T: Element>(size: usize, matrix: &mut [T]) {
    for row in 0..size {
        for column in 0..row {
            matrix[column * size + row] = matrix[row * size + column];
        }
    }
}
