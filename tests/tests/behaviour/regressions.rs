//! Guards the exact layer on shapes that have gone wrong in Burn and in other frameworks; the tests
//! are named after the public issues.

use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Tensor, module::conv2d, ops::ConvOptions};
use burn_frugal::nn::Conv2dConfig;
use burn_frugal_tests::layers::{cut_out, layer, methods, same, with};
use burn_frugal_tests::{Pass, assert_close, autodiff_devices, random, random_dtype, values};

/// Checks the exact layer by what defines its gradients, with Burn's forward convolution as the
/// only witness: the layer is linear in the input and in the weight, so
/// `<input gradient, u> = <layer applied to u, output gradient>` for any `u`, and likewise for the
/// weight.
#[track_caller]
fn assert_exact(config: Conv2dConfig, shape: [usize; 4]) {
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&config, &device, DType::F64);
        let x = random_dtype(1, shape, &device, DType::F64);
        let convolved = |x: &Tensor<4>, weight: Tensor<4>| {
            let geometry = conv.geometry(shape);
            let options = ConvOptions::new_with_padding(
                geometry.stride,
                geometry.padding,
                geometry.dilation,
                geometry.groups,
            );
            conv2d(
                x.clone().without_autodiff(),
                weight.without_autodiff(),
                None,
                options,
            )
        };
        let weight = conv.weight.val();
        let unbiased = convolved(&x, weight.clone());
        let upstream = random_dtype(2, unbiased.dims(), &device, DType::F64);
        let pass = Pass::run(&conv, x.clone().require_grad(), upstream.clone());

        let name = format!("{config}, {shape:?} ({device_name})");
        let bias = conv.bias.as_ref().expect("a bias").val().without_autodiff();
        let channels = bias.dims()[0];
        let expected = values(unbiased + bias.reshape([1, channels, 1, 1]));
        assert_close(&format!("{name}, output"), &pass.output, &expected, 1e-12);

        let upstream = values(upstream);
        let [input_gradient, weight_gradient] =
            [&pass.input, &pass.weight].map(|gradient| gradient.as_deref().expect("tracked"));
        for seed in 100..103 {
            let u = random_dtype(seed, shape, &device, DType::F64);
            let found = dot(input_gradient, &values(u.clone()));
            let expected = dot(&values(convolved(&u, weight.clone())), &upstream);
            assert_close(
                &format!("{name}, input gradient"),
                &[found],
                &[expected],
                1e-9,
            );

            let v = random_dtype(seed, weight.dims(), &device, DType::F64);
            let found = dot(weight_gradient, &values(v.clone()));
            let expected = dot(&values(convolved(&x, v)), &upstream);
            assert_close(
                &format!("{name}, weight gradient"),
                &[found],
                &[expected],
                1e-9,
            );
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn burn_3511_twelve_groups_with_stride_two() {
    let config = same([48, 12], 3).with_groups(12).with_stride([2, 2]);
    assert_exact(config, [1, 48, 8, 8]);
}

#[test]
fn burn_1877_a_group_a_channel_with_stride_two() {
    assert_exact(
        same([4, 4], 3).with_groups(4).with_stride([2, 2]),
        [1, 4, 4, 4],
    );
}

#[test]
fn burn_4591_single_pixels_in_a_channel_slice() {
    assert_exact(same([5, 4], 3), [3, 5, 1, 1]);
    for (device_name, device) in autodiff_devices() {
        let conv = layer(&same([4, 6], 1), &device, DType::F32);
        for method in methods() {
            let conv = with(&conv, method);
            let x = random(1, [3, 4, 1, 1], &device);
            let upstream = random(2, [3, 6, 1, 1], &device);
            let expected = Pass::run(&conv, x.clone().require_grad(), upstream.clone());
            let found = Pass::run(&conv, cut_out(x, 1).require_grad(), upstream);
            assert_eq!(found, expected, "{method} ({device_name})");
        }
    }
}

#[test]
fn burn_4799_asymmetric_padding_and_a_dropped_tail() {
    let padding = PaddingConfig2d::Explicit(0, 2, 1, 0);
    let config = Conv2dConfig::new([3, 4], [3, 3]).with_padding(padding);
    assert_exact(config.clone(), [2, 3, 8, 7]);
    assert_exact(config.with_stride([2, 2]), [2, 3, 8, 7]);
    // 1603 columns leave 3 that no kernel of 4 with stride 4 reads
    assert_exact(
        Conv2dConfig::new([2, 3], [1, 4]).with_stride([1, 4]),
        [1, 2, 1, 1603],
    );
}

#[test]
fn burn_4445_one_wide_row() {
    let padding = PaddingConfig2d::Explicit(0, 1, 0, 1);
    let config = Conv2dConfig::new([3, 4], [1, 3]).with_padding(padding);
    assert_exact(config, [1, 3, 1, 2049]);
}

#[test]
fn burn_4727_odd_channels_in_groups() {
    for channels in [3, 5, 7, 17] {
        assert_exact(
            same([2 * channels, 2 * channels], 3).with_groups(2),
            [1, 2 * channels, 5, 6],
        );
    }
}

#[test]
fn pytorch_13008_and_51430_groups_and_dilation() {
    assert_exact(same([6, 9], 3).with_groups(3), [2, 6, 8, 7]);
    let dilated = Conv2dConfig::new([4, 6], [3, 2]).with_dilation([2, 3]);
    assert_exact(dilated.clone(), [2, 4, 9, 8]);
    assert_exact(dilated.with_groups(2).with_stride([2, 1]), [2, 4, 9, 8]);
}

#[test]
fn pytorch_15501_stride_and_dilation_on_two_pixels() {
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let config = Conv2dConfig::new([2, 3], [2, 2]).with_padding(padding);
    assert_exact(
        config.with_stride([2, 2]).with_dilation([2, 2]),
        [1, 2, 2, 2],
    );
}

#[test]
fn pytorch_19912_grouped_pointwise() {
    assert_exact(same([4, 16], 1).with_groups(2), [2, 4, 1, 1]);
    assert_exact(same([4, 16], 1).with_groups(2), [2, 4, 5, 3]);
}

#[test]
fn pytorch_25101_stride_three_at_the_right_edge() {
    let config = Conv2dConfig::new([9, 3], [5, 5])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_stride([3, 3]);
    assert_exact(config, [1, 9, 32, 32]);
}

#[test]
fn pytorch_50042_twenty_four_depthwise_channels() {
    for channels in [8, 24, 25] {
        let config = same([channels, channels], 3).with_groups(channels);
        assert_exact(config.with_stride([2, 2]), [1, channels, 6, 6]);
    }
}

#[test]
fn pytorch_60075_a_padded_pixel_with_a_long_stride() {
    let config = Conv2dConfig::new([105, 2], [1, 1])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_stride([14, 14]);
    assert_exact(config, [1, 105, 1, 1]);
}
