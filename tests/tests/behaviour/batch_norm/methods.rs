//! Guards gamma's gradient by each method: everything else is exact, settings that mean "off" are
//! the exact gradient, and the others are what their definitions say.

use burn::module::Module;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::methods::{ActivationShortcut, LayerShape};
use burn_frugal::nn::BatchNorm;
use burn_frugal::plan::{self, TrainingState};
use burn_frugal::{Error, Method};
use burn_frugal_tests::{
    Pass, assert_close, assert_contains, autodiff_devices, random_dtype, relative_error, values,
};

use super::{our_pass, ours};

const SHAPE: [usize; 4] = [2, 4, 7, 9];

fn input(device: &Device) -> Tensor<4> {
    (random_dtype(1, SHAPE, device, DType::F64) * 2.0 + 0.3)
        .detach()
        .require_grad()
}

/// In double precision.
fn with(method: Method, device: &Device) -> BatchNorm {
    let norm = ours(SHAPE[1], device, DType::F64).with_method(method);
    norm.expect("suitable")
}

/// The maps of the normalised input by the definition, and of the output's gradient, by image and
/// channel.
fn maps(norm: &BatchNorm, device: &Device) -> Vec<(usize, Vec<f64>, Vec<f64>)> {
    let [_, channels, height, width] = SHAPE;
    let upstream = values(random_dtype::<4>(2, SHAPE, device, DType::F64));
    let x = values(input(device));
    let [mean, variance] =
        [&norm.running_mean, &norm.running_var].map(|state| values(state.value()));
    let maps = x
        .chunks(height * width)
        .zip(upstream.chunks(height * width));
    maps.enumerate()
        .map(|(index, (x, gradient))| {
            let channel = index % channels;
            let deviation = (variance[channel] + norm.epsilon).sqrt();
            let normalised = x.iter().map(|x| (x - mean[channel]) / deviation);
            (channel, normalised.collect(), gradient.to_vec())
        })
        .collect()
}

/// `dL/dgamma[c]`, the sum of `of_map` over the maps of a channel.
fn by_definition(
    norm: &BatchNorm,
    device: &Device,
    of_map: impl Fn(&[f64], &[f64]) -> f64,
) -> Vec<f64> {
    let mut gradient = vec![0.0; SHAPE[1]];
    for (channel, normalised, upstream) in maps(norm, device) {
        gradient[channel] += of_map(&normalised, &upstream);
    }
    gradient
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One method of each kind.
fn all() -> Vec<Method> {
    vec![
        Method::gradient_filter(2),
        Method::published_gradient_filter(2),
        Method::channel_sparse(0.5),
        Method::activation_shortcut([1, 2, 3, 4]),
        ActivationShortcut::new([1, 2, 3, 4]).sequential().into(),
        ActivationShortcut::new([1, 2, 3, 4]).frozen().into(),
        Method::hosvd(0.7),
        Method::quantized(8),
        Method::quantized(4),
    ]
}

#[test]
fn the_exact_gradient_is_its_definition() {
    for (name, device) in autodiff_devices() {
        let norm = with(Method::Exact, &device);
        let expected = by_definition(&norm, &device, product);
        let found = our_pass(&norm, input(&device));
        assert_close(&name, &found.weight.expect("trained"), &expected, 1e-12);
    }
}

/// Beta's gradient is the exact one up to rounding: a filter sums its means.
#[test]
fn a_method_changes_gammas_gradient_and_nothing_else() {
    for (device_name, device) in autodiff_devices() {
        let exact = our_pass(&with(Method::Exact, &device), input(&device));
        for method in all() {
            let name = format!("{method} ({device_name})");
            let found = our_pass(&with(method, &device), input(&device));
            assert_eq!(found.output, exact.output, "{name}");
            assert_eq!(found.input, exact.input, "{name}");
            let [beta, exact_beta] =
                [&found, &exact].map(|pass| pass.bias.as_deref().expect("tracked"));
            assert_close(&name, beta, exact_beta, 1e-12);
            let [gamma, exact_gamma] =
                [&found, &exact].map(|pass| pass.weight.as_deref().expect("tracked"));
            let error = relative_error(gamma, exact_gamma);
            assert!(
                error > 1e-6,
                "{name}: the method's own gradient, off by {error}"
            );
        }
    }
}

#[test]
fn settings_that_leave_nothing_out_are_exact() {
    for (device_name, device) in autodiff_devices() {
        let exact = our_pass(&with(Method::Exact, &device), input(&device));
        for method in [
            Method::gradient_filter(1),
            Method::published_gradient_filter(1),
            Method::channel_sparse(1.0),
            Method::activation_shortcut(SHAPE),
            ActivationShortcut::new(SHAPE).sequential().into(),
            ActivationShortcut::new(SHAPE).frozen().into(),
            Method::hosvd(1.0),
        ] {
            let found = our_pass(&with(method, &device), input(&device));
            assert_eq!(found, exact, "{method} ({device_name})");
        }
    }
}

/// Edges of `ceil(size / patch)` tiles, the surplus shared by the two at the border.
fn tiles(size: usize, patch: usize) -> Vec<std::ops::Range<usize>> {
    let count = size.div_ceil(patch);
    let before = (count * patch - size).div_ceil(2);
    let edge = |tile: usize| (tile * patch).saturating_sub(before).min(size);
    (0..count).map(|tile| edge(tile)..edge(tile + 1)).collect()
}

/// The mean of the output's gradient over a tile times the sum of the normalised input.
#[test]
fn a_gradient_filter_is_its_tiles() {
    let [_, _, height, width] = SHAPE;
    for (device_name, device) in autodiff_devices() {
        for patch in [2, 3, 4, 100] {
            let of_map = |normalised: &[f64], upstream: &[f64]| {
                let mut sum = 0.0;
                for rows in tiles(height, patch) {
                    for columns in tiles(width, patch) {
                        let of_tile = |map: &[f64]| -> f64 {
                            let rows = rows.clone();
                            rows.map(|row| map[row * width..][columns.clone()].iter().sum::<f64>())
                                .sum()
                        };
                        let pixels = rows.len() * columns.len();
                        sum += of_tile(normalised) * of_tile(upstream) / pixels as f64;
                    }
                }
                sum
            };
            let norm = with(Method::gradient_filter(patch), &device);
            let expected = by_definition(&norm, &device, of_map);
            let found = our_pass(&norm, input(&device)).weight.expect("trained");
            let name = format!("patch {patch} ({device_name})");
            assert_close(&name, &found, &expected, 1e-12);
        }
    }
}

#[test]
fn chosen_channels_have_exact_gradients_and_the_others_none() {
    for (device_name, device) in autodiff_devices() {
        let exact = our_pass(&with(Method::Exact, &device), input(&device));
        for channels in [vec![], vec![2], vec![0, 3], vec![0, 1, 2, 3]] {
            let norm = with(Method::channel_sparse(0.5), &device);
            let state = TrainingState::default().with_channels("", channels.clone());
            let norm = state.restore(norm).expect("its channels");
            let mut expected = exact.clone();
            let gamma = expected.weight.as_mut().expect("trained");
            for (channel, gradient) in gamma.iter_mut().enumerate() {
                if !channels.contains(&channel) {
                    *gradient = 0.0;
                }
            }
            let name = format!("{channels:?} ({device_name})");
            let found = our_pass(&norm, input(&device));
            found.assert_close(&name, &expected, 1e-12);
            for (found, expected) in found
                .weight
                .iter()
                .flatten()
                .zip(expected.weight.iter().flatten())
            {
                assert_eq!(*found == 0.0, *expected == 0.0, "{name}");
            }
        }
    }
}

#[test]
fn without_a_schedule_the_largest_gammas_are_trained() {
    for (name, device) in autodiff_devices() {
        let norm = with(Method::channel_sparse(0.5), &device);
        assert_eq!(
            norm.method.channels(),
            None,
            "{name}: before the first step"
        );
        let gammas = values(norm.gamma.val());
        let larger = |gamma: f64| {
            gammas
                .iter()
                .filter(|other| other.abs() > gamma.abs())
                .count()
        };
        let largest: Vec<usize> = (0..SHAPE[1]).filter(|&it| larger(gammas[it]) < 2).collect();
        norm.forward(input(&device));
        assert_eq!(norm.method.channels(), Some(largest), "{name}");
    }
}

#[test]
fn a_step_leaves_untrained_gammas_alone() {
    let decay = WeightDecayConfig { penalty: 0.1 };
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let optimizers = [
        SgdConfig::new()
            .with_weight_decay(Some(decay.clone()))
            .with_momentum(Some(momentum))
            .init(),
        AdamConfig::new().with_weight_decay(Some(decay)).init(),
    ];
    for (name, device) in autodiff_devices() {
        for mut optimizer in optimizers.clone() {
            let mut norm = with(Method::channel_sparse(0.5), &device);
            for channels in [vec![0, 1], vec![1, 2], vec![3]] {
                let state = TrainingState::default().with_channels("", channels.clone());
                norm = state.restore(norm).expect("its channels");
                let before = [values(norm.gamma.val()), values(norm.beta.val())];
                let loss = norm.forward(input(&device)).powi_scalar(2).sum();
                let gradients = GradientsParams::from_grads(loss.backward(), &norm);
                norm = plan::step(&mut optimizer, 0.05, norm, gradients);
                let after = [values(norm.gamma.val()), values(norm.beta.val())];
                for channel in 0..SHAPE[1] {
                    let moved = [0, 1].map(|it| before[it][channel] != after[it][channel]);
                    let expected = [channels.contains(&channel), true];
                    assert_eq!(moved, expected, "{name}, {channels:?}, channel {channel}");
                }
                assert!(norm.gamma.val().is_tracked(), "{name}");
            }
        }
    }
}

/// The exact gradient of the normalised input after it was rounded to 255 or 15 steps.
#[test]
fn a_quantized_input_is_the_normalised_one() {
    for (device_name, device) in autodiff_devices() {
        for (bits, levels) in [(8, 127.0), (4, 7.0)] {
            let norm = with(Method::quantized(bits), &device);
            let of_map = |normalised: &[f64], upstream: &[f64]| {
                let most = normalised
                    .iter()
                    .fold(0.0, |most: f64, x| most.max(x.abs()));
                let step = most / levels;
                assert!(normalised.iter().any(|x| *x < 0.0), "both signs");
                let rounded = normalised.iter().map(|x| (x / step).round() * step);
                product(&rounded.collect::<Vec<_>>(), upstream)
            };
            let expected = by_definition(&norm, &device, of_map);
            let found = our_pass(&norm, input(&device)).weight.expect("trained");
            assert_close(
                &format!("{bits} bits ({device_name})"),
                &found,
                &expected,
                1e-12,
            );
        }
    }
}

/// A normalised input of 2 axes has maps of one pixel.
#[test]
fn methods_work_on_every_number_of_axes() {
    fn run<const D: usize>(shape: [usize; D], method: Method, device: &Device) -> [Vec<f64>; 2] {
        let x = random_dtype(1, shape, device, DType::F64);
        [Method::Exact, method].map(|method| {
            let norm = with(method, device);
            let Pass { weight, .. } = our_pass(&norm, x.clone());
            weight.expect("trained")
        })
    }
    for (device_name, device) in autodiff_devices() {
        for method in all() {
            let name = format!("{method} ({device_name})");
            let two = run([6, 4], method, &device);
            let three = run([3, 4, 10], method, &device);
            let five = run([2, 4, 2, 5, 6], method, &device);
            for [exact, found] in [two, three, five] {
                assert_eq!(found.len(), 4, "{name}");
                let error = relative_error(&found, &exact);
                assert!(error < 3.0, "{name}: off by {error}");
            }
            // a tile of one pixel leaves nothing out
            if let Method::GradientFilter(_) = method {
                let [exact, found] = run([6, 4], method, &device);
                assert_close(&name, &found, &exact, 1e-12);
            }
        }
    }
}

#[test]
fn a_valid_layer_trains_with_its_method_again() {
    for (name, device) in autodiff_devices() {
        let norm = with(Method::gradient_filter(3), &device);
        let gamma = |norm: &BatchNorm| {
            // Burn's `train()` goes back to autodiff without checkpointing
            let device = norm.gamma.val().device();
            our_pass(norm, input(&device)).weight
        };
        let before = gamma(&norm);
        assert!(before.is_some(), "{name}");
        let again = norm.valid().train();
        assert_eq!(again.method.method(), Method::gradient_filter(3), "{name}");
        assert_eq!(gamma(&again), before, "{name}");
    }
}

#[test]
fn methods_that_do_not_suit_are_errors() {
    let device = Device::default();
    for (method, parts) in [
        (
            Method::gradient_filter(0),
            ["BatchNorm", "at least 1 pixel"],
        ),
        (Method::channel_sparse(0.0), ["BatchNorm", "at most 1"]),
        (
            Method::activation_shortcut([1, 2, 3]),
            ["BatchNorm", "expected 4 ranks"],
        ),
        (
            Method::activation_shortcut([1, 5, 1, 1]),
            ["rank 5", "4 input channels"],
        ),
        (Method::hosvd(1.5), ["BatchNorm", "1.5"]),
        (Method::quantized(2), ["BatchNorm", "found 2"]),
    ] {
        let error = ours(4, &device, DType::F32)
            .with_method(method)
            .unwrap_err();
        assert!(matches!(error, Error::Method { .. }), "{error}");
        assert_contains(&error.to_string(), &parts);
    }
    assert_eq!(
        ours(4, &device, DType::F32).method.layer(),
        LayerShape::batch_norm(4)
    );
}
