//! Guards against forward passes that nobody runs backward: evaluation with a training model, a loss
//! that is only looked at.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::{Conv2d, Relu};
use burn_frugal::{Method, memory};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{assert_close, autodiff_devices, random, values};

use super::Small;
use crate::{ALLOCATOR, alone};

const IMAGES: [usize; 4] = [2, 3, 16, 16];
const PASSES: usize = 10_000;
/// Passes that may wait at once: 8 of every layer, and the graph's tables for them.
const AT_ONCE: usize = 12;

/// Fewer on the other backend, and with checkpointing: they take the same way through our layers.
fn passes(device_name: &str) -> usize {
    match device_name {
        "flex" => PASSES,
        _ if device_name.contains("checkpointing") => PASSES / 20,
        _ => PASSES / 5,
    }
}

/// Runs passes that are dropped, and fails as soon as more than `most` bytes live beyond those before.
fn assert_bounded(what: &str, passes: usize, most: usize, pass: impl Fn()) {
    let before = ALLOCATOR.live_bytes();
    for done in 1..=passes {
        pass();
        let more = ALLOCATOR.live_bytes().saturating_sub(before);
        assert!(
            more <= most,
            "{what}: {more} bytes after {done} passes, at most {most} expected"
        );
    }
}

/// Bytes that one pass keeps until it is abandoned.
fn one_pass(device: &Device, pass: impl Fn()) -> usize {
    // the first one grows the kernels' scratch buffers
    let passes = (0..2).map(|_| {
        memory::free_abandoned(device);
        let before = ALLOCATOR.live_bytes();
        pass();
        ALLOCATOR.live_bytes() - before
    });
    passes.last().expect("two passes")
}

fn gradients(model: &Small, loss: Tensor<1>) -> [Vec<f64>; 4] {
    let gradients = loss.backward();
    let of = |conv: &Conv2d| values(conv.weight.val().grad(&gradients).expect("tracked"));
    [
        of(&model.stem),
        values(model.norm.gamma.val().grad(&gradients).expect("tracked")),
        of(&model.depthwise),
        of(&model.project),
    ]
}

#[test]
fn ten_thousand_abandoned_passes_do_not_accumulate() {
    alone(|| {
        for (name, device) in autodiff_devices() {
            let model = Small::new(1, &device);
            let images = random(2, IMAGES, &device);
            let one = one_pass(&device, || drop(model.forward(images.clone())));
            assert_bounded(&name, passes(&name), AT_ONCE * one, || {
                model.forward(images.clone());
            });
        }
    });
}

/// What is trained may be as little as the biases, or nothing but the input.
#[test]
fn abandoned_passes_do_not_accumulate_whatever_is_trained() {
    type Train = fn(Small) -> Small;
    let trained: [(&str, Train); 2] = [
        ("biases", |model| {
            let mut model = model.freeze();
            model.stem.bias = model.stem.bias.map(|bias| bias.set_require_grad(true));
            model
        }),
        ("nothing", |model| model.freeze()),
    ];
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            for (what, train) in trained {
                let name = format!("{what} trained ({device_name})");
                let model = train(Small::new(1, &device));
                let images = random(2, IMAGES, &device).require_grad();
                let one = one_pass(&device, || drop(model.forward(images.clone())));
                assert_bounded(&name, passes(&name) / 10, AT_ONCE * one, || {
                    model.forward(images.clone());
                });
            }
        }
    });
}

#[test]
fn a_pass_that_waits_among_abandoned_ones_has_its_gradients() {
    alone(|| {
        for (name, device) in autodiff_devices() {
            let model = Small::new(1, &device);
            let images = random(2, IMAGES, &device);
            let others = random(3, IMAGES, &device);
            let expected = gradients(&model, model.loss(images.clone()));
            let one = one_pass(&device, || drop(model.forward(images.clone())));
            // as many that wait as the sweep looks at, too
            for waiting in [1, 8] {
                let losses: Vec<_> = (0..waiting).map(|_| model.loss(images.clone())).collect();
                let most = (AT_ONCE + 2 * waiting) * one;
                assert_bounded(&name, passes(&name) / 20, most, || {
                    model.forward(others.clone());
                });
                for loss in losses {
                    for (found, expected) in gradients(&model, loss).iter().zip(&expected) {
                        assert_eq!(found, expected, "{name}, {waiting} waiting");
                    }
                }
            }
        }
    });
}

/// A convolution that is applied to its own output again and again.
fn recurrent(map: Tensor<4>, times: usize, conv: impl Fn(Tensor<4>) -> Tensor<4>) -> Tensor<1> {
    let mut state = map.clone();
    for _ in 0..times {
        state = Relu::new().forward(conv(state) * 0.5 + map.clone());
    }
    state.powi_scalar(2).mean()
}

const TIMES: usize = 100;
const MAP: [usize; 4] = [2, 4, 6, 5];

fn recurrent_layer(device: &Device) -> Conv2d {
    let mut conv = layer(&same([4, 4], 3), device, burn::tensor::DType::F32);
    conv.weight = conv
        .weight
        .map(|weight| weight.mul_scalar(0.3).detach().require_grad());
    conv
}

#[test]
fn a_layer_that_a_pass_uses_a_hundred_times_has_burns_gradients() {
    alone(|| {
        for (name, device) in autodiff_devices() {
            let ours = recurrent_layer(&device);
            let burns = burn::nn::conv::Conv2d::from(ours.clone());
            let map = random(1, MAP, &device).require_grad();
            // abandoned passes before and in it
            for _ in 0..20 {
                ours.forward(map.clone());
            }
            let both = [
                recurrent(map.clone(), TIMES, |state| {
                    ours.forward(map.clone());
                    ours.forward(state)
                }),
                recurrent(map.clone(), TIMES, |state| burns.forward(state)),
            ];
            let [found, expected] = both.map(|loss| {
                let gradients = loss.backward();
                [
                    values(map.grad(&gradients).expect("tracked")),
                    values(ours.weight.val().grad(&gradients).expect("tracked")),
                    values(
                        ours.bias
                            .as_ref()
                            .expect("a bias")
                            .val()
                            .grad(&gradients)
                            .expect("tracked"),
                    ),
                ]
            });
            for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_close(&format!("{name}, gradient {part}"), found, expected, 1e-5);
            }
        }
    });
}

#[test]
fn abandoned_passes_that_use_a_layer_a_hundred_times_do_not_accumulate() {
    alone(|| {
        for (name, device) in autodiff_devices() {
            let conv = recurrent_layer(&device).with_method(Method::gradient_filter(2));
            let conv = conv.expect("suitable");
            let map = random(1, MAP, &device);
            let pass = || recurrent(map.clone(), TIMES, |state| conv.forward(state));
            let one = one_pass(&device, || drop(pass()));
            assert_bounded(&name, passes(&name) / 100, 4 * one, || drop(pass()));
        }
    });
}
