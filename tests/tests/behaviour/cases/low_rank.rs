//! The cases of the low-rank methods: gradients, and the reconstruction that they stand for.

use burn::module::Param;
use burn::tensor::Tensor;
use burn_frugal::nn::{Linear, LinearConfig};
use burn_frugal::plan::{Candidate, Candidates, MethodSlot, Profile, TrainingState};
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::{Pass, values};

use super::files::{Array, Case, Geometry};
use super::{Setting, difference, differences};

impl Case {
    pub(super) fn check_shortcut(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        ranks: PerMode,
    ) -> Result<Vec<String>, String> {
        let conv = self.layer(setting, geometry, Method::activation_shortcut(ranks))?;
        let state = self.previous_factors(setting, ranks)?;
        let conv = state.restore(conv).map_err(|error| error.to_string())?;
        let found = self.run_layer(setting, &conv)?;
        let expected = self.weight_only(setting, geometry)?;
        let tolerance = setting.low_rank_tolerance();
        let mut problems = differences(&found, &expected, tolerance);
        problems.extend(self.check_reconstruction(&conv.method, tolerance)?);
        Ok(problems)
    }

    pub(super) fn check_shortcut_linear(
        &self,
        setting: &Setting,
        ranks: PerMode,
    ) -> Result<Vec<String>, String> {
        let state = self.previous_factors(setting, ranks)?;
        let linear = state.restore(self.linear(setting, ranks)?);
        let linear = linear.map_err(|error| error.to_string())?;
        let found = match ranks.len() {
            2 => self.run_linear::<2>(setting, &linear),
            3 => self.run_linear::<3>(setting, &linear),
            _ => self.run_linear::<4>(setting, &linear),
        }?;
        let tolerance = setting.low_rank_tolerance();
        // the library has the weight, and so its gradient, the other way round
        let outputs = self.array("w")?.shape[0];
        let weight = transposed(&self.array("expect_gw")?.values, outputs);
        let gradient = found.weight.as_deref().ok_or("no weight gradient")?;
        let mut problems = Vec::new();
        problems.extend(difference("weight gradient", gradient, &weight, tolerance));
        let input = found.input.as_deref().ok_or("no input gradient")?;
        let expected = &self.array("expect_gx")?.values;
        problems.extend(difference("input gradient", input, expected, tolerance));
        problems.extend(self.check_reconstruction(&linear.method, tolerance)?);
        Ok(problems)
    }

    pub(super) fn check_hosvd(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        energy: f64,
        ranks: PerMode,
    ) -> Result<Vec<String>, String> {
        let method = Method::hosvd(energy);
        let found = self.run(setting, geometry, method)?;
        let expected = self.weight_only(setting, geometry)?;
        let mut problems = differences(&found, &expected, setting.low_rank_tolerance());

        let conv = self.layer(setting, geometry, Method::Exact)?;
        let x: Tensor<4> = self.array("x")?.tensor(setting);
        let candidates = Candidates::new().layer("", [Candidate::ShortcutAtEnergy(energy)]);
        let loss = |conv: &burn_frugal::nn::Conv2d| conv.forward(x.clone()).sum();
        let profile = Profile::measure(&conv, &candidates, loss);
        let profile = profile.map_err(|error| error.to_string())?;
        let modes = PerMode::new(&self.array("x")?.shape).ok_or("not an activation")?;
        let method = profile.layers()[0].candidates[0].method;
        let expected = if ranks == modes {
            Method::Exact
        } else {
            Method::activation_shortcut(ranks)
        };
        if method != expected {
            problems.push(format!("{method}, expected {expected}"));
        }
        Ok(problems)
    }

    /// The factors that the step starts from.
    fn previous_factors(&self, setting: &Setting, ranks: PerMode) -> Result<TrainingState, String> {
        (0..ranks.len()).try_fold(TrainingState::default(), |state, mode| {
            let factor = self.array(&format!("u_prev{mode}"))?.data(setting);
            Ok(state.with_factor("", mode, factor))
        })
    }

    fn linear(&self, setting: &Setting, ranks: PerMode) -> Result<Linear, String> {
        let weight = self.array("w")?;
        let &[outputs, inputs] = weight.shape.as_slice() else {
            return Err(format!("the weight has shape {:?}", weight.shape));
        };
        let mut linear = LinearConfig::new(inputs, outputs)
            .with_bias(false)
            .init(&setting.device);
        let transposed = Array {
            shape: vec![inputs, outputs],
            values: transposed(&weight.values, outputs),
        };
        linear.weight = Param::from_tensor(transposed.tensor(setting));
        let linear = linear.with_method(Method::activation_shortcut(ranks));
        linear.map_err(|error| error.to_string())
    }

    fn run_linear<const D: usize>(
        &self,
        setting: &Setting,
        linear: &Linear,
    ) -> Result<Pass, String> {
        let x = self.array("x")?.tensor::<D>(setting).require_grad();
        let gy = self.array("gy")?.tensor(setting);
        Ok(Pass::run_linear(linear, x, gy))
    }

    /// The input projected onto the layer's factors, `x x_0 U_0 U_0^T x_1 ...`, in double precision.
    fn check_reconstruction(
        &self,
        slot: &MethodSlot,
        tolerance: f64,
    ) -> Result<Option<String>, String> {
        let x = self.array("x")?;
        let mut found = x.values.clone();
        for mode in 0..x.shape.len() {
            if let Some(factor) = slot.factor(mode) {
                let [size, rank] = factor.dims();
                found = projected(&found, &x.shape, mode, size, rank, &values(factor));
            }
        }
        let expected = &self.array("expect_reconstruction")?.values;
        Ok(difference("reconstruction", &found, expected, tolerance))
    }
}

/// Every column of the unfolding along `mode` replaced by `U U^T` of it.
fn projected(
    x: &[f64],
    shape: &[usize],
    mode: usize,
    size: usize,
    rank: usize,
    factor: &[f64],
) -> Vec<f64> {
    let inner: usize = shape[mode + 1..].iter().product();
    let outer: usize = shape[..mode].iter().product();
    let mut found = vec![0.0; x.len()];
    for o in 0..outer {
        for i in 0..inner {
            let at = |d: usize| (o * size + d) * inner + i;
            for r in 0..rank {
                let dot: f64 = (0..size).map(|d| factor[d * rank + r] * x[at(d)]).sum();
                for d in 0..size {
                    found[at(d)] += factor[d * rank + r] * dot;
                }
            }
        }
    }
    found
}

/// A row-major matrix with this many rows, the other way round.
fn transposed(matrix: &[f64], rows: usize) -> Vec<f64> {
    let columns = matrix.len() / rows;
    (0..matrix.len())
        .map(|index| matrix[index % rows * columns + index / rows])
        .collect()
}
