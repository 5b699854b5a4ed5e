//! Guards the ratio of the method: its share of the channels, which ones are refused, and its JSON.

use burn::tensor::{DType, Device};
use burn_frugal::methods::Unsuitable;
use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};
use burn_frugal_tests::sparse_network::{Network, linear};
use burn_frugal_tests::{assert_contains, devices, random};
use proptest::prelude::{prop_assert_eq, proptest};

use crate::user_model::plan_with;

/// The ratio rounded to the nearest, at least 1.
#[test]
fn a_ratio_is_that_share_of_the_channels() {
    let device = devices().remove(0).1.autodiff();
    for (ratio, channels, expected) in [
        (0.5, 6, 3),
        (0.1, 6, 1),
        (1e-9, 6, 1),
        (0.3, 6, 2),
        (0.74, 6, 4),
        (0.76, 6, 5),
        (1.0, 6, 6),
        (0.5, 1, 1),
    ] {
        let linear = linear(channels, 2, &device, DType::F32);
        let linear = linear
            .with_method(Method::channel_sparse(ratio))
            .expect("suitable");
        linear.forward(random(1, [2, channels], &device));
        let found = linear.method.channels().map(|channels| channels.len());
        assert_eq!(found, Some(expected), "{ratio} of {channels}");
    }
}

#[test]
fn a_ratio_that_is_no_share_is_an_error_that_names_the_layer() {
    let network = Network::new(&Device::default());
    let wrong = [0.0, -0.0, -0.5, 1.0 + 1e-9, 2.0, f64::NAN, f64::INFINITY];
    for ratio in wrong {
        let method = Method::channel_sparse(ratio);
        let layers = Plan::layers(&network);
        for layer in &layers {
            let error = method.check(&layer.shape).unwrap_err();
            assert!(matches!(error, Unsuitable::Ratio { .. }), "{error}");
            let built = Plan::builder().layer(&layer.path, method).build(&network);
            let error = built.unwrap_err();
            assert!(matches!(&error, Error::Method { layer: found, .. } if *found == layer.path));
            assert_contains(
                &error.to_string(),
                &[&layer.path, &ratio.to_string(), "above 0"],
            );
        }
        if ratio.is_finite() {
            let error = plan_with("blocks.1", method)
                .apply(network.clone())
                .unwrap_err();
            assert!(matches!(&error, Error::Method { layer, .. } if layer == "blocks.1"));
        }
        let error = network.head.clone().with_method(method).unwrap_err();
        assert_contains(&error.to_string(), &["Linear", &ratio.to_string()]);
    }
}

/// Saved plans of released versions have to stay readable: this is their form.
#[test]
fn the_json_form_of_the_method_is_stable() {
    let text = r#"{
  "version": 1,
  "layers": {
    "head": {
      "channel_sparse": {
        "ratio": 0.3
      }
    }
  }
}"#;
    let plan = Plan::from_json(text).expect("a plan");
    assert_eq!(plan.methods()["head"], Method::channel_sparse(0.3));
    assert_eq!(plan.to_json(), text);
    assert_eq!(plan.to_string(), "head  channel-sparse, ratio 0.3");

    for wrong in [
        r#"{"ratio": "half"}"#,
        r#"{"ratio": null}"#,
        r#"{"ratio": 0.3, "seed": 1}"#,
        "{}",
        "0.3",
    ] {
        let text = format!(r#"{{"version":1,"layers":{{"a":{{"channel_sparse":{wrong}}}}}}}"#);
        let error = Plan::from_json(&text).expect_err(wrong);
        assert_contains(&error.to_string(), &["the text is not a plan"]);
    }
}

proptest! {
    /// A ratio is stored to the last bit: rounded, it could train another number of channels.
    #[test]
    fn a_ratio_survives_json_to_the_last_bit(ratio in 0.0..1.0_f64) {
        let plan = plan_with("a", Method::channel_sparse(ratio));
        let again = Plan::from_json(&plan.to_json()).expect("what was written");
        prop_assert_eq!(again.methods()["a"], Method::channel_sparse(ratio));
    }
}
