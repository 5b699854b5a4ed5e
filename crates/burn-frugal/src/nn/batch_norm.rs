use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param, RunningState};
use burn::tensor::{DType, Device, Tensor};
use burn_frugal_kernels::ConvGeometry;

use super::Conv2d;
use super::layer::{dequantized, free_abandoned};
use crate::error::Error;
use crate::geometry::LayerGeometry;
use crate::methods::{LayerShape, Method, Saved};
use crate::ops::{self, FrugalOps};
use crate::plan::MethodSlot;

/// Configuration of [batch normalization](BatchNorm), with the fields of
/// [Burn's](burn::nn::BatchNormConfig).
///
/// # Example
/// ```
/// use burn::tensor::Device;
/// use burn_frugal::nn::BatchNormConfig;
///
/// let norm = BatchNormConfig::new(16).with_epsilon(1e-3).init(&Device::default());
/// ```
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// The number of features. Must be greater than zero.
    pub num_features: usize,
    /// A finite, positive value required for numerical stability.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// A finite momentum in `[0, 1]` used to update the running statistics.
    #[config(default = 0.1)]
    pub momentum: f64,
}

impl BatchNormConfig {
    /// Creates the layer, with the exact method.
    ///
    /// # Panics
    /// When there are no features, `epsilon` is not finite and positive, or `momentum` is not in
    /// `[0, 1]`.
    pub fn init(&self, device: &Device) -> BatchNorm {
        burn::nn::BatchNormConfig::from(self.clone())
            .init(device)
            .into()
    }
}

impl From<burn::nn::BatchNormConfig> for BatchNormConfig {
    fn from(config: burn::nn::BatchNormConfig) -> Self {
        Self {
            num_features: config.num_features,
            epsilon: config.epsilon,
            momentum: config.momentum,
        }
    }
}

impl From<BatchNormConfig> for burn::nn::BatchNormConfig {
    fn from(config: BatchNormConfig) -> Self {
        Self {
            num_features: config.num_features,
            epsilon: config.epsilon,
            momentum: config.momentum,
        }
    }
}

/// Batch normalization, `gamma (x - mean) / sqrt(variance + epsilon) + beta` (arXiv 1502.03167).
///
/// The running statistics are used when the layer is frozen ([`Module::freeze`], or
/// [`Plan::freeze_rest`](crate::plan::Plan::freeze_rest), which also leaves them alone in a layer
/// that the plan names) or the model is [`valid`](Module::valid); otherwise those of the batch, by
/// Burn's own operation, which keeps the whole input. That rule is [Burn's](burn::nn::BatchNorm).
///
/// With running statistics it keeps nothing between forward and backward while gamma is frozen. While
/// gamma is trained it keeps what its [`Method`] keeps of the normalised input, as the weight of a 1x1
/// convolution of each channel by itself; the input's gradient is exact whatever the method.
///
/// Created with [`BatchNormConfig`], or from Burn's layer with [`From`]: parameters and statistics
/// move, ids included. Where nothing of it is trained, [`fold_into`](Self::fold_into) saves its time
/// too.
///
/// # Example
/// ```
/// use burn::module::Module;
/// use burn::tensor::{Device, Tensor};
/// use burn_frugal::nn::BatchNormConfig;
///
/// let device = Device::default().autodiff();
/// let norm = BatchNormConfig::new(3).init(&device).freeze();
/// let output = norm.forward(Tensor::<4>::ones([2, 3, 5, 5], &device));
/// assert_eq!(output.dims(), [2, 3, 5, 5]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BatchNorm {
    /// The learnable weight, `[features]`.
    pub gamma: Param<Tensor<1>>,
    /// The learnable bias, `[features]`.
    pub beta: Param<Tensor<1>>,
    /// Whether the statistics of the batch are used on a training device.
    pub training: Param<Flag>,
    /// The running mean, `[features]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// The running variance, `[features]`.
    pub running_var: RunningState<Tensor<1>>,
    /// Momentum of the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub epsilon: f64,
    /// How gamma's gradient is computed; a [`Plan`](crate::plan::Plan) sets it by the layer's path.
    pub method: MethodSlot,
}

impl BatchNorm {
    /// Sets the method of this layer. A [`Plan`](crate::plan::Plan) does it for a whole model.
    ///
    /// # Errors
    /// [`Error::Method`] when this layer cannot use the method.
    pub fn with_method(mut self, method: Method) -> Result<Self, Error> {
        self.method.set("BatchNorm", method)?;
        Ok(self)
    }

    /// Applies the normalization.
    ///
    /// # Shapes
    /// - `input` and output: `[batch, features, ..]`
    ///
    /// # Panics
    /// When the input has fewer than 2 axes, its second one is not the number of features, or its
    /// element type is another than that of gamma, beta and the running statistics.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let input = dequantized(input);
        let [features] = self.gamma.dims();
        let shape = input.dims();
        if shape.get(1) != Some(&features) {
            panic!(
                "BatchNorm::forward: expected an input [batch, {features}, ..], found {shape:?}"
            );
        }
        let (dtype, dtypes) = (input.dtype(), self.dtypes());
        if dtypes != [dtype; 4] {
            panic!(
                "BatchNorm::forward: input {shape:?}, gamma, beta, mean and variance [{features}] \
                 must have one element type, found {dtype:?} and {dtypes:?}"
            );
        }
        if input.device().is_autodiff() && self.training.is_enabled() {
            return burn::nn::BatchNorm::from(self.clone()).forward(input);
        }
        match D {
            4 => {
                let input = Tensor::from_dispatch(input.into_dispatch());
                Tensor::from_dispatch(self.with_fixed_statistics(input).into_dispatch())
            }
            _ => {
                let rest = &shape[2..];
                let [rows, columns] = match rest.split_last() {
                    None => [1, 1],
                    Some((columns, rows)) => [rows.iter().product(), *columns],
                };
                let map = input.reshape([shape[0], features, rows, columns]);
                self.with_fixed_statistics(map).reshape(shape)
            }
        }
    }

    fn with_fixed_statistics(&self, input: Tensor<4>) -> Tensor<4> {
        let [batch, features, rows, columns] = input.dims();
        let geometry = LayerGeometry::from(ConvGeometry {
            batch,
            input_channels: features,
            output_channels: features,
            input: [rows, columns],
            kernel: [1, 1],
            stride: [1, 1],
            padding: [(0, 0), (0, 0)],
            dilation: [1, 1],
            groups: features,
        });
        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| dequantized(param.val()));
        let Affine {
            inverse_deviation,
            centre,
            scale,
            shift,
        } = self.affine(&input.device());
        let normalised = || {
            ops::normalized::<Dispatch>(
                input.clone().without_autodiff().into_dispatch(),
                inverse_deviation.clone().into_dispatch(),
                centre.clone().into_dispatch(),
                &geometry,
            )
        };
        let input_tracked = input.is_tracked();
        let trained = gamma.is_tracked();
        if trained || input_tracked || beta.is_tracked() {
            free_abandoned(&self.method, &input, &gamma, Some(&beta));
        }
        let saved = if trained {
            let weight = || gamma.to_data();
            self.method.keep(normalised(), &geometry, weight)
        } else {
            Saved::Nothing
        };
        let kept = trained.then(|| saved.bytes());
        let step = self.method.step(geometry);
        let output = <Dispatch as FrugalOps>::normalization(
            input.clone().into_dispatch(),
            scale.into_dispatch(),
            shift.into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            saved,
            step,
        );
        let output = self
            .method
            .observed(&normalised, input_tracked, output, geometry, kept);
        Tensor::from_dispatch(output)
    }

    /// The convolution that does what `conv` and this layer do one after the other with the running
    /// statistics: `gamma (w x + b - mean) / sqrt(variance + epsilon) + beta =
    /// (s w) x + (s (b - mean) + beta)` with `s = gamma / sqrt(variance + epsilon)`, per output
    /// channel. Its parameters are new ones, trained unless the model is frozen afterwards.
    ///
    /// # Panics
    /// When the convolution's output channels are not this layer's features.
    pub fn fold_into(&self, mut conv: Conv2d) -> Conv2d {
        let weight = conv.weight.val();
        let [features] = self.gamma.dims();
        let channels = weight.dims()[0];
        assert!(
            channels == features,
            "BatchNorm::fold_into: {features} features cannot follow a convolution with {channels} \
             output channels"
        );
        let deviation = (self.running_var.value_sync() + self.epsilon).sqrt();
        let scale = self.gamma.val() / deviation;
        let mean = self.running_mean.value_sync();
        let centred = match &conv.bias {
            Some(bias) => bias.val() - mean,
            None => -mean,
        };
        let bias = centred * scale.clone() + self.beta.val();
        let weight = weight * scale.reshape([features, 1, 1, 1]);
        conv.weight = Param::from_tensor(weight.detach());
        conv.bias = Some(Param::from_tensor(bias.detach()));
        conv
    }

    /// Element types of gamma, beta, mean and variance; of what is quantized, those that it stands for.
    fn dtypes(&self) -> [DType; 4] {
        [
            self.gamma.val(),
            self.beta.val(),
            self.running_mean.value(),
            self.running_var.value(),
        ]
        .map(|tensor| dequantized(tensor).dtype())
    }

    /// The running statistics and parameters as factors and terms of each channel, outside any graph.
    fn affine(&self, device: &Device) -> Affine {
        let device = device.clone().without_autodiff();
        let plain = |tensor: Tensor<1>| dequantized(tensor.without_autodiff()).to_device(&device);
        let [gamma, beta] = [&self.gamma, &self.beta].map(|param| plain(param.val()));
        let [mean, variance] =
            [&self.running_mean, &self.running_var].map(|state| plain(state.value()));
        let inverse_deviation = (variance + self.epsilon).sqrt().recip();
        let scale = gamma * inverse_deviation.clone();
        Affine {
            centre: -(mean.clone() * inverse_deviation.clone()),
            shift: beta - mean * scale.clone(),
            inverse_deviation,
            scale,
        }
    }
}

/// `x * inverse_deviation + centre` is the normalised input, `x * scale + shift` the output.
struct Affine {
    inverse_deviation: Tensor<1>,
    centre: Tensor<1>,
    scale: Tensor<1>,
    shift: Tensor<1>,
}

impl From<burn::nn::BatchNorm> for BatchNorm {
    fn from(norm: burn::nn::BatchNorm) -> Self {
        let [features] = norm.gamma.lazy_shape().dims();
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            training: norm.training,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            momentum: norm.momentum,
            epsilon: norm.epsilon,
            method: MethodSlot::new(LayerShape::batch_norm(features)),
        }
    }
}

impl From<BatchNorm> for burn::nn::BatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self {
            gamma: norm.gamma,
            beta: norm.beta,
            training: norm.training,
            running_mean: norm.running_mean,
            running_var: norm.running_var,
            momentum: norm.momentum,
            epsilon: norm.epsilon,
        }
    }
}

impl ModuleDisplay for BatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [num_features] = self.beta.shape().dims();
        content
            .add("num_features", &num_features)
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon)
            .add("training", &self.training)
            .add("method", &self.method)
            .optional()
    }
}
