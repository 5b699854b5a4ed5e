use proptest::prelude::*;

use super::{Alternative, Choice, Infeasible, least_cost, least_loss};

type Layers = Vec<Vec<Alternative>>;

fn layers(values: &[&[(f64, f64)]]) -> Layers {
    let alternative = |&(cost, loss): &(f64, f64)| Alternative { cost, loss };
    (values.iter())
        .map(|layer| layer.iter().map(alternative).collect())
        .collect()
}

fn swapped(layers: &Layers) -> Layers {
    let swap = |option: &Alternative| Alternative {
        cost: option.loss,
        loss: option.cost,
    };
    (layers.iter())
        .map(|layer| layer.iter().map(swap).collect())
        .collect()
}

/// Cost and loss of a choice, in the order of the layers.
fn sums(layers: &Layers, options: &[usize]) -> (f64, f64) {
    assert_eq!(layers.len(), options.len());
    (layers.iter().zip(options)).fold((0.0, 0.0), |(cost, loss), (layer, &option)| {
        (cost + layer[option].cost, loss + layer[option].loss)
    })
}

/// Loss and cost of the best of all choices.
fn brute_force(layers: &Layers, budget: f64) -> Option<(f64, f64)> {
    let mut all = vec![(0.0, 0.0)];
    for layer in layers {
        all = (all.iter())
            .flat_map(|(loss, cost)| layer.iter().map(move |o| (loss + o.loss, cost + o.cost)))
            .collect();
    }
    (all.into_iter().filter(|(_, cost)| *cost <= budget)).min_by(|a, b| a.partial_cmp(b).unwrap())
}

/// As [`brute_force`] by the whole Pareto front, without bounds; costs are not negative.
fn pareto_merge(layers: &Layers, budget: f64) -> Option<(f64, f64)> {
    let mut front = vec![(0.0, 0.0)];
    for layer in layers {
        let mut merged: Vec<(f64, f64)> = (front.iter())
            .flat_map(|(cost, loss)| layer.iter().map(move |o| (cost + o.cost, loss + o.loss)))
            .filter(|(cost, _)| *cost <= budget)
            .collect();
        merged.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let mut least = f64::INFINITY;
        merged.retain(|(_, loss)| {
            *loss < least && {
                least = *loss;
                true
            }
        });
        front = merged;
    }
    front.last().map(|&(cost, loss)| (loss, cost))
}

/// Both functions find `expected`, to the last bit.
fn check(layers: &Layers, budget: f64, expected: Option<(f64, f64)>) {
    let found = least_loss(layers, budget);
    let converse = least_cost(&swapped(layers), budget);
    match (&found, &converse) {
        (Ok(found), Ok(converse)) => {
            assert_eq!(Some((found.loss, found.cost)), expected);
            assert_eq!(sums(layers, &found.options), (found.cost, found.loss));
            assert_eq!((converse.cost, converse.loss), (found.loss, found.cost));
            assert_eq!(converse.options, found.options);
        }
        (Err(Infeasible { smallest }), Err(converse)) => {
            assert_eq!(expected, None);
            assert!(*smallest > budget);
            assert_eq!(smallest, &converse.smallest);
            assert_eq!(least_loss(layers, *smallest).unwrap().cost, *smallest);
        }
        _ => panic!("{found:?} but {converse:?}"),
    }
}

/// Up to `count` layers of up to `options` options, multiples of `unit` up to 12 of them: with ties,
/// and where the unit is no binary fraction, with sums that depend on their order.
fn problem(count: usize, options: usize, unit: f64) -> impl Strategy<Value = Layers> {
    let alternative = (0..=12u8, 0..=12u8).prop_map(move |(cost, loss)| Alternative {
        cost: unit * f64::from(cost),
        loss: unit * f64::from(loss),
    });
    let layer = prop::collection::vec(alternative, 1..=options);
    prop::collection::vec(layer, 0..=count)
}

/// Layers whose losses fall with the cost, in numbers of no particular form.
fn falling(count: usize, options: usize) -> impl Strategy<Value = Layers> {
    let numbers = || prop::collection::vec(0.0..1.0, options);
    let layer = (numbers(), numbers()).prop_map(|(mut costs, mut losses)| {
        costs.sort_by(f64::total_cmp);
        losses.sort_by(|a, b| b.total_cmp(a));
        let alternative = |(cost, loss)| Alternative { cost, loss };
        costs.into_iter().zip(losses).map(alternative).collect()
    });
    prop::collection::vec(layer, 1..=count)
}

/// A budget between nothing and more than enough.
fn budget(layers: &Layers, share: f64) -> f64 {
    let largest = |layer: &Vec<Alternative>| layer.iter().map(|o| o.cost).fold(0.0, f64::max);
    share * layers.iter().map(largest).sum::<f64>()
}

proptest! {
    #[test]
    fn the_best_of_all_choices(layers in problem(5, 5, 1.0), budget in -1..=61i8) {
        let budget = f64::from(budget);
        check(&layers, budget, brute_force(&layers, budget));
    }

    #[test]
    fn negative_numbers(layers in problem(4, 4, 1.0), budget in -50..=10i8, shift in 1..=12u8) {
        let mut layers = layers;
        for option in layers.iter_mut().flatten() {
            option.cost -= f64::from(shift);
            option.loss -= f64::from(shift);
        }
        let budget = f64::from(budget);
        check(&layers, budget, brute_force(&layers, budget));
    }

    #[test]
    fn as_without_bounds(layers in problem(25, 8, 1.0), share in 0.0..=1.1) {
        let budget = budget(&layers, share).floor();
        check(&layers, budget, pareto_merge(&layers, budget));
    }

    #[test]
    fn as_without_bounds_in_decimals(layers in problem(12, 6, 0.1), share in 0.0..=1.1) {
        let budget = budget(&layers, share);
        check(&layers, budget, pareto_merge(&layers, budget));
    }

    #[test]
    fn as_without_bounds_where_losses_fall(layers in falling(12, 6), share in 0.0..=1.1) {
        let budget = budget(&layers, share);
        check(&layers, budget, pareto_merge(&layers, budget));
    }

    #[test]
    fn what_a_choice_costs_is_enough_for_it(
        layers in problem(12, 6, 0.1),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 12),
    ) {
        let options: Vec<usize> = (layers.iter().zip(&picks))
            .map(|(layer, pick)| pick.index(layer.len()))
            .collect();
        let (cost, _) = sums(&layers, &options);
        check(&layers, cost, pareto_merge(&layers, cost));
    }
}

#[test]
fn plans_of_the_reference() {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/reference/cases");
    let folder = std::env::var("FRUGAL_CASES").unwrap_or_else(|_| committed.to_string());
    let text = std::fs::read_to_string(folder + "/plans.json").expect("the plans are there");
    let plans: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let plans = plans.as_array().expect("a list");
    assert!(!plans.is_empty());
    let numbers = |value: &serde_json::Value| -> Vec<Vec<f64>> {
        serde_json::from_value(value.clone()).expect("lists of numbers")
    };
    for plan in plans {
        let layers: Layers = (numbers(&plan["cost"]).iter().zip(numbers(&plan["loss"])))
            .map(|(costs, losses)| {
                let alternative = |(&cost, loss)| Alternative { cost, loss };
                costs.iter().zip(losses).map(alternative).collect()
            })
            .collect();
        let budget = plan["budget"].as_f64().expect("a number");
        let found = least_loss(&layers, budget).ok();
        assert_eq!(found.is_none(), plan["expect"].is_null(), "{plan}");
        if let Some(Choice { cost, loss, .. }) = found {
            let expected = |part: &str| plan["expect"][part].as_f64().expect("a number");
            assert!((cost - expected("cost")).abs() < 1e-9, "{cost}, {plan}");
            assert!((loss - expected("loss")).abs() < 1e-9, "{loss}, {plan}");
        }
    }
}

#[test]
fn no_layer() {
    let empty = Choice {
        options: vec![],
        cost: 0.0,
        loss: 0.0,
    };
    assert_eq!(least_loss(&[], 0.0), Ok(empty.clone()));
    assert_eq!(least_cost(&[], 0.0), Ok(empty));
    assert_eq!(least_loss(&[], -1.0), Err(Infeasible { smallest: 0.0 }));
}

#[test]
fn without_a_limit() {
    let layers = layers(&[&[(1.0, 3.0), (2.0, 1.0)], &[(5.0, 0.0), (4.0, 0.0)]]);
    let choice = least_loss(&layers, f64::INFINITY).expect("everything is affordable");
    assert_eq!(choice.options, [1, 1]);
    assert_eq!(least_cost(&layers, f64::INFINITY).unwrap().options, [0, 1]);
}

#[test]
#[should_panic(expected = "no option")]
fn a_layer_without_options() {
    let _ = least_loss(&layers(&[&[(1.0, 1.0)], &[]]), 1.0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "not finite")]
fn an_infinite_loss() {
    let _ = least_loss(&layers(&[&[(1.0, f64::INFINITY)]]), 1.0);
}
