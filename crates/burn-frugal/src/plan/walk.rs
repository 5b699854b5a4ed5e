//! Reaching every [`MethodSlot`] of a model that this crate knows nothing about.
//!
//! Burn's visitors and mappers see parameters only, and are told when a field is entered and left.
//! A slot has no parameter, so it meets the walk that is under way on its thread instead: the
//! visitor keeps the path, the slot reads it.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor};
use std::cell::RefCell;

use super::MethodSlot;
use crate::error::Error;
use crate::methods::{LayerShape, Method};

/// A layer that a plan can name.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The layer's path in the model, `blocks.3.depthwise` for example.
    pub path: String,
    /// Its shape.
    pub shape: LayerShape,
    /// The method that it has now.
    pub method: Method,
}

/// A parameter of the model.
pub(super) struct Parameter {
    path: String,
    pub(super) id: ParamId,
}

impl Parameter {
    /// Whether the parameter is the module path's own, or below it.
    pub(super) fn is_under(&self, module: &str) -> bool {
        let rest = self.path.strip_prefix(module);
        rest.is_some_and(|rest| module.is_empty() || rest.is_empty() || rest.starts_with('.'))
    }
}

/// What happens to a slot that is mapped, given its layer's path.
type Change = Box<dyn FnMut(&str, &mut MethodSlot)>;

/// The walk under way on this thread.
struct Walk {
    path: Vec<String>,
    change: Change,
    /// The slots that were visited, with their layers' paths.
    met: Vec<(String, MethodSlot)>,
}

thread_local! {
    static WALK: RefCell<Option<Walk>> = const { RefCell::new(None) };
}

/// Ends the walk even if the model's own code panics.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        WALK.set(None);
    }
}

fn start(change: Change) -> Ending {
    let walk = Walk {
        path: Vec::new(),
        change,
        met: Vec::new(),
    };
    let previous = WALK.replace(Some(walk));
    assert!(previous.is_none(), "a plan walks one model at a time");
    Ending
}

fn walking<R>(run: impl FnOnce(&mut Walk) -> R) -> Option<R> {
    WALK.with_borrow_mut(|walk| walk.as_mut().map(run))
}

impl Walk {
    /// The path of the layer whose slot is being met: the last element is the slot's own field.
    fn layer_path(&self) -> String {
        let layer = self.path.split_last().map_or(&[][..], |(_, layer)| layer);
        layer.join(".")
    }
}

/// Copies of the slots with their layers' paths, in the order in which fields are declared.
pub(super) fn slots<M: Module>(model: &M) -> Vec<(String, MethodSlot)> {
    let _ending = start(Box::new(|_, _| ()));
    model.visit(&mut PathVisitor::default());
    walking(|walk| std::mem::take(&mut walk.met)).unwrap_or_default()
}

/// The layers with a slot, in the order in which fields are declared.
pub(super) fn layers<M: Module>(model: &M) -> Vec<Layer> {
    let layer = |(path, slot): (String, MethodSlot)| Layer {
        path,
        shape: slot.layer(),
        method: slot.method(),
    };
    slots(model).into_iter().map(layer).collect()
}

/// The paths of these layers.
pub(super) fn paths(layers: &[Layer]) -> Vec<String> {
    layers.iter().map(|layer| layer.path.clone()).collect()
}

/// The layer at this path.
///
/// # Errors
/// When there is none, with those that there are.
pub(super) fn find<'a>(layers: &'a [Layer], path: &str) -> Result<&'a Layer, Error> {
    let layer = layers.iter().find(|layer| layer.path == path);
    layer.ok_or_else(|| Error::UnknownLayer {
        path: path.to_string(),
        layers: paths(layers),
    })
}

/// The path of the weight of the layer at `path`.
pub(super) fn weight_path(path: &str, layer: &LayerShape) -> String {
    let name = layer.weight_name();
    match path {
        // the model itself is the layer
        "" => name.to_string(),
        path => format!("{path}.{name}"),
    }
}

/// The values of the weight of the layer at `path`, in row-major order.
pub(super) fn weights<M: Module>(model: &M, path: &str, layer: &LayerShape) -> Vec<f64> {
    let path = weight_path(path, layer);
    let weight = parameters(model)
        .into_iter()
        .find(|parameter| parameter.path == path);
    let mut reader = WeightReader {
        id: weight.map(|parameter| parameter.id),
        values: Vec::new(),
    };
    model.visit(&mut reader);
    reader.values
}

struct WeightReader {
    id: Option<ParamId>,
    values: Vec<f64>,
}

impl ModuleVisitor for WeightReader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if Some(param.id) == self.id {
            self.values = param.val().into_data().iter::<f64>().collect();
        }
    }
}

/// Calls `change` with the path of every layer and its slot.
pub(super) fn change<M: Module>(
    model: M,
    change: impl FnMut(&str, &mut MethodSlot) + 'static,
) -> M {
    let _ending = start(Box::new(change));
    model.map(&mut PathMapper)
}

/// The parameters with their paths.
pub(super) fn parameters<M: Module>(model: &M) -> Vec<Parameter> {
    let _ending = start(Box::new(|_, _| ()));
    let mut visitor = PathVisitor::default();
    model.visit(&mut visitor);
    visitor.parameters
}

/// Bytes of all floating-point parameters.
pub(super) fn parameter_bytes<M: Module>(model: &M) -> usize {
    let mut counter = ByteCounter::default();
    model.visit(&mut counter);
    counter.bytes
}

#[derive(Default)]
struct ByteCounter {
    bytes: usize,
}

impl ModuleVisitor for ByteCounter {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        self.bytes += value.shape().num_elements() * value.dtype().size();
    }
}

/// A slot is visited.
pub(super) fn meet(slot: &MethodSlot) {
    walking(|walk| walk.met.push((walk.layer_path(), slot.clone())));
}

/// A slot is mapped. Other mappers than ours pass it by.
pub(super) fn pass(slot: &mut MethodSlot) {
    walking(|walk| {
        let path = walk.layer_path();
        (walk.change)(&path, slot);
    });
}

fn enter(name: &str) {
    walking(|walk| walk.path.push(name.to_string()));
}

fn exit() {
    walking(|walk| walk.path.pop());
}

#[derive(Default)]
struct PathVisitor {
    parameters: Vec<Parameter>,
}

impl PathVisitor {
    fn add(&mut self, id: ParamId) {
        let path = walking(|walk| walk.path.join(".")).unwrap_or_default();
        self.parameters.push(Parameter { path, id });
    }
}

impl ModuleVisitor for PathVisitor {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.id);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.id);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.add(param.id);
    }
}

/// Leaves every parameter as it is, uninitialised ones too.
struct PathMapper;

impl ModuleMapper for PathMapper {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        param
    }
}
