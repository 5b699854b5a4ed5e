use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

use super::layer::{self, dequantized};
use crate::error::Error;
use crate::geometry::LinearGeometry;
use crate::methods::{LayerShape, Method};
use crate::plan::MethodSlot;

/// Configuration of a [linear layer](Linear), with the fields of [Burn's](burn::nn::LinearConfig).
///
/// # Example
/// ```
/// use burn::tensor::Device;
/// use burn_frugal::{Method, nn::LinearConfig};
///
/// let device = Device::default().autodiff();
/// let linear = LinearConfig::new(64, 10)
///     .init(&device)
///     .with_method(Method::channel_sparse(0.25))?;
/// # Ok::<(), burn_frugal::Error>(())
/// ```
#[derive(Config, Debug)]
pub struct LinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// If a bias should be applied during the linear transformation.
    #[config(default = true)]
    pub bias: bool,
    /// The type of function used to initialize the parameters.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/3.0f64.sqrt(), fan_out_only:false}")]
    pub initializer: Initializer,
    /// The layout in which the linear parameters are stored.
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

impl LinearConfig {
    /// Creates the layer, with the exact method.
    ///
    /// # Panics
    /// Where [`try_init`](Self::try_init) returns an error.
    pub fn init(&self, device: &Device) -> Linear {
        self.try_init(device)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates the layer, with the exact method.
    ///
    /// # Errors
    /// [`Error::NoChannels`] when there are no input or output features.
    pub fn try_init(&self, device: &Device) -> Result<Linear, Error> {
        let channels = [self.d_input, self.d_output];
        if channels.contains(&0) {
            return Err(Error::NoChannels {
                layer: format!("Linear {channels:?}"),
                channels,
            });
        }
        let burn = burn::nn::LinearConfig::from(self.clone());
        Ok(Linear::new(burn.init(device), channels))
    }
}

impl From<burn::nn::LinearConfig> for LinearConfig {
    fn from(config: burn::nn::LinearConfig) -> Self {
        Self {
            d_input: config.d_input,
            d_output: config.d_output,
            bias: config.bias,
            initializer: config.initializer,
            layout: config.layout,
        }
    }
}

impl From<LinearConfig> for burn::nn::LinearConfig {
    fn from(config: LinearConfig) -> Self {
        Self {
            d_input: config.d_input,
            d_output: config.d_output,
            bias: config.bias,
            initializer: config.initializer,
            layout: config.layout,
        }
    }
}

/// Applies a linear transformation whose gradients are those of its [`Method`]: `O = IW + b`.
///
/// Created with [`LinearConfig`], or from [Burn's layer](burn::nn::Linear) with [`From`]: the
/// parameters move, ids included, so optimizer state and records stay valid both ways.
///
/// What it keeps between forward and backward, and when that is freed, is as for
/// [`Conv2d`](super::Conv2d). The gradient filter is for maps of pixels; this layer refuses it.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Linear {
    /// Matrix of shape `[d_input, d_output]`
    pub weight: Param<Tensor<2>>,
    /// Vector of size `d_output`
    pub bias: Option<Param<Tensor<1>>>,
    /// How gradients are computed; a [`Plan`](crate::plan::Plan) sets it by the layer's path.
    pub method: MethodSlot,
}

impl Linear {
    fn new(linear: burn::nn::Linear, [d_input, d_output]: [usize; 2]) -> Self {
        Self {
            weight: linear.weight,
            bias: linear.bias,
            method: MethodSlot::new(LayerShape::linear(d_input, d_output)),
        }
    }

    /// Sets the method of this layer. A [`Plan`](crate::plan::Plan) does it for a whole model.
    ///
    /// # Errors
    /// [`Error::Method`] when this layer cannot use the method.
    pub fn with_method(mut self, method: Method) -> Result<Self, Error> {
        self.method.set("Linear", method)?;
        Ok(self)
    }

    /// Applies the transformation.
    ///
    /// # Shapes
    /// - `input`: `[.., d_input]`
    /// - `output`: `[.., d_output]`
    ///
    /// # Panics
    /// When the input's last axis is not `d_input`, or its element type is another than the
    /// weight's. While training with an activation shortcut also when the input has another number
    /// of axes than the method has ranks.
    ///
    /// # Example
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use burn_frugal::nn::LinearConfig;
    ///
    /// let device = Device::default();
    /// let linear = LinearConfig::new(16, 4).init(&device);
    /// let output = linear.forward(Tensor::<3>::zeros([2, 5, 16], &device));
    /// assert_eq!(output.dims(), [2, 5, 4]);
    /// ```
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let input = dequantized(input);
        let weight = dequantized(self.weight.val());
        let bias = self.bias.as_ref().map(|bias| dequantized(bias.val()));
        self.check(&input, &weight, bias.as_ref());
        let geometry = self.geometry(input.dims());
        layer::forward(&self.method, input, weight, bias, geometry.into())
    }

    /// All sizes of this layer for an input of shape `[.., d_input]`.
    pub fn geometry<const D: usize>(&self, input: [usize; D]) -> LinearGeometry {
        LinearGeometry::new(&input, self.weight.dims()[1])
    }

    fn check<const D: usize>(
        &self,
        input: &Tensor<D>,
        weight: &Tensor<2>,
        bias: Option<&Tensor<1>>,
    ) {
        let bias_dtype = bias.map_or(weight.dtype(), Tensor::dtype);
        let dtypes = [input.dtype(), weight.dtype(), bias_dtype];
        let (input, weight) = (input.dims(), weight.dims());
        if dtypes != [dtypes[0]; 3] {
            panic!(
                "Linear::forward: input {input:?}, weight {weight:?} and bias must have one \
                 element type, found {dtypes:?}"
            );
        }
        let features = input.last().copied().unwrap_or(0);
        if features != weight[0] {
            panic!(
                "Linear::forward: input {input:?} has {features} features, weight {weight:?} needs \
                 {}",
                weight[0]
            );
        }
    }
}

impl From<burn::nn::Linear> for Linear {
    fn from(linear: burn::nn::Linear) -> Self {
        // the shape alone: a parameter that is initialised lazily stays so; with `LinearLayout::Col`
        // that is the shape before it is transposed, so without a bias it has to be made
        let [d_input, d_output] = match &linear.bias {
            Some(bias) => {
                let [first, second] = linear.weight.lazy_shape().dims();
                let [d_output] = bias.lazy_shape().dims();
                [if d_output == first { second } else { first }, d_output]
            }
            None => linear.weight.shape().dims(),
        };
        Self::new(linear, [d_input, d_output])
    }
}

impl From<Linear> for burn::nn::Linear {
    fn from(linear: Linear) -> Self {
        Self {
            weight: linear.weight,
            bias: linear.bias,
        }
    }
}

impl ModuleDisplay for Linear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.weight.dims();
        content
            .add_debug_attribute("d_input", &d_input)
            .add_debug_attribute("d_output", &d_output)
            .add("method", &self.method)
            .optional()
    }
}
