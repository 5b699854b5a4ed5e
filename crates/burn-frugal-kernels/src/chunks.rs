//! Chunks of an unfolding: a few of its columns at a time, so that no product needs a copy of the whole tensor.

use std::ops::Range;

use crate::modes::Unfolding;
use crate::product::Matrix;

/// Bytes of a chunk to aim for: it should stay in a core's cache from one product to the next.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of working memory a thread that products along the modes of a tensor need, as long as a mode has at most a
/// thousand elements.
pub const LOW_RANK_WORKING_MEMORY: usize = 2 * CHUNK_BYTES;

/// Columns below which a chunk makes for an inefficient product.
const CHUNK_COLUMNS: usize = 64;

/// How the columns of an unfolding are cut into chunks: several slabs, or positions of one slab.
#[derive(Debug)]
pub(crate) struct Chunks {
    unfolding: Unfolding,
    slabs: usize,
    positions: usize,
}

/// Columns handled together: some of the slabs, and the same positions of each.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    slabs: Range<usize>,
    positions: Range<usize>,
}

impl Chunk {
    pub(crate) fn columns(&self) -> usize {
        self.slabs.len() * self.positions.len()
    }
}

impl Chunks {
    /// Chunks of elements of type `T`, enough for every thread. The unfolding must not be empty.
    pub(crate) fn new<T>(unfolding: &Unfolding) -> Self {
        let Unfolding { outer, size, inner } = *unfolding;
        let share = unfolding.columns().div_ceil(rayon::current_num_threads());
        let columns = (CHUNK_BYTES / size_of::<T>() / size)
            .min(share)
            .max(CHUNK_COLUMNS);
        let (slabs, positions) = if inner > columns {
            (1, inner.div_ceil(inner.div_ceil(columns)))
        } else if inner < CHUNK_COLUMNS {
            ((columns / inner).min(outer), inner)
        } else {
            (1, inner)
        };
        Self {
            unfolding: *unfolding,
            slabs,
            positions,
        }
    }

    /// Slabs of a chunk.
    pub(crate) fn slabs(&self) -> usize {
        self.slabs
    }

    /// Columns of the largest chunk.
    pub(crate) fn columns(&self) -> usize {
        self.slabs * self.positions
    }

    /// Number of chunks.
    pub(crate) fn count(&self) -> usize {
        self.unfolding.outer.div_ceil(self.slabs) * self.unfolding.inner.div_ceil(self.positions)
    }

    /// One of the chunks.
    pub(crate) fn get(&self, index: usize) -> Chunk {
        let pieces = self.unfolding.inner.div_ceil(self.positions);
        let slab = index / pieces * self.slabs;
        let position = index % pieces * self.positions;
        Chunk {
            slabs: slab..(slab + self.slabs).min(self.unfolding.outer),
            positions: position..(position + self.positions).min(self.unfolding.inner),
        }
    }
}

impl Unfolding {
    /// Whether slabs have too few positions for a product each, and are copied side by side instead.
    ///
    /// With one position per slab, the slabs together are a matrix already.
    pub(crate) fn is_gathered(&self) -> bool {
        1 < self.inner && self.inner < CHUNK_COLUMNS
    }

    /// All of the unfolding as one chunk.
    pub(crate) fn whole(&self) -> Chunk {
        Chunk {
            slabs: 0..self.outer,
            positions: 0..self.inner,
        }
    }

    /// A chunk as `[size, columns]`, in place. Must not be one that [is gathered](Self::is_gathered).
    pub(crate) fn in_place<'a, T>(&self, chunk: &Chunk, tensor: &'a [T]) -> Matrix<'a, T> {
        let slab = &tensor[chunk.slabs.start * self.size * self.inner..];
        if self.inner == 1 {
            Matrix::new(slab, chunk.slabs.len(), self.size, self.size).transposed()
        } else {
            let columns = chunk.positions.len();
            Matrix::new(
                &slab[chunk.positions.start..],
                self.size,
                columns,
                self.inner,
            )
        }
    }

    /// A chunk as `[size, columns]`, copied into the front of `copy`.
    pub(crate) fn copied<'a, S: Copy, T>(
        &self,
        chunk: &Chunk,
        tensor: &[S],
        copy: &'a mut [T],
        convert: impl Fn(S) -> T,
    ) -> Matrix<'a, T> {
        let columns = chunk.columns();
        let copy = &mut copy[..self.size * columns];
        if self.inner == 1 {
            let source = &tensor[chunk.slabs.start * self.size..][..copy.len()];
            for (target, &value) in copy.iter_mut().zip(source) {
                *target = convert(value);
            }
            return Matrix::new(copy, columns, self.size, self.size).transposed();
        }
        let positions = chunk.positions.len();
        for (index, slab) in chunk.slabs.clone().enumerate() {
            let slab = &tensor[slab * self.size * self.inner..][..self.size * self.inner];
            for (source, row) in slab
                .chunks_exact(self.inner)
                .zip(copy.chunks_exact_mut(columns))
            {
                let target = &mut row[index * positions..][..positions];
                for (target, &value) in target.iter_mut().zip(&source[chunk.positions.clone()]) {
                    *target = convert(value);
                }
            }
        }
        Matrix::new(copy, self.size, columns, columns)
    }

    /// Writes all of the tensor from its unfolding, `[size, columns]`: the inverse of [`copied`](Self::copied) with
    /// more than one position.
    pub(crate) fn fold<T: Copy>(&self, matrix: &[T], tensor: &mut [T]) {
        for (index, slab) in tensor.chunks_exact_mut(self.size * self.inner).enumerate() {
            for (target, row) in slab
                .chunks_exact_mut(self.inner)
                .zip(matrix.chunks_exact(self.columns()))
            {
                target.copy_from_slice(&row[index * self.inner..][..self.inner]);
            }
        }
    }
}
