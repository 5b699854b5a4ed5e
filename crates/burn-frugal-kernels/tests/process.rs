//! Processes of their own, since preparing changes settings of all of one: this test starts itself again.

use std::process::Command;
use std::thread;

use burn_frugal_kernels::{ConvGeometry, conv2d, prepare_process};
use rayon::prelude::*;

/// Tells a started process what to do.
const THREADS: &str = "RAYON_NUM_THREADS";

/// Runs this file's ignored test `name` in a process with so many threads; it must end by itself.
fn in_a_process(name: &str, threads: usize) {
    let program = std::env::current_exe().expect("a running program");
    let output = Command::new(program)
        .args(["--ignored", "--exact", name])
        .env(THREADS, threads.to_string())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}, {threads} threads: {text}");
    assert!(text.contains("1 passed"), "{name} ran: {text}");
}

#[test]
fn the_calling_thread_becomes_a_worker_once() {
    in_a_process("a_worker", 2);
}

/// A worker that is the only one would not run what others wait for.
#[test]
fn with_one_thread_others_still_get_their_work_done() {
    in_a_process("others_work", 1);
    in_a_process("others_work", 2);
}

#[test]
#[ignore = "in a process of its own"]
fn a_worker() {
    prepare_process().expect("nothing has used rayon");
    assert_eq!(rayon::current_thread_index(), Some(0));
    let error = prepare_process().expect_err("the pool exists").to_string();
    assert!(error.contains("prepare_process comes once"), "{error}");

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

#[test]
#[ignore = "in a process of its own"]
fn others_work() {
    prepare_process().expect("nothing has used rayon");
    let other = thread::spawn(|| (0..1000_u64).into_par_iter().sum::<u64>());
    assert_eq!(other.join().expect("it ends"), 499_500);
}
