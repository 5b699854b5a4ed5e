//! Guards the model family: the sizes of the published networks, weights files good and bad, and
//! what changing classes, width or normalization does.
//!
//! `FRUGAL_MODELS` names a folder with the published weights (`mcunet-5fps.safetensors`, ...);
//! without it they are not loaded.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::BatchNorm;
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::plan::Plan;
use burn_frugal_models::{
    BottleneckNet, BottleneckNetConfig, Error, InputConfig, InvertedBottleneckConfig, WeightReport,
};
use burn_frugal_tests::{
    assert_close, autodiff_devices, devices, panic_message, random, relative_error, values,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// A network of the family with what every kind of block has, small enough to run everywhere.
fn small() -> BottleneckNetConfig {
    let block = |channels: [usize; 3], kernel, stride, residual| InvertedBottleneckConfig {
        input_channels: channels[0],
        expanded_channels: channels[1],
        output_channels: channels[2],
        kernel,
        stride,
        residual,
    };
    BottleneckNetConfig {
        name: "small".to_string(),
        input: InputConfig {
            size: 16,
            mean: 127.5,
            std: 127.5,
        },
        input_channels: 3,
        first_channels: 8,
        first_stride: 2,
        blocks: vec![
            block([8, 8, 8], 3, 1, false),
            block([8, 24, 12], 5, 2, false),
            block([12, 24, 12], 3, 1, true),
        ],
        classes: 5,
        batch_norm: false,
    }
}

fn images(device: &Device) -> Tensor<4> {
    random(5, [2, 3, 16, 16], device)
}

// ------------------------------------------------------------------------------------------------
// The published networks

/// A network, and what its published weights hold: tensors, values, convolutions.
struct Published {
    config: BottleneckNetConfig,
    tensors: usize,
    parameters: usize,
    convolutions: usize,
}

fn published() -> [Published; 3] {
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
    ]
}

fn weights(network: &BottleneckNet) -> Weights {
    Weights::read(&network.to_safetensors(DType::F32).expect("readable values"))
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
        assert_eq!(weights(&network).0.len(), tensors, "{name}");
        assert_eq!(network.num_params(), parameters, "{name}");
        assert_eq!(Plan::layers(&network).len(), convolutions, "{name}");
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
            let network = config.init(&device);
            let (network, report) = network.load_safetensors(&file).expect("a weights file");
            assert!(report.is_complete(), "{} ({name}): {report}", config.name);
            assert_eq!(report.applied.len(), tensors, "{} ({name})", config.name);
            // the values themselves, through the layout of PyTorch and back
            let published = Weights::read(&std::fs::read(&file).expect("it was read before"));
            assert_eq!(weights(&network), published, "{} ({name})", config.name);
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
    assert_eq!(Plan::layers(&network).len(), 30);
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

// ------------------------------------------------------------------------------------------------
// Weights files

/// The content of a safetensors file: element type, shape and bytes by name.
#[derive(Clone, Debug, PartialEq)]
struct Weights(BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Weights {
    fn read(bytes: &[u8]) -> Self {
        let file = SafeTensors::deserialize(bytes).expect("a safetensors file");
        let tensor = |(name, view): (&str, TensorView)| {
            let parts = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_string(), parts)
        };
        Self(file.iter().map(tensor).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        let view = |(name, (dtype, shape, data)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
            let view = TensorView::new(*dtype, shape.clone(), data.clone().leak());
            (name.clone(), view.expect("bytes of this shape"))
        };
        safetensors::serialize(self.0.iter().map(view), None).expect("a safetensors file")
    }

    fn reshape(&mut self, name: &str, shape: &[usize]) {
        self.0.get_mut(name).expect("a tensor of the network").1 = shape.to_vec();
    }
}

fn load(bytes: &[u8]) -> Result<(BottleneckNet, WeightReport), Error> {
    small()
        .init(&Device::default())
        .load_safetensors_bytes(bytes)
}

#[test]
fn weights_survive_a_file() {
    for (name, device) in devices() {
        let network = small().init(&device);
        let bytes = network.to_safetensors(DType::F32).expect("readable values");
        let file = Weights::read(&bytes);
        // PyTorch's layout: a linear layer's weight is [out, in]
        assert_eq!(file.0["classifier.weight"].1, [5, 12], "{name}");
        assert_eq!(
            file.0["blocks.1.depthwise.weight"].1,
            [24, 1, 5, 5],
            "{name}"
        );

        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("small.safetensors");
        std::fs::write(&path, &bytes).expect("a writable folder");
        let (loaded, report) = small()
            .init(&device)
            .load_safetensors(&path)
            .expect("weights");
        assert!(report.is_complete(), "{name}: {report}");
        assert_eq!(report.to_string(), "20 tensors applied", "{name}");
        assert_eq!(weights(&loaded), file, "{name}");
        let x = images(&device);
        assert_eq!(
            values(loaded.forward(x.clone())),
            values(network.forward(x)),
            "{name}"
        );
    }
}

#[test]
fn half_precision_weights_become_single() {
    for (name, device) in devices() {
        let network = small().init(&device);
        let half = network.to_safetensors(DType::F16).expect("readable values");
        let file = Weights::read(&half);
        assert!(
            file.0.values().all(|(dtype, ..)| *dtype == Dtype::F16),
            "{name}"
        );

        let (loaded, report) = small()
            .init(&device)
            .load_safetensors_bytes(&half)
            .expect("weights");
        assert!(report.is_complete(), "{name}: {report}");
        assert_eq!(loaded.first_conv.weight.val().dtype(), DType::F32, "{name}");
        for (full, rounded) in [
            (
                values(network.first_conv.weight.val()),
                values(loaded.first_conv.weight.val()),
            ),
            (
                values(network.classifier.weight.val()),
                values(loaded.classifier.weight.val()),
            ),
        ] {
            let error = relative_error(&rounded, &full);
            assert!(error > 0.0 && error < 1.0 / 2048.0, "{name}: {error:e}");
        }
        assert_eq!(
            loaded.to_safetensors(DType::F16).expect("readable"),
            half,
            "{name}"
        );
        loaded.forward(images(&device));
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let bytes = small()
        .init(&Device::default())
        .to_safetensors(DType::F32)
        .expect("readable");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("part.safetensors");
    for length in [
        0,
        1,
        7,
        8,
        9,
        100,
        bytes.len() / 2,
        bytes.len() - 4,
        bytes.len() - 1,
    ] {
        let error = load(&bytes[..length])
            .map(|(_, report)| report)
            .unwrap_err();
        assert!(
            matches!(error, Error::Weights { .. }),
            "{length} bytes: {error}"
        );
        assert!(
            error.to_string().starts_with("the embedded weights: "),
            "{error}"
        );

        std::fs::write(&path, &bytes[..length]).expect("a writable folder");
        let error = small().init(&Device::default()).load_safetensors(&path);
        let error = error.map(|(_, report)| report).unwrap_err();
        assert!(error.to_string().contains("part.safetensors: "), "{error}");
    }
}

#[test]
fn bytes_that_are_no_weights_are_an_error() {
    let mut huge_header = u64::MAX.to_le_bytes().to_vec();
    huge_header.extend([b'{'; 64]);
    let mut wrong_header = 16u64.to_le_bytes().to_vec();
    wrong_header.extend(b"{\"a\": [1, 2, 3]}");
    let garbage: Vec<u8> = (0..4096u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for bytes in [
        huge_header,
        wrong_header,
        garbage,
        b"PK\x03\x04 a PyTorch file".to_vec(),
    ] {
        let error = load(&bytes).map(|(_, report)| report).unwrap_err();
        assert!(matches!(error, Error::Weights { .. }), "{error}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let network = small().init(&Device::default());
    let error = network.load_safetensors("nowhere/weights.safetensors");
    let error = error.map(|(_, report)| report).unwrap_err();
    assert!(matches!(error, Error::Weights { .. }), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("nowhere/weights.safetensors: "),
        "{error}"
    );
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let mut file = weights(&small().init(&Device::default()));
    file.reshape("blocks.1.depthwise.weight", &[24, 5, 1, 5]);
    let error = load(&file.bytes()).map(|(_, report)| report).unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { problems, .. } if problems.len() == 1),
        "{error}"
    );
    let message = error.to_string();
    for part in [
        "blocks.1.depthwise.weight",
        "[24, 1, 5, 5]",
        "[24, 5, 1, 5]",
    ] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn a_head_for_other_classes_is_named() {
    let bytes = small()
        .with_classes(9)
        .init(&Device::default())
        .to_safetensors(DType::F32);
    let error = load(&bytes.expect("readable"))
        .map(|(_, report)| report)
        .unwrap_err();
    let Error::Mismatch { problems, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(problems.len(), 2, "{error}");
    for (problem, tensor) in problems.iter().zip(["classifier.", "classifier."]) {
        assert!(problem.contains(tensor), "{problem}");
    }
    let message = error.to_string();
    assert!(message.contains('9') && message.contains('5'), "{message}");
}

#[test]
fn missing_and_unused_tensors_are_reported() {
    let network = small().init(&Device::default());
    let mut file = weights(&network);
    file.0.remove("classifier.bias").expect("a bias");
    let stray = file.0["classifier.weight"].clone();
    file.0.insert("teacher.weight".to_string(), stray);

    let start = small().init(&Device::default());
    let own_bias = values(start.classifier.bias.as_ref().expect("a bias").val());
    let (loaded, report) = start
        .load_safetensors_bytes(&file.bytes())
        .expect("partial weights");
    assert!(!report.is_complete());
    assert_eq!(report.missing, ["classifier.bias"]);
    assert_eq!(report.unused, ["teacher.weight"]);
    assert_eq!(report.applied.len(), 19);
    let shown = "19 tensors applied, 1 missing (classifier.bias), 1 unused (teacher.weight)";
    assert_eq!(report.to_string(), shown);
    let bias = values(loaded.classifier.bias.as_ref().expect("a bias").val());
    assert_eq!(
        bias, own_bias,
        "a parameter without a tensor stays as it was"
    );
    let loaded_weight = values(loaded.classifier.weight.val());
    assert_eq!(loaded_weight, values(network.classifier.weight.val()));
}

#[test]
fn loading_keeps_methods_and_ids() {
    let device = Device::default().autodiff();
    let network = small().init(&device);
    let plan = Plan::builder()
        .last_convs(2, Method::gradient_filter(2))
        .build(&network);
    let network = plan
        .expect("two layers")
        .apply(network)
        .expect("its layers");
    let (id, layers) = (network.first_conv.weight.id, Plan::layers(&network));
    let bytes = small()
        .init(&device)
        .to_safetensors(DType::F32)
        .expect("readable");
    let (network, _) = network.load_safetensors_bytes(&bytes).expect("weights");
    assert_eq!(network.first_conv.weight.id, id);
    assert_eq!(Plan::layers(&network), layers);
    assert!(network.first_conv.weight.is_require_grad());
}

// ------------------------------------------------------------------------------------------------
// Changing a network

#[test]
fn a_new_head_leaves_the_rest() {
    for (name, device) in devices() {
        let network = small().init(&device);
        let before = weights(&network);
        let network = network.with_classes(3, &device);
        assert_eq!(network.forward(images(&device)).dims(), [2, 3], "{name}");
        let after = weights(&network);
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

/// Random scales and shifts, as training would leave them.
fn scrambled(norm: BatchNorm, seed: u64, device: &Device) -> BatchNorm {
    let [channels] = norm.gamma.dims();
    BatchNorm {
        gamma: Param::from_tensor(random(seed, [channels], device) + 1.5),
        beta: Param::from_tensor(random(seed + 1, [channels], device)),
        ..norm
    }
}

/// A network with batch normalization whose statistics are those of some random images.
fn normalized(device: &Device) -> BottleneckNet {
    let mut network = small().with_batch_norm(true).init(device);
    network.first_norm = network.first_norm.map(|norm| scrambled(norm, 30, device));
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
        let untrained = small().with_batch_norm(true).init(&device);
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
        // the same tensors as a network that never had normalization
        let shapes = |network: &BottleneckNet| -> Vec<(String, Vec<usize>)> {
            let tensors = weights(network).0.into_iter();
            tensors.map(|(path, (_, shape, _))| (path, shape)).collect()
        };
        assert_eq!(shapes(&folded), shapes(&small().init(&device)), "{name}");
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
    let network = normalized(&device);
    let plan = Plan::builder()
        .last_convs(2, Method::gradient_filter(2))
        .build(&network);
    let network = plan
        .expect("two layers")
        .apply(network)
        .expect("its layers");
    let layers = Plan::layers(&network);
    let folded = network.fold_batch_norm();
    assert_eq!(Plan::layers(&folded), layers);
    let before = weights(&folded);
    assert_eq!(weights(&folded.fold_batch_norm()), before);
}

// ------------------------------------------------------------------------------------------------
// Configuration errors

#[track_caller]
fn assert_refused(edit: impl FnOnce(&mut BottleneckNetConfig), parts: &[&str]) {
    let mut config = small();
    edit(&mut config);
    let message = match config.try_init(&Device::default()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a network that cannot be: {config:?}"),
    };
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
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
