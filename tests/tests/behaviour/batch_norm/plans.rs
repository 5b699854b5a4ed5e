//! Guards batch normalization as a layer of a model: a plan reaches it and leaves its statistics
//! alone, a profile measures it.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{BatchNorm, Conv2d, HardSwish};
use burn_frugal::plan::schedule::{Amount, Importance, Schedule, SparseLayer};
use burn_frugal::plan::{Candidates, Plan, Profile, TrainingState};
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{assert_close, autodiff_devices, random, relative_error, values};

use super::burns;

#[derive(Module, Debug)]
struct Network {
    conv: Conv2d,
    norm: BatchNorm,
    act: HardSwish,
    head: Conv2d,
    last: BatchNorm,
}

const PATHS: [&str; 4] = ["conv", "norm", "head", "last"];
const IMAGES: [usize; 4] = [2, 3, 8, 6];

fn network(device: &Device) -> Network {
    Network {
        conv: layer(&same([3, 6], 3), device, DType::F32),
        norm: burns(6, 1e-5, device, DType::F32).into(),
        act: HardSwish::new(),
        head: layer(&same([6, 4], 1), device, DType::F32),
        last: burns(4, 1e-3, device, DType::F32).into(),
    }
}

impl Network {
    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let x = self.norm.forward(self.conv.forward(images));
        self.last.forward(self.head.forward(self.act.forward(x)))
    }

    fn loss(&self, seed: u64) -> Tensor<1> {
        let device = self.conv.weight.val().device();
        let output = self.forward(random(seed, IMAGES, &device));
        let target = random(41, output.dims(), &device);
        (output - target).powi_scalar(2).mean()
    }

    fn statistics(&self) -> Vec<Vec<f64>> {
        // a valid model has seen every update
        let Self { norm, last, .. } = self.valid();
        [norm, last]
            .iter()
            .flat_map(|norm| [norm.running_mean.value(), norm.running_var.value()])
            .map(values)
            .collect()
    }
}

#[test]
fn a_plan_names_it() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let paths: Vec<String> = Plan::layers(&network)
            .into_iter()
            .map(|layer| layer.path)
            .collect();
        assert_eq!(paths, PATHS, "{name}");
        let filter = Method::gradient_filter(2);
        let plan = Plan::builder().layer("norm", filter).build(&network);
        let plan = plan.expect("its layer");
        let network = plan.apply(network).expect("its layer");
        assert_eq!(network.norm.method.method(), filter, "{name}");
        assert_eq!(network.last.method.method(), Method::Exact, "{name}");
    }
}

#[test]
fn freezing_the_rest_trains_its_parameters_with_fixed_statistics() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let before = network.statistics();
        let expected = values(network.valid().forward(random(
            1,
            IMAGES,
            &device.clone().without_autodiff(),
        )));
        let plan = Plan::builder()
            .layer("norm", Method::quantized(8))
            .build(&network);
        let network = plan
            .expect("its layer")
            .freeze_rest(network, &[])
            .expect("its layer");
        for step in 1..3 {
            let gradients = network.loss(step).backward();
            let gamma = network.norm.gamma.val().grad(&gradients);
            assert!(gamma.is_some(), "{name}: gamma is trained");
            let beta = network.norm.beta.val().grad(&gradients);
            assert!(beta.is_some(), "{name}: beta is trained");
            let others = [&network.last.gamma, &network.last.beta];
            assert!(others.iter().all(|it| !it.val().is_tracked()), "{name}");
        }
        assert_eq!(network.statistics(), before, "{name}");
        let found = values(network.forward(random(1, IMAGES, &device)));
        assert!(
            relative_error(&found, &expected) < 1e-5,
            "{name}: those of training"
        );
    }
}

#[test]
fn a_whole_model_that_trains_moves_the_statistics() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let before = network.statistics();
        network.loss(1).backward();
        let after = network.statistics();
        for (after, before) in after.iter().zip(&before) {
            assert!(after.iter().zip(before).all(|(a, b)| a != b), "{name}");
        }
    }
}

/// A profile is measured on a frozen copy, whatever trains in the model.
#[test]
fn a_profile_measures_it() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let before = network.statistics();
        let methods = [
            Method::Exact,
            Method::gradient_filter(2),
            Method::quantized(8),
            Method::quantized(4),
            Method::channel_sparse(0.5),
            Method::activation_shortcut([1, 2, 3, 3]),
            Method::hosvd(0.8),
        ];
        let mut candidates = Candidates::new();
        for path in PATHS {
            candidates = candidates.layer(path, methods);
        }
        let profile = Profile::measure(&network, &candidates, |network: &Network| network.loss(1));
        let profile = profile.expect("every layer is used");
        assert_eq!(network.statistics(), before, "{name}");

        let frozen = Plan::default()
            .freeze_rest(network.clone(), &["norm.gamma"])
            .expect("gamma");
        for layer in profile.layers() {
            let at = format!("{} ({name})", layer.path);
            let error = |method: Method| {
                let mut found = layer.candidates.iter();
                let found = found.find(|candidate| candidate.method == method);
                found.expect("a candidate").error
            };
            assert_eq!(error(Method::Exact), 0.0, "{at}");
            for method in &methods[1..] {
                assert!(error(*method) > 0.0, "{at}, {method}");
            }
            assert!(
                error(Method::quantized(8)) < error(Method::quantized(4)),
                "{at}"
            );
            if layer.path != "norm" {
                continue;
            }
            // what a step of training with fixed statistics computes
            for method in [Method::gradient_filter(2), Method::quantized(4)] {
                let gamma = |method| {
                    let mut network = frozen.clone();
                    network.norm = network.norm.with_method(method).expect("suitable");
                    let gradients = network.loss(1).backward();
                    values(network.norm.gamma.val().grad(&gradients).expect("trained"))
                };
                let (found, exact) = (gamma(method), gamma(Method::Exact));
                let distance: f64 = found.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum();
                let expected = distance.sqrt();
                let measured = error(method);
                assert!(
                    (measured - expected).abs() < 1e-4 * expected,
                    "{at}, {method}: {measured}, {expected}"
                );
            }
        }
    }
}

/// The channels of a channel-sparse layer are those of gamma.
#[test]
fn a_schedule_chooses_its_channels() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let plan = Plan::builder()
            .layer("conv", Method::channel_sparse(0.4))
            .layer("norm", Method::channel_sparse(0.5))
            .build(&network);
        let plan = plan.expect("its layers");
        let network = plan.apply(network).expect("its layers");
        let network = plan.freeze_rest(network, &[]).expect("its layers");
        let layers = SparseLayer::of(&network);
        let norm = layers.iter().find(|layer| layer.path == "norm");
        let norm = norm.expect("a channel-sparse layer");
        let found = (norm.channels, norm.weights_per_channel, norm.selected);
        assert_eq!(found, (6, 1, 3), "{name}");

        let importance = Importance::weight_norm(&network).expect("numbers");
        let gammas = values(network.norm.gamma.val());
        let expected: Vec<f64> = gammas.iter().map(|gamma| gamma.abs()).collect();
        assert_close(
            &name,
            importance.of("norm").expect("its layer"),
            &expected,
            1e-12,
        );

        let gradient = |network: &Network| {
            let gradients = network.loss(1).backward();
            values(network.norm.gamma.val().grad(&gradients).expect("trained"))
        };
        let exact = Plan::default().apply(network.clone()).expect("no layers");
        let expected: Vec<f64> = gradient(&exact).iter().map(|it| it.abs()).collect();
        let importance = Importance::gradient_norm(&network, |network| network.loss(1));
        let importance = importance.expect("both are used");
        assert_close(
            &name,
            importance.of("norm").expect("its layer"),
            &expected,
            1e-5,
        );

        let schedule = Schedule::fixed(layers, &importance, Amount::PerLayer);
        let network = schedule
            .expect("a schedule")
            .apply(network)
            .expect("its layers");
        let mut order: Vec<usize> = (0..6).collect();
        order.sort_by(|&a, &b| expected[b].total_cmp(&expected[a]));
        let mut most = order[..3].to_vec();
        most.sort_unstable();
        assert_eq!(network.norm.method.channels(), Some(most.clone()), "{name}");
        for (channel, gradient) in gradient(&network).into_iter().enumerate() {
            assert_eq!(
                gradient != 0.0,
                most.contains(&channel),
                "{name}, {channel}"
            );
        }
    }
}

/// What it carries from step to step is saved and comes back.
#[test]
fn a_training_state_has_its_channels_and_factors() {
    for (name, device) in autodiff_devices() {
        let fresh = || {
            let network = network(&device);
            let plan = Plan::builder()
                .layer("norm", Method::activation_shortcut([1, 3, 4, 2]))
                .layer("last", Method::channel_sparse(0.5))
                .build(&network);
            let plan = plan.expect("its layers");
            let network = plan.apply(network).expect("its layers");
            plan.freeze_rest(network, &[]).expect("its layers")
        };
        let trained = fresh();
        trained.loss(1).backward();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("state");
        TrainingState::of(&trained)
            .save(&path)
            .expect("a writable folder");
        let state = TrainingState::load(&path).expect("what was saved");
        let restored = state.restore(fresh()).expect("its layers");
        let channels = trained.last.method.channels();
        assert_eq!(channels.as_ref().map(Vec::len), Some(2), "{name}");
        assert_eq!(restored.last.method.channels(), channels, "{name}");
        for mode in 0..4 {
            let factor = |network: &Network| network.norm.method.factor(mode).map(values);
            assert!(factor(&trained).is_some(), "{name}, mode {mode}");
            assert_eq!(factor(&restored), factor(&trained), "{name}, mode {mode}");
        }
        // the same next step
        let next = |network: &Network| {
            let gradients = network.loss(2).backward();
            [&network.norm.gamma, &network.last.gamma]
                .map(|gamma| values(gamma.val().grad(&gradients).expect("trained")))
        };
        assert_eq!(next(&restored), next(&trained), "{name}");
    }
}
