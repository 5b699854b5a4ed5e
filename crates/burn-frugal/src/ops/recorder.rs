//! Which of our operations a pass runs, for whoever asks on this thread.

use std::cell::{Cell, RefCell};

use burn_frugal_kernels::{Activation, PoolGeometry};

use crate::geometry::LayerGeometry;

/// One of our differentiable operations, with all sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    /// A convolution or linear layer.
    Layer { geometry: LayerGeometry, bias: bool },
    /// Batch normalization with fixed statistics.
    Normalization { geometry: LayerGeometry },
    /// An activation of this many elements.
    Activation {
        activation: Activation,
        elements: usize,
    },
    /// The largest value of each window.
    MaxPool { geometry: PoolGeometry },
    /// The mean of each of `outputs` tiles.
    AveragePool { elements: usize, outputs: usize },
}

impl Operation {
    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        match self {
            Self::Layer { geometry, .. } | Self::Normalization { geometry } => geometry.input_len(),
            Self::Activation { elements, .. } | Self::AveragePool { elements, .. } => *elements,
            Self::MaxPool { geometry } => geometry.maps * geometry.input.iter().product::<usize>(),
        }
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        match self {
            Self::Layer { geometry, .. } | Self::Normalization { geometry } => {
                geometry.output_len()
            }
            Self::Activation { elements, .. } => *elements,
            Self::AveragePool { outputs, .. } => *outputs,
            Self::MaxPool { geometry } => geometry.maps * geometry.output.iter().product::<usize>(),
        }
    }

    /// Elements of its parameters.
    pub fn parameters(&self) -> usize {
        match self {
            Self::Layer { geometry, bias } => {
                let bias = if *bias { geometry.output_channels() } else { 0 };
                geometry.weight_len() + bias
            }
            Self::Normalization { geometry } => 2 * geometry.output_channels(),
            Self::Activation { .. } | Self::MaxPool { .. } | Self::AveragePool { .. } => 0,
        }
    }

    /// The same for a batch of `to` samples instead of `from`.
    pub fn with_batch(self, from: usize, to: usize) -> Self {
        let scaled = |count: usize| count / from.max(1) * to;
        match self {
            Self::Layer { geometry, bias } => Self::Layer {
                geometry: geometry.with_batch(from, to),
                bias,
            },
            Self::Normalization { geometry } => Self::Normalization {
                geometry: geometry.with_batch(from, to),
            },
            Self::Activation {
                activation,
                elements,
            } => Self::Activation {
                activation,
                elements: scaled(elements),
            },
            Self::MaxPool { geometry } => Self::MaxPool {
                geometry: PoolGeometry {
                    maps: scaled(geometry.maps),
                    ..geometry
                },
            },
            Self::AveragePool { elements, outputs } => Self::AveragePool {
                elements: scaled(elements),
                outputs: scaled(outputs),
            },
        }
    }
}

/// An operation in the graph that it was part of. Numbers are those of the graph's nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    pub operation: Operation,
    /// Bytes of an element.
    pub element_size: usize,
    pub input: u64,
    pub output: u64,
    /// The nodes that the input was computed from; known once the pass was run backward.
    pub input_parents: Vec<u64>,
    /// The layer's path, if it has one.
    pub path: Option<String>,
}

thread_local! {
    static RECOMPUTED: Cell<bool> = const { Cell::new(false) };
    static RECORDER: RefCell<Option<Vec<Recorded>>> = const { RefCell::new(None) };
}

/// Ends a recording even if what is recorded panics.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        RECORDER.set(None);
    }
}

/// Records the operations that `run` runs on this thread, in their order.
pub(crate) fn recording<R>(run: impl FnOnce() -> R) -> (R, Vec<Recorded>) {
    let previous = RECORDER.replace(Some(Vec::new()));
    assert!(previous.is_none(), "one recording at a time");
    let _ending = Ending;
    let result = run();
    let recorded = RECORDER.take().unwrap_or_default();
    (result, recorded)
}

/// A forward pass of an operation.
pub(crate) fn forward(operation: Operation, element_size: usize, input: u64, output: u64) {
    recorder(|recorded| {
        recorded.push(Recorded {
            operation,
            element_size,
            input,
            output,
            input_parents: Vec::new(),
            path: None,
        });
    });
}

/// Whether the layer that was run last on this thread computes its input again instead of keeping it.
pub(crate) fn set_recomputed(recomputed: bool) {
    RECOMPUTED.set(recomputed);
}

/// What [`set_recomputed`] was told.
pub(crate) fn recomputed() -> bool {
    RECOMPUTED.get()
}

/// The layer whose operation was recorded last.
pub(crate) fn name(path: &str) {
    recorder(|recorded| {
        if let Some(last) = recorded.last_mut() {
            last.path = Some(path.to_string());
        }
    });
}

/// A backward pass of an operation: now the graph tells where its input came from.
pub(crate) fn backward(output: u64, input_parents: impl Iterator<Item = u64>) {
    recorder(|recorded| {
        let operation = recorded
            .iter_mut()
            .find(|recorded| recorded.output == output);
        if let Some(operation) = operation {
            operation.input_parents = input_parents.collect();
        }
    });
}

fn recorder(record: impl FnOnce(&mut Vec<Recorded>)) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorded) = recorder {
            record(recorded);
        }
    });
}
