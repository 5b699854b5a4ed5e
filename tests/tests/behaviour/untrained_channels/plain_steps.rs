//! Guards what a guarded step leaves to the optimizer: frozen parameters, other methods, and the
//! conditions of every parameter.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::plan::{self, Plan};
use burn_frugal_tests::autodiff_devices;
use burn_frugal_tests::sparse_network::Network;

use super::{Steps, gradients, network_bits, optimizers};

/// Id, whether gradients are wanted and tracked, and the device of every parameter.
fn conditions(network: &Network) -> Vec<(ParamId, [bool; 3], Device)> {
    fn of<const D: usize>(param: &Param<Tensor<D>>) -> (ParamId, [bool; 3], Device) {
        let value = param.val();
        let flags = [
            param.is_require_grad(),
            value.is_require_grad(),
            value.is_tracked(),
        ];
        (param.id, flags, value.device())
    }
    let Network { stem, blocks, head } = network;
    let mut found = Vec::new();
    for conv in [stem, &blocks[0], &blocks[1]] {
        found.push(of(&conv.weight));
        found.extend(conv.bias.as_ref().map(of));
    }
    found.push(of(&head.weight));
    found.extend(head.bias.as_ref().map(of));
    found
}

#[test]
fn parameters_stay_what_they_were() {
    for (name, device) in autodiff_devices() {
        let (_, mut optimizer) = optimizers().into_iter().next_back().expect("some");
        let mut network = Network::sparse(&device, 0.5);
        let before = conditions(&network);
        for step in 0..2 {
            let steps = Steps::take(&mut optimizer, &network, step);
            assert_eq!(conditions(&steps.guarded), before, "{name}, step {step}");
            assert_eq!(conditions(&steps.plain), before, "{name}: Burn's own step");
            network = steps.guarded;
        }
        let found = network.weight_gradients(&network.loss(9).backward());
        assert!(
            found
                .iter()
                .all(|gradient| gradient.iter().any(|it| *it != 0.0)),
            "{name}"
        );
        // as the optimizer left them: no graph of the step before stays alive
        let record = optimizer.to_record();
        assert!(!record.is_empty(), "{name}");
    }
}

#[test]
fn frozen_parameters_stay_frozen() {
    for (device_name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let name = format!("{optimizer_name} ({device_name})");
            let mut network = Network::sparse(&device, 0.5);
            network.stem = network.stem.no_grad();
            network.blocks[0].weight = network.blocks[0].weight.clone().set_require_grad(false);
            let conditions_before = conditions(&network);
            let (before, biases_before) = network_bits(&network);
            for step in 0..2 {
                let found = gradients(&network, step);
                network = plan::step(&mut optimizer, 0.05, network, found);
            }
            assert_eq!(conditions(&network), conditions_before, "{name}");
            let (after, biases) = network_bits(&network);
            let kept = |place: usize| after[place] == before[place];
            assert_eq!([0, 1, 2, 3].map(kept), [true, true, false, false], "{name}");
            let kept = |place: usize| biases[place] == biases_before[place];
            assert_eq!(
                [0, 1, 2, 3].map(kept),
                [true, false, false, false],
                "{name}"
            );
            let gradients = network.loss(9).backward();
            assert!(
                network.stem.weight.val().grad(&gradients).is_none(),
                "{name}"
            );
        }
    }
}

#[test]
fn layers_with_other_methods_take_a_plain_step() {
    for (device_name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let name = format!("{optimizer_name} ({device_name})");
            let network = Network::new(&device);
            let plan = Plan::builder()
                .layer("blocks.0", Method::gradient_filter(2))
                .layer("blocks.1", Method::channel_sparse(0.5))
                .layer("head", Method::hosvd(0.8));
            let plan = plan.build(&network).expect("suitable");
            let network = plan.apply(network).expect("its layers");
            let steps = Steps::take(&mut optimizer, &network, 1);
            let (plain, plain_biases) = network_bits(&steps.plain);
            let (after, biases) = network_bits(&steps.guarded);
            assert_eq!(biases, plain_biases, "{name}");
            let plainly = |place: usize| after[place] == plain[place];
            assert_eq!(
                [0, 1, 2, 3].map(plainly),
                [true, true, false, true],
                "{name}"
            );
        }
    }
}

#[test]
fn without_channel_sparse_layers_a_step_is_the_optimizers() {
    for (name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let network = Network::new(&device);
            let steps = Steps::take(&mut optimizer, &network, 1);
            let plain = network_bits(&steps.plain);
            assert_eq!(
                network_bits(&steps.guarded),
                plain,
                "{optimizer_name} ({name})"
            );
            assert_eq!(
                network_bits(&steps.by_parts),
                plain,
                "{optimizer_name} ({name})"
            );
        }
    }
}

/// With all channels trained there is nothing to keep, and nothing to pay for.
#[test]
fn ratio_one_is_a_plain_step() {
    for (name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let network = Network::sparse(&device, 1.0);
            let steps = Steps::take(&mut optimizer, &network, 1);
            let plain = network_bits(&steps.plain);
            assert_eq!(
                network_bits(&steps.guarded),
                plain,
                "{optimizer_name} ({name})"
            );
        }
    }
}
