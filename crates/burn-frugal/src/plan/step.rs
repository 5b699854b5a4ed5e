//! Optimizer steps that leave the channels alone that a channel-sparse method does not train.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Tensor, TensorData};
use std::collections::{BTreeMap, HashMap};

use super::MethodSlot;
use super::walk::{self, Parameter};
use crate::methods::Method;

/// [`ModuleOptimizer::step`], after which every weight of a channel that is not trained now has the
/// same bits as before it.
///
/// Zero gradients alone do not do that: weight decay, momentum and Adam's moments of earlier steps
/// move weights whose gradient is zero. The optimizer's own state of such a weight does see the zero
/// gradient: its momentum decays.
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
    weights: HashMap<ParamId, Untrained>,
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
        let sparse: BTreeMap<String, MethodSlot> = slots
            .filter(|(_, slot)| matches!(slot.method(), Method::ChannelSparse(_)))
            .map(|(path, slot)| (walk::weight_path(&path), slot))
            .collect();
        let wanted = walk::parameters(model)
            .into_iter()
            .filter_map(|Parameter { path, id }| Some((id, sparse.get(&path)?.clone())));
        let mut collector = Collector {
            wanted: wanted.collect(),
            weights: HashMap::new(),
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
            weights: self.weights,
        })
    }
}

struct Collector {
    wanted: HashMap<ParamId, MethodSlot>,
    weights: HashMap<ParamId, Untrained>,
}

impl ModuleVisitor for Collector {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.wanted.get(&param.id) else {
            return;
        };
        let layer = slot.layer();
        // before the first step that chooses them, no weight has a gradient
        let channels = slot.channels().unwrap_or_default();
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
        self.weights.insert(param.id, Untrained { before, trained });
    }
}

struct Restorer {
    weights: HashMap<ParamId, Untrained>,
}

impl ModuleMapper for Restorer {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(Untrained { before, trained }) = self.weights.remove(&param.id) else {
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
