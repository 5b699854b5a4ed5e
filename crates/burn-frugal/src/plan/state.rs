//! What layers carry from step to step, saved and restored.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::schedule::Schedule;
use super::{Layer, walk};
use crate::error::Error;
use crate::files;
use crate::geometry::PerMode;
use crate::methods::{ActivationShortcut, FactorArray, Method};

/// Version of the file's form; a change that an older reader would misread increments it.
const VERSION: u64 = 1;
/// The key of the file's metadata.
const KEY: &str = "burn-frugal";

/// The running values of a model's layers, and a schedule: what a training needs to go on as if it
/// had not stopped, beside the model's and the optimizer's records.
///
/// # Example
/// ```no_run
/// # use burn_frugal::{nn::Conv2d, plan::{Plan, Schedule, TrainingState}};
/// # fn example(model: Conv2d, schedule: &Schedule, plan: &Plan) -> Result<(), burn_frugal::Error> {
/// TrainingState::of(&model).with_schedule(schedule).save("state.safetensors")?;
///
/// // later, after loading the model's and the optimizer's records
/// let state = TrainingState::load("state.safetensors")?;
/// let model = state.restore(plan.apply(model)?)?;
/// let schedule = state.schedule().cloned();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct TrainingState {
    layers: BTreeMap<String, LayerState>,
    schedule: Option<Schedule>,
}

/// The running values of one layer.
#[derive(Clone, Debug, Default)]
struct LayerState {
    channels: Option<Vec<usize>>,
    /// By mode.
    factors: BTreeMap<usize, TensorData>,
}

/// What the file holds beside tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u64,
    /// The chosen channels of each layer.
    channels: BTreeMap<String, Vec<usize>>,
    schedule: Option<Schedule>,
}

impl TrainingState {
    /// The running values of every layer that has some.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut layers = BTreeMap::new();
        for (path, slot) in walk::slots(model) {
            let factors = (0..PerMode::MOST).filter_map(|mode| {
                let factor = slot.factor(mode)?;
                Some((mode, factor.into_data()))
            });
            let state = LayerState {
                channels: slot.channels(),
                factors: factors.collect(),
            };
            if state.channels.is_some() || !state.factors.is_empty() {
                layers.insert(path, state);
            }
        }
        Self {
            layers,
            schedule: None,
        }
    }

    /// Adds the schedule of the training.
    pub fn with_schedule(self, schedule: &Schedule) -> Self {
        Self {
            schedule: Some(schedule.clone()),
            ..self
        }
    }

    /// Sets the channels that a channel-sparse layer trains.
    pub fn with_channels(mut self, layer: impl Into<String>, channels: Vec<usize>) -> Self {
        self.layers.entry(layer.into()).or_default().channels = Some(channels);
        self
    }

    /// Sets the factor `[size, rank]` of a mode that a layer's activation shortcut starts from, from
    /// somewhere else than this library's own steps.
    pub fn with_factor(
        mut self,
        layer: impl Into<String>,
        mode: usize,
        factor: TensorData,
    ) -> Self {
        let layer = self.layers.entry(layer.into()).or_default();
        layer.factors.insert(mode, factor);
        self
    }

    /// The schedule, as far as it had come.
    pub fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_ref()
    }

    /// Bytes of all factors: what activation shortcuts hold between steps.
    pub fn factor_bytes(&self) -> usize {
        let factors = self
            .layers
            .values()
            .flat_map(|layer| layer.factors.values());
        factors.map(|factor| factor.as_bytes().len()).sum()
    }

    /// Gives the layers of `model` their running values back, those that have none in this state
    /// lose theirs. Apply the plan first: a layer that changes its method starts anew. Of a factor with
    /// more columns than the method's rank the first are used, one with fewer is left out at the next
    /// step.
    ///
    /// # Errors
    /// When the state names a layer that the model does not have, or has channels or a factor that
    /// the layer cannot have.
    pub fn restore<M: Module>(&self, model: M) -> Result<M, Error> {
        let layers = walk::layers(&model);
        for (path, state) in &self.layers {
            let layer = walk::find(&layers, path)?;
            state.check(layer).map_err(|problem| Error::LayerState {
                layer: path.clone(),
                problem,
            })?;
        }
        let device = model.devices().first().cloned().unwrap_or_default();
        let device = device.without_autodiff();
        let mut states = self.layers.clone();
        Ok(walk::change(model, move |path, slot| {
            let state = states.remove(path).unwrap_or_default();
            slot.set_factors(state.factors_on(&device));
            slot.set_channels(state.channels);
        }))
    }

    /// Writes the state to a file (safetensors), which is replaced only once the new one is
    /// complete.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let bytes = self.to_bytes();
        files::replace(path, &bytes).map_err(|source| Error::File {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Reads a state from a file.
    ///
    /// # Errors
    /// When the file cannot be read, is not a state, or is one of a later version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| Error::File {
            path: path.to_path_buf(),
            source,
        })?;
        Self::from_bytes(&bytes).map_err(|problem| Error::NotATrainingState {
            path: path.to_path_buf(),
            problem,
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let channels = self.layers.iter().filter_map(|(path, state)| {
            let channels = state.channels.clone()?;
            Some((path.clone(), channels))
        });
        let header = Header {
            version: VERSION,
            channels: channels.collect(),
            schedule: self.schedule.clone(),
        };
        let header = serde_json::to_string(&header).expect("strings and numbers only");
        let tensors = self.layers.iter().flat_map(|(path, state)| {
            state.factors.iter().map(move |(mode, factor)| {
                let dtype = file_dtype(factor.dtype());
                let shape = factor.shape().as_slice().to_vec();
                let view = TensorView::new(dtype, shape, factor.as_bytes());
                (
                    tensor_name(path, *mode),
                    view.expect("as many bytes as the shape needs"),
                )
            })
        });
        let metadata = HashMap::from([(KEY.to_string(), header)]);
        safetensors::serialize(tensors, Some(metadata)).expect("distinct names")
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = |error: safetensors::SafeTensorError| error.to_string();
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(text)?;
        let header = metadata.metadata().as_ref().and_then(|map| map.get(KEY));
        let header = header.ok_or_else(|| format!("it has no metadata `{KEY}`"))?;
        let version: serde_json::Value =
            serde_json::from_str(header).map_err(|error| error.to_string())?;
        match version["version"].as_u64() {
            Some(VERSION) => {}
            found => {
                let found = found.map_or("none".to_string(), |version| version.to_string());
                return Err(format!("version {found}, this library reads {VERSION}"));
            }
        }
        let header: Header = serde_json::from_str(header).map_err(|error| error.to_string())?;
        let mut layers: BTreeMap<String, LayerState> = BTreeMap::new();
        for (path, channels) in header.channels {
            layers.entry(path).or_default().channels = Some(channels);
        }
        for (name, view) in SafeTensors::deserialize(bytes).map_err(text)?.iter() {
            let (path, mode) = layer_and_mode(name)
                .ok_or_else(|| format!("`{name}` is not the name of a factor"))?;
            let dtype = tensor_dtype(view.dtype())
                .ok_or_else(|| format!("`{name}` is {:?}, not a float", view.dtype()))?;
            let bytes = burn::tensor::Bytes::from_bytes_vec(view.data().to_vec());
            let factor = TensorData::from_bytes(bytes, view.shape().to_vec(), dtype);
            let layer = layers.entry(path.to_string()).or_default();
            layer.factors.insert(mode, factor);
        }
        Ok(Self {
            layers,
            schedule: header.schedule,
        })
    }
}

impl LayerState {
    /// What this layer cannot have.
    fn check(&self, layer: &Layer) -> Result<(), String> {
        let [channels, _] = layer.shape.channels;
        if let Some(chosen) = &self.channels {
            if !matches!(layer.method, Method::ChannelSparse(_)) {
                return Err(format!("its method ({}) chooses no channels", layer.method));
            }
            let ascending = chosen.is_sorted_by(|a, b| a < b);
            if !ascending || chosen.last().is_some_and(|&last| last >= channels) {
                return Err(format!(
                    "expected ascending channels below {channels}, found {chosen:?}"
                ));
            }
        }
        for (&mode, factor) in &self.factors {
            let Method::ActivationShortcut(ActivationShortcut { ranks, .. }) = layer.method else {
                return Err(format!("its method ({}) has no factors", layer.method));
            };
            let channel_mode = layer.shape.channel_mode(ranks.len());
            let shape = factor.shape().as_slice();
            let &[size, rank] = shape else {
                return Err(format!("expected a factor [size, rank], found {shape:?}"));
            };
            if mode >= ranks.len() || rank > size || mode == channel_mode && size != channels {
                return Err(format!(
                    "expected factors [size, rank] of {} modes, with rank at most size and size \
                     {channels} in mode {channel_mode}, found {shape:?} in mode {mode}",
                    ranks.len()
                ));
            }
        }
        Ok(())
    }

    fn factors_on(&self, device: &Device) -> FactorArray<burn::backend::Dispatch> {
        std::array::from_fn(|mode| {
            let factor = self.factors.get(&mode)?.clone();
            let dtype = factor.dtype();
            Some(Tensor::<2>::from_data(factor, (device, dtype)).into_dispatch())
        })
    }
}

fn tensor_name(layer: &str, mode: usize) -> String {
    format!("{layer}/factor.{mode}")
}

fn layer_and_mode(name: &str) -> Option<(&str, usize)> {
    let (layer, mode) = name.rsplit_once("/factor.")?;
    Some((layer, mode.parse().ok()?))
}

/// The float types that factors can have, in both libraries' names.
const DTYPES: [(DType, Dtype); 4] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
];

fn file_dtype(dtype: DType) -> Dtype {
    let known = DTYPES.iter().find(|(known, _)| *known == dtype);
    known.expect("a factor is a float tensor").1
}

fn tensor_dtype(dtype: Dtype) -> Option<DType> {
    let known = DTYPES.iter().find(|(_, known)| *known == dtype)?;
    Some(known.0)
}
