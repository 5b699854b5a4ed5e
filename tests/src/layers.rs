//! Layers with reproducible parameters, and the maps that go through them.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Device, Tensor};
use burn_frugal::Method;
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{Conv2d, Conv2dConfig};

use crate::{autodiff_devices, random, random_dtype};

/// The shape of [`tracked_input`]: images, channels, height, width.
pub const INPUT: [usize; 4] = [2, 4, 7, 9];
/// The shape of [`upstream`].
pub const OUTPUT: [usize; 4] = [2, 6, 7, 9];

/// One method of each kind, and their variants.
pub fn methods() -> [Method; 9] {
    let ranks = [1, 2, 3, 4];
    [
        Method::Exact,
        Method::gradient_filter(2),
        Method::published_gradient_filter(2),
        Method::channel_sparse(0.5),
        Method::activation_shortcut(ranks),
        ActivationShortcut::new(ranks).sequential().into(),
        ActivationShortcut::new(ranks).frozen().into(),
        Method::hosvd(0.7),
        Method::quantized(4),
    ]
}

/// A square kernel, padded to keep the map's size.
pub fn same(channels: [usize; 2], kernel: usize) -> Conv2dConfig {
    let pad = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
}

/// A layer with reproducible parameters.
pub fn layer(config: &Conv2dConfig, device: &Device, dtype: DType) -> Conv2d {
    let mut conv = config.init(device);
    let bias = conv
        .bias
        .map(|bias| random_dtype(12, bias.dims(), device, dtype));
    conv.bias = bias.map(Param::from_tensor);
    conv.weight = Param::from_tensor(random_dtype(11, conv.weight.dims(), device, dtype));
    conv
}

/// A copy of the layer with a method that suits it.
pub fn with(conv: &Conv2d, method: Method) -> Conv2d {
    conv.clone().with_method(method).expect("suitable")
}

/// Calls `check` with a 3x3 layer for [`INPUT`] and [`OUTPUT`], for every method and device.
pub fn for_each_layer(check: impl Fn(&str, &Device, Conv2d)) {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 3), &device, DType::F32);
        for method in methods() {
            check(
                &format!("{method} ({device_name})"),
                &device,
                with(&conv, method),
            );
        }
    }
}

/// An input for the layers of [`for_each_layer`].
pub fn tracked_input(device: &Device) -> Tensor<4> {
    random(1, INPUT, device).require_grad()
}

/// A gradient of the output of the layers of [`for_each_layer`].
pub fn upstream(device: &Device) -> Tensor<4> {
    random(2, OUTPUT, device)
}

/// The same values, cut out of a larger map along an axis.
pub fn cut_out(map: Tensor<4>, axis: usize) -> Tensor<4> {
    let size = map.dims()[axis];
    let around = map.ones_like() * 7.0;
    Tensor::cat(vec![around.clone(), map, around], axis).narrow(axis, size, size)
}
