//! Guards what the activation shortcut does when the input's sizes or its own method change: the
//! modes whose size changed start anew, all others go on from their last factors.

use burn::tensor::{Device, Tensor};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::{Plan, TrainingState};
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{assert_close, autodiff_devices, random, values};

use crate::hosvd::Plain;
use crate::shortcut::{Config, Layer, forms, per_mode, settings};
use crate::user_model::{network, plan_with};

/// A layer, ranks, and two shapes of its input.
struct Change {
    name: &'static str,
    config: Config,
    ranks: &'static [usize],
    shapes: [&'static [usize]; 2],
}

fn changes() -> Vec<Change> {
    let conv = |name, other| Change {
        name,
        config: Config::Conv(same([4, 6], 1)),
        ranks: &[2, 2, 3, 4],
        shapes: [&[5, 4, 7, 9], other],
    };
    let linear = |name, ranks, shapes| Change {
        name,
        config: Config::Linear([6, 5]),
        ranks,
        shapes,
    };
    vec![
        conv("a smaller batch", &[3, 4, 7, 9]),
        conv("a batch as small as its rank", &[2, 4, 7, 9]),
        conv("a batch of one", &[1, 4, 7, 9]),
        conv("a larger batch", &[8, 4, 7, 9]),
        conv("another height", &[5, 4, 6, 9]),
        conv("another width", &[5, 4, 7, 12]),
        conv("another resolution", &[5, 4, 10, 8]),
        conv("a resolution as small as its ranks", &[5, 4, 3, 4]),
        conv("another everything", &[3, 4, 5, 8]),
        linear("fewer tokens", &[2, 3, 2], [&[4, 7, 6], &[4, 5, 6]]),
        linear(
            "a smaller batch of tokens",
            &[2, 3, 2],
            [&[4, 7, 6], &[3, 7, 6]],
        ),
        linear("fewer rows", &[3, 4], [&[9, 6], &[7, 6]]),
        linear(
            "fewer patches",
            &[1, 2, 3, 4],
            [&[2, 3, 5, 6], &[2, 4, 5, 6]],
        ),
    ]
}

/// The layer's factors of these modes alone, as a state to start from.
fn state_of(layer: &Layer, modes: impl Fn(usize) -> bool) -> TrainingState {
    let modes = (0..PerMode::MOST).filter(|&mode| modes(mode));
    modes.fold(TrainingState::default(), |state, mode| {
        match layer.slot().factor(mode) {
            Some(factor) => state.with_factor("", mode, factor.into_data()),
            None => state,
        }
    })
}

/// Calls `check` for every change, setting and form with a layer that took some steps on the first
/// shape.
fn for_each_change(check: impl Fn(&str, &Change, f64, Layer)) {
    for setting in settings() {
        for change in changes() {
            let layer = Layer::new(&change.config, &setting);
            for form in forms(change.ranks) {
                let layer = layer.with(form);
                for step in 0..2 {
                    layer.step(&Plain::random(step, change.shapes[0]));
                }
                let name = format!("{}, {:?} ({})", change.name, form.truncation, setting.name);
                check(&name, &change, setting.tolerance, layer);
            }
        }
    }
}

#[test]
fn a_mode_whose_size_changes_starts_anew_and_the_others_go_on() {
    for_each_change(|name, change, tolerance, layer| {
        let [before, after] = change.shapes;
        let kept = |mode: usize| mode < before.len() && before[mode] == after[mode];
        let fresh = layer.with(Method::Exact).with(layer.slot().method());
        let expected = fresh.clone().restored(&state_of(&layer, kept));
        let input = Plain::random(9, after);
        let gradients = [&layer, &expected].map(|layer| layer.step(&input));
        assert_eq!(gradients[0], gradients[1], "{name}");
        assert_eq!(layer.factors(), expected.factors(), "{name}");

        let reconstructed = layer.exact(&layer.reconstruction(&input));
        assert_close(name, &gradients[0], &reconstructed, tolerance);

        fresh.step(&input);
        let (found, anew) = (layer.factors(), fresh.factors());
        let dims = layer.factor_dims();
        let mut went_on = 0;
        for mode in 0..before.len() {
            let rank = change.ranks[mode];
            let compressed = (rank < after[mode]).then_some([after[mode], rank]);
            assert_eq!(dims[mode], compressed, "{name}, mode {mode}");
            if compressed.is_some() && kept(mode) {
                went_on += 1;
                assert_ne!(found[mode], anew[mode], "{name}, mode {mode} went on");
            }
        }
        assert!(went_on > 0, "{name}: nothing to guard");
    });
}

/// In the published form no mode sees another: one that starts anew is that of a new layer.
#[test]
fn a_new_start_is_that_of_a_new_layer() {
    for_each_change(|name, change, _, layer| {
        let [before, after] = change.shapes;
        let Method::ActivationShortcut(form) = layer.slot().method() else {
            unreachable!("a shortcut")
        };
        if form == form.sequential() {
            return;
        }
        let fresh = layer.with(Method::Exact).with(form);
        let input = Plain::random(9, after);
        layer.step(&input);
        fresh.step(&input);
        let (found, anew) = (layer.factors(), fresh.factors());
        for mode in (0..before.len()).filter(|&mode| before[mode] != after[mode]) {
            assert_eq!(found[mode], anew[mode], "{name}, mode {mode}");
        }
    });
}

#[test]
fn coming_back_to_the_first_size_works() {
    for_each_change(|name, change, tolerance, layer| {
        let [first, other] = change.shapes;
        layer.step(&Plain::random(3, other));
        let kept = |mode: usize| mode < first.len() && first[mode] == other[mode];
        let fresh = layer.with(Method::Exact).with(layer.slot().method());
        let expected = fresh.restored(&state_of(&layer, kept));
        for step in 4..6 {
            let input = Plain::random(step, first);
            let found = layer.step(&input);
            assert_eq!(found, expected.step(&input), "{name}, step {step}");
            if step == 4 {
                let reconstructed = layer.exact(&layer.reconstruction(&input));
                assert_close(name, &found, &reconstructed, tolerance);
            }
        }
        assert_eq!(layer.factors(), expected.factors(), "{name}");
    });
}

#[test]
fn inputs_without_elements_in_between_do_no_harm() {
    for_each_change(|name, change, tolerance, layer| {
        let [shape, _] = change.shapes;
        let without = |mode: usize| {
            let mut empty = shape.to_vec();
            empty[mode] = 0;
            empty
        };
        // no images or sentences; no tokens
        let empty = if shape.len() == 3 { 0..2 } else { 0..1 };
        for empty in empty.map(without) {
            let before = layer.factors();
            let gradient = layer.step(&Plain::filled(&empty, 0.0));
            assert!(gradient.iter().all(|&value| value == 0.0), "{name}");
            let after = layer.factors();
            for mode in (0..shape.len()).filter(|&mode| empty[mode] == shape[mode]) {
                assert_eq!(after[mode], before[mode], "{name}, mode {mode}");
            }
        }
        let input = Plain::random(9, shape);
        let found = layer.step(&input);
        let reconstructed = layer.exact(&layer.reconstruction(&input));
        assert_close(name, &found, &reconstructed, tolerance);
    });
}

/// A first step without images leaves a layer as it was.
#[test]
fn a_first_input_without_elements_does_no_harm() {
    for setting in settings() {
        for form in forms(&[2, 2, 3, 4]) {
            let layer = Layer::new(&Config::Conv(same([4, 6], 3)), &setting).with(form);
            let fresh = layer.clone();
            layer.step(&Plain::filled(&[0, 4, 7, 9], 0.0));
            let input = Plain::random(1, &[5, 4, 7, 9]);
            assert_eq!(layer.step(&input), fresh.step(&input), "{}", setting.name);
        }
    }
}

/// A last batch with fewer rows than the rank of another mode: that mode's size has not changed, so
/// its factor is still there when whole batches come again.
#[test]
fn a_batch_with_few_rows_costs_no_other_mode_its_factor() {
    for setting in settings() {
        for form in forms(&[3, 4]) {
            let layer = Layer::new(&Config::Linear([6, 5]), &setting).with(form);
            let input = Plain::falling(1, &[9, 6]);
            for _ in 0..15 {
                layer.step(&input);
            }
            let captured = |layer: &Layer| {
                let factor = layer.factors()[1].clone().expect("compressed");
                input.projected(1, &factor).energy()
            };
            let before = captured(&layer);
            layer.step(&Plain::falling(2, &[2, 6]));
            layer.step(&input);
            let after = captured(&layer);
            let fresh = layer.with(Method::Exact).with(form);
            fresh.step(&input);
            let name = format!("{:?} ({})", form.truncation, setting.name);
            assert_ne!(after, captured(&fresh), "{name}: started anew");
            assert!(after >= 0.99 * before, "{name}: {before} became {after}");
        }
    }
}

const RANKS: [usize; 4] = [2, 2, 3, 4];

/// The shortcut with another setting, each in one place.
fn other_methods() -> Vec<Method> {
    let shortcut = ActivationShortcut::new(RANKS);
    vec![
        Method::Exact,
        Method::hosvd(0.5),
        Method::channel_sparse(0.5),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
        shortcut.with_seed(1).into(),
        Method::activation_shortcut([2, 2, 3, 5]),
    ]
}

#[test]
fn another_method_starts_anew_and_the_same_goes_on() {
    let method = Method::activation_shortcut(RANKS);
    for (name, device) in autodiff_devices() {
        let conv: Conv2d = Conv2dConfig::new([4, 4], [3, 3]).init(&device);
        let conv = conv.with_method(method).expect("suitable");
        conv.forward(random(1, [5, 4, 7, 9], &device));
        let factors = |conv: &Conv2d| -> Vec<Vec<f64>> {
            let factors = (0..4).filter_map(|mode| conv.method.factor(mode));
            factors.map(values).collect()
        };
        let before = factors(&conv);
        assert_eq!(before.len(), 4, "{name}");
        let same = conv.clone().with_method(method).expect("suitable");
        assert_eq!(factors(&same), before, "{name}: with_method");
        let planned = plan_with("", method)
            .apply(conv.clone())
            .expect("its layer");
        assert_eq!(factors(&planned), before, "{name}: a plan");

        for other in other_methods() {
            let changed = conv.clone().with_method(other).expect("suitable");
            assert!(factors(&changed).is_empty(), "{name}, {other}");
            let back = changed.with_method(method).expect("suitable");
            assert!(factors(&back).is_empty(), "{name}, {other} and back");
            let planned = plan_with("", other).apply(conv.clone());
            let planned = planned.expect("its layer");
            assert!(factors(&planned).is_empty(), "{name}, a plan with {other}");
        }
        // a method that the layer cannot use changes nothing
        let refused = conv.clone().with_method(Method::hosvd(0.0));
        assert!(refused.is_err(), "{name}");
        let unnamed = Plan::default()
            .apply(conv.clone())
            .expect("a plan of nothing");
        assert!(factors(&unnamed).is_empty(), "{name}: exact by the plan");
        assert_eq!(factors(&conv), before, "{name}: clones were changed");
    }
}

/// A plan that changes one layer leaves the others' running values alone.
#[test]
fn a_plan_starts_anew_only_the_layers_it_changes() {
    let [method, other] = [[2, 2, 3, 4], [2, 3, 3, 4]].map(Method::activation_shortcut);
    let device = Device::default().autodiff();
    let network = network(&device);
    let plan = |stem: Method| {
        let plan = Plan::builder().layer("stem", stem).layer("array.0", method);
        plan.build(&network).expect("its layers")
    };
    let trained = plan(method).apply(network.clone()).expect("its layers");
    let input: Tensor<4> = random(1, [5, 4, 7, 9], &device);
    trained.stem.forward(input.clone());
    trained.array[0].forward(input);
    let changed = plan(other).apply(trained).expect("its layers");
    assert!(changed.stem.method.factor(1).is_none());
    assert!(changed.array[0].method.factor(1).is_some());
}

/// A state from a method with other ranks: of more columns the first ones are used, with fewer the
/// mode starts anew.
#[test]
fn a_factor_of_another_rank_is_cut_or_not_used() {
    for setting in settings() {
        let layer = Layer::new(&Config::Conv(same([4, 6], 3)), &setting);
        let wide = layer.with(Method::activation_shortcut([2, 3, 3, 4]));
        let narrow = layer.with(ActivationShortcut::new(per_mode(&RANKS)));
        let input = Plain::random(1, &[5, 4, 7, 9]);
        for layer in [&wide, &narrow] {
            layer.step(&input);
        }
        let [wide_state, narrow_state] =
            [&wide, &narrow].map(|layer| state_of(layer, |mode| mode == 1));
        let fresh = |layer: &Layer| layer.with(Method::Exact).with(layer.slot().method());
        let name = &setting.name;

        let next = Plain::random(2, &[5, 4, 7, 9]);
        let found = fresh(&wide).restored(&narrow_state).step(&next);
        assert_eq!(found, fresh(&wide).step(&next), "{name}: too few columns");

        let cut = wide.slot().factor(1).expect("compressed").narrow(1, 0, 2);
        let cut = TrainingState::default().with_factor("", 1, cut.into_data());
        let found = fresh(&narrow).restored(&wide_state).step(&next);
        let expected = fresh(&narrow).restored(&cut).step(&next);
        assert_eq!(found, expected, "{name}: too many columns");
        assert_ne!(found, fresh(&narrow).step(&next), "{name}: it was used");
    }
}
