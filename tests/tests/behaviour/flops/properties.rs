//! Guards what has to hold of the predictions for all sizes.

use burn_frugal::kernels::ConvGeometry;
use burn_frugal::methods::{ActivationShortcut, ChannelSparse};
use burn_frugal::{LayerGeometry, LinearGeometry, Method, PerMode};
use proptest::prelude::{
    Just, ProptestConfig, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

/// Convolutions of any kind, dense, depthwise and grouped, and linear layers.
fn geometries() -> impl Strategy<Value = LayerGeometry> {
    let convolutions = (
        (1..5usize, 1..5usize, 1..5usize, 1..4usize),
        (4..13usize, 4..13usize),
        (1..4usize, 1..4usize),
        (1..3usize, 0..3usize, 0..3usize),
    );
    let convolutions = convolutions.prop_map(
        |((batch, inputs, outputs, groups), (height, width), (rows, columns), place)| {
            let (stride, before, after) = place;
            let conv = ConvGeometry {
                batch,
                input_channels: inputs * groups,
                output_channels: outputs * groups,
                input: [height, width],
                kernel: [rows, columns],
                stride: [stride, stride],
                padding: [(before, after), (after, before)],
                dilation: [1, 1],
                groups,
            };
            LayerGeometry::from(conv)
        },
    );
    let linear = (prop::collection::vec(1..20usize, 1..6), 1..30usize);
    let linear = linear.prop_map(|(shape, outputs)| LinearGeometry::new(&shape, outputs).into());
    prop_oneof![convolutions, linear]
}

/// A geometry with some rank for each mode; ranks above the sizes are possible.
fn with_ranks() -> impl Strategy<Value = (LayerGeometry, PerMode)> {
    geometries().prop_flat_map(|geometry| {
        let modes = geometry.modes();
        let ranks: Vec<_> = modes.as_slice().iter().map(|&size| 1..size + 3).collect();
        let ranks = ranks.prop_map(|ranks| PerMode::new(&ranks).expect("a rank a mode"));
        (Just(geometry), ranks)
    })
}

/// The largest rank that an unfolding `[size, columns]` can have.
fn clipped(modes: &[usize], ranks: &[usize]) -> Vec<usize> {
    let elements: usize = modes.iter().product();
    let pairs = modes.iter().zip(ranks);
    pairs
        .map(|(&size, &rank)| rank.min(size).min(elements / size))
        .collect()
}

/// The fewest products that take a tensor from one shape to another, in any order of its modes.
fn fewest_products(from: &[usize], to: &[usize]) -> u64 {
    let orders = (0..from.len()).filter(|&mode| from[mode] != to[mode]);
    let orders = orders.map(|mode| {
        let mut next = from.to_vec();
        next[mode] = to[mode];
        (from.iter().product::<usize>() * to[mode]) as u64 + fewest_products(&next, to)
    });
    orders.min().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_shortcut_keeps_its_core_and_the_factors_of_compressed_modes(
        (geometry, ranks) in with_ranks(),
    ) {
        let modes = geometry.modes();
        let elements = |ranks: &[usize]| {
            let pairs = modes.as_slice().iter().zip(ranks);
            let factors = pairs.filter(|(size, rank)| rank < size);
            ranks.iter().product::<usize>()
                + factors.map(|(size, rank)| size * rank).sum::<usize>()
        };
        let shortcut = ActivationShortcut::new(ranks);
        let every_step = clipped(modes.as_slice(), ranks.as_slice());
        for method in [shortcut, shortcut.sequential()] {
            prop_assert_eq!(Method::from(method).bytes(geometry, 4), 4 * elements(&every_step));
        }
        let pairs = modes.as_slice().iter().zip(ranks.as_slice());
        let mut frozen: Vec<usize> = pairs.map(|(&size, &rank)| rank.min(size)).collect();
        frozen[0] = modes[0];
        prop_assert_eq!(Method::from(shortcut.frozen()).bytes(geometry, 4), 4 * elements(&frozen));
    }

    #[test]
    fn a_shortcut_never_takes_more_than_expanding_everything((geometry, ranks) in with_ranks()) {
        let modes = geometry.modes();
        let exact = Method::Exact.flops(geometry);
        let ranks_used = clipped(modes.as_slice(), ranks.as_slice());
        let expansion = fewest_products(&ranks_used, modes.as_slice());
        let shortcut = ActivationShortcut::new(ranks);
        for method in [shortcut, shortcut.sequential()] {
            let found = Method::from(method).flops(geometry);
            prop_assert!(found.weight_gradient <= 2 * expansion + exact.weight_gradient);
            prop_assert_eq!(found.input_gradient, exact.input_gradient);
        }
        // the same ranks have the same gradient, however the factors were found
        prop_assert_eq!(
            Method::from(shortcut).flops(geometry).weight_gradient,
            Method::from(shortcut.sequential()).flops(geometry).weight_gradient
        );
    }

    #[test]
    fn full_ranks_are_the_exact_method(geometry in geometries()) {
        let modes = geometry.modes();
        let elements = modes.product();
        let full = (modes.as_slice().iter()).all(|&size| size <= elements / size);
        let shortcut = ActivationShortcut::new(modes);
        let methods = [shortcut, shortcut.sequential(), shortcut.frozen()];
        for method in methods.map(Method::from) {
            // a mode that is larger than all others together has no full rank, unless it is frozen
            let is_frozen = method == shortcut.frozen().into();
            if full || is_frozen {
                prop_assert_eq!(method.flops(geometry), Method::Exact.flops(geometry));
                prop_assert_eq!(method.bytes(geometry, 4), Method::Exact.bytes(geometry, 4));
            }
        }
    }

    /// On what channels leave, the other modes take less; but the contraction along channels comes
    /// first, with the whole input. It pays while the channels' rank is not the largest by far.
    #[test]
    fn sequential_truncation_takes_fewer_operations_at_low_ranks(
        (geometry, ranks) in with_ranks(),
    ) {
        let (modes, channels) = (geometry.modes(), geometry.channel_mode());
        let elements = modes.product();
        let mut halved: Vec<usize> = (modes.as_slice().iter().zip(ranks.as_slice()))
            .map(|(&size, &rank)| rank.min(size / 2).min(elements / size).max(1))
            .collect();
        let compressed = (0..modes.len()).filter(|&mode| halved[mode] < modes[mode]);
        let others: usize = compressed
            .filter(|&mode| mode != channels)
            .map(|mode| halved[mode])
            .sum();
        if others < 2 || modes[channels] < 2 {
            return Ok(());
        }
        halved[channels] = halved[channels].min(others / 2);
        let shortcut = ActivationShortcut::new(PerMode::new(&halved).expect("a rank a mode"));
        let independent = Method::from(shortcut).flops(geometry).forward;
        let sequential = Method::from(shortcut.sequential()).flops(geometry).forward;
        prop_assert!(sequential <= independent, "{} > {}", sequential, independent);
    }

    #[test]
    fn frozen_factors_take_no_iterations((geometry, ranks) in with_ranks()) {
        let modes = geometry.modes();
        let pairs = modes.as_slice().iter().zip(ranks.as_slice());
        let mut used: Vec<usize> = pairs.map(|(&size, &rank)| rank.min(size)).collect();
        used[0] = modes[0];
        let frozen = Method::from(ActivationShortcut::new(ranks).frozen());
        let expected = 2 * fewest_products(modes.as_slice(), &used);
        prop_assert_eq!(frozen.flops(geometry).forward, expected);
    }

    #[test]
    fn more_channels_cost_more(
        geometry in geometries(),
        (a, b) in (0.001..=1.0f64, 0.001..=1.0f64),
    ) {
        let [less, more] = [a.min(b), a.max(b)].map(Method::channel_sparse);
        prop_assert!(less.bytes(geometry, 4) <= more.bytes(geometry, 4));
        let [less, more] = [less, more].map(|method| method.flops(geometry));
        let exact = Method::Exact.flops(geometry);
        prop_assert!(less.weight_gradient <= more.weight_gradient);
        prop_assert!(more.weight_gradient <= exact.weight_gradient);
        prop_assert_eq!([less.forward, more.forward], [0, 0]);
        prop_assert_eq!(less.input_gradient, exact.input_gradient);
        let all = Method::channel_sparse(1.0);
        prop_assert_eq!(all.flops(geometry), exact);
        prop_assert_eq!(all.bytes(geometry, 4), Method::Exact.bytes(geometry, 4));
    }

    /// At least one, and no ratio misses the share by more than half a channel.
    #[test]
    fn a_ratio_is_rounded_to_channels(ratio in 0.001..=1.0f64, channels in 1..2000usize) {
        let found = ChannelSparse { ratio }.selected(channels);
        let share = ratio * channels as f64;
        prop_assert!((1..=channels).contains(&found));
        prop_assert!(found == 1 || (found as f64 - share).abs() <= 0.5 + 1e-9);
    }

    #[test]
    fn totals_are_sums((geometry, ranks) in with_ranks()) {
        let flops = Method::activation_shortcut(ranks).flops(geometry);
        let parts = flops.forward + flops.weight_gradient + flops.input_gradient;
        prop_assert_eq!(flops.total(), parts);
    }
}
