use serde::{Deserialize, Serialize};
use std::ops::{Add, AddAssign};

/// Floating-point operations that training a layer takes beside its own forward pass. A product and
/// its addition are 2.
///
/// They are those that this library's code runs, pooling, decompositions and reconstructions
/// included; taps on padding count as if they were computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flops {
    /// What the method adds to the forward pass.
    pub forward: u64,
    /// The weight's gradient.
    pub weight_gradient: u64,
    /// The input's gradient; nothing needs it in the first layer that is trained.
    pub input_gradient: u64,
}

impl Flops {
    /// Those of them that a step runs in which the weight is trained and the input has a gradient, or not.
    pub(crate) fn of_step(self, trained: bool, input_tracked: bool) -> Self {
        let only = |needed: bool, operations| if needed { operations } else { 0 };
        Self {
            forward: only(trained, self.forward),
            weight_gradient: only(trained, self.weight_gradient),
            input_gradient: only(input_tracked, self.input_gradient),
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.forward + self.weight_gradient + self.input_gradient
    }
}

impl Add for Flops {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for Flops {
    fn add_assign(&mut self, other: Self) {
        self.forward += other.forward;
        self.weight_gradient += other.weight_gradient;
        self.input_gradient += other.input_gradient;
    }
}
