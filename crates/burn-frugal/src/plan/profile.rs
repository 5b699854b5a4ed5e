//! What each candidate method would keep, cost and get wrong, layer by layer.

use burn::backend::Dispatch;
use burn::module::Module;
use burn::tensor::Tensor;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use super::measure::{self, Pass, passes};
use super::selection::Selection;
use super::{Layer, document, walk};
use crate::error::Error;
use crate::geometry::PerMode;
use crate::methods::{Flops, Hosvd, Method, Running, Saved};

/// Steps on the measured batch before an activation shortcut is measured: its factors are then
/// those of a running training, not of its random start.
const WARM_UP_STEPS: usize = 3;

/// A method that a layer may get.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Candidate {
    /// This method.
    Method(Method),
    /// The activation shortcut with the ranks that HOSVD needs for this energy on the measured
    /// batch: how its authors choose ranks. The error is that of HOSVD.
    ShortcutAtEnergy(f64),
}

impl From<Method> for Candidate {
    fn from(method: Method) -> Self {
        Self::Method(method)
    }
}

/// Which methods are measured on which layers; a later rule replaces an earlier one.
///
/// # Example
/// ```
/// use burn_frugal::{Method, plan::{Candidate, Candidates}};
///
/// let candidates = Candidates::new().last_convs(4, [
///     Candidate::from(Method::Exact),
///     Method::gradient_filter(2).into(),
///     Candidate::ShortcutAtEnergy(0.8),
/// ]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    rules: Vec<(Selection, Vec<Candidate>)>,
}

impl Candidates {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// For the layer at this path.
    pub fn layer<C: Into<Candidate>>(
        self,
        path: impl Into<String>,
        candidates: impl IntoIterator<Item = C>,
    ) -> Self {
        self.rule(Selection::Layer(path.into()), candidates)
    }

    /// For every layer whose path contains a match of this regular expression.
    pub fn pattern<C: Into<Candidate>>(
        self,
        pattern: impl Into<String>,
        candidates: impl IntoIterator<Item = C>,
    ) -> Self {
        self.rule(Selection::Pattern(pattern.into()), candidates)
    }

    /// For the last `count` convolutions.
    pub fn last_convs<C: Into<Candidate>>(
        self,
        count: usize,
        candidates: impl IntoIterator<Item = C>,
    ) -> Self {
        self.rule(Selection::LastConvs(count), candidates)
    }

    fn rule<C: Into<Candidate>>(
        mut self,
        selection: Selection,
        candidates: impl IntoIterator<Item = C>,
    ) -> Self {
        let candidates = candidates.into_iter().map(Into::into).collect();
        self.rules.push((selection, candidates));
        self
    }

    /// The candidates of each layer, in the model's order. All of them suit their layer.
    fn resolve(&self, layers: &[Layer]) -> Result<Vec<(Layer, Vec<Candidate>)>, Error> {
        let mut by_path = BTreeMap::new();
        for (selection, candidates) in &self.rules {
            for layer in selection.select(layers)? {
                by_path.insert(&layer.path, candidates);
            }
        }
        let mut resolved = Vec::new();
        for layer in layers {
            if let Some(candidates) = by_path.get(&layer.path) {
                for candidate in *candidates {
                    candidate.check(layer)?;
                }
                resolved.push((layer.clone(), candidates.to_vec()));
            }
        }
        Ok(resolved)
    }
}

impl Candidate {
    /// The method whose pass is measured.
    fn measured(&self) -> Method {
        match *self {
            Self::Method(method) => method,
            Self::ShortcutAtEnergy(energy) => Method::Hosvd(Hosvd { energy }),
        }
    }

    fn check(&self, layer: &Layer) -> Result<(), Error> {
        self.measured()
            .check(&layer.shape)
            .map_err(|source| Error::Method {
                layer: layer.path.clone(),
                source,
            })
    }
}

/// What every candidate of every layer keeps, costs and gets wrong, measured on one batch.
///
/// The gradient error is the *perplexity* of arXiv 2505.05086: the Frobenius norm of the difference
/// between a method's weight gradient and the exact one. What a gradient filter does to the input
/// gradient, and so to the layers before it, is not part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    layers: Vec<LayerProfile>,
}

/// The measurements of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerProfile {
    /// The layer's path in the model.
    pub path: String,
    /// The Frobenius norm of the exact weight gradient.
    pub gradient_norm: f64,
    /// Its candidates, in the order in which they were given.
    pub candidates: Vec<Measured>,
}

/// The measurements of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The method to use.
    pub method: Method,
    /// Bytes that stay of the layer's input between forward and backward.
    pub bytes: usize,
    /// Operations beside the layer's own forward pass.
    pub flops: Flops,
    /// The Frobenius norm of the gradient's error.
    pub error: f64,
    /// `error` relative to the exact gradient's norm; 0 if both are 0, infinite if only the norm is.
    #[serde(deserialize_with = "number_or_infinity")]
    pub relative_error: f64,
}

/// JSON has no infinity; `null` is written for it.
fn number_or_infinity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number: Option<f64> = Option::deserialize(deserializer)?;
    Ok(number.unwrap_or(f64::INFINITY))
}

impl Profile {
    /// Measures every candidate on one batch. `loss` runs the model it is given on that batch, on a
    /// training device, and returns the loss.
    ///
    /// One forward and backward pass a layer, in which only that layer's input is kept: memory is a
    /// few maps of the largest layer and what the layers behind it need, not the inputs of all. The
    /// passes run on a copy of the model in which
    /// everything is frozen (dropout is off, BatchNorm uses its running statistics) and exact; the
    /// model, its running values and the framework's random numbers stay as they are. A bar on standard error shows the progress if that is a terminal.
    ///
    /// # Errors
    /// When a rule of `candidates` names no layer, a candidate does not suit its layer, the loss does
    /// not depend on a layer, or a gradient is not finite.
    ///
    /// # Example
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_frugal::{Method, nn::{Conv2d, Conv2dConfig}, plan::{Candidates, Planner, Profile}};
    ///
    /// let device = Device::default().autodiff();
    /// let model: Vec<Conv2d> = (0..2)
    ///     .map(|_| Conv2dConfig::new([4, 4], [3, 3]).init(&device))
    ///     .collect();
    /// let images = Tensor::<4>::ones([2, 4, 12, 12], &device);
    /// let loss = |model: &Vec<Conv2d>| {
    ///     model.iter().fold(images.clone(), |x, conv| conv.forward(x)).powi_scalar(2).mean()
    /// };
    ///
    /// let candidates = Candidates::new().last_convs(2, [Method::Exact, Method::gradient_filter(2)]);
    /// let profile = Profile::measure(&model, &candidates, loss)?;
    /// let solution = Planner::new(&profile).least_error(8_000)?;
    /// let model = solution.plan.apply(model)?;
    /// # Ok::<(), burn_frugal::Error>(())
    /// ```
    pub fn measure<M: Module>(
        model: &M,
        candidates: &Candidates,
        loss: impl Fn(&M) -> Tensor<1>,
    ) -> Result<Self, Error> {
        let layers = candidates.resolve(&walk::layers(model))?;
        let progress = progress_bar(layers.iter().map(|(_, candidates)| candidates.len()).sum());
        let mut profile = Self::default();
        for (layer, candidates) in layers {
            progress.set_message(layer.path.clone());
            let passes = passes(model, &layer.path, &loss)?;
            let weight = walk::weights(model, &layer.path, &layer.shape);
            let measurement = Measurement::new(&layer, &passes, weight);
            let measured = candidates.iter().map(|candidate| {
                let measured = measurement.of(candidate);
                progress.inc(1);
                match measured.error.is_finite() {
                    true => Ok(measured),
                    false => Err(Error::NotFinite {
                        layer: layer.path.clone(),
                        method: measured.method.to_string(),
                        found: measured.error,
                    }),
                }
            });
            profile.layers.push(LayerProfile {
                candidates: measured.collect::<Result<_, _>>()?,
                gradient_norm: measurement.gradient_norm,
                path: layer.path.clone(),
            });
        }
        progress.finish_and_clear();
        Ok(profile)
    }

    /// The measurements, in the model's order of layers.
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// The profile as JSON, with the version of its form.
    pub fn to_json(&self) -> String {
        document::to_json(&self.layers)
    }

    /// Reads what [`to_json`](Self::to_json) writes.
    ///
    /// # Errors
    /// When the text is not a profile, or is one of a later version.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let layers: Layers = document::parse(text, "a profile", "the text")?;
        Ok(Self { layers: layers.0 })
    }

    /// Writes the profile to a file, which is replaced only once the new one is complete.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        document::save(&self.to_json(), path.as_ref())
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    /// When the file cannot be read, is not a profile, or is one of a later version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let layers: Layers = document::load(path.as_ref(), "a profile")?;
        Ok(Self { layers: layers.0 })
    }
}

/// The layers of a saved profile, each once.
#[derive(Deserialize)]
#[serde(try_from = "Vec<LayerProfile>")]
struct Layers(Vec<LayerProfile>);

impl TryFrom<Vec<LayerProfile>> for Layers {
    type Error = String;

    fn try_from(layers: Vec<LayerProfile>) -> Result<Self, String> {
        let mut paths = BTreeSet::new();
        match layers.iter().find(|layer| !paths.insert(&layer.path)) {
            Some(layer) => Err(format!("the layer `{}` is in it twice", layer.path)),
            None => Ok(Self(layers)),
        }
    }
}

/// One layer while its candidates are measured.
struct Measurement<'a> {
    passes: &'a [Pass],
    /// The exact weight gradient.
    exact: Vec<f64>,
    gradient_norm: f64,
    layer: &'a Layer,
    /// What a channel-sparse method chooses its channels by.
    weight: Vec<f64>,
}

impl<'a> Measurement<'a> {
    fn new(layer: &'a Layer, passes: &'a [Pass], weight: Vec<f64>) -> Self {
        let exact = measure::exact_weight_gradient(passes);
        Self {
            gradient_norm: norm(exact.iter().copied()),
            exact,
            passes,
            layer,
            weight,
        }
    }

    fn of(&self, candidate: &Candidate) -> Measured {
        let measured = candidate.measured();
        let mut running = Running::default();
        if let Method::ChannelSparse(sparse) = measured {
            let weight = self.weight.iter().copied();
            running.channels = Some(sparse.largest(&self.layer.shape, weight));
        }
        if let Method::ActivationShortcut(_) = measured {
            for _ in 0..WARM_UP_STEPS {
                for pass in self.passes {
                    measured.keep(pass.input.clone(), &pass.geometry, &mut running);
                }
            }
        }
        let (found, kept) = gradient(measured, self.passes, &mut running);
        let (method, bytes) = match *candidate {
            Candidate::Method(method) => (method, kept.bytes),
            Candidate::ShortcutAtEnergy(_) => {
                let method = kept.shortcut();
                let passes = self.passes.iter();
                let bytes = passes.map(|pass| method.bytes(pass.geometry, pass.element_size()));
                (method, bytes.sum())
            }
        };
        let flops = match measured {
            Method::Hosvd(_) if method == measured => kept.hosvd_flops,
            _ => {
                let passes = self.passes.iter().map(|pass| method.flops(pass.geometry));
                passes.fold(Flops::default(), |sum, flops| sum + flops)
            }
        };
        let error = norm(found.iter().zip(&self.exact).map(|(a, b)| a - b));
        let relative_error = match error {
            0.0 => 0.0,
            error => error / self.gradient_norm,
        };
        Measured {
            method,
            bytes,
            flops,
            error,
            relative_error,
        }
    }
}

/// What the passes of a layer kept.
struct Kept {
    bytes: usize,
    /// The largest rank of each mode of a low-rank form; `None` if nothing was compressed.
    ranks: Option<PerMode>,
    /// HOSVD's operations at the ranks that were kept; none for other methods.
    hosvd_flops: Flops,
}

impl Kept {
    /// The activation shortcut with these ranks.
    fn shortcut(&self) -> Method {
        self.ranks
            .map_or(Method::Exact, Method::activation_shortcut)
    }
}

/// The weight gradient by a method, and what was kept for it.
fn gradient(method: Method, passes: &[Pass], running: &mut Running<Dispatch>) -> (Vec<f64>, Kept) {
    let mut sum: Vec<f64> = Vec::new();
    let mut kept = Kept {
        bytes: 0,
        ranks: None,
        hosvd_flops: Flops::default(),
    };
    for pass in passes {
        let saved: Saved<Dispatch> = method.keep(pass.input.clone(), &pass.geometry, running);
        kept.bytes += saved.bytes();
        let ranks = saved.ranks().unwrap_or(pass.geometry.modes());
        if ranks != pass.geometry.modes() {
            kept.ranks = Some(kept.ranks.map_or(ranks, |before| before.max(ranks)));
        }
        if let Method::Hosvd(_) = method {
            kept.hosvd_flops += Hosvd::flops_at(&pass.geometry, ranks);
        }
        let upstream = method.upstream::<Dispatch>(pass.output_gradient.clone(), &pass.geometry);
        let gradient = method.weight_gradient(saved, upstream, &pass.geometry);
        sum = measure::sum(sum, measure::values(gradient));
    }
    (sum, kept)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// On standard error, and only drawn when that is a terminal.
fn progress_bar(candidates: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(candidates as u64), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg:32} {bar:32} {pos}/{len}, {eta} left");
    bar.with_style(style.expect("a valid template"))
}

/// A table: one line a candidate.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.layers.iter().map(|layer| layer.path.len());
        let width = paths.max().unwrap_or(0).max("layer".len());
        let methods = self.layers.iter().flat_map(|layer| &layer.candidates);
        let methods = methods.map(|measured| measured.method.to_string().len());
        let method_width = methods.max().unwrap_or(0).max("method".len());
        write!(
            f,
            "{:width$}  {:method_width$}  {:>12}  {:>14}  {:>11}  {:>8}",
            "layer", "method", "bytes", "FLOPs", "error", "relative"
        )?;
        for layer in &self.layers {
            for measured in &layer.candidates {
                write!(
                    f,
                    "\n{:width$}  {:method_width$}  {:>12}  {:>14}  {:>11.4e}  {:>8.4}",
                    layer.path,
                    measured.method.to_string(),
                    measured.bytes,
                    measured.flops.total(),
                    measured.error,
                    measured.relative_error
                )?;
            }
        }
        Ok(())
    }
}
