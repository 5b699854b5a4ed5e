//! Results in new memory. Memory that was just freed is reused without being cleared as a whole first, which would be
//! one more pass over it, by one thread.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use crate::Element;

/// A vector of `len` elements that `work(index, chunk)` computes, `chunk_len` at a time (fewer at the end), on all
/// threads. A chunk is zero when `work` gets it, and close to the core that is about to write it.
///
/// Unless `len` is 0, `chunk_len` must not be.
pub(crate) fn in_parallel<T: Element>(
    len: usize,
    chunk_len: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    with_spare(len, |spare| {
        if len > 0 {
            let chunks = spare.par_chunks_mut(chunk_len).enumerate();
            chunks.for_each(|(index, chunk)| work(index, zeroed(chunk)));
        }
    })
}

/// As [`in_parallel`], one chunk after another: for work that uses all threads itself.
pub(crate) fn in_turn<T: Element>(
    len: usize,
    chunk_len: usize,
    mut work: impl FnMut(usize, &mut [T]),
) -> Vec<T> {
    with_spare(len, |spare| {
        if len > 0 {
            let chunks = spare.chunks_mut(chunk_len).enumerate();
            chunks.for_each(|(index, chunk)| work(index, zeroed(chunk)));
        }
    })
}

/// A vector of `len` elements, all of which `initialize` must write.
fn with_spare<T: Element>(len: usize, initialize: impl FnOnce(&mut [MaybeUninit<T>])) -> Vec<T> {
    let mut elements = Vec::with_capacity(len);
    initialize(&mut elements.spare_capacity_mut()[..len]);
    // SAFETY: the capacity is at least `len`, and the two callers, in this file, pass every element through `zeroed`:
    // the chunks of a slice cover it. A panic in between leaves the vector empty.
    unsafe { elements.set_len(len) };
    elements
}

fn zeroed<T: Element>(chunk: &mut [MaybeUninit<T>]) -> &mut [T] {
    for element in &mut *chunk {
        element.write(T::ZERO);
    }
    // SAFETY: all elements were written just now.
    unsafe { chunk.assume_init_mut() }
}
