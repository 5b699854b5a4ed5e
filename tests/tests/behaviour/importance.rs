//! Guards measured importances: what they are, that measuring leaves the model as it was, and which
//! losses cannot be measured.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::tensor::{DType, Device, Distribution, Tensor, activation::tanh};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear};
use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use burn_frugal::plan::{Plan, ScheduleError, TrainingState};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::{
    assert_close, assert_contains, autodiff_devices, panic_message, random, values,
};

use crate::channel_sparse::{
    Network, PATHS, channels_of_conv, channels_of_linear, exact_conv_gradient,
    exact_linear_gradient, linear, norms,
};

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

/// A model with everything that a forward pass of training changes.
#[derive(Module, Debug)]
struct Restless {
    first: Conv2d,
    norm: BatchNorm,
    dropout: Dropout,
    second: Conv2d,
}

impl Restless {
    fn new(device: &Device) -> Self {
        let conv = |config| with(&layer(&config, device, DType::F32), sparse());
        let network = Self {
            first: conv(same([4, 6], 3)),
            norm: BatchNormConfig::new(6).init(device),
            dropout: DropoutConfig::new(0.5).init(),
            second: conv(same([6, 4], 3).with_groups(2)),
        };
        // initialised here, not lazily in the middle of a measurement of random numbers
        network.norm.gamma.val();
        network.norm.beta.val();
        network
    }

    fn loss(&self) -> Tensor<1> {
        let input = random(1, [2, 4, 5, 5], &self.first.weight.val().device());
        let map = self.norm.forward(self.first.forward(input));
        let map = self.second.forward(self.dropout.forward(tanh(map)));
        map.powi_scalar(2).sum()
    }

    fn statistics(&self) -> [Vec<f64>; 2] {
        [&self.norm.running_mean, &self.norm.running_var].map(|state| values(state.value_sync()))
    }
}

fn measure(model: &Restless) -> [Importance; 3] {
    [
        Importance::weight_norm(model),
        Importance::gradient_norm(model, Restless::loss),
        Importance::relative_gradient_norm(model, Restless::loss),
    ]
    .map(|importance| importance.expect("a measurement"))
}

#[test]
fn batch_statistics_stay_as_they_were() {
    for (name, device) in autodiff_devices() {
        let model = Restless::new(&device);
        let before = model.statistics();
        measure(&model);
        assert_eq!(model.statistics(), before, "{name}");
        model.loss();
        assert_ne!(
            model.statistics(),
            before,
            "{name}: a step of training changes them"
        );
    }
}

#[test]
fn dropout_and_batch_statistics_are_those_of_a_frozen_model() {
    for (name, device) in autodiff_devices() {
        let model = Restless::new(&device);
        let mut still = Plan::default().apply(model.clone()).expect("no layers");
        still.norm = still.norm.freeze();
        still.dropout = still.dropout.freeze();
        let gradients = still.loss().backward();
        let [_, measured, _] = measure(&model);
        for (path, conv) in [("first", &still.first), ("second", &still.second)] {
            let gradient = values(conv.weight.val().grad(&gradients).expect("tracked"));
            let expected = norms(&channels_of_conv(conv), &gradient);
            let found = measured.of(path).expect("a layer of it");
            assert_close(&format!("{name}, {path}"), found, &expected, 1e-5);
        }
    }
}

/// Burn's generator belongs to the process, and other tests draw from it: out of many tries, a
/// measurement that draws nothing is undisturbed at least once, one that draws is never.
#[test]
fn burns_random_numbers_stay_as_they_were() {
    for (name, device) in autodiff_devices() {
        let model = Restless::new(&device);
        let numbers_after = |run: &dyn Fn()| {
            device.seed(271_828);
            run();
            values(Tensor::<1>::random([8], Distribution::Default, &device))
        };
        let undisturbed = || numbers_after(&|| drop(measure(&model))) == numbers_after(&|| ());
        assert!(
            (0..200).any(|_| undisturbed()),
            "{name}: the measurement draws"
        );
        let draws = || numbers_after(&|| drop(model.loss())) != numbers_after(&|| ());
        assert!((0..20).all(|_| draws()), "{name}: training does draw");
    }
}

#[test]
fn the_model_stays_as_it_was() {
    for (name, device) in autodiff_devices() {
        let model = Restless::new(&device);
        let state = TrainingState::default().with_channels("second", vec![1, 5]);
        let mut model = state.restore(model).expect("its layer");
        model.first.bias = model.first.bias.map(|bias| bias.set_require_grad(false));
        let seen = |model: &Restless| {
            let convs = [&model.first, &model.second];
            (
                convs.map(|conv| values(conv.weight.val())),
                convs.map(|conv| conv.bias.as_ref().map(|bias| bias.is_require_grad())),
                convs.map(|conv| conv.weight.is_require_grad()),
                convs.map(|conv| (conv.method.method(), conv.method.channels())),
                (
                    model.norm.training.is_enabled(),
                    model.dropout.training.is_enabled(),
                ),
            )
        };
        let before = seen(&model);
        let first = measure(&model);
        assert_eq!(seen(&model), before, "{name}");
        assert_eq!(
            measure(&model),
            first,
            "{name}: another measurement of the same"
        );
        // and it trains on as before: no observer is left in its layers
        let gradients = model.loss().backward();
        let gradient = values(model.second.weight.val().grad(&gradients).expect("tracked"));
        let found = norms(&channels_of_conv(&model.second), &gradient);
        let trained: Vec<usize> = (0..6).filter(|&channel| found[channel] > 0.0).collect();
        assert_eq!(trained, [1, 5], "{name}");
    }
}

/// Burn initialises parameters when they are first used, and their clones share that.
#[test]
fn a_model_that_was_never_used_is_measured_and_stays_trainable() {
    for (name, device) in autodiff_devices() {
        let conv = same([4, 6], 3).init(&device);
        let conv = conv.with_method(sparse()).expect("suitable");
        let loss = |conv: &Conv2d| {
            conv.forward(random(1, [2, 4, 5, 5], &device))
                .powi_scalar(2)
                .sum()
        };
        let measured = panic_or(|| Importance::gradient_norm(&conv, loss));
        let measured = measured.unwrap_or_else(|message| panic!("{name}: {message}"));
        assert!(
            conv.weight.is_require_grad(),
            "{name}: the measurement froze the model"
        );

        let exact = with(&conv, Method::Exact);
        let output = loss(&exact);
        assert!(
            output.is_tracked(),
            "{name}: the measurement froze the model"
        );
        let gradients = output.backward();
        let gradient = values(conv.weight.val().grad(&gradients).expect("tracked"));
        let expected = norms(&channels_of_conv(&conv), &gradient);
        assert_close(&name, &of_layer(measured), &expected, 1e-5);
    }
}

#[derive(Module, Debug)]
struct Pair {
    first: Conv2d,
    second: Conv2d,
}

fn pair(device: &Device) -> Pair {
    let conv = || with(&layer(&same([4, 4], 3), device, DType::F32), sparse());
    Pair {
        first: conv(),
        second: conv(),
    }
}

/// A loss of a [`Pair`], by what it does.
type Loss = fn(&Pair, Tensor<4>) -> Tensor<1>;

#[test]
fn a_loss_that_does_not_depend_on_a_layer_is_an_error_that_names_it() {
    let losses: [(&str, Loss); 3] = [
        ("never run", |pair, x| pair.first.forward(x).sum()),
        ("output dropped", |pair, x| {
            pair.second.forward(x.clone());
            pair.first.forward(x).sum()
        }),
        ("output cut off", |pair, x| {
            (pair.first.forward(x.clone()) + pair.second.forward(x).detach()).sum()
        }),
    ];
    for (device_name, device) in autodiff_devices() {
        let pair = pair(&device);
        for (what, loss) in &losses {
            let name = format!("{what} ({device_name})");
            let run = |pair: &Pair| loss(pair, random(1, [1, 4, 5, 5], &device));
            for measured in [
                panic_or(|| Importance::gradient_norm(&pair, run)),
                panic_or(|| Importance::relative_gradient_norm(&pair, run)),
            ] {
                let error = measured.unwrap_or_else(|message| panic!("{name}: panics, {message}"));
                let error = error.expect_err("nothing to measure");
                assert!(
                    matches!(&error, Error::Unused { layer } if layer == "second"),
                    "{name}: {error}"
                );
                assert_contains(&error.to_string(), &["`second`"]);
            }
            // weights have norms whatever the loss
            Importance::weight_norm(&pair).expect("a measurement");
        }
    }
}

/// What `run` returns, or the message with which it panics.
fn panic_or<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let mut result = None;
    match panic_message(|| result = Some(run())) {
        None => Ok(result.expect("it returned")),
        Some(message) => Err(message),
    }
}

/// The gradient of a weight is the sum over all uses of its layer.
fn assert_uses_add_up(loss: Loss) {
    for (name, device) in autodiff_devices() {
        let pair = pair(&device);
        let run = |pair: &Pair| loss(pair, random(1, [1, 4, 5, 5], &device));
        let exact = Plan::default().apply(pair.clone()).expect("no layers");
        let gradients = run(&exact).backward();
        let measured = Importance::gradient_norm(&pair, run);
        let measured = measured.unwrap_or_else(|error| panic!("{name}: {error}"));
        for (path, conv) in [("first", &exact.first), ("second", &exact.second)] {
            let gradient = values(conv.weight.val().grad(&gradients).expect("tracked"));
            let expected = norms(&channels_of_conv(conv), &gradient);
            let found = measured.of(path).expect("a layer of it");
            assert_close(&format!("{name}, {path}"), found, &expected, 1e-5);
        }
    }
}

#[test]
fn a_layer_that_is_used_on_two_inputs_counts_both() {
    assert_uses_add_up(|pair, x| {
        let other = random(3, [2, 4, 3, 4], &x.device());
        let once = tanh(pair.second.forward(pair.first.forward(x))).sum();
        let again = tanh(pair.second.forward(pair.first.forward(other))).sum();
        once - again * 2.0
    });
}

#[test]
fn a_layer_that_is_used_on_its_own_output_counts_both() {
    assert_uses_add_up(|pair, x| {
        let map = tanh(pair.first.forward(tanh(pair.first.forward(x))));
        pair.second.forward(map).powi_scalar(2).sum()
    });
}

#[test]
fn what_is_not_finite_is_an_error_that_names_layer_and_channel() {
    for (name, device) in autodiff_devices() {
        let mut pair = pair(&device);
        let input = |pair: &Pair| {
            let channel = |value: f32| Tensor::<4>::full([1, 1, 5, 5], value, &device);
            let x = Tensor::cat(
                vec![channel(1.0), channel(1.0), channel(3e38), channel(1.0)],
                1,
            );
            (pair.first.forward(x) * 10.0).sum()
                + pair.second.forward(channel(1.0).repeat_dim(1, 4)).sum()
        };
        let error = Importance::gradient_norm(&pair, input).expect_err("infinite");
        let Error::Schedule(ScheduleError::ImportanceValue { path, channel, .. }) = error else {
            panic!("{name}: {error}");
        };
        assert_eq!((path.as_str(), channel), ("first", 2), "{name}");

        let weight = pair.second.weight.val().detach();
        let bad = weight.clone().narrow(1, 3, 1).full_like(f32::NAN);
        let weight = Tensor::cat(vec![weight.narrow(1, 0, 3), bad], 1).detach();
        pair.second.weight = Param::from_tensor(weight);
        let error = Importance::weight_norm(&pair).expect_err("not a number");
        let Error::Schedule(ScheduleError::ImportanceValue { path, channel, .. }) = error else {
            panic!("{name}: {error}");
        };
        assert_eq!((path.as_str(), channel), ("second", 3), "{name}");
    }
}

/// A user's own bug in the loss must not spoil what comes after it on this thread.
#[test]
fn a_loss_that_panics_does_not_disturb_the_next_measurement() {
    let device = Device::default().autodiff();
    let network = Network::sparse(&device, 0.5);
    let message =
        panic_message(|| Importance::gradient_norm(&network, |_| panic!("a bug of the user")));
    assert_eq!(message.as_deref(), Some("a bug of the user"));
    let measured = Importance::gradient_norm(&network, |network| network.loss(1));
    assert_eq!(
        measured.expect("a measurement").layers().count(),
        PATHS.len()
    );
}
