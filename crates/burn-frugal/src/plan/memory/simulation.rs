//! A training step without its numbers: what is allocated, shared and freed, in the order in which a
//! step does it.

use std::collections::{BTreeMap, BTreeSet};

use super::buffers::{Buffer, Buffers};
use super::objects::Objects;
use super::trace::{Step, Trace};
use crate::geometry::LayerGeometry;
use crate::methods::{Flops, MOST_RECOMPUTED, Method};
use crate::ops::recorder::Operation;

/// What is trained and how.
pub(super) struct Trained<'a> {
    /// The method of each layer that is trained.
    pub methods: &'a BTreeMap<String, Method>,
    /// Layers that are trained with the exact gradient besides.
    pub also: &'a BTreeSet<String>,
}

impl Trained<'_> {
    fn method(&self, path: Option<&str>) -> Option<Method> {
        let path = path?;
        let method = self.methods.get(path).copied();
        method.or_else(|| self.also.contains(path).then_some(Method::Exact))
    }
}

/// One layer's part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerPart {
    pub kept: usize,
    pub transient: usize,
    pub parameters: usize,
    pub flops: Flops,
    /// Operations of the forward pass.
    pub forward: u64,
    /// What lives right after its forward pass, before its input goes.
    pub live: usize,
}

/// What a step does.
#[derive(Debug, Default)]
pub(super) struct Simulation {
    /// Bytes that are live between forward and backward.
    pub kept: usize,
    /// The most bytes that are live at once in forward and backward pass.
    pub peak: usize,
    /// Bytes of all gradients, and of the largest of them.
    pub gradients: usize,
    pub largest_gradient: usize,
    /// By layer, in the order of the pass; what belongs to no layer counts with the one before it.
    pub layers: Vec<(String, LayerPart)>,
}

/// How a value can be computed again.
#[derive(Clone, Copy, Debug, Default)]
struct Recomputation {
    /// Layers that are run for it.
    layers: usize,
    /// Their operations.
    flops: u64,
    /// Bytes that are there meanwhile, the value among them.
    bytes: usize,
    /// Notes of operations since the last layer that keeps one.
    notes: usize,
}

impl Recomputation {
    /// With an activation or normalization behind it.
    fn noted(mut self) -> Self {
        self.notes += 1;
        self
    }
}

/// A value while the pass runs.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    /// `None` if it cannot.
    recomputation: Option<Recomputation>,
    buffer: Option<Buffer>,
    /// Operations that still read it.
    readers: usize,
    tracked: bool,
    gradient: Option<Buffer>,
}

struct Run<'a> {
    trace: &'a Trace,
    trained: Trained<'a>,
    steps: Vec<Step>,
    objects: Objects,
    buffers: Buffers,
    values: Vec<Value>,
    /// Values that no operation reads: they go to the loss. Several ones of a network with several
    /// heads.
    outputs: Vec<usize>,
    /// Whether a step's layer is used again further on: its gradients are then there already when
    /// this use is run backward.
    used_again: Vec<bool>,
    /// What each step keeps until its backward step.
    kept: Vec<Vec<Buffer>>,
    simulation: Simulation,
    peak: usize,
}

/// Simulates a step for a batch.
pub(super) fn simulate(trace: &Trace, trained: Trained<'_>, batch: usize) -> Simulation {
    let steps: Vec<Step> = trace
        .steps
        .iter()
        .map(|step| match step {
            Step::Operation {
                operation,
                path,
                input,
                output,
            } => Step::Operation {
                operation: operation.with_batch(trace.batch, batch),
                path: path.clone(),
                input: *input,
                output: *output,
            },
            join => join.clone(),
        })
        .collect();
    let mut values = vec![Value::default(); trace.values.len()];
    for step in &steps {
        for &input in step.inputs() {
            values[input].readers += 1;
        }
    }
    let outputs = steps.iter().map(Step::output);
    let outputs = outputs.filter(|&output| values[output].readers == 0);
    let outputs = outputs.collect();
    let mut later = BTreeSet::new();
    let mut used_again: Vec<bool> = steps
        .iter()
        .rev()
        .map(|step| step.path().is_some_and(|path| !later.insert(path)))
        .collect();
    used_again.reverse();
    let mut run = Run {
        trace,
        trained,
        kept: vec![Vec::new(); steps.len()],
        steps,
        outputs,
        used_again,
        objects: Objects {
            tensor: trace.tensor_object,
        },
        buffers: Buffers::default(),
        values,
        simulation: Simulation::default(),
        peak: 0,
    };
    run.forward(batch);
    run.backward(batch);
    run.simulation.peak = run.peak;
    run.simulation
}

/// How a layer with this method computes its input again, if it does.
fn recomputed(method: Option<Method>, input: Option<Recomputation>) -> Option<Recomputation> {
    let short = input.filter(|input| input.layers <= MOST_RECOMPUTED);
    short.filter(|_| method == Some(Method::Recomputed))
}

impl Run<'_> {
    fn bytes(&self, elements: usize) -> usize {
        elements * self.trace.element_size
    }

    /// Nodes that Burn's graph has.
    fn nodes(&self) -> usize {
        let is_node = |step: &&Step| match step {
            Step::Operation { output, .. } => self.values[*output].tracked,
            Step::Join { .. } => true,
        };
        self.steps.iter().filter(is_node).count()
    }

    fn value_bytes(&self, value: usize, batch: usize) -> usize {
        self.trace.value_bytes(value, batch)
    }

    fn forward(&mut self, batch: usize) {
        for index in 0..self.steps.len() {
            let step = self.steps[index].clone();
            let before = self.buffers.live();
            let path = step.path().map(str::to_string);
            if let Some(path) = &path {
                let layers = &mut self.simulation.layers;
                layers.push((path.clone(), LayerPart::default()));
            }
            let kept_before: usize = before;
            match &step {
                Step::Operation {
                    operation,
                    path,
                    input,
                    output,
                } => self.operation(index, operation, path.as_deref(), *input, *output, batch),
                Step::Join { inputs, output } => self.join(index, inputs, *output, batch),
            }
            let peak = self.buffers.restart_peak();
            self.peak = self.peak.max(peak);
            if let Some((_, part)) = self.simulation.layers.last_mut() {
                part.transient = part.transient.max(peak.saturating_sub(kept_before));
            }
        }
        if self
            .outputs
            .iter()
            .any(|&output| self.values[output].tracked)
        {
            let nodes = self.nodes();
            self.buffers.allocate(self.objects.of_loss(nodes));
        }
        self.simulation.kept = self.buffers.live();
        self.peak = self.peak.max(self.buffers.restart_peak());
    }

    fn operation(
        &mut self,
        index: usize,
        operation: &Operation,
        path: Option<&str>,
        input: usize,
        output: usize,
        batch: usize,
    ) {
        let method = self.trained.method(path);
        let tracked_input = self.values[input].tracked;
        let tracked = tracked_input || method.is_some();
        let mut kept = Vec::new();
        let mut in_place = false;
        match operation {
            Operation::Layer { geometry, .. } => {
                let again = recomputed(method, self.values[input].recomputation);
                if method == Some(Method::Recomputed) {
                    let before = again.unwrap_or_default();
                    let own = self.bytes(geometry.output_len());
                    let value = if again.is_some() {
                        self.bytes(geometry.input_len())
                    } else {
                        0
                    };
                    self.values[output].recomputation = Some(Recomputation {
                        layers: before.layers + 1,
                        flops: before.flops + 2 * geometry.products(),
                        bytes: before.bytes.max(value + own),
                        notes: 1,
                    });
                }
                if let Some(method) = method {
                    if let Some(again) = again {
                        // nothing of its own: the layers before it keep enough
                        let bytes = self.objects.of_notes(again.notes);
                        kept.push(self.buffers.allocate(bytes));
                    } else if method.keeps_whole(geometry) {
                        if let Some(buffer) = self.values[input].buffer {
                            kept.push(self.buffers.share(buffer));
                        }
                    } else {
                        let chooses = matches!(method, Method::ChannelSparse(_));
                        let read = if chooses { geometry.weight_len() } else { 0 };
                        self.buffers
                            .during(self.bytes(method.transient(geometry).keep + read));
                        kept.extend(self.saved(method, geometry));
                    }
                }
                self.count(operation, geometry, method, tracked_input);
                if let (Some(again), Some((_, part))) = (again, self.simulation.layers.last_mut()) {
                    part.flops.weight_gradient += again.flops;
                }
            }
            Operation::Normalization { geometry } => {
                let again = self.values[input].recomputation;
                self.values[output].recomputation = again.map(Recomputation::noted);
                let normalised = self.bytes(geometry.input_len());
                if let Some(method) = method {
                    if method.keeps_whole(geometry) {
                        kept.push(self.buffers.allocate(normalised));
                    } else {
                        let transient = self.bytes(method.transient(geometry).keep);
                        self.buffers.during(normalised + transient);
                        kept.extend(self.saved(method, geometry));
                    }
                }
                self.count(operation, geometry, method, tracked_input);
            }
            Operation::Activation {
                activation,
                elements,
            } => {
                let again = self.values[input].recomputation;
                self.values[output].recomputation = again.map(Recomputation::noted);
                let last = self.values[input].readers == 1;
                in_place = last
                    && self.values[input]
                        .buffer
                        .is_some_and(|buffer| self.buffers.is_unique(buffer));
                if tracked {
                    kept.push(self.buffers.allocate(activation.mask_len(*elements)));
                }
            }
            Operation::MaxPool { .. } => {
                if tracked {
                    kept.push(self.buffers.allocate(operation.output_len()));
                }
            }
            Operation::AveragePool { .. } => {}
        }
        if tracked {
            kept.push(self.buffers.allocate(self.objects.of_operation(operation)));
        }
        let buffer = match (in_place, self.values[input].buffer) {
            (true, Some(buffer)) => self.buffers.share(buffer),
            _ => {
                let bytes = self.value_bytes(output, batch);
                self.buffers.allocate(bytes)
            }
        };
        let kept_bytes: usize = kept.iter().map(|&buffer| self.buffers.bytes(buffer)).sum();
        if let Some((_, part)) = self.simulation.layers.last_mut() {
            part.kept += kept_bytes;
        }
        self.values[output].buffer = Some(buffer);
        self.values[output].tracked = tracked;
        self.kept[index] = kept;
        if path.is_some()
            && let Some((_, part)) = self.simulation.layers.last_mut()
        {
            part.live = self.buffers.live();
        }
        self.read(input);
    }

    /// What a method keeps: what goes with the backward pass, and what the layer holds on to.
    fn saved(&mut self, method: Method, geometry: &LayerGeometry) -> Option<Buffer> {
        let element_size = self.trace.element_size;
        let carried = method.carried_bytes(geometry, element_size);
        let bytes = method.bytes(*geometry, element_size);
        let objects = self.objects.of_saved(method, geometry);
        self.buffers.allocate(carried);
        if let Some((_, part)) = self.simulation.layers.last_mut() {
            part.kept += carried;
        }
        Some(self.buffers.allocate(bytes - carried + objects))
    }

    fn join(&mut self, index: usize, inputs: &[usize], output: usize, batch: usize) {
        let tracked = inputs.iter().any(|&input| self.values[input].tracked);
        let node = self.buffers.allocate(self.objects.of_join(tracked));
        self.kept[index].push(node);
        // written over an input that nobody else needs
        let own = inputs.iter().copied().find(|&input| {
            let value = &self.values[input];
            let unique = value
                .buffer
                .is_some_and(|buffer| self.buffers.is_unique(buffer));
            value.readers == 1 && unique
        });
        let buffer = match own.and_then(|input| self.values[input].buffer) {
            Some(buffer) => self.buffers.share(buffer),
            None => {
                let bytes = self.value_bytes(output, batch);
                self.buffers.allocate(bytes)
            }
        };
        self.values[output].buffer = Some(buffer);
        self.values[output].tracked = tracked;
        for &input in inputs {
            self.read(input);
        }
    }

    /// One reader less; after the last one the value is gone.
    fn read(&mut self, value: usize) {
        self.values[value].readers -= 1;
        if self.values[value].readers == 0
            && let Some(buffer) = self.values[value].buffer.take()
        {
            self.buffers.release(buffer);
        }
    }

    /// Parameters and operations of a layer.
    fn count(
        &mut self,
        operation: &Operation,
        geometry: &LayerGeometry,
        method: Option<Method>,
        tracked_input: bool,
    ) {
        let bytes = self.bytes(operation.parameters());
        let Some((_, part)) = self.simulation.layers.last_mut() else {
            return;
        };
        part.parameters = bytes;
        part.forward = 2 * geometry.products();
        let flops = method.unwrap_or_default().flops(*geometry);
        part.flops = flops.of_step(method.is_some(), tracked_input);
    }

    fn backward(&mut self, batch: usize) {
        for output in self.outputs.clone() {
            if self.values[output].tracked {
                let bytes = self.value_bytes(output, batch);
                self.values[output].gradient = Some(self.buffers.allocate(bytes));
            }
            if let Some(buffer) = self.values[output].buffer.take() {
                self.buffers.release(buffer);
            }
        }
        let mut layer = self.simulation.layers.len();
        for index in (0..self.steps.len()).rev() {
            let step = self.steps[index].clone();
            let before = self.buffers.live();
            let output = step.output();
            if let Some(gradient) = self.values[output].gradient.take() {
                match &step {
                    Step::Operation {
                        operation,
                        path,
                        input,
                        ..
                    } => {
                        let method = self.trained.method(path.as_deref());
                        self.operation_backward(index, operation, method, *input, gradient);
                    }
                    Step::Join { inputs, .. } => {
                        for &input in inputs {
                            let shared = self.buffers.share(gradient);
                            self.register(input, shared);
                        }
                        self.buffers.release(gradient);
                    }
                }
            }
            for buffer in std::mem::take(&mut self.kept[index]) {
                self.buffers.release(buffer);
            }
            let peak = self.buffers.restart_peak();
            self.peak = self.peak.max(peak);
            if step.path().is_some() {
                layer -= 1;
            }
            let layer = layer.min(self.simulation.layers.len().saturating_sub(1));
            if let Some((_, part)) = self.simulation.layers.get_mut(layer) {
                part.transient = part.transient.max(peak.saturating_sub(before));
            }
        }
    }

    fn operation_backward(
        &mut self,
        index: usize,
        operation: &Operation,
        method: Option<Method>,
        input: usize,
        gradient: Buffer,
    ) {
        let tracked_input = self.values[input].tracked;
        match operation {
            Operation::Layer { geometry, bias } => {
                let used = method.unwrap_or_default();
                let means = used.upstream_len(geometry);
                let upstream = if means == geometry.output_len() {
                    gradient
                } else {
                    let bytes = self.bytes(means);
                    let upstream = self.buffers.allocate(bytes);
                    self.buffers.release(gradient);
                    upstream
                };
                let transient = used.transient(geometry);
                let again = recomputed(method, self.values[input].recomputation);
                let value = again.map(|again| {
                    self.buffers.during(again.bytes);
                    let bytes = self.bytes(geometry.input_len());
                    self.buffers.allocate(bytes)
                });
                if method.is_some() {
                    if *bias {
                        self.parameter_gradient(index, geometry.output_channels());
                    }
                    self.parameter_gradient(index, geometry.weight_len());
                    self.buffers.during(self.bytes(transient.weight_gradient));
                    for buffer in std::mem::take(&mut self.kept[index]) {
                        self.buffers.release(buffer);
                    }
                }
                if let Some(value) = value {
                    self.buffers.release(value);
                }
                let input_gradient = tracked_input.then(|| {
                    let bytes = self.bytes(geometry.input_len());
                    let buffer = self.buffers.allocate(bytes);
                    self.buffers.during(self.bytes(transient.input_gradient));
                    buffer
                });
                self.buffers.release(upstream);
                if let Some(buffer) = input_gradient {
                    self.register(input, buffer);
                }
            }
            Operation::Normalization { geometry } => {
                if let Some(method) = method {
                    self.parameter_gradient(index, 2 * geometry.output_channels());
                    let means = match method.upstream_len(geometry) {
                        whole if whole == geometry.output_len() => 0,
                        means => means,
                    };
                    let transient = method.transient(geometry).weight_gradient;
                    self.buffers.during(self.bytes(means + transient));
                    for buffer in std::mem::take(&mut self.kept[index]) {
                        self.buffers.release(buffer);
                    }
                }
                if tracked_input {
                    self.new_gradient(input, operation.input_len(), gradient);
                } else {
                    self.buffers.release(gradient);
                }
            }
            Operation::Activation { .. } => {
                if !tracked_input {
                    self.buffers.release(gradient);
                } else if self.buffers.is_unique(gradient) {
                    self.register(input, gradient);
                } else {
                    self.new_gradient(input, operation.input_len(), gradient);
                }
            }
            Operation::MaxPool { .. } | Operation::AveragePool { .. } => {
                if tracked_input {
                    self.new_gradient(input, operation.input_len(), gradient);
                } else {
                    self.buffers.release(gradient);
                }
            }
        }
    }

    /// The input's gradient in a buffer of its own, made from the output's.
    fn new_gradient(&mut self, input: usize, elements: usize, gradient: Buffer) {
        let bytes = self.bytes(elements);
        let buffer = self.buffers.allocate(bytes);
        self.buffers.release(gradient);
        self.register(input, buffer);
    }

    /// A parameter's gradient stays until the end of the step.
    fn parameter_gradient(&mut self, index: usize, elements: usize) {
        let bytes = self.bytes(elements);
        if self.used_again[index] {
            // added to that of the later use
            self.buffers.during(bytes);
            return;
        }
        self.buffers.allocate(bytes);
        self.simulation.gradients += bytes;
        let largest = &mut self.simulation.largest_gradient;
        *largest = (*largest).max(bytes);
    }

    /// Adds a gradient to what a value already has.
    fn register(&mut self, value: usize, gradient: Buffer) {
        if !self.values[value].tracked {
            self.buffers.release(gradient);
            return;
        }
        let sum = match self.values[value].gradient.take() {
            None => gradient,
            Some(before) if self.buffers.is_unique(gradient) => {
                self.buffers.release(before);
                gradient
            }
            Some(before) => {
                let bytes = self.buffers.bytes(gradient);
                let sum = self.buffers.allocate(bytes);
                self.buffers.release(gradient);
                self.buffers.release(before);
                sum
            }
        };
        self.values[value].gradient = Some(sum);
    }
}
