//! Guards the rules that say what is measured: which layers they reach, and what they refuse.

use burn_frugal::plan::{Candidate, Candidates, LayerProfile, Plan, Profile};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{assert_contains, devices};

use super::{images, network};

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
