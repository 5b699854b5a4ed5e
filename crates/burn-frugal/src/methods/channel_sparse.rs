//! Channel-sparse updates: exact weight gradients on some input channels, none on the others
//! (arXiv 2503.17959; the operator is that of MCUNetV3's partial backward pass).
//!
//! Only the chosen channels of the input stay, as a copy. Which they are is not part of the method:
//! a [`Schedule`](crate::plan::schedule::Schedule) chooses them; without one they are those with the
//! largest weights. The input gradient is exact.

use burn::backend::{TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, TensorData};
use burn_frugal_kernels::ConvGeometry;
use serde::{Deserialize, Serialize};

use super::{Flops, LayerShape, Saved, Transient, Unsuitable, exact};
use crate::geometry::{LayerGeometry, LinearGeometry};
use crate::ops::{FrugalOps, linear};

/// A weight update on a share of the input channels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSparse {
    /// The share of a layer's input channels that are trained at a time, above 0 and at most 1. 1 is
    /// the exact gradient.
    pub ratio: f64,
}

impl ChannelSparse {
    pub(super) fn check(&self) -> Result<(), Unsuitable> {
        if self.ratio > 0.0 && self.ratio <= 1.0 {
            Ok(())
        } else {
            Err(Unsuitable::Ratio { found: self.ratio })
        }
    }

    /// How many of `channels` are trained at a time: the ratio rounded to the nearest, at least 1.
    pub fn selected(&self, channels: usize) -> usize {
        ((channels as f64 * self.ratio).round() as usize).clamp(1.min(channels), channels)
    }

    /// Elements of [`keep`]'s result for the ratio's number of channels.
    pub(super) fn elements(&self, geometry: &LayerGeometry) -> usize {
        let modes = geometry.modes();
        let mode = geometry.channel_mode();
        modes.with(mode, self.selected(modes[mode])).product()
    }

    /// The gradient of the chosen channels before it is put among the others; in a depthwise
    /// convolution also their output's gradient.
    pub(super) fn transient(&self, geometry: &LayerGeometry) -> Transient {
        let channels = geometry.modes()[geometry.channel_mode()];
        let share = |elements: usize| elements / channels.max(1) * self.selected(channels);
        let output_gradient = match geometry {
            LayerGeometry::Conv2d(conv) if conv.groups > 1 => share(geometry.output_len()),
            _ => 0,
        };
        Transient {
            weight_gradient: share(geometry.weight_len()) + output_gradient,
            ..Transient::default()
        }
    }

    pub(super) fn flops(&self, geometry: &LayerGeometry) -> Flops {
        let exact = exact::flops(geometry);
        let channels = geometry.modes()[geometry.channel_mode()];
        let one_channel = exact.weight_gradient / channels.max(1) as u64;
        Flops {
            weight_gradient: one_channel * self.selected(channels) as u64,
            ..exact
        }
    }

    /// The channels with the largest weights, ascending: what is trained without a schedule.
    pub(crate) fn largest(
        &self,
        layer: &LayerShape,
        weight: impl Iterator<Item = f64>,
    ) -> Vec<usize> {
        let norms = layer.channel_norms(weight);
        let mut channels: Vec<usize> = (0..norms.len()).collect();
        // stable: of equal channels the first
        channels.sort_by(|&a, &b| norms[b].total_cmp(&norms[a]));
        channels.truncate(self.selected(norms.len()));
        channels.shrink_to_fit();
        channels.sort_unstable();
        channels
    }
}

/// Copies the chosen channels; all of them are the whole input.
pub(super) fn keep<B: FrugalOps>(
    input: FloatTensor<B>,
    geometry: &LayerGeometry,
    channels: &[usize],
) -> Saved<B> {
    if channels.len() == geometry.modes()[geometry.channel_mode()] {
        return exact::keep(input);
    }
    // of the input as it is, which may have more axes than modes
    let channel_axis = match geometry {
        LayerGeometry::Conv2d(_) => 1,
        LayerGeometry::Linear(_) => input.shape().num_dims() - 1,
    };
    // selecting copies on every backend, unlike slicing
    Saved::Channels {
        input: select::<B>(input, channel_axis, channels),
        channels: channels.to_vec(),
    }
}

/// The exact gradient of the weights of the chosen channels, zero elsewhere, in the weight's shape.
pub(super) fn weight_gradient<B: FrugalOps>(
    input: FloatTensor<B>,
    channels: &[usize],
    output_gradient: FloatTensor<B>,
    geometry: &LayerGeometry,
) -> FloatTensor<B> {
    match geometry {
        LayerGeometry::Conv2d(conv) if conv.input_channels == conv.groups => {
            depthwise::<B>(input, channels, output_gradient, conv)
        }
        LayerGeometry::Conv2d(conv) => grouped::<B>(input, channels, output_gradient, conv),
        LayerGeometry::Linear(linear) => {
            linear_gradient::<B>(input, channels, output_gradient, linear)
        }
    }
}

/// One input channel a group: the groups that are not chosen fall away.
fn depthwise<B: FrugalOps>(
    input: FloatTensor<B>,
    channels: &[usize],
    output_gradient: FloatTensor<B>,
    conv: &ConvGeometry,
) -> FloatTensor<B> {
    let multiplier = conv.output_channels / conv.groups;
    if channels.is_empty() {
        return zeros::<B>(&output_gradient, &weight_shape(conv));
    }
    let outputs: Vec<usize> = channels
        .iter()
        .flat_map(|channel| channel * multiplier..(channel + 1) * multiplier)
        .collect();
    let chosen = ConvGeometry {
        input_channels: channels.len(),
        output_channels: outputs.len(),
        groups: channels.len(),
        ..*conv
    };
    let output_gradient = select::<B>(output_gradient, 1, &outputs);
    let gradient = B::convolution_weight_gradient(input, output_gradient, chosen);
    B::place(gradient, 0, outputs, conv.output_channels)
}

/// Every group by itself, with as many input channels as are chosen in it.
fn grouped<B: FrugalOps>(
    input: FloatTensor<B>,
    channels: &[usize],
    output_gradient: FloatTensor<B>,
    conv: &ConvGeometry,
) -> FloatTensor<B> {
    let [group_inputs, group_outputs] =
        [conv.input_channels, conv.output_channels].map(|channels| channels / conv.groups);
    let mut shape = weight_shape(conv);
    shape[0] = group_outputs;
    let gradients = (0..conv.groups).map(|group| {
        let of_group = |channel: &usize| channel / group_inputs == group;
        let places: Vec<usize> = (0..channels.len())
            .filter(|&place| of_group(&channels[place]))
            .collect();
        if places.is_empty() {
            return zeros::<B>(&output_gradient, &shape);
        }
        let chosen = ConvGeometry {
            input_channels: places.len(),
            output_channels: group_outputs,
            groups: 1,
            ..*conv
        };
        let (input, output_gradient) = if conv.groups == 1 {
            (input.clone(), output_gradient.clone())
        } else {
            let outputs: Vec<usize> =
                (group * group_outputs..(group + 1) * group_outputs).collect();
            (
                select::<B>(input.clone(), 1, &places),
                select::<B>(output_gradient.clone(), 1, &outputs),
            )
        };
        let gradient = B::convolution_weight_gradient(input, output_gradient, chosen);
        let columns: Vec<usize> = places
            .iter()
            .map(|&place| channels[place] % group_inputs)
            .collect();
        B::place(gradient, 1, columns, group_inputs)
    });
    let mut gradients: Vec<_> = gradients.collect();
    match gradients.len() {
        1 => gradients.remove(0),
        _ => B::float_cat(gradients, 0),
    }
}

fn linear_gradient<B: FrugalOps>(
    input: FloatTensor<B>,
    channels: &[usize],
    output_gradient: FloatTensor<B>,
    geometry: &LinearGeometry,
) -> FloatTensor<B> {
    if channels.is_empty() {
        let shape = [geometry.input_features(), geometry.output_features];
        return zeros::<B>(&output_gradient, &shape);
    }
    let gradient = linear::weight_gradient::<B>(input, output_gradient);
    B::place(gradient, 0, channels.to_vec(), geometry.input_features())
}

fn weight_shape(conv: &ConvGeometry) -> [usize; 4] {
    let [rows, columns] = conv.kernel;
    let group_channels = conv.input_channels / conv.groups;
    [conv.output_channels, group_channels, rows, columns]
}

fn zeros<B: FrugalOps>(like: &FloatTensor<B>, shape: &[usize]) -> FloatTensor<B> {
    B::float_zeros(
        Shape::from(shape.to_vec()),
        &like.device(),
        like.dtype().into(),
    )
}

fn select<B: FrugalOps>(tensor: FloatTensor<B>, axis: usize, places: &[usize]) -> FloatTensor<B> {
    let places: Vec<i32> = places.iter().map(|&place| place as i32).collect();
    let count = places.len();
    let indices = B::int_from_data(TensorData::new(places, [count]), &tensor.device());
    B::float_select(tensor, axis, indices)
}
