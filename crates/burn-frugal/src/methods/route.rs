//! Which way to the weight's gradient of a low-rank activation takes the fewest products.
//!
//! A mode that is summed over (the batch, the rows of a linear layer's input, the pixels of a
//! pointwise convolution) can be handled in rank space, by contracting the output's gradient with
//! its factor, or in full, by expanding the core. The channel mode can stay in rank space until the
//! very end if the channels are not in groups. Every combination and every order is compared: there
//! are a few hundred at most.

use burn_frugal_kernels::ConvGeometry;

use super::transient::along;

use crate::geometry::{LayerGeometry, LinearGeometry, PerMode};

/// One way to the weight's gradient, which is the exact gradient of everything expanded.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Modes along which the core is expanded, in this order.
    pub expanded: Vec<usize>,
    /// Modes along which the output's gradient is contracted, in this order.
    pub projected: Vec<usize>,
    /// Whether the gradient is computed for the rank of the channel mode and expanded afterwards.
    pub channels_in_rank: bool,
    /// The layer that is left, whose exact weight gradient is computed.
    pub geometry: LayerGeometry,
    /// Products that all of it takes.
    pub products: u64,
}

impl Route {
    /// The most elements that are there beyond core, factors and output's gradient on this way.
    pub fn transient(&self, geometry: &LayerGeometry, ranks: PerMode) -> usize {
        let reduced = self.geometry.modes();
        let expansion = along(ranks, reduced, &self.expanded);
        let core = if self.expanded.is_empty() {
            0
        } else {
            reduced.product()
        };
        let gradient = gradient_modes(geometry);
        let target = self
            .projected
            .iter()
            .fold(gradient, |target, &mode| target.with(mode, ranks[mode]));
        let projection = along(gradient, target, &self.projected);
        let projected = if self.projected.is_empty() {
            0
        } else {
            target.product()
        };
        let last = if self.channels_in_rank {
            self.geometry.weight_len()
        } else {
            0
        };
        expansion
            .max(core + projection)
            .max(core + projected + last)
    }

    /// The cheapest route for a core with these ranks. A mode whose rank is its size has no factor.
    pub fn cheapest(geometry: &LayerGeometry, ranks: PerMode) -> Self {
        let modes = geometry.modes();
        let compressed = |mode: usize| ranks[mode] < modes[mode];
        let channel_mode = geometry.channel_mode();
        let summed: Vec<usize> = summed_modes(geometry)
            .into_iter()
            .filter(|&mode| compressed(mode))
            .collect();
        let channel_choices: &[bool] = if compressed(channel_mode) && !grouped(geometry) {
            &[false, true]
        } else {
            &[false]
        };
        let routes = (0..1usize << summed.len()).flat_map(|chosen| {
            let projected: Vec<usize> = summed
                .iter()
                .enumerate()
                .filter(|(place, _)| chosen >> place & 1 == 1)
                .map(|(_, &mode)| mode)
                .collect();
            channel_choices
                .iter()
                .map(move |&in_rank| Self::new(geometry, ranks, &projected, in_rank))
        });
        routes
            .min_by_key(|route| route.products)
            .expect("at least the route that expands everything")
    }

    fn new(
        geometry: &LayerGeometry,
        ranks: PerMode,
        projected: &[usize],
        channels_in_rank: bool,
    ) -> Self {
        let modes = geometry.modes();
        let channel_mode = geometry.channel_mode();
        // what the core is expanded to
        let mut target = modes;
        for &mode in projected {
            target = target.with(mode, ranks[mode]);
        }
        if channels_in_rank {
            target = target.with(channel_mode, ranks[channel_mode]);
        }
        let (expanded, expansion) = cheapest_order(ranks, target);
        let left = reduced(geometry, target);

        let gradient = gradient_modes(geometry);
        let mut gradient_target = gradient;
        for &mode in projected {
            gradient_target = gradient_target.with(mode, ranks[mode]);
        }
        let (projected, projection) = cheapest_order(gradient, gradient_target);
        let last = if channels_in_rank {
            geometry.weight_len() as u64 * ranks[channel_mode] as u64
        } else {
            0
        };
        Self {
            expanded,
            projected,
            channels_in_rank,
            geometry: left,
            products: expansion + projection + left.products() + last,
        }
    }
}

/// Modes over which the weight's gradient is a plain sum, with the same index in input and output.
fn summed_modes(geometry: &LayerGeometry) -> Vec<usize> {
    match geometry {
        LayerGeometry::Conv2d(conv) if is_pointwise(conv) => vec![0, 2, 3],
        LayerGeometry::Conv2d(_) => vec![0],
        LayerGeometry::Linear(linear) => (0..linear.input.len() - 1).collect(),
    }
}

fn is_pointwise(conv: &ConvGeometry) -> bool {
    conv.kernel == [1, 1] && conv.stride == [1, 1] && conv.padding == [(0, 0), (0, 0)]
}

fn grouped(geometry: &LayerGeometry) -> bool {
    matches!(geometry, LayerGeometry::Conv2d(conv) if conv.groups != 1)
}

/// The output's shape.
pub(super) fn gradient_modes(geometry: &LayerGeometry) -> PerMode {
    match geometry {
        LayerGeometry::Conv2d(conv) => {
            let [height, width] = conv.output();
            PerMode::from([conv.batch, conv.output_channels, height, width])
        }
        LayerGeometry::Linear(linear) => linear
            .input
            .with(linear.input.len() - 1, linear.output_features),
    }
}

/// The same layer for an input of another size.
fn reduced(geometry: &LayerGeometry, input: PerMode) -> LayerGeometry {
    match geometry {
        LayerGeometry::Conv2d(conv) => LayerGeometry::Conv2d(ConvGeometry {
            batch: input[0],
            input_channels: input[1],
            input: [input[2], input[3]],
            ..*conv
        }),
        LayerGeometry::Linear(linear) => LayerGeometry::Linear(LinearGeometry { input, ..*linear }),
    }
}

/// The order in which to take a tensor from one shape to another, mode by mode, with the fewest
/// products, and how many they are. Contracting a tensor of `n` elements along a mode of size `d`
/// to size `r`, or expanding it from `d` to `r`, takes `n * r` products.
pub(super) fn cheapest_order(from: PerMode, to: PerMode) -> (Vec<usize>, u64) {
    let next = (0..from.len()).filter(|&mode| from[mode] != to[mode]);
    let orders = next.map(|mode| {
        let (mut rest, products) = cheapest_order(from.with(mode, to[mode]), to);
        rest.insert(0, mode);
        (rest, products + from.product() as u64 * to[mode] as u64)
    });
    orders
        .min_by_key(|(_, products)| *products)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conv(kernel: usize, groups: usize, side: usize) -> LayerGeometry {
        let pad = kernel / 2;
        LayerGeometry::Conv2d(ConvGeometry {
            batch: 32,
            input_channels: 64,
            output_channels: 96,
            input: [side, side],
            kernel: [kernel, kernel],
            stride: [1, 1],
            padding: [(pad, pad), (pad, pad)],
            dilation: [1, 1],
            groups,
        })
    }

    #[test]
    fn low_ranks_are_used_and_high_ranks_are_not() {
        let dense = conv(3, 1, 14);
        let low = Route::cheapest(&dense, PerMode::from([2, 8, 4, 4]));
        assert!(low.channels_in_rank && low.projected == [0], "{low:?}");
        assert!(low.products * 20 < dense.products(), "{low:?}");

        // expanding the gradient's channels afterwards would cost half of the gradient itself
        let high = Route::cheapest(&conv(3, 1, 2), PerMode::from([32, 63, 2, 2]));
        assert!(!high.channels_in_rank && high.expanded == [1], "{high:?}");
    }

    #[test]
    fn channels_in_groups_are_always_expanded() {
        let depthwise = LayerGeometry::Conv2d(ConvGeometry {
            input_channels: 96,
            ..match conv(3, 96, 14) {
                LayerGeometry::Conv2d(conv) => conv,
                LayerGeometry::Linear(_) => unreachable!(),
            }
        });
        let route = Route::cheapest(&depthwise, PerMode::from([2, 8, 4, 4]));
        assert!(
            !route.channels_in_rank && route.expanded.contains(&1),
            "{route:?}"
        );
    }

    #[test]
    fn a_pointwise_convolution_stays_in_rank_space_altogether() {
        let route = Route::cheapest(&conv(1, 1, 14), PerMode::from([2, 8, 4, 4]));
        assert!(
            route.expanded.is_empty() && route.channels_in_rank,
            "{route:?}"
        );
        assert_eq!(route.projected.len(), 3);
    }

    #[test]
    fn nothing_compressed_is_the_exact_gradient() {
        let dense = conv(3, 1, 14);
        let route = Route::cheapest(&dense, dense.modes());
        assert_eq!((route.products, route.geometry), (dense.products(), dense));
        assert!(route.expanded.is_empty() && route.projected.is_empty());
    }
}
