//! Guards folding: batch normalization goes into the convolutions and the function stays.

use burn::module::{Module, Param};
use burn::tensor::Device;
use burn_frugal::methods::LayerKind;
use burn_frugal::nn::BatchNorm;
use burn_frugal::plan::Plan;
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::{assert_close, autodiff_devices, random, values};

use crate::small_network::{Weights, images, small, with_filters};

/// Random scales and shifts, as training would leave them.
fn scrambled(norm: BatchNorm, seed: u64, device: &Device) -> BatchNorm {
    let [channels] = norm.gamma.dims();
    BatchNorm {
        gamma: Param::from_tensor(random(seed, [channels], device) + 1.5),
        beta: Param::from_tensor(random(seed + 1, [channels], device)),
        ..norm
    }
}

/// A network that has a last convolution and another epsilon than Burn's.
fn config() -> BottleneckNetConfig {
    BottleneckNetConfig {
        last_channels: Some(20),
        batch_norm_epsilon: 0.1,
        ..small()
    }
}

/// The network with batch normalization whose statistics are those of some random images.
fn normalized(device: &Device) -> BottleneckNet {
    let mut network = config().with_batch_norm(true).init(device);
    network.first_norm = network.first_norm.map(|norm| scrambled(norm, 30, device));
    network.last_norm = network.last_norm.map(|norm| scrambled(norm, 31, device));
    for (block, seed) in network.blocks.iter_mut().zip(40..) {
        let norms = [
            &mut block.pointwise1_norm,
            &mut block.depthwise_norm,
            &mut block.pointwise2_norm,
        ];
        for (norm, index) in norms.into_iter().zip(0..) {
            *norm = norm
                .take()
                .map(|norm| scrambled(norm, seed + 100 * index, device));
        }
    }
    for seed in 60..64 {
        network.forward(random(seed, [4, 3, 16, 16], device) * 2.0 + 0.3);
    }
    network
}

#[test]
fn folding_normalization_keeps_the_function() {
    for (name, device) in autodiff_devices() {
        let plain = device.clone().without_autodiff();
        let network = normalized(&device);
        let untrained = config().with_batch_norm(true).init(&device);
        let running = |network: &BottleneckNet| {
            values(
                network
                    .first_norm
                    .as_ref()
                    .expect("a norm")
                    .running_mean
                    .value(),
            )
        };
        assert_ne!(
            running(&network),
            running(&untrained),
            "{name}: statistics were gathered"
        );

        let expected = values(network.valid().forward(images(&plain)));
        let folded = network.fold_batch_norm();
        let found = values(folded.valid().forward(images(&plain)));
        assert_close(&name, &found, &expected, 1e-4);

        assert!(folded.first_norm.is_none(), "{name}");
        assert!(folded.last_norm.is_none(), "{name}");
        // the same tensors as a network that never had normalization
        let shapes = |network: &BottleneckNet| -> Vec<(String, Vec<usize>)> {
            let tensors = Weights::of(network).0.into_iter();
            tensors.map(|(path, (_, shape, _))| (path, shape)).collect()
        };
        assert_eq!(shapes(&folded), shapes(&config().init(&device)), "{name}");
        assert!(
            folded.first_conv.weight.is_require_grad(),
            "{name}: it can be trained"
        );
        let gradients = folded.forward(images(&device)).sum().backward();
        assert!(
            folded.first_conv.weight.val().grad(&gradients).is_some(),
            "{name}"
        );
    }
}

#[test]
fn folding_keeps_methods_and_networks_without_normalization() {
    let device = Device::default().autodiff();
    let network = with_filters(normalized(&device));
    let mut layers = Plan::layers(&network);
    layers.retain(|layer| layer.shape.kind != LayerKind::BatchNorm);
    let folded = network.fold_batch_norm();
    assert_eq!(Plan::layers(&folded), layers);
    let before = Weights::of(&folded);
    assert_eq!(Weights::of(&folded.fold_batch_norm()), before);
}
