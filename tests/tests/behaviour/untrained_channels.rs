//! Guards steps of optimizers with channel-sparse layers: a channel that is not trained keeps its
//! bits whatever the optimizer remembers, and everything else is what a plain step makes of it.

use burn::module::{Module, Param, ParamId};
use burn::nn::LinearLayout;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
use burn_frugal::plan::{self, Plan, TrainingState, UntrainedChannels};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{autodiff_devices, random, random_dtype, values};

use crate::channel_sparse::{Network, PATHS, channels_of_conv, channels_of_linear, linear};

/// Optimizers that move weights whose gradient is zero, each for a reason of its own.
fn optimizers() -> [(&'static str, ModuleOptimizer); 4] {
    let decay = WeightDecayConfig { penalty: 0.1 };
    let momentum = MomentumConfig::new().with_momentum(0.9);
    [
        (
            "decay",
            SgdConfig::new()
                .with_weight_decay(Some(decay.clone()))
                .init(),
        ),
        (
            "momentum and decay",
            SgdConfig::new()
                .with_weight_decay(Some(decay.clone()))
                .with_momentum(Some(momentum))
                .init(),
        ),
        (
            "Adam",
            AdamConfig::new().with_weight_decay(Some(decay)).init(),
        ),
        ("AdamW", AdamWConfig::new().with_weight_decay(0.1).init()),
    ]
}

/// The bits of every value: `-0` is another than `0`.
fn bits<const D: usize>(param: &Param<Tensor<D>>) -> Vec<u32> {
    let values = values(param.val()).into_iter();
    values.map(|value| (value as f32).to_bits()).collect()
}

/// The weights of a network and then its biases, in the order of [`PATHS`].
fn network_bits(network: &Network) -> ([Vec<u32>; 4], [Vec<u32>; 4]) {
    let Network { stem, blocks, head } = network;
    let bias = |bias: &Option<Param<Tensor<1>>>| bits(bias.as_ref().expect("a bias"));
    (
        [
            bits(&stem.weight),
            bits(&blocks[0].weight),
            bits(&blocks[1].weight),
            bits(&head.weight),
        ],
        [
            bias(&stem.bias),
            bias(&blocks[0].bias),
            bias(&blocks[1].bias),
            bias(&head.bias),
        ],
    )
}

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

fn gradients(network: &Network, seed: u64) -> GradientsParams {
    GradientsParams::from_grads(network.loss(seed).backward(), network)
}

/// One step, three times: as the library does it, by its parts, and Burn's own.
struct Steps {
    guarded: Network,
    by_parts: Network,
    plain: Network,
}

impl Steps {
    /// From the same model, optimizer state and gradients, in place.
    fn take(optimizer: &mut ModuleOptimizer, network: &Network, seed: u64) -> Self {
        let plain = optimizer
            .clone()
            .step(0.05, network.clone(), gradients(network, seed));
        let untrained = UntrainedChannels::of(network);
        let stepped = optimizer
            .clone()
            .step(0.05, network.clone(), gradients(network, seed));
        let found = gradients(network, seed);
        Self {
            guarded: plan::step(optimizer, 0.05, network.clone(), found),
            by_parts: untrained.restore(stepped),
            plain,
        }
    }
}

/// Every place of `after`: `plain`'s bits where the channel is chosen, `before`'s elsewhere. Returns
/// whether the plain step would have moved a weight that is not trained.
#[track_caller]
fn assert_guarded(
    what: &str,
    channels: &[usize],
    channel_of: &[usize],
    [before, plain, after]: [&[u32]; 3],
) -> bool {
    let mut needed = false;
    for (index, channel) in channel_of.iter().enumerate() {
        if channels.contains(channel) {
            assert_eq!(
                after[index], plain[index],
                "{what}, weight {index}: not the plain step"
            );
            assert_ne!(
                after[index], before[index],
                "{what}, weight {index}: not trained"
            );
        } else {
            assert_eq!(after[index], before[index], "{what}, weight {index}: moved");
            needed |= plain[index] != before[index];
        }
    }
    needed
}

/// With a schedule that draws anew at every step, so that momentum of earlier steps is left in
/// channels that are not trained any more.
#[test]
fn untrained_channels_keep_their_bits_and_the_rest_is_a_plain_step() {
    for (device_name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let mut network = Network::sparse(&device, 1.0 / 3.0);
            let layers = SparseLayer::of(&network);
            let schedule = Schedule::resampled(layers, Amount::PerLayer, 1, 3);
            let mut schedule = schedule.expect("a schedule");
            let channel_of = network.channels_of_weights();
            for step in 0..5 {
                network = schedule.apply(network).expect("its layers");
                let name = format!("{optimizer_name} ({device_name}), step {step}");
                let (before, _) = network_bits(&network);
                let steps = Steps::take(&mut optimizer, &network, step);
                let (plain, plain_biases) = network_bits(&steps.plain);
                let (after, biases) = network_bits(&steps.guarded);
                assert_eq!(
                    network_bits(&steps.by_parts),
                    network_bits(&steps.guarded),
                    "{name}"
                );
                assert_eq!(biases, plain_biases, "{name}");
                for (place, path) in PATHS.iter().enumerate() {
                    let needed = assert_guarded(
                        &format!("{name}, {path}"),
                        &schedule.selection()[*path],
                        &channel_of[place],
                        [&before[place], &plain[place], &after[place]],
                    );
                    assert!(needed, "{name}, {path}: a guard that nothing needs");
                }
                network = steps.guarded;
                schedule.advance();
            }
        }
    }
}

/// Momentum alone: the first step of a channel that is not trained any more.
#[test]
fn momentum_of_a_trained_channel_does_not_outlive_its_training() {
    for (name, device) in autodiff_devices() {
        let momentum = MomentumConfig::new().with_momentum(0.9);
        let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
        let network = Network::sparse(&device, 0.5);
        let channels = |network, channels: &[usize]| {
            let state = PATHS.iter().fold(TrainingState::default(), |state, path| {
                state.with_channels(*path, channels.to_vec())
            });
            state.restore(network).expect("its layers")
        };
        let network = channels(network, &[0]);
        let found = gradients(&network, 1);
        let network = channels(plan::step(&mut optimizer, 0.05, network, found), &[2]);
        let (before, _) = network_bits(&network);
        let steps = Steps::take(&mut optimizer, &network, 2);
        let ((plain, _), (after, _)) = (network_bits(&steps.plain), network_bits(&steps.guarded));
        let weights = network.channels_of_weights();
        for (place, path) in PATHS.iter().enumerate() {
            let name = format!("{name}, {path}");
            let bits = [&before[place][..], &plain[place], &after[place]];
            assert!(
                assert_guarded(&name, &[2], &weights[place], bits),
                "{name}: no momentum"
            );
        }
    }
}

#[test]
fn no_channel_at_all_keeps_every_weight_and_trains_the_bias() {
    for (device_name, device) in autodiff_devices() {
        for (optimizer_name, mut optimizer) in optimizers() {
            let name = format!("{optimizer_name} ({device_name})");
            let network = Network::sparse(&device, 0.5);
            let state = PATHS.iter().fold(TrainingState::default(), |state, path| {
                state.with_channels(*path, vec![])
            });
            let network = state.restore(network).expect("its layers");
            let (weights, biases) = network_bits(&network);
            let found = gradients(&network, 1);
            let network = plan::step(&mut optimizer, 0.05, network, found);
            let (weights_after, biases_after) = network_bits(&network);
            assert_eq!(weights_after, weights, "{name}");
            for (after, before) in biases_after.iter().zip(&biases) {
                assert!(after.iter().zip(before).all(|(a, b)| a != b), "{name}");
            }
        }
    }
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

/// The layer is the model.
fn assert_layer_guarded<M: Module>(
    name: &str,
    layer: M,
    channel_of: &[usize],
    bits: impl Fn(&M) -> Vec<u32>,
    loss: impl Fn(&M, u64) -> Tensor<1>,
) {
    for (optimizer_name, mut optimizer) in optimizers() {
        let mut layer = layer.clone();
        for (step, channels) in [&[0, 1, 2, 4][..], &[1, 3], &[5], &[0, 2]]
            .into_iter()
            .enumerate()
        {
            let state = TrainingState::default().with_channels("", channels.to_vec());
            layer = state.restore(layer).expect("its channels");
            let gradients = || {
                let gradients = loss(&layer, step as u64).backward();
                GradientsParams::from_grads(gradients, &layer)
            };
            let plain = optimizer.clone().step(0.05, layer.clone(), gradients());
            let after = plan::step(&mut optimizer, 0.05, layer.clone(), gradients());
            let name = format!("{name}, {optimizer_name}, step {step}");
            let bits = [bits(&layer), bits(&plain), bits(&after)];
            let bits = [&bits[0][..], &bits[1], &bits[2]];
            assert!(
                assert_guarded(&name, channels, channel_of, bits),
                "{name}: not needed"
            );
            layer = after;
        }
    }
}

#[test]
fn every_kind_of_layer_is_guarded() {
    for (name, device) in autodiff_devices() {
        let sparse = Method::channel_sparse(0.5);
        for config in [
            same([6, 5], 3),
            same([6, 4], 1),
            same([6, 4], 3).with_groups(2),
            same([6, 6], 3).with_groups(6),
            same([6, 12], 3).with_groups(6),
        ] {
            let conv = layer(&config, &device, DType::F32).with_method(sparse);
            let conv = conv.expect("suitable");
            let name = format!("{name}, {:?}, {} groups", config.channels, config.groups);
            let loss = |conv: &Conv2d, seed: u64| {
                let output = conv.forward(random(seed, [2, 6, 4, 5], &device));
                let weights = random(seed + 1, output.dims(), &device);
                (output * weights).sum()
            };
            let channel_of = channels_of_conv(&conv);
            assert_layer_guarded(&name, conv, &channel_of, |conv| bits(&conv.weight), loss);
        }
        assert_linear_guarded(&name, linear(6, 4, &device, DType::F32), &device);
    }
}

fn assert_linear_guarded(name: &str, linear: Linear, device: &Device) {
    let linear = linear
        .with_method(Method::channel_sparse(0.5))
        .expect("suitable");
    let loss = |linear: &Linear, seed: u64| {
        let output = linear.forward(random(seed, [2, 3, 6], device));
        let weights = random(seed + 1, [2, 3, 4], device);
        (output * weights).sum()
    };
    let channel_of = channels_of_linear(&linear);
    assert_layer_guarded(name, linear, &channel_of, |it| bits(&it.weight), loss);
}

#[test]
fn a_linear_layer_with_a_transposed_weight_is_guarded() {
    for (name, device) in autodiff_devices() {
        let config = LinearConfig::new(6, 4).with_layout(LinearLayout::Col);
        assert_linear_guarded(&name, config.init(&device), &device);
    }
}

#[test]
fn double_precision_is_guarded() {
    for (name, device) in autodiff_devices() {
        let linear = linear(6, 4, &device, DType::F64).with_method(Method::channel_sparse(0.5));
        let linear = linear.expect("suitable");
        let input = random_dtype::<2>(1, [3, 6], &device, DType::F64);
        let gradients = linear.forward(input).sum().backward();
        let gradients = GradientsParams::from_grads(gradients, &linear);
        let (before, channels) = (values(linear.weight.val()), linear.method.channels());
        let [_, (_, mut optimizer), ..] = optimizers();
        let linear = plan::step(&mut optimizer, 0.05, linear, gradients);
        assert_eq!(linear.weight.val().dtype(), DType::F64, "{name}");
        let after = values(linear.weight.val());
        let channels = channels.expect("chosen");
        assert_eq!(channels.len(), 3, "{name}");
        for (index, channel) in channels_of_linear(&linear).iter().enumerate() {
            let kept = after[index] == before[index];
            assert_eq!(kept, !channels.contains(channel), "{name}, weight {index}");
        }
    }
}

/// The guard goes by what the layers train when it is made, whatever happens to the model before
/// the weights are put back.
#[test]
fn the_guard_holds_for_the_channels_of_its_making() {
    for (name, device) in autodiff_devices() {
        let [_, (_, mut optimizer), ..] = optimizers();
        let network = Network::sparse(&device, 0.5);
        let state =
            |channels: &[usize]| TrainingState::default().with_channels("head", channels.to_vec());
        let network = state(&[1, 2]).restore(network).expect("its layer");
        let found = gradients(&network, 1);
        let before = bits(&network.head.weight);
        let untrained = UntrainedChannels::of(&network);
        let network = optimizer.step(0.05, network, found);
        let plain = bits(&network.head.weight);
        // the next step's channels, chosen too early
        let network = state(&[0]).restore(network).expect("its layer");
        let network = untrained.restore(network);
        let channel_of = channels_of_linear(&network.head);
        let after = bits(&network.head.weight);
        assert_guarded(&name, &[1, 2], &channel_of, [&before, &plain, &after]);
        assert_eq!(network.head.method.channels(), Some(vec![0]), "{name}");
    }
}

/// A layer that the loss does not use has no gradient, and Burn's optimizers leave it alone.
#[test]
fn a_layer_that_has_not_run_yet_is_left_alone() {
    #[derive(Module, Debug)]
    struct Pair {
        used: Conv2d,
        unused: Conv2d,
    }

    for (name, device) in autodiff_devices() {
        let conv = || {
            let conv = Conv2dConfig::new([4, 4], [1, 1]).init(&device);
            conv.with_method(Method::channel_sparse(0.5))
                .expect("suitable")
        };
        let pair = Pair {
            used: conv(),
            unused: conv(),
        };
        let before = [&pair.used, &pair.unused].map(|conv| bits(&conv.weight));
        let [_, (_, mut optimizer), ..] = optimizers();
        let output = pair.used.forward(random(1, [1, 4, 3, 3], &device));
        let gradients = GradientsParams::from_grads(output.sum().backward(), &pair);
        let pair = plan::step(&mut optimizer, 0.05, pair, gradients);
        let after = [&pair.used, &pair.unused].map(|conv| bits(&conv.weight));
        assert_ne!(after[0], before[0], "{name}");
        assert_eq!(after[1], before[1], "{name}");
        assert_eq!(pair.unused.method.channels(), None, "{name}");
        assert!(pair.unused.weight.is_require_grad(), "{name}");
    }
}
