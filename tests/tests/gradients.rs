//! Guards the layer inside Burn's graph: memory layouts, mixed and frozen inputs, empty batches,
//! non-finite values, whole networks against Burn's own layer, and shapes that have gone wrong in
//! other frameworks, named after their public issues.

use burn::module::{Module, Param};
use burn::nn::PaddingConfig2d;
use burn::tensor::{
    DType, Device, Tensor, TensorData, activation::relu, module::conv2d, ops::ConvOptions,
};
use burn_frugal::Method;
use burn_frugal::kernels::ConvGeometry;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_tests::{
    Pass, assert_close, autodiff_devices, devices, random, random_dtype, relative_error, values,
};

const INPUT: [usize; 4] = [2, 4, 7, 9];
const OUTPUT: [usize; 4] = [2, 6, 7, 9];

fn methods() -> [Method; 3] {
    [
        Method::Exact,
        Method::gradient_filter(2),
        Method::published_gradient_filter(2),
    ]
}

/// A square kernel, padded to keep the map's size.
fn same(channels: [usize; 2], kernel: usize) -> Conv2dConfig {
    let pad = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
}

/// A layer with reproducible parameters.
fn layer(config: &Conv2dConfig, device: &Device, dtype: DType) -> Conv2d {
    let mut conv = config.init(device);
    let bias = conv
        .bias
        .map(|bias| random_dtype(12, bias.dims(), device, dtype));
    conv.bias = bias.map(Param::from_tensor);
    conv.weight = Param::from_tensor(random_dtype(11, conv.weight.dims(), device, dtype));
    conv
}

fn with(conv: &Conv2d, method: Method) -> Conv2d {
    conv.clone().with_method(method).expect("suitable")
}

/// Calls `check` with a 3x3 layer for [`INPUT`] and [`OUTPUT`], for every method and device.
fn for_each_layer(check: impl Fn(&str, &Device, Conv2d)) {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        for method in methods() {
            check(
                &format!("{method} ({device_name})"),
                &device,
                with(&conv, method),
            );
        }
    }
}

fn tracked_input(device: &Device) -> Tensor<4> {
    random(1, INPUT, device).require_grad()
}

fn upstream(device: &Device) -> Tensor<4> {
    random(2, OUTPUT, device)
}

/// The same values, laid out with two axes swapped.
fn strided(map: Tensor<4>, [a, b]: [usize; 2]) -> Tensor<4> {
    let device = map.device();
    let swapped = map.swap_dims(a, b).into_data();
    Tensor::from_data(swapped, &device).swap_dims(a, b)
}

/// The same values, cut out of a larger map along an axis.
fn cut_out(map: Tensor<4>, axis: usize) -> Tensor<4> {
    let size = map.dims()[axis];
    let around = map.ones_like() * 7.0;
    Tensor::cat(vec![around.clone(), map, around], axis).narrow(axis, size, size)
}

#[test]
fn a_strided_input_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        let x = random(1, INPUT, device);
        for axes in [[2, 3], [1, 3], [0, 1]] {
            let x = strided(x.clone(), axes).require_grad();
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, expected, "{name}, axes {axes:?} swapped");
        }
        for axis in 0..4 {
            let x = cut_out(x.clone(), axis).require_grad();
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, expected, "{name}, cut out along axis {axis}");
        }
    });
}

#[test]
fn a_strided_weight_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        for axes in [[2, 3], [0, 1]] {
            let mut conv = conv.clone();
            let weight = strided(conv.weight.val().detach(), axes);
            conv.weight = Param::from_tensor(weight);
            let found = Pass::run(&conv, tracked_input(device), upstream(device));
            assert_eq!(found, expected, "{name}, axes {axes:?} swapped");
        }
    });
}

/// What comes after the layer decides how the output's gradient lies in memory.
#[test]
fn a_strided_output_gradient_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        let weighted = |map: Tensor<4>, [a, b]: [usize; 2]| {
            let upstream = strided(upstream(device), [a, b]).swap_dims(a, b);
            (map.swap_dims(a, b) * upstream).sum()
        };
        for axes in [[2, 3], [1, 2], [0, 1]] {
            let x = tracked_input(device);
            let gradients = weighted(conv.forward(x.clone()), axes).backward();
            let found = [x.grad(&gradients), conv.weight.val().grad(&gradients)];
            let found = found.map(|gradient| gradient.map(values));
            let what = format!("{name}, axes {axes:?} swapped");
            assert_eq!(
                found,
                [expected.input.clone(), expected.weight.clone()],
                "{what}"
            );
        }
    });
}

/// `sum()` gives every output the same gradient: Burn expands one number.
#[test]
fn an_expanded_output_gradient_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let ones = Tensor::ones(OUTPUT, device);
        let expected = Pass::run(&conv, tracked_input(device), ones);
        let x = tracked_input(device);
        let gradients = conv.forward(x.clone()).sum().backward();
        assert_eq!(x.grad(&gradients).map(values), expected.input, "{name}");
        let weight = conv.weight.val().grad(&gradients).map(values);
        assert_eq!(weight, expected.weight, "{name}");
    });
}

#[test]
fn plain_and_tracked_inputs_mix() {
    for_each_layer(|name, device, conv| {
        let plain = device.clone().without_autodiff();
        let all = Pass::run(&conv, tracked_input(device), upstream(device));

        let constant = Pass {
            input: None,
            ..all.clone()
        };
        for (what, x) in [
            ("plain", random(1, INPUT, &plain)),
            ("constant", random(1, INPUT, device)),
        ] {
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, constant, "{name}, {what} input");
        }

        let method = conv.method.method();
        let frozen = Pass {
            weight: None,
            bias: None,
            ..all.clone()
        };
        let plain_conv = with(&layer(&same([4, 6], 3), &plain, DType::F32), method);
        for (what, conv) in [
            ("plain", plain_conv.clone()),
            ("frozen", conv.clone().no_grad()),
        ] {
            let found = Pass::run(&conv, tracked_input(device), upstream(device));
            assert_eq!(found, frozen, "{name}, {what} layer");
        }

        let output = plain_conv.forward(random(1, INPUT, &plain));
        assert!(
            !output.is_autodiff(),
            "{name}: nothing was on an autodiff device"
        );
        assert_eq!(values(output), all.output, "{name}, all plain");
    });
}

#[test]
fn each_parameter_can_be_frozen_by_itself() {
    for_each_layer(|name, device, conv| {
        let all = Pass::run(&conv, tracked_input(device), upstream(device));

        let mut only_bias = conv.clone();
        only_bias.weight = only_bias.weight.set_require_grad(false);
        let found = Pass::run(&only_bias, random(1, INPUT, device), upstream(device));
        let expected = Pass {
            input: None,
            weight: None,
            ..all.clone()
        };
        assert_eq!(found, expected, "{name}, only the bias is trained");

        let mut only_weight = conv.clone();
        only_weight.bias = only_weight.bias.map(|bias| bias.set_require_grad(false));
        let found = Pass::run(&only_weight, random(1, INPUT, device), upstream(device));
        let expected = Pass {
            input: None,
            bias: None,
            ..all.clone()
        };
        assert_eq!(found, expected, "{name}, only the weight is trained");

        let without_bias = Conv2d { bias: None, ..conv };
        let found = Pass::run(&without_bias, tracked_input(device), upstream(device));
        assert_eq!(
            (found.input, found.weight),
            (all.input, all.weight),
            "{name}, no bias"
        );
    });
}

/// Gradients through a model that is not trained (of its input, say) are exact.
#[test]
fn a_valid_model_has_exact_input_gradients() {
    for_each_layer(|name, device, conv| {
        let exact = Pass::run(
            &with(&conv, Method::Exact),
            tracked_input(device),
            upstream(device),
        );
        let found = Pass::run(&conv.valid(), tracked_input(device), upstream(device));
        assert_eq!(found.input, exact.input, "{name}");
    });
}

/// NNlib.jl 763: the weight gradient of no images is zero, not what happened to be in memory.
#[test]
fn no_images_give_zero_gradients() {
    for_each_layer(|name, device, conv| {
        let empty = |shape| Tensor::from_data(TensorData::new(Vec::<f32>::new(), shape), device);
        let x: Tensor<4> = empty([0, 4, 7, 9]).require_grad();
        let pass = Pass::run(&conv, x, empty([0, 6, 7, 9]));
        assert_eq!(pass.output, [0.0; 0], "{name}");
        assert_eq!(pass.input, Some(vec![]), "{name}");
        assert_eq!(pass.weight, Some(vec![0.0; 6 * 4 * 9]), "{name}");
        assert_eq!(pass.bias, Some(vec![0.0; 6]), "{name}");
    });
}

/// Patch 1 means "off".
#[test]
fn patch_one_is_the_exact_gradient_bit_for_bit() {
    for (device_name, device) in autodiff_devices() {
        for config in [
            same([4, 6], 3),
            same([4, 4], 5).with_groups(4).with_stride([2, 2]),
        ] {
            let conv = layer(&config, &device, DType::F32);
            let run = |method| {
                let conv = with(&conv, method);
                let x = tracked_input(&device);
                let shape = conv.forward(x.clone()).dims();
                Pass::run(&conv, x, random(2, shape, &device))
            };
            let exact = run(Method::Exact);
            for method in [
                Method::gradient_filter(1),
                Method::published_gradient_filter(1),
            ] {
                assert_eq!(run(method), exact, "{method} ({device_name})");
            }
        }
    }
}

/// The proof that a method's own backward pass runs: white noise is where it is coarsest.
#[test]
fn a_filter_changes_gradients_and_nothing_else() {
    for_each_layer(|name, device, conv| {
        let run = |conv| Pass::run(&conv, tracked_input(device), upstream(device));
        let exact = run(with(&conv, Method::Exact));
        let found = run(conv.clone());
        assert_eq!(found.output, exact.output, "{name}");
        assert_eq!(found.bias, exact.bias, "{name}");
        let far = |found: &Option<Vec<f64>>, exact: &Option<Vec<f64>>| {
            let [found, exact] = [found, exact].map(|it| it.as_deref().expect("tracked"));
            relative_error(found, exact) > 0.1
        };
        let filtered = conv.method.method() != Method::Exact;
        assert_eq!(far(&found.input, &exact.input), filtered, "{name}");
        assert_eq!(far(&found.weight, &exact.weight), filtered, "{name}");
    });
}

/// The layer twice in one graph: its gradients add up.
#[test]
fn a_layer_that_is_used_twice_gets_both_gradients() {
    for (device_name, device) in autodiff_devices() {
        for method in methods() {
            let conv = with(&layer(&same([4, 4], 3), &device, DType::F64), method);
            let x = random_dtype(1, INPUT, &device, DType::F64).require_grad();
            let up = random_dtype(2, INPUT, &device, DType::F64);
            let once = Pass::run(&conv, x.clone(), up.clone());
            let twice = (conv.forward(x.clone()) * up.clone()).sum()
                + (conv.forward(x.clone()) * up).sum() * 2.0;
            let gradients = twice.backward();
            let tripled = |values: Option<Vec<f64>>| -> Vec<f64> {
                values
                    .expect("tracked")
                    .iter()
                    .map(|value| 3.0 * value)
                    .collect()
            };
            let name = format!("{method} ({device_name})");
            let input = values(x.grad(&gradients).expect("tracked"));
            assert_close(&name, &input, &tripled(once.input), 1e-12);
            let weight = values(conv.weight.val().grad(&gradients).expect("tracked"));
            assert_close(&name, &weight, &tripled(once.weight), 1e-12);
        }
    }
}

/// A stem, a depthwise and a pointwise convolution, the last with a residual connection.
fn network_configs() -> [Conv2dConfig; 3] {
    [
        same([3, 6], 3).with_stride([2, 2]),
        same([6, 6], 5).with_groups(6),
        same([6, 6], 1),
    ]
}

fn network_loss(x: Tensor<4>, layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3]) -> Tensor<1> {
    let stem = relu(layers[0](x));
    let depthwise = relu(layers[1](stem.clone()));
    let map = layers[2](depthwise) + stem;
    map.powi_scalar(2).mean()
}

#[test]
fn a_network_has_the_gradients_of_burns_own_layers() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
            let ours = network_configs().map(|config| layer(&config, &device, dtype));
            let burns = ours.clone().map(burn::nn::conv::Conv2d::from);
            let x = random_dtype(1, [2, 3, 12, 10], &device, dtype).require_grad();

            let [a, b, c] = &ours;
            let layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3] =
                [&|x| a.forward(x), &|x| b.forward(x), &|x| c.forward(x)];
            let found = network_loss(x.clone(), layers).backward();
            let [a, b, c] = &burns;
            let layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3] =
                [&|x| a.forward(x), &|x| b.forward(x), &|x| c.forward(x)];
            let expected = network_loss(x.clone(), layers).backward();

            let name = format!("{dtype:?} ({device_name})");
            let gradient = |of: Tensor<4>, gradients| values(of.grad(gradients).expect("tracked"));
            let both = |of: Tensor<4>| (gradient(of.clone(), &found), gradient(of, &expected));
            let (ours_x, burns_x) = both(x);
            assert_close(&format!("{name}, image"), &ours_x, &burns_x, tolerance);
            for (index, conv) in ours.iter().enumerate() {
                let (found, expected) = both(conv.weight.val());
                assert_close(
                    &format!("{name}, weight {index}"),
                    &found,
                    &expected,
                    tolerance,
                );
            }
            for (index, conv) in ours.iter().enumerate() {
                let bias = conv.bias.as_ref().expect("a bias").val();
                let gradient = |gradients| values(bias.grad(gradients).expect("tracked"));
                let (found, expected) = (gradient(&found), gradient(&expected));
                assert_close(
                    &format!("{name}, bias {index}"),
                    &found,
                    &expected,
                    tolerance,
                );
            }
        }
    }
}

/// `PaddingConfig2d::Same` is computed by the layer itself, since Burn's code for it is private.
#[test]
fn same_padding_is_burns() {
    for (device_name, device) in devices() {
        for (kernel, stride, size) in [
            ([3, 3], [1, 1], [7, 8]),
            ([2, 4], [1, 1], [7, 8]),
            ([3, 5], [2, 2], [7, 8]),
            ([4, 1], [3, 2], [11, 5]),
        ] {
            let config = Conv2dConfig::new([2, 3], kernel)
                .with_stride(stride)
                .with_padding(PaddingConfig2d::Same);
            let ours = layer(&config, &device, DType::F64);
            let burns = burn::nn::conv::Conv2d::from(ours.clone());
            let x = random_dtype(1, [1, 2, size[0], size[1]], &device, DType::F64);
            let (found, expected) = (ours.forward(x.clone()), burns.forward(x));
            let name = format!("{kernel:?}, stride {stride:?}, {size:?} ({device_name})");
            assert_eq!(found.dims(), expected.dims(), "{name}");
            assert_close(&name, &values(found), &values(expected), 1e-12);
        }
    }
}

// ------------------------------------------------------------------------------------------------
// Non-finite values

/// Whether output `output` reads pixel `pixel` along an axis.
fn reads(geometry: &ConvGeometry, axis: usize, output: usize, pixel: usize) -> bool {
    (0..geometry.kernel[axis]).any(|tap| {
        let shifted = geometry.stride[axis] * output + geometry.dilation[axis] * tap;
        shifted == pixel + geometry.padding[axis].0
    })
}

/// For each output, whether its window contains input `[image, channel, row, column]`.
fn reached(geometry: &ConvGeometry, [image, channel, row, column]: [usize; 4]) -> Vec<bool> {
    let [height, width] = geometry.output();
    let group = |channel: usize, channels: usize| channel * geometry.groups / channels;
    let mut reached = Vec::with_capacity(geometry.output_len());
    for n in 0..geometry.batch {
        for o in 0..geometry.output_channels {
            let connected = n == image
                && group(o, geometry.output_channels) == group(channel, geometry.input_channels);
            for p in 0..height {
                for q in 0..width {
                    let window = reads(geometry, 0, p, row) && reads(geometry, 1, q, column);
                    reached.push(connected && window);
                }
            }
        }
    }
    reached
}

/// Dense, strided, depthwise, grouped, pointwise, dilated, large and unpadded: each takes another
/// way through the kernels.
fn kinds_of_layer() -> Vec<Conv2dConfig> {
    vec![
        same([4, 6], 3),
        same([4, 6], 3).with_stride([2, 2]),
        same([4, 4], 5).with_groups(4),
        same([4, 8], 3).with_groups(4).with_stride([2, 1]),
        same([4, 6], 3).with_groups(2),
        same([4, 6], 1),
        same([4, 6], 1).with_stride([2, 2]),
        same([4, 6], 3).with_dilation([2, 2]),
        Conv2dConfig::new([4, 32], [3, 3]),
        Conv2dConfig::new([4, 6], [4, 4]).with_stride([4, 4]),
    ]
}

const PIXELS: [[usize; 4]; 4] = [[0, 0, 0, 0], [1, 3, 3, 4], [1, 1, 9, 10], [0, 2, 5, 0]];

/// burn 5394: one bad pixel reaches the outputs whose window contains it, and no other. A kernel
/// that multiplies it by a zero elsewhere spreads it.
#[test]
fn burn_5394_a_non_finite_pixel_stays_in_its_window() {
    const SHAPE: [usize; 4] = [2, 4, 10, 11];
    for (device_name, device) in devices() {
        for config in kinds_of_layer() {
            let conv = layer(&config, &device, DType::F32);
            let geometry = conv.geometry(SHAPE);
            for pixel in PIXELS {
                for bad in [f32::NAN, f32::INFINITY] {
                    let x = with_value(random(1, SHAPE, &device), pixel, bad);
                    let output = values(conv.forward(x));
                    let found: Vec<bool> = output.iter().map(|value| !value.is_finite()).collect();
                    let expected = reached(&geometry, pixel);
                    assert!(
                        found == expected,
                        "{bad} at {pixel:?}, {config} ({device_name})"
                    );
                }
            }
        }
    }
}

/// The same backwards: one bad output gradient reaches the pixels of its window.
#[test]
fn burn_5394_a_non_finite_output_gradient_stays_in_its_window() {
    const SHAPE: [usize; 4] = [2, 4, 10, 11];
    for (device_name, device) in devices() {
        let device = device.autodiff();
        for config in kinds_of_layer() {
            let conv = layer(&config, &device, DType::F32);
            let geometry = conv.geometry(SHAPE);
            let [height, width] = geometry.output();
            let output = [1, geometry.output_channels - 1, height / 2, width - 1];
            let shape = [SHAPE[0], geometry.output_channels, height, width];
            let upstream = with_value(random(2, shape, &device), output, f32::NAN);
            let x = random(1, SHAPE, &device).require_grad();
            let pass = Pass::run(&conv, x, upstream);
            for (index, value) in pass.input.expect("tracked").iter().enumerate() {
                let expected = reached(&geometry, position(index, SHAPE))[flat(output, shape)];
                let what = format!("input {index}, {config} ({device_name})");
                assert_eq!(value.is_nan(), expected, "{what}");
            }
        }
    }
}

fn flat([n, c, y, x]: [usize; 4], [_, channels, height, width]: [usize; 4]) -> usize {
    ((n * channels + c) * height + y) * width + x
}

fn position(index: usize, [_, channels, height, width]: [usize; 4]) -> [usize; 4] {
    let (row, x) = (index / width, index % width);
    let (plane, y) = (row / height, row % height);
    [plane / channels, plane % channels, y, x]
}

fn with_value(map: Tensor<4>, at: [usize; 4], value: f32) -> Tensor<4> {
    let (device, shape) = (map.device(), map.dims());
    let mut numbers: Vec<f32> = map.into_data().iter::<f32>().collect();
    numbers[flat(at, shape)] = value;
    Tensor::from_data(TensorData::new(numbers, shape), &device)
}

// ------------------------------------------------------------------------------------------------
// Shapes from public issues

/// Checks the exact layer by what defines its gradients, with Burn's forward convolution as the
/// only witness: the layer is linear in the input and in the weight, so
/// `<input gradient, u> = <layer applied to u, output gradient>` for any `u`, and likewise for the
/// weight.
#[track_caller]
fn assert_exact(config: Conv2dConfig, shape: [usize; 4]) {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&config, &device, DType::F64);
        let x = random_dtype(1, shape, &device, DType::F64);
        let convolved = |x: &Tensor<4>, weight: Tensor<4>| {
            let geometry = conv.geometry(shape);
            let options = ConvOptions::new_with_padding(
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                geometry.groups,
            );
            conv2d(
                x.clone().without_autodiff(),
                weight.without_autodiff(),
                None,
                options,
            )
        };
        let weight = conv.weight.val();
        let unbiased = convolved(&x, weight.clone());
        let upstream = random_dtype(2, unbiased.dims(), &device, DType::F64);
        let pass = Pass::run(&conv, x.clone().require_grad(), upstream.clone());

        let name = format!("{config}, {shape:?} ({device_name})");
        let bias = conv.bias.as_ref().expect("a bias").val().without_autodiff();
        let channels = bias.dims()[0];
        let expected = values(unbiased + bias.reshape([1, channels, 1, 1]));
        assert_close(&format!("{name}, output"), &pass.output, &expected, 1e-12);

        let upstream = values(upstream);
        let [input_gradient, weight_gradient] =
            [&pass.input, &pass.weight].map(|gradient| gradient.as_deref().expect("tracked"));
        for seed in 100..103 {
            let u = random_dtype(seed, shape, &device, DType::F64);
            let found = dot(input_gradient, &values(u.clone()));
            let expected = dot(&values(convolved(&u, weight.clone())), &upstream);
            assert_close(
                &format!("{name}, input gradient"),
                &[found],
                &[expected],
                1e-9,
            );

            let v = random_dtype(seed, weight.dims(), &device, DType::F64);
            let found = dot(weight_gradient, &values(v.clone()));
            let expected = dot(&values(convolved(&x, v)), &upstream);
            assert_close(
                &format!("{name}, weight gradient"),
                &[found],
                &[expected],
                1e-9,
            );
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn burn_3511_twelve_groups_with_stride_two() {
    let config = same([48, 12], 3).with_groups(12).with_stride([2, 2]);
    assert_exact(config, [1, 48, 8, 8]);
}

#[test]
fn burn_1877_a_group_a_channel_with_stride_two() {
    assert_exact(
        same([4, 4], 3).with_groups(4).with_stride([2, 2]),
        [1, 4, 4, 4],
    );
}

#[test]
fn burn_4591_single_pixels_in_a_channel_slice() {
    assert_exact(same([5, 4], 3), [3, 5, 1, 1]);
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 1), &device, DType::F32);
        for method in methods() {
            let conv = with(&conv, method);
            let x = random(1, [3, 4, 1, 1], &device);
            let upstream = random(2, [3, 6, 1, 1], &device);
            let expected = Pass::run(&conv, x.clone().require_grad(), upstream.clone());
            let found = Pass::run(&conv, cut_out(x, 1).require_grad(), upstream);
            assert_eq!(found, expected, "{method} ({device_name})");
        }
    }
}

#[test]
fn burn_4799_asymmetric_padding_and_a_dropped_tail() {
    let padding = PaddingConfig2d::Explicit(0, 2, 1, 0);
    let config = Conv2dConfig::new([3, 4], [3, 3]).with_padding(padding);
    assert_exact(config.clone(), [2, 3, 8, 7]);
    assert_exact(config.with_stride([2, 2]), [2, 3, 8, 7]);
    // 1603 columns leave 3 that no kernel of 4 with stride 4 reads
    assert_exact(
        Conv2dConfig::new([2, 3], [1, 4]).with_stride([1, 4]),
        [1, 2, 1, 1603],
    );
}

#[test]
fn burn_4445_one_wide_row() {
    let padding = PaddingConfig2d::Explicit(0, 1, 0, 1);
    let config = Conv2dConfig::new([3, 4], [1, 3]).with_padding(padding);
    assert_exact(config, [1, 3, 1, 2049]);
}

#[test]
fn burn_4727_odd_channels_in_groups() {
    for channels in [3, 5, 7, 17] {
        assert_exact(
            same([2 * channels, 2 * channels], 3).with_groups(2),
            [1, 2 * channels, 5, 6],
        );
    }
}

#[test]
fn pytorch_13008_and_51430_groups_and_dilation() {
    assert_exact(same([6, 9], 3).with_groups(3), [2, 6, 8, 7]);
    let dilated = Conv2dConfig::new([4, 6], [3, 2]).with_dilation([2, 3]);
    assert_exact(dilated.clone(), [2, 4, 9, 8]);
    assert_exact(dilated.with_groups(2).with_stride([2, 1]), [2, 4, 9, 8]);
}

#[test]
fn pytorch_15501_stride_and_dilation_on_two_pixels() {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let config = Conv2dConfig::new([2, 3], [2, 2]).with_padding(padding);
    assert_exact(
        config.with_stride([2, 2]).with_dilation([2, 2]),
        [1, 2, 2, 2],
    );
}

#[test]
fn pytorch_19912_grouped_pointwise() {
    assert_exact(same([4, 16], 1).with_groups(2), [2, 4, 1, 1]);
    assert_exact(same([4, 16], 1).with_groups(2), [2, 4, 5, 3]);
}

#[test]
fn pytorch_25101_stride_three_at_the_right_edge() {
    let config = Conv2dConfig::new([9, 3], [5, 5])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_stride([3, 3]);
    assert_exact(config, [1, 9, 32, 32]);
}

#[test]
fn pytorch_50042_twenty_four_depthwise_channels() {
    for channels in [8, 24, 25] {
        let config = same([channels, channels], 3).with_groups(channels);
        assert_exact(config.with_stride([2, 2]), [1, channels, 6, 6]);
    }
}

#[test]
fn pytorch_60075_a_padded_pixel_with_a_long_stride() {
    let config = Conv2dConfig::new([105, 2], [1, 1])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_stride([14, 14]);
    assert_exact(config, [1, 105, 1, 1]);
}
