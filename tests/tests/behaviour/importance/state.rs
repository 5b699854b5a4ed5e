//! Guards that measuring importances leaves the model, its state and the generators as they were.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::tensor::{DType, Device, Distribution, Tensor, activation::tanh};
use burn_frugal::Method;
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::schedule::Importance;
use burn_frugal::plan::{Plan, TrainingState};
use burn_frugal_tests::channels::{channels_of_conv, norms};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::{assert_close, autodiff_devices, random, values};

use super::{of_layer, panic_or, sparse};

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
