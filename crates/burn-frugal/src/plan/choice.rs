//! One option a layer within a budget: the multiple-choice knapsack of ASI's rank selection
//! (arXiv 2505.05086), solved exactly by merging Pareto fronts.
//!
//! The choices for the first layers that no other one matches in both cost and loss are their front.
//! It is extended layer by layer, and would grow to tens of thousands; bounds on the loss of the
//! layers to come drop what cannot become the best choice.
//!
//! Floating-point addition is monotone, so dropping what something else matches is exact as long as
//! sums are made in the order of the layers. The bounds add in another order, and are relaxed by more
//! than rounding can amount to.

/// One option of one layer; both numbers are finite. An option that must not be chosen is left out:
/// numbers much larger than the others would make the bounds coarse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alternative {
    /// What the budget is for.
    pub cost: f64,
    /// What to keep small.
    pub loss: f64,
}

/// An option a layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// Index of each layer's option, in the order of the layers.
    pub options: Vec<usize>,
    /// Sum of the costs, in the order of the layers.
    pub cost: f64,
    /// Sum of the losses, in the order of the layers.
    pub loss: f64,
}

/// No choice is within the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Infeasible {
    /// The smallest limit that allows a choice.
    pub smallest: f64,
}

/// The choice with the smallest loss whose cost is at most `budget`; of several, one with the
/// smallest cost. Without layers that is the empty choice, of cost 0.
///
/// Time and memory grow with the number of choices almost as good as the best one, in the worst case
/// exponentially with the number of layers: where losses fall in proportion to costs, or span many
/// orders of magnitude. Layers with large costs first are faster.
///
/// # Errors
/// When no choice is within the budget, with the smallest possible cost.
///
/// # Panics
/// When a layer has no option. With debug assertions also when a cost or loss is not finite or the
/// budget is not a number; it may be infinite.
pub(crate) fn least_loss(layers: &[Vec<Alternative>], budget: f64) -> Result<Choice, Infeasible> {
    debug_assert!(!budget.is_nan(), "the limit is not a number");
    let layers: Vec<Vec<Partial>> = layers.iter().map(|layer| efficient(layer)).collect();
    let smallest = sums(&layers, &vec![0; layers.len()]).cost;
    if smallest > budget {
        return Err(Infeasible { smallest });
    }
    Ok(Search::new(layers, budget).best())
}

/// The choice with the smallest cost whose loss is at most `bound`; of several, one with the smallest
/// loss. It is [`least_loss`] with cost and loss swapped.
///
/// # Errors
/// When no choice is within the bound, with the smallest possible loss.
///
/// # Panics
/// As [`least_loss`].
pub(crate) fn least_cost(layers: &[Vec<Alternative>], bound: f64) -> Result<Choice, Infeasible> {
    let swapped = |layer: &Vec<Alternative>| -> Vec<Alternative> {
        let swap = |&Alternative { cost, loss }| Alternative {
            cost: loss,
            loss: cost,
        };
        layer.iter().map(swap).collect()
    };
    let layers: Vec<Vec<Alternative>> = layers.iter().map(swapped).collect();
    least_loss(&layers, bound).map(|choice| Choice {
        cost: choice.loss,
        loss: choice.cost,
        options: choice.options,
    })
}

impl Alternative {
    const ZERO: Self = Self {
        cost: 0.0,
        loss: 0.0,
    };

    fn plus(self, other: Self) -> Self {
        Self {
            cost: self.cost + other.cost,
            loss: self.loss + other.loss,
        }
    }
}

/// A choice for the first layers, or for one layer alone.
struct Partial {
    value: Alternative,
    /// The last layer's option.
    option: usize,
    /// Index, in the front of one layer fewer, of the choice for the layers before.
    parent: usize,
}

/// Sorts by cost and drops what an earlier choice matches: costs rise and losses fall.
fn keep_front(partials: &mut Vec<Partial>) {
    // A stable sort: it is fast on the sorted runs that an extended front consists of.
    partials.sort_by(|Partial { value: a, .. }, Partial { value: b, .. }| {
        a.cost.total_cmp(&b.cost).then(a.loss.total_cmp(&b.loss))
    });
    let mut least = f64::INFINITY;
    partials.retain(|partial| {
        let better = partial.value.loss < least;
        least = least.min(partial.value.loss);
        better
    });
}

/// The options of a layer that can be part of a best choice.
fn efficient(layer: &[Alternative]) -> Vec<Partial> {
    assert!(!layer.is_empty(), "a layer has no option to choose from");
    let finite = |value: &Alternative| value.cost.is_finite() && value.loss.is_finite();
    debug_assert!(layer.iter().all(finite), "a cost or loss is not finite");
    let partial = |(option, &value)| Partial {
        value,
        option,
        parent: 0,
    };
    let mut partials = layer.iter().enumerate().map(partial).collect();
    keep_front(&mut partials);
    partials
}

/// Cost and loss of the choice of these elements of the layers.
fn sums(layers: &[Vec<Partial>], indices: &[usize]) -> Alternative {
    (layers.iter().zip(indices)).fold(Alternative::ZERO, |sum, (layer, &index)| {
        sum.plus(layer[index].value)
    })
}

/// More than rounding changes the cost and the loss of a choice, in whatever order they are summed.
fn slack(layers: &[Vec<Partial>]) -> Alternative {
    let relative = 8.0 * layers.iter().flatten().count() as f64 * f64::EPSILON;
    let largest = |part: fn(&Partial) -> f64| -> f64 {
        let of_layer = |layer: &Vec<Partial>| layer.iter().map(part).fold(0.0, f64::max);
        layers.iter().map(of_layer).sum()
    };
    Alternative {
        cost: relative * largest(|partial| partial.value.cost.abs()),
        loss: relative * largest(|partial| partial.value.loss.abs()),
    }
}

/// From one efficient option of a layer to a costlier one.
struct Step {
    layer: usize,
    /// Index of the option that it leads to.
    index: usize,
    change: Alternative,
}

impl Step {
    /// Loss for cost: negative.
    fn slope(&self) -> f64 {
        self.change.loss / self.change.cost
    }
}

/// The steps along the lower convex hull of a layer's efficient options: their slopes rise.
fn hull(layer: usize, options: &[Partial]) -> Vec<Step> {
    let step = |from: usize, index: usize| Step {
        layer,
        index,
        change: Alternative {
            cost: options[index].value.cost - options[from].value.cost,
            loss: options[index].value.loss - options[from].value.loss,
        },
    };
    let mut steps: Vec<Step> = Vec::new();
    for index in 1..options.len() {
        let mut next = step(steps.last().map_or(0, |last| last.index), index);
        while steps.pop_if(|last| last.slope() >= next.slope()).is_some() {
            next = step(steps.last().map_or(0, |last| last.index), index);
        }
        steps.push(next);
    }
    steps
}

/// The least loss of some layers as a function of the cost, if the options of a layer could be mixed:
/// the linear relaxation. It is convex and falling, and these are its corners. The steps are those of
/// all hulls by rising slope; those of the layers before `first` are left out.
fn relaxation(layers: &[Vec<Partial>], steps: &[Step], first: usize) -> Vec<Alternative> {
    let mut corner = sums(&layers[first..], &vec![0; layers.len() - first]);
    let mut corners = vec![corner];
    for step in steps.iter().filter(|step| step.layer >= first) {
        corner = corner.plus(step.change);
        corners.push(corner);
    }
    corners
}

/// The relaxation's loss at this cost, infinite below its first corner. Drops the corners that smaller
/// costs do not need.
fn relaxed_loss(corners: &mut &[Alternative], cost: f64) -> f64 {
    while let [needed @ .., before, _] = corners
        && before.cost > cost
    {
        *corners = &corners[..=needed.len()];
    }
    match corners {
        [.., left, right] if right.cost > cost => {
            let share = (cost - left.cost) / (right.cost - left.cost);
            left.loss + share * (right.loss - left.loss)
        }
        [.., last] if last.cost <= cost => last.loss,
        _ => f64::INFINITY,
    }
}

/// A problem that some choice solves.
struct Search {
    /// The efficient options.
    layers: Vec<Vec<Partial>>,
    budget: f64,
    /// The steps of all hulls by rising slope.
    steps: Vec<Step>,
    /// Of the layers from each one on, and of none.
    relaxations: Vec<Vec<Alternative>>,
    slack: Alternative,
}

impl Search {
    /// Between the relaxation's loss and that of the greedy choice: where a limit on the loss is
    /// tried. Lower ones leave smaller fronts, and the best loss is often near the relaxation's.
    const SHARES: [f64; 4] = [1.0 / 256.0, 1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0];

    fn new(layers: Vec<Vec<Partial>>, budget: f64) -> Self {
        let hulls = layers.iter().enumerate();
        let mut steps: Vec<Step> = hulls
            .flat_map(|(layer, options)| hull(layer, options))
            .collect();
        steps.sort_by(|a, b| a.slope().total_cmp(&b.slope()));
        let relaxation = |first| relaxation(&layers, &steps, first);
        Self {
            relaxations: (0..=layers.len()).map(relaxation).collect(),
            slack: slack(&layers),
            layers,
            budget,
            steps,
        }
    }

    fn best(&self) -> Choice {
        let relaxed = relaxed_loss(&mut self.relaxations[0].as_slice(), self.allowance(0.0));
        let greedy = self.greedy_loss();
        (Self::SHARES.iter())
            .map(|share| relaxed + share * (greedy - relaxed))
            .chain([greedy])
            .find_map(|limit| self.best_within(limit))
            .expect("the greedy choice is within the budget and its own loss")
    }

    /// What may be spent after this cost, at least.
    fn allowance(&self, cost: f64) -> f64 {
        self.budget + self.slack.cost - cost
    }

    /// Loss of the choice within the budget that takes the steps by rising slope where they fit.
    fn greedy_loss(&self) -> f64 {
        let mut indices = vec![0; self.layers.len()];
        for step in &self.steps {
            let before = std::mem::replace(&mut indices[step.layer], step.index);
            if sums(&self.layers, &indices).cost > self.budget {
                indices[step.layer] = before;
            }
        }
        sums(&self.layers, &indices).loss
    }

    /// The best choice, if its loss is at most `limit`.
    fn best_within(&self, limit: f64) -> Option<Choice> {
        let mut fronts = vec![vec![Partial {
            value: Alternative::ZERO,
            option: 0,
            parent: 0,
        }]];
        for layer in 0..self.layers.len() {
            fronts.push(self.extended(&fronts[layer], layer, limit + self.slack.loss));
        }
        let affordable = |partial: &Partial| partial.value.cost <= self.budget;
        let best = fronts.last()?.iter().rposition(affordable)?;
        let choice = traced(&fronts, best);
        (choice.loss <= limit).then_some(choice)
    }

    /// The front of the extensions to this layer that may end within the budget and the limit.
    fn extended(&self, front: &[Partial], layer: usize, limit: f64) -> Vec<Partial> {
        let mut extended = Vec::new();
        for &Partial { value, option, .. } in &self.layers[layer] {
            let mut rest = self.relaxations[layer + 1].as_slice();
            for (parent, partial) in front.iter().enumerate() {
                let value = partial.value.plus(value);
                if value.loss + relaxed_loss(&mut rest, self.allowance(value.cost)) <= limit {
                    extended.push(Partial {
                        value,
                        option,
                        parent,
                    });
                }
            }
        }
        keep_front(&mut extended);
        extended
    }
}

/// The choice at this index of the last front.
fn traced(fronts: &[Vec<Partial>], mut index: usize) -> Choice {
    let Alternative { cost, loss } = fronts[fronts.len() - 1][index].value;
    let mut options = Vec::with_capacity(fronts.len() - 1);
    for front in fronts[1..].iter().rev() {
        options.push(front[index].option);
        index = front[index].parent;
    }
    options.reverse();
    Choice {
        options,
        cost,
        loss,
    }
}

#[cfg(test)]
mod tests;
