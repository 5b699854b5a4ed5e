//! Some slices of a tensor among zeros.

use crate::Element;
use crate::invariant::expect_len;
use crate::modes::Unfolding;

/// A tensor of shape `[outer, size, inner]` (`unfolding`) that is zero but for the slices at `positions` along its
/// mode, which are those of `values`, `[outer, positions, inner]`, in this order.
///
/// # Panics
///
/// If `values` does not have the length of its shape, or a position is not below `size`.
pub fn place<T: Element>(unfolding: &Unfolding, positions: &[usize], values: &[T]) -> Vec<T> {
    const NAME: &str = "place";
    let Unfolding { outer, size, inner } = *unfolding;
    expect_len(
        NAME,
        "values",
        outer * positions.len() * inner,
        values.len(),
    );
    let mut placed = vec![T::ZERO; unfolding.len()];
    if values.is_empty() {
        return placed;
    }
    let slabs = placed.chunks_exact_mut(size * inner);
    for (slab, values) in slabs.zip(values.chunks_exact(positions.len() * inner)) {
        for (&position, slice) in positions.iter().zip(values.chunks_exact(inner)) {
            slab[position * inner..][..inner].copy_from_slice(slice);
        }
    }
    placed
}
