//! From a profile, a network and a budget for the whole step to a plan.

use std::collections::BTreeMap;
use std::fmt;

use super::choice::{self, Alternative};
use super::memory::{Network, StepMemory, Training};
use super::{ErrorMeasure, LayerProfile, Plan, Profile};
use crate::error::Error;
use crate::methods::Method;

/// Bisections of the limit on what the layers take together.
const BISECTIONS: usize = 7;

/// Predictions of a step's bytes beyond weights and state are this much too small at most: a
/// sixteenth, and some objects.
const RELATIVE_MARGIN: usize = 16;
const MARGIN: usize = 64 << 10;

/// What the optimizer remembers of every trained parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OptimizerMemory {
    /// Nothing: stochastic gradient descent without momentum.
    #[default]
    Nothing,
    /// One number: with momentum.
    Momentum,
    /// Two numbers: Adam and its relatives.
    Adam,
}

impl OptimizerMemory {
    fn numbers(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Momentum => 1,
            Self::Adam => 2,
        }
    }
}

/// Chooses which layers to train and how, so that the whole training step stays within a number of
/// bytes: weights, gradients, optimizer state, images, what is kept and what is there for a moment,
/// and the kernels' working memory.
///
/// A layer that is not trained loses its whole gradient; that is its error. Layers before the first
/// trained one keep nothing at all, so how many layers to train is part of the choice. For every
/// possible first layer the best mix of methods within a limit on what the layers keep is found
/// ([`Planner`](super::Planner)'s exact choice), and the largest limit whose step fits the budget is
/// searched for by predicting it ([`Network::predict`]).
///
/// # Example
/// ```no_run
/// use burn::module::Module;
/// use burn::tensor::Tensor;
/// use burn_frugal::plan::{Candidates, Network, Profile, StepPlanner};
/// # fn plan<M: Module>(model: M, candidates: Candidates, loss: impl Fn(&M) -> Tensor<1>) -> Result<(), burn_frugal::Error> {
/// let profile = Profile::measure(&model, &candidates, &loss)?;
/// let network = Network::of(&model, &loss)?;
/// let solution = StepPlanner::new(&profile, &network, 32).also("classifier").solve(4 << 20)?;
/// println!("{solution}");
/// let plan = &solution.training.plan;
/// // what the plan does not name must not be trained
/// let model = plan.freeze_rest(plan.apply(model)?, &["classifier"])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StepPlanner<'a> {
    profile: &'a Profile,
    network: &'a Network,
    batch: usize,
    also: Vec<String>,
    optimizer: OptimizerMemory,
    measure: ErrorMeasure,
    most_flops: Option<u64>,
    most_passes: usize,
}

/// The best plan that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSolution {
    /// What to train, and the batch of one forward and backward pass.
    pub training: Training,
    /// How many such batches make one optimizer step: more than 1 if the batch that was asked for
    /// does not fit whatever the methods. Sum their gradients, with Burn's `GradientsAccumulator` say.
    pub micro_batches: usize,
    /// The predicted memory of one pass.
    pub memory: StepMemory,
    /// Predicted bytes of everything at the worst moment, with a margin for the prediction.
    pub bytes: usize,
    /// The summed error.
    pub error: f64,
    /// What each layer of the profile got, in the network's order.
    pub layers: Vec<StepLayer>,
}

/// What one layer got.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLayer {
    /// The layer's path in the model.
    pub path: String,
    /// Its method; `None` if it is not trained.
    pub method: Option<Method>,
    /// The error that was accepted: of the method, or the whole gradient.
    pub error: f64,
    /// The norm of the layer's whole gradient in the same measure.
    pub gradient: f64,
}

/// A plan that was tried.
struct Tried {
    training: Training,
    memory: StepMemory,
    bytes: usize,
    flops: u64,
    error: f64,
    /// Index of each layer's candidate; `None` if it is not trained.
    choice: Vec<Option<usize>>,
}

impl<'a> StepPlanner<'a> {
    /// A planner for optimizer steps of `batch` samples.
    pub fn new(profile: &'a Profile, network: &'a Network, batch: usize) -> Self {
        Self {
            profile,
            network,
            batch,
            also: Vec::new(),
            optimizer: OptimizerMemory::default(),
            measure: ErrorMeasure::default(),
            most_flops: None,
            most_passes: 1,
        }
    }

    /// Also trains this layer, with the exact gradient, whatever it costs: the head.
    pub fn also(mut self, path: impl Into<String>) -> Self {
        self.also.push(path.into());
        self
    }

    /// With an optimizer that remembers more.
    pub fn optimizer(self, optimizer: OptimizerMemory) -> Self {
        Self { optimizer, ..self }
    }

    /// Sums another error.
    pub fn measure(self, measure: ErrorMeasure) -> Self {
        Self { measure, ..self }
    }

    /// A second limit: operations of one forward and backward pass.
    pub fn most_flops(self, flops: u64) -> Self {
        Self {
            most_flops: Some(flops),
            ..self
        }
    }

    /// Allows a step to be made of up to `passes` forward and backward passes over parts of the batch
    /// whose gradients are summed: smaller parts leave more bytes for better methods, and take more
    /// time. By default a step is one pass, unless no plan at all fits.
    pub fn most_passes(self, passes: usize) -> Self {
        Self {
            most_passes: passes,
            ..self
        }
    }

    /// The best plan found whose step takes at most `budget` bytes; of equal ones that with the fewest
    /// passes. If there is none within the allowed passes, smaller parts of the batch are tried.
    ///
    /// # Errors
    /// [`Error::Budget`] with the bytes of the smallest step that was found; [`Error::FlopsLimit`] when
    /// only the operations are too many; [`Error::UnknownLayer`] when the network does not have a layer
    /// of the profile; [`Error::NoCandidate`], [`Error::NotFinite`] as
    /// [`Planner::least_error`](super::Planner::least_error).
    pub fn solve(&self, budget: usize) -> Result<StepSolution, Error> {
        let layers = self.ordered()?;
        let mut batch = self.batch.max(1);
        let mut smallest = usize::MAX;
        let mut fewest_flops = u64::MAX;
        let mut best: Option<StepSolution> = None;
        loop {
            let passes = self.batch.max(1).div_ceil(batch);
            if passes > self.most_passes
                && let Some(best) = best
            {
                return Ok(best);
            }
            let search = Search {
                planner: self,
                layers: &layers,
                batch,
                budget,
            };
            match search.best()? {
                Found::Best(found) => {
                    if best.as_ref().is_none_or(|best| found.error < best.error) {
                        best = Some(self.solution(&layers, *found, batch));
                    }
                }
                Found::Nothing { bytes, flops } => {
                    smallest = smallest.min(bytes);
                    fewest_flops = fewest_flops.min(flops);
                }
            }
            if batch == 1 {
                if let Some(best) = best {
                    return Ok(best);
                }
                return Err(match self.most_flops {
                    Some(most) if smallest <= budget => Error::FlopsLimit {
                        limit: most,
                        fewest: fewest_flops,
                    },
                    _ => Error::Budget { budget, smallest },
                });
            }
            batch = batch.div_ceil(2);
        }
    }

    /// The profile's layers in the order in which the network runs them.
    fn ordered(&self) -> Result<Vec<&'a LayerProfile>, Error> {
        let order = self.network.paths();
        let place = |layer: &LayerProfile| order.iter().position(|path| *path == layer.path);
        let mut layers = Vec::new();
        for layer in self.profile.layers() {
            let Some(place) = place(layer) else {
                return Err(Error::UnknownLayer {
                    path: layer.path.clone(),
                    layers: order,
                });
            };
            self.measure.check(layer)?;
            layers.push((place, layer));
        }
        layers.sort_by_key(|(place, _)| *place);
        Ok(layers.into_iter().map(|(_, layer)| layer).collect())
    }

    /// The error of not training a layer.
    fn whole(&self, layer: &LayerProfile) -> f64 {
        match self.measure {
            ErrorMeasure::Absolute => layer.gradient_norm,
            ErrorMeasure::Relative => 1.0,
        }
    }

    fn solution(&self, layers: &[&LayerProfile], best: Tried, batch: usize) -> StepSolution {
        let chosen = layers.iter().zip(&best.choice);
        let layers = chosen.map(|(layer, choice)| {
            let measured = choice.map(|candidate| &layer.candidates[candidate]);
            StepLayer {
                path: layer.path.clone(),
                method: measured.map(|measured| measured.method),
                error: measured.map_or(self.whole(layer), |measured| self.measure.of(measured)),
                gradient: self.whole(layer),
            }
        });
        StepSolution {
            layers: layers.collect(),
            training: best.training,
            micro_batches: self.batch.max(1).div_ceil(batch),
            memory: best.memory,
            bytes: best.bytes,
            error: best.error,
        }
    }
}

/// What limits the bytes that layers take together; which of them decides depends on the network.
#[derive(Clone, Copy)]
enum Cost {
    /// What they keep.
    Kept,
    /// Gradients and optimizer state of their parameters.
    Parameters,
    /// Both.
    Both,
    /// Their operations.
    Flops,
}

enum Found {
    Best(Box<Tried>),
    Nothing { bytes: usize, flops: u64 },
}

/// The search for one batch.
struct Search<'a> {
    planner: &'a StepPlanner<'a>,
    layers: &'a [&'a LayerProfile],
    batch: usize,
    budget: usize,
}

impl Search<'_> {
    fn best(&self) -> Result<Found, Error> {
        let mut best: Option<Tried> = None;
        let (mut bytes, mut flops) = (usize::MAX, u64::MAX);
        // the error of what is certainly not trained
        let mut lost: f64 = self
            .layers
            .iter()
            .map(|layer| self.planner.whole(layer))
            .sum();
        for first in (0..=self.layers.len()).rev() {
            if first < self.layers.len() {
                lost -= self.planner.whole(self.layers[first]);
            }
            if best.as_ref().is_some_and(|best| best.error <= lost) {
                continue;
            }
            let costs = [Cost::Kept, Cost::Both, Cost::Parameters, Cost::Flops];
            let costs = match self.planner.most_flops {
                Some(_) => &costs[..],
                None => &costs[..3],
            };
            for &cost in costs {
                for tried in self.tries(first, cost)? {
                    bytes = bytes.min(tried.bytes);
                    if tried.bytes <= self.budget {
                        flops = flops.min(tried.flops);
                    }
                    let better = best.as_ref().is_none_or(|best| tried.error < best.error);
                    if better && self.fits(&tried) {
                        best = Some(tried);
                    }
                }
            }
        }
        Ok(match best {
            Some(best) => Found::Best(Box::new(best)),
            None => Found::Nothing { bytes, flops },
        })
    }

    fn fits(&self, tried: &Tried) -> bool {
        let most_flops = self.planner.most_flops.unwrap_or(u64::MAX);
        tried.bytes <= self.budget && tried.flops <= most_flops
    }

    /// Plans that begin at the layer `first`, along a bisection of the limit on their cost: the
    /// cheapest, the best, and those in between.
    fn tries(&self, first: usize, cost: Cost) -> Result<Vec<Tried>, Error> {
        if first == self.layers.len() {
            return Ok(vec![self.tried(vec![None; first])?]);
        }
        let alternatives: Vec<Vec<Alternative>> = self.layers[first..]
            .iter()
            .enumerate()
            .map(|(place, layer)| self.alternatives(layer, cost, place == 0))
            .collect();
        let total = |pick: fn(f64, f64) -> f64, start: f64| -> f64 {
            let of_layer = |layer: &Vec<Alternative>| {
                let costs = layer.iter().map(|alternative| alternative.cost);
                costs.fold(start, pick)
            };
            alternatives.iter().map(of_layer).sum()
        };
        let (mut low, mut high) = (total(f64::min, f64::INFINITY), total(f64::max, 0.0));
        let at = |limit: f64| -> Result<Option<Tried>, Error> {
            let Ok(choice) = choice::least_loss(&alternatives, limit) else {
                return Ok(None);
            };
            let mut chosen = vec![None; first];
            for (place, &option) in choice.options.iter().enumerate() {
                let layer = self.layers[first + place];
                chosen.push((option < layer.candidates.len()).then_some(option));
            }
            self.tried(chosen).map(Some)
        };
        let mut tries = Vec::new();
        let best = at(high)?;
        let fits = best.as_ref().is_some_and(|best| self.fits(best));
        tries.extend(best);
        if fits {
            return Ok(tries);
        }
        let least = at(low)?;
        let fits = least.as_ref().is_some_and(|least| self.fits(least));
        tries.extend(least);
        if !fits {
            return Ok(tries);
        }
        for _ in 0..BISECTIONS {
            let middle = (low + high) / 2.0;
            let Some(tried) = at(middle)? else { break };
            if self.fits(&tried) {
                low = middle;
            } else {
                high = middle;
            }
            tries.push(tried);
        }
        Ok(tries)
    }

    /// A layer's candidates, then not training it. The first layer is trained: otherwise another one
    /// is the first.
    fn alternatives(&self, layer: &LayerProfile, cost: Cost, first: bool) -> Vec<Alternative> {
        let network = self.planner.network;
        let numbers = 1 + self.planner.optimizer.numbers();
        let parameters = (network.parameter_bytes(&layer.path) * numbers) as f64;
        let mut alternatives: Vec<Alternative> = layer
            .candidates
            .iter()
            .map(|measured| {
                let kept = network.kept_bytes(&layer.path, measured.method, self.batch) as f64;
                Alternative {
                    cost: match cost {
                        Cost::Kept => kept,
                        Cost::Parameters => parameters,
                        Cost::Both => kept + parameters,
                        Cost::Flops => measured.flops.total() as f64,
                    },
                    loss: self.planner.measure.of(measured),
                }
            })
            .collect();
        if !first {
            alternatives.push(Alternative {
                cost: 0.0,
                loss: self.planner.whole(layer),
            });
        }
        alternatives
    }

    fn tried(&self, choice: Vec<Option<usize>>) -> Result<Tried, Error> {
        let planner = self.planner;
        let mut methods = BTreeMap::new();
        let mut error = 0.0;
        for (layer, choice) in self.layers.iter().zip(&choice) {
            match choice {
                Some(candidate) => {
                    let measured = &layer.candidates[*candidate];
                    methods.insert(layer.path.clone(), measured.method);
                    error += planner.measure.of(measured);
                }
                None => error += planner.whole(layer),
            }
        }
        let training = Training {
            plan: Plan { methods },
            also: planner.also.clone(),
            batch: self.batch,
        };
        let memory = planner.network.predict(&training)?;
        let accumulates = self.batch < planner.batch;
        Ok(Tried {
            bytes: planner.network.step_bytes(
                &memory,
                &training,
                planner.optimizer.numbers() + usize::from(accumulates),
            ),
            flops: memory.flops(),
            training,
            memory,
            error,
            choice,
        })
    }
}

impl Network {
    /// Bytes of everything at the worst moment of a step, with a margin for the prediction.
    fn step_bytes(&self, memory: &StepMemory, training: &Training, numbers: usize) -> usize {
        // the optimizer has all gradients, and for one parameter after the other its change
        let update = memory.gradients + 2 * memory.largest_gradient;
        let moment = memory.peak.max(update);
        self.parameters
            + memory.gradients * numbers
            + self.input_bytes(training.batch)
            + self.working_memory(training)
            + moment
            + moment / RELATIVE_MARGIN
            + MARGIN
    }
}

/// A table: what every layer got and what that loses, then the sums.
impl fmt::Display for StepSolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.layers.iter().map(|layer| layer.path.len()).max();
        let width = width.unwrap_or(0).max("layer".len());
        let name = |layer: &StepLayer| match layer.method {
            Some(method) => method.to_string(),
            None => "not trained".to_string(),
        };
        let names = self.layers.iter().map(|layer| name(layer).len()).max();
        let names = names.unwrap_or(0).max("method".len());
        writeln!(
            f,
            "{:width$}  {:names$}  {:>14}",
            "layer", "method", "gradient lost"
        )?;
        for layer in &self.layers {
            let lost = match layer.gradient {
                0.0 => 0.0,
                gradient => 100.0 * layer.error / gradient,
            };
            writeln!(
                f,
                "{:width$}  {:names$}  {lost:>12.1} %",
                layer.path,
                name(layer)
            )?;
        }
        let trained = self.layers.iter().filter(|layer| layer.method.is_some());
        write!(
            f,
            "{} of {} layers trained; {} bytes a step at most, {} kept between forward and backward",
            trained.count(),
            self.layers.len(),
            self.bytes,
            self.memory.kept,
        )?;
        if self.micro_batches > 1 {
            write!(
                f,
                "; {} passes of {} samples a step",
                self.micro_batches, self.training.batch
            )?;
        }
        Ok(())
    }
}
