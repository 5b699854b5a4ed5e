//! Guards channel-sparse updates: exact gradients on the chosen channels and none on the others,
//! and which channels are chosen.

mod ratio;
mod schedules;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::TrainingState;
use burn_frugal::{Error, Method};
use burn_frugal_tests::channels::{
    channels_of_conv, channels_of_linear, exact_conv_gradient, exact_linear_gradient,
};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::sparse_network::linear;
use burn_frugal_tests::{
    Pass, assert_close, autodiff_devices, devices, random, random_dtype, values,
};
use proptest::prelude::*;

type Run = dyn Fn(Method, Option<&[usize]>) -> Pass;

/// A layer with an input and an output gradient.
struct Case {
    name: String,
    /// The input channel of every weight.
    channel_of: Vec<usize>,
    /// The exact weight gradient by the definition.
    expected: Vec<f64>,
    /// A pass with a method, on the channels if they are given.
    run: Box<Run>,
}

/// The layer with a method, and with the channels that it trains.
fn prepared<M: Module>(
    layer: &M,
    channels: Option<&[usize]>,
    set: impl Fn(M) -> Result<M, Error>,
) -> M {
    let layer = set(layer.clone()).expect("suitable");
    match channels {
        None => layer,
        // the layer is the model: its path is empty
        Some(channels) => TrainingState::default()
            .with_channels("", channels.to_vec())
            .restore(layer)
            .expect("its channels"),
    }
}

fn conv_case(config: &Conv2dConfig, size: [usize; 2], device: &Device, dtype: DType) -> Case {
    let conv = layer(config, device, dtype);
    let shape = [2, config.channels[0], size[0], size[1]];
    let geometry = conv.geometry(shape);
    let [rows, columns] = geometry.output();
    let input = random_dtype(1, shape, device, dtype);
    let output = [2, config.channels[1], rows, columns];
    let upstream = random_dtype(2, output, device, dtype);
    Case {
        name: format!("{:?}, {} groups, {dtype:?}", config.channels, config.groups),
        channel_of: channels_of_conv(&conv),
        expected: exact_conv_gradient(&geometry, &values(input.clone()), &values(upstream.clone())),
        run: Box::new(move |method, channels| {
            let conv = prepared(&conv, channels, |conv| conv.with_method(method));
            Pass::step(&conv, input.clone().require_grad(), upstream.clone())
        }),
    }
}

fn linear_case<const D: usize>(leading: [usize; D], device: &Device, dtype: DType) -> Case {
    let (inputs, outputs) = (6, 4);
    let linear = linear(inputs, outputs, device, dtype);
    let [mut input, mut output] = [leading; 2];
    (input[D - 1], output[D - 1]) = (inputs, outputs);
    let input = random_dtype(1, input, device, dtype);
    let upstream = random_dtype(2, output, device, dtype);
    Case {
        name: format!("linear, {D} axes, {dtype:?}"),
        channel_of: channels_of_linear(&linear),
        expected: exact_linear_gradient(
            [inputs, outputs],
            &values(input.clone()),
            &values(upstream.clone()),
        ),
        run: Box::new(move |method, channels| {
            let linear = prepared(&linear, channels, |linear| linear.with_method(method));
            Pass::run_linear(&linear, input.clone().require_grad(), upstream.clone())
        }),
    }
}

/// Calls `check` with every kind of layer on every device: all of them have 6 input channels.
fn for_each_case(check: impl Fn(&Case, f64)) {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
            let conv = |config: Conv2dConfig| conv_case(&config, [5, 7], &device, dtype);
            let cases = [
                conv(same([6, 5], 3).with_stride([2, 1])),
                conv(same([6, 4], 1)),
                conv(same([6, 4], 3).with_groups(2)),
                conv(same([6, 6], 3).with_groups(3).with_dilation([1, 2])),
                conv(same([6, 6], 3).with_groups(6)),
                conv(same([6, 12], 3).with_groups(6).with_stride([1, 2])),
                linear_case([5, 0], &device, dtype),
                linear_case([2, 5, 0], &device, dtype),
                linear_case([2, 3, 2, 0], &device, dtype),
                linear_case([2, 1, 3, 2, 0], &device, dtype),
            ];
            for case in cases {
                let name = format!("{} ({device_name})", case.name);
                check(&Case { name, ..case }, tolerance);
            }
        }
    }
}

/// The values at the weights of these channels, and at the others.
fn split(channel_of: &[usize], values: &[f64], channels: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let marked = values.iter().zip(channel_of);
    let (chosen, others): (Vec<_>, Vec<_>) =
        marked.partition(|(_, channel)| channels.contains(channel));
    let values = |pairs: Vec<(&f64, &usize)>| pairs.into_iter().map(|(value, _)| *value).collect();
    (values(chosen), values(others))
}

fn is_zero(values: &[f64]) -> bool {
    values.iter().all(|value| *value == 0.0)
}

#[test]
fn ratio_one_is_the_exact_gradient_bit_for_bit() {
    for_each_case(|case, _| {
        let exact = (case.run)(Method::Exact, None);
        assert_eq!(
            (case.run)(Method::channel_sparse(1.0), None),
            exact,
            "{}",
            case.name
        );
        let all: Vec<usize> = (0..6).collect();
        let chosen = (case.run)(Method::channel_sparse(0.5), Some(&all));
        assert_eq!(chosen, exact, "{}: all channels", case.name);
    });
}

/// In groups of 3 and of 2, these take all, some and none of a group.
#[test]
fn chosen_channels_have_exact_gradients_and_the_others_none() {
    let selections: [&[usize]; 6] = [&[], &[0], &[5], &[0, 1, 2, 4], &[1, 3], &[0, 2, 3, 4, 5]];
    for_each_case(|case, tolerance| {
        for channels in selections {
            let name = format!("{}, channels {channels:?}", case.name);
            let found = (case.run)(Method::channel_sparse(0.5), Some(channels));
            let weight = found.weight.expect("tracked");
            let (chosen, others) = split(&case.channel_of, &weight, channels);
            let (expected, _) = split(&case.channel_of, &case.expected, channels);
            assert_close(&name, &chosen, &expected, tolerance);
            assert!(is_zero(&others), "{name}: a gradient elsewhere");
        }
    });
}

#[test]
fn outputs_and_the_gradients_of_inputs_and_biases_are_exact() {
    for_each_case(|case, _| {
        let exact = (case.run)(Method::Exact, None);
        for channels in [&[][..], &[1, 3]] {
            let found = (case.run)(Method::channel_sparse(0.5), Some(channels));
            let weight = found.weight.clone();
            assert_ne!(weight, exact.weight, "{}", case.name);
            let expected = Pass {
                weight,
                ..exact.clone()
            };
            assert_eq!(found, expected, "{}, channels {channels:?}", case.name);
        }
    });
}

/// Groups, input channels a group, output channels a group, kernel, stride, dilation, padding.
fn any_config() -> impl Strategy<Value = Conv2dConfig> {
    let pair = |range: std::ops::Range<usize>| [range.clone(), range];
    let sizes = (1_usize..4, 1_usize..4, 1_usize..4);
    (sizes, pair(1..4), pair(1..3), pair(1..3)).prop_map(
        |((groups, inputs, outputs), kernel, stride, dilation)| {
            Conv2dConfig::new([groups * inputs, groups * outputs], kernel)
                .with_groups(groups)
                .with_stride(stride)
                .with_dilation(dilation)
                .with_padding(burn::nn::PaddingConfig2d::Explicit(1, 0, 0, 2))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_channels_of_any_convolution_have_exact_gradients(
        config in any_config(),
        size in [5_usize..8, 5_usize..8],
        chosen in prop::collection::vec(any::<bool>(), 9),
    ) {
        let channels: Vec<usize> = (0..config.channels[0]).filter(|&it| chosen[it]).collect();
        for (name, device) in devices() {
            let case = conv_case(&config, size, &device.autodiff(), DType::F64);
            let found = (case.run)(Method::channel_sparse(0.5), Some(&channels));
            let weight = found.weight.expect("tracked");
            let (_, others) = split(&case.channel_of, &weight, &channels);
            prop_assert!(is_zero(&others), "{}", name);
            let (found, _) = split(&case.channel_of, &weight, &channels);
            let (expected, _) = split(&case.channel_of, &case.expected, &channels);
            let error = burn_frugal_tests::relative_error(&found, &expected);
            prop_assert!(error < 1e-12, "{}: {}", name, error);
        }
    }
}

/// Multiplies the weights of each channel by its factor.
fn scaled(channel_of: &[usize], weight: Vec<f64>, factors: &[f32]) -> Vec<f32> {
    let weights = weight.into_iter().zip(channel_of);
    weights
        .map(|(weight, &channel)| weight as f32 * factors[channel])
        .collect()
}

fn scale_conv(conv: Conv2d, factors: &[f32]) -> Conv2d {
    let channel_of = channels_of_conv(&conv);
    let weight = conv.weight.clone().map(|weight| {
        let (shape, device) = (weight.dims(), weight.device());
        let scaled = scaled(&channel_of, values(weight), factors);
        Tensor::<1>::from_floats(scaled.as_slice(), &device)
            .reshape(shape)
            .detach()
            .require_grad()
    });
    Conv2d { weight, ..conv }
}

fn scale_linear(linear: Linear, factors: &[f32]) -> Linear {
    let channel_of = channels_of_linear(&linear);
    let weight = linear.weight.clone().map(|weight| {
        let (shape, device) = (weight.dims(), weight.device());
        let scaled = scaled(&channel_of, values(weight), factors);
        Tensor::<1>::from_floats(scaled.as_slice(), &device)
            .reshape(shape)
            .detach()
            .require_grad()
    });
    Linear { weight, ..linear }
}

#[test]
fn without_a_schedule_the_largest_weights_are_trained_for_good() {
    // channels 1 and 4, in different groups, outgrow all others; then 0 and 5 outgrow them
    let first = [1.0, 50.0, 1.0, 1.0, 60.0, 1.0];
    let second = [9e3, 1.0, 1.0, 1.0, 1.0, 9e3];
    let sparse = Method::channel_sparse(1.0 / 3.0);
    for (name, device) in autodiff_devices() {
        for groups in [1, 2, 6] {
            let conv = layer(&same([6, 6], 3).with_groups(groups), &device, DType::F32);
            let conv = scale_conv(conv, &first).with_method(sparse);
            let mut conv = conv.expect("suitable");
            assert_eq!(
                conv.method.channels(),
                None,
                "{name}: before the first step"
            );
            conv.forward(random(3, [1, 6, 4, 4], &device));
            for _ in 0..3 {
                assert_eq!(
                    conv.method.channels(),
                    Some(vec![1, 4]),
                    "{name}, {groups} groups"
                );
                conv = scale_conv(conv, &second);
                let input = random(4, [1, 6, 4, 4], &device);
                let gradients = conv.forward(input).sum().backward();
                let gradient = values(conv.weight.val().grad(&gradients).expect("tracked"));
                let (chosen, others) = split(&channels_of_conv(&conv), &gradient, &[1, 4]);
                assert!(
                    !chosen.contains(&0.0) && is_zero(&others),
                    "{name}, {groups} groups"
                );
            }
        }
        let linear = scale_linear(linear(6, 4, &device, DType::F32), &first).with_method(sparse);
        let linear = linear.expect("suitable");
        linear.forward(random(3, [2, 6], &device));
        let linear = scale_linear(linear, &second);
        linear.forward(random(4, [2, 6], &device));
        assert_eq!(linear.method.channels(), Some(vec![1, 4]), "{name}, linear");
    }
}

#[test]
fn of_equally_large_channels_the_first_are_trained() {
    for (name, device) in autodiff_devices() {
        let mut linear = LinearConfig::new(5, 2).init(&device);
        linear.weight = Param::from_tensor(Tensor::ones([5, 2], &device));
        let linear = linear
            .with_method(Method::channel_sparse(0.4))
            .expect("suitable");
        linear.forward(random(1, [3, 5], &device));
        assert_eq!(linear.method.channels(), Some(vec![0, 1]), "{name}");
    }
}

/// Evaluation in between must not decide what is trained.
#[test]
fn only_training_chooses_channels() {
    for (name, device) in autodiff_devices() {
        let method = Method::channel_sparse(0.5);
        let conv = layer(&same([6, 6], 3), &device, DType::F32).with_method(method);
        let conv = conv.expect("suitable");
        let plain = device.clone().without_autodiff();

        let valid = conv.valid();
        valid.forward(random(1, [1, 6, 4, 4], &plain));
        assert_eq!(valid.method.channels(), None, "{name}, valid");
        let frozen = conv.clone().no_grad();
        frozen.forward(random(1, [1, 6, 4, 4], &device).require_grad());
        assert_eq!(frozen.method.channels(), None, "{name}, frozen");
        assert_eq!(
            conv.method.channels(),
            None,
            "{name}, the original of copies"
        );
    }
}
