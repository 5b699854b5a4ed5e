//! Guards profiles: what is measured is what ordinary training does, and measuring changes nothing.

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_frugal::methods::{ActivationShortcut, Flops};
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig};
use burn_frugal::plan::{Candidate, Candidates, LayerProfile, Measured, Plan, Profile};
use burn_frugal::{Error, LayerGeometry, LinearGeometry, Method, PerMode};
use burn_frugal_tests::layers::{methods, same};
use burn_frugal_tests::{
    assert_close, assert_contains, autodiff_devices, devices, panic_message, random, values,
};
use proptest::prelude::*;

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

/// One method's pair: HOSVD as measured, and the shortcut with its ranks.
fn at_energy(network: &Network, path: &str, energy: f64, images: &Tensor<4>) -> [Measured; 2] {
    let candidates = [
        Method::hosvd(energy).into(),
        Candidate::ShortcutAtEnergy(energy),
    ];
    let candidates = Candidates::new().layer(path, candidates);
    let profile = measure(network, &candidates, images);
    let layer = &profile.layers()[0];
    layer.candidates.clone().try_into().expect("two candidates")
}

#[test]
fn a_shortcut_at_an_energy_has_the_ranks_and_the_error_of_hosvd() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        for path in PATHS {
            let geometry = geometry(&network, path);
            for energy in [0.3, 0.6, 0.8] {
                let name = format!("{path}, energy {energy} ({name})");
                let [hosvd, shortcut] = at_energy(&network, path, energy, &images);
                assert_eq!(hosvd.method, Method::hosvd(energy), "{name}");
                let Method::ActivationShortcut(found) = shortcut.method else {
                    panic!("{name}: {}", shortcut.method);
                };
                assert_eq!(found, ActivationShortcut::new(found.ranks), "{name}");
                assert_eq!(shortcut.bytes, hosvd.bytes, "{name}");
                assert_eq!(shortcut.bytes, shortcut.method.bytes(geometry, 4), "{name}");
                assert_eq!(shortcut.flops, shortcut.method.flops(geometry), "{name}");
                assert_eq!(shortcut.error, hosvd.error, "{name}");
                assert_eq!(hosvd.flops, hosvd_flops(geometry, found.ranks), "{name}");
            }
            let [_, whole] = at_energy(&network, path, 1.0, &images);
            assert_eq!(whole.method, Method::Exact, "{path} ({name})");
        }
    }
}

/// Gram matrices, decompositions and the core; then the gradient of the shortcut with these ranks.
fn hosvd_flops(geometry: LayerGeometry, ranks: PerMode) -> Flops {
    let modes = geometry.modes();
    let elements = modes.product() as u64;
    let decompositions = modes.as_slice().iter().map(|&size| {
        let size = size as u64;
        2 * size * elements + 9 * size * size * size
    });
    let low_rank = Method::activation_shortcut(ranks).flops(geometry);
    let core = 2 * fewest_products(modes.as_slice(), ranks.as_slice());
    Flops {
        forward: decompositions.sum::<u64>() + core,
        ..low_rank
    }
}

/// Of all orders in which to contract the modes.
fn fewest_products(sizes: &[usize], ranks: &[usize]) -> u64 {
    let elements: usize = sizes.iter().product();
    let next = (0..sizes.len()).filter(|&mode| ranks[mode] < sizes[mode]);
    let orders = next.map(|mode| {
        let mut rest = sizes.to_vec();
        rest[mode] = ranks[mode];
        (elements * ranks[mode]) as u64 + fewest_products(&rest, ranks)
    });
    orders.min().unwrap_or(0)
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

/// Everything of a network that measuring could change, as text: floats in their shortest form that
/// reads back to the same bits.
fn state(network: &Network) -> String {
    let mut state = String::new();
    for (conv, path) in [&network.first, &network.depthwise, &network.pointwise]
        .into_iter()
        .zip(PATHS)
    {
        let weight = conv.weight.val();
        let bias = conv.bias.as_ref().expect("a bias").val();
        let tracked = [weight.is_require_grad(), bias.is_require_grad()];
        state += &format!("{path} {tracked:?} {:?}", values(weight));
        state += &format!("{:?} {:?}", values(bias), conv.method.channels());
        let factors = (0..4).map(|mode| conv.method.factor(mode).map(values));
        state += &format!("{:?}\n", factors.collect::<Vec<_>>());
    }
    let weight = network.head.weight.val();
    state += &format!("head {} {:?}", weight.is_require_grad(), values(weight));
    state += &format!("{:?}\n", network.head.method.channels());
    if let Some(norm) = &network.norm {
        let statistics = [&norm.running_mean, &norm.running_var].map(|part| values(part.value()));
        state += &format!("norm {} {statistics:?}\n", norm.training.is_enabled());
    }
    if let Some(dropout) = &network.dropout {
        state += &format!("dropout {}\n", dropout.training.is_enabled());
    }
    state + &format!("{:?}", Plan::layers(network))
}

/// A network in the middle of training, with running values of every kind.
fn trained_network(device: &Device) -> Network {
    let plan = Plan::builder()
        .layer("first", Method::channel_sparse(0.5))
        .layer("depthwise", Method::activation_shortcut([2, 3, 4, 4]))
        .layer("pointwise", Method::gradient_filter(2))
        .layer("head", Method::channel_sparse(0.25));
    let network = stochastic_network(device);
    let plan = plan.build(&network).expect("suitable methods");
    let network = plan.apply(network).expect("its own plan");
    network.loss(&images(device));
    network
}

#[test]
fn measuring_leaves_the_model_as_it_was() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (trained_network(&device), images(&device));
        let before = state(&network);
        assert!(network.first.method.channels().is_some(), "{name}");
        assert!(network.depthwise.method.factor(0).is_some(), "{name}");
        profile(&network, &images);
        assert_eq!(state(&network), before, "{name}");
        // and what it trains next is what it would have trained
        let frozen = |network: &Network| Network {
            dropout: None,
            ..network.clone()
        };
        let expected = frozen(&trained_network(&device)).weight_gradient("depthwise", &images);
        let found = frozen(&network).weight_gradient("depthwise", &images);
        assert_eq!(found, expected, "{name}");
    }
}

/// Methods, running values and what is frozen belong to the model's training, not to the profile.
#[test]
fn the_state_of_the_model_does_not_matter() {
    for (name, device) in autodiff_devices() {
        let images = images(&device);
        let expected = profile(&stochastic_network(&device), &images);
        let trained = trained_network(&device);
        // its statistics have moved on
        let trained = Network {
            norm: stochastic_network(&device).norm,
            ..trained
        };
        assert_eq!(profile(&trained, &images), expected, "{name}, trained");
        let frozen = stochastic_network(&device).freeze();
        assert_eq!(profile(&frozen, &images), expected, "{name}, frozen");
        let mut head_only = stochastic_network(&device).freeze();
        head_only.head = head_only.head.unfreeze();
        assert_eq!(profile(&head_only, &images), expected, "{name}, head only");
    }
}

/// Burn's generators are shared by the process, so this runs in one of its own, where no other test
/// draws numbers.
#[test]
fn measuring_draws_no_random_numbers() {
    const ALONE: &str = "BURN_FRUGAL_TEST_ALONE";
    const NAME: &str = "profile::measuring_draws_no_random_numbers";
    if std::env::var_os(ALONE).is_none() {
        let tests = std::env::current_exe().expect("this test's own program");
        let run = std::process::Command::new(tests)
            .args(["--exact", NAME, "--test-threads", "1"])
            .env(ALONE, "1")
            .output();
        let output = run.expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        assert_contains(&text, &["1 passed"]);
        return;
    }
    for (name, device) in autodiff_devices() {
        let (network, images) = (stochastic_network(&device), images(&device));
        let drawn = |before: &dyn Fn()| {
            device.seed(7);
            before();
            values(Tensor::<1>::random([8], Distribution::Default, &device))
        };
        let expected = drawn(&|| ());
        let training = drawn(&|| drop(network.loss(&images)));
        assert_ne!(training, expected, "{name}: dropout draws numbers");
        let measuring = drawn(&|| drop(profile(&network, &images)));
        assert_eq!(measuring, expected, "{name}");
    }
}

/// One layer that is used twice, as [`Uses`] says.
#[derive(Module, Debug)]
struct Twice {
    conv: Conv2d,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Uses {
    /// On two maps of one size, as in a siamese network.
    Siblings,
    /// On two maps of different sizes, as in a detector's head.
    Scales,
    /// On its own output, as in a recurrent network.
    Chain,
}

impl Uses {
    /// The shapes of the two inputs.
    fn shapes(self) -> [[usize; 4]; 2] {
        match self {
            Self::Siblings | Self::Chain => [MAP, MAP],
            Self::Scales => [MAP, [2, 4, 3, 3]],
        }
    }
}

const MAP: [usize; 4] = [2, 4, 7, 6];

impl Twice {
    fn new(device: &Device) -> Self {
        Self {
            conv: conv(21, same([4, 4], 3), device),
        }
    }

    fn loss(&self, uses: Uses) -> Tensor<1> {
        let device = self.conv.weight.val().device();
        let [first, second] = uses.shapes();
        let first = self.conv.forward(random(22, first, &device));
        let input = match uses {
            Uses::Chain => relu(first.clone()),
            Uses::Siblings | Uses::Scales => random(23, second, &device),
        };
        let second = self.conv.forward(input);
        first.powi_scalar(2).mean() + second.powi_scalar(2).mean()
    }

    fn gradient(&self, method: Method, uses: Uses) -> Vec<f64> {
        let conv = self.conv.clone().with_method(method);
        let model = Self {
            conv: conv.expect("suitable"),
        };
        for _warm_up in 0..3 {
            model.loss(uses);
        }
        let gradients = model.loss(uses).backward();
        let gradient = model.conv.weight.val().grad(&gradients);
        values(gradient.expect("the weight is trained"))
    }

    fn profile(&self, candidates: impl IntoIterator<Item = Candidate>, uses: Uses) -> LayerProfile {
        let candidates = Candidates::new().layer("conv", candidates);
        let profile = Profile::measure(self, &candidates, |model| model.loss(uses));
        profile.expect("a used layer").layers()[0].clone()
    }
}

/// The passes of a layer share its running values and add their gradients.
fn assert_sums_passes(uses: Uses) {
    for (name, device) in autodiff_devices() {
        let model = Twice::new(&device);
        let layer = model.profile(methods().map(Candidate::from), uses);
        let exact = model.gradient(Method::Exact, uses);
        let size = norm(exact.iter().copied());
        assert_close(&name, &[layer.gradient_norm], &[size], 1e-6);
        for measured in &layer.candidates {
            let method = measured.method;
            let name = format!("{method}, {uses:?} ({name})");
            // along a chain a filter's input gradient is approximate, too: a profile leaves that out
            if uses != Uses::Chain || !matches!(method, Method::GradientFilter(_)) {
                let error = distance(&model.gradient(method, uses), &exact);
                assert!((measured.error - error).abs() < 1e-5 * size, "{name}");
            }
            if !matches!(method, Method::Hosvd(_)) {
                let geometries = uses.shapes().map(|shape| model.conv.geometry(shape));
                let bytes = geometries.map(|geometry| method.bytes(geometry, 4));
                assert_eq!(measured.bytes, bytes[0] + bytes[1], "{name}");
                let flops = geometries.map(|geometry| method.flops(geometry));
                assert_eq!(measured.flops, flops[0] + flops[1], "{name}");
            }
        }
    }
}

#[test]
fn a_layer_that_is_used_on_two_maps_sums_its_passes() {
    assert_sums_passes(Uses::Siblings);
    assert_sums_passes(Uses::Scales);
}

#[test]
fn a_layer_that_is_used_on_its_own_output_sums_its_passes() {
    assert_sums_passes(Uses::Chain);
}

/// A budget for the shortcut holds only if its bytes are those of the ranks that it gets.
#[test]
fn a_shortcut_at_an_energy_keeps_what_is_measured_where_a_layer_is_used_twice() {
    for (name, device) in devices() {
        let model = Twice::new(&device.autodiff());
        for uses in [Uses::Siblings, Uses::Scales] {
            for energy in [0.5, 0.8] {
                let layer = model.profile([Candidate::ShortcutAtEnergy(energy)], uses);
                let Measured { method, bytes, .. } = layer.candidates[0];
                let kept = uses
                    .shapes()
                    .map(|shape| method.bytes(model.conv.geometry(shape), 4));
                let name = format!("{method}, energy {energy}, {uses:?} ({name})");
                assert_eq!(bytes, kept[0] + kept[1], "{name}");
            }
        }
    }
}

fn resolved(candidates: &Candidates) -> Result<Vec<(String, Vec<Method>)>, Error> {
    let device = devices().remove(0).1.autodiff();
    let (network, images) = (network(&device), images(&device));
    let profile = Profile::measure(&network, candidates, |network| network.loss(&images))?;
    let methods = |layer: &LayerProfile| layer.candidates.iter().map(|c| c.method).collect();
    let layers = profile.layers().iter();
    Ok(layers.map(|l| (l.path.clone(), methods(l))).collect())
}

fn expected<const N: usize>(layers: [(&str, &[Method]); N]) -> Vec<(String, Vec<Method>)> {
    layers
        .map(|(path, methods)| (path.to_string(), methods.to_vec()))
        .into()
}

#[test]
fn a_later_rule_replaces_an_earlier_one() {
    let [filter, sparse] = [Method::gradient_filter(2), Method::channel_sparse(0.5)];
    // in the model's order, whatever that of the rules
    let candidates = Candidates::new()
        .layer("head", [sparse])
        .last_convs(2, [Method::Exact, filter])
        .pattern("^(first|depth)", [filter, sparse]);
    assert_eq!(
        resolved(&candidates).expect("rules for its layers"),
        expected([
            ("first", &[filter, sparse]),
            ("depthwise", &[filter, sparse]),
            ("pointwise", &[Method::Exact, filter]),
            ("head", &[sparse]),
        ])
    );
    let candidates = candidates.layer("first", [Method::Exact]);
    let found = resolved(&candidates).expect("rules for its layers");
    assert_eq!(found[0], ("first".to_string(), vec![Method::Exact]));
    assert_eq!(found[1].1, [filter, sparse]);
}

/// As in a plan's builder, a rule for all layers may have an exception.
#[test]
fn a_method_that_a_later_rule_replaces_need_not_suit() {
    let filter = Method::gradient_filter(2);
    let device = devices().remove(0).1;
    let plan = Plan::builder()
        .pattern(".", filter)
        .layer("head", Method::Exact);
    assert!(plan.build(&network(&device)).is_ok());
    let candidates = Candidates::new()
        .pattern(".", [filter])
        .layer("head", [Method::Exact]);
    let found = resolved(&candidates).expect("the head has another candidate");
    assert_eq!(found[3], ("head".to_string(), vec![Method::Exact]));
}

#[test]
fn nothing_is_measured_without_a_rule() {
    let none = Candidates::new();
    assert_eq!(resolved(&none).expect("no rule is wrong"), []);
    let only = Candidates::new().layer("pointwise", [Method::Exact]);
    let found = resolved(&only).expect("a rule for its layer");
    assert_eq!(found, expected([("pointwise", &[Method::Exact])]));
}

#[test]
fn a_rule_has_to_name_a_layer() {
    let exact = [Method::Exact];
    let error = |candidates: Candidates| resolved(&candidates).expect_err("a wrong rule");
    let unknown = error(Candidates::new().layer("second", exact));
    assert!(matches!(&unknown, Error::UnknownLayer { path, .. } if path == "second"));
    assert_contains(&unknown.to_string(), &["`second`", "first, depthwise"]);

    let unmatched = error(Candidates::new().pattern("^econd", exact));
    assert!(matches!(&unmatched, Error::NoMatch { pattern, .. } if pattern == "^econd"));
    assert_contains(&unmatched.to_string(), &["`^econd`", "first, depthwise"]);

    let pattern = error(Candidates::new().pattern("(", exact));
    assert!(
        matches!(&pattern, Error::Pattern { pattern, .. } if pattern == "("),
        "{pattern}"
    );

    let too_many = error(Candidates::new().last_convs(4, exact));
    let numbers = matches!(
        too_many,
        Error::TooFewConvolutions {
            expected: 4,
            found: 3
        }
    );
    assert!(numbers, "{too_many}");
}

#[test]
fn a_candidate_has_to_suit_its_layer() {
    let unsuitable: [(&str, Candidate, &str); 6] = [
        (
            "head",
            Method::gradient_filter(2).into(),
            "convolutions only",
        ),
        (
            "first",
            Method::gradient_filter(0).into(),
            "at least 1 pixel",
        ),
        ("head", Method::channel_sparse(1.5).into(), "found 1.5"),
        (
            "first",
            Method::activation_shortcut([1, 4, 2, 2]).into(),
            "rank 4 of the channel mode",
        ),
        ("pointwise", Candidate::ShortcutAtEnergy(0.0), "found 0"),
        ("first", Candidate::ShortcutAtEnergy(f64::NAN), "found NaN"),
    ];
    for (path, candidate, reason) in unsuitable {
        let candidates = Candidates::new().layer(path, [Method::Exact.into(), candidate]);
        let error = resolved(&candidates).expect_err("an unsuitable method");
        assert!(
            matches!(&error, Error::Method { layer, .. } if layer == path),
            "{error}"
        );
        assert_contains(&error.to_string(), &[path, reason]);
    }
}

type Loss<'a> = &'a dyn Fn(&Network) -> Tensor<1>;

/// A loss that does not depend on a layer has nothing to say about it, whether the layer is left
/// out, runs for nothing, or is cut off.
#[test]
fn a_loss_that_ignores_a_layer_is_an_error() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        let head = |network: &Network| {
            network
                .head
                .forward(random::<3>(3, [1, 2, 8], &device))
                .sum()
        };
        let losses: [(&str, Loss); 3] = [
            ("left out", &head),
            ("for nothing", &|network: &Network| {
                network.first.forward(images.clone());
                head(network)
            }),
            ("cut off", &|network: &Network| {
                let cut = network.first.forward(images.clone()).detach().sum();
                head(network) + cut
            }),
        ];
        for (what, loss) in losses {
            let candidates = Candidates::new().layer("first", [Method::Exact]);
            let error = Profile::measure(&network, &candidates, loss).expect_err(what);
            assert!(
                matches!(&error, Error::Unused { layer } if layer == "first"),
                "{what} ({name}): {error}"
            );
            assert_contains(&error.to_string(), &["`first`"]);
            let candidates = Candidates::new().layer("head", [Method::Exact]);
            assert!(
                Profile::measure(&network, &candidates, loss).is_ok(),
                "{what}"
            );
        }
    }
}

/// A layer that is an expert of a mixture, say: some of its passes reach the loss.
#[test]
fn a_pass_that_does_not_reach_the_loss_is_no_pass() {
    for (name, device) in autodiff_devices() {
        let (network, images) = (network(&device), images(&device));
        let candidates = Candidates::new().pattern(".", methods().map(|_| Method::hosvd(0.6)));
        let expected = measure(&network, &candidates, &images);
        let found = Profile::measure(&network, &candidates, |network| {
            network.forward(images.clone() * 2.0);
            network.loss(&images)
        });
        assert_eq!(found.expect("the second pass counts"), expected, "{name}");
    }
}

#[test]
fn a_plain_batch_does() {
    for (name, device) in devices() {
        let training = device.clone().autodiff();
        let network = stochastic_network(&training);
        let expected = profile(&network, &images(&training));
        let plain = images(&device);
        assert_eq!(profile(&network, &plain), expected, "{name}");
    }
}

#[test]
fn a_model_on_a_plain_device_does() {
    for (name, device) in devices() {
        let training = device.clone().autodiff();
        let expected = profile(&network(&training), &images(&training));
        let plain = images(&device);
        assert_eq!(profile(&network(&device), &plain), expected, "{name}");
        let valid = network(&training).valid();
        assert_eq!(profile(&valid, &plain), expected, "{name}, valid");
    }
}

/// The parameters of a new model are made when they are first used, and clones share them until then.
#[test]
fn a_new_model_is_measured_with_its_parameters_and_trained_after_that() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let config = Conv2dConfig::new([4, 4], [3, 3]).with_padding(PaddingConfig2d::Same);
        let model = Twice {
            conv: config.init(&device),
        };
        let measure = || model.profile(methods().map(Candidate::from), Uses::Siblings);
        let first = measure();
        assert_eq!(measure(), first, "{name}");
        assert!(model.conv.weight.val().is_require_grad(), "{name}");
        let exact = model.gradient(Method::Exact, Uses::Siblings);
        let size = norm(exact);
        assert_close(name, &[first.gradient_norm], &[size], 1e-6);
    }
}

#[test]
fn a_panic_in_the_loss_does_not_disturb_the_next_measurement() {
    let device = devices().remove(0).1.autodiff();
    let (network, images) = (network(&device), images(&device));
    let candidates = Candidates::new().layer("first", [Method::Exact]);
    let panicking = || Profile::measure(&network, &candidates, |_| panic!("my loss"));
    assert_eq!(panic_message(panicking).as_deref(), Some("my loss"));
    assert_eq!(measure(&network, &candidates, &images).layers().len(), 1);
}

/// A profile with every form of method.
fn example() -> Profile {
    let json = serde_json::json!({ "version": 1, "layers": [
        {
            "path": "first",
            "gradient_norm": 2.5,
            "candidates": [
                measured(Method::Exact, 4096, [0, 1000, 1000], 0.0, 0.0),
                measured(Method::gradient_filter(2), 1024, [512, 80, 70], 0.5, 0.2),
            ],
        },
        {
            "path": "blocks.10.head",
            "gradient_norm": 0.0,
            "candidates": [measured(
                ActivationShortcut::new([2, 3, 4]).sequential().frozen().with_seed(9).into(),
                123_456_789,
                [1, 2, u64::MAX - 3],
                1.0 / 3.0,
                1e-300,
            )],
        },
    ]});
    Profile::from_json(&json.to_string()).expect("a profile")
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

/// Profiles of released versions have to stay readable: this is the form of version 1.
#[test]
fn the_json_form_is_stable() {
    let text = r#"{
  "version": 1,
  "layers": [
    {
      "path": "first",
      "gradient_norm": 2.5,
      "candidates": [
        {
          "method": "exact",
          "bytes": 4096,
          "flops": {
            "forward": 0,
            "weight_gradient": 1000,
            "input_gradient": 1000
          },
          "error": 0.0,
          "relative_error": 0.0
        },
        {
          "method": {
            "gradient_filter": {
              "patch": 2,
              "scaling": "mass_preserving"
            }
          },
          "bytes": 1024,
          "flops": {
            "forward": 512,
            "weight_gradient": 80,
            "input_gradient": 70
          },
          "error": 0.5,
          "relative_error": 0.2
        }
      ]
    },
    {
      "path": "blocks.10.head",
      "gradient_norm": 0.0,
      "candidates": [
        {
          "method": {
            "activation_shortcut": {
              "ranks": [
                2,
                3,
                4
              ],
              "truncation": "sequential",
              "factors": "frozen",
              "seed": 9
            }
          },
          "bytes": 123456789,
          "flops": {
            "forward": 1,
            "weight_gradient": 2,
            "input_gradient": 18446744073709551612
          },
          "error": 0.3333333333333333,
          "relative_error": 1e-300
        }
      ]
    }
  ]
}"#;
    assert_eq!(example().to_json(), text);
    assert_eq!(Profile::from_json(text).expect("a profile"), example());
}

#[test]
fn a_measured_profile_survives_json_and_a_file() {
    let device = devices().remove(0).1.autodiff();
    let profile = profile(&network(&device), &images(&device));
    let again = Profile::from_json(&profile.to_json()).expect("what was written");
    assert_eq!(again, profile);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("profile.json");
    profile.save(&path).expect("a writable folder");
    assert_eq!(Profile::load(&path).expect("what was saved"), profile);
    let text = std::fs::read_to_string(&path).expect("a file");
    assert_eq!(text, profile.to_json() + "\n");
    example().save(&path).expect("a writable folder");
    assert_eq!(Profile::load(&path).expect("what was saved"), example());
}

fn any_method() -> impl Strategy<Value = Method> {
    let ranks = prop::collection::vec(any::<usize>(), 2..=4);
    let shortcut = (ranks, any::<u64>()).prop_map(|(ranks, seed)| {
        let ranks = PerMode::new(&ranks).expect("2 to 4");
        ActivationShortcut::new(ranks).with_seed(seed).into()
    });
    prop_oneof![
        Just(Method::Exact),
        any::<usize>().prop_map(Method::published_gradient_filter),
        any_number().prop_map(Method::channel_sparse),
        any_number().prop_map(Method::hosvd),
        shortcut,
    ]
}

/// Finite, of every magnitude.
fn any_number() -> impl Strategy<Value = f64> {
    use prop::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO
}

fn any_layer() -> impl Strategy<Value = LayerProfile> {
    let numbers = (any_number(), any_number(), any::<[u64; 3]>());
    let candidate = (any_method(), any::<usize>(), numbers).prop_map(
        |(method, bytes, (error, relative, flops))| measured(method, bytes, flops, error, relative),
    );
    let candidates = prop::collection::vec(candidate, 0..4);
    (".*", any_number(), candidates).prop_map(|(path, gradient_norm, candidates)| LayerProfile {
        path,
        gradient_norm,
        candidates,
    })
}

proptest! {
    #[test]
    fn a_profile_survives_json(layers in prop::collection::vec(any_layer(), 0..4)) {
        let json = serde_json::json!({ "version": 1, "layers": layers });
        let profile = Profile::from_json(&json.to_string()).expect("a profile");
        prop_assert_eq!(profile.layers(), &layers);
        let again = Profile::from_json(&profile.to_json()).expect("what was written");
        prop_assert_eq!(again, profile);
    }

    #[test]
    fn text_is_a_profile_or_an_error(text in ".*") {
        let error = Profile::from_json(&text).expect_err("random text is no profile");
        prop_assert!(error.to_string().contains("the text is not a profile"), "{}", error);
    }
}

#[test]
fn text_that_is_no_profile_is_refused() {
    let layer = |field: &str, value: serde_json::Value| {
        let text = example().to_json();
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let object = match field.rsplit_once('/') {
            Some((parent, _)) => json.pointer_mut(parent).expect("a parent"),
            None => &mut json,
        };
        let name = field.rsplit('/').next().expect("a name");
        object[name] = value;
        json.to_string()
    };
    let changes = [
        ("version", 0.into()),
        ("version", "1".into()),
        ("version", (-1).into()),
        ("layers", serde_json::json!({})),
        ("models", serde_json::json!([])),
        ("/layers/0/norm", 1.0.into()),
        ("/layers/0/gradient_norm", "1".into()),
        ("/layers/0/gradient_norm", serde_json::Value::Null),
        ("/layers/0/path", 3.into()),
        ("/layers/0/candidates/0/loss", 1.0.into()),
        ("/layers/0/candidates/0/method", "exactly".into()),
        ("/layers/0/candidates/0/bytes", (-1).into()),
        ("/layers/0/candidates/0/bytes", 1.5.into()),
        ("/layers/0/candidates/0/flops", 3.into()),
        ("/layers/0/candidates/0/flops/backward", 3.into()),
        ("/layers/0/candidates/0/flops/forward", (-3).into()),
        ("/layers/0/candidates/0/error", "0".into()),
        (
            "/layers/1/candidates/0/method/activation_shortcut/ranks",
            serde_json::json!([1]),
        ),
        (
            "/layers/1/candidates/0/method/activation_shortcut/speed",
            1.into(),
        ),
    ];
    let mut texts: Vec<String> = changes
        .into_iter()
        .map(|(field, value)| layer(field, value))
        .collect();
    texts.extend(
        [
            "",
            "{}",
            "[]",
            "null",
            r#"{"version":1}"#,
            r#"{"layers":[]}"#,
        ]
        .map(String::from),
    );
    texts.push(example().to_json().replace("0.5", "1e999"));
    texts.push(example().to_json().replace(r#""bytes": 4096,"#, ""));
    texts.push(plan_with("first", Method::Exact).to_json());
    for text in texts {
        match Profile::from_json(&text) {
            Err(error @ Error::NotADocument { .. }) => {
                assert_contains(&error.to_string(), &["the text is not a profile"]);
            }
            other => panic!("`{text}` gives {other:?}"),
        }
    }
    let whole = example().to_json();
    for length in 0..whole.len() {
        assert!(Profile::from_json(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn a_profile_of_a_later_version_is_refused_whatever_it_holds() {
    for version in [2, u64::MAX] {
        let text = format!(r#"{{"version":{version},"measurements":3}}"#);
        let error = Profile::from_json(&text).expect_err("a later version");
        let expected = matches!(&error, Error::NewerDocument { found, .. } if *found == version);
        assert!(expected, "{error}");
        let version = version.to_string();
        assert_contains(&error.to_string(), &["a profile", &version, "up to 1"]);
    }
}

#[test]
fn a_file_that_is_no_profile_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("some.json");
    let error = Profile::load(&path).expect_err("no file");
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert_contains(&error.to_string(), &["some.json"]);
    std::fs::write(&path, "{\"version\": 9}").expect("a writable folder");
    let error = Profile::load(&path).expect_err("a later version");
    assert!(matches!(error, Error::NewerDocument { .. }), "{error}");
    assert_contains(&error.to_string(), &["some.json", "a profile"]);
    plan_with("a", Method::Exact)
        .save(&path)
        .expect("a writable folder");
    let error = Profile::load(&path).expect_err("a plan");
    assert!(matches!(error, Error::NotADocument { .. }), "{error}");
    assert_contains(&error.to_string(), &["some.json", "a profile"]);
}

/// A model whose training has diverged: there is nothing to compare, and JSON has no NaN.
#[test]
fn a_measurement_that_is_not_finite_is_an_error() {
    for (name, device) in devices() {
        let device = device.autodiff();
        let mut network = network(&device);
        let broken = (network.first.weight.val() * f32::NAN).detach();
        network.first.weight = Param::from_tensor(broken);
        let images = images(&device);
        let methods = [Method::channel_sparse(0.5), Method::gradient_filter(2)];
        let candidates = Candidates::new().layer("first", methods);
        let error = Profile::measure(&network, &candidates, |network| network.loss(&images));
        let error = error.expect_err("nothing to compare");
        assert!(
            matches!(&error, Error::NotFinite { layer, .. } if layer == "first"),
            "{name}: {error}"
        );
        assert_contains(
            &error.to_string(),
            &["`first`", "channel-sparse, ratio 0.5", "NaN"],
        );
    }
}

#[test]
fn a_profile_is_displayed_as_a_table() {
    let json = serde_json::json!({ "version": 1, "layers": [
        {
            "path": "first",
            "gradient_norm": 2.5,
            "candidates": [
                measured(Method::Exact, 4096, [0, 1000, 1000], 0.0, 0.0),
                measured(Method::gradient_filter(2), 1024, [512, 80, 70], 0.5, 0.2),
            ],
        },
        {
            "path": "blocks.10.head",
            "gradient_norm": 40.0,
            "candidates": [
                measured(Method::hosvd(0.5), 123_456_789_012, [1, 2, 30_000_000_000_000], 12.5, 0.3125),
            ],
        },
    ]});
    let profile = Profile::from_json(&json.to_string()).expect("a profile");
    let table = "\
layer           method                           bytes           FLOPs        error  relative
first           exact                             4096            2000     0.0000e0    0.0000
first           gradient filter, patch 2          1024             662    5.0000e-1    0.2000
blocks.10.head  HOSVD, energy 0.5         123456789012  30000000000003     1.2500e1    0.3125";
    assert_eq!(profile.to_string(), table);
    let empty = Profile::default().to_string();
    assert_eq!(
        empty,
        "layer  method         bytes           FLOPs        error  relative"
    );
}

#[test]
fn a_measured_table_names_every_layer_and_method_in_columns() {
    let device = devices().remove(0).1.autodiff();
    let profile = profile(&network(&device), &images(&device));
    let table = profile.to_string();
    let mut lines = table.lines();
    let head = lines.next().expect("a head");
    for layer in profile.layers() {
        for measured in &layer.candidates {
            let line = lines.next().expect("a line a candidate");
            assert_eq!(line.len(), head.len(), "{table}");
            let found = line.split("  ").filter(|cell| !cell.is_empty());
            let cells: Vec<&str> = found.map(str::trim).collect();
            assert_eq!(cells[0], layer.path);
            assert_eq!(cells[1], measured.method.to_string());
            assert_eq!(cells[2], measured.bytes.to_string());
            assert_eq!(cells[3], measured.flops.total().to_string());
            assert_eq!(cells.len(), 6, "{line}");
        }
    }
    assert_eq!(lines.next(), None);
}

/// A plan would have one method for the two.
#[test]
fn a_profile_with_a_layer_twice_is_refused() {
    let layer = serde_json::json!({ "path": "first", "gradient_norm": 1.0, "candidates": [] });
    let json = serde_json::json!({ "version": 1, "layers": [layer, layer] });
    let error = Profile::from_json(&json.to_string()).expect_err("twice");
    assert!(matches!(error, Error::NotADocument { .. }), "{error}");
    assert_contains(&error.to_string(), &["`first`", "twice"]);
}
