//! Weights in safetensors files, with PyTorch's names and layout.

use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleSnapshot,
    ModuleStore, PyTorchToBurnAdapter, SafetensorsStore,
};
use burn::tensor::{DType, Device};
use std::fmt;
use std::path::Path;

use crate::config::BottleneckNetConfig;
use crate::error::Error;
use crate::names::{is_batch_count, is_running_mean, own_names};
use crate::network::BottleneckNet;

/// What became of each tensor of a weights file.
#[must_use = "a file that fits no parameter is not an error, only reported"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightReport {
    /// Parameters that were set.
    pub applied: Vec<String>,
    /// Parameters that the file has no tensor for; they are as they were.
    pub missing: Vec<String>,
    /// Tensors of the file that the network has no parameter for, but for PyTorch's counts of
    /// batches (`num_batches_tracked`).
    pub unused: Vec<String>,
}

impl WeightReport {
    /// Whether every parameter was set and every tensor used.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unused.is_empty()
    }
}

impl fmt::Display for WeightReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors applied", self.applied.len())?;
        for (what, names) in [("missing", &self.missing), ("unused", &self.unused)] {
            if !names.is_empty() {
                write!(f, ", {} {what} ({})", names.len(), names.join(", "))?;
            }
        }
        Ok(())
    }
}

impl BottleneckNetConfig {
    /// Creates the network with the weights of a safetensors file, ready to be fine-tuned: batch
    /// normalization that the file has is folded into the convolutions, whatever
    /// [`batch_norm`](Self::batch_norm) says. To keep it, use [`with_batch_norm`](Self::with_batch_norm),
    /// [`init`](Self::init) and [`load_safetensors`](BottleneckNet::load_safetensors).
    ///
    /// The head is the file's, so this configuration has as many classes;
    /// [`BottleneckNet::with_classes`] replaces it afterwards.
    ///
    /// # Errors
    /// Those of [`load_safetensors`](BottleneckNet::load_safetensors) and of
    /// [`try_init`](Self::try_init).
    ///
    /// # Example
    /// ```no_run
    /// use burn::tensor::Device;
    /// use burn_frugal_models::BottleneckNetConfig;
    ///
    /// let device = Device::default().autodiff();
    /// let config = BottleneckNetConfig::efficientnet_lite0();
    /// let (network, report) = config.load("efficientnet-lite0.safetensors", &device)?;
    /// assert!(report.is_complete(), "{report}");
    /// let network = network.with_classes(10, &device);
    /// # Ok::<(), burn_frugal_models::Error>(())
    /// ```
    pub fn load(
        &self,
        path: impl AsRef<Path>,
        device: &Device,
    ) -> Result<(BottleneckNet, WeightReport), Error> {
        let (bytes, origin) = read(path.as_ref())?;
        let mut store = store(bytes);
        let names = store.keys().map_err(|error| Error::Weights {
            origin: origin.clone(),
            problem: error.to_string(),
        })?;
        let config = self
            .clone()
            .with_batch_norm(names.iter().any(|name| is_running_mean(name)));
        let (network, report) = config.try_init(device)?.load(store, &origin)?;
        Ok((network.fold_batch_norm(), report))
    }
}

impl BottleneckNet {
    /// Sets the parameters from a safetensors file with PyTorch's layout, and its names or those of
    /// EfficientNet's PyTorch port; half precision becomes single. Parameters that the file does not
    /// have stay as they are and are reported.
    ///
    /// A file with batch normalization needs a network that has it;
    /// [`BottleneckNetConfig::load`] sees to that and folds it.
    ///
    /// # Errors
    /// When the file cannot be read, is truncated or not safetensors, or a tensor's shape is not
    /// that of its parameter.
    pub fn load_safetensors(self, path: impl AsRef<Path>) -> Result<(Self, WeightReport), Error> {
        let (bytes, origin) = read(path.as_ref())?;
        self.load(store(bytes), &origin)
    }

    /// Sets the parameters from the bytes of a safetensors file; see
    /// [`load_safetensors`](Self::load_safetensors).
    ///
    /// # Errors
    /// The same.
    pub fn load_safetensors_bytes(self, bytes: &[u8]) -> Result<(Self, WeightReport), Error> {
        self.load(store(bytes.to_vec()), "the bytes")
    }

    fn load(
        mut self,
        mut store: SafetensorsStore,
        origin: &str,
    ) -> Result<(Self, WeightReport), Error> {
        let result = self.load_from(&mut store).map_err(|error| Error::Weights {
            origin: origin.to_string(),
            problem: error.to_string(),
        })?;
        if !result.errors.is_empty() {
            return Err(Error::Mismatch {
                origin: origin.to_string(),
                problems: result.errors.iter().map(ApplyError::to_string).collect(),
            });
        }
        Ok((self, report(result)))
    }

    /// The network as a safetensors file with PyTorch's names and layout, its values in `dtype`.
    ///
    /// # Errors
    /// When the values cannot be read from the device.
    pub fn to_safetensors(&self, dtype: DType) -> Result<Vec<u8>, Error> {
        let problem = |problem: String| Error::Weights {
            origin: "the network".to_string(),
            problem,
        };
        let mut store = SafetensorsStore::from_bytes(None)
            .clear_metadata()
            .with_to_adapter(BurnToPyTorchAdapter.chain(FloatCastAdapter::to(dtype)));
        self.save_into(&mut store)
            .map_err(|error| problem(error.to_string()))?;
        store
            .get_bytes()
            .map_err(|error| problem(error.to_string()))
    }
}

/// The content of a file, and its name for errors.
fn read(path: &Path) -> Result<(Vec<u8>, String), Error> {
    let origin = path.display().to_string();
    // the store would map the file into memory, where a file that shrinks kills the process
    match std::fs::read(path) {
        Ok(bytes) => Ok((bytes, origin)),
        Err(error) => Err(Error::Weights {
            origin,
            problem: error.to_string(),
        }),
    }
}

/// The tensors of a safetensors file as the network's parameters.
fn store(bytes: Vec<u8>) -> SafetensorsStore {
    let store = SafetensorsStore::from_bytes(Some(bytes))
        .with_from_adapter(PyTorchToBurnAdapter.chain(FloatCastAdapter::to(DType::F32)))
        .validate(false)
        .allow_partial(true);
    own_names(store)
}

fn report(result: ApplyResult) -> WeightReport {
    let mut report = WeightReport {
        applied: result.applied,
        missing: result.missing.into_iter().map(|(path, _)| path).collect(),
        unused: result
            .unused
            .into_iter()
            .filter(|name| !is_batch_count(name))
            .collect(),
    };
    for names in [&mut report.applied, &mut report.missing, &mut report.unused] {
        names.sort();
    }
    report
}
