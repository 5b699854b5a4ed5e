//! Guards each backend's overrides of `FrugalOps`: on random geometries, in both precisions, they
//! compute what the portable bodies made of Burn's own operations compute. All values are small
//! integers or quarters of them: no operation but the decomposition rounds, so the results are equal
//! whatever the order of their sums.
// Burn deprecates its ndarray backend; burn-frugal supports it until Burn drops it, so it is tested.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

use burn::backend::{DispatchKindConversion, DispatchTensor, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_frugal::kernels::{Activation, Bits, ConvGeometry, PoolGeometry, Span, Tiles};
use burn_frugal::ops::{FrugalOps, MaybeFloat, portable};
use burn_frugal_tests::{random_dtype, relative_error, values};
use proptest::prelude::*;

const DTYPES: [DType; 2] = [DType::F32, DType::F64];

/// A backend, with a way to its tensors from those of the public interface and back.
struct Witness<B> {
    device: Device,
    dtype: DType,
    backend: std::marker::PhantomData<B>,
}

impl<B: FrugalOps> Witness<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn new(device: &Device, dtype: DType) -> Self {
        Self {
            device: device.clone(),
            dtype,
            backend: std::marker::PhantomData,
        }
    }

    /// Integers from -8 to 8.
    fn integers<const D: usize>(&self, seed: u64, shape: [usize; D]) -> Tensor<D> {
        (random_dtype(seed, shape, &self.device, self.dtype) * 8.0).round()
    }

    fn primitive<const D: usize>(&self, tensor: Tensor<D>) -> FloatTensor<B> {
        tensor
            .try_into_primitive::<B>()
            .expect("a tensor of this backend")
    }

    /// A matrix of integers, with rows and columns swapped in memory.
    fn matrix(&self, seed: u64, [rows, columns]: [usize; 2]) -> FloatTensor<B> {
        self.primitive(self.integers(seed, [columns, rows]).swap_dims(0, 1))
    }

    /// Integers, with rows and columns swapped in memory.
    fn strided(&self, seed: u64, [a, b, c, d]: [usize; 4]) -> FloatTensor<B> {
        let swapped = self.integers(seed, [a, b, d, c]);
        self.primitive(swapped.swap_dims(2, 3))
    }
}

fn numbers<B: FrugalOps>(tensor: FloatTensor<B>) -> Vec<f64>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match tensor.shape().num_dims() {
        1 => values(Tensor::<1>::from_primitive::<B>(tensor)),
        2 => values(Tensor::<2>::from_primitive::<B>(tensor)),
        _ => values(Tensor::<4>::from_primitive::<B>(tensor)),
    }
}

fn same<B: FrugalOps>(
    what: &str,
    found: FloatTensor<B>,
    expected: FloatTensor<B>,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    prop_assert_eq!(found.shape(), expected.shape(), "{}", what);
    prop_assert_eq!(found.dtype(), expected.dtype(), "{}", what);
    prop_assert_eq!(numbers::<B>(found), numbers::<B>(expected), "{}", what);
    Ok(())
}

fn convolutions<B: FrugalOps>(device: &Device, g: ConvGeometry) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let [height, width] = g.input;
    let [output_height, output_width] = g.output();
    let input_shape = [g.batch, g.input_channels, height, width];
    let output_shape = [g.batch, g.output_channels, output_height, output_width];
    let group_channels = g.input_channels / g.groups;
    let weight_shape = [g.output_channels, group_channels, g.kernel[0], g.kernel[1]];
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let input = backend.strided(1, input_shape);
        let weight = backend.strided(2, weight_shape);
        let gradient = backend.strided(3, output_shape);
        let bias = || MaybeFloat::Some(backend.primitive(backend.integers(4, [g.output_channels])));

        same::<B>(
            "output",
            B::convolution(input.clone(), weight.clone(), bias(), g),
            portable::convolution::<B>(input.clone(), weight.clone(), bias(), &g),
        )?;
        same::<B>(
            "output without bias",
            B::convolution(input.clone(), weight.clone(), MaybeFloat::None, g),
            portable::convolution::<B>(input.clone(), weight.clone(), MaybeFloat::None, &g),
        )?;
        same::<B>(
            "input gradient",
            B::convolution_input_gradient(weight.clone(), gradient.clone(), g),
            portable::convolution_input_gradient::<B>(weight, gradient.clone(), &g),
        )?;
        same::<B>(
            "weight gradient",
            B::convolution_weight_gradient(input.clone(), gradient.clone(), g),
            portable::convolution_weight_gradient::<B>(input, gradient.clone(), &g),
        )?;
        same::<B>(
            "channel sums",
            B::channel_sums(gradient.clone()),
            portable::channel_sums::<B>(gradient),
        )?;
    }
    Ok(())
}

fn tiles<B: FrugalOps>(
    device: &Device,
    [batch, channels]: [usize; 2],
    size: [usize; 2],
    tiles: &Tiles,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let map = backend.strided(1, [batch, channels, size[0], size[1]]);
        let tile_shape = [batch, channels, tiles.rows.len(), tiles.columns.len()];
        let per_tile = backend.strided(2, tile_shape);
        same::<B>(
            "tile sums",
            B::tile_sums(map.clone(), tiles.clone()),
            portable::tile_sums::<B>(map.clone(), tiles),
        )?;
        same::<B>(
            "tile spread",
            B::tile_spread(per_tile.clone(), tiles.clone(), size),
            portable::tile_spread::<B>(per_tile, tiles, size),
        )?;
        let owned = B::own(map.clone());
        prop_assert_eq!(numbers::<B>(owned), numbers::<B>(map), "own");
    }
    Ok(())
}

fn activations<B: FrugalOps>(device: &Device, shape: [usize; 4]) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let input = backend.strided(1, shape);
        let gradient = backend.strided(2, shape);
        for activation in [Activation::Relu, Activation::Relu6, Activation::HardSwish] {
            let expected = portable::activation::<B>(input.clone(), activation);
            let plain = B::activation(input.clone(), activation);
            same::<B>("activation", plain, expected.clone())?;
            let (output, mask) = B::activation_with_mask(input.clone(), activation);
            same::<B>("activation with a mask", output, expected)?;
            let (_, whole) = portable::activation_with_mask::<B>(input.clone(), activation);
            let found = B::mask_gradient(mask, gradient.clone(), activation);
            let expected = portable::mask_gradient::<B>(whole, gradient.clone(), activation);
            prop_assert_eq!(found.dtype(), dtype);
            // slopes of hard swish are 127ths, which round
            let tolerance = if activation == Activation::HardSwish {
                4.0 * dtype.finfo().expect("a float").epsilon
            } else {
                0.0
            };
            let error = relative_error(&numbers::<B>(found), &numbers::<B>(expected));
            prop_assert!(
                error <= tolerance,
                "masked gradient, {activation:?}: {error:e}"
            );
        }
    }
    Ok(())
}

/// Max pooling of integers, many of which are equal, and of some infinities.
fn pools<B: FrugalOps>(
    device: &Device,
    [batch, channels]: [usize; 2],
    geometry: PoolGeometry,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let geometry = PoolGeometry {
        maps: batch * channels,
        ..geometry
    };
    let shape = |[height, width]: [usize; 2]| [batch, channels, height, width];
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let [height, width] = geometry.input;
        let integers = backend.integers(1, [batch, channels, width, height]);
        let infinite = integers.clone().lower_elem(0);
        let infinite = integers.clone().mask_fill(infinite, f64::NEG_INFINITY);
        let gradient = backend.strided(2, shape(geometry.output));
        for input in [integers, infinite] {
            let input = backend.primitive(input.swap_dims(2, 3));
            let (expected, expected_taps) =
                portable::max_pool_with_taps::<B>(input.clone(), &geometry);
            same::<B>(
                "max pool",
                B::max_pool(input.clone(), geometry),
                expected.clone(),
            )?;
            let (found, taps) = B::max_pool_with_taps(input, geometry);
            same::<B>("max pool with taps", found, expected)?;
            same::<B>(
                "max pool's input gradient",
                B::max_pool_input_gradient(taps, gradient.clone(), geometry),
                portable::max_pool_input_gradient::<B>(expected_taps, gradient.clone(), &geometry),
            )?;
        }
    }
    Ok(())
}

/// There and back, in rows of the last `axes` axes.
fn quantized<B: FrugalOps>(
    device: &Device,
    shape: [usize; 4],
    axes: usize,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let row_len = shape[4 - axes..].iter().product();
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let [a, b, c, d] = shape;
        let signed = random_dtype(1, [a, b, d, c], device, dtype).swap_dims(2, 3);
        let zero = signed.zeros_like();
        // a row here and there has no negative values, or nothing at all
        let some = signed.clone().slice_fill(0..1, 0.0);
        for values in [signed.clone(), signed.clone().abs(), some, zero] {
            let expected_values: Vec<f64> = burn_frugal_tests::values(values.clone());
            let values = backend.primitive(values);
            for (bits, levels) in [(Bits::Eight, [255.0, 127.0]), (Bits::Four, [15.0, 7.0])] {
                let (codes, scales) = B::quantize_rows(values.clone(), bits, row_len);
                let found =
                    B::dequantize_rows(codes, scales, bits, Shape::from(shape), dtype.into());
                let (codes, scales) = portable::quantize_rows::<B>(values.clone(), bits, row_len);
                let expected = portable::dequantize_rows::<B>(
                    codes,
                    scales,
                    bits,
                    Shape::from(shape),
                    dtype.into(),
                );
                if dtype == DType::F32 {
                    same::<B>("quantized", found, expected)?;
                    continue;
                }
                // the portable body finds codes in single precision: next to a tie, another one
                for there_and_back in [found, expected] {
                    prop_assert_eq!(there_and_back.shape(), Shape::from(shape));
                    prop_assert_eq!(there_and_back.dtype(), dtype);
                    let found = numbers::<B>(there_and_back);
                    let rows = found.chunks(row_len).zip(expected_values.chunks(row_len));
                    for (found, expected) in rows {
                        let most = expected
                            .iter()
                            .fold(0.0, |most: f64, it| most.max(it.abs()));
                        let negative = expected.iter().any(|value| *value < 0.0);
                        let step = most / levels[usize::from(negative)];
                        for (found, expected) in found.iter().zip(expected) {
                            let off = (found - expected).abs();
                            prop_assert!(off <= step * 0.50001, "{bits:?}: {off} of {step}");
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Products along a mode of a tensor, with a factor of this rank.
fn modes<B: FrugalOps>(
    device: &Device,
    shape: [usize; 4],
    mode: usize,
    rank: usize,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let tensor = backend.strided(1, shape);
        let factor = backend.matrix(2, [shape[mode], rank]);
        let mut core_shape = shape;
        core_shape[mode] = rank;
        let core = backend.strided(3, core_shape);
        same::<B>(
            "mode project",
            B::mode_project(tensor.clone(), factor.clone(), mode),
            portable::mode_project::<B>(tensor.clone(), factor.clone(), mode),
        )?;
        same::<B>(
            "mode expand",
            B::mode_expand(core.clone(), factor.clone(), mode),
            portable::mode_expand::<B>(core, factor.clone(), mode),
        )?;
        same::<B>(
            "subspace product",
            B::subspace_product(tensor.clone(), factor.clone(), mode),
            portable::subspace_product::<B>(tensor.clone(), factor, mode),
        )?;
        // the override is in double precision whatever the tensor is
        let gram = B::gram(tensor.clone(), mode);
        let expected = portable::gram::<B>(tensor, mode);
        prop_assert_eq!(gram.shape(), expected.shape(), "gram");
        prop_assert_eq!(gram.dtype(), DType::F64, "gram");
        prop_assert_eq!(numbers::<B>(gram), numbers::<B>(expected), "gram");
    }
    Ok(())
}

/// The Q of a matrix with at least as many rows as columns, some of them dependent or not finite.
fn bases<B: FrugalOps>(
    device: &Device,
    [rows, columns]: [usize; 2],
    flaw: Flaw,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    for dtype in DTYPES {
        let backend = Witness::<B>::new(device, dtype);
        let matrix = backend.integers(1, [columns, rows]).swap_dims(0, 1);
        let matrix = match flaw {
            Flaw::None => matrix,
            Flaw::Zero => matrix.zeros_like(),
            Flaw::EqualColumns => matrix.narrow(1, 0, 1).repeat_dim(1, columns),
            Flaw::NotANumber => matrix
                .clone()
                .mask_fill(matrix.lower_equal_elem(0), f32::NAN),
        };
        let matrix = backend.primitive(matrix);
        same::<B>(
            "orthonormalize",
            B::orthonormalize(matrix.clone()),
            portable::orthonormalize::<B>(matrix.clone()),
        )?;
        let basis = numbers::<B>(B::orthonormalize(matrix));
        for left in 0..columns {
            for right in 0..=left {
                let products = basis.chunks(columns).map(|row| row[left] * row[right]);
                let off = products.sum::<f64>() - f64::from(left == right);
                prop_assert!(off.abs() < 1e-5, "{flaw:?}: {off:e}");
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Flaw {
    None,
    Zero,
    EqualColumns,
    NotANumber,
}

/// Half precision, where the backend has it: sums over a whole tensor are single precision.
fn half_modes<B: FrugalOps>(
    device: &Device,
    shape: [usize; 4],
    mode: usize,
    rank: usize,
) -> Result<(), TestCaseError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let halves = [DType::F16, DType::BF16];
    for dtype in halves
        .into_iter()
        .filter(|&dtype| device.supports_dtype(dtype))
    {
        let [half, single] = [dtype, DType::F32].map(|dtype| {
            let backend = Witness::<B>::new(device, DType::F32);
            // from -1 to 1: half precision holds every sum
            let tensor = backend.integers(1, shape).sign().cast(dtype);
            let factor = backend.integers(2, [shape[mode], rank]).sign().cast(dtype);
            let [tensor, factor] = [backend.primitive(tensor), backend.primitive(factor)];
            let projected = B::mode_project(tensor.clone(), factor.clone(), mode);
            let expanded = B::mode_expand(projected.clone(), factor.clone(), mode);
            let product = B::subspace_product(tensor.clone(), factor, mode);
            let gram = B::gram(tensor, mode);
            let dtypes = [projected.dtype(), expanded.dtype()];
            let found = [projected, expanded, product, gram].map(numbers::<B>);
            (dtypes, found)
        });
        prop_assert_eq!(half.0, [dtype; 2]);
        prop_assert_eq!(half.1, single.1, "{:?}", dtype);
        let backend = Witness::<B>::new(device, dtype);
        let matrix = backend.integers(3, [shape[mode].max(rank), rank]);
        let basis = B::orthonormalize(backend.primitive(matrix));
        prop_assert_eq!(basis.dtype(), dtype);
        prop_assert!(numbers::<B>(basis).iter().all(|value| value.abs() <= 1.01));
    }
    Ok(())
}

/// Sizes with ones among them, a mode and a rank.
fn unfolded() -> impl Strategy<Value = ([usize; 4], usize, usize)> {
    let size = || prop_oneof![1 => Just(1_usize), 3 => 1_usize..8];
    ([size(), size(), size(), size()], 0_usize..4, 1_usize..9)
}

/// Rows, columns and what is wrong with a matrix.
fn tall() -> impl Strategy<Value = ([usize; 2], Flaw)> {
    let flaws = prop_oneof![
        Just(Flaw::None),
        Just(Flaw::Zero),
        Just(Flaw::EqualColumns),
        Just(Flaw::NotANumber),
    ];
    let sizes = (1_usize..9, 0_usize..9);
    (sizes, flaws).prop_map(|((columns, more), flaw)| ([columns + more, columns], flaw))
}

/// Input size, kernel, stride, padding and dilation of one axis.
type AxisSizes = (usize, usize, usize, (usize, usize), usize);

/// The sizes of an axis that the kernel fits in.
fn axis() -> impl Strategy<Value = AxisSizes> {
    let sizes = (
        1_usize..10,
        1_usize..6,
        1_usize..6,
        (0_usize..7, 0_usize..7),
        1_usize..4,
    );
    sizes.prop_map(|(extra, kernel, stride, padding, dilation)| {
        let extent = dilation * (kernel - 1) + 1;
        let input = (extent + extra - 1)
            .saturating_sub(padding.0 + padding.1)
            .max(1);
        (input, kernel, stride, padding, dilation)
    })
}

fn layer() -> impl Strategy<Value = ConvGeometry> {
    let channels = (1_usize..4, 1_usize..4, 1_usize..4);
    (0_usize..4, channels, axis(), axis()).prop_map(
        |(batch, (groups, inputs, outputs), vertical, horizontal)| ConvGeometry {
            batch,
            input_channels: groups * inputs,
            output_channels: groups * outputs,
            input: [vertical.0, horizontal.0],
            kernel: [vertical.1, horizontal.1],
            stride: [vertical.2, horizontal.2],
            padding: [vertical.3, horizontal.3],
            dilation: [vertical.4, horizontal.4],
            groups,
        },
    )
}

/// A pooling in which every window has a pixel, its last windows in the padding or not.
fn pooling() -> impl Strategy<Value = PoolGeometry> {
    let outputs = |(input, kernel, stride, padding, dilation): AxisSizes, more: usize| {
        let extent = dilation * (kernel - 1) + 1;
        let room = (input + padding.0 + padding.1).saturating_sub(extent);
        room / stride + 1 + more
    };
    (axis(), axis(), 0_usize..2, 0_usize..2)
        .prop_map(move |(vertical, horizontal, below, right)| PoolGeometry {
            maps: 1,
            input: [vertical.0, horizontal.0],
            output: [outputs(vertical, below), outputs(horizontal, right)],
            kernel: [vertical.1, horizontal.1],
            stride: [vertical.2, horizontal.2],
            padding: [vertical.3, horizontal.3],
            dilation: [vertical.4, horizontal.4],
        })
        .prop_filter("a window of padding only", |geometry| {
            geometry.check().is_ok()
        })
}

/// A size cut at random points; some spans are empty, and pixels between spans are in none.
fn spans() -> impl Strategy<Value = (usize, Vec<Span>)> {
    (1_usize..12, 1_usize..4).prop_flat_map(|(size, count)| {
        let cuts = prop::collection::vec(0..=size, 2 * count);
        let quarters = (-8_i32..9).prop_map(|quarters| f64::from(quarters) / 4.0);
        let weights = prop::collection::vec(quarters, count);
        (cuts, weights).prop_map(move |(mut cuts, weights)| {
            cuts.sort_unstable();
            let spans = cuts.chunks(2).zip(weights);
            let span = |(cut, weight): (&[usize], f64)| Span {
                start: cut[0],
                stop: cut[1],
                weight,
            };
            (size, spans.map(span).collect())
        })
    })
}

/// One module of tests a backend.
macro_rules! overrides_of {
    ($name:ident, $backend:ty, $device:expr) => {
        mod $name {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(128))]

                #[test]
                fn convolutions_are_the_portable_ones(geometry in layer()) {
                    convolutions::<$backend>(&$device, geometry)?;
                }

                #[test]
                fn tiles_are_the_portable_ones(
                    maps in (1_usize..4, 1_usize..4),
                    vertical in spans(),
                    horizontal in spans(),
                ) {
                    let size = [vertical.0, horizontal.0];
                    let cut = Tiles { rows: vertical.1, columns: horizontal.1 };
                    tiles::<$backend>(&$device, [maps.0, maps.1], size, &cut)?;
                }

                #[test]
                fn activations_are_the_portable_ones((shape, _, _) in unfolded()) {
                    activations::<$backend>(&$device, shape)?;
                }

                #[test]
                fn max_pools_are_the_portable_ones(
                    maps in (1_usize..4, 1_usize..4),
                    geometry in pooling(),
                ) {
                    pools::<$backend>(&$device, [maps.0, maps.1], geometry)?;
                }

                #[test]
                fn quantized_rows_are_the_portable_ones(
                    (shape, _, _) in unfolded(),
                    axes in 1_usize..4,
                ) {
                    quantized::<$backend>(&$device, shape, axes)?;
                }

                #[test]
                fn products_along_a_mode_are_the_portable_ones(
                    (shape, mode, rank) in unfolded(),
                ) {
                    modes::<$backend>(&$device, shape, mode, rank)?;
                    half_modes::<$backend>(&$device, shape, mode, rank)?;
                }

                #[test]
                fn bases_are_the_portable_ones_and_orthonormal((sizes, flaw) in tall()) {
                    bases::<$backend>(&$device, sizes, flaw)?;
                }
            }
        }
    };
}

/// Half precision is not left out everywhere.
#[cfg(feature = "flex")]
#[test]
fn flex_has_half_precision() {
    for dtype in [DType::F16, DType::BF16] {
        assert!(Device::flex().supports_dtype(dtype), "{dtype:?}");
    }
}

#[cfg(feature = "flex")]
overrides_of!(flex, burn::backend::Flex, Device::flex());
#[cfg(feature = "ndarray")]
overrides_of!(ndarray, burn::backend::NdArray, Device::ndarray());
