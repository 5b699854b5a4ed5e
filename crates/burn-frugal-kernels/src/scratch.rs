//! Working memory that each thread keeps between calls.

use std::cell::Cell;

use crate::Element;

/// A larger buffer is freed after use instead of kept.
const KEPT_BYTES: usize = 4 << 20;

/// Storage of the per-thread buffer; its being unnameable outside the crate seals [`Element`].
pub trait Scratch: Sized {
    /// Takes this thread's buffer, leaving an empty one.
    fn take() -> Vec<Self>;
    /// Puts the buffer back for the next user.
    fn put(buffer: Vec<Self>);
}

macro_rules! scratch {
    ($type:ty, $cell:ident) => {
        thread_local! {
            static $cell: Cell<Vec<$type>> = const { Cell::new(Vec::new()) };
        }

        impl Scratch for $type {
            fn take() -> Vec<Self> {
                $cell.take()
            }

            fn put(buffer: Vec<Self>) {
                $cell.set(buffer);
            }
        }
    };
}

scratch!(f32, SINGLE);
scratch!(f64, DOUBLE);

/// Calls `work` with `len` elements of unspecified content.
///
/// The buffer is taken out of its thread-local slot meanwhile: a job that `rayon` runs on this thread while `work`
/// waits finds the slot empty and allocates its own.
pub(crate) fn with_scratch<T: Element, R>(len: usize, work: impl FnOnce(&mut [T]) -> R) -> R {
    let mut buffer = T::take();
    if buffer.len() < len {
        buffer.resize(len, T::ZERO);
    }
    let result = work(&mut buffer[..len]);
    if size_of_val(buffer.as_slice()) <= KEPT_BYTES {
        T::put(buffer);
    }
    result
}
