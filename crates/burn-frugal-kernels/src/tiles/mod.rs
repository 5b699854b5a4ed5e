mod grid;
mod runs;

use pulp::{Arch, Simd, WithSimd};

use crate::Element;
use crate::fresh::in_parallel;
use crate::invariant::expect_len;
use crate::parts::PARALLEL_ELEMENTS;
use crate::scratch::with_scratch;
use grid::{Grid, SpreadGrid, SumGrid};
use runs::{Runs, spread_each, sum_each};

/// One tile's extent along one axis, and the factor its sum is multiplied by along that axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// First pixel.
    pub start: usize,
    /// One past the last pixel; equal to `start` for an empty tile.
    pub stop: usize,
    /// Factor along this axis: 1 for a sum, `1 / (stop - start)` for a mean.
    pub weight: f64,
}

/// A map cut into tiles: every pair of a row span and a column span is one tile.
///
/// The spans of an axis must be disjoint and ascending. They need not cover the map.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiles {
    /// Spans along the height.
    pub rows: Vec<Span>,
    /// Spans along the width.
    pub columns: Vec<Span>,
}

impl Tiles {
    fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// The weight of the one tile that is the whole map, if that is how it is cut.
    fn single<T: Element>(&self, [height, width]: [usize; 2]) -> Option<T> {
        let ([rows], [columns]) = (&self.rows[..], &self.columns[..]) else {
            return None;
        };
        let whole =
            rows.start == 0 && rows.stop == height && columns.start == 0 && columns.stop == width;
        whole.then(|| T::from_f64(rows.weight) * T::from_f64(columns.weight))
    }

    #[track_caller]
    fn expect_inside(&self, operation: &str, size: [usize; 2]) {
        for (axis, spans, size) in [
            ("rows", &self.rows, size[0]),
            ("columns", &self.columns, size[1]),
        ] {
            let mut position = 0;
            for span in spans {
                assert!(
                    position <= span.start && span.start <= span.stop && span.stop <= size,
                    "{operation}: {axis} must be ascending, disjoint and at most {size}, found {}..{} after {position}",
                    span.start,
                    span.stop,
                );
                position = span.stop;
            }
        }
    }
}

/// Sums every plane of a map over tiles.
///
/// `sums[p, u, v] = rows[u].weight * columns[v].weight * (sum of map[p] over rows[u] x columns[v])`, with `map` of
/// shape `[planes, height, width]` (`size` is `[height, width]`) and `sums` of shape `[planes, rows, columns]`.
/// An empty tile gives 0.
///
/// # Panics
///
/// If a slice does not have the length of its shape, or the spans are not ascending, disjoint and inside the map.
pub fn tile_sums<T: Element>(tiles: &Tiles, planes: usize, size: [usize; 2], map: &[T]) -> Vec<T> {
    let [height, width] = size;
    expect_len("tile_sums", "map", planes * height * width, map.len());
    tiles.expect_inside("tile_sums", size);
    let len = planes * tiles.len();
    if len == 0 || map.is_empty() {
        return vec![T::ZERO; len];
    }
    let job = planes_of_a_job(height * width);
    let arch = Arch::new();
    if let Some(weight) = tiles.single::<T>(size) {
        return in_parallel(len, job, |index, sums| {
            let map = &map[index * job * height * width..][..sums.len() * height * width];
            arch.dispatch(|| sum_each(map, height * width, weight, sums));
        });
    }
    if let Some(grid) = Grid::new(tiles, size) {
        let (job_tiles, job_map) = (job * tiles.len(), job * height * width);
        return in_parallel(len, job_tiles, |index, sums| {
            let map = &map[index * job_map..][..sums.len() * grid.rows * grid.columns];
            arch.dispatch(SumGrid { grid, map, sums });
        });
    }
    let columns = Runs::new(&tiles.columns);
    in_parallel(len, job * tiles.len(), |index, sums| {
        with_scratch(width, |line| {
            arch.dispatch(SumPlanes {
                rows: &tiles.rows,
                columns: &columns,
                size,
                map: &map[index * job * height * width..],
                line,
                sums,
            });
        });
    })
}

/// The passes of [`tile_sums`] over some planes.
struct SumPlanes<'a, T> {
    rows: &'a [Span],
    columns: &'a Runs<T>,
    size: [usize; 2],
    map: &'a [T],
    /// Room for a row.
    line: &'a mut [T],
    /// Zero at first.
    sums: &'a mut [T],
}

impl<T: Element> WithSimd for SumPlanes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [height, width] = self.size;
        let tiles = self.rows.len() * self.columns.spans;
        let planes = self.map.chunks_exact(height * width);
        for (map, sums) in planes.zip(self.sums.chunks_exact_mut(tiles)) {
            for (rows, sums) in self
                .rows
                .iter()
                .zip(sums.chunks_exact_mut(self.columns.spans))
            {
                // Adding whole rows first leaves only one short sum per tile.
                let strip = &map[rows.start * width..rows.stop * width];
                let row_weight = T::from_f64(rows.weight);
                match rows.stop - rows.start {
                    0 => {}
                    1 => self.columns.sum(strip, row_weight, sums),
                    _ => {
                        add_rows(strip, self.line);
                        self.columns.sum(self.line, row_weight, sums);
                    }
                }
            }
        }
    }
}

/// The sum of the rows of a strip of at least two.
#[inline(always)]
fn add_rows<T: Element>(strip: &[T], line: &mut [T]) {
    let (first, rest) = strip.split_at(line.len());
    let (second, rest) = rest.split_at(line.len());
    for ((total, &first), &second) in line.iter_mut().zip(first).zip(second) {
        *total = first + second;
    }
    for row in rest.chunks_exact(line.len()) {
        for (total, &value) in line.iter_mut().zip(row) {
            *total += value;
        }
    }
}

/// Gives every pixel of a tile its tile's value: the transpose of [`tile_sums`].
///
/// `map[p, y, x] = rows[u].weight * columns[v].weight * values[p, u, v]` for `y` in `rows[u]` and `x` in `columns[v]`,
/// and 0 for pixels in no tile. `values` has shape `[planes, rows, columns]`, `map` has shape `[planes, height, width]`
/// (`size` is `[height, width]`).
///
/// # Panics
///
/// If a slice does not have the length of its shape, or the spans are not ascending, disjoint and inside the map.
pub fn tile_spread<T: Element>(
    tiles: &Tiles,
    planes: usize,
    size: [usize; 2],
    values: &[T],
) -> Vec<T> {
    let [height, width] = size;
    expect_len("tile_spread", "values", planes * tiles.len(), values.len());
    tiles.expect_inside("tile_spread", size);
    let len = planes * height * width;
    if len == 0 || values.is_empty() {
        return vec![T::ZERO; len];
    }
    let job = planes_of_a_job(height * width);
    let arch = Arch::new();
    if let Some(weight) = tiles.single::<T>(size) {
        return in_parallel(len, job * height * width, |index, map| {
            let values = &values[index * job..][..map.len() / (height * width)];
            arch.dispatch(|| spread_each(values, height * width, weight, map));
        });
    }
    if let Some(grid) = Grid::new(tiles, size) {
        return in_parallel(len, job * height * width, |index, map| {
            let values = &values[index * job * tiles.len()..];
            let values = &values[..map.len() / (grid.rows * grid.columns)];
            arch.dispatch(SpreadGrid { grid, values, map });
        });
    }
    let columns = Runs::new(&tiles.columns);
    in_parallel(len, job * height * width, |index, map| {
        arch.dispatch(SpreadPlanes {
            rows: &tiles.rows,
            columns: &columns,
            size,
            values: &values[index * job * tiles.len()..],
            map,
        });
    })
}

/// The passes of [`tile_spread`] over some planes.
struct SpreadPlanes<'a, T> {
    rows: &'a [Span],
    columns: &'a Runs<T>,
    size: [usize; 2],
    values: &'a [T],
    /// Zero at first.
    map: &'a mut [T],
}

impl<T: Element> WithSimd for SpreadPlanes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [height, width] = self.size;
        let tiles = self.rows.len() * self.columns.spans;
        let planes = self.map.chunks_exact_mut(height * width);
        for (map, values) in planes.zip(self.values.chunks_exact(tiles)) {
            for (rows, values) in self
                .rows
                .iter()
                .zip(values.chunks_exact(self.columns.spans))
            {
                let strip = &mut map[rows.start * width..rows.stop * width];
                if strip.is_empty() {
                    continue;
                }
                // Every row of the strip is the same: write one, copy it to the others.
                let (first, others) = strip.split_at_mut(width);
                self.columns.spread(values, T::from_f64(rows.weight), first);
                for row in others.chunks_exact_mut(width) {
                    row.copy_from_slice(first);
                }
            }
        }
    }
}

/// Planes that one job works on, so that it is worth splitting off.
fn planes_of_a_job(pixels: usize) -> usize {
    PARALLEL_ELEMENTS.div_ceil(pixels)
}
