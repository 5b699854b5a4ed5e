//! Guards channel-sparse updates: exact gradients on the chosen channels and none on the others,
//! which channels are chosen, and schedules on real models.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Gradients, Tensor, activation::tanh};
use burn_frugal::kernels::ConvGeometry;
use burn_frugal::methods::Unsuitable;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use burn_frugal::plan::{self, MethodSlot, Plan, ScheduleError, TrainingState};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, devices, random, random_dtype, values,
};
use proptest::prelude::*;

use crate::user_model::plan_with;

/// One of each kind of convolution, and a chain of two layers around them.
#[derive(Module, Debug)]
pub struct Network {
    pub stem: Conv2d,
    pub blocks: Vec<Conv2d>,
    pub head: Linear,
}

/// The paths of its layers, in order: dense, depthwise, in two groups, linear.
pub const PATHS: [&str; 4] = ["stem", "blocks.0", "blocks.1", "head"];

impl Network {
    pub fn new(device: &Device) -> Self {
        let conv = |config: Conv2dConfig| layer(&config, device, DType::F32);
        Self {
            stem: conv(same([3, 6], 3)),
            blocks: vec![
                conv(same([6, 6], 3).with_groups(6)),
                conv(same([6, 6], 3).with_groups(2)),
            ],
            head: linear(6, 5, device, DType::F32),
        }
    }

    /// Every layer channel-sparse.
    pub fn sparse(device: &Device, ratio: f64) -> Self {
        let network = Self::new(device);
        let plan = Plan::builder().pattern("", Method::channel_sparse(ratio));
        let plan = plan.build(&network).expect("suitable");
        plan.apply(network).expect("its layers")
    }

    /// A loss on a batch of images that depends on the seed, curved and without dead units: no
    /// weight of a trained channel has a gradient of exactly zero.
    pub fn loss(&self, seed: u64) -> Tensor<1> {
        let device = self.head.weight.val().device();
        let mut map = tanh(self.stem.forward(random(seed, [2, 3, 5, 6], &device)));
        for block in &self.blocks {
            map = tanh(block.forward(map));
        }
        let features = map.mean_dim(3).mean_dim(2).reshape([2, 6]);
        let weights = random(seed + 1, [2, 5], &device);
        (self.head.forward(features) * weights).sum()
    }

    /// The gradients of all weights, in the order of [`PATHS`].
    pub fn weight_gradients(&self, gradients: &Gradients) -> [Vec<f64>; 4] {
        let conv = |conv: &Conv2d| values(conv.weight.val().grad(gradients).expect("tracked"));
        [
            conv(&self.stem),
            conv(&self.blocks[0]),
            conv(&self.blocks[1]),
            values(self.head.weight.val().grad(gradients).expect("tracked")),
        ]
    }

    /// What the layers carry, in the order of [`PATHS`].
    pub fn slots(&self) -> [&MethodSlot; 4] {
        [
            &self.stem.method,
            &self.blocks[0].method,
            &self.blocks[1].method,
            &self.head.method,
        ]
    }

    /// The input channel of every weight, in the order of [`PATHS`].
    pub fn channels_of_weights(&self) -> [Vec<usize>; 4] {
        [
            channels_of_conv(&self.stem),
            channels_of_conv(&self.blocks[0]),
            channels_of_conv(&self.blocks[1]),
            channels_of_linear(&self.head),
        ]
    }
}

/// A linear layer with reproducible parameters.
pub fn linear(inputs: usize, outputs: usize, device: &Device, dtype: DType) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs).init(device);
    linear.weight = Param::from_tensor(random_dtype(21, [inputs, outputs], device, dtype));
    linear.bias = Some(Param::from_tensor(random_dtype(
        22,
        [outputs],
        device,
        dtype,
    )));
    linear
}

/// The input channel of every weight `[outputs, inputs / groups, rows, columns]`.
pub fn channels_of_conv(conv: &Conv2d) -> Vec<usize> {
    let [outputs, group_inputs, rows, columns] = conv.weight.dims();
    let mut channels = Vec::new();
    for output in 0..outputs {
        let group = output / (outputs / conv.groups);
        for place in 0..group_inputs {
            channels.extend(vec![group * group_inputs + place; rows * columns]);
        }
    }
    channels
}

/// The input feature of every weight `[inputs, outputs]`.
pub fn channels_of_linear(linear: &Linear) -> Vec<usize> {
    let [inputs, outputs] = linear.weight.dims();
    (0..inputs).flat_map(|input| vec![input; outputs]).collect()
}

/// The Euclidean norm over the values of each channel.
pub fn norms(channel_of: &[usize], values: &[f64]) -> Vec<f64> {
    let channels = channel_of.iter().max().map_or(0, |last| last + 1);
    let norm = |channel: usize| {
        let of_channel = values.iter().zip(channel_of);
        let squares = of_channel.filter(|(_, of)| **of == channel);
        squares.map(|(value, _)| value * value).sum::<f64>().sqrt()
    };
    (0..channels).map(norm).collect()
}

/// The definition: `dL/dW[o, c, i, j]`, the sum over all outputs of their gradient times the input
/// that the weight multiplies.
pub fn exact_conv_gradient(geometry: &ConvGeometry, input: &[f64], upstream: &[f64]) -> Vec<f64> {
    let [height, width] = geometry.input;
    let [rows, columns] = geometry.output();
    let group_inputs = geometry.input_channels / geometry.groups;
    let group_outputs = geometry.output_channels / geometry.groups;
    // where a tap reads, `None` on padding
    let place = |axis: usize, output: usize, tap: usize| {
        let padded = output * geometry.stride[axis] + tap * geometry.dilation[axis];
        let place = padded.checked_sub(geometry.padding[axis].0)?;
        (place < geometry.input[axis]).then_some(place)
    };
    let mut gradient = Vec::new();
    for output in 0..geometry.output_channels {
        for of_group in 0..group_inputs {
            let channel = output / group_outputs * group_inputs + of_group;
            for i in 0..geometry.kernel[0] {
                for j in 0..geometry.kernel[1] {
                    let mut sum = 0.0;
                    for image in 0..geometry.batch {
                        let x = (image * geometry.input_channels + channel) * height * width;
                        let y = (image * geometry.output_channels + output) * rows * columns;
                        for row in 0..rows {
                            for column in 0..columns {
                                if let (Some(h), Some(w)) = (place(0, row, i), place(1, column, j))
                                {
                                    sum += input[x + h * width + w]
                                        * upstream[y + row * columns + column];
                                }
                            }
                        }
                    }
                    gradient.push(sum);
                }
            }
        }
    }
    gradient
}

/// The definition: `dL/dW[i, o]`, the sum over all rows of the input times the output's gradient.
pub fn exact_linear_gradient(
    [inputs, outputs]: [usize; 2],
    input: &[f64],
    upstream: &[f64],
) -> Vec<f64> {
    let mut gradient = vec![0.0; inputs * outputs];
    for (x, y) in input
        .chunks_exact(inputs)
        .zip(upstream.chunks_exact(outputs))
    {
        for (place, gradient) in gradient.iter_mut().enumerate() {
            *gradient += x[place / outputs] * y[place % outputs];
        }
    }
    gradient
}

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

/// The ratio rounded to the nearest, at least 1.
#[test]
fn a_ratio_is_that_share_of_the_channels() {
    let device = devices().remove(0).1.autodiff();
    for (ratio, channels, expected) in [
        (0.5, 6, 3),
        (0.1, 6, 1),
        (1e-9, 6, 1),
        (0.3, 6, 2),
        (0.74, 6, 4),
        (0.76, 6, 5),
        (1.0, 6, 6),
        (0.5, 1, 1),
    ] {
        let linear = linear(channels, 2, &device, DType::F32);
        let linear = linear
            .with_method(Method::channel_sparse(ratio))
            .expect("suitable");
        linear.forward(random(1, [2, channels], &device));
        let found = linear.method.channels().map(|channels| channels.len());
        assert_eq!(found, Some(expected), "{ratio} of {channels}");
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

/// The channels that the network's layers train, by path.
fn chosen(network: &Network) -> BTreeMap<String, Vec<usize>> {
    let chosen = PATHS.iter().zip(network.slots());
    chosen
        .map(|(path, slot)| (path.to_string(), slot.channels().expect("chosen")))
        .collect()
}

/// One of each kind of schedule for a model.
pub fn schedules(model: &Network, amount: Amount) -> [Schedule; 4] {
    let layers = SparseLayer::of(model);
    let importance = Importance::weight_norm(model).expect("finite weights");
    [
        Schedule::fixed(layers.clone(), &importance, amount),
        Schedule::cyclic(layers.clone(), &importance, amount),
        Schedule::resampled(layers.clone(), amount, 2, 7),
        Schedule::weighted(layers, &importance, amount, 2, 7),
    ]
    .map(|schedule| schedule.expect("a schedule"))
}

/// A step of the optimizer with the schedule's channels: the weights' gradients and the model.
fn train_step(network: Network, schedule: &Schedule, seed: u64) -> ([Vec<f64>; 4], Network) {
    let network = schedule.apply(network).expect("its layers");
    let gradients = network.loss(seed).backward();
    let found = network.weight_gradients(&gradients);
    let gradients = GradientsParams::from_grads(gradients, &network);
    let mut optimizer = SgdConfig::new().init();
    (found, plan::step(&mut optimizer, 0.01, network, gradients))
}

#[test]
fn a_schedules_layers_are_the_channel_sparse_ones() {
    let device = devices().remove(0).1;
    let network = Network::new(&device);
    assert_eq!(SparseLayer::of(&network), []);
    let plan = Plan::builder()
        .layer("stem", Method::gradient_filter(2))
        .layer("blocks.0", Method::channel_sparse(0.5))
        .layer("blocks.1", Method::channel_sparse(0.2))
        .layer("head", Method::channel_sparse(0.9));
    let network = plan.build(&network).expect("suitable").apply(network);
    let layer = |path: &str, weights_per_channel, selected| SparseLayer {
        path: path.to_string(),
        channels: 6,
        weights_per_channel,
        selected,
    };
    assert_eq!(
        SparseLayer::of(&network.expect("its layers")),
        [
            layer("blocks.0", 9, 3),
            layer("blocks.1", 27, 1),
            layer("head", 5, 5)
        ]
    );
}

#[test]
fn every_schedule_decides_which_channels_are_trained() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 1.0 / 3.0);
        for amount in [Amount::PerLayer, Amount::TotalWeights(100)] {
            for mut schedule in schedules(&network, amount) {
                let mut network = network.clone();
                let mut seen = BTreeSet::new();
                for step in 0..6 {
                    let found;
                    (found, network) = train_step(network, &schedule, step);
                    let selection = schedule.selection();
                    assert_eq!(chosen(&network), selection, "{name}, {schedule:?}");
                    let weights = network.channels_of_weights();
                    for (place, path) in PATHS.iter().enumerate() {
                        let (inside, outside) =
                            split(&weights[place], &found[place], &selection[*path]);
                        assert!(!inside.contains(&0.0), "{name}, {path}, {schedule:?}");
                        assert!(is_zero(&outside), "{name}, {path}, {schedule:?}");
                    }
                    seen.insert(selection);
                    schedule.advance();
                }
                let fixed = matches!(schedule, Schedule::Fixed(_));
                assert_eq!(seen.len() == 1, fixed, "{name}, {schedule:?}");
            }
        }
    }
}

#[test]
fn the_schedule_of_the_largest_weights_is_what_happens_without_one() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 0.5);
        let [fixed, ..] = schedules(&network, Amount::PerLayer);
        network.loss(1);
        assert_eq!(chosen(&network), fixed.selection(), "{name}");
    }
}

#[test]
fn one_cycle_trains_every_weight_once() {
    for (name, device) in autodiff_devices() {
        // a third of the channels of each layer, and some total that does not divide them
        for (amount, length) in [
            (Amount::PerLayer, Some(3)),
            (Amount::TotalWeights(123), None),
        ] {
            let mut network = Network::sparse(&device, 1.0 / 3.0);
            let [_, mut cyclic, ..] = schedules(&network, amount);
            let mut visits = network
                .channels_of_weights()
                .map(|weights| vec![0; weights.len()]);
            let mut steps = 0;
            while visits.iter().flatten().any(|count| *count == 0) {
                assert!(steps < 24, "{name}, {amount:?}: no end");
                let gradients;
                (gradients, network) = train_step(network, &cyclic, steps);
                for (visits, gradient) in visits.iter_mut().zip(&gradients) {
                    for (count, value) in visits.iter_mut().zip(gradient) {
                        *count += usize::from(*value != 0.0);
                    }
                }
                cyclic.advance();
                steps += 1;
            }
            assert!(
                visits.iter().flatten().all(|count| *count == 1),
                "{name}, {amount:?}: a weight was trained twice"
            );
            assert!(
                length.is_none_or(|length| steps == length),
                "{name}: {steps} steps"
            );
        }
    }
}

#[test]
fn a_plans_patterns_give_layers_ratios_of_their_own() {
    for (name, device) in autodiff_devices() {
        let network = Network::new(&device);
        let plan = Plan::builder()
            .pattern("", Method::channel_sparse(0.5))
            .pattern(r"^blocks\.", Method::channel_sparse(1.0 / 3.0))
            .layer("head", Method::channel_sparse(1.0));
        let plan = plan.build(&network).expect("suitable");
        let network = plan.apply(network).expect("its layers");
        let [_, _, resampled, _] = schedules(&network, Amount::PerLayer);
        for schedule in [None, Some(resampled)] {
            let network = match &schedule {
                Some(schedule) => schedule.apply(network.clone()).expect("its layers"),
                None => network.clone(),
            };
            let found = network.weight_gradients(&network.loss(1).backward());
            let trained = found.map(|gradient| gradient.iter().filter(|it| **it != 0.0).count());
            // of 3 channels 2 (1.5 is rounded up), of 6 channels 2, 2 and 6
            assert_eq!(
                trained,
                [2 * 54, 2 * 9, 2 * 27, 6 * 5],
                "{name}, {schedule:?}"
            );
        }
    }
}

#[test]
fn a_total_is_never_exceeded() {
    for (name, device) in autodiff_devices() {
        let start = Network::sparse(&device, 1.0);
        for total in [54, 137, 400] {
            for mut schedule in schedules(&start, Amount::TotalWeights(total)) {
                let mut network = start.clone();
                for step in 0..4 {
                    let gradients;
                    (gradients, network) = train_step(network, &schedule, step);
                    let trained = gradients.iter().flatten().filter(|it| **it != 0.0).count();
                    assert!(
                        (1..=total).contains(&trained),
                        "{name}, {schedule:?}: {trained} weights of {total}"
                    );
                    schedule.advance();
                }
            }
        }
    }
}

#[test]
fn a_schedule_leaves_the_layers_alone_that_it_does_not_name() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 0.5);
        network.loss(1);
        let before = chosen(&network);
        let [head] = &SparseLayer::of(&network)[3..] else {
            panic!("4 layers");
        };
        let schedule = Schedule::resampled(vec![head.clone()], Amount::TotalWeights(5), 1, 1);
        let network = schedule
            .expect("a schedule")
            .apply(network)
            .expect("its layer");
        let after = chosen(&network);
        assert_eq!(after["head"].len(), 1, "{name}");
        for path in &PATHS[..3] {
            assert_eq!(after[*path], before[*path], "{name}, {path}");
        }
    }
}

fn schedule_for(path: &str, channels: usize, selected: usize) -> Schedule {
    let layer = SparseLayer {
        path: path.to_string(),
        channels,
        weights_per_channel: 1,
        selected,
    };
    Schedule::resampled(vec![layer], Amount::PerLayer, 1, 0).expect("a schedule")
}

#[test]
fn a_schedule_for_another_model_is_an_error() {
    let network = Network::sparse(&Device::default(), 0.5);
    for path in ["blocks.2", "blocks", "", "head.weight"] {
        let error = schedule_for(path, 6, 2).apply(network.clone()).unwrap_err();
        assert!(matches!(&error, Error::UnknownLayer { path: found, .. } if found == path));
        assert_contains(&error.to_string(), &["stem, blocks.0, blocks.1, head"]);
    }
}

/// Not only once a channel is drawn that the layer lacks: the documentation of `Schedule::apply`
/// promises it, and the step that fails may be the thousandth.
#[test]
fn a_schedule_for_another_number_of_channels_is_an_error_from_the_start() {
    let network = Network::sparse(&Device::default(), 0.5);
    for channels in [5, 700] {
        let importance = [("head".to_string(), vec![1.0; channels])];
        let importance = Importance::new(importance.into()).expect("importances");
        let layer = SparseLayer {
            path: "head".to_string(),
            channels,
            weights_per_channel: 5,
            selected: 1,
        };
        // the first channel, which every layer has
        let schedule = Schedule::fixed(vec![layer], &importance, Amount::PerLayer);
        let error = schedule.expect("a schedule").apply(network.clone());
        let error = error.expect_err("another number of channels");
        assert_contains(&error.to_string(), &["head", "6", &channels.to_string()]);
    }
}

#[test]
fn a_schedule_for_a_layer_with_another_method_is_an_error() {
    let network = Network::new(&Device::default());
    let filter = plan_with("stem", Method::gradient_filter(2));
    let network = filter.apply(network).expect("its layer");
    for (path, method) in [("stem", "gradient filter, patch 2"), ("head", "exact")] {
        let error = schedule_for(path, 3, 1).apply(network.clone()).unwrap_err();
        let message = error.to_string();
        let Error::Schedule(ScheduleError::NotSparse { path: found, .. }) = error else {
            panic!("{message}");
        };
        assert_eq!(found, path);
        assert_contains(&message, &[path, method, "channel-sparse"]);
    }
}

#[test]
fn a_ratio_that_is_no_share_is_an_error_that_names_the_layer() {
    let network = Network::new(&Device::default());
    let wrong = [0.0, -0.0, -0.5, 1.0 + 1e-9, 2.0, f64::NAN, f64::INFINITY];
    for ratio in wrong {
        let method = Method::channel_sparse(ratio);
        let layers = Plan::layers(&network);
        for layer in &layers {
            let error = method.check(&layer.shape).unwrap_err();
            assert!(matches!(error, Unsuitable::Ratio { .. }), "{error}");
            let built = Plan::builder().layer(&layer.path, method).build(&network);
            let error = built.unwrap_err();
            assert!(matches!(&error, Error::Method { layer: found, .. } if *found == layer.path));
            assert_contains(
                &error.to_string(),
                &[&layer.path, &ratio.to_string(), "above 0"],
            );
        }
        if ratio.is_finite() {
            let error = plan_with("blocks.1", method)
                .apply(network.clone())
                .unwrap_err();
            assert!(matches!(&error, Error::Method { layer, .. } if layer == "blocks.1"));
        }
        let error = network.head.clone().with_method(method).unwrap_err();
        assert_contains(&error.to_string(), &["Linear", &ratio.to_string()]);
    }
}

/// Saved plans of released versions have to stay readable: this is their form.
#[test]
fn the_json_form_of_the_method_is_stable() {
    let text = r#"{
  "version": 1,
  "layers": {
    "head": {
      "channel_sparse": {
        "ratio": 0.3
      }
    }
  }
}"#;
    let plan = Plan::from_json(text).expect("a plan");
    assert_eq!(plan.methods()["head"], Method::channel_sparse(0.3));
    assert_eq!(plan.to_json(), text);
    assert_eq!(plan.to_string(), "head  channel-sparse, ratio 0.3");

    for wrong in [
        r#"{"ratio": "half"}"#,
        r#"{"ratio": null}"#,
        r#"{"ratio": 0.3, "seed": 1}"#,
        "{}",
        "0.3",
    ] {
        let text = format!(r#"{{"version":1,"layers":{{"a":{{"channel_sparse":{wrong}}}}}}}"#);
        let error = Plan::from_json(&text).expect_err(wrong);
        assert_contains(&error.to_string(), &["the text is not a plan"]);
    }
}

proptest! {
    /// A ratio is stored to the last bit: rounded, it could train another number of channels.
    #[test]
    fn a_ratio_survives_json_to_the_last_bit(ratio in 0.0..1.0_f64) {
        let plan = plan_with("a", Method::channel_sparse(ratio));
        let again = Plan::from_json(&plan.to_json()).expect("what was written");
        prop_assert_eq!(again.methods()["a"], Method::channel_sparse(ratio));
    }
}

/// A new ratio is another method: the layer starts anew. The same one goes on.
#[test]
fn channels_last_as_long_as_the_method() {
    let device = devices().remove(0).1.autodiff();
    let network = Network::sparse(&device, 0.5);
    let [.., weighted] = schedules(&network, Amount::PerLayer);
    let network = weighted.apply(network).expect("its layers");
    let again = plan_with("head", Method::channel_sparse(0.5)).apply(network.clone());
    let again = again.expect("its layer");
    let channels = again.head.method.channels();
    assert_eq!(channels, Some(weighted.selection()["head"].clone()));
    let other = plan_with("head", Method::channel_sparse(0.4)).apply(network);
    assert_eq!(other.expect("its layer").head.method.channels(), None);
}
