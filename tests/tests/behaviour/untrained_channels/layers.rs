//! Guards guarded steps of single layers of every kind, layout and precision.

use burn::module::Module;
use burn::nn::LinearLayout;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{self, TrainingState};
use burn_frugal_tests::channels::{channels_of_conv, channels_of_linear};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::sparse_network::linear;
use burn_frugal_tests::{autodiff_devices, random, random_dtype, values};

use super::{assert_guarded, bits, optimizers};

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

/// A loss that takes the model by value runs on a clone, which chooses its channels for itself.
#[test]
fn a_forward_pass_on_a_clone_trains_the_channels_that_the_clone_chose() {
    for (name, device) in autodiff_devices() {
        let conv = Conv2dConfig::new([4, 4], [1, 1]).init(&device);
        let conv = conv.with_method(Method::channel_sparse(0.5));
        let conv = conv.expect("suitable");
        let clone = conv.clone();
        let output = clone.forward(random(1, [1, 4, 3, 3], &device));
        let gradients = GradientsParams::from_grads(output.sum().backward(), &conv);
        let chosen = clone.method.channels().expect("chosen by the pass");
        let before = values(conv.weight.val());
        let [_, (_, mut optimizer), ..] = optimizers();
        let conv = plan::step(&mut optimizer, 0.05, conv, gradients);
        for (index, (before, after)) in before.iter().zip(values(conv.weight.val())).enumerate() {
            let trained = chosen.contains(&(index % 4));
            assert_eq!(*before != after, trained, "{name}, weight {index}");
        }
    }
}

/// Two layers of a model that share their parameters choose channels each for itself.
#[test]
fn layers_that_share_a_parameter_keep_their_own_untrained_channels() {
    for (name, device) in autodiff_devices() {
        let conv = Conv2dConfig::new([4, 4], [1, 1]).init(&device);
        let conv = conv.with_method(Method::channel_sparse(0.5));
        let conv = conv.expect("suitable");
        let shared = vec![conv.clone(), conv];
        let chosen = [vec![0, 1], vec![2, 3]];
        let state = TrainingState::default();
        let state = state.with_channels("0", chosen[0].clone());
        let state = state.with_channels("1", chosen[1].clone());
        let shared = state.restore(shared).expect("its layers");
        let before = values(shared[0].weight.val());
        let output = shared[0].forward(random(1, [1, 4, 3, 3], &device));
        let gradients = GradientsParams::from_grads(output.sum().backward(), &shared);
        let [_, (_, mut optimizer), ..] = optimizers();
        let shared = plan::step(&mut optimizer, 0.05, shared, gradients);
        for (index, (before, after)) in before
            .iter()
            .zip(values(shared[0].weight.val()))
            .enumerate()
        {
            let trained = chosen[0].contains(&(index % 4));
            assert_eq!(*before != after, trained, "{name}, weight {index}");
        }
    }
}
