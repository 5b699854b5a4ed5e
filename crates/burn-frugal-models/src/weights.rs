//! Weights in safetensors files, with PyTorch's names and layout.

use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleSnapshot,
    PyTorchToBurnAdapter, SafetensorsStore,
};
use burn::tensor::DType;
use std::fmt;
use std::path::Path;

use crate::error::Error;
use crate::network::BottleneckNet;

/// What became of each tensor of a weights file.
#[must_use = "a file that fits no parameter is not an error, only reported"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightReport {
    /// Parameters that were set.
    pub applied: Vec<String>,
    /// Parameters that the file has no tensor for; they are as they were.
    pub missing: Vec<String>,
    /// Tensors of the file that the network has no parameter for.
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

impl BottleneckNet {
    /// Sets the parameters from a safetensors file with PyTorch's names and layout; half precision
    /// becomes single. Parameters that the file does not have stay as they are and are reported.
    ///
    /// # Errors
    /// When the file cannot be read, is truncated or not safetensors, or a tensor's shape is not
    /// that of its parameter.
    pub fn load_safetensors(self, path: impl AsRef<Path>) -> Result<(Self, WeightReport), Error> {
        let path = path.as_ref();
        let origin = path.display().to_string();
        // the store would map the file into memory, where a file that shrinks kills the process
        let bytes = std::fs::read(path).map_err(|error| Error::Weights {
            origin: origin.clone(),
            problem: error.to_string(),
        })?;
        self.load(bytes, &origin)
    }

    /// Sets the parameters from the bytes of a safetensors file; see
    /// [`load_safetensors`](Self::load_safetensors).
    ///
    /// # Errors
    /// The same.
    pub fn load_safetensors_bytes(self, bytes: &[u8]) -> Result<(Self, WeightReport), Error> {
        self.load(bytes.to_vec(), "the bytes")
    }

    fn load(mut self, bytes: Vec<u8>, origin: &str) -> Result<(Self, WeightReport), Error> {
        let mut store = SafetensorsStore::from_bytes(Some(bytes))
            .with_from_adapter(PyTorchToBurnAdapter.chain(FloatCastAdapter::to(DType::F32)))
            .validate(false)
            .allow_partial(true);
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

fn report(result: ApplyResult) -> WeightReport {
    let mut report = WeightReport {
        applied: result.applied,
        missing: result.missing.into_iter().map(|(path, _)| path).collect(),
        unused: result.unused,
    };
    for names in [&mut report.applied, &mut report.missing, &mut report.unused] {
        names.sort();
    }
    report
}
