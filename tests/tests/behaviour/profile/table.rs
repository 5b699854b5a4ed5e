//! Guards the table as which a profile is displayed.

use burn_frugal::Method;
use burn_frugal::plan::Profile;
use burn_frugal_tests::devices;

use super::{images, measured, network, profile};

#[test]
fn a_profile_is_displayed_as_a_table() {
    let json = serde_json::json!({ "version": 1, "layers": [
        {
            "path": "first",
            "gradient_norm": 2.5,
            "candidates": [
                measured(Method::Exact, 4096, [0, 1000, 1000], 0.0, 0.0),
                measured(Method::gradient_filter(2), 1024, [512, 80, 70], 0.5, 0.2),
            ],
        },
        {
            "path": "blocks.10.head",
            "gradient_norm": 40.0,
            "candidates": [
                measured(Method::hosvd(0.5), 123_456_789_012, [1, 2, 30_000_000_000_000], 12.5, 0.3125),
            ],
        },
    ]});
    let profile = Profile::from_json(&json.to_string()).expect("a profile");
    let table = "\
layer           method                           bytes           FLOPs        error  relative
first           exact                             4096            2000     0.0000e0    0.0000
first           gradient filter, patch 2          1024             662    5.0000e-1    0.2000
blocks.10.head  HOSVD, energy 0.5         123456789012  30000000000003     1.2500e1    0.3125";
    assert_eq!(profile.to_string(), table);
    let empty = Profile::default().to_string();
    assert_eq!(
        empty,
        "layer  method         bytes           FLOPs        error  relative"
    );
}

#[test]
fn a_measured_table_names_every_layer_and_method_in_columns() {
    let device = devices().remove(0).1.autodiff();
    let profile = profile(&network(&device), &images(&device));
    let table = profile.to_string();
    let mut lines = table.lines();
    let head = lines.next().expect("a head");
    for layer in profile.layers() {
        for measured in &layer.candidates {
            let line = lines.next().expect("a line a candidate");
            assert_eq!(line.len(), head.len(), "{table}");
            let found = line.split("  ").filter(|cell| !cell.is_empty());
            let cells: Vec<&str> = found.map(str::trim).collect();
            assert_eq!(cells[0], layer.path);
            assert_eq!(cells[1], measured.method.to_string());
            assert_eq!(cells[2], measured.bytes.to_string());
            assert_eq!(cells[3], measured.flops.total().to_string());
            assert_eq!(cells.len(), 6, "{line}");
        }
    }
    assert_eq!(lines.next(), None);
}
