//! Working memory that each thread keeps between calls.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemm_common::cache::CACHE_INFO;

use crate::Element;

/// A larger buffer is freed after use instead of kept.
const KEPT_BYTES: usize = 4 << 20;

/// Bytes of all buffers.
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of working memory that the kernels hold between calls, on all threads: what they have needed so far, and what
/// matrix products may take for each thread of the current `rayon` pool and for the caller.
pub fn working_memory() -> usize {
    BYTES.load(Ordering::Relaxed) + working_memory_for(0)
}

/// What [`working_memory`] is at most after calls that need `bytes` a thread, such as
/// [`conv2d_working_memory`](crate::conv2d_working_memory) tells.
pub fn working_memory_for(bytes: usize) -> usize {
    // The products' own buffer has the size of the second-level cache.
    let product = CACHE_INFO[1].cache_bytes;
    // A caller that is none of the pool's threads computes too.
    let outside = usize::from(rayon::current_thread_index().is_none());
    (rayon::current_num_threads() + outside) * (bytes.min(KEPT_BYTES) + product)
}

/// Elements of unspecified content, counted for as long as they are there.
#[derive(Default)]
pub struct Buffer<T>(Vec<T>);

impl<T: Element> Buffer<T> {
    fn at_least(&mut self, len: usize) -> &mut [T] {
        if self.0.len() < len {
            let before = self.bytes();
            self.0.reserve_exact(len - self.0.len());
            self.0.resize(len, T::ZERO);
            BYTES.fetch_add(self.bytes() - before, Ordering::Relaxed);
        }
        &mut self.0[..len]
    }
}

impl<T> Buffer<T> {
    fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Storage of the per-thread buffer; its being unnameable outside the crate seals [`Element`].
pub trait Scratch: Sized {
    /// Takes this thread's buffer, leaving an empty one.
    fn take() -> Buffer<Self>;
    /// Puts the buffer back for the next user.
    fn put(buffer: Buffer<Self>);
}

macro_rules! scratch {
    ($type:ty, $cell:ident) => {
        thread_local! {
            static $cell: Cell<Buffer<$type>> = const { Cell::new(Buffer(Vec::new())) };
        }

        impl Scratch for $type {
            fn take() -> Buffer<Self> {
                $cell.take()
            }

            fn put(buffer: Buffer<Self>) {
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
    let result = work(buffer.at_least(len));
    if buffer.bytes() <= KEPT_BYTES {
        T::put(buffer);
    }
    result
}
