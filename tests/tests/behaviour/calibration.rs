//! Guards calibrated, frozen factors of the activation shortcut: where they come from, that they
//! stay, and the gradients that they give.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{Plan, calibrate};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{assert_close, assert_contains, autodiff_devices, devices, random, values};

use crate::hosvd::{Matrix, Plain, eigen, leading, projector};
use crate::shortcut::{Config, Kind, Layer, Setting, kinds, per_mode, settings};
use crate::user_model::plan_with;

/// Batches of different sizes with the images of a kind's input.
fn batches(kind: &Kind, scale: f64) -> Vec<Plain> {
    let sizes = [kind.input[0], 1, kind.input[0] + 2];
    let batch = |(seed, size): (usize, usize)| {
        let mut shape = kind.input.to_vec();
        shape[0] = size;
        Plain::falling(seed as u64, &shape).scaled(scale)
    };
    sizes.into_iter().enumerate().map(batch).collect()
}

/// The leading eigenvectors of the summed second moments of each mode but the batch's.
fn expected_factors(batches: &[Plain], ranks: &[usize]) -> Vec<Option<Matrix>> {
    let shape = &batches[0].shape;
    let factor = |mode: usize| {
        if mode == 0 || ranks[mode] >= shape[mode] {
            return None;
        }
        let size = shape[mode];
        let mut sum = vec![vec![0.0; size]; size];
        for batch in batches {
            for (sums, row) in sum.iter_mut().zip(batch.gram(mode)) {
                sums.iter_mut()
                    .zip(row)
                    .for_each(|(sum, value)| *sum += value);
            }
        }
        Some(leading(&eigen(sum).1, ranks[mode]))
    };
    (0..shape.len()).map(factor).collect()
}

/// The input projected onto factors.
fn projected(input: &Plain, factors: &[Option<Matrix>]) -> Plain {
    let factors = factors.iter().enumerate();
    factors.fold(input.clone(), |left, (mode, factor)| match factor {
        Some(factor) => left.projected(mode, factor),
        None => left,
    })
}

fn frozen(ranks: &[usize]) -> ActivationShortcut {
    ActivationShortcut::new(per_mode(ranks)).frozen()
}

/// Kinds of layers whose largest batch allows their ranks.
fn for_each_frozen(check: impl Fn(&str, &Kind, &Setting, Layer)) {
    for setting in settings() {
        for kind in kinds() {
            let layer = Layer::new(&kind.config, &setting).with(frozen(kind.ranks));
            check(
                &format!("{} ({})", kind.name, setting.name),
                &kind,
                &setting,
                layer,
            );
        }
    }
}

#[test]
fn factors_are_the_leading_eigenvectors_of_the_summed_second_moments() {
    for kind in kinds() {
        for scale in [1.0, 1e12] {
            let batches = batches(&kind, scale);
            let expected = expected_factors(&batches, kind.ranks);
            for setting in settings() {
                let layer = Layer::new(&kind.config, &setting).with(frozen(kind.ranks));
                let layer = layer.calibrated(&batches).expect("batches for it");
                let found = layer.factors();
                let name = format!("{}, scale {scale:e} ({})", kind.name, setting.name);
                for (mode, expected) in expected.iter().enumerate() {
                    let Some(expected) = expected else {
                        assert_eq!(found[mode], None, "{name}, mode {mode}");
                        continue;
                    };
                    let found = found[mode].as_ref().expect("calibrated");
                    assert_close(
                        &format!("{name}, mode {mode}"),
                        &projector(found),
                        &projector(expected),
                        // the gap between eigenvalues enlarges rounding
                        50.0 * setting.tolerance,
                    );
                }
            }
        }
    }
}

#[test]
fn the_gradient_is_the_exact_one_of_the_projected_input_at_every_step() {
    for_each_frozen(|name, kind, setting, layer| {
        let batches = batches(kind, 1.0);
        let expected = expected_factors(&batches, kind.ranks);
        let layer = layer.calibrated(&batches).expect("batches for it");
        let before = layer.factors();
        assert_eq!(before[0], None, "{name}: the batch stays whole");
        for step in 0..2 {
            let input = Plain::random(step, kind.input);
            let found = layer.step(&input);
            let exact = layer.exact(&projected(&input, &expected));
            let name = format!("{name}, step {step}");
            assert_close(&name, &found, &exact, 50.0 * setting.tolerance);
            assert_eq!(layer.factors(), before, "{name}: frozen");
        }
    });
}

#[test]
fn without_calibration_the_first_batch_calibrates() {
    for_each_frozen(|name, kind, setting, layer| {
        let first = Plain::falling(1, kind.input);
        let expected = expected_factors(std::slice::from_ref(&first), kind.ranks);
        let found = layer.step(&first);
        let exact = layer.exact(&projected(&first, &expected));
        assert_close(name, &found, &exact, 50.0 * setting.tolerance);
        let before = layer.factors();
        layer.step(&Plain::random(2, kind.input));
        assert_eq!(layer.factors(), before, "{name}: frozen");
    });
}

/// There is nothing to calibrate with: the next batch does it.
#[test]
fn a_first_batch_that_says_nothing_does_not_calibrate() {
    for_each_frozen(|name, kind, _, layer| {
        layer.step(&Plain::filled(kind.input, 0.0));
        assert_eq!(layer.factor_dims(), [None; 4], "{name}: all zeros");
        let mut poisoned = Plain::random(3, kind.input);
        poisoned.values[5] = f64::NAN;
        let gradient = layer.step(&poisoned);
        assert!(gradient.iter().any(|value| value.is_nan()), "{name}");
        assert_eq!(layer.factor_dims(), [None; 4], "{name}");
        let mut shape = kind.input.to_vec();
        shape[0] = 0;
        let empty = Plain::filled(&shape, 0.0);
        layer.step(&empty);
        assert_eq!(layer.factor_dims(), [None; 4], "{name}");

        let input = Plain::falling(1, kind.input);
        let fresh = layer.clone();
        assert_eq!(layer.step(&input), fresh.step(&input), "{name}");
        assert_ne!(layer.factor_dims(), [None; 4], "{name}");

        let before = layer.factors();
        layer.step(&poisoned);
        layer.step(&empty);
        assert_eq!(layer.factors(), before, "{name}: frozen");
    });
}

/// Its factors are of the calibration; a small batch has to make do with them.
#[test]
fn another_batch_size_keeps_the_calibrated_factors() {
    for setting in settings() {
        for kind in kinds().into_iter().filter(|kind| kind.input.len() == 4) {
            let layer = Layer::new(&kind.config, &setting).with(frozen(kind.ranks));
            let layer = layer.calibrated(&batches(&kind, 1.0)).expect("batches");
            let before = layer.factors();
            for size in [1, kind.input[0] + 5] {
                let mut shape = kind.input.to_vec();
                shape[0] = size;
                layer.step(&Plain::random(1, &shape));
                let name = format!("{}, {size} images ({})", kind.name, setting.name);
                assert_eq!(layer.factors(), before, "{name}");
            }
        }
    }
}

/// A batch with fewer rows than the rank.
#[test]
fn a_batch_with_few_rows_keeps_the_calibrated_factors() {
    for setting in settings() {
        let layer = Layer::new(&Config::Linear([6, 5]), &setting).with(frozen(&[9, 4]));
        let calibration = [Plain::falling(1, &[9, 6])];
        let layer = layer.calibrated(&calibration).expect("a batch for it");
        let before = layer.factors();
        layer.step(&Plain::random(1, &[2, 6]));
        layer.step(&Plain::random(2, &[9, 6]));
        assert_eq!(layer.factors(), before, "{}", setting.name);
    }
}

/// A resolution that it was not calibrated for: only the modes of other sizes calibrate anew.
#[test]
fn another_resolution_calibrates_the_modes_whose_size_changed() {
    for setting in settings() {
        let kind = &kinds()[0];
        let layer = Layer::new(&kind.config, &setting).with(frozen(kind.ranks));
        let layer = layer.calibrated(&batches(kind, 1.0)).expect("batches");
        let before = layer.factors();
        let input = Plain::falling(4, &[3, 4, 6, 12]);
        layer.step(&input);
        let after = layer.factors();
        assert_eq!(after[..3], before[..3], "{}", setting.name);
        let expected = expected_factors(std::slice::from_ref(&input), kind.ranks);
        let [found, expected] =
            [&after[3], &expected[3]].map(|factor| projector(factor.as_ref().expect("compressed")));
        assert_close(&setting.name, &found, &expected, 50.0 * setting.tolerance);
    }
}

/// Two layers to calibrate, and one of each other sort.
#[derive(Module, Debug)]
struct Mixed {
    calibrated: Conv2d,
    shortcut: Conv2d,
    sparse: Conv2d,
    exact: Conv2d,
    head: Linear,
}

impl Mixed {
    fn new(device: &burn::tensor::Device) -> Self {
        let conv = || Conv2dConfig::new([4, 4], [1, 1]).init(device);
        let model = Self {
            calibrated: conv(),
            shortcut: conv(),
            sparse: conv(),
            exact: conv(),
            head: LinearConfig::new(4, 3).init(device),
        };
        let plan = Plan::builder()
            .layer("calibrated", frozen(&[2, 2, 3, 3]).into())
            .layer("shortcut", Method::activation_shortcut([2, 2, 3, 3]))
            .layer("sparse", Method::channel_sparse(0.5))
            .layer("head", frozen(&[2, 2]).into());
        let plan = plan.build(&model).expect("its layers");
        plan.apply(model).expect("its layers")
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let convs = [&self.calibrated, &self.shortcut, &self.sparse, &self.exact];
        let x = convs.into_iter().fold(x, |x, conv| conv.forward(x));
        let [batch, channels, ..] = x.dims();
        self.head
            .forward(x.mean_dims(&[2, 3]).reshape([batch, channels]))
    }
}

#[test]
fn layers_with_other_methods_and_the_parameters_are_left_alone() {
    for (name, device) in autodiff_devices() {
        let model = Mixed::new(&device);
        let plain = device.clone().without_autodiff();
        // running values of a step
        model.forward(random(1, [5, 4, 6, 7], &device));
        let shortcut = model.shortcut.method.factor(1).map(values);
        let sparse = model.sparse.method.channels();
        assert!(shortcut.is_some() && sparse.is_some(), "{name}");
        let weight = values(model.exact.weight.val());

        let calibrated = calibrate(model.clone(), |model| {
            model.forward(random(2, [3, 4, 6, 7], &plain));
            model.forward(random(3, [4, 4, 6, 7], &plain));
        });
        let calibrated = calibrated.expect("batches for every layer");
        assert_eq!(
            calibrated.shortcut.method.factor(1).map(values),
            shortcut,
            "{name}"
        );
        assert_eq!(calibrated.sparse.method.channels(), sparse, "{name}");
        assert!(calibrated.exact.method.factor(1).is_none(), "{name}");
        assert_eq!(values(calibrated.exact.weight.val()), weight, "{name}");
        assert_ne!(
            calibrated.head.method.factor(1).map(values),
            model.head.method.factor(1).map(values),
            "{name}: calibrated anew"
        );

        // it trains as before, on every layer
        let x = random(4, [5, 4, 6, 7], &device);
        let gradients = calibrated.forward(x).powi_scalar(2).sum().backward();
        for (path, weight) in [
            ("calibrated", &calibrated.calibrated.weight),
            ("exact", &calibrated.exact.weight),
        ] {
            assert!(weight.val().grad(&gradients).is_some(), "{name}, {path}");
        }
        assert!(
            calibrated.head.weight.val().grad(&gradients).is_some(),
            "{name}"
        );
    }
}

/// A model that is used inside `run` and kept is the observed one; what `calibrate` returns is not.
#[test]
fn nothing_observes_the_model_afterwards() {
    for (name, device) in autodiff_devices() {
        let model = Mixed::new(&device);
        let plain = device.clone().without_autodiff();
        let alive = Arc::new(());
        let weak = {
            let alive = alive.clone();
            let weak = Arc::downgrade(&alive);
            let calibrated = calibrate(model, move |model| {
                let _alive = alive;
                model.forward(random(2, [3, 4, 6, 7], &plain));
            });
            let calibrated = calibrated.expect("a batch for every layer");
            let debug = format!("{:?}", calibrated.calibrated.method);
            assert_contains(&debug, &["observer: None"]);
            let before = calibrated.calibrated.method.factor(1).map(values);
            // neither a pass of another resolution nor NaN reaches a calibration
            let valid = calibrated.valid();
            let poison = Tensor::full([2, 4, 9, 9], f32::NAN, &valid.exact.weight.val().device());
            valid.forward(poison);
            assert_eq!(
                calibrated.calibrated.method.factor(1).map(values),
                before,
                "{name}"
            );
            weak
        };
        drop(alive);
        assert!(weak.upgrade().is_none(), "{name}");
    }
}

/// Any basis would do for zeros, and would then be kept.
#[test]
fn batches_of_zeros_are_an_error() {
    for (name, device) in devices() {
        let method = ActivationShortcut::new([2, 2, 3, 3]).frozen();
        let conv = same([4, 4], 3).init(&device.clone().autodiff());
        let conv = conv.with_method(method.into()).expect("suitable");
        let error = calibrate(conv, |conv| {
            conv.forward(Tensor::zeros([2, 4, 6, 7], &device));
        });
        let error = error.expect_err("nothing to calibrate with");
        assert!(matches!(error, Error::LayerState { .. }), "{name}: {error}");
        assert_contains(&error.to_string(), &["zero"]);
    }
}

#[test]
fn a_layer_that_saw_nothing_is_named() {
    for (name, device) in devices() {
        let model = Mixed::new(&device.clone().autodiff());
        let error = calibrate(model.clone(), |_| ()).unwrap_err();
        assert!(
            matches!(&error, Error::Unused { layer } if layer == "calibrated"),
            "{name}: {error}"
        );
        let error = calibrate(model, |model| {
            model.calibrated.forward(random(1, [2, 4, 6, 7], &device));
        });
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Unused { layer } if layer == "head"),
            "{name}: {error}"
        );
        assert_contains(&error.to_string(), &["head"]);
    }
}

#[test]
fn batches_that_do_not_go_together_are_refused_by_the_layers_name() {
    for (name, device) in devices() {
        let nan = || {
            let x = random(1, [2, 4, 6, 7], &device);
            x.clone().mask_fill(x.greater_elem(0.9), f32::NAN)
        };
        let other = || random(1, [2, 4, 6, 8], &device);
        let good = || random(2, [3, 4, 6, 7], &device);
        let wrong: [(Vec<Tensor<4>>, &[&str]); 4] = [
            (vec![good(), other()], &["3x4x6x7", "2x4x6x8"]),
            (vec![other(), good(), good()], &["2x4x6x8", "3x4x6x7"]),
            (vec![nan()], &["finite"]),
            (vec![good(), nan(), good()], &["finite"]),
        ];
        for (batches, reasons) in wrong {
            let conv: Conv2d = Conv2dConfig::new([4, 4], [3, 3]).init(&device.clone().autodiff());
            let conv = conv
                .with_method(frozen(&[2, 2, 3, 3]).into())
                .expect("suitable");
            let model = vec![conv];
            let error = calibrate(model, |model| {
                batches
                    .into_iter()
                    .for_each(|batch| drop(model[0].forward(batch)));
            });
            let error = error.unwrap_err();
            assert!(
                matches!(&error, Error::LayerState { layer, .. } if layer == "0"),
                "{name}: {error}"
            );
            assert_contains(&error.to_string(), reasons);
        }
    }
}

/// A calibration of no images has seen nothing.
#[test]
fn batches_without_images_do_not_disturb_a_calibration() {
    for setting in settings() {
        let kind = &kinds()[0];
        let layer = Layer::new(&kind.config, &setting).with(frozen(kind.ranks));
        let mut batches = batches(kind, 1.0);
        let expected = layer
            .clone()
            .calibrated(&batches)
            .expect("batches")
            .factors();
        let mut shape = kind.input.to_vec();
        shape[0] = 0;
        batches.insert(1, Plain::filled(&shape, 0.0));
        let found = layer.calibrated(&batches).expect("batches").factors();
        assert_eq!(found, expected, "{}", setting.name);
    }
}

/// A plan without frozen factors: there is nothing to calibrate, and nothing fails.
#[test]
fn a_model_without_frozen_factors_comes_back_as_it_was() {
    for (name, device) in autodiff_devices() {
        let conv: Conv2d = Conv2dConfig::new([4, 4], [3, 3]).init(&device);
        let plan = plan_with("", Method::activation_shortcut([2, 2, 3, 3]));
        let conv = plan.apply(conv).expect("its layer");
        let calibrated = calibrate(conv.clone(), |_| ()).expect("nothing to do");
        assert_eq!(calibrated.method.method(), conv.method.method(), "{name}");
        assert_eq!(calibrated.weight.id, conv.weight.id, "{name}");
        assert_eq!(calibrated.weight.val().dtype(), DType::F32, "{name}");
    }
}
