//! Guards steps of optimizers with channel-sparse layers: a channel that is not trained keeps its
//! bits whatever the optimizer remembers, and everything else is what a plain step makes of it.

mod layers;
mod plain_steps;

use burn::module::Param;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::Tensor;
use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
use burn_frugal::plan::{self, TrainingState, UntrainedChannels};
use burn_frugal_tests::channels::channels_of_linear;
use burn_frugal_tests::sparse_network::{Network, PATHS};
use burn_frugal_tests::{autodiff_devices, values};

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
