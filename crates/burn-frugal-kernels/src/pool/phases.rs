//! Maps with the columns that are a stride apart side by side, so that what a tap reads for a row of outputs is
//! contiguous.

use super::PoolGeometry;
use super::blocks::{block, block_mut};
use crate::Element;

/// Strides of a row that are dealt out at once.
const BLOCK: usize = 8;

/// How the columns of a map are dealt out to its phases: column `x` is number `x / stride` of phase `x % stride`.
#[derive(Clone, Copy)]
pub(super) struct Phases {
    columns: usize,
    stride: usize,
    /// Columns of a phase. Of the later phases, some have one less.
    len: usize,
}

impl Phases {
    pub(super) fn new(geometry: &PoolGeometry) -> Self {
        let (columns, stride) = (geometry.input[1], geometry.stride[1]);
        Self {
            columns,
            stride: stride.min(columns),
            len: columns.div_ceil(stride),
        }
    }

    /// Whether the map is its own single phase.
    pub(super) fn is_single(self) -> bool {
        self.stride == 1
    }

    /// Elements of all phases of a row.
    pub(super) fn row_len(self) -> usize {
        self.stride * self.len
    }

    /// Where in a row the phase of a column starts to be read from there.
    pub(super) fn position(self, column: usize) -> usize {
        column % self.stride * self.len + column / self.stride
    }

    /// Deals out the columns of a map.
    #[inline(always)]
    pub(super) fn deal<T: Element>(self, map: &[T], phases: &mut [T]) {
        match self.stride {
            2 => self.deal_known::<T, 2>(map, phases),
            3 => self.deal_known::<T, 3>(map, phases),
            _ => {
                let rows = map.chunks_exact(self.columns);
                for (row, phases) in rows.zip(phases.chunks_exact_mut(self.row_len())) {
                    for (first, phase) in phases.chunks_exact_mut(self.len).enumerate() {
                        let columns = row[first..].iter().step_by(self.stride);
                        for (target, &value) in phase.iter_mut().zip(columns) {
                            *target = value;
                        }
                    }
                }
            }
        }
    }

    /// Strides known to the compiler become shuffles of whole registers.
    #[inline(always)]
    fn deal_known<T: Element, const STRIDE: usize>(self, map: &[T], phases: &mut [T]) {
        let rows = map.chunks_exact(self.columns);
        for (row, phases) in rows.zip(phases.chunks_exact_mut(self.row_len())) {
            let (columns, rest) = row.as_chunks::<STRIDE>();
            match columns.len() {
                0..BLOCK => self.deal_blocks::<T, STRIDE, 1>(columns, phases),
                _ => self.deal_blocks::<T, STRIDE, BLOCK>(columns, phases),
            }
            for (first, &value) in rest.iter().enumerate() {
                phases[first * self.len + columns.len()] = value;
            }
        }
    }

    #[inline(always)]
    fn deal_blocks<T: Element, const STRIDE: usize, const LEN: usize>(
        self,
        columns: &[[T; STRIDE]],
        phases: &mut [T],
    ) {
        for start in (0..columns.len()).step_by(LEN) {
            // The last block is whole, and deals out some columns again.
            let start = start.min(columns.len() - LEN);
            let columns: [_; LEN] = *block(&columns[start..]);
            for first in 0..STRIDE {
                let phase: &mut [T; LEN] = block_mut(&mut phases[first * self.len + start..]);
                for (target, column) in phase.iter_mut().zip(&columns) {
                    *target = column[first];
                }
            }
        }
    }
}
