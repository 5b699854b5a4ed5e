//! Work split over threads: when that is worth it, and sums of one part per thread, added up in a fixed order.

use std::ops::Range;

use rayon::prelude::*;

use crate::Element;

/// Elements below which splitting a pass over them among threads costs more than it saves.
pub(crate) const PARALLEL_ELEMENTS: usize = 16 << 10;

/// Runs `work(part, sums)` for `parts` parts at once and adds up what they leave in `sums`, in the order of the parts.
///
/// `total` must not be empty.
pub(crate) fn sum_of_parts<T: Element>(
    parts: usize,
    total: &mut [T],
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let len = total.len();
    let mut others = vec![T::ZERO; len * (parts - 1)];
    std::iter::once(&mut *total)
        .chain(others.chunks_exact_mut(len))
        .collect::<Vec<_>>()
        .into_par_iter()
        .enumerate()
        .for_each(|(part, sums)| work(part, sums));
    for other in others.chunks_exact(len) {
        for (total, &value) in total.iter_mut().zip(other) {
            *total += value;
        }
    }
}

/// The `part`-th of `parts` nearly equal shares of `0..count`.
pub(crate) fn share(count: usize, part: usize, parts: usize) -> Range<usize> {
    count * part / parts..count * (part + 1) / parts
}
