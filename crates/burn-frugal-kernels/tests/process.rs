//! Alone in its process, since it changes settings of all of it.

use burn_frugal_kernels::{ConvGeometry, conv2d, prepare_process};

#[test]
fn the_calling_thread_becomes_a_worker_once() {
    prepare_process().expect("nothing has used rayon");
    assert_eq!(rayon::current_thread_index(), Some(0));
    let error = prepare_process().expect_err("the pool exists").to_string();
    assert!(error.contains("prepare_process comes before"), "{error}");

    // blocks larger than those that glibc maps by default, made and freed
    for _ in 0..3 {
        let geometry = ConvGeometry {
            batch: 1,
            input_channels: 1,
            output_channels: 1,
            input: [3000, 3000],
            kernel: [1, 1],
            stride: [1, 1],
            padding: [(0, 0); 2],
            dilation: [1, 1],
            groups: 1,
        };
        let input = vec![2.0_f32; geometry.input_len()];
        let output = conv2d(&geometry, &input, &[3.0], Some(&[1.0]));
        assert!(output.iter().all(|&value| value == 7.0));
    }
}
