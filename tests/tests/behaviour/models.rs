//! Guards the published networks: their sizes and weights, and plans for their last layers.
//!
//! `FRUGAL_MODELS` names a folder with the published weights (`mcunet-5fps.safetensors`, ...);
//! without it they are not loaded.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::methods::LayerKind;
use burn_frugal::plan::Plan;
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::{autodiff_devices, devices, random, values};

use crate::small_network::{Weights, images, small};

/// A network, and what its published weights hold, normalization folded: tensors, values,
/// convolutions.
struct Published {
    config: BottleneckNetConfig,
    tensors: usize,
    parameters: usize,
    convolutions: usize,
}

fn published() -> [Published; 4] {
    let network = |config, tensors, parameters, convolutions| Published {
        config,
        tensors,
        parameters,
        convolutions,
    };
    [
        network(BottleneckNetConfig::mcunet_5fps(), 86, 630_224, 42),
        network(BottleneckNetConfig::mobilenet_v2(0.35), 104, 357_448, 51),
        network(BottleneckNetConfig::proxyless_w03(), 122, 423_232, 60),
        network(
            BottleneckNetConfig::efficientnet_lite0(),
            100,
            4_631_000,
            49,
        ),
    ]
}

/// The convolutions that a plan can name.
fn convolutions(network: &BottleneckNet) -> usize {
    let layers = Plan::layers(network).into_iter();
    layers
        .filter(|layer| layer.shape.kind == LayerKind::Conv2d)
        .count()
}

#[test]
fn published_networks_have_the_published_sizes() {
    for Published {
        config,
        tensors,
        parameters,
        convolutions,
    } in published()
    {
        let network = config.init(&Device::default());
        let name = &config.name;
        assert_eq!(Weights::of(&network).0.len(), tensors, "{name}");
        assert_eq!(network.num_params(), parameters, "{name}");
        assert_eq!(self::convolutions(&network), convolutions, "{name}");
    }
}

#[test]
fn published_networks_run_at_any_size() {
    for (name, device) in devices() {
        for Published { config, .. } in published() {
            let network = config.with_classes(7).init(&device);
            let scores = network.forward(random(1, [1, 3, 32, 32], &device));
            assert_eq!(scores.dims(), [1, 7], "{name}");
            let scores = values(scores);
            assert!(
                scores.iter().all(|score| score.is_finite()),
                "{name}: {scores:?}"
            );
        }
    }
}

#[test]
fn published_weights_load_completely() {
    let Some(folder) = std::env::var_os("FRUGAL_MODELS") else {
        println!("FRUGAL_MODELS is not set: the published weights are not loaded");
        return;
    };
    for Published {
        config, tensors, ..
    } in published()
    {
        let file = Path::new(&folder).join(format!("{}.safetensors", config.name));
        for (name, device) in devices() {
            let what = format!("{} ({name})", config.name);
            let (network, report) = config.load(&file, &device).expect("a weights file");
            assert!(report.is_complete(), "{what}: {report}");
            let loaded = Weights::of(&network);
            assert_eq!(loaded.0.len(), tensors, "{what}");
            // the values themselves, through the layout of PyTorch and back
            let published = Weights::read(&std::fs::read(&file).expect("it was read before"));
            if report.applied.len() == tensors {
                assert_eq!(loaded, published, "{what}");
            } else {
                // folding changed them; `efficientnet.rs` has what they compute
                assert_eq!(report.applied.len(), published.0.len(), "{what}");
            }
        }
    }
}

#[test]
fn small32_is_a_network_for_32_pixels() {
    let config = BottleneckNetConfig::small32();
    let network = config.init(&Device::default());
    assert_eq!(config.input.size, 32);
    assert_eq!(
        network
            .forward(Tensor::zeros([1, 3, 32, 32], &Device::default()))
            .dims(),
        [1, 10]
    );
    // 10 blocks of 3 convolutions, of which the first does not expand, and the first convolution
    assert_eq!(convolutions(&network), 30);
}

#[test]
fn the_last_convolutions_are_those_before_the_head() {
    let network = BottleneckNetConfig::mcunet_5fps().init(&Device::default());
    let plan = Plan::builder()
        .last_convs(4, Method::gradient_filter(2))
        .build(&network);
    let last = [
        "blocks.12.pointwise2",
        "blocks.13.depthwise",
        "blocks.13.pointwise1",
        "blocks.13.pointwise2",
    ];
    assert_eq!(
        plan.expect("four layers")
            .methods()
            .keys()
            .collect::<Vec<_>>(),
        last
    );
}

#[test]
fn a_plan_trains_the_end_of_a_network() {
    for (name, device) in autodiff_devices() {
        let network = small().init(&device);
        let plan = Plan::builder()
            .last_convs(2, Method::gradient_filter(2))
            .build(&network);
        let plan = plan.expect("two layers");
        let network = plan.apply(network).expect("its layers");
        let network = plan
            .freeze_rest(network, &["classifier"])
            .expect("its layers");
        let gradients = network
            .forward(images(&device))
            .powi_scalar(2)
            .mean()
            .backward();
        let block = &network.blocks[2];
        assert!(
            block.pointwise2.weight.val().grad(&gradients).is_some(),
            "{name}"
        );
        assert!(
            block.depthwise.weight.val().grad(&gradients).is_some(),
            "{name}"
        );
        assert!(
            network.classifier.weight.val().grad(&gradients).is_some(),
            "{name}"
        );
        let frozen = block.pointwise1.as_ref().expect("it expands");
        assert!(frozen.weight.val().grad(&gradients).is_none(), "{name}");
        assert!(
            network.first_conv.weight.val().grad(&gradients).is_none(),
            "{name}"
        );
    }
}
