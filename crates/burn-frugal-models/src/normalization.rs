//! Batch normalization that is there, or folded away.

use burn::module::Param;
use burn::nn::BatchNorm;
use burn::tensor::Tensor;
use burn_frugal::nn::{Conv2d, Relu6};

pub(crate) fn relu6(map: Tensor<4>) -> Tensor<4> {
    Relu6::new().forward(map)
}

pub(crate) fn normalized(norm: &Option<BatchNorm>, map: Tensor<4>) -> Tensor<4> {
    match norm {
        Some(norm) => norm.forward(map),
        None => map,
    }
}

/// The convolution that does what `conv` followed by `norm` does with its running statistics:
/// `gamma (w x + b - mean) / sqrt(var + epsilon) + beta = (s w) x + (s (b - mean) + beta)` with
/// `s = gamma / sqrt(var + epsilon)`, per output channel.
pub(crate) fn fold(mut conv: Conv2d, norm: Option<BatchNorm>) -> Conv2d {
    let Some(norm) = norm else { return conv };
    let deviation = (norm.running_var.value() + norm.epsilon).sqrt();
    let scale = norm.gamma.val() / deviation;
    let channels = scale.dims()[0];

    let weight = conv.weight.val() * scale.clone().reshape([channels, 1, 1, 1]);
    let centred = match &conv.bias {
        Some(bias) => bias.val() - norm.running_mean.value(),
        None => -norm.running_mean.value(),
    };
    let bias = centred * scale + norm.beta.val();

    conv.weight = Param::from_tensor(weight.detach());
    conv.bias = Some(Param::from_tensor(bias.detach()));
    conv
}
