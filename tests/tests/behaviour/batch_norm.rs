//! Guards batch normalization: it computes what Burn's computes, with the statistics of the batch and
//! with running ones, converts to and from it, and gamma's gradient is that of its method.

mod methods;
mod plans;

use burn::module::{Module, Param, Quantizer, RunningState};
use burn::tensor::quantization::{Calibration, QuantScheme};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::nn::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, devices, panic_message, random,
    random_dtype, values,
};

const PRECISIONS: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

/// Burn's layer with reproducible parameters and statistics, which trains.
fn burns(features: usize, epsilon: f64, device: &Device, dtype: DType) -> burn::nn::BatchNorm {
    let vector = |seed| random_dtype::<1>(seed, [features], device, dtype);
    let config = burn::nn::BatchNormConfig::new(features).with_epsilon(epsilon);
    burn::nn::BatchNorm {
        gamma: Param::from_tensor(vector(11) + 1.5),
        beta: Param::from_tensor(vector(12)),
        running_mean: RunningState::new(vector(13) * 0.5),
        running_var: RunningState::new(vector(14) * 0.5 + 1.0),
        ..config.init(device)
    }
}

/// With the running statistics; the parameters are trained.
fn fixed(norm: burn::nn::BatchNorm) -> burn::nn::BatchNorm {
    burn::nn::BatchNorm {
        training: norm.training.with_value(false),
        ..norm
    }
}

/// Ours, with fixed statistics and trained parameters.
fn ours(features: usize, device: &Device, dtype: DType) -> BatchNorm {
    fixed(burns(features, 1e-5, device, dtype)).into()
}

/// A forward and a backward pass; gamma is the weight.
fn pass<const D: usize>(
    forward: impl Fn(Tensor<D>) -> Tensor<D>,
    [gamma, beta]: [&Param<Tensor<1>>; 2],
    input: Tensor<D>,
) -> Pass {
    let output = forward(input.clone());
    let upstream = random_dtype(2, output.dims(), &output.device(), output.dtype());
    let gradients = (output.clone() * upstream).sum().backward();
    let of = |param: &Param<Tensor<1>>| param.val().grad(&gradients).map(values);
    Pass {
        output: values(output),
        input: input.grad(&gradients).map(values),
        weight: of(gamma),
        bias: of(beta),
    }
}

fn our_pass<const D: usize>(norm: &BatchNorm, input: Tensor<D>) -> Pass {
    pass(|x| norm.forward(x), [&norm.gamma, &norm.beta], input)
}

fn burns_pass<const D: usize>(norm: &burn::nn::BatchNorm, input: Tensor<D>) -> Pass {
    pass(|x| norm.forward(x), [&norm.gamma, &norm.beta], input)
}

#[track_caller]
fn assert_all_tracked(what: &str, pass: &Pass) {
    for (name, values) in pass.tensors() {
        assert!(!values.is_empty(), "{what}: no {name}");
    }
}

fn assert_burns_with_fixed_statistics<const D: usize>(shape: [usize; D]) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            for epsilon in [1e-5, 1e-3] {
                let burns = fixed(burns(shape[1], epsilon, &device, dtype));
                let ours = BatchNorm::from(burns.clone());
                let x = (random_dtype(1, shape, &device, dtype) * 2.0 + 0.3)
                    .detach()
                    .require_grad();
                let found = our_pass(&ours, x.clone());
                let expected = burns_pass(&burns, x);
                let name = format!("{shape:?}, {dtype:?}, epsilon {epsilon} ({device_name})");
                assert_all_tracked(&name, &found);
                found.assert_close(&name, &expected, tolerance);
            }
        }
    }
}

#[test]
fn fixed_statistics_have_burns_values_and_gradients() {
    assert_burns_with_fixed_statistics([5, 3]);
    assert_burns_with_fixed_statistics([4, 3, 6]);
    assert_burns_with_fixed_statistics([2, 3, 5, 7]);
    assert_burns_with_fixed_statistics([2, 3, 2, 3, 4]);
}

#[test]
fn one_sample_one_channel_and_one_pixel_have_burns_gradients() {
    assert_burns_with_fixed_statistics([1, 3]);
    assert_burns_with_fixed_statistics([1, 5, 4, 6]);
    assert_burns_with_fixed_statistics([4, 1, 4, 6]);
    assert_burns_with_fixed_statistics([1, 1, 1, 9]);
    assert_burns_with_fixed_statistics([4, 9, 1, 1]);
}

/// Half precision goes through the portable bodies.
#[test]
fn half_precision_is_burns_to_rounding() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in [(DType::F16, 5e-3), (DType::BF16, 4e-2)] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            let burns = fixed(burns(3, 1e-3, &device, dtype));
            let ours = BatchNorm::from(burns.clone());
            let x = random_dtype(1, [2, 3, 5, 7], &device, dtype).require_grad();
            let found = our_pass(&ours, x.clone());
            let name = format!("{dtype:?} ({device_name})");
            assert_all_tracked(&name, &found);
            found.assert_close(&name, &burns_pass(&burns, x), tolerance);
        }
    }
}

/// The layer twice in one graph: its gradients add up.
#[test]
fn a_layer_that_is_used_twice_gets_both_gradients() {
    for (device_name, device) in autodiff_devices() {
        let norm = ours(4, &device, DType::F64);
        let x = random_dtype(1, [2, 4, 5, 7], &device, DType::F64).require_grad();
        let once = our_pass(&norm, x.clone());
        let twice = pass(
            |x| norm.forward(x.clone()) + norm.forward(x) * 2.0,
            [&norm.gamma, &norm.beta],
            x,
        );
        let tripled = |values: &[f64]| values.iter().map(|it| 3.0 * it).collect::<Vec<_>>();
        for ((name, found), (_, once)) in twice.tensors().into_iter().zip(once.tensors()) {
            let name = format!("{name} ({device_name})");
            assert_close(&name, found, &tripled(once), 1e-12);
        }
    }
}

#[test]
fn strided_inputs_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let burns = fixed(burns(4, 1e-5, &device, dtype));
            let ours = BatchNorm::from(burns.clone());
            let make = |shape| random_dtype::<4>(1, shape, &device, dtype);
            let views = [
                ("channels last", make([2, 5, 7, 4]).permute([0, 3, 1, 2])),
                ("swapped", make([5, 4, 2, 7]).swap_dims(0, 2)),
                ("cut channels", make([2, 9, 5, 7]).narrow(1, 3, 4)),
                ("one row", make([1, 1, 1, 7]).expand([2, 4, 5, 7])),
            ];
            for (name, view) in views {
                let x = view.require_grad();
                let name = format!("{name}, {dtype:?} ({device_name})");
                let found = our_pass(&ours, x.clone());
                found.assert_close(&name, &burns_pass(&burns, x), tolerance);
            }
        }
    }
}

fn assert_burns_in_training<const D: usize>(shape: [usize; D]) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let burns = burns(shape[1], 1e-3, &device, dtype);
            // the same values; a conversion would share the running statistics
            let ours = {
                let vector = |state: &RunningState<Tensor<1>>| RunningState::new(state.value());
                BatchNorm::from(burn::nn::BatchNorm {
                    running_mean: vector(&burns.running_mean),
                    running_var: vector(&burns.running_var),
                    ..burns.clone()
                })
            };
            for step in 0..3 {
                let x = (random_dtype(20 + step, shape, &device, dtype) * 2.0 + 0.3)
                    .detach()
                    .require_grad();
                let name = format!("{shape:?}, {dtype:?}, step {step} ({device_name})");
                let found = our_pass(&ours, x.clone());
                assert_all_tracked(&name, &found);
                found.assert_close(&name, &burns_pass(&burns, x), tolerance);
            }
            let statistics = |mean: &RunningState<Tensor<1>>, var: &RunningState<Tensor<1>>| {
                [values(mean.value()), values(var.value())].concat()
            };
            let before = statistics(
                &BatchNorm::from(self::burns(shape[1], 1e-3, &device, dtype)).running_mean,
                &BatchNorm::from(self::burns(shape[1], 1e-3, &device, dtype)).running_var,
            );
            let (ours, burns) = (ours.valid(), burns.valid());
            let found = statistics(&ours.running_mean, &ours.running_var);
            let expected = statistics(&burns.running_mean, &burns.running_var);
            let name = format!("{shape:?}, {dtype:?}, running statistics ({device_name})");
            assert_close(&name, &found, &expected, tolerance);
            assert_ne!(found, before, "{name}: training moves them");
        }
    }
}

#[test]
fn training_has_burns_values_gradients_and_running_statistics() {
    assert_burns_in_training([5, 3]);
    assert_burns_in_training([2, 3, 5, 7]);
    assert_burns_in_training([2, 3, 2, 3, 4]);
}

#[test]
fn a_valid_layer_uses_the_running_statistics() {
    for (device_name, device) in autodiff_devices() {
        let plain = device.clone().without_autodiff();
        for training in [true, false] {
            let burns = burns(3, 1e-5, &device, DType::F32);
            let burns = burn::nn::BatchNorm {
                training: burns.training.clone().with_value(training),
                ..burns
            };
            let ours = BatchNorm::from(burns.clone()).valid();
            let before = values(ours.running_mean.value());
            let output = ours.forward(random(1, [2, 3, 5, 7], &plain));
            assert!(!output.is_autodiff(), "{device_name}");
            let expected = burns.valid().forward(random::<4>(1, [2, 3, 5, 7], &plain));
            assert_close(&device_name, &values(output), &values(expected), 1e-6);

            // gradients through a model that is not trained, of its input say
            let x = random(1, [2, 3, 5, 7], &device).require_grad();
            let found = our_pass(&ours, x.clone());
            let all = our_pass(&self::ours(3, &device, DType::F32), x);
            assert_eq!((found.weight, found.bias), (None, None), "{device_name}");
            assert_eq!(found.input, all.input, "{device_name}");
            assert_eq!(values(ours.running_mean.value()), before, "{device_name}");
            assert_eq!(
                ours.train().training.is_enabled(),
                training,
                "{device_name}"
            );
        }
    }
}

#[test]
fn each_of_input_gamma_and_beta_can_be_tracked_by_itself() {
    for (device_name, device) in autodiff_devices() {
        let norm = ours(3, &device, DType::F32);
        let plain = device.clone().without_autodiff();
        let all = our_pass(&norm, random(1, [2, 3, 5, 7], &device).require_grad());
        for tracked in 0..8 {
            let [input, gamma, beta] = [1, 2, 4].map(|bit| tracked & bit != 0);
            if tracked == 0 {
                continue;
            }
            let mut norm = norm.clone();
            norm.gamma = norm.gamma.set_require_grad(gamma);
            norm.beta = norm.beta.set_require_grad(beta);
            let keep =
                |gradient: &Option<Vec<f64>>, tracked: bool| gradient.clone().filter(|_| tracked);
            let expected = Pass {
                output: all.output.clone(),
                input: keep(&all.input, input),
                weight: keep(&all.weight, gamma),
                bias: keep(&all.bias, beta),
            };
            let name = format!("input {input}, gamma {gamma}, beta {beta} ({device_name})");
            let x = random(1, [2, 3, 5, 7], &device).set_require_grad(input);
            assert_eq!(our_pass(&norm, x), expected, "{name}");
            if !input {
                let x = random(1, [2, 3, 5, 7], &plain);
                assert_eq!(our_pass(&norm, x), expected, "{name}, plain input");
            }
        }
        let output = norm.no_grad().forward(random(1, [2, 3, 5, 7], &device));
        assert!(!output.is_tracked(), "{device_name}: nothing is tracked");
        assert_eq!(values(output), all.output, "{device_name}");
    }
}

#[test]
fn a_plain_layer_passes_the_gradient_of_its_input() {
    for (device_name, device) in autodiff_devices() {
        let plain = ours(3, &device.clone().without_autodiff(), DType::F32);
        let x = || random(1, [2, 3, 5, 7], &device).require_grad();
        let all = our_pass(&ours(3, &device, DType::F32), x());
        let expected = Pass {
            weight: None,
            bias: None,
            ..all
        };
        assert_eq!(our_pass(&plain, x()), expected, "{device_name}");
    }
}

/// The weight gradient of no images is zero, not what happened to be in memory.
#[test]
fn no_images_give_zero_gradients() {
    for (name, device) in autodiff_devices() {
        let data = TensorData::new(Vec::<f32>::new(), [0, 3, 5, 7]);
        let x = Tensor::<4>::from_data(data, &device).require_grad();
        let expected = Pass {
            output: vec![],
            input: Some(vec![]),
            weight: Some(vec![0.0; 3]),
            bias: Some(vec![0.0; 3]),
        };
        assert_eq!(
            our_pass(&ours(3, &device, DType::F32), x),
            expected,
            "{name}"
        );
    }
}

#[derive(Module, Debug)]
struct Ours {
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct Burns {
    norm: burn::nn::BatchNorm,
}

#[test]
fn records_go_both_ways() {
    for (name, device) in devices() {
        let scrambled = Burns {
            norm: burns(4, 1e-5, &device, DType::F32),
        };
        let numbers = |norm: &burn::nn::BatchNorm| {
            [
                values(norm.gamma.val()),
                values(norm.beta.val()),
                values(norm.running_mean.value()),
                values(norm.running_var.value()),
            ]
        };
        let (expected, id) = (numbers(&scrambled.norm), scrambled.norm.gamma.id);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [first, second] = ["first.bpk", "second.bpk"].map(|name| folder.path().join(name));

        let new = BatchNormConfig::new(4).init(&device);
        let ours = Ours { norm: new };
        scrambled.save_file(&first).expect("a writable folder");
        let ours = ours.load_file(&first);
        let found = burn::nn::BatchNorm::from(ours.norm.clone());
        assert_eq!(numbers(&found), expected, "{name}");
        assert_eq!(ours.norm.gamma.id, id, "{name}: optimizer state goes by id");

        ours.save_file(&second).expect("a writable folder");
        let back = Burns {
            norm: burn::nn::BatchNormConfig::new(4).init(&device),
        };
        let back = back.load_file(&second);
        assert_eq!(numbers(&back.norm), expected, "{name}");
        assert_eq!(back.norm.gamma.id, id, "{name}");
    }
}

#[test]
fn layers_convert_both_ways_without_a_copy() {
    for (name, device) in devices() {
        let config = burn::nn::BatchNormConfig::new(5)
            .with_epsilon(0.25)
            .with_momentum(0.75);
        let burns = config.init(&device);
        let ids = [burns.gamma.id, burns.beta.id, burns.training.id];
        let ours = BatchNorm::from(burns);
        assert!(!ours.gamma.is_initialized(), "{name}: parameters only move");
        assert_eq!(
            [ours.gamma.id, ours.beta.id, ours.training.id],
            ids,
            "{name}"
        );
        assert_eq!((ours.epsilon, ours.momentum), (0.25, 0.75), "{name}");
        let mean = ours.running_mean.clone();
        let back = burn::nn::BatchNorm::from(ours);
        assert_eq!(
            [back.gamma.id, back.beta.id, back.training.id],
            ids,
            "{name}"
        );
        assert_eq!(back.to_string(), config.init(&device).to_string(), "{name}");
        mean.update(Tensor::ones([5], &device));
        let shared = values(back.running_mean.value_sync());
        assert_eq!(shared, [1.0; 5], "{name}: the statistics move too");
    }
}

#[test]
fn configurations_convert_both_ways() {
    let ours = BatchNormConfig::new(6)
        .with_epsilon(1e-3)
        .with_momentum(0.01);
    let burns = burn::nn::BatchNormConfig::from(ours.clone());
    assert_eq!(BatchNormConfig::from(burns).to_string(), ours.to_string());
    let norm = ours.init(&Device::default());
    assert_eq!((norm.epsilon, norm.momentum), (1e-3, 0.01));
    assert_eq!(norm.gamma.dims(), [6]);
}

#[test]
fn a_layer_shows_its_features_and_its_method() {
    let norm = ours(6, &Device::default(), DType::F32);
    let norm = norm.with_method(burn_frugal::Method::gradient_filter(2));
    let shown = norm.expect("suitable").to_string();
    assert_contains(
        &shown,
        &["num_features: 6", "gradient filter, patch 2", "disabled"],
    );
}

#[test]
fn wrong_shapes_panic_with_the_operation_and_the_shapes() {
    let all = devices().into_iter();
    for (name, device) in
        all.flat_map(|(name, device)| [(name, device.clone()), (name, device.autodiff())])
    {
        for training in [true, false] {
            let norm = burns(4, 1e-5, &device, DType::F32);
            let norm = BatchNorm::from(burn::nn::BatchNorm {
                training: norm.training.clone().with_value(training),
                ..norm
            });
            let message = |message: Option<String>| {
                message.unwrap_or_else(|| panic!("{name}: a wrong input is accepted"))
            };
            let parts = |shape| ["BatchNorm::forward", "[batch, 4, ..]", shape];
            let map = panic_message(|| norm.forward(Tensor::<4>::zeros([2, 3, 4, 4], &device)));
            assert_contains(&message(map), &parts("[2, 3, 4, 4]"));
            let rows = panic_message(|| norm.forward(Tensor::<2>::zeros([4, 5], &device)));
            assert_contains(&message(rows), &parts("[4, 5]"));
            let vector = panic_message(|| norm.forward(Tensor::<1>::zeros([4], &device)));
            assert_contains(&message(vector), &parts("[4]"));
        }
    }
}

#[test]
fn another_element_type_panics_with_both() {
    for (name, device) in devices() {
        let norm = ours(4, &device, DType::F32);
        let input = Tensor::<4>::zeros([1, 4, 8, 8], (&device, DType::F64));
        let message = panic_message(|| norm.forward(input));
        let message = message.unwrap_or_else(|| panic!("{name}: accepted"));
        assert_contains(
            &message,
            &["BatchNorm::forward", "[1, 4, 8, 8]", "F64", "F32"],
        );
    }
}

#[test]
fn a_quantized_layer_computes_in_floats() {
    // Burn's ndarray backend does not have this kind of quantization
    let devices = devices().into_iter().filter(|(name, _)| *name != "ndarray");
    for (name, device) in devices {
        let norm = ours(8, &device, DType::F32);
        let mut quantizer = Quantizer::new(Calibration::MinMax, QuantScheme::default());
        let exact = values(norm.forward(random(1, [2, 8, 4, 4], &device)));
        // a copy shares the running statistics
        let norm = norm.quantize_weights(&mut quantizer);
        assert!(
            matches!(norm.gamma.val().dtype(), DType::QFloat(_)),
            "{name}"
        );
        let found = values(norm.forward(random(1, [2, 8, 4, 4], &device)));
        assert_close(name, &found, &exact, 0.02);
        assert_ne!(found, exact, "{name}: quantizing changes the values");
    }
}

/// The convolution and the layer, one after the other, and folded.
fn assert_folds(name: &str, conv: Conv2d, norm: &BatchNorm, device: &Device) {
    let x = random(1, [2, 4, 7, 9], device);
    let expected = norm.forward(conv.forward(x.clone()));
    let folded = norm.fold_into(conv);
    let trained = folded.weight.val().is_tracked();
    assert_eq!(trained, device.is_autodiff(), "{name}: a trained leaf");
    assert_close(name, &values(folded.forward(x)), &values(expected), 1e-5);
}

#[test]
fn folding_keeps_the_function() {
    let all = devices()
        .into_iter()
        .map(|(name, device)| (name.to_string(), device));
    for (name, device) in all.chain(autodiff_devices()) {
        let norm = BatchNorm::from(fixed(burns(6, 1e-3, &device, DType::F32)));
        for config in [
            same([4, 6], 3),
            same([4, 6], 1),
            same([4, 6], 3).with_groups(2).with_stride([2, 1]),
        ] {
            let conv = layer(&config, &device, DType::F32);
            assert_folds(&format!("{config} ({name})"), conv.clone(), &norm, &device);
            let conv = Conv2d { bias: None, ..conv };
            assert_folds(&format!("{config}, no bias ({name})"), conv, &norm, &device);
        }
    }
}

#[test]
fn folding_into_other_channels_panics_with_both() {
    let device = Device::default();
    let conv = Conv2dConfig::new([4, 6], [3, 3]).init(&device);
    let norm = ours(5, &device, DType::F32);
    let message = panic_message(|| norm.fold_into(conv)).expect("refused");
    assert_contains(
        &message,
        &["BatchNorm::fold_into", "5 features", "6 output channels"],
    );
}
