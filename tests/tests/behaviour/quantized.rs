//! Guards quantized inputs: the weight's gradient is the exact one of an input that was rounded by
//! the documented rule, and everything else is exact.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal::methods::Quantized;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear};
use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};
use burn_frugal_tests::channels::{exact_conv_gradient, exact_linear_gradient};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::sparse_network::linear;
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, devices, panic_message, random_dtype,
    relative_error, values,
};
use proptest::prelude::*;

use crate::user_model::plan_with;

/// Bits, and the largest codes of rows without and with negative values.
const BITS: [(u8, [f64; 2]); 2] = [(8, [255.0, 127.0]), (4, [15.0, 7.0])];
const PRECISIONS: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F64, 1e-12)];

/// The rule: each row in steps from 0 to its largest value, or to either side of 0.
fn dequantized(input: &[f64], row_len: usize, [unsigned, signed]: [f64; 2]) -> Vec<f64> {
    let row = |row: &[f64]| {
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let negative = row.iter().any(|x| *x < 0.0);
        let step = most / if negative { signed } else { unsigned };
        let rounded = |x: &f64| {
            if step == 0.0 {
                0.0
            } else {
                (x / step).round() * step
            }
        };
        row.iter().map(rounded).collect::<Vec<_>>()
    };
    input.chunks(row_len).flat_map(row).collect()
}

/// The elements that share a scale: a map, or all maps of a sample where they have fewer than 8 pixels.
fn row_len([_, channels, height, width]: [usize; 4]) -> usize {
    let pixels = height * width;
    if pixels < 8 {
        pixels * channels
    } else {
        pixels
    }
}

/// Inputs of both signs, of one sign, and of one in some rows only.
fn inputs<const D: usize>(
    shape: [usize; D],
    device: &Device,
    dtype: DType,
) -> Vec<(&'static str, Tensor<D>)> {
    let signed = random_dtype(1, shape, device, dtype);
    let some = signed.clone() + (random_dtype::<D>(3, shape, device, dtype) + 0.9).clamp_min(0.0);
    vec![
        ("signed", signed.clone()),
        ("unsigned", signed.clone().abs()),
        ("mostly positive", some),
        ("rectified", signed.clone().clamp_min(0.0)),
        ("zero", signed.zeros_like()),
    ]
}

/// Everything of a pass with the method: the weight's gradient by the rule, the rest exact.
#[track_caller]
fn assert_rule(name: &str, found: &Pass, exact: &Pass, expected: &[f64], tolerance: f64) {
    assert_eq!(found.output, exact.output, "{name}");
    assert_eq!(found.input, exact.input, "{name}");
    assert_eq!(found.bias, exact.bias, "{name}");
    assert!(
        found.input.is_some() && found.bias.is_some(),
        "{name}: tracked"
    );
    let weight = found.weight.as_deref().expect("trained");
    assert_close(name, weight, expected, tolerance);
}

fn assert_conv(config: &Conv2dConfig, size: [usize; 2], batch: usize) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let conv = layer(config, &device, dtype);
            let shape = [batch, config.channels[0], size[0], size[1]];
            let geometry = conv.geometry(shape);
            let [rows, columns] = geometry.output();
            let output = [batch, config.channels[1], rows, columns];
            let upstream = random_dtype(2, output, &device, dtype);
            for (what, x) in inputs(shape, &device, dtype) {
                let x = x.detach().require_grad();
                let run = |method| Pass::run(&with(&conv, method), x.clone(), upstream.clone());
                let exact = run(Method::Exact);
                for (bits, levels) in BITS {
                    let rounded = dequantized(&values(x.clone()), row_len(shape), levels);
                    let expected =
                        exact_conv_gradient(&geometry, &rounded, &values(upstream.clone()));
                    let name = format!("{config}, {what}, {bits} bits, {dtype:?} ({device_name})");
                    assert_rule(
                        &name,
                        &run(Method::quantized(bits)),
                        &exact,
                        &expected,
                        tolerance,
                    );
                }
            }
        }
    }
}

#[test]
fn convolutions_have_the_gradient_of_the_rounded_input() {
    assert_conv(&same([4, 6], 3), [7, 9], 2);
    assert_conv(&same([4, 6], 1), [5, 4], 3);
    assert_conv(&same([4, 4], 5).with_groups(4), [7, 9], 2);
    assert_conv(
        &same([4, 8], 3).with_groups(2).with_stride([2, 1]),
        [6, 7],
        2,
    );
    assert_conv(
        &Conv2dConfig::new([3, 5], [3, 2]).with_dilation([2, 1]),
        [8, 5],
        1,
    );
}

/// A scale a map would be a large part of what is kept.
#[test]
fn small_maps_share_a_scale() {
    assert_conv(&same([5, 6], 3), [1, 7], 3);
    assert_conv(&same([5, 6], 1), [1, 1], 3);
    assert_conv(&same([4, 4], 3).with_groups(4), [2, 3], 2);
    // 8 pixels have their own
    assert_conv(&same([5, 6], 3), [2, 4], 2);
}

fn assert_linear<const D: usize>(mut shape: [usize; D]) {
    let (inputs_len, outputs_len) = (7, 4);
    shape[D - 1] = inputs_len;
    let mut output = shape;
    output[D - 1] = outputs_len;
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in PRECISIONS {
            let linear = linear(inputs_len, outputs_len, &device, dtype);
            let upstream = random_dtype(2, output, &device, dtype);
            for (what, x) in inputs(shape, &device, dtype) {
                let x = x.detach().require_grad();
                let run = |method| {
                    let linear = linear.clone().with_method(method).expect("suitable");
                    Pass::run_linear(&linear, x.clone(), upstream.clone())
                };
                let exact = run(Method::Exact);
                for (bits, levels) in BITS {
                    let rounded = dequantized(&values(x.clone()), inputs_len, levels);
                    let expected = exact_linear_gradient(
                        [inputs_len, outputs_len],
                        &rounded,
                        &values(upstream.clone()),
                    );
                    let name = format!("{shape:?}, {what}, {bits} bits, {dtype:?} ({device_name})");
                    assert_rule(
                        &name,
                        &run(Method::quantized(bits)),
                        &exact,
                        &expected,
                        tolerance,
                    );
                }
            }
        }
    }
}

#[test]
fn linear_layers_have_the_gradient_of_the_rounded_input() {
    assert_linear([0]);
    assert_linear([5, 0]);
    assert_linear([1, 0]);
    assert_linear([3, 5, 0]);
    assert_linear([2, 3, 2, 0]);
    assert_linear([2, 1, 3, 2, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_convolution_has_the_gradient_of_the_rounded_input(
        sizes in (1_usize..4, 1_usize..4, 1_usize..4),
        kernel in [1_usize..4, 1_usize..4],
        stride in [1_usize..3, 1_usize..3],
        size in [1_usize..8, 1_usize..8],
        batch in 1_usize..4,
        signed in any::<bool>(),
    ) {
        let (groups, inputs, outputs) = sizes;
        let config = Conv2dConfig::new([groups * inputs, groups * outputs], kernel)
            .with_groups(groups)
            .with_stride(stride)
            .with_padding(burn::nn::PaddingConfig2d::Explicit(1, 1, 2, 1));
        let shape = [batch, groups * inputs, size[0], size[1]];
        for (device_name, device) in devices() {
            let device = device.autodiff();
            let conv = layer(&config, &device, DType::F64);
            let geometry = conv.geometry(shape);
            let [rows, columns] = geometry.output();
            let x = random_dtype::<4>(1, shape, &device, DType::F64);
            let x = if signed { x } else { x.abs() };
            let output = [batch, groups * outputs, rows, columns];
            let upstream = random_dtype(2, output, &device, DType::F64);
            for (bits, levels) in BITS {
                let rounded = dequantized(&values(x.clone()), row_len(shape), levels);
                let expected = exact_conv_gradient(&geometry, &rounded, &values(upstream.clone()));
                let conv = with(&conv, Method::quantized(bits));
                let found = Pass::run(&conv, x.clone(), upstream.clone()).weight;
                let error = relative_error(&found.expect("trained"), &expected);
                prop_assert!(error < 1e-12, "{device_name}, {bits} bits: {error:e}");
            }
        }
    }
}

/// Half precision goes through the portable body.
#[test]
fn gradients_are_close_to_exact_in_every_precision() {
    for (device_name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            for config in [
                same([4, 6], 3),
                same([4, 4], 5).with_groups(4).with_stride([2, 2]),
                same([4, 6], 1),
            ] {
                let conv = layer(&config, &device, dtype);
                let x = random_dtype(1, [4, 4, 12, 10], &device, dtype);
                let shape = conv.forward(x.clone()).dims();
                let upstream = random_dtype(2, shape, &device, dtype);
                let run = |method| Pass::run(&with(&conv, method), x.clone(), upstream.clone());
                let exact = run(Method::Exact).weight.expect("trained");
                for (bits, bound) in [(8, 0.01), (4, 0.15)] {
                    let found = run(Method::quantized(bits)).weight.expect("trained");
                    let error = relative_error(&found, &exact);
                    let name = format!("{config}, {bits} bits, {dtype:?} ({device_name})");
                    assert!(error < bound, "{name}: {error}");
                    assert!(error > 0.0, "{name}: nothing was rounded");
                }
            }
        }
    }
}

#[test]
fn strided_inputs_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F64);
        let upstream = random_dtype(2, [2, 6, 7, 9], &device, DType::F64);
        let last = random_dtype(1, [2, 7, 9, 4], &device, DType::F64).permute([0, 3, 1, 2]);
        let cut = random_dtype(1, [2, 9, 7, 12], &device, DType::F64)
            .narrow(1, 2, 4)
            .narrow(3, 1, 9);
        for x in [last, cut] {
            let plain = Tensor::from_data(x.to_data(), (&device, DType::F64));
            for (bits, _) in BITS {
                let conv = with(&conv, Method::quantized(bits));
                let found = Pass::run(&conv, x.clone(), upstream.clone());
                let expected = Pass::run(&conv, plain.clone(), upstream.clone());
                found.assert_close(&format!("{bits} bits ({device_name})"), &expected, 1e-12);
            }
        }
    }
}

#[test]
fn other_bits_are_errors_with_the_layer_and_the_number() {
    let device = Device::default();
    for bits in [0, 1, 2, 3, 5, 7, 9, 16, 255] {
        let number = format!("found {bits}");
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        let error = conv
            .clone()
            .with_method(Method::quantized(bits))
            .unwrap_err();
        assert!(matches!(error, Error::Method { .. }), "{error}");
        assert_contains(
            &error.to_string(),
            &["layer `Conv2d`", "8 or 4 bits", &number],
        );

        let layer = linear(4, 3, &device, DType::F32);
        let error = layer.with_method(Method::quantized(bits)).unwrap_err();
        assert_contains(
            &error.to_string(),
            &["layer `Linear`", "8 or 4 bits", &number],
        );

        let error = plan_with("0", Method::quantized(bits)).apply(vec![conv.clone()]);
        assert_contains(&error.unwrap_err().to_string(), &["layer `0`", &number]);

        let bytes = panic_message(|| {
            Method::quantized(bits).bytes(conv.geometry([1, 4, 8, 8]), size_of::<f32>())
        });
        assert_contains(&bytes.expect("refused"), &["8 or 4 bits", &number]);
    }
}

#[test]
fn a_plan_with_it_survives_json() {
    let text = r#"{
  "version": 1,
  "layers": {
    "a": {
      "quantized": {
        "bits": 8
      }
    },
    "b": {
      "quantized": {
        "bits": 4
      }
    }
  }
}"#;
    let plan = Plan::from_json(text).expect("a plan");
    assert_eq!(plan.methods()["a"], Method::quantized(8));
    assert_eq!(
        plan.methods()["b"],
        Method::Quantized(Quantized { bits: 4 })
    );
    assert_eq!(plan.to_json(), text);
    assert_eq!(
        plan.to_string(),
        "a  quantized, 8 bits\nb  quantized, 4 bits"
    );
    for wrong in [
        r#"{"bits":256}"#,
        r#"{"bits":-8}"#,
        r#"{"bits":"8"}"#,
        r#"{"bits":8,"rows":2}"#,
        "{}",
        "8",
    ] {
        let text = format!(r#"{{"version":1,"layers":{{"a":{{"quantized":{wrong}}}}}}}"#);
        let error = Plan::from_json(&text).expect_err(wrong);
        assert!(matches!(error, Error::NotADocument { .. }), "{error}");
    }
}

/// What is not trained rounds nothing.
#[test]
fn a_frozen_or_valid_layer_is_the_exact_one() {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        let x = || random_dtype(1, [2, 4, 7, 9], &device, DType::F32).require_grad();
        let upstream = || random_dtype(2, [2, 6, 7, 9], &device, DType::F32);
        for (bits, _) in BITS {
            let name = format!("{bits} bits ({device_name})");
            let quantized = with(&conv, Method::quantized(bits));
            for change in [|conv: Conv2d| conv.no_grad(), |conv: Conv2d| conv.valid()] {
                let found = Pass::run(&change(quantized.clone()), x(), upstream());
                let exact = Pass::run(&change(conv.clone()), x(), upstream());
                assert_eq!(found, exact, "{name}");
                assert_eq!(found.weight, None, "{name}");
            }
            let trained = quantized.valid().train();
            assert_eq!(trained.method.method(), Method::quantized(bits), "{name}");
        }
    }
}

/// Codes have no NaN: the scale shows it.
#[test]
fn values_that_are_not_finite_show_in_the_gradient() {
    for (device_name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                for at in [0, 5, 8 * 8 - 1] {
                    let mut numbers = values(random_dtype::<4>(1, [2, 4, 8, 8], &device, dtype));
                    // the second channel of the first sample
                    numbers[64 + at] = bad;
                    let data = TensorData::new(numbers, [2, 4, 8, 8]).convert_dtype(dtype);
                    let x = Tensor::<4>::from_data(data, (&device, dtype));
                    let conv = layer(&same([4, 4], 1).with_groups(4), &device, dtype);
                    let upstream = random_dtype(2, [2, 4, 8, 8], &device, dtype);
                    for (bits, _) in BITS {
                        let conv = with(&conv, Method::quantized(bits));
                        let found = Pass::run(&conv, x.clone(), upstream.clone()).weight;
                        let finite: Vec<bool> = found
                            .expect("trained")
                            .iter()
                            .map(|it| it.is_finite())
                            .collect();
                        let name = format!("{bad} at {at}, {bits} bits, {dtype:?} ({device_name})");
                        assert_eq!(finite, [true, false, true, true], "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_images_give_zero_gradients() {
    for (name, device) in autodiff_devices() {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            if !device.supports_dtype(dtype) {
                continue;
            }
            for (bits, _) in BITS {
                let conv = with(
                    &layer(&same([4, 6], 3), &device, dtype),
                    Method::quantized(bits),
                );
                let x = Tensor::<4>::zeros([0, 4, 7, 9], (&device, dtype)).require_grad();
                let pass = Pass::run(&conv, x, Tensor::zeros([0, 6, 7, 9], (&device, dtype)));
                assert_eq!(pass.output, [0.0; 0], "{name}");
                assert_eq!(pass.weight, Some(vec![0.0; 6 * 4 * 9]), "{name}");

                let linear: Linear = linear(5, 3, &device, dtype);
                let linear = linear
                    .with_method(Method::quantized(bits))
                    .expect("suitable");
                let x = Tensor::<3>::zeros([2, 0, 5], (&device, dtype)).require_grad();
                let pass = Pass::run_linear(&linear, x, Tensor::zeros([2, 0, 3], (&device, dtype)));
                assert_eq!(pass.weight, Some(vec![0.0; 15]), "{name}");
                assert_eq!(pass.bias, Some(vec![0.0; 3]), "{name}");
            }
        }
    }
}

#[test]
fn it_carries_nothing_from_step_to_step() {
    for (name, device) in autodiff_devices() {
        let conv = with(
            &layer(&same([4, 6], 3), &device, DType::F32),
            Method::quantized(8),
        );
        let run = || {
            let x = random_dtype(1, [2, 4, 7, 9], &device, DType::F32);
            let upstream = random_dtype(2, [2, 6, 7, 9], &device, DType::F32);
            Pass::step(&conv, x, upstream)
        };
        let first = run();
        conv.forward(random_dtype(9, [1, 4, 5, 5], &device, DType::F32));
        assert_eq!(run(), first, "{name}");
        assert_eq!(conv.method.channels(), None, "{name}");
    }
}
