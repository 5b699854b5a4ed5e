//! Guards methods on linear layers: each method's gradients against plain definitions,
//! for every number of axes of the input.

mod hosvd;
mod plans;
mod shortcuts;
mod training;

use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{Conv2d, Linear, LinearConfig};
use burn_frugal::plan::TrainingState;
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{Pass, assert_close, autodiff_devices, random_dtype, values};

/// Convolutions, whose map becomes tokens, and linear layers before, between and after them.
#[derive(Module, Debug)]
struct Network {
    colours: Linear,
    stem: Conv2d,
    tokens: Vec<Linear>,
    mixer: Conv2d,
    head: Linear,
}

fn network(device: &Device) -> Network {
    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
    Network {
        colours: linear(3, 4),
        stem: same([4, 6], 3).init(device),
        tokens: vec![linear(6, 8), linear(8, 6)],
        mixer: same([6, 6], 3).init(device),
        head: linear(6, 3),
    }
}

impl Network {
    /// Images with their colours last, `[batch, 6, 6, 3]`, to `[batch, 3]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let map = self.colours.forward(images).permute([0, 3, 1, 2]);
        let map = relu(self.stem.forward(map));
        let [batch, channels, height, width] = map.dims();
        let mut tokens = map
            .clone()
            .reshape([batch, channels, height * width])
            .swap_dims(1, 2);
        for linear in &self.tokens {
            tokens = relu(linear.forward(tokens));
        }
        let mixed = tokens
            .swap_dims(1, 2)
            .reshape([batch, channels, height, width])
            + map;
        let mixed = relu(self.mixer.forward(mixed));
        let pooled = mixed.reshape([batch, channels, height * width]).mean_dim(2);
        self.head.forward(pooled.squeeze_dim(2))
    }
}

/// From 6 to 4 features, in double precision.
fn layer(device: &Device, method: Method) -> Linear {
    let mut linear = LinearConfig::new(6, 4).init(device);
    linear.weight = Param::from_tensor(random_dtype(11, [6, 4], device, DType::F64));
    linear.bias = Some(Param::from_tensor(random_dtype(
        12,
        [4],
        device,
        DType::F64,
    )));
    linear.with_method(method).expect("suitable")
}

fn input<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    random_dtype(1, shape, device, DType::F64)
}

fn upstream<const D: usize>(mut shape: [usize; D], device: &Device) -> Tensor<D> {
    shape[D - 1] = 4;
    random_dtype(2, shape, device, DType::F64)
}

/// `dL/dW[i, o] = sum over rows of x[row, i] dL/dy[row, o]`, 6 to 4 features.
fn weight_gradient(x: &[f64], gy: &[f64]) -> Vec<f64> {
    assert_eq!(x.len() / 6, gy.len() / 4);
    let mut gradient = vec![0.0; 24];
    for (x, gy) in x.chunks_exact(6).zip(gy.chunks_exact(4)) {
        for (row, x) in gradient.chunks_exact_mut(4).zip(x) {
            for (sum, gy) in row.iter_mut().zip(gy) {
                *sum += x * gy;
            }
        }
    }
    gradient
}

/// Calls `check` with the pass of each method and the exact one, after checking that all but the
/// weight's gradient is exact.
fn for_each_pass<const D: usize>(
    shape: [usize; D],
    methods: &[Method],
    check: impl Fn(&str, &Linear, &[f64], &[f64], &[f64]),
) {
    for (device_name, device) in autodiff_devices() {
        let x = input(shape, &device);
        let gy = upstream(shape, &device);
        let run = |linear: &Linear| Pass::run_linear(linear, x.clone().require_grad(), gy.clone());
        let exact = run(&layer(&device, Method::Exact));
        let (x_values, gy_values) = (values(x.clone()), values(gy.clone()));
        let plain = weight_gradient(&x_values, &gy_values);
        let exact_weight = exact.weight.as_deref().expect("trained");
        assert_close(&device_name, exact_weight, &plain, 1e-12);
        for &method in methods {
            let name = format!("{method}, {shape:?} ({device_name})");
            let linear = layer(&device, method);
            let found = run(&linear);
            assert_eq!(found.output, exact.output, "{name}");
            assert_eq!(found.input, exact.input, "{name}");
            assert_eq!(found.bias, exact.bias, "{name}");
            let weight = found.weight.as_deref().expect("trained");
            check(&name, &linear, &x_values, &gy_values, weight);
        }
    }
}

/// As many channels as the ratio says, those with the largest weights; their rows are exact.
fn check_sparse<const D: usize>(shape: [usize; D]) {
    let cases = [(0.01, 1), (0.5, 3), (0.67, 4), (1.0, 6)];
    let methods = cases.map(|(ratio, _)| Method::channel_sparse(ratio));
    for_each_pass(shape, &methods, |name, linear, x, gy, weight| {
        let Method::ChannelSparse(sparse) = linear.method.method() else {
            panic!("{name}: another method")
        };
        let expected = cases.iter().find(|(ratio, _)| *ratio == sparse.ratio);
        let (_, count) = expected.expect("one of the cases");
        let weights = values(linear.weight.val());
        let norm = |row: &[f64]| row.iter().map(|weight| weight * weight).sum::<f64>();
        let norms: Vec<f64> = weights.chunks_exact(4).map(norm).collect();
        let larger = |norm: f64| norms.iter().filter(|other| **other > norm).count();
        let chosen: Vec<usize> = (0..6)
            .filter(|&channel| larger(norms[channel]) < *count)
            .collect();
        assert_eq!(linear.method.channels(), Some(chosen.clone()), "{name}");

        let mut expected = weight_gradient(x, gy);
        for (channel, row) in expected.chunks_exact_mut(4).enumerate() {
            if !chosen.contains(&channel) {
                row.fill(0.0);
            }
        }
        assert_close(name, weight, &expected, 1e-12);
        for (found, expected) in weight.iter().zip(&expected) {
            assert_eq!(*found == 0.0, *expected == 0.0, "{name}");
        }
    });
}

#[test]
fn channel_sparse_has_exact_rows() {
    check_sparse([9, 6]);
    check_sparse([3, 5, 6]);
    check_sparse([2, 3, 4, 6]);
    check_sparse([2, 1, 2, 3, 6]);
}

#[test]
fn channel_sparse_trains_the_channels_that_it_is_given() {
    for (name, device) in autodiff_devices() {
        for channels in [vec![], vec![4], vec![0, 2, 5], vec![0, 1, 2, 3, 4, 5]] {
            let state = TrainingState::default().with_channels("", channels.clone());
            let linear = layer(&device, Method::channel_sparse(0.5));
            let linear = state.restore(linear).expect("its channels");
            let (x, gy) = (input([3, 5, 6], &device), upstream([3, 5, 6], &device));
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let mut expected = weight_gradient(&values(x), &values(gy));
            for (channel, row) in expected.chunks_exact_mut(4).enumerate() {
                if !channels.contains(&channel) {
                    row.fill(0.0);
                }
            }
            let name = format!("{channels:?} ({name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-12);
        }
    }
}

fn shortcuts(ranks: impl Into<PerMode>) -> [Method; 3] {
    let shortcut = ActivationShortcut::new(ranks);
    [
        shortcut.into(),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
    ]
}

/// An input of low rank loses nothing, whatever its form between forward and backward.
#[test]
fn an_input_of_low_rank_has_exact_gradients() {
    for (device_name, device) in autodiff_devices() {
        let along = |size: usize, axis: usize| {
            let mut shape = [1, 1, 1];
            shape[axis] = size;
            random_dtype::<3>(20 + axis as u64, shape, &device, DType::F64)
        };
        // rank 1 in every mode
        let x = along(5, 0) * along(7, 1) * along(6, 2);
        let gy = upstream([5, 7, 6], &device);
        let expected = weight_gradient(&values(x.clone()), &values(gy.clone()));
        let methods = [&shortcuts([1, 1, 1])[..], &[Method::hosvd(0.5)]].concat();
        for method in methods {
            let linear = layer(&device, method);
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let name = format!("{method} ({device_name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-10);
        }
    }
}

/// One method of each kind, for inputs with 3 axes.
fn methods() -> Vec<Method> {
    let others = [
        Method::Exact,
        Method::channel_sparse(0.5),
        Method::hosvd(0.7),
    ];
    [&others[..], &shortcuts([2, 3, 4])].concat()
}

#[test]
fn plain_and_tracked_inputs_mix() {
    for (device_name, device) in autodiff_devices() {
        let plain = device.clone().without_autodiff();
        let gy = upstream([3, 5, 6], &device);
        let x = || input([3, 5, 6], &device);
        for method in methods() {
            let name = format!("{method} ({device_name})");
            let run = |linear: Linear, x: Tensor<3>| Pass::run_linear(&linear, x, gy.clone());
            let all = run(layer(&device, method), x().require_grad());
            let constant = Pass {
                input: None,
                ..all.clone()
            };
            let from_plain = run(layer(&device, method), input([3, 5, 6], &plain));
            assert_eq!(from_plain, constant, "{name}, plain input");
            assert_eq!(
                run(layer(&device, method), x()),
                constant,
                "{name}, constant input"
            );

            let untrained = Pass {
                weight: None,
                bias: None,
                ..all.clone()
            };
            let frozen = layer(&device, method).no_grad();
            assert_eq!(run(frozen, x().require_grad()), untrained, "{name}, frozen");
            let plain_layer = layer(&plain, method);
            let found = run(plain_layer, x().require_grad());
            assert_eq!(found, untrained, "{name}, plain layer");

            let mut only_weight = layer(&device, method);
            only_weight.bias = only_weight.bias.map(|bias| bias.set_require_grad(false));
            let expected = Pass {
                bias: None,
                ..constant.clone()
            };
            assert_eq!(run(only_weight, x()), expected, "{name}, only the weight");
        }
    }
}

/// A strided input is what it shows, not what its buffer holds.
#[test]
fn strided_inputs_are_read_as_they_are() {
    for (device_name, device) in autodiff_devices() {
        let swapped = random_dtype::<3>(1, [6, 5, 3], &device, DType::F64).swap_dims(0, 2);
        let contiguous = Tensor::from_data(swapped.to_data(), (&device, DType::F64));
        let gy = upstream([3, 5, 6], &device);
        for method in methods() {
            let run = |x: Tensor<3>| {
                Pass::run_linear(&layer(&device, method), x.require_grad(), gy.clone())
            };
            let name = format!("{method} ({device_name})");
            run(swapped.clone()).assert_close(&name, &run(contiguous.clone()), 1e-12);
        }
    }
}
