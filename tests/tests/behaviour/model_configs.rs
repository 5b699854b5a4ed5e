//! Guards the configurations of networks: what other classes, widths or image channels change, and
//! which cannot be.

use burn::tensor::{Device, Tensor};
use burn_frugal_models::BottleneckNetConfig;
use burn_frugal_tests::{assert_contains, devices, panic_message};

use crate::small_network::{Weights, images, small};

#[test]
fn a_new_head_leaves_the_rest() {
    for (name, device) in devices() {
        let network = small().init(&device);
        let before = Weights::of(&network);
        let network = network.with_classes(3, &device);
        assert_eq!(network.forward(images(&device)).dims(), [2, 3], "{name}");
        let after = Weights::of(&network);
        assert_eq!(after.0["classifier.weight"].1, [3, 12], "{name}");
        let body = |file: &Weights| {
            let tensors = file
                .0
                .iter()
                .filter(|(path, _)| !path.starts_with("classifier"));
            tensors
                .map(|(path, data)| (path.clone(), data.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(body(&after), body(&before), "{name}");
    }
}

#[test]
fn widths_are_multiples_of_eight_close_to_the_factor() {
    let outputs = |config: &BottleneckNetConfig| -> Vec<usize> {
        config
            .blocks
            .iter()
            .map(|block| block.output_channels)
            .collect()
    };
    // table 2 of arXiv 1801.04381 at 0.35, as the published weights have it
    let narrow = BottleneckNetConfig::mobilenet_v2(0.35);
    let expected = [
        8, 8, 8, 16, 16, 16, 24, 24, 24, 24, 32, 32, 32, 56, 56, 56, 112,
    ];
    assert_eq!(outputs(&narrow), expected);
    assert_eq!(narrow.first_channels, 16);
    assert_eq!(
        (narrow.name.as_str(), narrow.features()),
        ("mbv2-w0.35", 112)
    );

    let full = BottleneckNetConfig::mobilenet_v2(1.0);
    assert_eq!(outputs(&full)[..4], [16, 24, 24, 32]);
    assert_eq!(full.features(), 320);
    for factor in [0.1, 0.5, 0.75, 1.0, 1.4] {
        for config in [
            BottleneckNetConfig::mcunet_5fps(),
            BottleneckNetConfig::proxyless_w03(),
        ] {
            let scaled = config.clone().with_width(factor);
            for (before, after) in outputs(&config).into_iter().zip(outputs(&scaled)) {
                let exact = before as f64 * factor;
                assert_eq!(after % 8, 0, "{before} channels at {factor}");
                assert!(
                    after as f64 >= 0.9 * exact,
                    "{before} at {factor} became {after}"
                );
                assert!(
                    after as f64 <= (exact + 8.0),
                    "{before} at {factor} became {after}"
                );
            }
            let scores = scaled.with_classes(2).init(&Device::default());
            assert_eq!(
                scores
                    .forward(Tensor::zeros([1, 3, 32, 32], &Device::default()))
                    .dims(),
                [1, 2]
            );
        }
    }
}

#[test]
fn a_configuration_survives_json() {
    for config in [
        small(),
        BottleneckNetConfig::small32(),
        BottleneckNetConfig::mobilenet_v2(0.5),
    ] {
        let text = serde_json::to_string(&config).expect("plain data");
        let again: BottleneckNetConfig = serde_json::from_str(&text).expect("what was written");
        assert_eq!(again, config);
    }
}

#[test]
fn grey_images_need_one_channel() {
    let device = Device::default();
    let network = small().with_input_channels(1).init(&device);
    assert_eq!(
        network
            .forward(Tensor::zeros([1, 1, 16, 16], &device))
            .dims(),
        [1, 5]
    );
    let message = panic_message(|| network.forward(Tensor::zeros([1, 3, 16, 16], &device)));
    assert!(message.expect("refused").contains("needs 1"));
}

#[track_caller]
fn assert_refused(edit: impl FnOnce(&mut BottleneckNetConfig), parts: &[&str]) {
    let mut config = small();
    edit(&mut config);
    let message = match config.try_init(&Device::default()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a network that cannot be: {config:?}"),
    };
    assert_contains(&message, parts);
    assert_eq!(
        panic_message(|| config.init(&Device::default())),
        Some(message)
    );
}

#[test]
fn blocks_that_do_not_fit_together_are_errors() {
    assert_refused(
        |config| config.blocks[1].input_channels = 9,
        &["blocks.1.input_channels", "expected 8", "found 9"],
    );
    assert_refused(
        |config| config.first_channels = 16,
        &["blocks.0.input_channels", "expected 16", "found 8"],
    );
    assert_refused(
        |config| config.blocks[1].residual = true,
        &["blocks.1.residual", "stride 2, 8 -> 12 channels"],
    );
    assert_refused(
        |config| config.blocks[2].kernel = 4,
        &["blocks.2.kernel", "odd", "found 4"],
    );
}

#[test]
fn sizes_of_zero_are_errors() {
    let one = "at least 1";
    assert_refused(|config| config.classes = 0, &["classes", one]);
    assert_refused(|config| config.input_channels = 0, &["input_channels", one]);
    assert_refused(|config| config.first_channels = 0, &["first_channels", one]);
    assert_refused(|config| config.first_stride = 0, &["first_stride", one]);
    assert_refused(|config| config.blocks[0].kernel = 0, &["blocks.0.kernel"]);
    assert_refused(
        |config| config.blocks[0].stride = 0,
        &["blocks.0.stride", one],
    );
    assert_refused(
        |config| config.blocks[1].expanded_channels = 0,
        &["blocks.1.expanded_channels", one],
    );
    assert_refused(
        |config| {
            config.blocks[2].output_channels = 0;
            config.blocks[2].residual = false;
        },
        &["blocks.2.output_channels", one],
    );
}
