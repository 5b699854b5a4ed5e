//! Guards the prediction of a step's memory: what it says is what the allocator counts.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_frugal::methods::{ActivationShortcut, LayerKind};
use burn_frugal::plan::{Network, Plan, Training};
use burn_frugal::{Method, PerMode};
use burn_frugal_models::{BottleneckNet, BottleneckNetConfig};
use burn_frugal_tests::{autodiff_devices, random};

use crate::{ALLOCATOR, alone};

const SIZE: usize = 64;
const CLASSES: usize = 10;

/// The same method for every convolution, for its input.
type ByInput = fn(PerMode) -> Method;

fn plans() -> [(&'static str, ByInput); 5] {
    [
        ("exact", |_| Method::Exact),
        ("filter2", |_| Method::gradient_filter(2)),
        ("shortcut", |modes| {
            let ranks: Vec<usize> = modes
                .as_slice()
                .iter()
                .map(|size| size.div_ceil(4))
                .collect();
            ActivationShortcut::new(PerMode::new(&ranks).expect("4 modes")).into()
        }),
        ("sparse", |_| Method::channel_sparse(0.1)),
        ("8 bits", |_| Method::quantized(8)),
    ]
}

fn networks() -> [BottleneckNetConfig; 3] {
    [
        BottleneckNetConfig::mcunet_5fps(),
        BottleneckNetConfig::mobilenet_v2(0.35),
        BottleneckNetConfig::efficientnet_lite0(),
    ]
    .map(|config| config.with_classes(CLASSES))
}

/// Bytes kept and peak of a step, the least of some.
fn counted(network: &BottleneckNet, batch: usize, device: &Device) -> (usize, usize) {
    let loss = CrossEntropyLossConfig::new().init(device);
    let images = random(1, [batch, 3, SIZE, SIZE], device);
    let classes: Vec<i64> = (0..batch).map(|image| (image % CLASSES) as i64).collect();
    let classes = Tensor::<1, Int>::from_data(classes.as_slice(), device);
    // the first one grows the kernels' working memory, and frees what the trace left
    let steps = (0..3).map(|_| {
        // a fresh copy: what a method carries from step to step is there only after the first one
        let network = network.clone();
        let before = ALLOCATOR.live_bytes();
        ALLOCATOR.reset_peak();
        let value = loss.forward(network.forward(images.clone()), classes.clone());
        let kept = ALLOCATOR.live_bytes() - before;
        drop(value.backward());
        (kept, ALLOCATOR.peak_bytes() - before)
    });
    steps.skip(1).min().expect("some steps")
}

#[test]
fn a_predicted_step_is_the_counted_one() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            if device_name.contains("checkpointing") {
                continue;
            }
            for config in networks() {
                let model = config.init(&device).fold_batch_norm();
                let images = random(1, [2, 3, SIZE, SIZE], &device);
                let network = Network::of(&model, |model: &BottleneckNet| {
                    model.forward(images.clone()).sum()
                })
                .expect("it has layers");
                for tuned in [1000, 4] {
                    for batch in [1, 8, 32] {
                        for (name, method) in plans() {
                            let plan = plan(&model, &network, batch, tuned, method);
                            let trained = plan.apply(model.clone()).expect("suitable");
                            let trained =
                                plan.freeze_rest(trained, &["classifier"]).expect("a head");
                            let training = Training {
                                plan,
                                also: vec!["classifier".to_string()],
                                batch,
                            };
                            let predicted = network.predict(&training).expect("its layers");
                            let (kept, peak) = counted(&trained, batch, &device);
                            println!(
                                "{device_name} {:18} {tuned:4} {batch:2} {name:9} kept {kept:>10} predicted {:>10} {:+.1} %   peak {peak:>10} predicted {:>10} {:+.1} %",
                                config.name,
                                predicted.kept,
                                100.0 * (predicted.kept as f64 / kept as f64 - 1.0),
                                predicted.peak,
                                100.0 * (predicted.peak as f64 / peak as f64 - 1.0),
                            );
                        }
                    }
                }
            }
        }
    });
}

fn plan(
    model: &BottleneckNet,
    network: &Network,
    batch: usize,
    tuned: usize,
    method: ByInput,
) -> Plan {
    let convolutions: Vec<_> = Plan::layers(model)
        .into_iter()
        .filter(|layer| layer.shape.kind == LayerKind::Conv2d)
        .collect();
    let mut builder = Plan::builder();
    for layer in &convolutions[convolutions.len().saturating_sub(tuned)..] {
        let modes = network.input(&layer.path, batch).expect("it was traced");
        builder = builder.layer(&layer.path, method(modes));
    }
    builder.build(model).expect("suitable")
}
