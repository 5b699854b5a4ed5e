//! 1x1 convolution with stride 1 and no padding: matrix products on the slices themselves, one per image and group.

use gemm::Parallelism;

use super::product_threads;
use crate::fresh::{in_parallel, in_turn};
use crate::parts::{share, sum_of_parts};
use crate::product::{Matrix, MatrixMut, Store, multiply};
use crate::{ConvGeometry, Element};

/// `Y[n, q] = W[q] X[n, q]` for image `n` and group `q`.
pub(super) fn forward<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
) -> Vec<T> {
    let (inputs, outputs, pixels) = sizes(geometry);
    each_group(geometry, outputs * pixels, |unit, parallelism, output| {
        let group = unit % geometry.groups;
        let weight = &weight[group * outputs * inputs..][..outputs * inputs];
        let input = &input[unit * inputs * pixels..][..inputs * pixels];
        if let Some(bias) = bias {
            super::fill_bias(&bias[group * outputs..][..outputs], pixels, output);
        }
        multiply(
            Matrix::new(weight, outputs, inputs, inputs),
            Matrix::new(input, inputs, pixels, pixels),
            MatrixMut {
                data: output,
                row_stride: pixels,
            },
            Store::add_if(bias.is_some()),
            parallelism,
        );
    })
}

/// `GX[n, q] = W[q]^T GY[n, q]` for image `n` and group `q`.
pub(super) fn input_gradient<T: Element>(
    geometry: &ConvGeometry,
    weight: &[T],
    output_gradient: &[T],
) -> Vec<T> {
    let (inputs, outputs, pixels) = sizes(geometry);
    each_group(
        geometry,
        inputs * pixels,
        |unit, parallelism, input_gradient| {
            let group = unit % geometry.groups;
            let weight = &weight[group * outputs * inputs..][..outputs * inputs];
            let output_gradient = &output_gradient[unit * outputs * pixels..][..outputs * pixels];
            multiply(
                Matrix::new(weight, outputs, inputs, inputs).transposed(),
                Matrix::new(output_gradient, outputs, pixels, pixels),
                MatrixMut {
                    data: input_gradient,
                    row_stride: pixels,
                },
                Store::Replace,
                parallelism,
            );
        },
    )
}

/// `GW[q] = sum over n of GY[n, q] X[n, q]^T` for group `q`.
pub(super) fn weight_gradient<T: Element>(
    geometry: &ConvGeometry,
    input: &[T],
    output_gradient: &[T],
    weight_gradient: &mut [T],
) {
    let (inputs, outputs, pixels) = sizes(geometry);
    let threads = product_threads(geometry);
    // With too few images to go round, the threads share each product instead.
    let (parts, parallelism) = if geometry.batch < threads {
        (1, Parallelism::Rayon(0))
    } else {
        (threads, Parallelism::None)
    };
    sum_of_parts(parts, weight_gradient, |part, weight_gradient| {
        let images = share(geometry.batch, part, parts);
        for image in images.clone() {
            for (group, weight_gradient) in weight_gradient
                .chunks_exact_mut(outputs * inputs)
                .enumerate()
            {
                let unit = image * geometry.groups + group;
                let output_gradient =
                    &output_gradient[unit * outputs * pixels..][..outputs * pixels];
                let input = &input[unit * inputs * pixels..][..inputs * pixels];
                multiply(
                    Matrix::new(output_gradient, outputs, pixels, pixels),
                    Matrix::new(input, inputs, pixels, pixels).transposed(),
                    MatrixMut {
                        data: weight_gradient,
                        row_stride: inputs,
                    },
                    Store::add_if(image > images.start),
                    parallelism,
                );
            }
        }
    });
}

/// Input channels per group, output channels per group, pixels.
fn sizes(geometry: &ConvGeometry) -> (usize, usize, usize) {
    (
        geometry.group_inputs(),
        geometry.group_outputs(),
        geometry.input_pixels(),
    )
}

/// A map `[batch, groups, len]`, whose parts `work(image * groups + group, parallelism, part)` computes.
fn each_group<T: Element>(
    geometry: &ConvGeometry,
    len: usize,
    work: impl Fn(usize, Parallelism, &mut [T]) + Sync,
) -> Vec<T> {
    let units = geometry.batch * geometry.groups;
    let threads = product_threads(geometry);
    if threads == 1 {
        in_turn(units * len, len, |unit, part| {
            work(unit, Parallelism::None, part)
        })
    } else if units < threads {
        in_turn(units * len, len, |unit, part| {
            work(unit, Parallelism::Rayon(0), part)
        })
    } else {
        in_parallel(units * len, len, |unit, part| {
            work(unit, Parallelism::None, part)
        })
    }
}
