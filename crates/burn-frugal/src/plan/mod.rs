//! Which layer uses which method: plans, and how they reach the layers of any Burn model.

mod builder;
mod calibrate;
mod choice;
mod document;
mod measure;
mod memory;
mod planner;
mod profile;
pub mod schedule;
mod selection;
mod slot;
mod state;
mod step;
mod step_planner;
mod walk;

use burn::module::{Module, ParamGroup};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

pub use builder::PlanBuilder;
pub use calibrate::calibrate;
pub use memory::{Excess, LayerMemory, Network, StepMemory, Training};
pub use planner::{ErrorMeasure, PlannedLayer, Planner, Solution};
pub use profile::{Candidate, Candidates, LayerProfile, Measured, Profile};
pub use schedule::{Schedule, ScheduleError};
pub use slot::MethodSlot;
pub use state::TrainingState;
pub use step::{UntrainedChannels, step};
pub use step_planner::{OptimizerMemory, StepLayer, StepPlanner, StepSolution};
pub use walk::Layer;

use crate::error::Error;
use crate::methods::Method;

/// A method for each of some layers of a model, by the layer's path (`blocks.3.depthwise`).
///
/// It does not hold what is frozen, and a model's record does not hold its methods: after loading a
/// record into a new model, apply the plan (and [`freeze_rest`](Self::freeze_rest)) again.
///
/// # Example
/// ```
/// use burn::tensor::Device;
/// use burn_frugal::{Method, nn::{Conv2d, Conv2dConfig}, plan::Plan};
///
/// let device = Device::default().autodiff();
/// let model: Vec<Conv2d> = (0..4)
///     .map(|_| Conv2dConfig::new([8, 8], [3, 3]).init(&device))
///     .collect();
///
/// let plan = Plan::builder()
///     .last_convs(2, Method::gradient_filter(4))
///     .layer("3", Method::Exact)
///     .build(&model)?;
/// let model = plan.apply(model)?;
/// let plan = Plan::from_json(&plan.to_json())?;
/// assert_eq!(plan.methods()["2"], Method::gradient_filter(4));
/// # Ok::<(), burn_frugal::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    methods: BTreeMap<String, Method>,
}

impl Plan {
    /// Starts a plan.
    pub fn builder() -> PlanBuilder {
        PlanBuilder::default()
    }

    /// The layers of a model that a plan can name, in the order in which the model's fields are
    /// declared.
    pub fn layers<M: Module>(model: &M) -> Vec<Layer> {
        walk::layers(model)
    }

    /// The method of each layer in the plan.
    pub fn methods(&self) -> &BTreeMap<String, Method> {
        &self.methods
    }

    /// Sets the method of every layer of `model`: the plan's where it names the layer, exact
    /// elsewhere. Parameters are untouched. An error takes the model with it: apply to a clone
    /// (parameters are shared, not copied) to keep it.
    ///
    /// # Errors
    /// When the plan names a layer that the model does not have, or a method that its layer cannot
    /// use.
    pub fn apply<M: Module>(&self, model: M) -> Result<M, Error> {
        self.check(&walk::layers(&model))?;
        let methods = self.methods.clone();
        Ok(walk::change(model, move |path, slot| {
            slot.assign(methods.get(path).copied().unwrap_or_default());
        }))
    }

    /// Trains the parameters of the plan's layers and those under the module paths `also` (the
    /// head, say), frozen before or not, and freezes every other parameter of `model`. The frozen
    /// front of the network then keeps nothing at all.
    ///
    /// # Errors
    /// When a layer of the plan, or a path in `also`, holds no parameter of the model.
    pub fn freeze_rest<M: Module>(&self, model: M, also: &[&str]) -> Result<M, Error> {
        let parameters = walk::parameters(&model);
        let mut trained = Vec::new();
        for path in self
            .methods
            .keys()
            .map(String::as_str)
            .chain(also.iter().copied())
        {
            let before = trained.len();
            let under = parameters
                .iter()
                .filter(|parameter| parameter.is_under(path));
            trained.extend(under.map(|parameter| parameter.id));
            if trained.len() == before {
                return Err(Error::NoParameter {
                    path: path.to_string(),
                });
            }
        }
        let trained = ParamGroup::from_ids(trained);
        let rest = ParamGroup::all().exclude(trained.clone());
        Ok(model.freeze_group(rest).unfreeze_group(trained))
    }

    /// The plan as JSON, with the version of its form.
    pub fn to_json(&self) -> String {
        document::to_json(&self.methods)
    }

    /// Reads what [`to_json`](Self::to_json) writes. Whether a model has the layers is checked when
    /// the plan is applied.
    ///
    /// # Errors
    /// When the text is not a plan, or is one of a later version.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let methods = document::parse(text, "a plan", "the text")?;
        Ok(Self { methods })
    }

    /// Writes the plan to a file, which is replaced only once the new one is complete.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        document::save(&self.to_json(), path.as_ref())
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// When the file cannot be read, is not a plan, or is one of a later version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let methods = document::load(path.as_ref(), "a plan")?;
        Ok(Self { methods })
    }

    /// That a model with these layers can use this plan.
    fn check(&self, layers: &[Layer]) -> Result<(), Error> {
        for (path, method) in &self.methods {
            let layer = walk::find(layers, path)?;
            method.check(&layer.shape).map_err(|source| Error::Method {
                layer: path.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// One line a layer: its path and its method.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.methods.keys().map(String::len).max().unwrap_or(0);
        if self.methods.is_empty() {
            return f.write_str("every layer exact");
        }
        for (index, (path, method)) in self.methods.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{path:width$}  {method}")?;
        }
        Ok(())
    }
}
