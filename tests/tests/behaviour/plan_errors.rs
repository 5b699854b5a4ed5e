//! Guards the errors of plans: every way in which one can be wrong for its model.

use burn::nn::LinearConfig;
use burn::tensor::Device;
use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};

use crate::user_model::{conv, filter, network, plan_with};

#[test]
fn an_unknown_path_is_an_error_that_lists_the_layers() {
    let network = network(&Device::default());
    for path in ["blocks.2.main", "block", "", "head", "stem.weight", "stem."] {
        let error = Plan::builder()
            .layer(path, filter(2))
            .build(&network)
            .unwrap_err();
        assert!(matches!(&error, Error::UnknownLayer { path: found, .. } if found == path));
        let message = error.to_string();
        assert!(
            message.contains("stem, blocks.0.main") && message.contains("9 in all"),
            "{message}"
        );

        let error = plan_with(path, filter(2))
            .apply(network.clone())
            .unwrap_err();
        assert!(matches!(error, Error::UnknownLayer { .. }), "{error}");
    }
}

#[test]
fn a_model_without_layers_says_so() {
    let linear = LinearConfig::new(2, 2).init(&Device::default());
    assert_eq!(Plan::layers(&linear), []);
    let error = Plan::builder()
        .layer("conv", filter(2))
        .build(&linear)
        .unwrap_err();
    assert!(error.to_string().contains("it has none"), "{error}");
}

#[test]
fn a_pattern_has_to_match_and_to_be_one() {
    let network = network(&Device::default());
    let error = Plan::builder()
        .pattern("^mains", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(&error, Error::NoMatch { pattern, .. } if pattern == "^mains"));
    assert!(error.to_string().contains("stem"), "{error}");

    let error = Plan::builder()
        .pattern("blocks(", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(&error, Error::Pattern { pattern, .. } if pattern == "blocks("));
    assert!(error.to_string().contains("unclosed group"), "{error}");
}

#[test]
fn there_have_to_be_enough_convolutions() {
    let network = network(&Device::default());
    let error = Plan::builder()
        .last_convs(10, filter(2))
        .build(&network)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooFewConvolutions {
                expected: 10,
                found: 9
            }
        ),
        "{error}"
    );
    let error = Plan::builder()
        .last_convs(usize::MAX, filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(error, Error::TooFewConvolutions { .. }), "{error}");
}

#[test]
fn a_layer_has_to_suit_its_method() {
    let network = network(&Device::default());
    let unsuitable = [
        ("stem", filter(0), "at least 1 pixel, found 0"),
        (
            "stem",
            Method::published_gradient_filter(0),
            "at least 1 pixel, found 0",
        ),
        (
            "blocks.1.side",
            Method::published_gradient_filter(2),
            "2 groups with 4 -> 4 channels",
        ),
    ];
    for (path, method, reason) in unsuitable {
        let built = Plan::builder().layer(path, method).build(&network);
        let applied = plan_with(path, method).apply(network.clone());
        for error in [built.unwrap_err(), applied.unwrap_err()] {
            assert!(
                matches!(&error, Error::Method { layer, .. } if layer == path),
                "{error}"
            );
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    // patch 1 is the exact gradient, which every layer can use
    let one = Plan::builder().layer("blocks.1.side", Method::published_gradient_filter(1));
    assert!(one.build(&network).is_ok());

    let error = conv(&Device::default()).with_method(filter(0)).unwrap_err();
    assert!(matches!(error, Error::Method { .. }), "{error}");
}

#[test]
fn a_failed_plan_does_not_disturb_the_next() {
    let network = network(&Device::default());
    Plan::builder()
        .layer("nowhere", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(
        Plan::builder()
            .layer("stem", filter(2))
            .build(&network)
            .is_ok()
    );
}

#[test]
fn freezing_the_rest_refuses_paths_without_parameters() {
    let device = Device::default().autodiff();
    for path in ["hea", "head.weights", "blocks.2", "heads"] {
        let error = Plan::default()
            .freeze_rest(network(&device), &[path])
            .unwrap_err();
        assert!(matches!(&error, Error::NoParameter { path: found } if found == path));
        assert!(error.to_string().contains(path), "{error}");
    }
    let elsewhere = plan_with("elsewhere", filter(2));
    let error = elsewhere.freeze_rest(network(&device), &[]).unwrap_err();
    assert!(matches!(error, Error::NoParameter { path } if path == "elsewhere"));
}
