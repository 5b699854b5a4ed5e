//! Runs: neighbouring spans of one length and weight, whose sums and spreads are loops without branches.

use std::ops::Range;

use super::Span;
use crate::Element;
use crate::sums::sum;

/// Spans of one length and weight without gaps between them.
#[derive(Clone, Debug)]
struct Run<T> {
    spans: Range<usize>,
    /// First pixel of the first span.
    start: usize,
    /// Pixels of each span.
    len: usize,
    weight: T,
}

/// The spans of one axis.
#[derive(Clone, Debug)]
pub(super) struct Runs<T> {
    runs: Vec<Run<T>>,
    /// Number of spans.
    pub(super) spans: usize,
}

impl<T: Element> Runs<T> {
    /// The spans must be ascending and disjoint.
    pub(super) fn new(spans: &[Span]) -> Self {
        let mut runs: Vec<Run<T>> = Vec::new();
        for (index, span) in spans.iter().enumerate() {
            let (len, weight) = (span.stop - span.start, T::from_f64(span.weight));
            match runs.last_mut() {
                Some(run)
                    if run.start + run.len * run.spans.len() == span.start
                        && run.len == len
                        && run.weight == weight =>
                {
                    run.spans.end += 1;
                }
                _ => runs.push(Run {
                    spans: index..index + 1,
                    start: span.start,
                    len,
                    weight,
                }),
            }
        }
        Self {
            runs,
            spans: spans.len(),
        }
    }

    /// `sums[span] = factor * weight * sum of line[span]`, 0 for an empty span.
    #[inline(always)]
    pub(super) fn sum(&self, line: &[T], factor: T, sums: &mut [T]) {
        for run in &self.runs {
            let line = &line[run.start..][..run.len * run.spans.len()];
            let weight = factor * run.weight;
            sum_each(line, run.len, weight, &mut sums[run.spans.clone()]);
        }
    }

    /// `line[span] = factor * weight * value[span]`; pixels in no span stay as they are.
    #[inline(always)]
    pub(super) fn spread(&self, values: &[T], factor: T, line: &mut [T]) {
        for run in &self.runs {
            let line = &mut line[run.start..][..run.len * run.spans.len()];
            let weight = factor * run.weight;
            spread_each(&values[run.spans.clone()], run.len, weight, line);
        }
    }
}

/// `sums[i] = weight * sum of the i-th len elements`, 0 if they are none.
#[inline(always)]
pub(super) fn sum_each<T: Element>(line: &[T], len: usize, weight: T, sums: &mut [T]) {
    match len {
        0 => sums.fill(T::ZERO),
        1 => sum_known::<T, 1>(line, weight, sums),
        2 => sum_known::<T, 2>(line, weight, sums),
        3 => sum_known::<T, 3>(line, weight, sums),
        4 => sum_known::<T, 4>(line, weight, sums),
        7 => sum_known::<T, 7>(line, weight, sums),
        8 => sum_known::<T, 8>(line, weight, sums),
        9 => sum_known::<T, 9>(line, weight, sums),
        _ => {
            for (total, values) in sums.iter_mut().zip(line.chunks_exact(len)) {
                *total = weight * sum(values);
            }
        }
    }
}

/// Lengths known to the compiler become shuffles of whole registers.
#[inline(always)]
fn sum_known<T: Element, const LEN: usize>(line: &[T], weight: T, sums: &mut [T]) {
    let (tiles, _) = line.as_chunks::<LEN>();
    for (total, tile) in sums.iter_mut().zip(tiles) {
        let mut tile_total = tile[0];
        for &value in &tile[1..] {
            tile_total += value;
        }
        *total = weight * tile_total;
    }
}

/// The i-th `len` elements become `weight * values[i]`.
#[inline(always)]
pub(super) fn spread_each<T: Element>(values: &[T], len: usize, weight: T, line: &mut [T]) {
    match len {
        0 => {}
        1 => spread_known::<T, 1>(values, weight, line),
        2 => spread_known::<T, 2>(values, weight, line),
        3 => spread_known::<T, 3>(values, weight, line),
        4 => spread_known::<T, 4>(values, weight, line),
        7 => spread_known::<T, 7>(values, weight, line),
        8 => spread_known::<T, 8>(values, weight, line),
        9 => spread_known::<T, 9>(values, weight, line),
        _ => {
            for (tile, &value) in line.chunks_exact_mut(len).zip(values) {
                tile.fill(weight * value);
            }
        }
    }
}

/// As [`sum_known`].
#[inline(always)]
fn spread_known<T: Element, const LEN: usize>(values: &[T], weight: T, line: &mut [T]) {
    let (tiles, _) = line.as_chunks_mut::<LEN>();
    for (tile, &value) in tiles.iter_mut().zip(values) {
        *tile = [weight * value; LEN];
    }
}
