//! Guards parity with Burn's own layer: a whole network's gradients, and `Same` padding.

use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Tensor, activation::relu};
use burn_frugal::nn::Conv2dConfig;
use burn_frugal_tests::layers::{layer, same};
use burn_frugal_tests::{assert_close, autodiff_devices, devices, random_dtype, values};

/// A stem, a depthwise and a pointwise convolution, the last with a residual connection.
fn network_configs() -> [Conv2dConfig; 3] {
    [
        same([3, 6], 3).with_stride([2, 2]),
        same([6, 6], 5).with_groups(6),
        same([6, 6], 1),
    ]
}

fn network_loss(x: Tensor<4>, layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3]) -> Tensor<1> {
    let stem = relu(layers[0](x));
    let depthwise = relu(layers[1](stem.clone()));
    let map = layers[2](depthwise) + stem;
    map.powi_scalar(2).mean()
}

#[test]
fn a_network_has_the_gradients_of_burns_own_layers() {
    for (device_name, device) in autodiff_devices() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
            let ours = network_configs().map(|config| layer(&config, &device, dtype));
            let burns = ours.clone().map(burn::nn::conv::Conv2d::from);
            let x = random_dtype(1, [2, 3, 12, 10], &device, dtype).require_grad();

            let [a, b, c] = &ours;
            let layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3] =
                [&|x| a.forward(x), &|x| b.forward(x), &|x| c.forward(x)];
            let found = network_loss(x.clone(), layers).backward();
            let [a, b, c] = &burns;
            let layers: [&dyn Fn(Tensor<4>) -> Tensor<4>; 3] =
                [&|x| a.forward(x), &|x| b.forward(x), &|x| c.forward(x)];
            let expected = network_loss(x.clone(), layers).backward();

            let name = format!("{dtype:?} ({device_name})");
            let gradient = |of: Tensor<4>, gradients| values(of.grad(gradients).expect("tracked"));
            let both = |of: Tensor<4>| (gradient(of.clone(), &found), gradient(of, &expected));
            let (ours_x, burns_x) = both(x);
            assert_close(&format!("{name}, image"), &ours_x, &burns_x, tolerance);
            for (index, conv) in ours.iter().enumerate() {
                let (found, expected) = both(conv.weight.val());
                assert_close(
                    &format!("{name}, weight {index}"),
                    &found,
                    &expected,
                    tolerance,
                );
            }
            for (index, conv) in ours.iter().enumerate() {
                let bias = conv.bias.as_ref().expect("a bias").val();
                let gradient = |gradients| values(bias.grad(gradients).expect("tracked"));
                let (found, expected) = (gradient(&found), gradient(&expected));
                assert_close(
                    &format!("{name}, bias {index}"),
                    &found,
                    &expected,
                    tolerance,
                );
            }
        }
    }
}

/// `PaddingConfig2d::Same` is computed by the layer itself, since Burn's code for it is private.
#[test]
fn same_padding_is_burns() {
    for (device_name, device) in devices() {
        for (kernel, stride, size) in [
            ([3, 3], [1, 1], [7, 8]),
            ([2, 4], [1, 1], [7, 8]),
            ([3, 5], [2, 2], [7, 8]),
            ([4, 1], [3, 2], [11, 5]),
        ] {
            let config = Conv2dConfig::new([2, 3], kernel)
                .with_stride(stride)
                .with_padding(PaddingConfig2d::Same);
            let ours = layer(&config, &device, DType::F64);
            let burns = burn::nn::conv::Conv2d::from(ours.clone());
            let x = random_dtype(1, [1, 2, size[0], size[1]], &device, DType::F64);
            let (found, expected) = (ours.forward(x.clone()), burns.forward(x));
            let name = format!("{kernel:?}, stride {stride:?}, {size:?} ({device_name})");
            assert_eq!(found.dims(), expected.dims(), "{name}");
            assert_close(&name, &values(found), &values(expected), 1e-12);
        }
    }
}
