//! Gradient filtering: gradients that are constant on tiles of the map (arXiv 2301.00330).
//!
//! The output is cut into tiles of side `r` (the patch). Every tile's gradient is replaced by its
//! mean, as if the neighbouring tiles carried the same value; the shift of a kernel tap inside the
//! map then no longer matters and the convolution collapses to a product per tile:
//!
//! - `dW[o, c, i, j] = sum over n, tile of mean(dy[n, o, tile]) * kept[n, c, tile]`, the same for
//!   every tap `(i, j)`;
//! - `dx[n, c, pixel of tile] = sum over o of mean(dy[n, o, tile]) * sum over i, j of W[o, c, i, j]`.
//!
//! `kept` is one number a tile and channel, the only thing that stays of the input. The bias
//! gradient is the exact one up to rounding.

use burn::backend::tensor::FloatTensor;
use burn_frugal_kernels::{ConvGeometry, Span, Tiles};
use serde::{Deserialize, Serialize};

use super::{Flops, LayerKind, LayerShape, Saved, Transient, Unsuitable};
use crate::ops::FrugalOps;

/// Gradient filtering with one patch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradientFilter {
    /// Side of a tile of the output, in pixels. 1 is the exact gradient.
    pub patch: usize,
    /// How a tile of the output is paired with the input.
    #[serde(default)]
    pub scaling: Scaling,
}

/// How a tile of the output is paired with pixels of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// Every tile is paired with the input pixels under the kernel's centre, weighted so that a
    /// constant map gives the exact sum. Any stride, padding, dilation and groups. For stride 1 and
    /// padding that keeps the size it equals the published operator.
    #[default]
    MassPreserving,
    /// The operator as its authors released it, for comparison with the paper: input and output
    /// grids are rounded independently and a stride `s` makes both gradients `s * s` too large.
    /// Dense and depthwise convolutions only, with padding that reaches the border.
    Published,
}

impl GradientFilter {
    /// Whether a layer with this geometry can use the filter, whatever the input's size.
    pub(super) fn check(&self, layer: &LayerShape) -> Result<(), Unsuitable> {
        if layer.kind == LayerKind::Linear {
            return Err(Unsuitable::FilterOnLinear);
        }
        if self.patch == 0 {
            return Err(Unsuitable::Patch { found: self.patch });
        }
        let [channels_in, channels_out] = layer.channels;
        let depthwise = layer.groups == channels_in && layer.groups == channels_out;
        if self.patch > 1 && self.scaling == Scaling::Published && layer.groups != 1 && !depthwise {
            return Err(Unsuitable::PublishedGroups {
                channels: layer.channels,
                groups: layer.groups,
            });
        }
        Ok(())
    }

    /// Elements of [`keep`](Self::keep)'s result.
    pub(super) fn elements(&self, geometry: &ConvGeometry) -> usize {
        let [rows, columns] = geometry.output().map(|size| size.div_ceil(self.patch));
        geometry.batch * geometry.input_channels * rows * columns
    }

    /// Elements of [`means`](Self::means)' result.
    pub(super) fn means_len(&self, geometry: &ConvGeometry) -> usize {
        let [rows, columns] = geometry.output().map(|size| size.div_ceil(self.patch));
        geometry.batch * geometry.output_channels * rows * columns
    }

    /// Both gradients before they are spread, and the sums of the kernels.
    pub(super) fn transient(&self, geometry: &ConvGeometry) -> Transient {
        let kernels = match geometry.kernel {
            [1, 1] => 0,
            kernel => geometry.weight_len() / (kernel[0] * kernel[1]),
        };
        Transient {
            keep: 0,
            weight_gradient: kernels,
            input_gradient: self.elements(geometry) + kernels,
        }
    }

    /// Every pooling and spreading is one operation an element, the products are those on tiles. The
    /// means of the output's gradient, which all gradients share, count with the weight's.
    pub(super) fn flops(&self, geometry: &ConvGeometry) -> Flops {
        let [input, output] = [geometry.input_len(), geometry.output_len()].map(|len| len as u64);
        let kernel_sums = match geometry.kernel {
            [1, 1] => 0,
            _ => geometry.weight_len() as u64,
        };
        let on_tiles = 2 * self.on_tiles(geometry).macs();
        Flops {
            forward: input,
            weight_gradient: output + on_tiles,
            input_gradient: kernel_sums + on_tiles + input,
        }
    }

    /// Sums the input over each tile.
    pub(super) fn keep<B: FrugalOps>(
        &self,
        input: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> Saved<B> {
        Saved::Tiles(B::tile_sums(input, self.kept_tiles(geometry)))
    }

    /// The mean of the output's gradient over each tile.
    pub(super) fn means<B: FrugalOps>(
        &self,
        output_gradient: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        B::tile_sums(output_gradient, self.output_tiles(geometry))
    }

    /// The tile-constant weight gradient, `[channels_out, channels_in / groups, kernel, kernel]`.
    pub(super) fn weight_gradient<B: FrugalOps>(
        &self,
        kept: FloatTensor<B>,
        means: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        let taps = B::convolution_weight_gradient(kept, means, self.on_tiles(geometry));
        if geometry.kernel == [1, 1] {
            return taps;
        }
        B::tile_spread(taps, whole(geometry.kernel), geometry.kernel)
    }

    /// The bias gradient, `[channels_out]`: the means times their tiles' pixels, so that the output's
    /// gradient is read only once.
    pub(super) fn bias_gradient<B: FrugalOps>(
        &self,
        means: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        // tiles of one size lie side by side: few sums, each times its tiles' height and width
        let [rows, columns] = geometry.output().map(|size| {
            let mut regions: Vec<Span> = Vec::new();
            for (tile, (start, stop)) in centred_tiles(size, self.patch).into_iter().enumerate() {
                let weight = (stop - start) as f64;
                match regions.last_mut() {
                    Some(region) if region.weight == weight => region.stop += 1,
                    _ => regions.push(Span {
                        start: tile,
                        stop: tile + 1,
                        weight,
                    }),
                }
            }
            regions
        });
        B::channel_sums(B::tile_sums(means, Tiles { rows, columns }))
    }

    /// The tile-constant input gradient, `[batch, channels_in, height, width]`.
    pub(super) fn input_gradient<B: FrugalOps>(
        &self,
        weight: FloatTensor<B>,
        means: FloatTensor<B>,
        geometry: &ConvGeometry,
    ) -> FloatTensor<B> {
        let kernel_sums = match geometry.kernel {
            [1, 1] => weight,
            kernel => B::tile_sums(weight, whole(kernel)),
        };
        let values = B::convolution_input_gradient(kernel_sums, means, self.on_tiles(geometry));
        B::tile_spread(values, self.spread_tiles(geometry), geometry.input)
    }

    /// The convolution that is left once every tile is one pixel and every kernel one number.
    fn on_tiles(&self, geometry: &ConvGeometry) -> ConvGeometry {
        ConvGeometry {
            input: geometry.output().map(|size| size.div_ceil(self.patch)),
            kernel: [1, 1],
            stride: [1, 1],
            padding: [(0, 0), (0, 0)],
            dilation: [1, 1],
            ..*geometry
        }
    }

    /// Tiles of the output, weighted to give means.
    fn output_tiles(&self, geometry: &ConvGeometry) -> Tiles {
        let [rows, columns] = geometry.output().map(|size| {
            let tiles = centred_tiles(size, self.patch).into_iter();
            let means = tiles.map(|(start, stop)| Span {
                start,
                stop,
                weight: 1.0 / (stop - start) as f64,
            });
            means.collect()
        });
        Tiles { rows, columns }
    }

    /// Tiles of the input as they are summed when it is kept.
    fn kept_tiles(&self, geometry: &ConvGeometry) -> Tiles {
        self.input_tiles(geometry, |output_len, input_len| match self.scaling {
            // outputs in the tile x mean of the input: a clipped footprint keeps its mass
            Scaling::MassPreserving => output_len as f64 / input_len.max(1) as f64,
            Scaling::Published => 1.0,
        })
    }

    /// Tiles of the input over which a tile's gradient is spread.
    fn spread_tiles(&self, geometry: &ConvGeometry) -> Tiles {
        let mut tiles = self.input_tiles(geometry, |_, _| 1.0);
        if self.scaling == Scaling::MassPreserving {
            // each output pixel of the tile owns stride x stride input pixels
            for (spans, stride) in [&mut tiles.rows, &mut tiles.columns]
                .into_iter()
                .zip(geometry.stride)
            {
                for span in spans {
                    span.weight = 1.0 / stride as f64;
                }
            }
        }
        tiles
    }

    /// The input pixels that belong to each tile of the output; `weight(output_len, input_len)` is
    /// a span's weight along its axis.
    fn input_tiles(&self, geometry: &ConvGeometry, weight: impl Fn(usize, usize) -> f64) -> Tiles {
        let axis = |axis: usize| {
            let footprints = match self.scaling {
                Scaling::MassPreserving => self.footprints(geometry, axis),
                Scaling::Published => self.published_windows(geometry, axis),
            };
            let tiles = centred_tiles(geometry.output()[axis], self.patch);
            let spans = footprints.into_iter().zip(tiles);
            spans
                .map(|((start, stop), tile)| Span {
                    start,
                    stop,
                    weight: weight(tile.1 - tile.0, stop - start),
                })
                .collect()
        };
        Tiles {
            rows: axis(0),
            columns: axis(1),
        }
    }

    /// Input pixels under the kernel's centre while the output runs over each tile, clipped to the
    /// input: `[s start + d (k - 1) / 2 - p, s stop + d (k - 1) / 2 - p)`.
    fn footprints(&self, geometry: &ConvGeometry, axis: usize) -> Vec<(usize, usize)> {
        let centre = geometry.dilation[axis].saturating_mul(geometry.kernel[axis] - 1) / 2;
        let clip = |output: usize| {
            // a stride larger than any map leaves it at the first output
            geometry.stride[axis]
                .saturating_mul(output)
                .saturating_add(centre)
                .saturating_sub(geometry.padding[axis].0)
                .min(geometry.input[axis])
        };
        centred_tiles(geometry.output()[axis], self.patch)
            .into_iter()
            .map(|(start, stop)| (clip(start), clip(stop)))
            .collect()
    }

    /// Input windows of the released operator: tiles of `patch * stride`, centred on the input.
    fn published_windows(&self, geometry: &ConvGeometry, axis: usize) -> Vec<(usize, usize)> {
        let size = geometry.input[axis];
        // a patch larger than any map is one tile
        let side = self.patch.saturating_mul(geometry.stride[axis]);
        let tiles = geometry.output()[axis].div_ceil(self.patch);
        assert!(
            tiles * side >= size,
            "gradient filter with Scaling::Published: {tiles} tiles of {side} pixels do not cover \
             the input's {size} (the released operator fails on convolutions whose padding does \
             not reach the border); use Scaling::MassPreserving",
        );
        centred(size, side, tiles)
    }
}

/// One tile that is the whole of a map.
fn whole(size: [usize; 2]) -> Tiles {
    let [rows, columns] = size.map(|stop| {
        vec![Span {
            start: 0,
            stop,
            weight: 1.0,
        }]
    });
    Tiles { rows, columns }
}

/// `size` pixels cut into `ceil(size / patch)` tiles, the surplus shared by the two border tiles.
fn centred_tiles(size: usize, patch: usize) -> Vec<(usize, usize)> {
    centred(size, patch, size.div_ceil(patch))
}

/// `tiles` windows of `side` pixels laid over `size` pixels with their middles together, clipped.
fn centred(size: usize, side: usize, tiles: usize) -> Vec<(usize, usize)> {
    let before = (tiles * side).saturating_sub(size).div_ceil(2);
    let clip = |edge: usize| edge.saturating_sub(before).min(size);
    (0..tiles)
        .map(|tile| (clip(tile * side), clip((tile + 1) * side)))
        .collect()
}
