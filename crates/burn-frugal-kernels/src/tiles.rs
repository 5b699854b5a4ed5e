use rayon::prelude::*;

use crate::Element;
use crate::invariant::expect_len;
use crate::scratch::with_scratch;
use crate::sums::sum;

/// Elements below which splitting a pass over threads costs more than it saves.
const PARALLEL_ELEMENTS: usize = 16 << 10;

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
/// shape `[planes, height, width]` (`size` is `[height, width]`) and `sums` of shape `[planes, rows, columns]`,
/// overwritten. An empty tile gives 0.
///
/// # Panics
///
/// If a slice does not have the length of its shape, or the spans are not ascending, disjoint and inside the map.
pub fn tile_sums<T: Element>(
    tiles: &Tiles,
    planes: usize,
    size: [usize; 2],
    map: &[T],
    sums: &mut [T],
) {
    let [height, width] = size;
    expect_len("tile_sums", "map", planes * height * width, map.len());
    expect_len("tile_sums", "sums", planes * tiles.len(), sums.len());
    tiles.expect_inside("tile_sums", size);
    if sums.is_empty() {
        return;
    }
    if map.is_empty() {
        sums.fill(T::ZERO);
        return;
    }
    let columns: Vec<T> = tiles
        .columns
        .iter()
        .map(|span| T::from_f64(span.weight))
        .collect();
    sums.par_chunks_exact_mut(tiles.len())
        .zip(map.par_chunks_exact(height * width))
        .with_min_len(PARALLEL_ELEMENTS.div_ceil(height * width))
        .for_each(|(sums, map)| {
            with_scratch(width, |line| {
                for (rows, sums) in tiles.rows.iter().zip(sums.chunks_exact_mut(columns.len())) {
                    // Adding whole rows first leaves only one short sum per tile.
                    let mut strip = map[rows.start * width..rows.stop * width].chunks_exact(width);
                    match strip.next() {
                        Some(first) => line.copy_from_slice(first),
                        None => {
                            sums.fill(T::ZERO);
                            continue;
                        }
                    }
                    for row in strip {
                        for (total, &value) in line.iter_mut().zip(row) {
                            *total += value;
                        }
                    }
                    let row_weight = T::from_f64(rows.weight);
                    for ((total, span), &weight) in
                        sums.iter_mut().zip(&tiles.columns).zip(&columns)
                    {
                        *total = if span.start == span.stop {
                            T::ZERO
                        } else {
                            row_weight * weight * sum(&line[span.start..span.stop])
                        };
                    }
                }
            });
        });
}

/// Gives every pixel of a tile its tile's value: the transpose of [`tile_sums`].
///
/// `map[p, y, x] = rows[u].weight * columns[v].weight * values[p, u, v]` for `y` in `rows[u]` and `x` in `columns[v]`,
/// and 0 for pixels in no tile. `values` has shape `[planes, rows, columns]`, `map` has shape `[planes, height, width]`
/// (`size` is `[height, width]`) and is overwritten.
///
/// # Panics
///
/// If a slice does not have the length of its shape, or the spans are not ascending, disjoint and inside the map.
pub fn tile_spread<T: Element>(
    tiles: &Tiles,
    planes: usize,
    size: [usize; 2],
    values: &[T],
    map: &mut [T],
) {
    let [height, width] = size;
    expect_len("tile_spread", "values", planes * tiles.len(), values.len());
    expect_len("tile_spread", "map", planes * height * width, map.len());
    tiles.expect_inside("tile_spread", size);
    if map.is_empty() {
        return;
    }
    if values.is_empty() {
        map.fill(T::ZERO);
        return;
    }
    let columns: Vec<T> = tiles
        .columns
        .iter()
        .map(|span| T::from_f64(span.weight))
        .collect();
    map.par_chunks_exact_mut(height * width)
        .zip(values.par_chunks_exact(tiles.len()))
        .with_min_len(PARALLEL_ELEMENTS.div_ceil(height * width))
        .for_each(|(map, values)| {
            let mut filled = 0;
            for (rows, values) in tiles.rows.iter().zip(values.chunks_exact(columns.len())) {
                map[filled * width..rows.start * width].fill(T::ZERO);
                filled = rows.stop;
                let strip = &mut map[rows.start * width..rows.stop * width];
                if strip.is_empty() {
                    continue;
                }
                // Every row of the strip is the same: write one, copy it to the others.
                let (first, others) = strip.split_at_mut(width);
                first.fill(T::ZERO);
                let row_weight = T::from_f64(rows.weight);
                for ((span, &weight), &value) in tiles.columns.iter().zip(&columns).zip(values) {
                    first[span.start..span.stop].fill(row_weight * weight * value);
                }
                for row in others.chunks_exact_mut(width) {
                    row.copy_from_slice(first);
                }
            }
            map[filled * width..].fill(T::ZERO);
        });
}
