//! Guards the tables and pictures of a step's memory, and networks of unusual shape.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::{Conv2d, GlobalAveragePool2d, Relu};
use burn_frugal::plan::{Network, Plan, StepMemory, Training};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{assert_contains, devices, random};

use super::{PATHS, Small, plain_devices};
use crate::{ALLOCATOR, alone};

const IMAGES: [usize; 4] = [4, 3, 16, 16];

fn device() -> Device {
    devices().remove(0).1.autodiff()
}

fn small() -> (Small, Network) {
    let device = device();
    let model = Small::new(1, &device);
    let images = random(2, IMAGES, &device);
    let network = Network::of(&model, |model: &Small| model.loss(images.clone()));
    let network = network.expect("it has layers");
    (model, network)
}

/// Every layer but the head with a method, and the head.
fn training(model: &Small, method: Method, batch: usize) -> Training {
    let plan = Plan::builder().pattern("stem|norm|depthwise|project", method);
    Training {
        plan: plan.build(model).expect("suitable"),
        also: vec!["head".to_string()],
        batch,
    }
}

#[test]
fn the_table_has_every_layer_and_the_sums() {
    alone(|| {
        let (model, network) = small();
        let memory = network.predict(&training(&model, Method::Exact, 4));
        let memory = memory.expect("its layers");
        let table = memory.to_string();
        let lines: Vec<&str> = table.lines().collect();
        // a heading, the layers, the sums, the last line
        assert_eq!(lines.len(), PATHS.len() + 3, "{table}");
        for (path, (line, layer)) in PATHS.iter().zip(lines[1..].iter().zip(&memory.layers)) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let expected = [
                path.to_string(),
                layer.kept.to_string(),
                layer.transient.to_string(),
                layer.forward.to_string(),
                layer.flops.total().to_string(),
            ];
            assert_eq!(columns, expected, "{table}");
        }
        let forward: u64 = memory.layers.iter().map(|layer| layer.forward).sum();
        let training = memory.flops() - forward;
        let [kept, forward, training] =
            [memory.kept as u64, forward, training].map(|sum| sum.to_string());
        let sums = lines[PATHS.len() + 1];
        assert_contains(sums, &["whole step", &kept, &forward, &training]);
        let last = lines[PATHS.len() + 2];
        let bytes = [memory.peak, memory.gradients, memory.weights].map(|bytes| bytes.to_string());
        assert_contains(last, &bytes.each_ref().map(String::as_str));
        let widths: Vec<usize> = lines[..lines.len() - 1]
            .iter()
            .map(|line| line.len())
            .collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
        assert_eq!(StepMemory::default().to_string().lines().count(), 3);
    });
}

#[test]
fn the_picture_has_every_layer_and_both_steps() {
    alone(|| {
        let (model, network) = small();
        let memory = |method| {
            let memory = network.predict(&training(&model, method, 4));
            memory.expect("its layers")
        };
        let (before, after) = (memory(Method::Exact), memory(Method::gradient_filter(2)));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory.svg");
        after.svg(&file, &before).expect("it can be written");
        let svg = std::fs::read_to_string(&file).expect("it is there");
        assert!(svg.trim_start().starts_with("<svg"), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
        let texts: Vec<&str> = svg.lines().map(str::trim).collect();
        let legends = [
            "kept, before",
            "transient, before",
            "kept, with the plan",
            "transient, with the plan",
        ];
        for text in PATHS.iter().chain(&legends) {
            let count = texts.iter().filter(|line| *line == text).count();
            assert_eq!(count, 1, "`{text}` in {svg}");
        }
        // steps without layers, and layers that only one side has
        for (one, other) in [
            (&StepMemory::default(), &StepMemory::default()),
            (&after, &StepMemory::default()),
            (&StepMemory::default(), &before),
        ] {
            one.svg(&file, other).expect("it can be written");
        }
    });
}

/// A layer of a large model is not left out of the picture for want of room.
#[test]
fn the_picture_of_many_layers_names_them_all() {
    alone(|| {
        let device = device();
        let model: Vec<Conv2d> = (0..60).map(|_| same([2, 2], 1).init(&device)).collect();
        let images = random(1, [2, 2, 4, 4], &device);
        let network = Network::of(&model, |model: &Vec<Conv2d>| {
            let layers = model.iter();
            layers
                .fold(images.clone(), |map, conv| conv.forward(map))
                .sum()
        });
        let plan = Plan::builder().pattern("", Method::Exact).build(&model);
        let memory = network.expect("it has layers").predict(&Training {
            plan: plan.expect("suitable"),
            also: Vec::new(),
            batch: 2,
        });
        let memory = memory.expect("its layers");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("memory.svg");
        memory.svg(&file, &memory).expect("it can be written");
        let svg = std::fs::read_to_string(&file).expect("it is there");
        for layer in 0..60 {
            let path = layer.to_string();
            assert!(
                svg.lines().any(|line| line.trim() == path),
                "`{path}` in {svg}"
            );
        }
    });
}

#[test]
fn a_picture_that_cannot_be_written_is_an_error_with_its_path() {
    alone(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("missing").join("memory.svg");
        let memory = StepMemory::default();
        let error = memory.svg(&file, &memory).expect_err("no such folder");
        assert!(
            matches!(&error, Error::File { path, .. } if *path == file),
            "{error:?}"
        );
        assert_contains(&error.to_string(), &[&file.display().to_string()]);
    });
}

#[test]
fn a_layer_that_was_not_part_of_the_pass_is_an_error() {
    alone(|| {
        let (model, network) = small();
        let known = training(&model, Method::Exact, 4);
        let unknown = Training {
            also: vec!["heads".to_string()],
            ..known.clone()
        };
        let error = network.predict(&unknown).expect_err("no such layer");
        let Error::UnknownLayer { path, layers } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(path, "heads");
        assert_eq!(*layers, PATHS);
        // and so is one of the plan that this pass leaves out
        let images = random(2, IMAGES, &device());
        let stem = Network::of(&model, |model: &Small| {
            model.stem.forward(images.clone()).sum()
        });
        let error = stem
            .expect("a layer")
            .predict(&known)
            .expect_err("one layer");
        assert!(
            matches!(&error, Error::UnknownLayer { layers, .. } if *layers == ["stem"]),
            "{error:?}"
        );
    });
}

#[test]
fn a_loss_that_uses_no_layer_is_an_error() {
    alone(|| {
        let device = device();
        let model = Small::new(1, &device);
        let images = random(2, IMAGES, &device).require_grad();
        type Loss = fn(Tensor<4>) -> Tensor<1>;
        let losses: [(&str, Loss); 2] = [
            ("nothing of ours", |x| x.sum()),
            ("an activation", |x| Relu::new().forward(x).sum()),
        ];
        for (name, loss) in losses {
            let error = Network::of(&model, |_: &Small| loss(images.clone()));
            assert!(
                matches!(error, Err(Error::Unused { .. })),
                "{name}: {error:?}"
            );
            let error = StepMemory::count(&ALLOCATOR, &model, |_| loss(images.clone()));
            assert!(
                matches!(error, Err(Error::Unused { .. })),
                "{name}: {error:?}"
            );
        }
    });
}

/// Few numbers go to the loss, as from a classifier.
fn mean(map: Tensor<4>) -> Tensor<1> {
    GlobalAveragePool2d::new().forward(map).sum()
}

/// The layer's weight and gradient are there once, what it keeps twice.
#[test]
fn a_layer_that_is_used_twice_keeps_twice_and_has_one_gradient() {
    alone(|| {
        for (name, device) in plain_devices() {
            // a gradient that is worth counting
            let model = same([64, 64], 1).init(&device);
            let images = random(2, [16, 64, 16, 16], &device);
            let loss = |conv: &Conv2d| mean(conv.forward(conv.forward(images.clone())));
            let network = Network::of(&model, loss).expect("a layer");
            assert_eq!(network.paths(), ["", ""], "{name}");
            let plan = Plan::builder().pattern("", Method::Exact).build(&model);
            let predicted = network.predict(&Training {
                plan: plan.expect("suitable"),
                also: Vec::new(),
                batch: 16,
            });
            let predicted = predicted.expect("its layers");
            let counted = StepMemory::count(&ALLOCATOR, &model, loss).expect("used");
            let parameters = model.num_params() * size_of::<f32>();
            assert_eq!(predicted.weights, parameters, "{name}");
            assert_eq!(predicted.gradients, parameters, "{name}");
            for (what, counted, predicted, share) in [
                ("kept", counted.kept, predicted.kept, 50),
                ("peak", counted.peak, predicted.peak, 10),
                ("gradients", counted.gradients, predicted.gradients, 5),
            ] {
                assert!(
                    counted.abs_diff(predicted) <= counted / share,
                    "{name}, {what}: counted {counted}, predicted {predicted}"
                );
            }
            assert_eq!(counted.flops(), predicted.flops(), "{name}");
            assert_eq!(counted.excess(&predicted), [], "{name}");
        }
    });
}

#[test]
fn two_residual_connections_into_one_sum_are_predicted() {
    alone(|| {
        for (name, device) in plain_devices() {
            let conv = || same([8, 8], 3).init(&device);
            let model: Vec<Conv2d> = (0..4).map(|_| conv()).collect();
            let images = random(2, [16, 8, 32, 32], &device);
            let loss = |model: &Vec<Conv2d>| {
                let first = model[0].forward(images.clone());
                let second = model[1].forward(Relu::new().forward(first.clone()));
                let third = model[2].forward(Relu::new().forward(second.clone()));
                mean(model[3].forward(third + first + second))
            };
            let network = Network::of(&model, loss).expect("layers");
            for method in [Method::Exact, Method::gradient_filter(2)] {
                let name = format!("{method} ({name})");
                let plan = Plan::builder().pattern("", method).build(&model);
                let plan = plan.expect("suitable");
                let model = plan.apply(model.clone()).expect("its layers");
                let predicted = network.predict(&Training {
                    plan,
                    also: Vec::new(),
                    batch: 16,
                });
                let predicted = predicted.expect("its layers");
                let counted = StepMemory::count(&ALLOCATOR, &model, loss).expect("used");
                // that the sum still reads the first map while the others are made is not seen
                let (counted, predicted) = (counted.kept, predicted.kept);
                assert!(
                    counted.abs_diff(predicted) <= counted / 50,
                    "{name}: counted {counted}, predicted {predicted}"
                );
            }
        }
    });
}

/// Both heads of a network go to its loss, and are trained.
#[test]
fn a_network_with_two_heads_has_the_gradients_of_both() {
    alone(|| {
        let device = device();
        let model: Vec<Conv2d> = (0..3).map(|_| same([8, 8], 3).init(&device)).collect();
        let images = random(2, [4, 8, 16, 16], &device);
        let network = Network::of(&model, |model: &Vec<Conv2d>| {
            let map = model[0].forward(images.clone());
            mean(model[1].forward(map.clone())) + mean(model[2].forward(map))
        });
        let plan = Plan::builder().pattern("", Method::Exact).build(&model);
        let predicted = network.expect("it has layers").predict(&Training {
            plan: plan.expect("suitable"),
            also: Vec::new(),
            batch: 4,
        });
        let gradients = predicted.expect("its layers").gradients;
        assert_eq!(gradients, model.num_params() * size_of::<f32>());
    });
}

/// No images need no bytes but those of the graph and the gradients.
#[test]
fn an_empty_batch_takes_next_to_nothing() {
    alone(|| {
        let (model, network) = small();
        let memory = |batch| {
            let memory = network.predict(&training(&model, Method::Exact, batch));
            memory.expect("its layers")
        };
        let (none, one) = (memory(0), memory(1));
        assert_eq!(none.gradients, one.gradients);
        assert_eq!(none.weights, one.weights);
        assert!(none.kept < one.kept && none.kept < 40_000, "{}", none.kept);
        assert!(none.layers.iter().all(|layer| layer.forward == 0));
        assert_eq!(network.input("stem", 0).map(|modes| modes[0]), Some(0));
    });
}
