//! Guards shortcuts on linear layers: projected inputs, ranks, and how axes become modes.

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, panic_message, random_dtype,
    relative_error, values,
};

use super::{check_sparse, for_each_pass, input, layer, shortcuts, upstream, weight_gradient};

/// The input with every column of its unfolding along a mode replaced by `U U^T` of it.
fn projected(x: &[f64], shape: &[usize], mode: usize, factor: &Tensor<2>) -> Vec<f64> {
    let [size, rank] = factor.dims();
    assert_eq!(size, shape[mode]);
    let factor = values(factor.clone());
    let inner: usize = shape[mode + 1..].iter().product();
    let mut found = vec![0.0; x.len()];
    for slab in (0..x.len()).step_by(size * inner) {
        for column in 0..inner {
            let at = |row: usize| slab + row * inner + column;
            for r in 0..rank {
                let dot: f64 = (0..size).map(|d| factor[d * rank + r] * x[at(d)]).sum();
                for d in 0..size {
                    found[at(d)] += factor[d * rank + r] * dot;
                }
            }
        }
    }
    found
}

#[track_caller]
fn assert_orthonormal(what: &str, factor: Tensor<2>) {
    let [size, rank] = factor.dims();
    let factor = values(factor);
    for a in 0..rank {
        for b in 0..rank {
            let dot: f64 = (0..size)
                .map(|d| factor[d * rank + a] * factor[d * rank + b])
                .sum();
            let expected = if a == b { 1.0 } else { 0.0 };
            assert!((dot - expected).abs() < 1e-12, "{what}: {a}, {b}: {dot}");
        }
    }
}

/// The exact gradient of the input projected onto the factors, which have the ranks that were asked
/// for; `modes` is the input's shape as the method sees it.
fn check_shortcut<const D: usize>(
    shape: [usize; D],
    modes: &[usize],
    ranks: impl Into<PerMode>,
    differs: bool,
) {
    let ranks = ranks.into();
    for_each_pass(shape, &shortcuts(ranks), |name, linear, x, gy, weight| {
        let Method::ActivationShortcut(shortcut) = linear.method.method() else {
            panic!("{name}: another method")
        };
        let frozen = shortcut == shortcut.frozen();
        let mut approximate = x.to_vec();
        for mode in 0..PerMode::MOST {
            let factor = linear.method.factor(mode);
            let expected = modes.get(mode).and_then(|&size| {
                let rank = match frozen {
                    // samples change from batch to batch
                    true if mode == 0 => size,
                    true => ranks[mode].min(size),
                    false => ranks[mode].min(size).min(x.len() / size),
                };
                let compressed = rank < size;
                compressed.then_some([size, rank])
            });
            let dims = factor.as_ref().map(Tensor::dims);
            assert_eq!(dims, expected, "{name}, mode {mode}");
            if let Some(factor) = factor {
                assert_orthonormal(name, factor.clone());
                approximate = projected(&approximate, modes, mode, &factor);
            }
        }
        assert_close(name, weight, &weight_gradient(&approximate, gy), 1e-11);
        let error = relative_error(weight, &weight_gradient(x, gy));
        if differs {
            assert!(error > 0.05, "{name}: {error}");
        } else {
            assert!(error < 1e-12, "{name}: {error}");
        }
    });
}

#[test]
fn a_shortcut_has_the_gradient_of_the_projected_input() {
    check_shortcut([5, 6], &[5, 6], [2, 3], true);
    check_shortcut([3, 7, 6], &[3, 7, 6], [2, 3, 2], true);
    check_shortcut([3, 4, 5, 6], &[3, 4, 5, 6], [2, 2, 3, 4], true);
    // only the features, only the rows
    check_shortcut([3, 7, 6], &[3, 7, 6], [3, 7, 2], true);
    check_shortcut([3, 7, 6], &[3, 7, 6], [3, 2, 6], true);
}

#[test]
fn ranks_as_large_as_the_input_are_exact() {
    check_shortcut([5, 6], &[5, 6], [5, 6], false);
    check_shortcut([3, 7, 6], &[3, 7, 6], [99, 99, 6], false);
}

/// More samples than features: still none of them is compressed with frozen factors, which a first
/// batch would make for all others.
#[test]
fn frozen_factors_leave_a_large_batch_alone() {
    check_shortcut([9, 6], &[9, 6], [2, 3], true);
    check_shortcut([9, 6], &[9, 6], [9, 6], false);
    for (name, device) in autodiff_devices() {
        let method = ActivationShortcut::new([9, 6]).frozen();
        let linear = layer(&device, method.into());
        for seed in 0..3 {
            let x = random_dtype(seed, [9, 6], &device, DType::F64);
            let gy = random_dtype(seed + 10, [9, 4], &device, DType::F64);
            let found = Pass::run_linear(&linear, x.clone(), gy.clone());
            let expected = weight_gradient(&values(x), &values(gy));
            let name = format!("batch {seed} ({name})");
            assert_close(&name, &found.weight.expect("trained"), &expected, 1e-11);
        }
    }
}

/// Of more than 4 axes the surplus ones at the front count as one, of a vector's the missing one.
#[test]
fn surplus_axes_at_the_front_merge() {
    check_shortcut([2, 3, 4, 5, 6], &[6, 4, 5, 6], [3, 2, 3, 4], true);
    for (name, device) in autodiff_devices() {
        for method in shortcuts([3, 2, 3, 4]) {
            let [five, four] = [layer(&device, method), layer(&device, method)];
            let (x, gy) = (
                input([2, 3, 4, 5, 6], &device),
                upstream([2, 3, 4, 5, 6], &device),
            );
            let found = Pass::run_linear(&five, x.clone().require_grad(), gy.clone());
            let (x, gy) = (x.reshape([6, 4, 5, 6]), gy.reshape([6, 4, 5, 4]));
            let expected = Pass::run_linear(&four, x.require_grad(), gy);
            found.assert_close(&format!("{method} ({name})"), &expected, 1e-12);
        }
        let three = layer(&device, Method::activation_shortcut([3, 2, 3]));
        let message = panic_message(|| three.forward(input([2, 3, 4, 5, 6], &device)));
        assert_contains(&message.expect("refused"), &["3 ranks", "4 modes"]);
    }
}

#[test]
fn a_vector_is_one_row() {
    check_shortcut([6], &[1, 6], [1, 2], false);
    check_shortcut([6], &[1, 6], [4, 6], false);
    check_sparse([6]);
}

#[test]
fn another_number_of_axes_than_ranks_panics_with_both() {
    for (device_name, device) in autodiff_devices() {
        for method in shortcuts([2, 3, 2]) {
            let linear = layer(&device, method);
            let name = format!("{method} ({device_name})");
            let refused = [
                panic_message(|| linear.forward(input([9, 6], &device))),
                panic_message(|| linear.forward(input([3, 4, 5, 6], &device))),
            ];
            for (message, parts) in refused.into_iter().zip([
                ["3 ranks (2x3x2)", "9x6", "2 modes"],
                ["3 ranks (2x3x2)", "3x4x5x6", "4 modes"],
            ]) {
                let message = message.unwrap_or_else(|| panic!("{name}: accepted"));
                assert_contains(&message, &parts);
            }

            // the panic left the layer as it was
            linear.forward(input([3, 5, 6], &device));
            // nothing is kept, so nothing is compressed
            linear.valid().forward(input([9, 6], &device));
            linear.no_grad().forward(input([9, 6], &device));
        }
    }
}
