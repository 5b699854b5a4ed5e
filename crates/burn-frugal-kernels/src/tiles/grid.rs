//! Narrow maps cut into equal tiles without gaps: passes over many planes at once, since each is too small to be worth
//! a loop of its own.

use pulp::{Simd, WithSimd};

use super::runs::{spread_each, sum_each};
use super::{Span, Tiles};
use crate::Element;
use crate::rows::Rows;
use crate::scratch::with_scratch;

/// Width from which a row is long enough to be treated on its own.
const WIDE: usize = 32;

/// Tiles of one size that cover a narrow map. With whole tiles in every row of tiles, planes need not be told apart.
#[derive(Clone, Copy)]
pub(super) struct Grid<T> {
    /// Pixel rows of a tile.
    pub(super) rows: usize,
    /// Pixel columns of a tile.
    pub(super) columns: usize,
    width: usize,
    weight: T,
}

impl<T: Element> Grid<T> {
    /// The tiles as a grid, if they are one and the map is narrow.
    pub(super) fn new(tiles: &Tiles, [height, width]: [usize; 2]) -> Option<Self> {
        if width >= WIDE {
            return None;
        }
        let (rows, row_weight) = even(&tiles.rows, height)?;
        let (columns, column_weight) = even(&tiles.columns, width)?;
        Some(Self {
            rows,
            columns,
            width,
            weight: T::from_f64(row_weight) * T::from_f64(column_weight),
        })
    }
}

/// Length and weight of spans that cover an axis and are all the same.
fn even(spans: &[Span], size: usize) -> Option<(usize, f64)> {
    let first = spans.first()?;
    let len = first.stop - first.start;
    let even = spans.iter().enumerate().all(|(index, span)| {
        span.start == index * len && span.stop == span.start + len && span.weight == first.weight
    });
    (even && len > 0 && len * spans.len() == size).then_some((len, first.weight))
}

/// Sums of whole rows of tiles, of any number of planes.
pub(super) struct SumGrid<'a, T> {
    pub(super) grid: Grid<T>,
    pub(super) map: &'a [T],
    pub(super) sums: &'a mut [T],
}

impl<T: Element> WithSimd for SumGrid<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Grid {
            rows,
            columns,
            width,
            weight,
        } = self.grid;
        let tiles = width / columns;
        // Along the rows first: one loop over everything.
        with_scratch(self.map.len() / columns, |lines| {
            sum_each(self.map, columns, weight, lines);
            let strips = lines.chunks_exact(rows * tiles);
            for (sums, strip) in self.sums.chunks_exact_mut(tiles).zip(strips) {
                let (first, others) = strip.split_at(tiles);
                sums.copy_from_slice(first);
                for line in others.chunks_exact(tiles) {
                    for (total, &value) in sums.iter_mut().zip(line) {
                        *total += value;
                    }
                }
            }
        });
    }
}

/// The transpose of [`SumGrid`].
pub(super) struct SpreadGrid<'a, T> {
    pub(super) grid: Grid<T>,
    pub(super) values: &'a [T],
    pub(super) map: &'a mut [T],
}

impl<T: Element> WithSimd for SpreadGrid<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Grid {
            rows,
            columns,
            width,
            weight,
        } = self.grid;
        with_scratch(self.values.len() * columns, |lines| {
            spread_each(self.values, columns, weight, lines);
            let lines_of_tiles = Rows {
                count: lines.len() / width,
                width,
            };
            for row in 0..rows {
                let map = &mut self.map[row * width..];
                lines_of_tiles.copy(lines, width, map, rows * width);
            }
        });
    }
}
