//! Guards the activation shortcut: its factors, its error and its gradients step by step, against
//! plain loops in double precision and Burn's own layers. The layers here serve the tests of the
//! other low-rank methods too.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_frugal::methods::{ActivationShortcut, Truncation};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{MethodSlot, Plan, TrainingState, calibrate};
use burn_frugal::{Error, Method, PerMode};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, random, random_dtype, relative_error,
    values,
};

use crate::hosvd::{Matrix, Plain, eigen, orthonormal, product, projector, transposed};
use crate::user_model::network;

/// A device and a precision.
#[derive(Clone)]
pub struct Setting {
    pub name: String,
    pub device: Device,
    pub dtype: DType,
    /// What rounding may do to a gradient.
    pub tolerance: f64,
}

/// Every device in both precisions; those that recompute, whose tensors are the same, in one.
pub fn settings() -> Vec<Setting> {
    let precisions = [(DType::F32, 2e-5), (DType::F64, 1e-11)];
    let mut settings = Vec::new();
    for (name, device) in autodiff_devices() {
        for (dtype, tolerance) in precisions {
            if dtype == DType::F32 || !name.contains("checkpointing") {
                settings.push(Setting {
                    name: format!("{dtype:?}, {name}"),
                    device: device.clone(),
                    dtype,
                    tolerance,
                });
            }
        }
    }
    settings
}

/// A kind of layer, the shape of an input and ranks that compress it.
pub struct Kind {
    pub name: &'static str,
    pub config: Config,
    pub input: &'static [usize],
    pub ranks: &'static [usize],
}

pub enum Config {
    Conv(Conv2dConfig),
    Linear([usize; 2]),
}

impl Kind {
    pub fn channel_mode(&self) -> usize {
        match self.config {
            Config::Conv(_) => 1,
            Config::Linear(_) => self.input.len() - 1,
        }
    }
}

/// Layers that take different ways to their gradient, with every mode compressed or some.
pub fn kinds() -> Vec<Kind> {
    let conv = |name, config, ranks| Kind {
        name,
        config: Config::Conv(config),
        input: &[3, 4, 6, 5],
        ranks,
    };
    let linear = |name, input, ranks| Kind {
        name,
        config: Config::Linear([6, 5]),
        input,
        ranks,
    };
    let dilated = Conv2dConfig::new([4, 6], [3, 2]).with_dilation([2, 3]);
    let depthwise = same([4, 4], 5).with_groups(4);
    vec![
        conv("dense", same([4, 6], 3), &[2, 2, 3, 4]),
        conv("dense, channels only", same([4, 6], 3), &[3, 1, 6, 5]),
        conv("dense, all but channels", same([4, 6], 3), &[1, 4, 2, 2]),
        conv(
            "strided",
            same([4, 6], 3).with_stride([2, 1]),
            &[2, 3, 4, 3],
        ),
        conv("dilated", dilated, &[2, 2, 4, 3]),
        conv("grouped", same([4, 6], 3).with_groups(2), &[2, 3, 3, 4]),
        conv("depthwise", depthwise.with_stride([1, 2]), &[1, 2, 3, 4]),
        conv("pointwise", same([4, 6], 1), &[2, 2, 3, 3]),
        conv(
            "grouped pointwise",
            same([4, 6], 1).with_groups(2),
            &[2, 2, 3, 3],
        ),
        linear("linear, 2 axes", &[9, 6], &[3, 3]),
        linear("linear, 3 axes", &[4, 7, 6], &[2, 3, 2]),
        linear("linear, 4 axes", &[2, 3, 5, 6], &[1, 2, 3, 4]),
    ]
}

/// A layer, whichever it is.
#[derive(Clone)]
pub struct Layer {
    setting: Setting,
    module: AnyLayer,
}

#[derive(Clone)]
pub enum AnyLayer {
    Conv(Conv2d),
    Linear(Linear),
}

impl Layer {
    pub fn new(config: &Config, setting: &Setting) -> Self {
        let module = match config {
            Config::Conv(config) => AnyLayer::Conv(layer(config, &setting.device, setting.dtype)),
            Config::Linear(features) => AnyLayer::Linear(linear(*features, setting)),
        };
        Self {
            setting: setting.clone(),
            module,
        }
    }

    pub fn with(&self, method: impl Into<Method>) -> Self {
        let method = method.into();
        let module = match self.module.clone() {
            AnyLayer::Conv(conv) => AnyLayer::Conv(with(&conv, method)),
            AnyLayer::Linear(linear) => {
                AnyLayer::Linear(linear.with_method(method).expect("suitable"))
            }
        };
        Self {
            module,
            ..self.clone()
        }
    }

    /// The same layer after `change`, which gets the module.
    pub fn map(
        self,
        conv: impl FnOnce(Conv2d) -> Conv2d,
        linear: impl FnOnce(Linear) -> Linear,
    ) -> Self {
        let module = match self.module {
            AnyLayer::Conv(layer) => AnyLayer::Conv(conv(layer)),
            AnyLayer::Linear(layer) => AnyLayer::Linear(linear(layer)),
        };
        Self { module, ..self }
    }

    /// The layer with the running values of a state, whose path for it is empty.
    pub fn restored(self, state: &TrainingState) -> Self {
        self.map(
            |conv| state.restore(conv).expect("suitable"),
            |linear| state.restore(linear).expect("suitable"),
        )
    }

    /// The layer calibrated with these batches, on a plain device.
    pub fn calibrated(self, batches: &[Plain]) -> Result<Self, Error> {
        let Setting { device, dtype, .. } = self.setting.clone();
        let device = device.without_autodiff();
        let module = match self.module {
            AnyLayer::Conv(conv) => AnyLayer::Conv(calibrate(conv, |conv| {
                for batch in batches {
                    conv.forward(batch.tensor(&device, dtype));
                }
            })?),
            AnyLayer::Linear(linear) => AnyLayer::Linear(calibrate(linear, |linear| {
                for batch in batches {
                    forward_any(linear, batch, &device, dtype);
                }
            })?),
        };
        Ok(Self { module, ..self })
    }

    pub fn slot(&self) -> &MethodSlot {
        match &self.module {
            AnyLayer::Conv(conv) => &conv.method,
            AnyLayer::Linear(linear) => &linear.method,
        }
    }

    /// One step: the weight's gradient.
    pub fn step(&self, input: &Plain) -> Vec<f64> {
        let Setting { device, dtype, .. } = &self.setting;
        match &self.module {
            AnyLayer::Conv(conv) => {
                let x = input.tensor(device, *dtype);
                let output = conv.forward(x);
                let upstream = random_dtype(2, output.dims(), device, *dtype);
                let gradients = (output * upstream).sum().backward();
                values(conv.weight.val().grad(&gradients).expect("tracked"))
            }
            AnyLayer::Linear(linear) => match input.shape.len() {
                2 => self.linear_step::<2>(linear, input),
                3 => self.linear_step::<3>(linear, input),
                _ => self.linear_step::<4>(linear, input),
            },
        }
    }

    fn linear_step<const D: usize>(&self, linear: &Linear, input: &Plain) -> Vec<f64> {
        let Setting { device, dtype, .. } = &self.setting;
        let output = linear.forward(input.tensor::<D>(device, *dtype));
        let upstream = random_dtype(2, output.dims(), device, *dtype);
        let gradients = (output * upstream).sum().backward();
        values(linear.weight.val().grad(&gradients).expect("tracked"))
    }

    /// The weight's gradient of Burn's own layer, in double precision.
    pub fn exact(&self, input: &Plain) -> Vec<f64> {
        let setting = Setting {
            dtype: DType::F64,
            ..self.setting.clone()
        };
        let device = &setting.device;
        match &self.module {
            AnyLayer::Conv(conv) => {
                let mut conv = burn::nn::conv::Conv2d::from(conv.clone());
                conv.bias = None;
                let weight = random_dtype(11, conv.weight.dims(), device, DType::F64);
                conv.weight = Param::from_tensor(weight);
                let output = conv.forward(input.tensor(device, DType::F64));
                let upstream = random_dtype(2, output.dims(), device, DType::F64);
                let gradients = (output * upstream).sum().backward();
                values(conv.weight.val().grad(&gradients).expect("tracked"))
            }
            AnyLayer::Linear(ours) => {
                let linear = burn::nn::Linear::from(linear(ours.weight.dims(), &setting));
                match input.shape.len() {
                    2 => exact_linear::<2>(&linear, input, device),
                    3 => exact_linear::<3>(&linear, input, device),
                    _ => exact_linear::<4>(&linear, input, device),
                }
            }
        }
    }

    /// The factor of each mode, if it has one.
    pub fn factors(&self) -> [Option<Matrix>; 4] {
        std::array::from_fn(|mode| {
            let factor = self.slot().factor(mode)?;
            let [_, rank] = factor.dims();
            let values = values(factor);
            Some(values.chunks(rank).map(<[f64]>::to_vec).collect())
        })
    }

    /// Sizes and rank of each factor.
    pub fn factor_dims(&self) -> [Option<[usize; 2]>; 4] {
        std::array::from_fn(|mode| self.slot().factor(mode).map(|factor| factor.dims()))
    }

    /// What the last step kept of its input, as a whole tensor.
    pub fn reconstruction(&self, input: &Plain) -> Plain {
        let factors = self.factors();
        let present = || factors.iter().enumerate();
        let core = present().fold(input.clone(), |left, (mode, factor)| match factor {
            Some(factor) => left.multiplied(mode, &transposed(factor)),
            None => left,
        });
        present().fold(core, |left, (mode, factor)| match factor {
            Some(factor) => left.multiplied(mode, factor),
            None => left,
        })
    }

    /// The distance of the reconstruction from the input.
    pub fn error(&self, input: &Plain) -> f64 {
        input.minus(&self.reconstruction(input)).energy().sqrt()
    }
}

fn forward_any(linear: &Linear, input: &Plain, device: &Device, dtype: DType) {
    match input.shape.len() {
        2 => drop(linear.forward::<2>(input.tensor(device, dtype))),
        3 => drop(linear.forward::<3>(input.tensor(device, dtype))),
        _ => drop(linear.forward::<4>(input.tensor(device, dtype))),
    }
}

fn linear([inputs, outputs]: [usize; 2], setting: &Setting) -> Linear {
    let Setting { device, dtype, .. } = setting;
    let mut linear = LinearConfig::new(inputs, outputs)
        .with_bias(false)
        .init(device);
    linear.weight = Param::from_tensor(random_dtype(11, [inputs, outputs], device, *dtype));
    linear
}

fn exact_linear<const D: usize>(
    linear: &burn::nn::Linear,
    input: &Plain,
    device: &Device,
) -> Vec<f64> {
    let output = linear.forward(input.tensor::<D>(device, DType::F64));
    let upstream = random_dtype(2, output.dims(), device, DType::F64);
    let gradients = (output * upstream).sum().backward();
    values(linear.weight.val().grad(&gradients).expect("tracked"))
}

pub fn per_mode(numbers: &[usize]) -> PerMode {
    PerMode::new(numbers).expect("2 to 4 modes")
}

/// The shortcut as published, and the one on what the modes before left.
pub fn forms(ranks: &[usize]) -> [ActivationShortcut; 2] {
    let published = ActivationShortcut::new(per_mode(ranks));
    [published, published.sequential()]
}

/// The shortcut of a layer that has one.
fn shortcut_of(layer: &Layer) -> ActivationShortcut {
    match layer.slot().method() {
        Method::ActivationShortcut(shortcut) => shortcut,
        method => panic!("{method} is no shortcut"),
    }
}

/// The kinds with different inputs or ranks: factors do not depend on anything else.
fn shapes() -> impl Iterator<Item = Kind> {
    let kinds = kinds().into_iter();
    kinds.filter(|kind| kind.name.starts_with("dense") || kind.name.starts_with("linear"))
}

/// Calls `check` with a kind of layer, for every setting and form.
fn for_each_form_of(kind: &Kind, check: impl Fn(&str, &Setting, Layer)) {
    for setting in settings() {
        let layer = Layer::new(&kind.config, &setting);
        for form in forms(kind.ranks) {
            let name = format!("{}, {:?} ({})", kind.name, form.truncation, setting.name);
            check(&name, &setting, layer.with(form));
        }
    }
}

/// Calls `check` with every kind of layer, setting and form.
fn for_each_form(check: impl Fn(&str, &Kind, &Setting, Layer)) {
    for kind in kinds() {
        for_each_form_of(&kind, |name, setting, layer| {
            check(name, &kind, setting, layer)
        });
    }
}

/// Calls `check` with a dense convolution, for every setting and form.
fn for_each_dense(ranks: &[usize], mut check: impl FnMut(&str, &Setting, Layer)) {
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([4, 6], 3)), &setting);
        for form in forms(ranks) {
            let name = format!("{:?} ({})", form.truncation, setting.name);
            check(&name, &setting, layer.with(form));
        }
    }
}

const INPUT: [usize; 4] = [3, 4, 7, 9];
const RANKS: [usize; 4] = [2, 2, 3, 4];

#[test]
fn full_ranks_are_the_exact_gradient() {
    for setting in settings() {
        for kind in kinds() {
            let layer = Layer::new(&kind.config, &setting);
            let input = Plain::random(1, kind.input);
            let burns = layer.exact(&input);
            let exact = layer.with(Method::Exact).step(&input);
            for form in forms(kind.input) {
                let name = format!("{}, {:?} ({})", kind.name, form.truncation, setting.name);
                let full = layer.with(form);
                let found = full.step(&input);
                assert_close(&name, &found, &burns, setting.tolerance);
                // a matrix that is not square has a mode with more rows than columns
                if kind.input.len() > 2 {
                    assert_eq!(found, exact, "{name}: the whole input was kept");
                    assert_eq!(full.factor_dims(), [None; 4], "{name}");
                }
            }
        }
    }
}

#[test]
fn the_gradient_is_the_exact_one_of_the_reconstruction() {
    for_each_form(|name, kind, setting, layer| {
        for step in 0..2 {
            let input = Plain::random(step, kind.input);
            let found = layer.step(&input);
            let reconstruction = layer.reconstruction(&input);
            let expected = layer.exact(&reconstruction);
            let name = format!("{name}, step {step}");
            assert_close(&name, &found, &expected, setting.tolerance);
            let lost = relative_error(&reconstruction.values, &input.values);
            assert!(lost > 0.1, "{name}: {lost} of white noise lost");
        }
    });
}

/// In half precision the factors are iterated in single and the rest is rounded more.
#[test]
fn half_precision_has_the_gradient_of_its_reconstruction() {
    let mut tried = 0;
    for (name, device) in autodiff_devices() {
        for (dtype, tolerance) in [(DType::F16, 5e-3), (DType::BF16, 4e-2)] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let setting = Setting {
                name: format!("{dtype:?}, {name}"),
                device: device.clone(),
                dtype,
                tolerance,
            };
            for kind in shapes() {
                let layer = Layer::new(&kind.config, &setting);
                for form in forms(kind.ranks) {
                    let layer = layer.with(form);
                    for step in 0..3 {
                        let input = Plain::falling(step, kind.input);
                        let found = layer.step(&input);
                        let expected = layer.exact(&layer.reconstruction(&input));
                        let name = format!("{}, {}", kind.name, setting.name);
                        assert_close(&name, &found, &expected, tolerance);
                    }
                }
            }
            tried += 1;
        }
    }
    assert!(tried > 0, "no backend has half precision");
}

/// The definition: `U <- Q of X (X^T U)`. A projector is the same for every basis of one space.
#[test]
fn a_step_is_one_subspace_iteration_from_the_last_factors() {
    for_each_form(|name, kind, setting, layer| {
        let form = shortcut_of(&layer);
        let (modes, channel_mode) = (kind.input.len(), kind.channel_mode());
        layer.step(&Plain::falling(1, kind.input));
        for step in 2..5 {
            let before = layer.factors();
            let input = Plain::falling(step, kind.input);
            layer.step(&input);
            let after = layer.factors();
            let mut left = input.clone();
            let others = (0..modes).filter(|&mode| mode != channel_mode);
            for mode in std::iter::once(channel_mode).chain(others) {
                let [Some(before), Some(after)] = [&before[mode], &after[mode]] else {
                    assert_eq!(kind.ranks[mode], kind.input[mode], "{name}");
                    continue;
                };
                let seen = match form.truncation {
                    Truncation::Independent => &input,
                    Truncation::Sequential => &left,
                };
                let expected = orthonormal(&product(&seen.gram(mode), before));
                assert_close(
                    &format!("{name}, step {step}, mode {mode}"),
                    &projector(after),
                    &projector(&expected),
                    // the gap between singular values enlarges rounding
                    50.0 * setting.tolerance,
                );
                left = left.projected(mode, after);
            }
        }
    });
}

#[test]
fn factors_are_orthonormal_at_every_step() {
    let inputs = |shape: &[usize]| {
        let noise = (0..4).map(|step| Plain::random(step, shape));
        let poor = [
            Plain::filled(shape, 1.0),
            Plain::filled(shape, 0.0),
            Plain::rank_one(1, shape),
        ];
        let inputs: Vec<Plain> = noise.chain(poor).collect();
        inputs
    };
    for_each_form(|name, kind, _, layer| {
        for (step, input) in inputs(kind.input).iter().enumerate() {
            layer.step(input);
            for (mode, factor) in layer.factors().iter().enumerate() {
                let compressed = mode < kind.input.len() && kind.ranks[mode] < kind.input[mode];
                assert_eq!(factor.is_some(), compressed, "{name}, mode {mode}");
                let Some(factor) = factor else { continue };
                assert_eq!(
                    [factor.len(), factor[0].len()],
                    [kind.input[mode], kind.ranks[mode]]
                );
                let unit = product(&transposed(factor), factor);
                for (row, values) in unit.iter().enumerate() {
                    for (column, value) in values.iter().enumerate() {
                        let off = (value - f64::from(row == column)).abs();
                        assert!(off < 1e-5, "{name}, step {step}, mode {mode}: {off:e}");
                    }
                }
            }
        }
    });
}

/// The proof that the factors follow the data: on data that stands still they arrive at HOSVD's.
/// What a mode captures of its input never falls; the error of all modes together may rise a little
/// while the others follow.
#[test]
fn a_fixed_input_is_approached_without_a_step_back() {
    for kind in shapes() {
        let input = Plain::falling(1, kind.input);
        let best = input.minus(&input.truncated(kind.ranks)).energy().sqrt();
        for_each_form_of(&kind, |name, _, layer| {
            let allowed = match shortcut_of(&layer).truncation {
                Truncation::Independent => 1e-4,
                Truncation::Sequential => 0.02,
            };
            let mut errors = Vec::new();
            for _ in 0..15 {
                layer.step(&input);
                errors.push(layer.error(&input));
            }
            for (step, pair) in errors.windows(2).enumerate() {
                let rise = pair[1] / pair[0] - 1.0;
                assert!(rise <= allowed, "{name}, step {step}: {pair:?}");
            }
            let last = errors[14];
            assert!(last <= 1.01 * best, "{name}: {last}, HOSVD {best}");
            assert!(errors[0] > 1.01 * best, "{name}: nothing to improve on");
        });
    }
}

/// Every mode by itself rises to a bound that no factor passes: its leading eigenvalues.
#[test]
fn what_a_mode_captures_rises_to_its_leading_eigenvalues() {
    for kind in shapes() {
        let input = Plain::falling(3, kind.input);
        let spectra: Vec<Vec<f64>> = (0..kind.input.len())
            .map(|mode| eigen(input.gram(mode)).0)
            .collect();
        for_each_form_of(&kind, |name, setting, layer| {
            let sequential = shortcut_of(&layer).truncation == Truncation::Sequential;
            let mut before = [0.0; 4];
            for _ in 0..15 {
                layer.step(&input);
                for (mode, factor) in layer.factors().iter().enumerate() {
                    // the later ones of a sequence see what the first left
                    if let Some(factor) = factor
                        && (!sequential || mode == kind.channel_mode())
                    {
                        let captured = input.projected(mode, factor).energy();
                        let slack = 1.0 - setting.tolerance;
                        let name = format!("{name}, mode {mode}");
                        assert!(captured >= before[mode] * slack, "{name}");
                        before[mode] = captured;
                    }
                }
            }
            for (mode, captured) in before.into_iter().enumerate() {
                if captured > 0.0 {
                    let most: f64 = spectra[mode][..kind.ranks[mode]].iter().sum();
                    assert!(
                        captured > 0.999 * most && captured < (1.0 + 1e-5) * most,
                        "{name}, mode {mode}: {captured} of {most}"
                    );
                }
            }
        });
    }
}

#[test]
fn the_two_forms_differ_and_share_the_channels_factor() {
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([4, 6], 3)), &setting);
        let [published, sequential] = forms(&RANKS).map(|form| layer.with(form));
        let input = Plain::random(1, &INPUT);
        let [a, b] = [published.step(&input), sequential.step(&input)];
        let name = &setting.name;
        assert!(relative_error(&a, &b) > 0.01, "{name}");
        let [a, b] = [published.factors(), sequential.factors()];
        assert_eq!(a[1], b[1], "{name}: channels come first");
        for mode in [0, 2, 3] {
            assert_ne!(a[mode], b[mode], "{name}, mode {mode}");
        }
    }
}

#[test]
fn inputs_of_low_rank_lose_nothing() {
    let mut dead_channel = Plain::random(5, &INPUT);
    dead_channel = dead_channel.map_along(1, |channel, value| match channel {
        2 => 0.0,
        _ => value,
    });
    let inputs = [
        ("zero", Plain::filled(&INPUT, 0.0), RANKS),
        ("constant", Plain::filled(&INPUT, -3.0), RANKS),
        ("constant, rank 1", Plain::filled(&INPUT, 0.5), [1; 4]),
        ("rank 1", Plain::rank_one(1, &INPUT), RANKS),
        ("a dead channel", dead_channel, [3, 3, 7, 9]),
    ];
    for (what, input, ranks) in inputs {
        for_each_dense(&ranks, |name, setting, layer| {
            let expected = layer.exact(&input);
            for step in 0..3 {
                let found = layer.step(&input);
                let name = format!("{what}, {name}, step {step}");
                assert_close(&name, &found, &expected, setting.tolerance);
            }
        });
    }
}

#[test]
fn huge_and_tiny_inputs_have_the_gradients_of_ordinary_ones() {
    let input = Plain::falling(1, &INPUT);
    for scale in [1e15, 1e-15] {
        for_each_dense(&RANKS, |name, setting, layer| {
            let ordinary = layer.clone();
            for step in 0..3 {
                let found = layer.step(&input.scaled(scale));
                let expected = ordinary.step(&input);
                let unscaled: Vec<f64> = found.iter().map(|value| value / scale).collect();
                let name = format!("{scale:e}, {name}, step {step}");
                assert_close(&name, &unscaled, &expected, 50.0 * setting.tolerance);
                let reconstruction = layer.reconstruction(&input);
                let expected = layer.exact(&reconstruction);
                assert_close(&name, &unscaled, &expected, setting.tolerance);
            }
        });
    }
}

fn with_value(mut input: Plain, value: f64) -> Plain {
    let middle = input.values.len() / 2;
    input.values[middle] = value;
    input
}

#[test]
fn a_value_that_is_not_finite_shows_in_the_gradient_and_is_gone_at_the_next_step() {
    for kind in kinds() {
        let input = Plain::random(1, kind.input);
        let witness = Layer::new(&kind.config, &settings()[0]);
        let poisoned = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|bad| {
            let poisoned = with_value(input.clone(), bad);
            let exact = witness.exact(&poisoned);
            let hit: Vec<bool> = exact.iter().map(|value| !value.is_finite()).collect();
            assert!(hit.contains(&true), "{}", kind.name);
            (poisoned, hit)
        });
        for_each_form_of(&kind, |name, setting, layer| {
            for (poisoned, hit) in &poisoned {
                for (found, &hit) in layer.step(poisoned).iter().zip(hit) {
                    assert!(!hit || !found.is_finite(), "{name}: hidden");
                }
                let found = layer.step(&input);
                assert!(found.iter().all(|value| value.is_finite()), "{name}");
            }
            let found = layer.step(&input);
            let expected = layer.exact(&layer.reconstruction(&input));
            assert_close(name, &found, &expected, setting.tolerance);
        });
    }
}

/// Steps whose input has no direction, or fewer than the ranks, leave room for the next inputs'.
#[test]
fn factors_find_the_data_after_a_step_with_little_of_it() {
    let input = Plain::falling(1, &INPUT);
    let best = input.minus(&input.truncated(&RANKS)).energy().sqrt();
    let little = [
        ("zero", Plain::filled(&INPUT, 0.0)),
        ("constant", Plain::filled(&INPUT, 1.0)),
        ("rank 1", Plain::rank_one(7, &INPUT)),
        ("NaN", with_value(input.clone(), f64::NAN)),
        ("infinity", with_value(input.clone(), f64::INFINITY)),
    ];
    for (what, little) in little {
        for_each_dense(&RANKS, |name, _, layer| {
            layer.step(&little);
            (0..15).for_each(|_| drop(layer.step(&input)));
            let error = layer.error(&input);
            assert!(
                error <= 1.01 * best,
                "{what}, {name}: {error}, HOSVD {best}"
            );
        });
    }
}

/// A network with dead units has places that are zero in every input. Factors that have only such
/// places would have them for ever: `X (X^T U)` is zero.
#[test]
fn factors_find_the_data_after_a_step_with_little_of_it_around_dead_channels() {
    let dead = |plain: Plain| {
        let plain = plain.map_along(1, |channel, value| if channel < 2 { 0.0 } else { value });
        plain.map_along(3, |column, value| if column < 4 { 0.0 } else { value })
    };
    let input = dead(Plain::falling(1, &INPUT));
    let best = input.minus(&input.truncated(&RANKS)).energy().sqrt();
    let little = [
        ("zero", Plain::filled(&INPUT, 0.0)),
        ("constant", dead(Plain::filled(&INPUT, 1.0))),
        ("rank 1", dead(Plain::rank_one(7, &INPUT))),
        ("NaN", with_value(input.clone(), f64::NAN)),
        ("infinity", with_value(input.clone(), f64::INFINITY)),
    ];
    let mut problems = Vec::new();
    for (what, little) in little {
        for_each_dense(&RANKS, |name, _, layer| {
            layer.step(&little);
            (0..15).for_each(|_| drop(layer.step(&input)));
            problems.extend(
                Some(layer.error(&input))
                    .filter(|&error| error > 1.01 * best)
                    .map(|error| format!("{what}, {name}: {error}, HOSVD {best}")),
            );
        });
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn ranks_above_what_the_shape_allows_are_clipped() {
    let big = usize::MAX;
    let cases = [
        // above the sizes: nothing is compressed but the channels
        (
            [3, 4, 7, 9],
            [big, 2, 7, big],
            [None, Some([4, 2]), None, None],
        ),
        // an unfolding with fewer columns than rows
        ([7, 4, 1, 1], [6, 4, 1, 1], [Some([7, 4]), None, None, None]),
        ([1, 4, 1, 1], [3, 4, 9, 9], [None, Some([4, 1]), None, None]),
        ([1, 4, 1, 7], [1, 4, 1, 6], [None, None, None, Some([7, 4])]),
    ];
    for (shape, ranks, dims) in cases {
        for_each_dense(&ranks, |name, setting, layer| {
            let name = format!("{shape:?}, ranks {ranks:?}, {name}");
            let input = Plain::random(1, &shape);
            let found = layer.step(&input);
            assert_eq!(layer.factor_dims(), dims, "{name}");
            let expected = layer.exact(&layer.reconstruction(&input));
            assert_close(&name, &found, &expected, setting.tolerance);
            if ranks[1] == 4 {
                // as many directions as the unfolding has columns: nothing is lost
                let exact = layer.exact(&input);
                assert_close(&name, &found, &exact, 1e3 * setting.tolerance);
            }
        });
    }
}

/// What the first mode leaves may have fewer columns than the next one's rank.
#[test]
fn a_sequential_mode_may_have_more_ranks_than_columns_are_left() {
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([4, 6], 1)), &setting);
        let method = ActivationShortcut::new([3, 1, 1, 1]).sequential();
        let layer = layer.with(method);
        for step in 0..3 {
            let input = Plain::random(step, &[5, 4, 1, 1]);
            let found = layer.step(&input);
            let expected = layer.exact(&layer.reconstruction(&input));
            assert_close(&setting.name, &found, &expected, setting.tolerance);
        }
    }
}

#[test]
fn ranks_that_a_layer_cannot_have_are_refused_by_its_name() {
    let network = network(&Device::default());
    let refused = [
        ("stem", per_mode(&[1, 0, 1, 1]), "at least 1, found 1x0x1x1"),
        ("stem", per_mode(&[1, 1, 1]), "expected 4 ranks"),
        (
            "stem",
            per_mode(&[1, 5, 1, 1]),
            "rank 5 of the channel mode",
        ),
    ];
    for (path, ranks, reason) in refused {
        let plan = Plan::builder().layer(path, Method::activation_shortcut(ranks));
        let error = plan.build(&network).unwrap_err();
        assert!(
            matches!(&error, Error::Method { layer, .. } if layer == path),
            "{error}"
        );
        assert_contains(&error.to_string(), &[path, reason]);
    }
    let linear = LinearConfig::new(6, 5).init(&Device::default());
    let error = linear.with_method(Method::activation_shortcut([9, 7]));
    assert_contains(
        &error.unwrap_err().to_string(),
        &["Linear", "rank 7", "6 input channels"],
    );
}

/// The gradients of some steps with changing inputs.
fn gradients(layer: &Layer, steps: u64) -> Vec<Vec<f64>> {
    (0..steps)
        .map(|step| layer.step(&Plain::random(step, &INPUT)))
        .collect()
}

#[test]
fn the_seed_alone_decides_the_numbers() {
    for_each_dense(&RANKS, |name, setting, layer| {
        let form = shortcut_of(&layer);
        let first = gradients(&layer.with(form.with_seed(3)), 3);
        setting.device.seed(1);
        let again = gradients(&layer.with(form.with_seed(3)), 3);
        setting.device.seed(2);
        let once_more = gradients(&layer.with(form.with_seed(3)), 3);
        assert_eq!(again, first, "{name}");
        assert_eq!(once_more, first, "{name}: the device's seed");
        let other = gradients(&layer.with(form.with_seed(4)), 3);
        assert!(relative_error(&other[0], &first[0]) > 1e-3, "{name}");
    });
}

/// The modes of one layer start differently, and so do factors of other shapes.
#[test]
fn equal_modes_start_differently() {
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([5, 6], 3)), &setting);
        let layer = layer.with(Method::activation_shortcut([2, 2, 2, 2]));
        // the same Gram matrix in every mode
        let mut cube = Plain::filled(&[5; 4], 0.0);
        for place in 0..5 {
            cube.values[place * (125 + 25 + 5 + 1)] = 1.0;
        }
        layer.step(&cube);
        let factors = layer.factors();
        for mode in 1..4 {
            assert_ne!(factors[mode], factors[0], "{}, mode {mode}", setting.name);
        }
    }
}

/// Other tests draw random numbers at the same time, so one undisturbed try is proof enough.
#[test]
fn a_step_leaves_burns_random_state_alone() {
    for_each_dense(&RANKS, |name, setting, layer| {
        let input = Plain::random(1, &INPUT);
        let drawn = |between: &dyn Fn()| {
            setting.device.seed(42);
            between();
            let numbers = Tensor::<1>::random([4], Distribution::Default, &setting.device);
            values(numbers)
        };
        let undisturbed = (0..50).any(|_| {
            let expected = drawn(&|| ());
            // a new layer: the first step is the one that needs random numbers
            let fresh = layer.with(Method::Exact).with(shortcut_of(&layer));
            drawn(&|| drop(fresh.step(&input))) == expected
        });
        assert!(undisturbed, "{name}");
    });
}

#[test]
fn a_clone_steps_by_itself() {
    for_each_dense(&RANKS, |name, _, layer| {
        let straight = gradients(&layer.clone(), 5);
        let found = gradients(&layer, 2);
        let before = layer.factors();
        let clone = layer.clone();
        assert_eq!(clone.factors(), before, "{name}: a clone has the factors");
        for step in 10..13 {
            clone.step(&Plain::random(step, &INPUT));
        }
        assert_ne!(clone.factors(), before, "{name}");
        assert_eq!(layer.factors(), before, "{name}: the clone's steps");
        let rest = (2..5).map(|step| layer.step(&Plain::random(step, &INPUT)));
        assert_eq!([found, rest.collect()].concat(), straight, "{name}");
    });
}

#[test]
fn passes_that_do_not_train_leave_the_factors_alone() {
    for_each_form(|name, kind, setting, layer| {
        let forward = |layer: &Layer, input: &Plain| {
            let Setting { device, dtype, .. } = setting;
            match &layer.module {
                AnyLayer::Conv(conv) => drop(conv.forward(input.tensor(device, *dtype))),
                AnyLayer::Linear(linear) => forward_any(linear, input, device, *dtype),
            }
        };
        let other = Plain::random(9, kind.input);
        let valid = layer.clone().map(|it| it.valid(), |it| it.valid());
        forward(&valid, &other);
        assert_eq!(valid.factor_dims(), [None; 4], "{name}: a valid model");

        layer.step(&Plain::random(1, kind.input));
        let before = layer.factors();
        let valid = layer.clone().map(|it| it.valid(), |it| it.valid());
        let frozen = layer.clone().map(|it| it.no_grad(), |it| it.no_grad());
        for (what, layer) in [("valid", valid), ("frozen", frozen)] {
            forward(&layer, &other);
            assert_eq!(layer.factors(), before, "{name}, {what}");
        }
        forward(&layer, &other);
        assert_ne!(layer.factors(), before, "{name}: a training step follows");
    });
}

#[test]
fn training_goes_on_from_its_factors_after_an_evaluation() {
    for (name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        let conv = with(&conv, Method::activation_shortcut(RANKS));
        let input = random(1, INPUT, &device);
        conv.forward(input);
        let before = conv.method.factor(1).map(values);
        assert!(before.is_some(), "{name}");
        let again = conv.valid().train();
        assert_eq!(again.method.factor(1).map(values), before, "{name}");
    }
}

#[test]
fn two_layers_in_two_threads_are_one_after_the_other() {
    for_each_dense(&RANKS, |name, _, layer| {
        let form = shortcut_of(&layer);
        let layers = || [layer.clone(), layer.with(form.with_seed(8))];
        let alone = layers().map(|layer| gradients(&layer, 4));
        let together = std::thread::scope(|scope| {
            let threads = layers().map(|layer| scope.spawn(move || gradients(&layer, 4)));
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(together, alone, "{name}");
    });
}

/// The input's gradient is exact whatever was kept.
#[test]
fn the_input_gradient_is_exact() {
    for (name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        let input = || random(1, INPUT, &device).require_grad();
        let upstream = random(2, [3, 6, 7, 9], &device);
        let exact = Pass::run(&conv, input(), upstream.clone());
        for form in forms(&RANKS) {
            let found = Pass::run(&with(&conv, form.into()), input(), upstream.clone());
            assert_eq!(found.input, exact.input, "{name}");
            assert_eq!(found.bias, exact.bias, "{name}");
            assert_eq!(found.output, exact.output, "{name}");
        }
    }
}
