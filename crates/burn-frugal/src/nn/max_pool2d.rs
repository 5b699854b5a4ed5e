use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::PaddingConfig2d;
use burn::tensor::Tensor;
use burn_frugal_kernels::PoolGeometry;

use super::layer::dequantized;
use super::padding::padding_pairs;
use crate::ops::FrugalOps;

/// Configuration of [2D max pooling](MaxPool2d), with the fields of
/// [Burn's](burn::nn::pool::MaxPool2dConfig).
///
/// # Example
/// ```
/// use burn_frugal::nn::MaxPool2dConfig;
///
/// let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).init();
/// ```
#[derive(Config, Debug)]
pub struct MaxPool2dConfig {
    /// The size of the kernel.
    pub kernel_size: [usize; 2],
    /// The strides.
    #[config(default = "kernel_size")]
    pub strides: [usize; 2],
    /// The padding configuration.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// The dilation.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// If true, use ceiling instead of floor for output size calculation.
    #[config(default = "false")]
    pub ceil_mode: bool,
}

impl MaxPool2dConfig {
    /// Creates the layer.
    pub fn init(&self) -> MaxPool2d {
        burn::nn::pool::MaxPool2dConfig::from(self.clone())
            .init()
            .into()
    }
}

impl From<burn::nn::pool::MaxPool2dConfig> for MaxPool2dConfig {
    fn from(config: burn::nn::pool::MaxPool2dConfig) -> Self {
        Self {
            kernel_size: config.kernel_size,
            strides: config.strides,
            padding: config.padding,
            dilation: config.dilation,
            ceil_mode: config.ceil_mode,
        }
    }
}

impl From<MaxPool2dConfig> for burn::nn::pool::MaxPool2dConfig {
    fn from(config: MaxPool2dConfig) -> Self {
        Self {
            kernel_size: config.kernel_size,
            strides: config.strides,
            padding: config.padding,
            dilation: config.dilation,
            ceil_mode: config.ceil_mode,
        }
    }
}

/// The largest value of each window.
///
/// Between forward and backward it keeps a byte an output, which element of the window it was, where
/// Burn's layer keeps the input and an integer an output. Windows of more than 256 elements do not fit
/// a byte: they go through Burn's operation.
///
/// Created with [`MaxPool2dConfig`], or from [Burn's layer](burn::nn::pool::MaxPool2d) with [`From`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MaxPool2d {
    /// The strides.
    pub stride: [usize; 2],
    /// The size of the kernel.
    pub kernel_size: [usize; 2],
    /// The padding configuration.
    #[module(skip)]
    pub padding: PaddingConfig2d,
    /// The dilation.
    pub dilation: [usize; 2],
    /// If true, use ceiling instead of floor for output size calculation.
    pub ceil_mode: bool,
}

impl MaxPool2d {
    /// Applies the pooling.
    ///
    /// # Shapes
    /// - `input`: `[batch, channels, height_in, width_in]`
    /// - output: `[batch, channels, height_out, width_out]`
    ///
    /// # Panics
    /// When the padded input is smaller than the dilated kernel, or a window has no input element.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let input = dequantized(input);
        if self.kernel_size.iter().product::<usize>() > PoolGeometry::MOST_TAPS {
            return burn::nn::pool::MaxPool2d::from(self.clone()).forward(input);
        }
        let shape = input.dims();
        let geometry = self.geometry(shape);
        if let Err(error) = geometry.check() {
            panic!("MaxPool2d::forward: input {shape:?}: {error}");
        }
        let output = <Dispatch as FrugalOps>::max_pool(input.into_dispatch(), geometry);
        Tensor::from_dispatch(output)
    }

    /// All sizes of this layer for an input of shape `[batch, channels, height, width]`.
    pub fn geometry(&self, [batch, channels, height, width]: [usize; 4]) -> PoolGeometry {
        let input = [height, width];
        let padding = padding_pairs(&self.padding, input, self.kernel_size, self.stride);
        PoolGeometry {
            maps: batch * channels,
            input,
            output: [0, 1].map(|axis| self.outputs(axis, input[axis], padding[axis])),
            kernel: self.kernel_size,
            stride: self.stride,
            padding,
            dilation: self.dilation,
        }
    }

    /// Windows along an axis; 0 if not even one fits.
    fn outputs(&self, axis: usize, size: usize, (before, after): (usize, usize)) -> usize {
        let stride = self.stride[axis].max(1);
        let reach = self.kernel_size[axis].saturating_sub(1);
        let extent = self.dilation[axis].saturating_mul(reach).saturating_add(1);
        let surplus = if self.ceil_mode { stride - 1 } else { 0 };
        let front = before.saturating_add(size);
        let Some(room) = front
            .saturating_add(after)
            .saturating_add(surplus)
            .checked_sub(extent)
        else {
            return 0;
        };
        let outputs = room / stride + 1;
        // rounding up must not add a window that starts behind the input
        if self.ceil_mode && (outputs - 1).saturating_mul(stride) >= front {
            outputs - 1
        } else {
            outputs
        }
    }
}

impl From<burn::nn::pool::MaxPool2d> for MaxPool2d {
    fn from(pool: burn::nn::pool::MaxPool2d) -> Self {
        Self {
            stride: pool.stride,
            kernel_size: pool.kernel_size,
            padding: pool.padding,
            dilation: pool.dilation,
            ceil_mode: pool.ceil_mode,
        }
    }
}

impl From<MaxPool2d> for burn::nn::pool::MaxPool2d {
    fn from(pool: MaxPool2d) -> Self {
        Self {
            stride: pool.stride,
            kernel_size: pool.kernel_size,
            padding: pool.padding,
            dilation: pool.dilation,
            ceil_mode: pool.ceil_mode,
        }
    }
}

impl ModuleDisplay for MaxPool2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add_debug_attribute("kernel_size", &self.kernel_size)
            .add_debug_attribute("stride", &self.stride)
            .add_debug_attribute("padding", &self.padding)
            .add_debug_attribute("dilation", &self.dilation)
            .add_debug_attribute("ceil_mode", &self.ceil_mode)
            .optional()
    }
}
