//! Guards what a schedule refuses, and what it says.

use burn_frugal::plan::schedule::{Amount, Importance, Schedule, ScheduleError, SparseLayer};

use super::layers::{importance, layer};

const VALUES: [f64; 4] = [1.0, 2.0, 3.0, 4.0];

fn values() -> Importance {
    importance([("a", &VALUES), ("b", &VALUES)])
}

/// That every kind of schedule refuses these layers, for the same reason.
fn assert_refused(
    layers: Vec<SparseLayer>,
    amount: Amount,
    expected: ScheduleError,
    message: &str,
) {
    let importance = values();
    let schedules = [
        Schedule::fixed(layers.clone(), &importance, amount),
        Schedule::cyclic(layers.clone(), &importance, amount),
        Schedule::resampled(layers.clone(), amount, 1, 0),
        Schedule::weighted(layers, &importance, amount, 1, 0),
    ];
    for schedule in schedules {
        assert_eq!(schedule, Err(expected.clone()));
    }
    assert_eq!(expected.to_string(), message);
}

/// That every schedule that uses importances refuses these, for the same reason.
fn assert_importance_refused(importance: &Importance, expected: ScheduleError, message: &str) {
    let layers = vec![layer("a", 4, 9, 1), layer("b", 4, 9, 1)];
    let amount = Amount::PerLayer;
    let schedules = [
        Schedule::fixed(layers.clone(), importance, amount),
        Schedule::cyclic(layers.clone(), importance, amount),
        Schedule::weighted(layers, importance, amount, 1, 0),
    ];
    for schedule in schedules {
        assert_eq!(schedule, Err(expected.clone()));
    }
    assert_eq!(expected.to_string(), message);
}

#[test]
fn no_layers() {
    for amount in [Amount::PerLayer, Amount::TotalWeights(100)] {
        let message = "a schedule has at least 1 layer, found none";
        assert_refused(Vec::new(), amount, ScheduleError::NoLayers, message);
    }
}

#[test]
fn two_layers_of_one_path() {
    let path = "a".to_string();
    assert_refused(
        vec![
            layer("a", 4, 9, 1),
            layer("b", 4, 9, 1),
            layer("a", 4, 9, 1),
        ],
        Amount::PerLayer,
        ScheduleError::DuplicateLayer { path },
        "the layer `a` is in the schedule twice",
    );
}

#[test]
fn a_layer_that_trains_none_of_its_channels_or_more_than_it_has() {
    for (selected, channels) in [(0, 4), (5, 4), (0, 0)] {
        let expected = ScheduleError::Selected {
            path: "b".to_string(),
            selected,
            channels,
        };
        let message = format!(
            "layer `b`: from 1 to {channels} input channels can be trained at a time, found \
             {selected}"
        );
        for amount in [Amount::PerLayer, Amount::TotalWeights(100)] {
            let layers = vec![layer("a", 4, 9, 1), layer("b", channels, 9, selected)];
            assert_refused(layers, amount, expected.clone(), &message);
        }
    }
}

#[test]
fn a_total_that_no_channel_fits() {
    let (found, smallest) = (7, 8);
    assert_refused(
        vec![layer("a", 4, 9, 1), layer("b", 4, 8, 1)],
        Amount::TotalWeights(found),
        ScheduleError::TotalTooSmall { found, smallest },
        "a total of 7 weights, but the smallest channel has 8",
    );
}

#[test]
fn a_cycle_that_cannot_visit_a_channel() {
    let layers = vec![layer("a", 4, 8, 1), layer("b", 4, 9, 1)];
    let amount = Amount::TotalWeights(8);
    let expected = ScheduleError::ChannelTooLarge {
        path: "b".to_string(),
        weights: 9,
        total: 8,
    };
    let cyclic = Schedule::cyclic(layers.clone(), &values(), amount);
    assert_eq!(cyclic, Err(expected.clone()));
    assert_eq!(
        expected.to_string(),
        "layer `b`: a channel has 9 weights, more than the total of 8, so a cycle cannot visit it"
    );
    // The others leave that channel out.
    Schedule::fixed(layers.clone(), &values(), amount).expect("a schedule");
    Schedule::resampled(layers.clone(), amount, 1, 0).expect("a schedule");
    Schedule::weighted(layers, &values(), amount, 1, 0).expect("a schedule");
}

#[test]
fn a_layer_without_importance() {
    let path = "b".to_string();
    assert_importance_refused(
        &importance([("a", &VALUES), ("c", &VALUES)]),
        ScheduleError::NoImportance { path },
        "layer `b`: no importance of its channels",
    );
}

#[test]
fn the_importance_of_another_number_of_channels() {
    for found in [0, 3, 5] {
        assert_importance_refused(
            &importance([("a", &VALUES), ("b", &[1.0; 5][..found])]),
            ScheduleError::ImportanceLength {
                path: "b".to_string(),
                expected: 4,
                found,
            },
            &format!("layer `b`: 4 input channels, but the importance of {found}"),
        );
    }
}

#[test]
fn an_importance_that_is_negative_or_not_finite() {
    for (found, text) in [
        (-0.5, "-0.5"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        let layers = [("a", vec![1.0, 2.0]), ("b", vec![1.0, found])];
        let layers = layers.map(|(path, values)| (path.to_string(), values));
        let error = Importance::new(layers.into()).expect_err("an importance");
        assert_eq!(
            error.to_string(),
            format!("layer `b`, channel 1: an importance is finite and at least 0, found {text}")
        );
        assert!(matches!(
            error,
            ScheduleError::ImportanceValue { path, channel: 1, .. } if path == "b"
        ));
    }
}

#[test]
fn a_period_without_steps() {
    let layers = vec![layer("a", 4, 9, 1)];
    let amount = Amount::PerLayer;
    for schedule in [
        Schedule::resampled(layers.clone(), amount, 0, 0),
        Schedule::weighted(layers.clone(), &values(), amount, 0, 0),
    ] {
        assert_eq!(schedule, Err(ScheduleError::Period));
    }
    let message = "a period is at least 1 step, found 0";
    assert_eq!(ScheduleError::Period.to_string(), message);
}
