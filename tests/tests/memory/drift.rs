//! Guards against what accumulates over thousands of steps.

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
use burn_frugal_tests::{autodiff_devices, random};

use super::{ALLOCATOR, alone, fewer_with_checkpointing, kinds};

const STEPS: usize = 2_000;
const WARM_UP: usize = 100;
/// Far below one step's 8 bytes x 2,000, far above an allocator's or a hash table's slack.
const DRIFT: usize = 8 << 10;

/// Fails if `step`, run 2,000 times, leaves more bytes behind than its first 100 runs did.
fn assert_flat(what: &str, step: impl FnMut(usize)) {
    assert_flat_over(STEPS, what, step);
}

fn assert_flat_over(steps: usize, what: &str, mut step: impl FnMut(usize)) {
    (0..WARM_UP).for_each(&mut step);
    let before = ALLOCATOR.live_bytes();
    (WARM_UP..steps).for_each(&mut step);
    let after = ALLOCATOR.live_bytes();
    assert!(
        after <= before + DRIFT,
        "{what}: {before} bytes became {after}"
    );
}

/// 8x8 pixels: small enough for thousands of steps, large enough for one leaked map a step
/// (512 bytes) to be seen.
fn tiny(device: &Device, method: Method) -> (Conv2d, Tensor<4>) {
    let conv = Conv2dConfig::new([2, 2], [3, 3]).init(device);
    let conv = conv.with_method(method).expect("suitable");
    (conv, random(1, [1, 2, 8, 8], device))
}

#[test]
fn evaluation_leaves_nothing_behind() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            for &method in fewer_with_checkpointing(&device_name, &kinds::<4>()) {
                let (conv, x) = tiny(&device, method);
                let (conv, x) = (conv.valid(), x.without_autodiff());
                assert_flat(&format!("{method} ({device_name})"), |_| {
                    conv.forward(x.clone());
                });
            }
        }
    });
}

/// burn 2743, burn 4339: Burn frees the graph of a forward pass that nobody goes backward through
/// at the next backward pass anywhere, not when its output is dropped. So there is one now and
/// then, and what has to be flat is the memory after it.
#[test]
fn abandoned_forward_passes_go_with_the_next_backward_pass() {
    const ABANDONED: usize = 19;
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            for &method in fewer_with_checkpointing(&device_name, &kinds::<4>()) {
                let (conv, x) = tiny(&device, method);
                assert_flat(&format!("{method} ({device_name})"), |step| {
                    let output = conv.forward(x.clone() * 2.0);
                    if step % (ABANDONED + 1) == ABANDONED {
                        output.sum().backward();
                    }
                });
            }
        }
    });
}

/// 10,000 steps; fewer of the slow decompositions, and where the way through our layers is the same.
fn training_steps(device_name: &str, method: Method) -> usize {
    match method {
        Method::Hosvd(_) => 500,
        _ if device_name == "flex" => 10_000,
        _ => STEPS,
    }
}

/// Channel-sparse layers with a schedule, whose channels change.
#[test]
fn training_leaves_nothing_behind() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            for &method in fewer_with_checkpointing(&device_name, &kinds::<4>()) {
                let (conv, x) = tiny(&device, method);
                let layers = SparseLayer::of(&conv);
                let mut schedule = (!layers.is_empty()).then(|| {
                    let schedule = Schedule::resampled(layers, Amount::PerLayer, 3, 7);
                    schedule.expect("a schedule")
                });
                let mut conv = Some(conv);
                let mut optimizer = SgdConfig::new().init();
                let steps = training_steps(&device_name, method);
                assert_flat_over(steps, &format!("{method} ({device_name})"), |_| {
                    let mut trained = conv.take().expect("put back below");
                    if let Some(schedule) = &mut schedule {
                        trained = schedule.apply(trained).expect("its layer");
                        schedule.advance();
                    }
                    let gradients = trained.forward(x.clone()).sum().backward();
                    let gradients = GradientsParams::from_grads(gradients, &trained);
                    conv = Some(optimizer.step(1e-6, trained, gradients));
                });
            }
        }
    });
}
