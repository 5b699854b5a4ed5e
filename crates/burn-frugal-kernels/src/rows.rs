//! Copies of many short rows.

use crate::Element;

/// Rows of one length in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) count: usize,
    pub(crate) width: usize,
}

impl Rows {
    /// Copies the rows from one pitch to another.
    #[inline(always)]
    pub(crate) fn copy<T: Element>(
        self,
        source: &[T],
        source_pitch: usize,
        target: &mut [T],
        target_pitch: usize,
    ) {
        // Widths known to the compiler need no call to copy a row, which would cost more than the copy.
        match self.width {
            1 => self.copy_known::<T, 1>(source, source_pitch, target, target_pitch),
            2 => self.copy_known::<T, 2>(source, source_pitch, target, target_pitch),
            4 => self.copy_known::<T, 4>(source, source_pitch, target, target_pitch),
            7 => self.copy_known::<T, 7>(source, source_pitch, target, target_pitch),
            8 => self.copy_known::<T, 8>(source, source_pitch, target, target_pitch),
            14 => self.copy_known::<T, 14>(source, source_pitch, target, target_pitch),
            16 => self.copy_known::<T, 16>(source, source_pitch, target, target_pitch),
            width => {
                for row in 0..self.count {
                    target[row * target_pitch..][..width]
                        .copy_from_slice(&source[row * source_pitch..][..width]);
                }
            }
        }
    }

    #[inline(always)]
    fn copy_known<T: Element, const WIDTH: usize>(
        self,
        source: &[T],
        source_pitch: usize,
        target: &mut [T],
        target_pitch: usize,
    ) {
        for row in 0..self.count {
            let source: [T; WIDTH] = *source[row * source_pitch..]
                .first_chunk()
                .expect("a row holds its width");
            *target[row * target_pitch..]
                .first_chunk_mut()
                .expect("a row holds its width") = source;
        }
    }
}
