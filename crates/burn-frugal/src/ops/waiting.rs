use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many forward passes of a layer wait for their backward pass. Copies count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passes(Arc<AtomicUsize>);

impl Passes {
    /// Those that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, until it is dropped.
    pub(crate) fn start(&self) -> WaitingPass {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitingPass(self.0.clone())
    }
}

/// A forward pass that may still be run backward.
#[derive(Debug)]
pub struct WaitingPass(Arc<AtomicUsize>);

impl Clone for WaitingPass {
    fn clone(&self) -> Self {
        Passes(self.0.clone()).start()
    }
}

impl Drop for WaitingPass {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
