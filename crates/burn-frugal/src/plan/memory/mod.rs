//! The memory of a whole training step: predicted for any plan, counted by running one.

mod buffers;
mod objects;
mod simulation;
mod trace;

use std::collections::BTreeSet;

use burn::module::Module;
use burn::tensor::Tensor;

use super::Plan;
use crate::error::Error;
use crate::geometry::PerMode;
use crate::methods::Flops;
use simulation::{Trained, simulate};
use trace::Trace;

/// The operations of a network in one pass, from which the memory and work of a training step with any
/// plan and batch follow without running it.
///
/// What it sees are the operations of [`burn_frugal::nn`](crate::nn) and the residual connections
/// between them. Other operations are taken to keep nothing: what they do keep,
/// [`memory::guard`](crate::memory) finds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    trace: Trace,
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
    /// Bytes of all parameters of the layers.
    pub weights: usize,
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
        })
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
        let simulation = simulate(&self.trace, trained, training.batch);
        let layers = simulation.layers.into_iter();
        let mut memory = StepMemory {
            layers: Vec::new(),
            kept: simulation.kept,
            peak: simulation.peak,
            gradients: simulation.gradients,
            weights: 0,
        };
        for (path, part) in layers {
            memory.weights += part.parameters;
            memory.layers.push(LayerMemory {
                path,
                kept: part.kept,
                transient: part.transient,
                forward: part.forward,
                flops: part.flops,
            });
        }
        Ok(memory)
    }
}
