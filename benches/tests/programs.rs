//! Guards the programs: that they run, and print what the comparison reads.

use std::process::{Command, Output};

use serde_json::Value;

fn run(program: &str, arguments: &str) -> Output {
    let arguments = arguments.split_whitespace();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// The records that a program prints, one JSON object a line.
fn records(program: &str, arguments: &str) -> Vec<Value> {
    let output = run(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    let lines = String::from_utf8(output.stdout).expect("text");
    let parse = |line: &str| serde_json::from_str(line).expect("an object a line");
    lines.lines().map(parse).collect()
}

#[track_caller]
fn assert_positive(record: &Value, fields: &[&str]) {
    for field in fields {
        let value = record[field].as_f64();
        assert!(
            value.is_some_and(|value| value > 0.0),
            "{field} of {record}"
        );
    }
}

#[test]
fn layers_times_every_method() {
    let layers = env!("CARGO_BIN_EXE_layers");
    for backend in ["flex", "ndarray"] {
        let arguments = format!("--batch 1 --reps 1 --layer 6 --backend {backend}");
        let records = records(layers, &arguments);
        let methods: Vec<&str> = records
            .iter()
            .map(|record| record["method"].as_str().expect("a name"))
            .collect();
        let expected = [
            "exact",
            "filter2",
            "filter4",
            "sparse10",
            "shortcut",
            "sequential",
        ];
        assert_eq!(methods, expected);
        for record in &records {
            assert_positive(record, &["forward_ms", "backward_ms", "kept_bytes"]);
            assert_eq!(record["backend"], backend);
        }
        let kept = |index: usize| records[index]["kept_bytes"].as_f64().expect("a number");
        let input = 64.0 * 56.0 * 56.0 * 4.0;
        // the exact gradient needs the input itself, which is there anyway
        assert!(kept(0) < 0.02 * input, "{}", kept(0));
        assert!((0.24..0.27).contains(&(kept(1) / input)), "{}", kept(1));
    }
}

#[test]
fn kernels_times_both_sides() {
    let kernels = env!("CARGO_BIN_EXE_kernels");
    let described = &records(kernels, "--describe")[0];
    let names: Vec<&Value> = described
        .as_array()
        .expect("a list")
        .iter()
        .map(|convolution| &convolution["name"])
        .collect();
    let found = records(kernels, "--batch 1 --reps 1 --side ours");
    assert_eq!(found.iter().map(|r| &r["name"]).collect::<Vec<_>>(), names);
    for record in &found {
        assert_positive(
            record,
            &["forward_ms", "input_gradient_ms", "weight_gradient_ms"],
        );
    }
}

#[test]
fn step_times_a_network_and_counts_its_memory() {
    let step = env!("CARGO_BIN_EXE_step");
    let kept = |arguments: &str| {
        let arguments = format!("mcunet-5fps --batch 2 --size 64 --reps 3 {arguments}");
        let record = records(step, &arguments).remove(0);
        assert_positive(
            &record,
            &["step_ms", "forward_ms", "inference_ms", "peak_bytes"],
        );
        record["kept_bytes"].as_f64().expect("a number")
    };
    let exact = kept("--tune all --method exact");
    assert!(kept("--tune all --method burn") > 1.3 * exact);
    assert!(kept("--tune all --method filter4") < 0.25 * exact);
    // two small images have nearly as many dimensions as pixels
    assert!(kept("--tune all --method shortcut") < 0.6 * exact);
    assert!(kept("--tune 4 --method exact --backend ndarray") < 0.25 * exact);
    let table = &records(step, "mbv2-w0.35 --describe")[0];
    assert_eq!(table["first_conv"]["channels_out"], 16);
    assert_eq!(table["last_conv"], Value::Null);
}

#[test]
fn efficientnet_has_padding_at_the_end_and_normalization_in_burns_layers() {
    let step = env!("CARGO_BIN_EXE_step");
    let table = &records(step, "efficientnet-lite0 --size 64 --describe")[0];
    let padding = |conv: &Value| [conv["padding"].as_u64(), conv["padding_after"].as_u64()];
    // stride 2 on 64 pixels, 5x5 with stride 2 on 16, the same on 4, and 3x3 without a stride
    assert_eq!(padding(&table["first_conv"]), [Some(0), Some(1)]);
    for (block, expected) in [(3, [1, 2]), (11, [1, 2]), (15, [1, 1])] {
        let depthwise = &table["blocks"][block]["depthwise"];
        assert_eq!(padding(depthwise), expected.map(Some), "block {block}");
    }
    assert_eq!(table["last_conv"]["channels_out"], 1280);
    assert_eq!(table["features"], 1280);
    assert_eq!(table["batch_norm"], 1e-3);

    let kept = |method: &str| {
        let arguments = format!("efficientnet-lite0 --batch 1 --size 32 --reps 1 {method}");
        let record = records(step, &arguments).remove(0);
        assert_positive(&record, &["step_ms", "kept_bytes"]);
        record["kept_bytes"].as_f64().expect("a number")
    };
    let exact = kept("--tune all --method exact");
    assert!(kept("--tune all --method burn") > 1.3 * exact);
    assert!(kept("--tune 4 --method shortcut") < exact);
}

#[test]
fn a_table_has_a_head_and_aligned_lines() {
    let small = env!("CARGO_BIN_EXE_small");
    let output = run(small, "--reps 1 --table --unprepared");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 7, "{text}");
    assert!(lines[0].contains("method") && lines[0].contains("step_us"));
    assert!(
        lines.iter().all(|line| line.len() == lines[0].len()),
        "{text}"
    );
}

#[test]
fn unknown_names_are_refused_with_those_that_are_known() {
    let step = env!("CARGO_BIN_EXE_step");
    for (arguments, expected) in [
        ("resnet", "mcunet-5fps"),
        (
            "mcunet-5fps --method filter0",
            "expected exact, recomputed, filter2",
        ),
        ("mcunet-5fps --tune some", "expected all or a number"),
        ("mcunet-5fps --backend cuda", "flex"),
        ("mcunet-5fps --reps 0", "0 is not in"),
    ] {
        let output = run(step, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
        assert!(errors.contains(expected), "{arguments}: {errors}");
    }
}
