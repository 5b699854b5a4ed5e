use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};
use burn_frugal_kernels::ConvGeometry;

use super::layer::{self, dequantized};
use super::padding::padding_pairs;
use crate::error::Error;
use crate::methods::{LayerKind, LayerShape, Method};
use crate::plan::MethodSlot;

/// Configuration of a [2D convolution](Conv2d), with the fields of
/// [Burn's](burn::nn::conv::Conv2dConfig).
///
/// # Example
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::tensor::Device;
/// use burn_frugal::{Method, nn::Conv2dConfig};
///
/// let device = Device::default().autodiff();
/// let conv = Conv2dConfig::new([3, 8], [3, 3])
///     .with_padding(PaddingConfig2d::Same)
///     .init(&device)
///     .with_method(Method::gradient_filter(2))?;
/// # Ok::<(), burn_frugal::Error>(())
/// ```
#[derive(Config, Debug)]
pub struct Conv2dConfig {
    /// The number of input and output channels.
    pub channels: [usize; 2],
    /// The size of the kernel, `[height, width]`.
    pub kernel_size: [usize; 2],
    /// The stride of the convolution.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Spacing between kernel elements.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Controls the connections between input and output channels.
    #[config(default = "1")]
    pub groups: usize,
    /// The padding configuration.
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// If bias should be added to the output.
    #[config(default = true)]
    pub bias: bool,
    /// The type of function used to initialize the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0f64.sqrt(),fan_out_only:false}")]
    pub initializer: Initializer,
}

impl Conv2dConfig {
    /// Creates the layer, with the exact method.
    ///
    /// # Panics
    /// Where [`try_init`](Self::try_init) returns an error.
    pub fn init(&self, device: &Device) -> Conv2d {
        self.try_init(device)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates the layer, with the exact method.
    ///
    /// # Errors
    /// [`Error::Convolution`] when the groups do not divide both channel counts, or a size, stride
    /// or dilation is zero; [`Error::NoChannels`] when there are no channels.
    pub fn try_init(&self, device: &Device) -> Result<Conv2d, Error> {
        let layer = || format!("Conv2d {:?}", self.channels);
        if self.channels.contains(&0) {
            return Err(Error::NoChannels {
                layer: layer(),
                channels: self.channels,
            });
        }
        let geometry = self.smallest();
        geometry.check().map_err(|source| Error::Convolution {
            layer: layer(),
            source,
        })?;
        let burn = burn::nn::conv::Conv2dConfig::from(self.clone());
        Ok(burn.init(device).into())
    }

    /// The geometry for the smallest input that the kernel fits in.
    fn smallest(&self) -> ConvGeometry {
        let axis = |axis: usize| {
            let reach = self.kernel_size[axis].saturating_sub(1);
            self.dilation[axis].saturating_mul(reach).saturating_add(1)
        };
        ConvGeometry {
            batch: 1,
            input_channels: self.channels[0],
            output_channels: self.channels[1],
            input: [axis(0), axis(1)],
            kernel: self.kernel_size,
            stride: self.stride,
            padding: [(0, 0), (0, 0)],
            dilation: self.dilation,
            groups: self.groups,
        }
    }
}

impl From<burn::nn::conv::Conv2dConfig> for Conv2dConfig {
    fn from(config: burn::nn::conv::Conv2dConfig) -> Self {
        Self {
            channels: config.channels,
            kernel_size: config.kernel_size,
            stride: config.stride,
            dilation: config.dilation,
            groups: config.groups,
            padding: config.padding,
            bias: config.bias,
            initializer: config.initializer,
        }
    }
}

impl From<Conv2dConfig> for burn::nn::conv::Conv2dConfig {
    fn from(config: Conv2dConfig) -> Self {
        Self {
            channels: config.channels,
            kernel_size: config.kernel_size,
            stride: config.stride,
            dilation: config.dilation,
            groups: config.groups,
            padding: config.padding,
            bias: config.bias,
            initializer: config.initializer,
        }
    }
}

/// Applies a 2D convolution whose gradients are those of its [`Method`].
///
/// Created with [`Conv2dConfig`], or from [Burn's layer](burn::nn::conv::Conv2d) with
/// [`From`]: the parameters move, ids included, so optimizer state and records stay valid both
/// ways.
///
/// Between forward and backward the layer keeps what its method keeps of the input, and nothing if
/// the weight is frozen, the model is [`valid`](Module::valid), or neither weight nor input is
/// tracked. What a forward pass keeps that is never run backward is freed, as with Burn's layers,
/// at the end of the next backward pass through the model: evaluate with a `valid` model.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Conv2d {
    /// Tensor of shape `[channels_out, channels_in / groups, kernel_height, kernel_width]`
    pub weight: Param<Tensor<4>>,
    /// Tensor of shape `[channels_out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// Stride of the convolution.
    pub stride: [usize; 2],
    /// Size of the kernel.
    pub kernel_size: [usize; 2],
    /// Spacing between kernel elements.
    pub dilation: [usize; 2],
    /// Controls the connections between input and output channels.
    pub groups: usize,
    /// The padding configuration.
    #[module(skip)]
    pub padding: PaddingConfig2d,
    /// How gradients are computed; a [`Plan`](crate::plan::Plan) sets it by the layer's path.
    pub method: MethodSlot,
}

impl Conv2d {
    /// Sets the method of this layer. A [`Plan`](crate::plan::Plan) does it for a whole model.
    ///
    /// # Errors
    /// [`Error::Method`] when this layer cannot use the method.
    pub fn with_method(mut self, method: Method) -> Result<Self, Error> {
        self.method.set("Conv2d", method)?;
        Ok(self)
    }

    /// Applies the convolution.
    ///
    /// # Shapes
    /// - `input`: `[batch_size, channels_in, height_in, width_in]`
    /// - `output`: `[batch_size, channels_out, height_out, width_out]`
    ///
    /// # Panics
    /// When the input's channels are not those of the weight, its element type is another, or the
    /// padded input is smaller than the dilated kernel.
    ///
    /// # Example
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_frugal::nn::Conv2dConfig;
    ///
    /// let device = Device::default();
    /// let conv = Conv2dConfig::new([3, 8], [3, 3]).init(&device);
    /// let output = conv.forward(Tensor::zeros([1, 3, 28, 28], &device));
    /// assert_eq!(output.dims(), [1, 8, 26, 26]);
    /// ```
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let input = dequantized(input);
        let weight = dequantized(self.weight.val());
        let bias = self.bias.as_ref().map(|bias| dequantized(bias.val()));
        let geometry = self.checked_geometry(&input, &weight, bias.as_ref());
        layer::forward(&self.method, input, weight, bias, geometry.into())
    }

    /// All sizes of this convolution for an input of shape `[batch, channels, height, width]`.
    pub fn geometry(&self, [batch, channels, height, width]: [usize; 4]) -> ConvGeometry {
        ConvGeometry {
            batch,
            input_channels: channels,
            output_channels: self.weight.dims()[0],
            input: [height, width],
            kernel: self.kernel_size,
            stride: self.stride,
            padding: padding_pairs(
                &self.padding,
                [height, width],
                self.kernel_size,
                self.stride,
            ),
            dilation: self.dilation,
            groups: self.groups,
        }
    }

    fn checked_geometry(
        &self,
        input: &Tensor<4>,
        weight: &Tensor<4>,
        bias: Option<&Tensor<1>>,
    ) -> ConvGeometry {
        let bias_dtype = bias.map_or(weight.dtype(), Tensor::dtype);
        let dtypes = [input.dtype(), weight.dtype(), bias_dtype];
        let (input, weight) = (input.dims(), weight.dims());
        if dtypes != [dtypes[0]; 3] {
            panic!(
                "Conv2d::forward: input {input:?}, weight {weight:?} and bias must have one \
                 element type, found {dtypes:?}"
            );
        }
        let geometry = self.geometry(input);
        if input[1] != weight[1] * self.groups {
            panic!(
                "Conv2d::forward: input {input:?} has {} channels, weight {weight:?} with {} \
                 group(s) needs {}",
                input[1],
                self.groups,
                weight[1] * self.groups,
            );
        }
        if let Err(error) = geometry.check() {
            panic!("Conv2d::forward: input {input:?}, weight {weight:?}: {error}");
        }
        geometry
    }
}

impl From<burn::nn::conv::Conv2d> for Conv2d {
    fn from(conv: burn::nn::conv::Conv2d) -> Self {
        // the shape alone: a parameter that is initialised lazily stays so
        let [channels_out, group_channels, ..] = conv.weight.lazy_shape().dims::<4>();
        let layer = LayerShape {
            kind: LayerKind::Conv2d,
            channels: [group_channels * conv.groups, channels_out],
            kernel: conv.kernel_size,
            groups: conv.groups,
        };
        Self {
            weight: conv.weight,
            bias: conv.bias,
            stride: conv.stride,
            kernel_size: conv.kernel_size,
            dilation: conv.dilation,
            groups: conv.groups,
            padding: conv.padding,
            method: MethodSlot::new(layer),
        }
    }
}

impl From<Conv2d> for burn::nn::conv::Conv2d {
    fn from(conv: Conv2d) -> Self {
        Self {
            weight: conv.weight,
            bias: conv.bias,
            stride: conv.stride,
            kernel_size: conv.kernel_size,
            dilation: conv.dilation,
            groups: conv.groups,
            padding: conv.padding,
        }
    }
}

impl ModuleDisplay for Conv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [channels_out, group_channels, ..] = self.weight.dims();
        content
            .add_debug_attribute("ch_in", &(group_channels * self.groups))
            .add_debug_attribute("ch_out", &channels_out)
            .add_debug_attribute("stride", &self.stride)
            .add_debug_attribute("kernel_size", &self.kernel_size)
            .add_debug_attribute("dilation", &self.dilation)
            .add_debug_attribute("groups", &self.groups)
            .add_debug_attribute("padding", &self.padding)
            .add("method", &self.method)
            .optional()
    }
}
