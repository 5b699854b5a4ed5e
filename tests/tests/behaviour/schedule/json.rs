//! Guards saved schedules: they go on as if they had not stopped, and what does not fit together is
//! refused when it is loaded.

use burn_frugal::plan::schedule::{Amount, Importance, Schedule};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::layers::{Network, any_case, importance, layer, schedules, selections};

proptest! {
    #[test]
    fn a_loaded_schedule_goes_on(
        (network, amount) in any_case(),
        seed in any::<u64>(),
        steps in 0..20,
    ) {
        for mut schedule in schedules(&network, amount, seed) {
            for _ in 0..steps {
                schedule.advance();
            }
            let text = serde_json::to_string(&schedule).expect("JSON");
            let loaded: Schedule = serde_json::from_str(&text).expect("what was written");
            prop_assert_eq!(selections(&loaded, 20), selections(&schedule, 20));
            prop_assert_eq!(loaded.steps(), schedule.steps());
            prop_assert_eq!(loaded, schedule);
        }
    }

    #[test]
    fn importances_survive_json_to_the_last_bit((network, _) in any_case()) {
        let text = serde_json::to_string(&network.importance).expect("JSON");
        let loaded: Importance = serde_json::from_str(&text).expect("what was written");
        prop_assert_eq!(loaded, network.importance);
    }
}

/// One of each kind of schedule, as JSON.
fn saved(amount: Amount) -> [Value; 4] {
    let network = Network {
        layers: vec![layer("a", 2, 9, 1), layer("b", 1, 4, 1)],
        importance: importance([("a", &[1.0, 2.0]), ("b", &[0.5])]),
    };
    let saved = schedules(&network, amount, 7).into_iter();
    let saved: Vec<_> = saved
        .map(|schedule| serde_json::to_value(schedule).expect("JSON"))
        .collect();
    saved.try_into().expect("four kinds")
}

fn load(value: &Value) -> Result<Schedule, serde_json::Error> {
    serde_json::from_value(value.clone())
}

/// Saved schedules of released versions have to stay readable: this is their form.
#[test]
fn the_json_form_is_stable() {
    let budget = json!({
        "layers": [
            { "path": "a", "channels": 2, "weights_per_channel": 9, "selected": 1 },
            { "path": "b", "channels": 1, "weights_per_channel": 4, "selected": 1 },
        ],
        "amount": "per_layer",
    });
    let importance = json!({ "a": [1.0, 2.0], "b": [0.5] });
    let scored = json!({ "budget": budget, "importance": importance });
    let draws = json!({ "period": 3, "seed": 7, "steps": 0 });
    assert_eq!(
        saved(Amount::PerLayer),
        [
            json!({ "fixed": { "scored": scored, "steps": 0 } }),
            json!({ "cyclic": { "scored": scored, "steps": 0 } }),
            json!({ "resampled": { "budget": budget, "draws": draws } }),
            json!({ "weighted": { "scored": scored, "draws": draws } }),
        ]
    );
    let [fixed, ..] = saved(Amount::TotalWeights(9));
    assert_eq!(
        fixed["fixed"]["scored"]["budget"]["amount"],
        json!({ "total_weights": 9 })
    );
}

/// That the saved schedule with another value at this place is refused.
fn assert_refused(saved: &Value, place: &str, value: Value, message: &str) {
    let mut changed = saved.clone();
    *changed.pointer_mut(place).expect("a place") = value;
    let error = load(&changed).expect_err("a schedule that does not fit together");
    let error = error.to_string();
    assert!(error.contains(message), "{place}: {error}");
}

#[test]
fn schedules_that_do_not_fit_together_are_refused() {
    let [fixed, cyclic, resampled, weighted] = saved(Amount::PerLayer);
    for (saved, budget) in [
        (&fixed, "/fixed/scored/budget"),
        (&cyclic, "/cyclic/scored/budget"),
        (&resampled, "/resampled/budget"),
        (&weighted, "/weighted/scored/budget"),
    ] {
        let at = |rest| format!("{budget}{rest}");
        assert_refused(saved, &at("/layers"), json!([]), "at least 1 layer");
        assert_refused(saved, &at("/layers/1/path"), json!("a"), "twice");
        assert_refused(saved, &at("/layers/1/selected"), json!(2), "from 1 to 1");
        let total = json!({ "total_weights": 3 });
        assert_refused(saved, &at("/amount"), total, "the smallest channel has 4");
    }
    for (saved, scored) in [
        (&fixed, "/fixed/scored"),
        (&cyclic, "/cyclic/scored"),
        (&weighted, "/weighted/scored"),
    ] {
        let at = |rest| format!("{scored}{rest}");
        let channels = at("/budget/layers/0/channels");
        assert_refused(saved, &channels, json!(3), "but the importance of 2");
        assert_refused(saved, &at("/importance"), json!({}), "no importance");
        assert_refused(saved, &at("/importance/a/0"), json!(-1.0), "found -1");
    }
    let total = json!({ "total_weights": 8 });
    let amount = "/cyclic/scored/budget/amount";
    assert_refused(&cyclic, amount, total, "more than the total of 8");
    for (saved, period) in [
        (&resampled, "/resampled/draws/period"),
        (&weighted, "/weighted/draws/period"),
    ] {
        assert_refused(saved, period, json!(0), "at least 1 step");
    }
}

/// Every object of a saved schedule but the importances, whose names are paths.
#[test]
fn unknown_fields_are_refused() {
    for (saved, objects) in saved(Amount::PerLayer).iter().zip([
        ["/fixed", "/fixed/scored", "/fixed/scored/budget"],
        ["/cyclic", "/cyclic/scored", "/cyclic/scored/budget"],
        ["/resampled", "/resampled/budget", "/resampled/draws"],
        ["/weighted", "/weighted/scored", "/weighted/draws"],
    ]) {
        for object in objects {
            let mut changed = saved.clone();
            changed.pointer_mut(object).expect("a place")["colour"] = json!("red");
            let error = load(&changed).expect_err("an unknown field").to_string();
            assert!(
                error.contains("unknown field `colour`"),
                "{object}: {error}"
            );
        }
    }
    let mut changed = saved(Amount::PerLayer)[2].clone();
    changed["resampled"]["budget"]["layers"][0]["colour"] = json!("red");
    load(&changed).expect_err("an unknown field");
}

#[test]
fn the_last_step_that_can_be_counted_does_not_panic() {
    for (mut saved, steps) in saved(Amount::PerLayer).into_iter().zip([
        "/fixed/steps",
        "/cyclic/steps",
        "/resampled/draws/steps",
        "/weighted/draws/steps",
    ]) {
        *saved.pointer_mut(steps).expect("a place") = json!(u64::MAX);
        let mut schedule = load(&saved).expect("a schedule");
        schedule.advance();
        assert_eq!(schedule.steps(), u64::MAX);
        assert_eq!(schedule.selection()["a"].len(), 1);
    }
}
