//! A training step without its numbers: what is allocated, shared and freed, in the order in which a
//! step does it.

use std::collections::{BTreeMap, BTreeSet};

use super::buffers::{Buffer, Buffers};
use super::objects::Objects;
use super::trace::{Step, Trace};
use super::{LayerMemory, StepMemory};
use crate::geometry::LayerGeometry;
use crate::methods::{MOST_RECOMPUTED, Method};
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
    batch: usize,
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
    memory: StepMemory,
}

/// Simulates a step for a batch.
pub(super) fn simulate(trace: &Trace, trained: Trained<'_>, batch: usize) -> StepMemory {
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
        batch,
        kept: vec![Vec::new(); steps.len()],
        outputs,
        used_again,
        objects: Objects {
            tensor: trace.tensor_object,
        },
        buffers: Buffers::default(),
        values,
        memory: StepMemory::default(),
    };
    run.forward(&steps);
    run.backward(&steps);
    run.memory
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
    fn nodes(&self, steps: &[Step]) -> usize {
        let is_node = |step: &&Step| match step {
            Step::Operation { output, .. } => self.values[*output].tracked,
            Step::Join { .. } => true,
        };
        steps.iter().filter(is_node).count()
    }

    fn allocate_value(&mut self, value: usize) -> Buffer {
        let bytes = self.trace.value_bytes(value, self.batch);
        self.buffers.allocate(bytes)
    }

    /// A value's buffer if nobody else needs it: the result may be written over it.
    fn own_buffer(&self, value: usize) -> Option<Buffer> {
        let Value {
            buffer, readers, ..
        } = self.values[value];
        buffer.filter(|&buffer| readers == 1 && self.buffers.is_unique(buffer))
    }

    /// Ends a step that began with `before` live bytes and belongs to this layer.
    fn end_step(&mut self, before: usize, layer: Option<usize>) {
        let peak = self.buffers.restart_peak();
        self.memory.peak = self.memory.peak.max(peak);
        if let Some(layer) = layer {
            let transient = &mut self.memory.layers[layer].transient;
            *transient = (*transient).max(peak - before);
        }
    }

    fn forward(&mut self, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            let before = self.buffers.live();
            if let Some(path) = step.path() {
                self.memory.layers.push(LayerMemory {
                    path: path.to_string(),
                    ..LayerMemory::default()
                });
            }
            match step {
                Step::Operation {
                    operation,
                    path,
                    input,
                    output,
                } => self.operation(index, operation, path.as_deref(), *input, *output),
                Step::Join { inputs, output } => self.join(index, inputs, *output),
            }
            // what belongs to no layer counts with the one before it
            self.end_step(before, self.memory.layers.len().checked_sub(1));
        }
        if self
            .outputs
            .iter()
            .any(|&output| self.values[output].tracked)
        {
            let nodes = self.nodes(steps);
            self.buffers.allocate(self.objects.of_loss(nodes));
        }
        self.memory.kept = self.buffers.live();
    }

    fn operation(
        &mut self,
        index: usize,
        operation: &Operation,
        path: Option<&str>,
        input: usize,
        output: usize,
    ) {
        let method = self.trained.method(path);
        let tracked_input = self.values[input].tracked;
        let tracked = tracked_input || method.is_some();
        let mut kept = Vec::new();
        let mut in_place = None;
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
                        kept.push(self.saved(method, geometry));
                    }
                }
                self.count(index, operation, geometry, method, tracked_input);
                if let (Some(again), Some(layer)) = (again, self.memory.layers.last_mut()) {
                    layer.flops.weight_gradient += again.flops;
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
                        kept.push(self.saved(method, geometry));
                    }
                }
                self.count(index, operation, geometry, method, tracked_input);
            }
            Operation::Activation {
                activation,
                elements,
            } => {
                let again = self.values[input].recomputation;
                self.values[output].recomputation = again.map(Recomputation::noted);
                in_place = self.own_buffer(input);
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
        let buffer = match in_place {
            Some(buffer) => self.buffers.share(buffer),
            None => self.allocate_value(output),
        };
        let kept_bytes: usize = kept.iter().map(|&buffer| self.buffers.bytes(buffer)).sum();
        if let Some(layer) = self.memory.layers.last_mut() {
            layer.kept += kept_bytes;
        }
        self.values[output].buffer = Some(buffer);
        self.values[output].tracked = tracked;
        self.kept[index] = kept;
        if path.is_some()
            && let Some(layer) = self.memory.layers.last_mut()
        {
            layer.live = self.buffers.live();
        }
        self.read(input);
    }

    /// What a method keeps: what goes with the backward pass, and what the layer holds on to.
    fn saved(&mut self, method: Method, geometry: &LayerGeometry) -> Buffer {
        let element_size = self.trace.element_size;
        let carried = method.carried_bytes(geometry, element_size);
        let bytes = method.bytes(*geometry, element_size);
        let objects = self.objects.of_saved(method, geometry);
        self.buffers.allocate(carried);
        if let Some(layer) = self.memory.layers.last_mut() {
            layer.kept += carried;
        }
        self.buffers.allocate(bytes - carried + objects)
    }

    fn join(&mut self, index: usize, inputs: &[usize], output: usize) {
        let tracked = inputs.iter().any(|&input| self.values[input].tracked);
        let node = self.buffers.allocate(self.objects.of_join(tracked));
        self.kept[index].push(node);
        let own = inputs.iter().find_map(|&input| self.own_buffer(input));
        let buffer = match own {
            Some(buffer) => self.buffers.share(buffer),
            None => self.allocate_value(output),
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
        index: usize,
        operation: &Operation,
        geometry: &LayerGeometry,
        method: Option<Method>,
        tracked_input: bool,
    ) {
        // a layer that is used again has its parameters once
        if !self.used_again[index] {
            self.memory.weights += self.bytes(operation.parameters());
        }
        if let Some(layer) = self.memory.layers.last_mut() {
            layer.forward = 2 * geometry.products();
            let flops = method.unwrap_or_default().flops(*geometry);
            layer.flops = flops.of_step(method.is_some(), tracked_input);
        }
    }

    fn backward(&mut self, steps: &[Step]) {
        for output in std::mem::take(&mut self.outputs) {
            if self.values[output].tracked {
                self.values[output].gradient = Some(self.allocate_value(output));
            }
            if let Some(buffer) = self.values[output].buffer.take() {
                self.buffers.release(buffer);
            }
        }
        // the layer of the step before this one
        let mut layer = self.memory.layers.len().checked_sub(1);
        for (index, step) in steps.iter().enumerate().rev() {
            let before = self.buffers.live();
            if let Some(gradient) = self.values[step.output()].gradient.take() {
                match step {
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
            self.release_kept(index);
            self.end_step(before, layer);
            if step.path().is_some() {
                layer = layer.and_then(|layer| layer.checked_sub(1));
            }
        }
    }

    fn release_kept(&mut self, index: usize) {
        for buffer in std::mem::take(&mut self.kept[index]) {
            self.buffers.release(buffer);
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
                    self.release_kept(index);
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
                    self.release_kept(index);
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
        self.memory.gradients += bytes;
        let largest = &mut self.memory.largest_gradient;
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
