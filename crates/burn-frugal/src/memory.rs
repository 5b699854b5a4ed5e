//! Counting the bytes that a program really holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{DType, Device, Tensor};

/// Frees what forward passes on training devices keep whose results were dropped without a backward
/// pass. Burn does it at the end of every backward pass, of whatever model: this runs one of a single
/// number on `device`.
///
/// It does not reach passes of parameters that were not part of a backward pass since they were made or
/// an optimizer changed them: Burn looks at those only in a backward pass of the same parameters.
///
/// Trained layers of [`burn_frugal::nn`](crate::nn) call it themselves when some passes wait, so a loop
/// of forward passes does not grow. A [`valid`](burn::module::Module::valid) model keeps nothing in the
/// first place.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::{memory, nn::LinearConfig};
///
/// let device = Device::default().autodiff();
/// let layer = LinearConfig::new(64, 8).init(&device);
/// layer.forward(Tensor::<2>::ones([32, 64], &device));
/// memory::free_abandoned(&device);
/// ```
pub fn free_abandoned(device: &Device) {
    let device = match device.is_autodiff() {
        true => device.clone(),
        false => device.clone().autodiff(),
    };
    Tensor::<1>::zeros([1], &device).require_grad().backward();
}

/// [`free_abandoned`] that reaches the graphs of some tensors too.
///
/// Burn joins graphs that share a parameter, and does not look for abandoned passes in one in which a
/// tensor is still used, but at the end of a backward pass in that very graph. So there is one, of a
/// number that joins it and is of no use to anyone else.
pub(crate) struct Sweep {
    number: Tensor<1>,
}

impl Sweep {
    pub(crate) fn new(device: &Device) -> Self {
        let number = Tensor::zeros([1], (device, DType::F32));
        Self {
            number: number.require_grad(),
        }
    }

    /// Joins the graph of a tensor, if it is part of one.
    pub(crate) fn reach<const D: usize>(&self, tensor: &Tensor<D>) {
        if tensor.is_tracked() && tensor.shape().num_elements() > 0 {
            let first = tensor.clone().flatten::<1>(0, D - 1).narrow(0, 0, 1);
            drop(first.cast(DType::F32) + self.number.clone());
        }
    }

    /// Frees what is abandoned.
    pub(crate) fn run(self) {
        self.number.sum().backward();
    }
}

/// The system's allocator, counting live bytes and their peak over the whole process.
///
/// Tensors of the CPU backends live on the heap, so what is counted between forward and backward is
/// what a training step keeps. GPU and libtorch memory is not seen.
///
/// # Example
/// ```
/// use burn_frugal::memory::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// let before = ALLOCATOR.live_bytes();
/// let buffer = vec![0u8; 1 << 20];
/// assert!(ALLOCATOR.live_bytes() >= before + (1 << 20));
/// drop(buffer);
/// assert!(ALLOCATOR.peak_bytes() >= before + (1 << 20));
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    live: AtomicUsize,
    peak: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator that has counted nothing yet.
    pub const fn new() -> Self {
        Self {
            live: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    /// Bytes that are allocated now.
    pub fn live_bytes(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// The most bytes that were allocated at once since the start or the last
    /// [`reset_peak`](Self::reset_peak).
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Starts a new peak at the bytes that are allocated now.
    pub fn reset_peak(&self) {
        self.peak.store(self.live_bytes(), Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(live, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to `System` with the arguments it came with; counting does not touch the
// memory and does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that `System` needs.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) };
        self.remove(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let new = unsafe { System.realloc(pointer, layout, size) };
        // in place as far as anyone can tell: a block that moves is not counted twice
        if !new.is_null() {
            match size.checked_sub(layout.size()) {
                Some(more) => self.add(more),
                None => self.remove(layout.size() - size),
            }
        }
        new
    }
}
