//! The memory of a whole training step: predicted for any plan, counted by running one.

mod buffers;
mod count;
mod excess;
mod objects;
mod picture;
mod simulation;
mod table;
mod trace;

use std::collections::BTreeSet;

use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal_kernels as kernels;

use super::{Plan, walk};
use crate::error::Error;
use crate::geometry::PerMode;
use crate::methods::{Flops, Method};
pub use excess::Excess;
use simulation::{Trained, simulate};
use trace::Trace;

/// The operations of a network in one pass, from which the memory and work of a training step with any
/// plan and batch follow without running it.
///
/// What it sees are the operations of [`burn_frugal::nn`](crate::nn) and the residual connections
/// between them. Other operations are taken to keep nothing: what they do keep,
/// [`StepMemory::excess`] finds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    trace: Trace,
    /// Bytes of all the model's parameters.
    pub(super) parameters: usize,
}

/// What a training step trains.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Training {
    /// The layers that are trained, with their methods.
    pub plan: Plan,
    /// Layers that are trained besides with the exact gradient, the head say.
    pub also: Vec<String>,
    /// Samples of a step.
    pub batch: usize,
}

/// The memory and work of one training step. All bytes are beyond what lives before the step, the
/// weights among it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMemory {
    /// Each layer's part, in the order of the pass.
    pub layers: Vec<LayerMemory>,
    /// Bytes that live between forward and backward pass.
    pub kept: usize,
    /// The most bytes that live at once during forward and backward pass.
    pub peak: usize,
    /// Bytes of the gradients of all trained parameters.
    pub gradients: usize,
    /// Bytes of the largest of them.
    pub largest_gradient: usize,
    /// Bytes of all parameters of the layers.
    pub weights: usize,
}

impl StepMemory {
    /// Operations of a forward and backward pass.
    pub fn flops(&self) -> u64 {
        let layers = self.layers.iter();
        layers
            .map(|layer| layer.forward + layer.flops.total())
            .sum()
    }
}

/// The memory and work of one layer in a training step, with what follows it up to the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerMemory {
    /// The layer's path in the model.
    pub path: String,
    /// Bytes that stay between forward and backward.
    pub kept: usize,
    /// The most bytes that are there for a moment in its forward or backward pass.
    pub transient: usize,
    /// Bytes that live right after its forward pass, its input and output among them, beyond those
    /// before the step.
    pub live: usize,
    /// Operations of its forward pass.
    pub forward: u64,
    /// What training it takes beside that.
    pub flops: Flops,
}

impl Network {
    /// Runs `loss` once, forward and backward, on a copy of the model in which everything is frozen
    /// and exact, and notes the operations.
    ///
    /// # Errors
    /// [`Error::Unused`] when the loss depends on no layer of [`burn_frugal::nn`](crate::nn).
    pub fn of<M: Module>(model: &M, loss: impl Fn(&M) -> Tensor<1>) -> Result<Self, Error> {
        Ok(Self {
            trace: Trace::of(model, loss)?,
            parameters: walk::parameter_bytes(model),
        })
    }

    /// The paths of the layers, in the order in which they run.
    pub fn paths(&self) -> Vec<String> {
        self.trace.paths()
    }

    /// Bytes of the parameters of the layer at this path; 0 if there is none.
    pub(super) fn parameter_bytes(&self, path: &str) -> usize {
        let elements = self.trace.parameters(path).unwrap_or_default();
        elements * self.trace.element_size
    }

    /// Bytes that the layer at this path keeps with a method; 0 if there is none.
    pub(super) fn kept_bytes(&self, path: &str, method: Method, batch: usize) -> usize {
        // behind another layer, which is then taken to recompute too
        if method == Method::Recomputed && self.trace.follows_layer(path) {
            return 0;
        }
        let geometry = self.trace.geometry(path, batch);
        geometry.map_or(0, |geometry| {
            method.bytes(geometry, self.trace.element_size)
        })
    }

    /// Bytes of a batch of the network's input.
    pub(super) fn input_bytes(&self, batch: usize) -> usize {
        self.trace.value_bytes(0, batch)
    }

    /// Bytes that the CPU kernels hold between the passes of a training step.
    pub(super) fn working_memory(&self, training: &Training) -> usize {
        let low_rank =
            |method: &Method| matches!(method, Method::ActivationShortcut(_) | Method::Hosvd(_));
        let modes = match training.plan.methods().values().any(low_rank) {
            true => kernels::LOW_RANK_WORKING_MEMORY,
            false => 0,
        };
        // smaller batches may need more; other passes of the program, over one sample say, were before
        let batches = (0..).map(|halvings| training.batch >> halvings);
        let batches = batches.take_while(|&batch| batch > 0);
        let convolutions = batches.flat_map(|batch| self.trace.convolutions(batch));
        let convolutions = convolutions.map(|conv| match self.trace.element_size {
            8 => kernels::conv2d_working_memory::<f64>(&conv),
            _ => kernels::conv2d_working_memory::<f32>(&conv),
        });
        kernels::working_memory_for(convolutions.max().unwrap_or_default().max(modes))
    }

    /// The shape of the input of the layer at this path, for a batch of this size; the first one if
    /// the layer is used more than once.
    pub fn input(&self, path: &str, batch: usize) -> Option<PerMode> {
        Some(self.trace.geometry(path, batch)?.modes())
    }

    /// What a training step takes.
    ///
    /// # Errors
    /// [`Error::UnknownLayer`] when a layer that is trained was not part of the pass.
    pub fn predict(&self, training: &Training) -> Result<StepMemory, Error> {
        let also: BTreeSet<String> = training.also.iter().cloned().collect();
        let named = training.plan.methods().keys().chain(&also);
        for path in named {
            if !self.trace.has(path) {
                return Err(Error::UnknownLayer {
                    path: path.clone(),
                    layers: self.trace.paths(),
                });
            }
        }
        let trained = Trained {
            methods: training.plan.methods(),
            also: &also,
        };
        Ok(simulate(&self.trace, trained, training.batch))
    }
}
