//! A training step's memory as an allocator counts it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal_kernels::working_memory;

use super::super::slot::{Observation, Observer};
use super::super::{measure, walk};
use super::{LayerMemory, StepMemory};
use crate::error::Error;
use crate::memory::CountingAllocator;

/// Steps that are counted at most until the kernels have all the working memory that they need.
const MOST_COUNTED: usize = 8;

/// What the forward passes of the layers showed so far.
struct Count {
    allocator: &'static CountingAllocator,
    /// Live bytes before the step.
    before: usize,
    /// Live bytes after the last layer.
    last: usize,
    /// The most live bytes so far.
    peak: usize,
    layers: Vec<LayerMemory>,
}

impl StepMemory {
    /// Runs `loss` and its backward pass twice, on copies of the model, and counts what the second
    /// step allocates: the first one makes the kernels' working memory, which stays. Some more steps
    /// if that still grew, in threads that were idle before.
    ///
    /// `allocator` has to be the program's global allocator, and nothing else may allocate meanwhile.
    /// It sees tensors of the CPU backends only. What a layer keeps is the size of what its method
    /// returned, and what it takes for a moment is that of its forward pass; the sums are the
    /// allocator's.
    ///
    /// # Errors
    /// [`Error::Unused`] when the loss depends on no layer of [`burn_frugal::nn`](crate::nn).
    ///
    /// # Example
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_frugal::memory::CountingAllocator;
    /// use burn_frugal::nn::LinearConfig;
    /// use burn_frugal::plan::StepMemory;
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
    ///
    /// let device = Device::default().autodiff();
    /// let model = LinearConfig::new(64, 8).init(&device);
    /// let input = Tensor::<2>::ones([256, 64], &device);
    /// let memory = StepMemory::count(&ALLOCATOR, &model, |model| {
    ///     model.forward(input.clone() * 2.0).sum()
    /// })?;
    /// assert!(memory.kept >= 256 * 64 * 4);
    /// # Ok::<(), burn_frugal::Error>(())
    /// ```
    pub fn count<M: Module>(
        allocator: &'static CountingAllocator,
        model: &M,
        loss: impl Fn(&M) -> Tensor<1>,
    ) -> Result<Self, Error> {
        measure::initialize(model);
        drop(loss(&model.clone()).backward());
        let mut tries = 0..MOST_COUNTED;
        loop {
            let before = working_memory();
            let counted = Self::count_step(allocator, model, &loss)?;
            if tries.next().is_none() || working_memory() == before {
                return Ok(counted);
            }
        }
    }

    fn count_step<M: Module>(
        allocator: &'static CountingAllocator,
        model: &M,
        loss: impl Fn(&M) -> Tensor<1>,
    ) -> Result<Self, Error> {
        let count = Arc::new(Mutex::new(Count {
            allocator,
            before: 0,
            last: 0,
            peak: 0,
            layers: Vec::with_capacity(walk::layers(model).len()),
        }));
        let copy = walk::change(model.clone(), {
            let count = count.clone();
            move |path, slot| slot.set_observer(Some(watcher(path, &count)))
        });
        let before = lock(&count).start();
        let loss = loss(&copy);
        let kept = allocator.live_bytes().saturating_sub(before);
        let gradients = loss.backward();
        let held = allocator.live_bytes().saturating_sub(before);
        drop(gradients);
        let mut count = lock(&count);
        let peak = count
            .peak
            .max(allocator.peak_bytes())
            .saturating_sub(before);
        if count.layers.is_empty() {
            return Err(Error::Unused {
                layer: String::new(),
            });
        }
        Ok(Self {
            layers: std::mem::take(&mut count.layers),
            kept,
            peak,
            gradients: held,
            largest_gradient: 0,
            weights: walk::parameter_bytes(model),
        })
    }
}

impl Count {
    /// Notes where the step starts.
    fn start(&mut self) -> usize {
        self.before = self.allocator.live_bytes();
        self.last = self.before;
        self.allocator.reset_peak();
        self.before
    }

    fn add(&mut self, path: &str, observation: &Observation) {
        let (live, peak) = (self.allocator.live_bytes(), self.allocator.peak_bytes());
        let method = observation.method;
        let trained = observation.kept.is_some();
        let flops = method.flops(observation.geometry);
        self.layers.push(LayerMemory {
            path: path.to_string(),
            kept: observation.kept.unwrap_or_default(),
            transient: peak.saturating_sub(self.last),
            live: live.saturating_sub(self.before),
            forward: 2 * observation.geometry.products(),
            flops: flops.of_step(trained, observation.input_tracked),
        });
        self.peak = self.peak.max(peak);
        self.last = live;
        self.allocator.reset_peak();
    }
}

fn watcher(path: &str, count: &Arc<Mutex<Count>>) -> Observer {
    let (path, count) = (path.to_string(), count.clone());
    Observer(Arc::new(move |observation: Observation| {
        lock(&count).add(&path, &observation);
        observation.output
    }))
}

fn lock(count: &Mutex<Count>) -> MutexGuard<'_, Count> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}
