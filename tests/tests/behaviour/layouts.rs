//! Guards memory layouts: strided, cut-out and expanded tensors give what contiguous ones give.

use burn::module::Param;
use burn::tensor::Tensor;
use burn_frugal_tests::layers::{INPUT, OUTPUT, cut_out, for_each_layer, tracked_input, upstream};
use burn_frugal_tests::{Pass, random, values};

/// The same values, laid out with two axes swapped.
fn strided(map: Tensor<4>, [a, b]: [usize; 2]) -> Tensor<4> {
    let device = map.device();
    let swapped = map.swap_dims(a, b).into_data();
    Tensor::from_data(swapped, &device).swap_dims(a, b)
}

#[test]
fn a_strided_input_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        let x = random(1, INPUT, device);
        for axes in [[2, 3], [1, 3], [0, 1]] {
            let x = strided(x.clone(), axes).require_grad();
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, expected, "{name}, axes {axes:?} swapped");
        }
        for axis in 0..4 {
            let x = cut_out(x.clone(), axis).require_grad();
            let found = Pass::run(&conv, x, upstream(device));
            assert_eq!(found, expected, "{name}, cut out along axis {axis}");
        }
    });
}

#[test]
fn a_strided_weight_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        for axes in [[2, 3], [0, 1]] {
            let mut conv = conv.clone();
            let weight = strided(conv.weight.val().detach(), axes);
            conv.weight = Param::from_tensor(weight);
            let found = Pass::run(&conv, tracked_input(device), upstream(device));
            assert_eq!(found, expected, "{name}, axes {axes:?} swapped");
        }
    });
}

/// What comes after the layer decides how the output's gradient lies in memory.
#[test]
fn a_strided_output_gradient_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let expected = Pass::run(&conv, tracked_input(device), upstream(device));
        let weighted = |map: Tensor<4>, [a, b]: [usize; 2]| {
            let upstream = strided(upstream(device), [a, b]).swap_dims(a, b);
            (map.swap_dims(a, b) * upstream).sum()
        };
        for axes in [[2, 3], [1, 2], [0, 1]] {
            let x = tracked_input(device);
            let conv = conv.clone();
            let gradients = weighted(conv.forward(x.clone()), axes).backward();
            let found = [x.grad(&gradients), conv.weight.val().grad(&gradients)];
            let found = found.map(|gradient| gradient.map(values));
            let what = format!("{name}, axes {axes:?} swapped");
            assert_eq!(
                found,
                [expected.input.clone(), expected.weight.clone()],
                "{what}"
            );
        }
    });
}

/// `sum()` gives every output the same gradient: Burn expands one number.
#[test]
fn an_expanded_output_gradient_gives_the_same() {
    for_each_layer(|name, device, conv| {
        let ones = Tensor::ones(OUTPUT, device);
        let expected = Pass::run(&conv, tracked_input(device), ones);
        let x = tracked_input(device);
        let gradients = conv.forward(x.clone()).sum().backward();
        assert_eq!(x.grad(&gradients).map(values), expected.input, "{name}");
        let weight = conv.weight.val().grad(&gradients).map(values);
        assert_eq!(weight, expected.weight, "{name}");
    });
}
