//! Frozen factors of the activation shortcut from several batches.

use burn::backend::{Dispatch, DispatchTensor, TensorMetadata, ops::FloatTensorOps};
use burn::module::Module;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::slot::{Observation, Observer};
use super::{measure, walk};
use crate::error::Error;
use crate::geometry::PerMode;
use crate::methods::{FactorArray, FactorUpdate, Method, Spectrum, gram};

/// Calibrates the layers whose activation shortcut has
/// [frozen factors](crate::methods::FactorUpdate::Frozen): `run` sends some batches through the
/// model it is given, and each layer's factors become the leading eigenvectors of the second moments
/// of its inputs over all of them (LANCE, arXiv 2509.21617).
///
/// Forward passes only, on a [`valid`](Module::valid) copy of the model: give it batches on a plain
/// device. All batches must have the same resolution; their sizes may differ. Between batches a
/// `[size, size]` matrix a mode is kept.
///
/// # Errors
/// [`Error::Unused`] when a layer to calibrate saw no input, [`Error::LayerState`] when its inputs
/// had different sizes, values that are not finite, or nothing but zeros.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::methods::ActivationShortcut;
/// use burn_frugal::{nn::Conv2dConfig, plan::calibrate};
///
/// let device = Device::default();
/// let method = ActivationShortcut::new([2, 3, 4, 4]).frozen();
/// let conv = Conv2dConfig::new([8, 8], [3, 3])
///     .init(&device.clone().autodiff())
///     .with_method(method.into())?;
/// let conv = calibrate(conv, |conv| {
///     for _batch in 0..3 {
///         conv.forward(Tensor::ones([2, 8, 10, 10], &device));
///     }
/// })?;
/// assert_eq!(conv.method.factor(1).expect("calibrated").dims(), [8, 3]);
/// # Ok::<(), burn_frugal::Error>(())
/// ```
pub fn calibrate<M: Module>(model: M, run: impl FnOnce(&M)) -> Result<M, Error> {
    let slots = walk::slots(&model).into_iter();
    let moments: BTreeMap<String, Arc<Mutex<Moments>>> = slots
        .filter_map(|(path, slot)| match slot.method() {
            Method::ActivationShortcut(shortcut) if shortcut.factors == FactorUpdate::Frozen => {
                Some((path, Arc::default()))
            }
            _ => None,
        })
        .collect();
    let observed = walk::change(model.valid(), {
        let moments = moments.clone();
        move |path, slot| slot.set_observer(moments.get(path).map(observer))
    });
    run(&observed);
    drop(observed);

    let mut factors = BTreeMap::new();
    for (path, slot) in walk::slots(&model) {
        let (Some(moments), Method::ActivationShortcut(shortcut)) =
            (moments.get(&path), slot.method())
        else {
            continue;
        };
        let moments = std::mem::take(&mut *moments.lock().unwrap_or_else(PoisonError::into_inner));
        let modes = moments.modes.ok_or_else(|| Error::Unused {
            layer: path.clone(),
        })?;
        let ranks = shortcut.ranks_for(modes);
        let found = moments.factors(modes, ranks);
        factors.insert(
            path.clone(),
            found.map_err(|problem| Error::LayerState {
                layer: path,
                problem,
            })?,
        );
    }
    Ok(walk::change(model, move |path, slot| {
        if let Some(factors) = factors.remove(path) {
            slot.set_factors(factors);
        }
    }))
}

/// The second moments of a layer's inputs, mode by mode.
#[derive(Default)]
struct Moments {
    /// The last input's shape.
    modes: Option<PerMode>,
    /// Row-major `[size, size]`, for every mode but the batch's.
    grams: [Vec<f64>; PerMode::MOST],
    /// A tensor to take device and element type from.
    like: Option<DispatchTensor>,
    problem: Option<String>,
}

fn observer(moments: &Arc<Mutex<Moments>>) -> Observer {
    let moments = moments.clone();
    Observer(Arc::new(move |observation| {
        let mut moments = moments.lock().unwrap_or_else(PoisonError::into_inner);
        moments.add(&observation);
        observation.output
    }))
}

impl Moments {
    fn add(&mut self, observation: &Observation) {
        let modes = observation.geometry.modes();
        if let Some(before) = self.modes
            && before.as_slice()[1..] != modes.as_slice()[1..]
        {
            self.problem = Some(format!("calibrated with inputs {before} and {modes}"));
            return;
        }
        let shape = modes.as_slice().to_vec().into();
        let input = Dispatch::float_reshape((observation.input)(), shape);
        for mode in 1..modes.len() {
            let gram = gram::<Dispatch>(&input, mode);
            let sum = &mut self.grams[mode];
            *sum = measure::sum(std::mem::take(sum), gram);
        }
        self.modes = Some(modes);
        if self.like.is_none() {
            let dtype = input.dtype().into();
            self.like = Some(Dispatch::float_zeros([1].into(), &input.device(), dtype));
        }
    }

    fn factors(self, modes: PerMode, ranks: PerMode) -> Result<FactorArray<Dispatch>, String> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let like = self.like.expect("an input was seen");
        let mut factors = FactorArray::<Dispatch>::default();
        for mode in 1..modes.len() {
            if ranks[mode] < modes[mode] {
                let spectrum = Spectrum::of_gram(modes[mode], &self.grams[mode])
                    .map_err(|error| format!("calibrating mode {mode}: {error}"))?;
                if !spectrum.has_energy() {
                    return Err("calibrated with inputs that are all zero".to_string());
                }
                factors[mode] = Some(spectrum.leading::<Dispatch>(ranks[mode], &like));
            }
        }
        Ok(factors)
    }
}
