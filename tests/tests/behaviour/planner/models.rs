//! Guards plans for measured models: what is promised is what is kept.

use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::Conv2d;
use burn_frugal::plan::{Candidate, Candidates, ErrorMeasure, Planner, Profile, Solution};
use burn_frugal::{Error, Method};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{assert_close, autodiff_devices, devices, random, values};

/// Two convolutions on a map of 8 by 8.
#[derive(Module, Debug)]
struct Network {
    wide: Conv2d,
    narrow: Conv2d,
}

const IMAGES: [usize; 4] = [2, 4, 8, 8];

fn network(device: &Device) -> Network {
    let conv = |seed: u64, channels: [usize; 2]| {
        let mut conv = same(channels, 3).init(device);
        conv.weight = Param::from_tensor(random(seed, conv.weight.dims(), device));
        conv
    };
    Network {
        wide: conv(1, [4, 8]),
        narrow: conv(2, [8, 3]),
    }
}

impl Network {
    fn loss(&self, images: &Tensor<4>) -> Tensor<1> {
        let x = relu(self.wide.forward(images.clone()));
        self.narrow.forward(x).powi_scalar(2).mean()
    }

    /// Bytes that the two layers keep with the methods that they have.
    fn bytes(&self) -> usize {
        let wide = self.wide.geometry(IMAGES);
        let narrow = self.narrow.geometry([IMAGES[0], 8, IMAGES[2], IMAGES[3]]);
        self.wide.method.method().bytes(wide, 4) + self.narrow.method.method().bytes(narrow, 4)
    }

    fn gradients(&self, images: &Tensor<4>) -> [Vec<f64>; 2] {
        let gradients = self.loss(images).backward();
        [&self.wide, &self.narrow].map(|conv| {
            let gradient = conv.weight.val().grad(&gradients);
            values(gradient.expect("the weight is trained"))
        })
    }
}

/// Methods whose bytes do not depend on the values.
fn candidates() -> Candidates {
    let fixed = [
        Method::Exact,
        Method::channel_sparse(0.25),
        Method::channel_sparse(0.5),
        Method::channel_sparse(0.75),
        Method::activation_shortcut([1, 2, 3, 3]),
    ];
    let fixed = fixed.map(Candidate::from).into_iter();
    let energies = [0.5, 0.7, 0.9, 0.99].map(Candidate::ShortcutAtEnergy);
    Candidates::new().last_convs(2, fixed.chain(energies))
}

/// Every budget is kept by the model that the plan is applied to, and a larger one has a smaller
/// error; the methods of this model give exact input gradients, so the errors of ordinary training
/// are those that were measured.
#[test]
fn a_planned_model_keeps_its_budget() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), random(3, IMAGES, &device));
        let loss = |network: &Network| network.loss(&images);
        let profile = Profile::measure(&network, &candidates(), loss).expect("used layers");
        let planner = Planner::new(&profile);
        let smallest = planner
            .fewest_bytes(f64::INFINITY)
            .expect("some plan")
            .bytes;
        let exact = network.gradients(&images);
        let mut last = f64::INFINITY;
        let mut plans = Vec::new();
        for step in 0..=8 {
            let budget = smallest + (network.bytes() - smallest) * step / 8;
            let solution = planner.least_error(budget).expect("enough");
            let planned = solution.plan.apply(network.clone()).expect("its own plan");
            assert_eq!(planned.bytes(), solution.bytes, "{name}, {budget} bytes");
            assert!(solution.bytes <= budget, "{name}, {budget} bytes");
            assert!(solution.error <= last, "{name}, {budget} bytes");
            last = solution.error;
            if !plans.contains(&solution.plan) {
                let converse = planner.fewest_bytes(solution.error).expect("this one");
                assert_eq!(converse.plan, solution.plan, "{name}, {budget} bytes");
                assert_trained(&name, &planned, &exact, &solution, &images);
                plans.push(solution.plan);
            }
        }
        assert!(plans.len() >= 5, "{name}: only {} plans", plans.len());
        assert_eq!(last, 0.0, "{name}: there is room for the exact gradient");
    }
}

/// Training a planned model has the planned errors; a shortcut that follows the data comes near that
/// of the decomposition that its ranks are from.
fn assert_trained(
    name: &str,
    planned: &Network,
    exact: &[Vec<f64>; 2],
    solution: &Solution,
    images: &Tensor<4>,
) {
    for _warm_up in 0..3 {
        planned.loss(images);
    }
    let found = planned.gradients(images);
    for ((found, exact), layer) in found.iter().zip(exact).zip(&solution.layers) {
        let difference = found.iter().zip(exact).map(|(a, b)| (a - b) * (a - b));
        let error = difference.sum::<f64>().sqrt();
        let name = format!("{name}, {}, {}", layer.path, layer.method);
        match layer.method {
            Method::ActivationShortcut(_) => {
                let size = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!((error - layer.error).abs() < 0.1 * size, "{name}: {error}");
            }
            _ => assert_close(&name, &[error], &[layer.error], 1e-4),
        }
    }
}

/// A gradient of zero has no relative error, but an absolute one.
#[test]
fn an_error_relative_to_nothing_is_not_planned_with() {
    let device = devices().remove(0).1.autodiff();
    let conv: Conv2d = same([1, 1], 1).init(&device);
    let images = Tensor::<4>::from_floats([[[[1.0, 0.0], [0.0, 0.0]]]], &device);
    let upstream = Tensor::<4>::from_floats([[[[0.0, 1.0], [0.0, 0.0]]]], &device);
    let loss = |conv: &Conv2d| (conv.forward(images.clone()) * upstream.clone()).sum();
    let candidates = Candidates::new().layer("", [Method::gradient_filter(2)]);
    let profile = Profile::measure(&conv, &candidates, loss).expect("a used layer");
    let layer = &profile.layers()[0];
    assert_eq!(layer.gradient_norm, 0.0);
    assert_eq!(layer.candidates[0].error, 0.25);

    let solution = Planner::new(&profile).least_error(100).expect("enough");
    assert_eq!(solution.error, 0.25);
    let relative = Planner::new(&profile).measure(ErrorMeasure::Relative);
    let error = relative.least_error(100).expect_err("infinite");
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    // JSON has no infinity, but the profile is worth saving
    let again = Profile::from_json(&profile.to_json()).expect("what was written");
    assert_eq!(again, profile);
}
