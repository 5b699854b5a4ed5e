use burn::module::Module;
use std::collections::BTreeMap;

use super::selection::Selection;
use super::{Plan, walk};
use crate::error::Error;
use crate::methods::Method;

/// Rules that name layers and give them a method; a later rule overrides an earlier one.
#[derive(Clone, Debug, Default)]
pub struct PlanBuilder {
    rules: Vec<(Selection, Method)>,
}

impl PlanBuilder {
    /// The layer at this path, `blocks.3.depthwise` for example.
    pub fn layer(self, path: impl Into<String>, method: Method) -> Self {
        self.rule(Selection::Layer(path.into()), method)
    }

    /// Every layer whose path contains a match of this regular expression. As with Burn's
    /// `ParamGroup`, anchor it (`^blocks\.1[0-3]\.`) where that matters.
    pub fn pattern(self, pattern: impl Into<String>, method: Method) -> Self {
        self.rule(Selection::Pattern(pattern.into()), method)
    }

    /// The last `count` convolutions, in the order in which the model's fields are declared. Only
    /// layers of [`burn_frugal::nn`](crate::nn) count.
    pub fn last_convs(self, count: usize, method: Method) -> Self {
        self.rule(Selection::LastConvs(count), method)
    }

    fn rule(mut self, selection: Selection, method: Method) -> Self {
        self.rules.push((selection, method));
        self
    }

    /// Resolves the rules against the layers of `model`, which is not changed.
    ///
    /// # Errors
    /// When a path or a pattern names no layer of the model, a pattern is not a regular expression,
    /// the model has fewer convolutions than asked for, or a layer cannot use its method.
    pub fn build<M: Module>(self, model: &M) -> Result<Plan, Error> {
        let layers = walk::layers(model);
        let mut methods = BTreeMap::new();
        for (selection, method) in &self.rules {
            for layer in selection.select(&layers)? {
                methods.insert(layer.path.clone(), *method);
            }
        }
        let plan = Plan { methods };
        plan.check(&layers)?;
        Ok(plan)
    }
}
