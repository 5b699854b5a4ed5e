//! Random layers: every kernel against its definition, and the gradients as transposes of the convolution.

mod common;

use burn_frugal_kernels::{ConvGeometry, Element};
use common::{Case, dot, tolerance, with_threads};
use proptest::prelude::*;

/// Input size, kernel, stride, padding and dilation of one axis.
fn axis() -> impl Strategy<Value = (usize, usize, usize, (usize, usize), usize)> {
    (
        1_usize..12,
        1_usize..5,
        1_usize..5,
        (0_usize..5, 0_usize..5),
        1_usize..4,
    )
}

/// Groups, input channels and output channels per group: dense, grouped and depthwise alike.
fn channels() -> impl Strategy<Value = (usize, usize, usize)> {
    (1_usize..5, 1_usize..5, 1_usize..5)
}

fn layer() -> impl Strategy<Value = ConvGeometry> {
    (0_usize..6, channels(), axis(), axis()).prop_map(
        |(batch, (groups, inputs, outputs), vertical, horizontal)| ConvGeometry {
            batch,
            input_channels: groups * inputs,
            output_channels: groups * outputs,
            input: [vertical.0, horizontal.0],
            kernel: [vertical.1, horizontal.1],
            stride: [vertical.2, horizontal.2],
            padding: [vertical.3, horizontal.3],
            dilation: [vertical.4, horizontal.4],
            groups,
        },
    )
}

fn transposes<T: Element>(geometry: ConvGeometry) -> Result<(), TestCaseError> {
    let case = Case::<T>::new(geometry);
    let results = case.run();
    let product = dot(&results.unbiased, &case.output_gradient);
    // The products cancel, so the bound is on their sizes and not on the sum.
    let bound = tolerance::<T>() * (1 + geometry.macs()) as f64;
    prop_assert!((product - dot(&case.input, &results.input_gradient)).abs() <= bound);
    prop_assert!((product - dot(&case.weight, &results.weight_gradient)).abs() <= bound);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_layers_match_the_definition(geometry in layer(), threads in 1_usize..4) {
        with_threads(threads, || {
            Case::<f32>::new(geometry).check("f32");
            Case::<f64>::new(geometry).check("f64");
        });
    }

    #[test]
    fn gradients_are_transposes(geometry in layer()) {
        transposes::<f32>(geometry)?;
        transposes::<f64>(geometry)?;
    }
}
