//! Guards which layers cover a share of the importance.

use burn_frugal::plan::schedule::Importance;
use proptest::prelude::*;
use std::collections::BTreeMap;

use super::layers::importance;

#[test]
fn the_fewest_layers_cover_a_share() {
    let importance = importance([
        ("a", &[1.0, 1.0]),
        ("b", &[0.0]),
        ("c", &[4.0, 2.0]),
        ("d", &[2.0]),
    ]);
    assert!(importance.layers_covering(0.0).is_empty());
    assert_eq!(importance.layers_covering(0.5), ["c"]);
    assert_eq!(importance.layers_covering(0.6), ["c"]);
    assert_eq!(importance.layers_covering(0.61), ["c", "a"]);
    assert_eq!(importance.layers_covering(0.97), ["c", "a", "d"]);
    assert_eq!(importance.layers_covering(1.0), ["c", "a", "d"]);
}

#[test]
fn nothing_covers_no_importance() {
    assert!(importance([]).layers_covering(0.97).is_empty());
    let zero = importance([("a", &[0.0, 0.0]), ("b", &[])]);
    assert!(zero.layers_covering(0.97).is_empty());
}

#[test]
fn importances_are_found_by_path() {
    let importance = importance([("b", &[3.0]), ("a", &[1.0, 2.0])]);
    assert!(importance.layers().eq(["a", "b"]));
    assert_eq!(importance.of("a"), Some(&[1.0, 2.0][..]));
    assert_eq!(importance.of("c"), None);
}

proptest! {
    /// With whole numbers, sums are exact.
    #[test]
    fn one_layer_fewer_does_not_cover(
        sums in prop::collection::vec(0_u32..1_000, 1..8),
        share in 0.0..=1.0_f64,
    ) {
        let values = sums.iter().enumerate();
        let values: BTreeMap<_, _> = values
            .map(|(index, sum)| (index.to_string(), vec![f64::from(*sum)]))
            .collect();
        let importance = Importance::new(values.clone()).expect("importances");
        let covering = importance.layers_covering(share);

        let needed = share * f64::from(sums.iter().sum::<u32>());
        let covered = |paths: &[String]| paths.iter().map(|path| values[path][0]).sum::<f64>();
        prop_assert!(covered(&covering) >= needed);
        if let Some((_, fewer)) = covering.split_last() {
            prop_assert!(covered(fewer) < needed);
        }
        prop_assert!(covering.is_sorted_by(|left, right| values[left][0] >= values[right][0]));
        let rest = values.iter().filter(|(path, _)| !covering.contains(path));
        let smallest = covering.last().map_or(f64::INFINITY, |path| values[path][0]);
        for (_, rest) in rest {
            prop_assert!(rest[0] <= smallest);
        }
    }
}
