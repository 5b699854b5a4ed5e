//! Guards saved profiles: their form, that they survive JSON and files, and what is refused.

use burn_frugal::methods::ActivationShortcut;
use burn_frugal::plan::{LayerProfile, Profile};
use burn_frugal::{Error, Method, PerMode};
use burn_frugal_tests::{assert_contains, devices};
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::{images, measured, network, profile};
use crate::user_model::plan_with;

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
    fn a_profile_survives_json(mut layers in prop::collection::vec(any_layer(), 0..4)) {
        for (index, layer) in layers.iter_mut().enumerate() {
            // each layer once
            layer.path.insert_str(0, &index.to_string());
        }
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

/// A plan would have one method for the two.
#[test]
fn a_profile_with_a_layer_twice_is_refused() {
    let layer = serde_json::json!({ "path": "first", "gradient_norm": 1.0, "candidates": [] });
    let json = serde_json::json!({ "version": 1, "layers": [layer, layer] });
    let error = Profile::from_json(&json.to_string()).expect_err("twice");
    assert!(matches!(error, Error::NotADocument { .. }), "{error}");
    assert_contains(&error.to_string(), &["`first`", "twice"]);
}
