//! Guards plans as text: their JSON form, which stays readable, what is refused, and their display.

use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};
use proptest::prelude::*;

use crate::user_model::{expected, filter, plan_with};

fn any_method() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::Exact),
        any::<usize>().prop_map(Method::gradient_filter),
        any::<usize>().prop_map(Method::published_gradient_filter),
        any::<u8>().prop_map(Method::quantized),
    ]
}

proptest! {
    #[test]
    fn a_plan_survives_json(layers in prop::collection::btree_map(".*", any_method(), 0..6)) {
        let document = serde_json::json!({ "version": 1, "layers": layers });
        let plan = Plan::from_json(&document.to_string()).expect("a plan");
        prop_assert_eq!(plan.methods(), &layers);
        let again = Plan::from_json(&plan.to_json()).expect("what was written");
        prop_assert_eq!(again, plan);
    }

    #[test]
    fn text_is_a_plan_or_an_error(text in ".*") {
        let error = Plan::from_json(&text).expect_err("random text is no plan");
        prop_assert!(error.to_string().contains("the text is not a plan"), "{}", error);
    }
}

/// Plans of released versions have to stay readable: this is the form of version 1.
#[test]
fn the_json_form_is_stable() {
    let text = r#"{
  "version": 1,
  "layers": {
    "a": "exact",
    "b": {
      "gradient_filter": {
        "patch": 2,
        "scaling": "mass_preserving"
      }
    },
    "c": {
      "gradient_filter": {
        "patch": 4,
        "scaling": "published"
      }
    }
  }
}"#;
    let plan = Plan::from_json(text).expect("a plan");
    let published = Method::published_gradient_filter(4);
    let methods = expected([("a", Method::Exact), ("b", filter(2)), ("c", published)]);
    assert_eq!(plan.methods(), &methods);
    assert_eq!(plan.to_json(), text);

    let short = r#"{"version":1,"layers":{"b":{"gradient_filter":{"patch":2}}}}"#;
    assert_eq!(
        Plan::from_json(short).expect("a plan").methods()["b"],
        filter(2)
    );
}

#[test]
fn a_plan_is_displayed_a_layer_a_line() {
    let text = r#"{"version":1,"layers":{"blocks.10.main":"exact","stem":{"gradient_filter":{"patch":2}}}}"#;
    let plan = Plan::from_json(text).expect("a plan");
    let lines = "blocks.10.main  exact\nstem            gradient filter, patch 2";
    assert_eq!(plan.to_string(), lines);
    assert_eq!(Plan::default().to_string(), "every layer exact");
    let published = Method::published_gradient_filter(3).to_string();
    assert_eq!(published, "gradient filter, patch 3, published scaling");
}

#[test]
fn text_that_is_no_plan_is_refused() {
    let layer = |method: &str| format!(r#"{{"version":1,"layers":{{"a":{method}}}}}"#);
    let filter = |fields: &str| layer(&format!(r#"{{"gradient_filter":{fields}}}"#));
    let texts = [
        String::new(),
        "null".into(),
        "[]".into(),
        "[1]".into(),
        "3".into(),
        r#""exact""#.into(),
        "{}".into(),
        r#"{"version":1}"#.into(),
        r#"{"layers":{}}"#.into(),
        r#"{"version":"1","layers":{}}"#.into(),
        r#"{"version":-1,"layers":{}}"#.into(),
        r#"{"version":1.5,"layers":{}}"#.into(),
        r#"{"version":1,"layers":[]}"#.into(),
        r#"{"version":1,"layers":{},"models":{}}"#.into(),
        r#"{"version":1,"layers":{}} {}"#.into(),
        layer("2"),
        layer("null"),
        layer(r#""Exact""#),
        layer(r#""gradient_filter""#),
        layer(r#"{"fourier_filter":{"patch":2}}"#),
        filter("{}"),
        filter(r#"{"patch":"2"}"#),
        filter(r#"{"patch":-2}"#),
        filter(r#"{"patch":2.5}"#),
        filter(r#"{"patch":1e30}"#),
        filter(r#"{"patch":18446744073709551616}"#),
        filter(r#"{"patch":2,"scaling":"loud"}"#),
        filter(r#"{"patch":2,"skaling":"published"}"#),
    ];
    for text in texts {
        match Plan::from_json(&text) {
            Err(error @ Error::NotADocument { .. }) => {
                assert!(
                    error.to_string().contains("the text is not a plan"),
                    "{error}"
                );
            }
            other => panic!("`{text}` gives {other:?}"),
        }
    }
}

#[test]
fn a_truncated_plan_is_refused() {
    let text = plan_with("blocks.1.main", Method::published_gradient_filter(12)).to_json();
    for length in 0..text.len() {
        let error = Plan::from_json(&text[..length]).unwrap_err();
        assert!(
            matches!(error, Error::NotADocument { .. }),
            "{length} bytes: {error}"
        );
    }
}

#[test]
fn a_plan_of_a_later_version_is_refused_whatever_it_holds() {
    for version in [2, u64::MAX] {
        let text = format!(r#"{{"version":{version},"stages":[["a", 3]]}}"#);
        let error = Plan::from_json(&text).unwrap_err();
        let expected = matches!(&error, Error::NewerDocument { found, .. } if *found == version);
        assert!(expected, "{error}");
        assert!(error.to_string().contains("reads up to 1"), "{error}");
    }
}
