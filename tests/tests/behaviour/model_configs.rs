//! Guards the configurations of networks: what other classes, widths or image channels change, and
//! which cannot be.

use burn::tensor::{DType, Device, Tensor};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig, Padding};
use burn_frugal_tests::{assert_contains, devices, panic_message, values};

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
        BottleneckNetConfig::efficientnet_lite0(),
    ] {
        let text = serde_json::to_string(&config).expect("plain data");
        let again: BottleneckNetConfig = serde_json::from_str(&text).expect("what was written");
        assert_eq!(again, config);
    }
}

#[test]
fn a_configuration_of_a_version_without_last_convolutions_is_read() {
    let mut json = serde_json::to_value(small()).expect("plain data");
    let fields = json.as_object_mut().expect("an object");
    for newer in ["last_channels", "padding", "batch_norm_epsilon"] {
        fields.remove(newer).expect("a field");
    }
    let config: BottleneckNetConfig = serde_json::from_value(json).expect("an older file");
    assert_eq!(config, small());
}

#[test]
fn a_last_convolution_feeds_the_classifier() {
    let mut config = small().with_batch_norm(true);
    config.last_channels = Some(20);
    assert_eq!(config.features(), 20);
    for (name, device) in devices() {
        let network = config.init(&device);
        let file = Weights::of(&network);
        assert_eq!(file.0["last_conv.weight"].1, [20, 12, 1, 1], "{name}");
        assert_eq!(file.0["last_norm.running_var"].1, [20], "{name}");
        assert_eq!(file.0["classifier.weight"].1, [5, 20], "{name}");
        assert_eq!(network.forward(images(&device)).dims(), [2, 5], "{name}");
        let network = network.with_classes(3, &device);
        assert_eq!(network.forward(images(&device)).dims(), [2, 3], "{name}");
    }
    let wide = config.with_width(2.0);
    assert_eq!((wide.last_channels, wide.features()), (Some(40), 40));
    wide.init(&Device::default());
}

#[test]
fn same_padding_keeps_the_size_of_maps_and_changes_what_strides_see() {
    let padded = |padding| {
        let mut config = small();
        config.padding = padding;
        config
    };
    for (name, device) in devices() {
        let symmetric = padded(Padding::Symmetric).init(&device);
        let bytes = symmetric.to_safetensors(DType::F32).expect("values");
        let (same, report) = padded(Padding::Same)
            .init(&device)
            .load_safetensors_bytes(&bytes)
            .expect("the same parameters");
        assert!(report.is_complete(), "{name}: {report}");
        let even = images(&device);
        let map = |network: &BottleneckNet, input| network.first_conv.forward(input);
        let (a, b) = (map(&symmetric, even.clone()), map(&same, even.clone()));
        assert_eq!(a.dims(), b.dims(), "{name}");
        assert_ne!(values(a), values(b), "{name}");
        let odd = even.narrow(2, 0, 15).narrow(3, 0, 15);
        let (a, b) = (map(&symmetric, odd.clone()), map(&same, odd));
        assert_eq!(values(a), values(b), "{name}: nothing is left over");
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
fn an_epsilon_that_is_no_positive_number_is_an_error() {
    for epsilon in [0.0, -1e-3, f64::NAN, f64::INFINITY] {
        assert_refused(
            |config| config.batch_norm_epsilon = epsilon,
            &["batch_norm_epsilon", "a positive number"],
        );
    }
}

#[test]
fn sizes_of_zero_are_errors() {
    let one = "at least 1";
    assert_refused(|config| config.classes = 0, &["classes", one]);
    assert_refused(|config| config.input_channels = 0, &["input_channels", one]);
    assert_refused(|config| config.first_channels = 0, &["first_channels", one]);
    assert_refused(|config| config.first_stride = 0, &["first_stride", one]);
    assert_refused(
        |config| config.last_channels = Some(0),
        &["last_channels", one],
    );
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
