//! Sizes of convolutions and what is refused.

mod common;

use burn_frugal_kernels::{ConvGeometry, GeometryError};
use common::geometry;

fn same() -> ConvGeometry {
    geometry([2, 6, 8, 10], 4, [3, 5], [1, 1], [1, 2], [1, 1], 2)
}

#[test]
fn sizes_follow_from_the_shapes() {
    let g = same();
    assert_eq!(g.check(), Ok(()));
    assert_eq!(g.output(), [8, 10]);
    assert_eq!(g.input_len(), 2 * 6 * 8 * 10);
    assert_eq!(g.weight_len(), 4 * 3 * 3 * 5);
    assert_eq!(g.output_len(), 2 * 4 * 8 * 10);
    assert_eq!(g.macs(), (2 * 4 * 8 * 10 * 3 * 3 * 5) as u64);
}

#[test]
fn output_counts_the_positions_of_the_kernel() {
    for input in 0..9 {
        for kernel in 1..4 {
            for stride in 1..4 {
                for dilation in 1..3 {
                    for padding in [(0, 0), (1, 0), (2, 3)] {
                        let g = ConvGeometry {
                            input: [input, 4],
                            kernel: [kernel, 1],
                            stride: [stride, 1],
                            dilation: [dilation, 1],
                            padding: [padding, (0, 0)],
                            ..same()
                        };
                        let padded = padding.0 + input + padding.1;
                        let positions = (0..padded)
                            .step_by(stride)
                            .filter(|start| start + dilation * (kernel - 1) < padded)
                            .count();
                        assert_eq!(g.output()[0], positions, "{g:?}");
                        assert_eq!(g.check().is_ok(), positions > 0, "{g:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_empty_batch_is_fine() {
    let g = ConvGeometry { batch: 0, ..same() };
    assert_eq!(g.check(), Ok(()));
    assert_eq!((g.input_len(), g.output_len(), g.macs()), (0, 0, 0));
}

#[test]
fn what_is_no_convolution_is_refused() {
    let refused = [
        (
            ConvGeometry {
                stride: [1, 0],
                ..same()
            },
            "stride [1, 0] (height, width) must be at least 1",
        ),
        (
            ConvGeometry {
                dilation: [0, 1],
                ..same()
            },
            "dilation [0, 1] (height, width) must be at least 1",
        ),
        (
            ConvGeometry {
                kernel: [0, 3],
                ..same()
            },
            "kernel [0, 3] (height, width) must be at least 1",
        ),
        (
            ConvGeometry {
                groups: 0,
                ..same()
            },
            "groups must be at least 1, found 0",
        ),
        (
            ConvGeometry {
                groups: 3,
                ..same()
            },
            "input channels (6) and output channels (4) must both be multiples of groups (3)",
        ),
        (
            ConvGeometry {
                dilation: [5, 1],
                ..same()
            },
            "the dilated kernel spans 11 pixels of height, the padded input has only 10",
        ),
        (
            ConvGeometry {
                dilation: [usize::MAX, 1],
                ..same()
            },
            "the dilated kernel spans 18446744073709551615 pixels of height, the padded input has only 10",
        ),
    ];
    for (geometry, message) in refused {
        let error: GeometryError = geometry.check().expect_err("refused");
        assert_eq!(error.to_string(), message);
        // Asking for sizes still answers.
        let _ = (geometry.output(), geometry.weight_len(), geometry.macs());
    }
}
