//! Guards the prediction of a step's memory: what it says is what the allocator counts.

use burn::tensor::Device;
use burn_frugal::plan::Training;
use burn_frugal_models::BottleneckNet;
use burn_frugal_tests::autodiff_devices;

use crate::networks::{Batch, methods, network, networks, plan};
use crate::{ALLOCATOR, alone};

/// Bytes kept and peak of a step, the least of two.
fn counted(network: &BottleneckNet, batch: &Batch) -> (usize, usize) {
    // the first step grows the kernels' working memory, and frees what the trace left
    let steps = (0..3).map(|_| {
        // a fresh copy: what a method carries from step to step is there only after the first one
        let network = network.clone();
        let before = ALLOCATOR.live_bytes();
        ALLOCATOR.reset_peak();
        let loss = batch.loss(&network);
        let kept = ALLOCATOR.live_bytes() - before;
        drop(loss.backward());
        (kept, ALLOCATOR.peak_bytes() - before)
    });
    steps.skip(1).min().expect("some steps")
}

/// Fails if a prediction is off by more than `percent`.
#[track_caller]
fn assert_near(what: &str, predicted: usize, counted: usize, percent: usize) {
    assert!(
        predicted.abs_diff(counted) * 100 <= counted * percent,
        "{what}: predicted {predicted} bytes, counted {counted}"
    );
}

fn check(device_name: &str, device: &Device, batches: &[usize]) {
    for config in networks() {
        let model = config.init(device).fold_batch_norm();
        let traced = network(&model, device);
        // with few layers trained the graph's own objects are the larger part for one image only
        for (tuned, batches) in [(usize::MAX, batches), (4, &batches[..1])] {
            for &samples in batches {
                let batch = Batch::new(samples, device);
                for (name, method) in methods() {
                    let plan = plan(&model, &traced, samples, tuned, method);
                    let trained = plan.apply(model.clone()).expect("suitable");
                    let trained = plan.freeze_rest(trained, &["classifier"]);
                    let training = Training {
                        plan,
                        also: vec!["classifier".to_string()],
                        batch: samples,
                    };
                    let predicted = traced.predict(&training).expect("its layers");
                    let (kept, peak) = counted(&trained.expect("it has a head"), &batch);
                    let what = format!(
                        "{} on {device_name}, {name}, batch {samples}, {} tuned",
                        config.name,
                        training.plan.methods().len()
                    );
                    assert_near(&format!("{what}, kept"), predicted.kept, kept, 2);
                    assert_near(&format!("{what}, peak"), predicted.peak, peak, 10);
                }
            }
        }
    }
}

#[test]
fn a_predicted_step_is_the_counted_one() {
    alone(|| {
        let (name, device) = autodiff_devices().remove(0);
        check(&name, &device, &[1, 8, 32]);
    });
}

#[test]
fn a_predicted_step_is_the_counted_one_on_the_other_backends() {
    alone(|| {
        for (name, device) in autodiff_devices().into_iter().skip(1) {
            if !name.contains("checkpointing") {
                check(&name, &device, &[1]);
            }
        }
    });
}
