//! Plain definitions of what belongs to an input channel: its weights, their norm and gradients.

use burn_frugal::kernels::ConvGeometry;
use burn_frugal::nn::{Conv2d, Linear};

/// The input channel of every weight `[outputs, inputs / groups, rows, columns]`.
pub fn channels_of_conv(conv: &Conv2d) -> Vec<usize> {
    let [outputs, group_inputs, rows, columns] = conv.weight.dims();
    let mut channels = Vec::new();
    for output in 0..outputs {
        let group = output / (outputs / conv.groups);
        for place in 0..group_inputs {
            channels.extend(vec![group * group_inputs + place; rows * columns]);
        }
    }
    channels
}

/// The input feature of every weight `[inputs, outputs]`.
pub fn channels_of_linear(linear: &Linear) -> Vec<usize> {
    let [inputs, outputs] = linear.weight.dims();
    (0..inputs).flat_map(|input| vec![input; outputs]).collect()
}

/// The Euclidean norm over the values of each channel.
pub fn norms(channel_of: &[usize], values: &[f64]) -> Vec<f64> {
    let channels = channel_of.iter().max().map_or(0, |last| last + 1);
    let norm = |channel: usize| {
        let of_channel = values.iter().zip(channel_of);
        let squares = of_channel.filter(|(_, of)| **of == channel);
        squares.map(|(value, _)| value * value).sum::<f64>().sqrt()
    };
    (0..channels).map(norm).collect()
}

/// The definition: `dL/dW[o, c, i, j]`, the sum over all outputs of their gradient times the input
/// that the weight multiplies.
pub fn exact_conv_gradient(geometry: &ConvGeometry, input: &[f64], upstream: &[f64]) -> Vec<f64> {
    let [height, width] = geometry.input;
    let [rows, columns] = geometry.output();
    let group_inputs = geometry.input_channels / geometry.groups;
    let group_outputs = geometry.output_channels / geometry.groups;
    // where a tap reads, `None` on padding
    let place = |axis: usize, output: usize, tap: usize| {
        let padded = output * geometry.stride[axis] + tap * geometry.dilation[axis];
        let place = padded.checked_sub(geometry.padding[axis].0)?;
        (place < geometry.input[axis]).then_some(place)
    };
    let mut gradient = Vec::new();
    for output in 0..geometry.output_channels {
        for of_group in 0..group_inputs {
            let channel = output / group_outputs * group_inputs + of_group;
            for i in 0..geometry.kernel[0] {
                for j in 0..geometry.kernel[1] {
                    let mut sum = 0.0;
                    for image in 0..geometry.batch {
                        let x = (image * geometry.input_channels + channel) * height * width;
                        let y = (image * geometry.output_channels + output) * rows * columns;
                        for row in 0..rows {
                            for column in 0..columns {
                                if let (Some(h), Some(w)) = (place(0, row, i), place(1, column, j))
                                {
                                    sum += input[x + h * width + w]
                                        * upstream[y + row * columns + column];
                                }
                            }
                        }
                    }
                    gradient.push(sum);
                }
            }
        }
    }
    gradient
}

/// The definition: `dL/dW[i, o]`, the sum over all rows of the input times the output's gradient.
pub fn exact_linear_gradient(
    [inputs, outputs]: [usize; 2],
    input: &[f64],
    upstream: &[f64],
) -> Vec<f64> {
    let mut gradient = vec![0.0; inputs * outputs];
    for (x, y) in input
        .chunks_exact(inputs)
        .zip(upstream.chunks_exact(outputs))
    {
        for (place, gradient) in gradient.iter_mut().enumerate() {
            *gradient += x[place / outputs] * y[place % outputs];
        }
    }
    gradient
}
