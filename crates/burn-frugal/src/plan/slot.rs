use burn::backend::{Dispatch, DispatchTensor};
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{Device, Tensor, TensorData};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::walk;
use crate::error::Error;
use crate::geometry::LayerGeometry;
use crate::memory::Sweep;
use crate::methods::{FactorArray, LayerShape, Method, Running, Saved};
use crate::ops::{LayerStep, Passes};

/// Forward passes of a layer that wait before those that are abandoned are looked for.
const MOST_WAITING: usize = 8;

/// The method of one layer and what it carries from step to step: a module without parameters, so
/// the layer's records stay those of Burn's layer.
///
/// A [`Plan`](super::Plan) reaches it through [`Module::map`], whatever the model around it. A
/// clone has running values of its own from then on: a training that runs every forward pass on a new
/// clone of the model loses what its steps found, and an activation shortcut then starts anew each
/// time.
#[derive(Debug)]
pub struct MethodSlot {
    training: bool,
    /// Boxed: a layer stays about as small as Burn's.
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    layer: LayerShape,
    method: Method,
    /// Changed by forward passes, which have the model by reference.
    running: Mutex<Running<Dispatch>>,
    observer: Option<Observer>,
    /// Clones of the layer share it.
    passes: Passes,
}

/// Is called with every forward pass of a layer. Clones of the layer share it.
#[derive(Clone)]
pub(crate) struct Observer(pub Arc<dyn Fn(Observation<'_>) -> DispatchTensor + Send + Sync>);

/// One forward pass of a layer.
pub(crate) struct Observation<'a> {
    /// Gives the input, outside any graph. A watcher that does not ask for it costs no memory.
    pub input: &'a dyn Fn() -> DispatchTensor,
    /// Whether the input has a gradient.
    pub input_tracked: bool,
    /// The output; what the observer returns takes its place.
    pub output: DispatchTensor,
    /// All sizes.
    pub geometry: LayerGeometry,
    /// The method.
    pub method: Method,
    /// Bytes that are kept of the input; `None` if the weight is not trained.
    pub kept: Option<usize>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

impl MethodSlot {
    /// A slot with the exact method, for a layer of this shape.
    pub fn new(layer: LayerShape) -> Self {
        Self {
            training: true,
            inner: Box::new(Inner {
                layer,
                method: Method::Exact,
                running: Mutex::default(),
                observer: None,
                passes: Passes::default(),
            }),
        }
    }

    /// The method that the layer trains with.
    pub fn method(&self) -> Method {
        self.inner.method
    }

    /// The layer's shape.
    pub fn layer(&self) -> LayerShape {
        self.inner.layer
    }

    /// The input channels that a channel-sparse method trains now, ascending; `None` before a
    /// schedule or the first training step chose them, and for other methods.
    pub fn channels(&self) -> Option<Vec<usize>> {
        self.running().channels.clone()
    }

    /// The activation shortcut's factor of a mode, `[size, rank]`, as the last step left it.
    pub fn factor(&self, mode: usize) -> Option<Tensor<2>> {
        let running = self.running();
        let factor = running.factors.get(mode)?.clone();
        factor.map(Tensor::from_dispatch)
    }

    /// The method for a forward pass now: gradients through a [`valid`](Module::valid) model, of
    /// its input for example, are exact.
    pub(crate) fn active(&self) -> Method {
        if self.training {
            self.inner.method
        } else {
            Method::Exact
        }
    }

    /// This layer's autodiff step.
    pub(crate) fn step(&self, geometry: LayerGeometry) -> LayerStep {
        LayerStep {
            geometry,
            method: self.active(),
            pass: self.inner.passes.start(),
        }
    }

    /// A sweep that frees what forward passes keep that nobody can run backward any more, before they
    /// are many.
    pub(crate) fn sweep(&self, device: impl FnOnce() -> Device) -> Option<Sweep> {
        let waiting = self.inner.passes.waiting();
        // powers of two: a layer that is used often in one pass is not checked at every use
        let due = waiting >= MOST_WAITING && waiting.is_power_of_two();
        due.then(|| Sweep::new(&device()))
    }

    /// What has to stay of `input`, a plain tensor, while the weight is trained; `weight` gives its
    /// values.
    pub(crate) fn keep(
        &self,
        input: DispatchTensor,
        geometry: &LayerGeometry,
        weight: impl FnOnce() -> TensorData,
    ) -> Saved<Dispatch> {
        let method = self.active();
        // not locked while kernels run: their threads may take up another pass of this layer
        let mut running = self.running().clone();
        if let (Method::ChannelSparse(sparse), None) = (method, &running.channels) {
            running.channels = Some(sparse.largest(&self.inner.layer, weight().iter::<f64>()));
        }
        let saved = method.keep(input, geometry, &mut running);
        *self.running() = running;
        saved
    }

    /// Shows a forward pass to the observer, if there is one.
    pub(crate) fn observed(
        &self,
        input: &dyn Fn() -> DispatchTensor,
        input_tracked: bool,
        output: DispatchTensor,
        geometry: LayerGeometry,
        kept: Option<usize>,
    ) -> DispatchTensor {
        match &self.inner.observer {
            None => output,
            Some(Observer(observe)) => observe(Observation {
                input,
                input_tracked,
                output,
                geometry,
                method: self.active(),
                kept,
            }),
        }
    }

    /// Sets the method; `name` names the layer in the error.
    pub(crate) fn set(&mut self, name: &str, method: Method) -> Result<(), Error> {
        method
            .check(&self.inner.layer)
            .map_err(|source| Error::Method {
                layer: name.to_string(),
                source,
            })?;
        self.assign(method);
        Ok(())
    }

    /// Sets a method that was checked. Another method starts anew.
    pub(super) fn assign(&mut self, method: Method) {
        if method != self.inner.method {
            self.inner.method = method;
            self.inner.running = Mutex::default();
        }
    }

    pub(super) fn set_channels(&mut self, channels: Option<Vec<usize>>) {
        self.running().channels = channels;
    }

    pub(super) fn set_factors(&mut self, factors: FactorArray<Dispatch>) {
        self.running().factors = factors;
    }

    pub(super) fn set_observer(&mut self, observer: Option<Observer>) {
        self.inner.observer = observer;
    }

    fn running(&self) -> MutexGuard<'_, Running<Dispatch>> {
        // whoever panicked in a forward pass left whole values behind
        self.inner
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn on_device(self, device: &Device) -> Self {
        // constants, whatever graph the layer's parameters are in
        let device = device.clone().without_autodiff();
        let moved = |factor: DispatchTensor| {
            Tensor::<2>::from_dispatch(factor)
                .to_device(&device)
                .into_dispatch()
        };
        {
            let factors = &mut self.running().factors;
            *factors = std::mem::take(factors).map(|factor| factor.map(moved));
        }
        self
    }
}

impl Clone for MethodSlot {
    fn clone(&self) -> Self {
        Self {
            training: self.training,
            inner: Box::new(Inner {
                layer: self.inner.layer,
                method: self.inner.method,
                running: Mutex::new(self.running().clone()),
                observer: self.inner.observer.clone(),
                passes: self.inner.passes.clone(),
            }),
        }
    }
}

impl Module for MethodSlot {
    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {
        walk::meet(self);
    }

    fn map<M: ModuleMapper>(mut self, _mapper: &mut M) -> Self {
        walk::pass(&mut self);
        self
    }

    fn to_device(self, device: &Device) -> Self {
        self.on_device(device)
    }

    fn fork(self, device: &Device) -> Self {
        self.on_device(device)
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn materialize(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        Self {
            training: false,
            ..self.clone()
        }
    }

    fn train(self) -> Self {
        Self {
            training: true,
            ..self
        }
    }
}

impl ModuleDisplayDefault for MethodSlot {
    fn content(&self, content: Content) -> Option<Content> {
        content.add_formatted(&self.inner.method).optional()
    }
}

impl ModuleDisplay for MethodSlot {}
