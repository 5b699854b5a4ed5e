//! Lengths known to the compiler at the front of a slice.

#[inline(always)]
pub(super) fn block<T, const LANES: usize>(elements: &[T]) -> &[T; LANES] {
    elements
        .first_chunk()
        .expect("a block lies inside its slice")
}

#[inline(always)]
pub(super) fn block_mut<T, const LANES: usize>(elements: &mut [T]) -> &mut [T; LANES] {
    elements
        .first_chunk_mut()
        .expect("a block lies inside its slice")
}
