//! Guards trainings on several threads at once: each does what it does alone.

use std::sync::Barrier;
use std::thread;

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::schedule::{Amount, Schedule, SparseLayer};
use burn_frugal::plan::{self, Network, Plan};
use burn_frugal_tests::{random, values};

use super::{Small, plain_devices};
use crate::alone;

const IMAGES: [usize; 4] = [4, 3, 16, 16];
const STEPS: u64 = 40;
/// More than the sweep waits for.
const ABANDONED: usize = 9;

/// All that a training leaves, bit for bit.
#[derive(Debug, PartialEq)]
struct Trace {
    losses: Vec<f64>,
    parameters: Vec<Vec<f64>>,
    factors: Vec<Vec<f64>>,
    channels: Vec<Option<Vec<usize>>>,
}

/// A model with several methods.
fn model(seed: u64, device: &Device) -> Small {
    let model = Small::new(seed, device);
    let plan = Plan::builder()
        .layer("stem", Method::gradient_filter(2))
        .layer("norm", Method::quantized(8))
        .layer("depthwise", Method::channel_sparse(0.25))
        .layer("project", Method::activation_shortcut([2, 3, 3, 3]))
        .layer("head", Method::channel_sparse(0.5));
    let plan = plan.build(&model).expect("suitable");
    plan.apply(model).expect("its layers")
}

/// Trains a model; `between` happens while a pass of every step waits.
fn train(seed: u64, device: &Device, between: impl Fn(&Small)) -> Trace {
    let mut model = model(seed, device);
    let layers = SparseLayer::of(&model);
    let schedule = Schedule::resampled(layers, Amount::PerLayer, 3, seed);
    let mut schedule = schedule.expect("a schedule");
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        model = schedule.apply(model).expect("its layers");
        let loss = model.loss(random(1000 * seed + step, IMAGES, device));
        losses.extend(values(loss.clone()));
        between(&model);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = plan::step(&mut optimizer, 0.01, model, gradients);
        schedule.advance();
    }
    let convolutions = [&model.stem, &model.depthwise, &model.project];
    let slots = [
        &model.stem.method,
        &model.norm.method,
        &model.depthwise.method,
        &model.project.method,
        &model.head.method,
    ];
    let mut parameters: Vec<_> = convolutions.map(|conv| values(conv.weight.val())).into();
    parameters.extend([&model.norm.gamma, &model.norm.beta].map(|value| values(value.val())));
    parameters.push(values(model.head.weight.val()));
    let factors = slots
        .iter()
        .flat_map(|slot| (0..4).filter_map(|mode| slot.factor(mode)));
    Trace {
        losses,
        parameters,
        factors: factors.map(values).collect(),
        channels: slots.iter().map(|slot| slot.channels()).collect(),
    }
}

/// Results of kernels depend on the number of threads, not on who else uses them.
#[test]
fn two_trainings_at_once_are_those_of_each_alone() {
    const SEEDS: [u64; 2] = [1, 2];
    alone(|| {
        for (name, device) in plain_devices() {
            let expected = SEEDS.map(|seed| train(seed, &device, |_| ()));
            assert!(!expected[0].factors.is_empty() && expected[0].channels[2].is_some());
            assert!(expected[0].losses.iter().all(|loss| loss.is_finite()));
            let meeting = Barrier::new(SEEDS.len());
            // each abandons passes, and so sweeps, while the other's pass waits
            let between = |model: &Small| {
                meeting.wait();
                // a clone: these passes carry nothing into the model's next step
                let copy = model.clone();
                for pass in 0..ABANDONED as u64 {
                    copy.forward(random(pass, IMAGES, &device));
                }
                meeting.wait();
            };
            let found = thread::scope(|scope| {
                let (device, between) = (&device, &between);
                let threads = SEEDS.map(|seed| scope.spawn(move || train(seed, device, between)));
                threads.map(|thread| thread.join().expect("no panic"))
            });
            for ((found, expected), seed) in found.iter().zip(&expected).zip(SEEDS) {
                assert_eq!(found, expected, "seed {seed} ({name})");
            }
        }
    });
}

/// Two clones of one model share its parameters, and so Burn's graph and the count of passes.
#[test]
fn clones_on_two_threads_have_the_gradients_of_one() {
    alone(|| {
        for (name, device) in plain_devices() {
            let conv = Small::new(1, &device).project;
            let input = |seed| random(seed, [2, 8, 9, 7], &device).require_grad();
            let pass = |conv: &Conv2d, x: Tensor<4>| {
                let loss = conv.forward(x.clone()).powi_scalar(2).sum();
                for _ in 0..ABANDONED {
                    conv.forward(x.clone());
                }
                let gradients = loss.backward();
                let weight = conv.weight.val().grad(&gradients).expect("tracked");
                [values(weight), values(x.grad(&gradients).expect("tracked"))]
            };
            let expected = [1, 2].map(|seed| pass(&conv, input(seed)));
            let found = thread::scope(|scope| {
                let threads = [1, 2].map(|seed| {
                    let (conv, x) = (conv.clone(), input(seed));
                    scope.spawn(move || {
                        let passes = (0..50).map(|_| pass(&conv, x.clone()));
                        passes.collect::<Vec<_>>()
                    })
                });
                threads.map(|thread| thread.join().expect("no panic"))
            });
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.iter().all(|found| found == expected), "{name}");
            }
        }
    });
}

#[test]
fn a_network_is_that_of_its_own_thread() {
    alone(|| {
        for (name, device) in plain_devices() {
            let traced = Small::new(3, &device);
            let images = random(4, IMAGES, &device);
            let network = || {
                let loss = |model: &Small| model.loss(images.clone());
                Network::of(&traced, loss).expect("it has layers")
            };
            let expected = network();
            let meeting = Barrier::new(2);
            let found = thread::scope(|scope| {
                let (device, meeting) = (&device, &meeting);
                let training = scope.spawn(move || {
                    train(1, device, |_| {
                        meeting.wait();
                    })
                });
                let found: Vec<Network> = (0..STEPS)
                    .map(|_| {
                        meeting.wait();
                        network()
                    })
                    .collect();
                training.join().expect("no panic");
                found
            });
            assert!(found.iter().all(|found| *found == expected), "{name}");
            assert_eq!(expected.paths(), super::PATHS, "{name}");
            // what was traced is trained as before
            assert!(traced.stem.weight.val().is_tracked(), "{name}");
            assert_eq!(traced.num_params(), Small::new(3, &device).num_params());
        }
    });
}
