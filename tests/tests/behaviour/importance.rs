//! Guards measured importances: they are what their definitions say.

mod losses;
mod state;

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear};
use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use burn_frugal::plan::{Plan, ScheduleError};
use burn_frugal::{Error, Method};
use burn_frugal_tests::channels::{
    channels_of_conv, channels_of_linear, exact_conv_gradient, exact_linear_gradient, norms,
};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::sparse_network::{Network, PATHS, linear};
use burn_frugal_tests::{assert_close, autodiff_devices, panic_message, random, values};

/// The importances of the model itself, a single layer.
fn of_layer(importance: Result<Importance, Error>) -> Vec<f64> {
    let importance = importance.expect("a measurement");
    importance.of("").expect("the layer's").to_vec()
}

fn sparse() -> Method {
    Method::channel_sparse(0.5)
}

/// Dense, in groups, depthwise, and depthwise with several outputs a channel.
fn conv_configs() -> [Conv2dConfig; 5] {
    [
        same([6, 5], 3).with_stride([2, 1]),
        same([6, 4], 1),
        same([6, 4], 3).with_groups(2),
        same([6, 6], 3).with_groups(6),
        same([6, 12], 3).with_groups(6).with_dilation([2, 1]),
    ]
}

fn short(config: &Conv2dConfig) -> String {
    format!("{:?} in {} groups", config.channels, config.groups)
}

/// What `run` returns, or the message with which it panics.
fn panic_or<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let mut result = None;
    match panic_message(|| result = Some(run())) {
        None => Ok(result.expect("it returned")),
        Some(message) => Err(message),
    }
}

#[test]
fn the_weight_norm_is_that_of_each_channels_weights() {
    for (name, device) in autodiff_devices() {
        for config in conv_configs() {
            let conv = with(&layer(&config, &device, DType::F32), sparse());
            let expected = norms(&channels_of_conv(&conv), &values(conv.weight.val()));
            let found = of_layer(Importance::weight_norm(&conv));
            assert_close(
                &format!("{name}, {}", short(&config)),
                &found,
                &expected,
                1e-12,
            );
        }
        let linear = linear(6, 4, &device, DType::F32).with_method(sparse());
        let linear = linear.expect("suitable");
        let expected = norms(&channels_of_linear(&linear), &values(linear.weight.val()));
        assert_close(
            &name,
            &of_layer(Importance::weight_norm(&linear)),
            &expected,
            1e-12,
        );
    }
}

/// Against the definition of the gradient, and of the cost: the channel's weights and one image's
/// map of it.
#[test]
fn gradient_norms_of_convolutions_are_those_of_the_definition() {
    for (name, device) in autodiff_devices() {
        for config in conv_configs() {
            let conv = with(&layer(&config, &device, DType::F32), sparse());
            let input = random(1, [2, 6, 5, 7], &device);
            let geometry = conv.geometry([2, 6, 5, 7]);
            let [rows, columns] = geometry.output();
            let upstream = random(2, [2, config.channels[1], rows, columns], &device);
            let loss = |conv: &Conv2d| (conv.forward(input.clone()) * upstream.clone()).sum();
            let [x, y] = [&input, &upstream].map(|map| values(map.clone()));
            let expected = norms(
                &channels_of_conv(&conv),
                &exact_conv_gradient(&geometry, &x, &y),
            );

            let name = format!("{name}, {}", short(&config));
            let found = of_layer(Importance::gradient_norm(&conv, loss));
            assert_close(&name, &found, &expected, 1e-5);
            let weights = config.channels[1] / config.groups * config.kernel_size[0].pow(2);
            let relative: Vec<f64> = expected
                .iter()
                .map(|norm| norm / (weights + 5 * 7) as f64)
                .collect();
            let found = of_layer(Importance::relative_gradient_norm(&conv, loss));
            assert_close(&name, &found, &relative, 1e-5);
        }
    }
}

fn assert_linear_norms<const D: usize>(name: &str, leading: [usize; D], device: &Device) {
    let linear = linear(6, 4, device, DType::F32).with_method(sparse());
    let linear = linear.expect("suitable");
    let [mut input, mut output] = [leading; 2];
    (input[D - 1], output[D - 1]) = (6, 4);
    let (input, upstream) = (random(1, input, device), random(2, output, device));
    let loss = |linear: &Linear| (linear.forward(input.clone()) * upstream.clone()).sum();
    let [x, y] = [&input, &upstream].map(|map| values(map.clone()));
    let gradient = exact_linear_gradient([6, 4], &x, &y);
    let expected = norms(&channels_of_linear(&linear), &gradient);
    let found = of_layer(Importance::gradient_norm(&linear, loss));
    assert_close(name, &found, &expected, 1e-5);

    // 4 weights a feature, and the rows of one sample
    let rows: usize = leading[1..D - 1].iter().product();
    let relative: Vec<f64> = expected
        .iter()
        .map(|norm| norm / (4 + rows) as f64)
        .collect();
    let found = of_layer(Importance::relative_gradient_norm(&linear, loss));
    assert_close(name, &found, &relative, 1e-5);
}

#[test]
fn gradient_norms_of_linear_layers_are_those_of_the_definition() {
    for (name, device) in autodiff_devices() {
        assert_linear_norms(&name, [5, 0], &device);
        assert_linear_norms(&name, [2, 5, 0], &device);
        assert_linear_norms(&name, [2, 3, 5, 0], &device);
    }
}

/// The norms of the gradients of an ordinary backward pass, by path.
fn ordinary(network: &Network) -> BTreeMap<String, Vec<f64>> {
    let exact = Plan::default().apply(network.clone()).expect("no layers");
    let gradients = exact.weight_gradients(&exact.loss(1).backward());
    let channel_of = network.channels_of_weights();
    let layers = PATHS.iter().enumerate();
    layers
        .map(|(place, path)| {
            (
                path.to_string(),
                norms(&channel_of[place], &gradients[place]),
            )
        })
        .collect()
}

/// Whatever the methods of the layers, and of those behind them: a filter's gradient of its input is
/// not exact.
#[test]
fn gradient_norms_are_those_of_an_exact_backward_pass() {
    for (name, device) in autodiff_devices() {
        let network = Network::new(&device);
        let plan = Plan::builder()
            .pattern("", Method::channel_sparse(1.0 / 6.0))
            .layer("blocks.1", Method::gradient_filter(2));
        let plan = plan.build(&network).expect("suitable");
        let network = plan.apply(network).expect("its layers");
        let measured = Importance::gradient_norm(&network, |network| network.loss(1));
        let measured = measured.expect("a measurement");
        let expected = ordinary(&network);
        let layers: Vec<&str> = measured.layers().collect();
        assert_eq!(layers, ["blocks.0", "head", "stem"], "{name}");
        for path in layers {
            let found = measured.of(path).expect("a layer of it");
            assert_close(&format!("{name}, {path}"), found, &expected[path], 1e-5);
        }
    }
}

#[test]
fn a_frozen_model_can_be_measured() {
    for (name, device) in autodiff_devices() {
        let network = Network::sparse(&device, 0.5);
        let expected = ordinary(&network);
        let frozen = network.freeze();
        let measured = Importance::gradient_norm(&frozen, |network| network.loss(1));
        let measured = BTreeMap::from(measured.expect("a measurement"));
        assert_eq!(measured.len(), expected.len(), "{name}");
        for (path, found) in &measured {
            assert_close(&format!("{name}, {path}"), found, &expected[path], 1e-5);
        }
    }
}

#[test]
fn only_channel_sparse_layers_have_an_importance() {
    let device = Device::default().autodiff();
    let network = Network::new(&device);
    let plan = Plan::builder().layer("head", sparse()).build(&network);
    let some = plan
        .expect("suitable")
        .apply(network.clone())
        .expect("its layer");
    for (network, expected) in [(network, &[][..]), (some, &["head"])] {
        for importance in [
            Importance::weight_norm(&network),
            Importance::gradient_norm(&network, |network| network.loss(1)),
            Importance::relative_gradient_norm(&network, |network| network.loss(1)),
        ] {
            let importance = importance.expect("a measurement");
            assert_eq!(importance.layers().collect::<Vec<_>>(), expected);
            let layers = SparseLayer::of(&network);
            let schedule = Schedule::fixed(layers, &importance, Amount::PerLayer);
            match expected {
                [] => assert_eq!(schedule, Err(ScheduleError::NoLayers)),
                _ => assert!(schedule.is_ok()),
            }
        }
    }
}
