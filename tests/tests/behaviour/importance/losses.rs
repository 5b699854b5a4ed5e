//! Guards how the importances of a layer follow from the loss, and which losses are refused.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor, activation::tanh};
use burn_frugal::Error;
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::schedule::Importance;
use burn_frugal::plan::{Plan, ScheduleError};
use burn_frugal_tests::channels::{channels_of_conv, norms};
use burn_frugal_tests::layers::{layer, same, with};
use burn_frugal_tests::sparse_network::{Network, PATHS};
use burn_frugal_tests::{
    assert_close, assert_contains, autodiff_devices, panic_message, random, values,
};

use super::{panic_or, sparse};

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
