//! Guards weights files: good ones come back as they were, bad ones are errors that say why.

use burn::tensor::{DType, Device};
use burn_frugal::plan::Plan;
use burn_frugal_models::{BottleneckNet, Error, WeightReport};
use burn_frugal_tests::{assert_contains, devices, relative_error, values};
use safetensors::Dtype;

use crate::small_network::{Weights, images, small, with_filters};

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
        assert_eq!(Weights::of(&loaded), file, "{name}");
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
        assert!(error.to_string().starts_with("the bytes: "), "{error}");

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
    let mut file = Weights::of(&small().init(&Device::default()));
    file.reshape("blocks.1.depthwise.weight", &[24, 5, 1, 5]);
    let error = load(&file.bytes()).map(|(_, report)| report).unwrap_err();
    assert!(
        matches!(&error, Error::Mismatch { problems, .. } if problems.len() == 1),
        "{error}"
    );
    let message = error.to_string();
    let parts = [
        "blocks.1.depthwise.weight",
        "[24, 1, 5, 5]",
        "[24, 5, 1, 5]",
    ];
    assert_contains(&message, &parts);
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
    let mut file = Weights::of(&network);
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
    let network = with_filters(small().init(&device));
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
