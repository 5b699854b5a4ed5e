//! Guards EfficientNet-Lite0: its published names and PyTorch's logits, with batch normalization and
//! with it folded.
//!
//! The logits are those of `reference/efficientnet_lite0.py`, which has the formula of the weights.
//! With `FRUGAL_MODELS`, a folder with `efficientnet-lite0.safetensors`, also those of the published
//! weights.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::{assert_close, autodiff_devices, devices, values};
use safetensors::Dtype;

use crate::small_network::Weights;

const LOGITS: &str = include_str!("../../reference/efficientnet_lite0.json");
const PUBLISHED_LOGITS: &str = include_str!("../../reference/efficientnet_lite0_published.json");
const CLASSES: usize = 10;
const IMAGE_SEED: u32 = 1000;
/// `[images, channels, height, width]`
const IMAGES: [usize; 4] = [2, 3, 72, 56];
/// Relative error of single precision after 49 convolutions.
const TOLERANCE: f64 = 1e-4;

/// The reference's `random`: values in -1..1, a hash of the seed and the element's index.
fn random(seed: u32, count: usize) -> impl Iterator<Item = f64> {
    let start = seed.wrapping_mul(0x9e37_79b9);
    (0..count as u32).map(move |index| {
        let mut x = index.wrapping_add(start);
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        x ^= x >> 16;
        f64::from(x >> 8) / f64::from(1 << 23) - 1.0
    })
}

fn images(device: &Device) -> Tensor<4> {
    let pixels: Vec<f32> = random(IMAGE_SEED, IMAGES.iter().product())
        .map(|value| value as f32)
        .collect();
    Tensor::from_data(TensorData::new(pixels, IMAGES), device)
}

/// The shape of each tensor of the published file, by its name there.
fn published_shapes(config: &BottleneckNetConfig) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    let mut add = |conv: String, norm: String, shape: [usize; 4]| {
        shapes.insert(format!("{conv}.weight"), shape.to_vec());
        for part in ["weight", "bias", "running_mean", "running_var"] {
            shapes.insert(format!("{norm}.{part}"), vec![shape[0]]);
        }
    };
    let first = config.first_channels;
    let last = config.last_channels.expect("a last convolution");
    add("_conv_stem".into(), "_bn0".into(), [first, 3, 3, 3]);
    for (index, block) in config.blocks.iter().enumerate() {
        let path = |part: &str| format!("_blocks.{index}.{part}");
        let (input, expanded) = (block.input_channels, block.expanded_channels);
        if input != expanded {
            let shape = [expanded, input, 1, 1];
            add(path("_expand_conv"), path("_bn0"), shape);
        }
        let shape = [expanded, 1, block.kernel, block.kernel];
        add(path("_depthwise_conv"), path("_bn1"), shape);
        let shape = [block.output_channels, expanded, 1, 1];
        add(path("_project_conv"), path("_bn2"), shape);
    }
    let outputs = config.blocks.last().expect("blocks").output_channels;
    add("_conv_head".into(), "_bn1".into(), [last, outputs, 1, 1]);
    shapes.insert("_fc.weight".to_string(), vec![config.classes, last]);
    shapes.insert("_fc.bias".to_string(), vec![config.classes]);
    shapes
}

/// The weights of the reference's `formula`, as a file with the published names.
fn formula(config: &BottleneckNetConfig) -> Weights {
    let tensor = |(seed, (name, shape)): (u32, (String, Vec<usize>))| {
        let (shift, scale) = if shape.len() > 1 {
            let inputs = shape[1..].iter().product::<usize>();
            (0.0, (6.0 / inputs as f64).sqrt())
        } else if name.ends_with(".running_var") || name.ends_with(".weight") {
            (0.75, 0.5)
        } else {
            (0.0, 0.25)
        };
        let values = random(seed, shape.iter().product());
        let bytes = values.flat_map(|value| ((shift + scale * value) as f32).to_le_bytes());
        let bytes = bytes.collect();
        (name, (Dtype::F32, shape, bytes))
    };
    Weights((0..).zip(published_shapes(config)).map(tensor).collect())
}

/// The first classes' scores, and what they should be.
#[track_caller]
fn assert_logits(what: &str, network: &BottleneckNet, device: &Device, expected: &str) {
    let expected: Vec<[f64; CLASSES]> = serde_json::from_str(expected).expect("numbers");
    let scores = network.forward(images(device)).narrow(1, 0, CLASSES);
    assert_close(what, &values(scores), &expected.concat(), TOLERANCE);
}

#[test]
fn efficientnet_has_the_logits_of_pytorch() {
    let config = BottleneckNetConfig::efficientnet_lite0().with_classes(CLASSES);
    let file = formula(&config);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("formula.safetensors");
    std::fs::write(&path, file.bytes()).expect("a writable folder");
    for (name, device) in devices() {
        let network = config.clone().with_batch_norm(true).init(&device);
        let (network, report) = network.load_safetensors(&path).expect("weights");
        assert!(report.is_complete(), "{name}: {report}");
        assert_eq!(report.applied.len(), file.0.len(), "{name}");
        let what = format!("{name}, with batch normalization");
        assert_logits(&what, &network, &device, LOGITS);

        let (network, report) = config.load(&path, &device).expect("weights");
        assert!(report.is_complete(), "{name}: {report}");
        assert!(network.last_norm.is_none(), "{name}");
        assert_logits(&format!("{name}, folded"), &network, &device, LOGITS);
    }
}

#[test]
fn a_file_without_normalization_loads_as_it_is() {
    let config = BottleneckNetConfig::efficientnet_lite0().with_classes(CLASSES);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("folded.safetensors");
    let network = config.init(&Device::default());
    let bytes = network.to_safetensors(DType::F32);
    std::fs::write(&path, bytes.expect("readable values")).expect("a writable folder");
    let config = config.with_batch_norm(true);
    let (loaded, report) = config.load(&path, &Device::default()).expect("weights");
    assert!(report.is_complete(), "{report}");
    assert_eq!(Weights::of(&loaded), Weights::of(&network));
}

#[test]
fn a_count_of_batches_is_not_reported_and_other_strays_are() {
    let config = BottleneckNetConfig::efficientnet_lite0().with_classes(CLASSES);
    let mut file = formula(&config);
    let count = (Dtype::I64, vec![], 7i64.to_le_bytes().to_vec());
    let norms = ["_bn0", "_blocks.3._bn1"];
    for norm in norms {
        let name = format!("{norm}.num_batches_tracked");
        file.0.insert(name, count.clone());
    }
    file.0.insert("_swish.count".to_string(), count);
    let network = config.with_batch_norm(true).init(&Device::default());
    let loaded = network.load_safetensors_bytes(&file.bytes());
    let (_, report) = loaded.expect("weights");
    assert_eq!(report.unused, ["_swish.count"]);
    assert!(report.missing.is_empty(), "{report}");
}

#[test]
fn a_loaded_network_can_be_trained() {
    let config = BottleneckNetConfig::efficientnet_lite0().with_classes(CLASSES);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("formula.safetensors");
    std::fs::write(&path, formula(&config).bytes()).expect("a writable folder");
    let (name, device) = autodiff_devices().remove(0);
    let (network, _) = config.load(&path, &device).expect("weights");
    let gradients = network.forward(images(&device)).sum().backward();
    let last = network.last_conv.as_ref().expect("a last convolution");
    for weight in [&network.first_conv.weight, &last.weight] {
        assert!(weight.val().grad(&gradients).is_some(), "{name}");
    }
}

#[test]
fn the_published_weights_have_the_logits_of_pytorch() {
    let Some(folder) = std::env::var_os("FRUGAL_MODELS") else {
        println!("FRUGAL_MODELS is not set: the published weights are not loaded");
        return;
    };
    let config = BottleneckNetConfig::efficientnet_lite0();
    let path = Path::new(&folder).join("efficientnet-lite0.safetensors");
    let shapes = |file: &Weights| -> BTreeMap<String, Vec<usize>> {
        let tensors = file.0.iter();
        tensors
            .map(|(name, (_, shape, _))| (name.clone(), shape.clone()))
            .collect()
    };
    let file = Weights::read(&std::fs::read(&path).expect("a weights file"));
    assert_eq!(shapes(&file), published_shapes(&config));
    for (name, device) in devices() {
        let (network, report) = config.load(&path, &device).expect("a weights file");
        assert!(report.is_complete(), "{name}: {report}");
        assert_eq!(report.applied.len(), file.0.len(), "{name}");
        assert_logits(name, &network, &device, PUBLISHED_LOGITS);
    }
}
