use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::Device;

use super::walk;
use crate::error::Error;
use crate::methods::{LayerShape, Method};

/// The method of one layer: a module without parameters, so the layer's records stay those of
/// Burn's layer.
///
/// A [`Plan`](super::Plan) reaches it through [`Module::map`], whatever the model around it.
#[derive(Clone, Debug)]
pub struct MethodSlot {
    layer: LayerShape,
    method: Method,
    training: bool,
}

impl MethodSlot {
    /// A slot with the exact method, for a layer of this shape.
    pub fn new(layer: LayerShape) -> Self {
        Self {
            layer,
            method: Method::Exact,
            training: true,
        }
    }

    /// The method that the layer trains with.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The layer's shape.
    pub fn layer(&self) -> LayerShape {
        self.layer
    }

    /// The method for a forward pass now: gradients through a [`valid`](Module::valid) model, of
    /// its input for example, are exact.
    pub(crate) fn active(&self) -> Method {
        if self.training {
            self.method
        } else {
            Method::Exact
        }
    }

    /// Sets the method; `name` names the layer in the error.
    pub(crate) fn set(&mut self, name: &str, method: Method) -> Result<(), Error> {
        method.check(&self.layer).map_err(|source| Error::Method {
            layer: name.to_string(),
            source,
        })?;
        self.method = method;
        Ok(())
    }

    /// Sets a method that was checked.
    pub(super) fn assign(&mut self, method: Method) {
        self.method = method;
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

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn fork(self, _device: &Device) -> Self {
        self
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
        content.add_formatted(&self.method).optional()
    }
}

impl ModuleDisplay for MethodSlot {}
