//! The operations of a model's pass, in their order, and which values go from one to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal_kernels::ConvGeometry;

use super::super::slot::{Observation, Observer};
use super::super::{measure, walk};
use crate::backends;
use crate::error::Error;
use crate::geometry::LayerGeometry;
use crate::methods::Method;
use crate::ops::recorder::{self, Operation, Recorded};

/// One pass of a model: its operations of [`burn_frugal::nn`](crate::nn) and where residual
/// connections join. Operations of others are taken to keep nothing and to change no size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trace {
    /// Samples of the batch that was traced.
    pub batch: usize,
    /// Bytes of an element.
    pub element_size: usize,
    /// Bytes of a tensor's description.
    pub tensor_object: usize,
    pub steps: Vec<Step>,
    /// Elements of each value for the whole batch; value 0 is what comes from outside.
    pub values: Vec<usize>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// One of ours.
    Operation {
        operation: Operation,
        /// The path of the layer, if it is one.
        path: Option<String>,
        input: usize,
        output: usize,
    },
    /// A sum of several values.
    Join { inputs: Vec<usize>, output: usize },
}

impl Trace {
    /// Traces one forward and backward pass of `loss` on a frozen, exact copy of the model: what it
    /// keeps meanwhile is one bit an element of its activations.
    ///
    /// # Errors
    /// [`Error::Unused`] when the loss does not depend on any layer.
    pub fn of<M: Module>(model: &M, loss: impl Fn(&M) -> Tensor<1>) -> Result<Self, Error> {
        measure::initialize(model);
        let copy = walk::change(model.clone().freeze(), |path, slot| {
            slot.assign(Method::Exact);
            slot.set_observer(Some(namer(path)));
        });
        let (device, recorded) = recorder::recording(|| {
            let loss = loss(&copy);
            let device = loss.device();
            if loss.is_tracked() {
                loss.backward();
            }
            device
        });
        let unused = || Error::Unused {
            layer: String::new(),
        };
        let batch = recorded.iter().find_map(batch).ok_or_else(unused)?;
        let trace = Resolver::resolve(&recorded, batch);
        Ok(Self {
            tensor_object: backends::tensor_object_bytes(&device),
            ..trace
        })
    }

    /// The operation of the layer at this path, in its first use, and the value that it reads.
    fn layer(&self, path: &str) -> Option<(&Operation, usize)> {
        self.steps.iter().find_map(|step| match step {
            Step::Operation {
                operation,
                path: Some(name),
                input,
                ..
            } if name == path => Some((operation, *input)),
            _ => None,
        })
    }

    /// All sizes of the layer at this path, in its first use, for a batch of this size.
    pub fn geometry(&self, path: &str, batch: usize) -> Option<LayerGeometry> {
        match self.layer(path)?.0 {
            Operation::Layer { geometry, .. } | Operation::Normalization { geometry } => {
                Some(geometry.with_batch(self.batch, batch))
            }
            _ => None,
        }
    }

    /// All convolutions, for a batch of this size.
    pub fn convolutions(&self, batch: usize) -> impl Iterator<Item = ConvGeometry> + '_ {
        self.steps.iter().filter_map(move |step| match step {
            Step::Operation {
                operation:
                    Operation::Layer {
                        geometry: LayerGeometry::Conv2d(conv),
                        ..
                    },
                ..
            } => Some(ConvGeometry { batch, ..*conv }),
            _ => None,
        })
    }

    /// Elements of the parameters of the layer at this path.
    pub fn parameters(&self, path: &str) -> Option<usize> {
        Some(self.layer(path)?.0.parameters())
    }

    /// Whether only activations and normalizations are between another layer and the one at this path.
    pub fn follows_layer(&self, path: &str) -> bool {
        let Some((_, mut value)) = self.layer(path) else {
            return false;
        };
        loop {
            match self.steps.iter().find(|step| step.output() == value) {
                Some(Step::Operation {
                    operation: Operation::Layer { .. },
                    ..
                }) => return true,
                Some(Step::Operation {
                    operation: Operation::Activation { .. } | Operation::Normalization { .. },
                    input,
                    ..
                }) => value = *input,
                _ => return false,
            }
        }
    }

    /// Bytes of a value for a batch of this size.
    pub fn value_bytes(&self, value: usize, batch: usize) -> usize {
        self.values[value] / self.batch.max(1) * batch * self.element_size
    }

    /// The layers' paths.
    pub fn paths(&self) -> Vec<String> {
        let paths = self.steps.iter().filter_map(Step::path);
        paths.map(str::to_string).collect()
    }

    /// Whether the pass has a layer at this path.
    pub fn has(&self, path: &str) -> bool {
        self.layer(path).is_some()
    }
}

impl Step {
    /// The path of the layer, if it is one.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Operation { path, .. } => path.as_deref(),
            Self::Join { .. } => None,
        }
    }

    /// The value that it makes.
    pub fn output(&self) -> usize {
        match self {
            Self::Operation { output, .. } | Self::Join { output, .. } => *output,
        }
    }

    /// The values that it reads.
    pub fn inputs(&self) -> &[usize] {
        match self {
            Self::Operation { input, .. } => std::slice::from_ref(input),
            Self::Join { inputs, .. } => inputs,
        }
    }
}

/// Names the layer's operation, and makes the graph begin at the first layer: only in a graph can be
/// seen where values come from.
fn namer(path: &str) -> Observer {
    let path = path.to_string();
    Observer(Arc::new(move |observation: Observation| {
        recorder::name(&path);
        let output = observation.output;
        let shape = output.shape();
        let flat = Dispatch::float_reshape(output.clone(), [shape.num_elements()].into());
        let flat = Tensor::<1>::from_dispatch(flat).autodiff();
        if flat.is_tracked() {
            return output;
        }
        let leaf = flat.detach().require_grad();
        Dispatch::float_reshape(leaf.into_dispatch(), shape)
    }))
}

/// From nodes of a graph to values.
#[derive(Default)]
struct Resolver {
    trace: Trace,
    /// The value of each node that was met.
    values: BTreeMap<u64, usize>,
    joins: BTreeMap<BTreeSet<usize>, usize>,
}

impl Resolver {
    fn resolve(recorded: &[Recorded], batch: usize) -> Trace {
        let first = &recorded[0];
        let mut resolver = Self {
            trace: Trace {
                batch,
                element_size: first.element_size,
                tensor_object: 0,
                steps: Vec::new(),
                values: vec![first.operation.input_len()],
            },
            ..Self::default()
        };
        for recorded in recorded {
            resolver.add(recorded);
        }
        resolver.trace
    }

    fn add(&mut self, recorded: &Recorded) {
        let input = self.input(recorded);
        let output = self.value(recorded.operation.output_len());
        self.values.insert(recorded.output, output);
        self.trace.steps.push(Step::Operation {
            operation: recorded.operation,
            path: recorded.path.clone(),
            input,
            output,
        });
    }

    fn value(&mut self, elements: usize) -> usize {
        self.trace.values.push(elements);
        self.trace.values.len() - 1
    }

    fn input(&mut self, recorded: &Recorded) -> usize {
        if let Some(&value) = self.values.get(&recorded.input) {
            return value;
        }
        let parents = &recorded.input_parents;
        let mut known: BTreeSet<usize> = parents
            .iter()
            .filter_map(|parent| self.values.get(parent).copied())
            .collect();
        if parents.len() > 1 {
            // a sum of sums, say: what others made of values that nobody has read yet
            let strangers = parents
                .iter()
                .filter(|parent| !self.values.contains_key(parent));
            known.extend(self.unread().take(strangers.count()));
        }
        let value = match known.len() {
            // what others made of the last value
            0 => self.trace.values.len() - 1,
            1 => known.first().copied().unwrap_or_default(),
            _ => match self.joins.get(&known) {
                Some(&value) => value,
                None => self.join(known, recorded.operation.input_len()),
            },
        };
        self.values.insert(recorded.input, value);
        for &parent in parents {
            self.values.entry(parent).or_insert(value);
        }
        value
    }

    /// Results of operations that no other one has read so far, the latest first.
    fn unread(&self) -> impl Iterator<Item = usize> + '_ {
        let steps = &self.trace.steps;
        let outputs = steps.iter().rev().map(Step::output);
        outputs.filter(|output| !steps.iter().any(|step| step.inputs().contains(output)))
    }

    fn join(&mut self, inputs: BTreeSet<usize>, elements: usize) -> usize {
        let output = self.value(elements);
        self.trace.steps.push(Step::Join {
            inputs: inputs.iter().copied().collect(),
            output,
        });
        self.joins.insert(inputs, output);
        output
    }
}

/// The samples that a layer sees at once.
fn batch(recorded: &Recorded) -> Option<usize> {
    match recorded.operation {
        Operation::Layer { geometry, .. } | Operation::Normalization { geometry } => {
            Some(geometry.modes()[0])
        }
        Operation::Activation { .. }
        | Operation::MaxPool { .. }
        | Operation::AveragePool { .. } => None,
    }
}
