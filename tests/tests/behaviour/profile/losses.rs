//! Guards losses that cannot be measured: ones that ignore a layer, panic or are not finite.

use burn::module::Param;
use burn::tensor::Tensor;
use burn_frugal::plan::{Candidates, Profile};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{assert_contains, autodiff_devices, devices, panic_message, random};

use super::{Network, images, measure, network};

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

#[test]
fn a_panic_in_the_loss_does_not_disturb_the_next_measurement() {
    let device = devices().remove(0).1.autodiff();
    let (network, images) = (network(&device), images(&device));
    let candidates = Candidates::new().layer("first", [Method::Exact]);
    let panicking = || Profile::measure(&network, &candidates, |_| panic!("my loss"));
    assert_eq!(panic_message(panicking).as_deref(), Some("my loss"));
    assert_eq!(measure(&network, &candidates, &images).layers().len(), 1);
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
