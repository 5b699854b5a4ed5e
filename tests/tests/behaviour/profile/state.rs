//! Guards that a model's state does not matter to a profile, and that measuring leaves it alone.

use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use burn_frugal::Method;
use burn_frugal::plan::Plan;
use burn_frugal_tests::{assert_contains, autodiff_devices, devices, values};

use super::{Network, PATHS, images, network, profile, stochastic_network};

/// Everything of a network that measuring could change, as text: floats in their shortest form that
/// reads back to the same bits.
fn state(network: &Network) -> String {
    let mut state = String::new();
    for (conv, path) in [&network.first, &network.depthwise, &network.pointwise]
        .into_iter()
        .zip(PATHS)
    {
        let weight = conv.weight.val();
        let bias = conv.bias.as_ref().expect("a bias").val();
        let tracked = [weight.is_require_grad(), bias.is_require_grad()];
        state += &format!("{path} {tracked:?} {:?}", values(weight));
        state += &format!("{:?} {:?}", values(bias), conv.method.channels());
        let factors = (0..4).map(|mode| conv.method.factor(mode).map(values));
        state += &format!("{:?}\n", factors.collect::<Vec<_>>());
    }
    let weight = network.head.weight.val();
    state += &format!("head {} {:?}", weight.is_require_grad(), values(weight));
    state += &format!("{:?}\n", network.head.method.channels());
    if let Some(norm) = &network.norm {
        let statistics = [&norm.running_mean, &norm.running_var].map(|part| values(part.value()));
        state += &format!("norm {} {statistics:?}\n", norm.training.is_enabled());
    }
    if let Some(dropout) = &network.dropout {
        state += &format!("dropout {}\n", dropout.training.is_enabled());
    }
    state + &format!("{:?}", Plan::layers(network))
}

/// A network in the middle of training, with running values of every kind.
fn trained_network(device: &Device) -> Network {
    let plan = Plan::builder()
        .layer("first", Method::channel_sparse(0.5))
        .layer("depthwise", Method::activation_shortcut([2, 3, 4, 4]))
        .layer("pointwise", Method::gradient_filter(2))
        .layer("head", Method::channel_sparse(0.25));
    let network = stochastic_network(device);
    let plan = plan.build(&network).expect("suitable methods");
    let network = plan.apply(network).expect("its own plan");
    network.loss(&images(device));
    network
}

#[test]
fn measuring_leaves_the_model_as_it_was() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (trained_network(&device), images(&device));
        let before = state(&network);
        assert!(network.first.method.channels().is_some(), "{name}");
        assert!(network.depthwise.method.factor(0).is_some(), "{name}");
        profile(&network, &images);
        assert_eq!(state(&network), before, "{name}");
        // and what it trains next is what it would have trained
        let frozen = |network: &Network| Network {
            dropout: None,
            ..network.clone()
        };
        let expected = frozen(&trained_network(&device)).weight_gradient("depthwise", &images);
        let found = frozen(&network).weight_gradient("depthwise", &images);
        assert_eq!(found, expected, "{name}");
    }
}

/// Methods, running values and what is frozen belong to the model's training, not to the profile.
#[test]
fn the_state_of_the_model_does_not_matter() {
    for (name, device) in autodiff_devices() {
        let images = images(&device);
        let expected = profile(&stochastic_network(&device), &images);
        let trained = trained_network(&device);
        // its statistics have moved on
        let trained = Network {
            norm: stochastic_network(&device).norm,
            ..trained
        };
        assert_eq!(profile(&trained, &images), expected, "{name}, trained");
        let frozen = stochastic_network(&device).freeze();
        assert_eq!(profile(&frozen, &images), expected, "{name}, frozen");
        let mut head_only = stochastic_network(&device).freeze();
        head_only.head = head_only.head.unfreeze();
        assert_eq!(profile(&head_only, &images), expected, "{name}, head only");
    }
}

/// Burn's generators are shared by the process, so this runs in one of its own, where no other test
/// draws numbers.
#[test]
fn measuring_draws_no_random_numbers() {
    const ALONE: &str = "BURN_FRUGAL_TEST_ALONE";
    const NAME: &str = "profile::state::measuring_draws_no_random_numbers";
    if std::env::var_os(ALONE).is_none() {
        let tests = std::env::current_exe().expect("this test's own program");
        let run = std::process::Command::new(tests)
            .args(["--exact", NAME, "--test-threads", "1"])
            .env(ALONE, "1")
            .output();
        let output = run.expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        assert_contains(&text, &["1 passed"]);
        return;
    }
    for (name, device) in autodiff_devices() {
        let (network, images) = (stochastic_network(&device), images(&device));
        let drawn = |before: &dyn Fn()| {
            device.seed(7);
            before();
            values(Tensor::<1>::random([8], Distribution::Default, &device))
        };
        let expected = drawn(&|| ());
        let training = drawn(&|| drop(network.loss(&images)));
        assert_ne!(training, expected, "{name}: dropout draws numbers");
        let measuring = drawn(&|| drop(profile(&network, &images)));
        assert_eq!(measuring, expected, "{name}");
    }
}

#[test]
fn a_plain_batch_does() {
    for (name, device) in devices() {
        let training = device.clone().autodiff();
        let network = stochastic_network(&training);
        let expected = profile(&network, &images(&training));
        let plain = images(&device);
        assert_eq!(profile(&network, &plain), expected, "{name}");
    }
}

#[test]
fn a_model_on_a_plain_device_does() {
    for (name, device) in devices() {
        let training = device.clone().autodiff();
        let expected = profile(&network(&training), &images(&training));
        let plain = images(&device);
        assert_eq!(profile(&network(&device), &plain), expected, "{name}");
        let valid = network(&training).valid();
        assert_eq!(profile(&valid, &plain), expected, "{name}, valid");
    }
}
