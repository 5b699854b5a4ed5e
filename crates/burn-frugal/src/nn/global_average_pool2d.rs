use burn::backend::Dispatch;
use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal_kernels::{Span, Tiles};

use super::layer::dequantized;
use crate::ops::FrugalOps;

/// The mean of each map: Burn's [`AdaptiveAvgPool2d`](burn::nn::pool::AdaptiveAvgPool2d) to one pixel,
/// without the two axes that are left over. It keeps nothing between forward and backward, where
/// Burn's keeps its input.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::nn::GlobalAveragePool2d;
///
/// let maps = Tensor::<4>::ones([2, 8, 7, 7], &Device::default());
/// assert_eq!(GlobalAveragePool2d::new().forward(maps).dims(), [2, 8]);
/// ```
#[derive(Module, Debug, Default)]
pub struct GlobalAveragePool2d;

impl GlobalAveragePool2d {
    /// Creates the module.
    pub fn new() -> Self {
        Self
    }

    /// Averages each map.
    ///
    /// # Shapes
    /// - `input`: `[batch, channels, height, width]`
    /// - output: `[batch, channels]`
    pub fn forward(&self, input: Tensor<4>) -> Tensor<2> {
        let [batch, channels, height, width] = input.dims();
        let [rows, columns] = [height, width].map(|size| {
            vec![Span {
                start: 0,
                stop: size,
                weight: 1.0 / size as f64,
            }]
        });
        let input = dequantized(input).into_dispatch();
        let means = <Dispatch as FrugalOps>::average_pool(input, Tiles { rows, columns });
        Tensor::<4>::from_dispatch(means).reshape([batch, channels])
    }
}
