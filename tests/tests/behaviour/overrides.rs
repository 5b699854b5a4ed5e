//! Guards each backend's overrides of `FrugalOps`: on random geometries, in both precisions, they
//! compute what the portable bodies made of Burn's own operations compute. All values are small
//! integers or quarters of them: no operation rounds, so the results are equal whatever the order of
//! their sums.
// Burn deprecates its ndarray backend; burn-frugal supports it until Burn drops it, so it is tested.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

use burn::backend::{DispatchKindConversion, DispatchTensor, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::kernels::{ConvGeometry, Span, Tiles};
use burn_frugal::ops::{FrugalOps, MaybeFloat, portable};
use burn_frugal_tests::{random_dtype, values};
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

/// Input size, kernel, stride, padding and dilation of one axis; the kernel fits.
fn axis() -> impl Strategy<Value = (usize, usize, usize, (usize, usize), usize)> {
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
            }
        }
    };
}

#[cfg(feature = "flex")]
overrides_of!(flex, burn::backend::Flex, Device::flex());
#[cfg(feature = "ndarray")]
overrides_of!(ndarray, burn::backend::NdArray, Device::ndarray());
