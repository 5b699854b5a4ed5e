//! Guards layers that are used more than once: a profile sums their passes.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::{Candidate, Candidates, LayerProfile, Measured, Profile};
use burn_frugal_tests::layers::{methods, same};
use burn_frugal_tests::{assert_close, autodiff_devices, devices, random, values};

use super::{conv, distance, images, measure, network, norm};

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
