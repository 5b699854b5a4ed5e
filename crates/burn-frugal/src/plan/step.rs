//! Optimizer steps that leave the channels alone that a channel-sparse method does not train.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Tensor, TensorData};
use std::collections::BTreeMap;

use super::MethodSlot;
use super::walk;
use crate::methods::{ChannelSparse, Method};

/// [`ModuleOptimizer::step`], after which every weight of a channel that is not trained now has the
/// same bits as before it.
///
/// Zero gradients alone do not do that: weight decay, momentum and Adam's moments of earlier steps
/// move weights whose gradient is zero. The optimizer's own state of such a weight does see the zero
/// gradient: its momentum decays.
///
/// Gradients of channels that are not chosen now are dropped: when gradients of several batches are
/// accumulated, advance a schedule after the step, not between the batches.
///
/// # Example
/// ```
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::{Method, nn::LinearConfig, plan};
///
/// let device = Device::default().autodiff();
/// let model = LinearConfig::new(8, 4).init(&device).with_method(Method::channel_sparse(0.25))?;
/// let mut optimizer = SgdConfig::new().init();
/// let loss = model.forward(Tensor::<2>::ones([3, 8], &device)).sum();
/// let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// let model = plan::step(&mut optimizer, 0.1, model, gradients);
/// # Ok::<(), burn_frugal::Error>(())
/// ```
pub fn step<M: Module>(
    optimizer: &mut ModuleOptimizer,
    learning_rate: impl Into<ModuleLearningRate>,
    model: M,
    gradients: GradientsParams,
) -> M {
    let untrained = UntrainedChannels::of(&model);
    untrained.restore(optimizer.step(learning_rate, model, gradients))
}

/// The weights of the channels that are not trained now, for training loops that do not call
/// [`step`]: take them before the optimizer's step and put them back after it.
///
/// It shares the weights with the model, so for the time of the step the channel-sparse layers have
/// their weights twice.
#[derive(Debug)]
pub struct UntrainedChannels {
    /// By the weight's path: two layers of a model may share a parameter.
    weights: BTreeMap<String, Untrained>,
}

/// One layer's weight before the step, in one axis.
#[derive(Debug)]
struct Untrained {
    before: Tensor<1>,
    trained: Tensor<1, Bool>,
}

impl UntrainedChannels {
    /// Those of every channel-sparse layer of `model`, for the channels that are chosen now.
    pub fn of<M: Module>(model: &M) -> Self {
        let slots = walk::slots(model).into_iter();
        let sparse = slots.filter_map(|(path, slot)| match slot.method() {
            Method::ChannelSparse(sparse) => {
                Some((walk::weight_path(&path, &slot.layer()), (sparse, slot)))
            }
            _ => None,
        });
        let mut collector = Collector {
            path: Vec::new(),
            sparse: sparse.collect(),
            weights: BTreeMap::new(),
        };
        model.visit(&mut collector);
        Self {
            weights: collector.weights,
        }
    }

    /// `model` with those weights put back.
    pub fn restore<M: Module>(self, model: M) -> M {
        if self.weights.is_empty() {
            return model;
        }
        model.map(&mut Restorer {
            path: Vec::new(),
            weights: self.weights,
        })
    }
}

struct Collector {
    path: Vec<String>,
    /// By the weight's path.
    sparse: BTreeMap<String, (ChannelSparse, MethodSlot)>,
    weights: BTreeMap<String, Untrained>,
}

impl ModuleVisitor for Collector {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let Some((sparse, slot)) = self.sparse.get(&path) else {
            return;
        };
        let layer = slot.layer();
        // not chosen yet, here: if a clone ran the forward pass, it chose these
        let channels = slot.channels().unwrap_or_else(|| {
            let weight = param.val().into_data();
            sparse.largest(&layer, weight.iter::<f64>())
        });
        if channels.len() == layer.channels[0] {
            return;
        }
        let mut chosen = vec![false; layer.channels[0]];
        channels.iter().for_each(|&channel| chosen[channel] = true);
        let trained: Vec<bool> = (0..layer.weight_len())
            .map(|index| chosen[layer.channel_of_weight(index)])
            .collect();
        let before = param.val().detach().reshape([layer.weight_len()]);
        let trained = TensorData::new(trained, [layer.weight_len()]);
        let trained = Tensor::from_data(trained, &before.device());
        self.weights.insert(path, Untrained { before, trained });
    }
}

struct Restorer {
    path: Vec<String>,
    weights: BTreeMap<String, Untrained>,
}

impl ModuleMapper for Restorer {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(Untrained { before, trained }) = self.weights.remove(&self.path.join(".")) else {
            return param;
        };
        param.map(|after| {
            let (shape, tracked) = (after.dims(), after.is_require_grad());
            let after = after.detach().reshape([-1]);
            let restored = before.mask_where(trained, after).reshape(shape).detach();
            // a plain tensor cannot be asked
            if tracked {
                restored.require_grad()
            } else {
                restored
            }
        })
    }
}
