//! Guards profiles: what is measured is what ordinary training does.

mod candidates;
mod energies;
mod losses;
mod passes;
mod saved;
mod state;
mod table;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_frugal::methods::{ActivationShortcut, Flops};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{Candidates, Measured, Profile};
use burn_frugal::{LayerGeometry, LinearGeometry, Method};
use burn_frugal_tests::layers::{methods, same};
use burn_frugal_tests::{assert_close, autodiff_devices, random, values};

use crate::user_model::plan_with;

/// Three kinds of convolution, then a linear layer on the pixels of the map.
#[derive(Module, Debug)]
struct Network {
    first: Conv2d,
    norm: Option<BatchNorm>,
    depthwise: Conv2d,
    dropout: Option<Dropout>,
    pointwise: Conv2d,
    head: Linear,
}

const PATHS: [&str; 4] = ["first", "depthwise", "pointwise", "head"];
const IMAGES: [usize; 4] = [4, 3, 8, 8];

fn conv(seed: u64, config: Conv2dConfig, device: &Device) -> Conv2d {
    let mut conv = config.init(device);
    conv.weight = parameter(seed, conv.weight.dims(), device);
    conv.bias = conv
        .bias
        .map(|bias| parameter(seed + 1, bias.dims(), device));
    conv
}

fn parameter<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(random(seed, shape, device))
}

fn network(device: &Device) -> Network {
    let mut head = LinearConfig::new(8, 5).init(device);
    head.weight = parameter(17, [8, 5], device);
    head.bias = Some(parameter(18, [5], device));
    let depthwise = same([6, 6], 3).with_groups(6).with_stride([2, 2]);
    Network {
        first: conv(11, same([3, 6], 3), device),
        norm: None,
        depthwise: conv(13, depthwise, device),
        dropout: None,
        pointwise: conv(15, same([6, 8], 1), device),
        head,
    }
}

/// With the layers that behave differently in training.
fn stochastic_network(device: &Device) -> Network {
    let norm = BatchNormConfig::new(6).init(device);
    // statistics that are not those of a new layer
    norm.forward(random::<4>(31, [4, 6, 3, 3], device) * 3.0 + 0.5);
    Network {
        norm: Some(norm),
        dropout: Some(DropoutConfig::new(0.5).init()),
        ..network(device)
    }
}

impl Network {
    fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let x = self.first.forward(images);
        let x = match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let x = self.depthwise.forward(relu(x));
        let x = match &self.dropout {
            Some(dropout) => dropout.forward(x),
            None => x,
        };
        let x = self.pointwise.forward(relu(x));
        let [batch, channels, height, width] = x.dims();
        let pixels = x.reshape([batch, channels, height * width]).swap_dims(1, 2);
        self.head.forward(relu(pixels))
    }

    fn loss(&self, images: &Tensor<4>) -> Tensor<1> {
        let output = self.forward(images.clone());
        let target = random(41, output.dims(), &output.device());
        (output - target).powi_scalar(2).mean()
    }

    fn weight_gradient(&self, path: &str, images: &Tensor<4>) -> Vec<f64> {
        let gradients = self.loss(images).backward();
        let conv = |conv: &Conv2d| conv.weight.val().grad(&gradients).map(values);
        let gradient = match path {
            "first" => conv(&self.first),
            "depthwise" => conv(&self.depthwise),
            "pointwise" => conv(&self.pointwise),
            _ => self.head.weight.val().grad(&gradients).map(values),
        };
        gradient.expect("the weight is trained")
    }

    /// What a step of ordinary training computes once the layer's running values have settled.
    fn trained_gradient(&self, path: &str, method: Method, images: &Tensor<4>) -> Vec<f64> {
        let network = plan_with(path, method).apply(self.clone());
        let network = network.expect("the layer suits the method");
        for _warm_up in 0..3 {
            network.loss(images);
        }
        network.weight_gradient(path, images)
    }
}

fn images(device: &Device) -> Tensor<4> {
    random(5, IMAGES, device)
}

fn geometry(network: &Network, path: &str) -> LayerGeometry {
    match path {
        "first" => network.first.geometry(IMAGES).into(),
        "depthwise" => network.depthwise.geometry([4, 6, 8, 8]).into(),
        "pointwise" => network.pointwise.geometry([4, 6, 4, 4]).into(),
        _ => LinearGeometry::new(&[4, 16, 8], 5).into(),
    }
}

/// Every kind of method that suits the layer, without any that means "exact".
fn approximations(path: &str) -> Vec<Method> {
    let approximates = |method: &Method| *method != Method::Exact;
    let [some, few] = [[2, 7, 3], [1, 16, 1]].map(ActivationShortcut::new);
    let mut all: Vec<Method> = match path {
        "head" => vec![
            Method::channel_sparse(0.5),
            some.into(),
            some.sequential().into(),
            some.frozen().into(),
            few.into(),
        ],
        _ => methods().into_iter().filter(approximates).collect(),
    };
    all.extend([
        Method::channel_sparse(0.34),
        Method::hosvd(0.4),
        Method::hosvd(0.9),
    ]);
    all
}

fn measure(network: &Network, candidates: &Candidates, images: &Tensor<4>) -> Profile {
    let loss = |network: &Network| network.loss(images);
    Profile::measure(network, candidates, loss).expect("every layer is used")
}

/// Every layer's [`approximations`], measured.
fn profile(network: &Network, images: &Tensor<4>) -> Profile {
    let rule = |rules: Candidates, path: &&str| rules.layer(*path, approximations(path));
    let candidates = PATHS.iter().fold(Candidates::new(), rule);
    measure(network, &candidates, images)
}

fn measured(method: Method, bytes: usize, flops: [u64; 3], error: f64, relative: f64) -> Measured {
    let [forward, weight_gradient, input_gradient] = flops;
    Measured {
        method,
        bytes,
        flops: Flops {
            forward,
            weight_gradient,
            input_gradient,
        },
        error,
        relative_error: relative,
    }
}

fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    norm(a.iter().zip(b).map(|(a, b)| a - b))
}

/// The measured errors are those of ordinary training with `reference`.
fn assert_errors(name: &str, profile: &Profile, reference: &Network, images: &Tensor<4>) {
    for layer in profile.layers() {
        let exact = reference.trained_gradient(&layer.path, Method::Exact, images);
        let size = norm(exact.iter().copied());
        assert_close(
            &format!("{name}, {}", layer.path),
            &[layer.gradient_norm],
            &[size],
            1e-6,
        );
        for measured in &layer.candidates {
            let name = format!("{name}, {}, {}", layer.path, measured.method);
            let found = reference.trained_gradient(&layer.path, measured.method, images);
            let expected = distance(&found, &exact);
            assert!(expected > 1e-3 * size, "{name} is no approximation");
            assert_close(&name, &[measured.error], &[expected], 1e-4);
            let relative = measured.error / layer.gradient_norm;
            assert_close(&name, &[measured.relative_error], &[relative], 1e-12);
        }
    }
}

#[test]
fn errors_are_those_of_ordinary_training() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        let profile = profile(&network, &images);
        let paths = profile.layers().iter().map(|layer| layer.path.as_str());
        assert_eq!(paths.collect::<Vec<_>>(), PATHS, "{name}");
        assert_errors(&name, &profile, &network, &images);
    }
}

#[test]
fn normalization_and_dropout_are_measured_frozen() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (stochastic_network(&device), images(&device));
        let profile = profile(&network, &images);
        let reference = Network {
            norm: network.norm.clone().map(Module::freeze),
            dropout: network.dropout.clone().map(Module::freeze),
            ..network.clone()
        };
        assert_errors(&name, &profile, &reference, &images);
    }
}

#[test]
fn what_means_exact_has_no_error() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        for path in PATHS {
            let input = geometry(&network, path).modes();
            let mut methods = vec![
                Method::Exact,
                Method::channel_sparse(1.0),
                Method::hosvd(1.0),
                Method::activation_shortcut(input),
            ];
            if path != "head" {
                methods.push(Method::gradient_filter(1));
                methods.push(Method::published_gradient_filter(1));
            }
            let candidates = Candidates::new().layer(path, methods);
            let profile = measure(&network, &candidates, &images);
            let layer = &profile.layers()[0];
            assert!(layer.gradient_norm > 0.1, "{path} ({name})");
            for measured in &layer.candidates {
                let name = format!("{path}, {} ({name})", measured.method);
                assert_eq!(measured.error, 0.0, "{name}");
                assert_eq!(measured.relative_error, 0.0, "{name}");
                assert_eq!(measured.bytes, 4 * input.product(), "{name}");
            }
        }
    }
}

#[test]
fn bytes_and_operations_are_those_of_the_method() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        for layer in profile(&network, &images(&device)).layers() {
            let geometry = geometry(&network, &layer.path);
            for measured in &layer.candidates {
                let method = measured.method;
                let name = format!("{}, {method} ({name})", layer.path);
                if matches!(method, Method::Hosvd(_)) {
                    assert!(measured.bytes < method.bytes(geometry, 4), "{name}");
                } else {
                    assert_eq!(measured.bytes, method.bytes(geometry, 4), "{name}");
                    assert_eq!(measured.flops, method.flops(geometry), "{name}");
                }
            }
        }
    }
}

/// Of nested sets of channels the larger has the smaller error. For HOSVD that is not a law (the
/// gradient is not what it approximates), but nearly so.
#[test]
fn errors_fall_as_more_is_kept() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        let shares = [0.2, 0.5, 0.8, 0.95];
        for (make, slack) in [
            (Method::channel_sparse as fn(f64) -> Method, 1.0),
            (Method::hosvd, 1.01),
        ] {
            let candidates = Candidates::new().pattern(".", shares.map(make));
            for layer in measure(&network, &candidates, &images).layers() {
                let name = format!("{}, {} ({name})", layer.path, make(0.5));
                for pair in layer.candidates.windows(2) {
                    assert!(pair[0].bytes <= pair[1].bytes, "{name}");
                    assert!(pair[1].error <= slack * pair[0].error, "{name}");
                }
                let (least, most) = (&layer.candidates[0], &layer.candidates[3]);
                assert!(least.error > 1.5 * most.error, "{name}");
                assert!(least.bytes < most.bytes, "{name}");
            }
        }
    }
}
