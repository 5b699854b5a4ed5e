//! Looking at one layer of a model while a loss is run: its input and its output's gradient.

use burn::backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Shape, Tensor};
use std::sync::{Arc, Mutex, PoisonError};

use super::slot::{Observation, Observer};
use super::walk;
use crate::error::Error;
use crate::geometry::LayerGeometry;
use crate::methods::{Method, Running};

/// One forward and backward pass of a layer, on plain tensors.
pub(super) struct Pass {
    pub input: DispatchTensor,
    pub output_gradient: DispatchTensor,
    pub geometry: LayerGeometry,
}

impl Pass {
    /// Bytes of one element of the input.
    pub fn element_size(&self) -> usize {
        self.input.dtype().size()
    }
}

/// Runs `loss` on a copy of `model` in which everything is frozen and exact, and returns the passes
/// of the layer at `path`, several if the model uses it more than once.
///
/// Frozen, the model draws no random numbers (dropout is off) and keeps its batch statistics. The
/// graph starts at the layer's output: nothing before it is kept, and behind it only what the
/// input's gradient needs.
pub(super) fn passes<M: Module>(
    model: &M,
    path: &str,
    loss: impl Fn(&M) -> Tensor<1>,
) -> Result<Vec<Pass>, Error> {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let observer = Observer(Arc::new({
        let seen = seen.clone();
        move |observation| watch(observation, &seen)
    }));
    initialize(model);
    let observed = path.to_string();
    let copy = walk::change(model.clone().freeze(), move |path, slot| {
        slot.assign(Method::Exact);
        slot.set_observer((path == observed).then(|| observer.clone()));
    });
    let loss = loss(&copy);
    drop(copy);

    let unused = || Error::Unused {
        layer: path.to_string(),
    };
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    if seen.is_empty() || !loss.is_tracked() {
        return Err(unused());
    }
    let gradients = loss.backward();
    let passes = seen.into_iter().filter_map(|seen| {
        // none: the model does something with this output that is not part of the loss
        let gradient = seen.output.grad(&gradients)?;
        let gradient = gradient.without_autodiff().into_dispatch();
        Some(Pass {
            input: seen.input,
            output_gradient: Dispatch::float_reshape(gradient, seen.shape),
            geometry: seen.geometry,
        })
    });
    let passes: Vec<Pass> = passes.collect();
    if passes.is_empty() {
        return Err(unused());
    }
    Ok(passes)
}

/// Initialises parameters that are still to be: a copy shares them, and would freeze the model's.
pub(super) fn initialize<M: Module>(model: &M) {
    model.visit(&mut Initialize);
}

struct Initialize;

impl ModuleVisitor for Initialize {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        param.val();
    }
}

/// A forward pass whose gradient is still to come.
struct Seen {
    input: DispatchTensor,
    /// All elements in one axis: a leaf of the graph.
    output: Tensor<1>,
    shape: Shape,
    geometry: LayerGeometry,
}

/// Notes a forward pass and puts a leaf of the graph where its output is.
fn watch(observation: Observation, seen: &Mutex<Vec<Seen>>) -> DispatchTensor {
    let Observation {
        input,
        output,
        geometry,
        ..
    } = observation;
    let shape = output.shape();
    let flat = Dispatch::float_reshape(output, [shape.num_elements()].into());
    let flat = Tensor::<1>::from_dispatch(flat).autodiff();
    let (leaf, output) = if flat.is_tracked() {
        // a use further on: the graph of the uses before it has to stay whole
        let leaf = flat.zeros_like().detach().require_grad();
        (leaf.clone(), flat + leaf)
    } else {
        let leaf = flat.detach().require_grad();
        (leaf.clone(), leaf)
    };
    let output = Dispatch::float_reshape(output.into_dispatch(), shape.clone());
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.push(Seen {
        input: input(),
        output: leaf,
        shape,
        geometry,
    });
    output
}

/// The exact gradient of the layer's weight over all its passes, in row-major order.
pub(super) fn exact_weight_gradient(passes: &[Pass]) -> Vec<f64> {
    let gradients = passes.iter().map(|pass| {
        let mut running = Running::<Dispatch>::default();
        let saved = Method::Exact.keep(pass.input.clone(), &pass.geometry, &mut running);
        let upstream = pass.output_gradient.clone();
        values(Method::Exact.weight_gradient(saved, upstream, &pass.geometry))
    });
    gradients.fold(Vec::new(), sum)
}

/// The sum of two lists, the first of which may be empty.
pub(super) fn sum(mut sum: Vec<f64>, values: Vec<f64>) -> Vec<f64> {
    if sum.is_empty() {
        return values;
    }
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
    sum
}

/// The values of a tensor in row-major order.
pub(super) fn values(tensor: DispatchTensor) -> Vec<f64> {
    let elements = tensor.shape().num_elements();
    let flat = Dispatch::float_reshape(tensor, [elements].into());
    Tensor::<1>::from_dispatch(flat)
        .into_data()
        .iter::<f64>()
        .collect()
}
