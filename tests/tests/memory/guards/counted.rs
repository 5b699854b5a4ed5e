//! Guards counted steps against predicted ones, and that what others keep is found.

use burn::module::Module;
use burn::tensor::activation::{sigmoid, tanh};
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::{Conv2d, GlobalAveragePool2d};
use burn_frugal::plan::{Excess, Network, Plan, StepMemory, Training};
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::random;

use super::{CHANNELS, PATHS, Small, plain_devices};
use crate::{ALLOCATOR, GRAPH_BYTES, alone, halves};

/// 32 images: the graph is small beside them.
const IMAGES: [usize; 4] = [16, 3, 32, 32];

/// A plan's name and the method of every layer but the head for an input.
type ByInput = fn(PerMode) -> Method;

fn plans() -> [(&'static str, ByInput); 5] {
    [
        ("exact", |_| Method::Exact),
        ("filter", |_| Method::gradient_filter(2)),
        ("sparse", |_| Method::channel_sparse(0.5)),
        ("shortcut", |modes| {
            Method::activation_shortcut(halves(modes))
        }),
        ("8 bits", |_| Method::quantized(8)),
    ]
}

/// A plan for the last layers before the head.
fn plan(model: &Small, network: &Network, tuned: usize, method: ByInput) -> Plan {
    let mut builder = Plan::builder();
    for path in &PATHS[PATHS.len() - 1 - tuned..PATHS.len() - 1] {
        let modes = network.input(path, IMAGES[0]).expect("it was traced");
        builder = builder.layer(*path, method(modes));
    }
    builder.build(model).expect("suitable")
}

/// Bytes that the operations between this layer and the next keep, of which a counted layer does not
/// know.
fn following(path: &str) -> usize {
    let [batch, _, height, width] = IMAGES;
    let stem = batch * CHANNELS * height * width;
    match path {
        // one bit an element, and a byte a pooled output
        "norm" => stem / 8 + stem / 4,
        "depthwise" => stem / 4 / 8,
        // a byte an element
        "project" => stem / 4,
        _ => 0,
    }
}

#[test]
fn a_counted_step_is_the_predicted_one() {
    alone(|| {
        for (device_name, device) in plain_devices() {
            let model = Small::new(1, &device);
            let images = random(2, IMAGES, &device);
            let loss = |model: &Small| model.loss(images.clone());
            let network = Network::of(&model, loss).expect("it has layers");
            for tuned in [2, 4] {
                for (plan_name, method) in plans() {
                    let name = format!("{plan_name}, {tuned} layers ({device_name})");
                    let plan = plan(&model, &network, tuned, method);
                    let trained = plan.apply(model.clone()).expect("suitable");
                    let trained = plan.freeze_rest(trained, &["head"]).expect("a head");
                    let counted = StepMemory::count(&ALLOCATOR, &trained, loss).expect("used");
                    let predicted = network.predict(&Training {
                        plan,
                        also: vec!["head".to_string()],
                        batch: IMAGES[0],
                    });
                    let predicted = predicted.expect("its layers");
                    assert_like(&name, &counted, &predicted);
                }
            }
        }
    });
}

/// Kept within 2 %, the peak within 10 %, operations equal.
fn assert_like(name: &str, counted: &StepMemory, predicted: &StepMemory) {
    let near = |what: &str, counted: usize, predicted: usize, most: usize| {
        assert!(
            counted.abs_diff(predicted) <= most,
            "{name}, {what}: counted {counted}, predicted {predicted}"
        );
    };
    near("kept", counted.kept, predicted.kept, counted.kept / 50);
    near("peak", counted.peak, predicted.peak, counted.peak / 10);
    assert_eq!(counted.flops(), predicted.flops(), "{name}");
    // the running statistics are no parameters of the layers
    let statistics = 2 * CHANNELS * size_of::<f32>();
    assert_eq!(counted.weights, predicted.weights + statistics, "{name}");
    let paths = |memory: &StepMemory| -> Vec<String> {
        memory
            .layers
            .iter()
            .map(|layer| layer.path.clone())
            .collect()
    };
    assert_eq!(paths(counted), PATHS, "{name}");
    assert_eq!(paths(predicted), PATHS, "{name}");
    // the images live before the step; a layer that keeps them whole adds nothing
    let images = IMAGES.iter().product::<usize>() * size_of::<f32>();
    let mut tracked = false;
    for (counted, predicted) in counted.layers.iter().zip(&predicted.layers) {
        let path = &counted.path;
        tracked |= predicted.kept > 0;
        let following = if tracked { following(path) } else { 0 };
        let kept = counted.kept + following;
        let shared = if kept == images && path == "stem" {
            images
        } else {
            0
        };
        let kept = kept - shared;
        near(path, kept, predicted.kept, kept / 50 + GRAPH_BYTES);
        assert_eq!(counted.forward, predicted.forward, "{name}, {path}");
        assert_eq!(counted.flops, predicted.flops, "{name}, {path}");
    }
    assert_eq!(counted.excess(predicted), [], "{name}");
}

type Between = fn(Tensor<4>) -> Tensor<4>;

/// Three convolutions with something of the user's own behind the first.
#[derive(Module, Debug)]
struct Own {
    first: Conv2d,
    second: Conv2d,
    third: Conv2d,
}

/// Few numbers go to the loss, as from a classifier.
fn mean(map: Tensor<4>) -> Tensor<1> {
    GlobalAveragePool2d::new().forward(map).sum()
}

impl Own {
    fn new(device: &Device) -> Self {
        let conv = || same([8, 8], 3).init(device);
        Self {
            first: conv(),
            second: conv(),
            third: conv(),
        }
    }

    fn loss(&self, images: Tensor<4>, own: Between) -> Tensor<1> {
        let map = own(self.first.forward(images));
        mean(self.third.forward(self.second.forward(map)))
    }
}

/// What a step of [`Own`] with a method for every layer keeps beyond its prediction.
fn excess(device: &Device, method: Method, own: Between) -> Vec<Excess> {
    let model = Own::new(device);
    let plan = Plan::builder().pattern("", method);
    let plan = plan.build(&model).expect("suitable");
    let model = plan.apply(model).expect("its layers");
    let images = random(2, MAP, device);
    let loss = |model: &Own| model.loss(images.clone(), own);
    let network = Network::of(&model, loss).expect("it has layers");
    let training = Training {
        plan,
        also: Vec::new(),
        batch: MAP[0],
    };
    let predicted = network.predict(&training).expect("its layers");
    let counted = StepMemory::count(&ALLOCATOR, &model, loss).expect("used");
    counted.excess(&predicted)
}

const MAP: [usize; 4] = [8, 8, 24, 24];

#[test]
fn a_users_own_operation_that_keeps_a_map_is_found_where_it_is() {
    alone(|| {
        let map = MAP.iter().product::<usize>() * size_of::<f32>();
        for (name, device) in plain_devices() {
            for method in [Method::Exact, Method::gradient_filter(2)] {
                let name = format!("{method} ({name})");
                assert_eq!(excess(&device, method, |x| x * 2.0), [], "{name}");
                // Burn's functions keep what they were given
                let keepers: [Between; 3] = [|x| x.clone() * x, tanh, sigmoid];
                for keeper in keepers {
                    let found = excess(&device, method, keeper);
                    let [place] = found.as_slice() else {
                        panic!("{name}: one place expected, found {found:?}");
                    };
                    assert_eq!(place.after.as_deref(), Some("first"), "{name}");
                    assert_eq!(place.layer, "second", "{name}");
                    assert!(
                        place.bytes.abs_diff(map) <= map / 20,
                        "{name}: {place}, {map}"
                    );
                    let bytes = place.bytes;
                    assert_eq!(
                        place.to_string(),
                        format!(
                            "between `first` and `second`: {bytes} bytes more than predicted are kept"
                        )
                    );
                }
            }
        }
    });
}
