//! Guards plans: which layers of a user's own model they reach, what they change and what they
//! leave alone, their files, and every way in which one can be wrong. Also the layer's records and
//! its configuration errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method};
use burn_frugal_tests::{autodiff_devices, devices, panic_message, random, values};
use proptest::prelude::*;

/// Every container of layers that Burn has.
#[derive(Module, Debug)]
struct Network {
    stem: Conv2d,
    blocks: Vec<Block>,
    pair: (Conv2d, Linear, Conv2d),
    array: [Conv2d; 2],
    choice: Choice,
    head: Linear,
}

#[derive(Module, Debug)]
struct Block {
    main: Conv2d,
    side: Option<Conv2d>,
    scale: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
enum Choice {
    Convolution(Conv2d),
    #[allow(dead_code, reason = "the other half of a user's choice")]
    Nothing(Linear),
}

fn conv(device: &Device) -> Conv2d {
    Conv2dConfig::new([4, 4], [3, 3]).init(device)
}

fn grouped(device: &Device) -> Conv2d {
    Conv2dConfig::new([4, 4], [3, 3])
        .with_groups(2)
        .init(device)
}

fn network(device: &Device) -> Network {
    let block = |side: Option<Conv2d>| Block {
        main: conv(device),
        side,
        scale: Param::from_tensor(Tensor::ones([1], device)),
    };
    let linear = || LinearConfig::new(4, 4).init(device);
    Network {
        stem: conv(device),
        blocks: vec![block(None), block(Some(grouped(device)))],
        pair: (conv(device), linear(), conv(device)),
        array: [conv(device), conv(device)],
        choice: Choice::Convolution(conv(device)),
        head: linear(),
    }
}

const PATHS: [&str; 9] = [
    "stem",
    "blocks.0.main",
    "blocks.1.main",
    "blocks.1.side",
    "pair.0",
    "pair.2",
    "array.0",
    "array.1",
    "choice.Convolution",
];

/// The layers whose method is not exact, with their method.
fn changed<M: Module>(model: &M) -> BTreeMap<String, Method> {
    let layers = Plan::layers(model).into_iter();
    let changed = layers.filter(|layer| layer.method != Method::Exact);
    changed.map(|layer| (layer.path, layer.method)).collect()
}

fn filter(patch: usize) -> Method {
    Method::gradient_filter(patch)
}

fn expected<const N: usize>(layers: [(&str, Method); N]) -> BTreeMap<String, Method> {
    layers
        .map(|(path, method)| (path.to_string(), method))
        .into()
}

// ------------------------------------------------------------------------------------------------
// Reaching layers

#[test]
fn layers_are_found_in_every_container() {
    for (name, device) in devices() {
        let layers = Plan::layers(&network(&device));
        let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
        assert_eq!(paths, PATHS, "{name}");
        let side = &layers[3];
        assert_eq!(side.shape.channels, [4, 4]);
        assert_eq!((side.shape.kernel, side.shape.groups), ([3, 3], 2));
        assert_eq!(side.method, Method::Exact);
    }
}

#[test]
fn a_layer_by_itself_is_a_model_too() {
    let layer = conv(&Device::default());
    let plan = Plan::builder()
        .last_convs(1, filter(3))
        .build(&layer)
        .expect("one layer");
    assert_eq!(plan.methods().keys().collect::<Vec<_>>(), [""]);
    assert_eq!(
        plan.apply(layer).expect("the same layer").method.method(),
        filter(3)
    );
}

#[test]
fn a_plan_is_built_by_path_pattern_and_position() {
    let network = network(&Device::default());
    let build = |builder: burn_frugal::plan::PlanBuilder| {
        builder
            .build(&network)
            .expect("layers of the network")
            .methods()
            .clone()
    };
    let by_path = build(Plan::builder().layer("pair.2", filter(2)));
    assert_eq!(by_path, expected([("pair.2", filter(2))]));

    let by_pattern = build(Plan::builder().pattern(r"^blocks\.\d+\.main$", filter(3)));
    let mains = [("blocks.0.main", filter(3)), ("blocks.1.main", filter(3))];
    assert_eq!(by_pattern, expected(mains));

    let last = build(Plan::builder().last_convs(2, filter(4)));
    assert_eq!(
        last,
        expected([("array.1", filter(4)), ("choice.Convolution", filter(4))])
    );

    let all = build(Plan::builder().last_convs(PATHS.len(), filter(2)));
    assert_eq!(all.len(), PATHS.len());
    assert_eq!(
        build(Plan::builder().last_convs(0, filter(2))),
        BTreeMap::new()
    );
    assert_eq!(build(Plan::builder()), BTreeMap::new());
}

#[test]
fn a_later_rule_overrides_an_earlier_one() {
    let network = network(&Device::default());
    let plan = Plan::builder()
        .last_convs(3, filter(2))
        .pattern("array", filter(4))
        .layer("array.1", Method::Exact)
        .build(&network)
        .expect("layers of the network");
    let methods = expected([
        ("array.0", filter(4)),
        ("array.1", Method::Exact),
        ("choice.Convolution", filter(2)),
    ]);
    assert_eq!(plan.methods(), &methods);

    let plan = Plan::builder()
        .layer("array.1", Method::Exact)
        .pattern("array", filter(4))
        .build(&network)
        .expect("layers of the network");
    assert_eq!(plan.methods()["array.1"], filter(4));
}

#[test]
fn applying_sets_every_layer() {
    for (name, device) in devices() {
        let network = network(&device);
        let first = Plan::builder()
            .pattern("^(stem|array)", filter(2))
            .build(&network);
        let network = first.expect("layers").apply(network).expect("layers");
        let methods = [
            ("array.0", filter(2)),
            ("array.1", filter(2)),
            ("stem", filter(2)),
        ];
        assert_eq!(changed(&network), expected(methods), "{name}");

        // layers that the second plan does not name are exact again
        let second = Plan::builder().layer("array.0", filter(7)).build(&network);
        let network = second.expect("a layer").apply(network).expect("a layer");
        assert_eq!(
            changed(&network),
            expected([("array.0", filter(7))]),
            "{name}"
        );
        let network = Plan::default().apply(network).expect("nothing to apply");
        assert_eq!(changed(&network), BTreeMap::new(), "{name}");
    }
}

#[test]
fn applying_leaves_parameters_alone() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let ids = [
            network.stem.weight.id,
            network.blocks[1].main.weight.id,
            network.head.weight.id,
        ];
        let plan = Plan::builder()
            .last_convs(9, filter(2))
            .build(&network)
            .expect("nine layers");
        assert!(
            !network.stem.weight.is_initialized(),
            "{name}: building initialises nothing"
        );
        let network = plan.apply(network).expect("the same layers");
        assert!(
            !network.stem.weight.is_initialized(),
            "{name}: applying initialises nothing"
        );
        let after = [
            network.stem.weight.id,
            network.blocks[1].main.weight.id,
            network.head.weight.id,
        ];
        assert_eq!(ids, after, "{name}");

        let weight = values(network.stem.weight.val());
        let network = Plan::default().apply(network).expect("nothing to apply");
        assert_eq!(values(network.stem.weight.val()), weight, "{name}");
        assert!(network.stem.weight.is_require_grad(), "{name}");
    }
}

#[test]
fn other_walks_over_the_model_keep_the_methods() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let plan = Plan::builder()
            .last_convs(4, filter(2))
            .build(&network)
            .expect("layers");
        let network = plan.apply(network).expect("layers");
        let methods = changed(&network);
        assert_eq!(methods.len(), 4);

        assert_eq!(changed(&network.clone()), methods, "{name}, clone");
        assert_eq!(changed(&network.valid()), methods, "{name}, valid");
        assert_eq!(changed(&network.valid().train()), methods, "{name}, train");
        assert_eq!(
            changed(&network.clone().no_grad()),
            methods,
            "{name}, no_grad"
        );
        assert_eq!(
            changed(&network.clone().freeze()),
            methods,
            "{name}, freeze"
        );
        assert_eq!(
            changed(&network.clone().to_device(&device)),
            methods,
            "{name}, to_device"
        );
        assert_eq!(
            changed(&network.clone().fork(&device)),
            methods,
            "{name}, fork"
        );
        let record = network.clone().into_record();
        assert_eq!(
            changed(&network.clone().load_record(record)),
            methods,
            "{name}, record"
        );
    }
}

#[test]
fn a_valid_model_trains_with_its_method_again() {
    for (name, device) in autodiff_devices() {
        let conv = conv(&device).with_method(filter(2)).expect("suitable");
        let weight_gradient = |conv: &Conv2d| {
            // Burn's `train()` goes back to autodiff without checkpointing
            let x = random(1, [1, 4, 8, 8], &conv.weight.val().device());
            let gradients = conv.forward(x).powi_scalar(2).sum().backward();
            conv.weight.val().grad(&gradients).map(values)
        };
        let before = weight_gradient(&conv);
        assert!(before.is_some(), "{name}");
        assert_eq!(weight_gradient(&conv.valid().train()), before, "{name}");
    }
}

#[test]
fn freezing_the_rest_leaves_the_plan_and_the_head_trained() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let plan = Plan::builder()
            .last_convs(2, filter(2))
            .build(&network)
            .expect("layers");
        let network = plan
            .freeze_rest(network, &["head"])
            .expect("layers and the head");
        let trained = [
            (network.array[1].weight.is_require_grad(), true),
            (
                network.array[1]
                    .bias
                    .as_ref()
                    .expect("a bias")
                    .is_require_grad(),
                true,
            ),
            (network.head.weight.is_require_grad(), true),
            (network.array[0].weight.is_require_grad(), false),
            (network.stem.weight.is_require_grad(), false),
            (network.blocks[1].scale.is_require_grad(), false),
            (network.pair.1.weight.is_require_grad(), false),
        ];
        for (index, (found, expected)) in trained.into_iter().enumerate() {
            assert_eq!(found, expected, "{name}, parameter {index}");
        }
    }
}

#[test]
fn freezing_the_rest_refuses_paths_without_parameters() {
    let device = Device::default().autodiff();
    for path in ["hea", "head.weights", "blocks.2", "heads"] {
        let error = Plan::default()
            .freeze_rest(network(&device), &[path])
            .unwrap_err();
        assert!(matches!(&error, Error::NoParameter { path: found } if found == path));
        assert!(error.to_string().contains(path), "{error}");
    }
    let elsewhere = plan_with("elsewhere", filter(2));
    let error = elsewhere.freeze_rest(network(&device), &[]).unwrap_err();
    assert!(matches!(error, Error::NoParameter { path } if path == "elsewhere"));
}

// ------------------------------------------------------------------------------------------------
// Errors

#[test]
fn an_unknown_path_is_an_error_that_lists_the_layers() {
    let network = network(&Device::default());
    for path in ["blocks.2.main", "block", "", "head", "stem.weight", "stem."] {
        let error = Plan::builder()
            .layer(path, filter(2))
            .build(&network)
            .unwrap_err();
        assert!(matches!(&error, Error::UnknownLayer { path: found, .. } if found == path));
        let message = error.to_string();
        assert!(
            message.contains("stem, blocks.0.main") && message.contains("9 in all"),
            "{message}"
        );

        let error = plan_with(path, filter(2))
            .apply(network.clone())
            .unwrap_err();
        assert!(matches!(error, Error::UnknownLayer { .. }), "{error}");
    }
}

#[test]
fn a_model_without_layers_says_so() {
    let linear = LinearConfig::new(2, 2).init(&Device::default());
    assert_eq!(Plan::layers(&linear), []);
    let error = Plan::builder()
        .layer("conv", filter(2))
        .build(&linear)
        .unwrap_err();
    assert!(error.to_string().contains("it has none"), "{error}");
}

#[test]
fn a_pattern_has_to_match_and_to_be_one() {
    let network = network(&Device::default());
    let error = Plan::builder()
        .pattern("^mains", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(&error, Error::NoMatch { pattern, .. } if pattern == "^mains"));
    assert!(error.to_string().contains("stem"), "{error}");

    let error = Plan::builder()
        .pattern("blocks(", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(&error, Error::Pattern { pattern, .. } if pattern == "blocks("));
    assert!(error.to_string().contains("unclosed group"), "{error}");
}

#[test]
fn there_have_to_be_enough_convolutions() {
    let network = network(&Device::default());
    let error = Plan::builder()
        .last_convs(10, filter(2))
        .build(&network)
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooFewConvolutions {
                expected: 10,
                found: 9
            }
        ),
        "{error}"
    );
    let error = Plan::builder()
        .last_convs(usize::MAX, filter(2))
        .build(&network)
        .unwrap_err();
    assert!(matches!(error, Error::TooFewConvolutions { .. }), "{error}");
}

#[test]
fn a_layer_has_to_suit_its_method() {
    let network = network(&Device::default());
    let unsuitable = [
        ("stem", filter(0), "at least 1 pixel, found 0"),
        (
            "stem",
            Method::published_gradient_filter(0),
            "at least 1 pixel, found 0",
        ),
        (
            "blocks.1.side",
            Method::published_gradient_filter(2),
            "2 groups with 4 -> 4 channels",
        ),
    ];
    for (path, method, reason) in unsuitable {
        let built = Plan::builder().layer(path, method).build(&network);
        let applied = plan_with(path, method).apply(network.clone());
        for error in [built.unwrap_err(), applied.unwrap_err()] {
            assert!(
                matches!(&error, Error::Method { layer, .. } if layer == path),
                "{error}"
            );
            assert!(error.to_string().contains(reason), "{error}");
        }
    }
    // patch 1 is the exact gradient, which every layer can use
    let one = Plan::builder().layer("blocks.1.side", Method::published_gradient_filter(1));
    assert!(one.build(&network).is_ok());

    let error = conv(&Device::default()).with_method(filter(0)).unwrap_err();
    assert!(matches!(error, Error::Method { .. }), "{error}");
}

#[test]
fn a_failed_plan_does_not_disturb_the_next() {
    let network = network(&Device::default());
    Plan::builder()
        .layer("nowhere", filter(2))
        .build(&network)
        .unwrap_err();
    assert!(
        Plan::builder()
            .layer("stem", filter(2))
            .build(&network)
            .is_ok()
    );
}

/// A patch larger than any map is one tile.
#[test]
fn a_huge_patch_is_one_tile() {
    for (name, device) in autodiff_devices() {
        for stride in [1, 2] {
            let config = Conv2dConfig::new([4, 4], [3, 3])
                .with_padding(burn::nn::PaddingConfig2d::Explicit(1, 1, 1, 1))
                .with_stride([stride, stride]);
            let conv = config.init(&device);
            let gradient = |method| {
                let conv = conv.clone().with_method(method).expect("suitable");
                let x = random(1, [1, 4, 6, 6], &device);
                let gradients = conv.forward(x).powi_scalar(2).sum().backward();
                values(conv.weight.val().grad(&gradients).expect("tracked"))
            };
            for make in [Method::gradient_filter, Method::published_gradient_filter] {
                let one_tile = gradient(make(6));
                assert_eq!(
                    gradient(make(usize::MAX)),
                    one_tile,
                    "stride {stride} ({name})"
                );
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------
// Files

/// A plan for any path; no model is asked.
fn plan_with(path: &str, method: Method) -> Plan {
    let document = serde_json::json!({ "version": 1, "layers": { path: method } });
    Plan::from_json(&document.to_string()).expect("a plan")
}

fn any_method() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::Exact),
        any::<usize>().prop_map(Method::gradient_filter),
        any::<usize>().prop_map(Method::published_gradient_filter),
    ]
}

proptest! {
    #[test]
    fn a_plan_survives_json(layers in prop::collection::btree_map(".*", any_method(), 0..6)) {
        let document = serde_json::json!({ "version": 1, "layers": layers });
        let plan = Plan::from_json(&document.to_string()).expect("a plan");
        prop_assert_eq!(plan.methods(), &layers);
        let again = Plan::from_json(&plan.to_json()).expect("what was written");
        prop_assert_eq!(again, plan);
    }

    #[test]
    fn text_is_a_plan_or_an_error(text in ".*") {
        let error = Plan::from_json(&text).expect_err("random text is no plan");
        prop_assert!(error.to_string().contains("the text is not a plan"), "{}", error);
    }
}

/// Plans of released versions have to stay readable: this is the form of version 1.
#[test]
fn the_json_form_is_stable() {
    let text = r#"{
  "version": 1,
  "layers": {
    "a": "exact",
    "b": {
      "gradient_filter": {
        "patch": 2,
        "scaling": "mass_preserving"
      }
    },
    "c": {
      "gradient_filter": {
        "patch": 4,
        "scaling": "published"
      }
    }
  }
}"#;
    let plan = Plan::from_json(text).expect("a plan");
    let published = Method::published_gradient_filter(4);
    let methods = expected([("a", Method::Exact), ("b", filter(2)), ("c", published)]);
    assert_eq!(plan.methods(), &methods);
    assert_eq!(plan.to_json(), text);

    let short = r#"{"version":1,"layers":{"b":{"gradient_filter":{"patch":2}}}}"#;
    assert_eq!(
        Plan::from_json(short).expect("a plan").methods()["b"],
        filter(2)
    );
}

#[test]
fn a_plan_is_displayed_a_layer_a_line() {
    let text = r#"{"version":1,"layers":{"blocks.10.main":"exact","stem":{"gradient_filter":{"patch":2}}}}"#;
    let plan = Plan::from_json(text).expect("a plan");
    let lines = "blocks.10.main  exact\nstem            gradient filter, patch 2";
    assert_eq!(plan.to_string(), lines);
    assert_eq!(Plan::default().to_string(), "every layer exact");
    let published = Method::published_gradient_filter(3).to_string();
    assert_eq!(published, "gradient filter, patch 3, published scaling");
}

#[test]
fn text_that_is_no_plan_is_refused() {
    let layer = |method: &str| format!(r#"{{"version":1,"layers":{{"a":{method}}}}}"#);
    let filter = |fields: &str| layer(&format!(r#"{{"gradient_filter":{fields}}}"#));
    let texts = [
        String::new(),
        "null".into(),
        "[]".into(),
        "[1]".into(),
        "3".into(),
        r#""exact""#.into(),
        "{}".into(),
        r#"{"version":1}"#.into(),
        r#"{"layers":{}}"#.into(),
        r#"{"version":"1","layers":{}}"#.into(),
        r#"{"version":-1,"layers":{}}"#.into(),
        r#"{"version":1.5,"layers":{}}"#.into(),
        r#"{"version":1,"layers":[]}"#.into(),
        r#"{"version":1,"layers":{},"models":{}}"#.into(),
        r#"{"version":1,"layers":{}} {}"#.into(),
        layer("2"),
        layer("null"),
        layer(r#""Exact""#),
        layer(r#""gradient_filter""#),
        layer(r#"{"fourier_filter":{"patch":2}}"#),
        filter("{}"),
        filter(r#"{"patch":"2"}"#),
        filter(r#"{"patch":-2}"#),
        filter(r#"{"patch":2.5}"#),
        filter(r#"{"patch":1e30}"#),
        filter(r#"{"patch":18446744073709551616}"#),
        filter(r#"{"patch":2,"scaling":"loud"}"#),
        filter(r#"{"patch":2,"skaling":"published"}"#),
    ];
    for text in texts {
        match Plan::from_json(&text) {
            Err(error @ Error::NotAPlan { .. }) => {
                assert!(
                    error.to_string().contains("the text is not a plan"),
                    "{error}"
                );
            }
            other => panic!("`{text}` gives {other:?}"),
        }
    }
}

#[test]
fn a_truncated_plan_is_refused() {
    let text = plan_with("blocks.1.main", Method::published_gradient_filter(12)).to_json();
    for length in 0..text.len() {
        let error = Plan::from_json(&text[..length]).unwrap_err();
        assert!(
            matches!(error, Error::NotAPlan { .. }),
            "{length} bytes: {error}"
        );
    }
}

#[test]
fn a_plan_of_a_later_version_is_refused_whatever_it_holds() {
    for version in [2, u64::MAX] {
        let text = format!(r#"{{"version":{version},"stages":[["a", 3]]}}"#);
        let error = Plan::from_json(&text).unwrap_err();
        let expected = matches!(&error, Error::NewerPlan { found, .. } if *found == version);
        assert!(expected, "{error}");
        assert!(error.to_string().contains("reads up to 1"), "{error}");
    }
}

fn files_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_plan_is_saved_and_loaded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    for plan in [
        plan_with("a", filter(2)),
        Plan::default(),
        plan_with("b", filter(3)),
    ] {
        plan.save(&path).expect("a writable folder");
        assert_eq!(Plan::load(&path).expect("what was saved"), plan);
    }
    assert_eq!(
        files_in(folder.path()),
        ["plan.json"],
        "no temporary file stays"
    );
    let text = std::fs::read_to_string(&path).expect("a file");
    assert!(text.ends_with("}\n"), "a text file ends with a newline");
}

#[test]
fn a_plan_is_saved_in_the_working_folder() {
    let file = tempfile::NamedTempFile::new_in(".").expect("a writable package folder");
    let name = Path::new(file.path().file_name().expect("a file"));
    plan_with("a", filter(2))
        .save(name)
        .expect("a writable folder");
    assert_eq!(
        Plan::load(name).expect("what was saved"),
        plan_with("a", filter(2))
    );
}

#[cfg(unix)]
#[test]
fn a_saved_plan_has_the_permissions_of_a_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [plan, other] = ["plan.json", "other"].map(|name| folder.path().join(name));
    Plan::default().save(&plan).expect("a writable folder");
    std::fs::write(&other, "").expect("a writable folder");
    let mode = |path: &Path| {
        std::fs::metadata(path)
            .expect("a file")
            .permissions()
            .mode()
    };
    assert_eq!(mode(&plan), mode(&other));
}

#[test]
fn a_failed_save_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("nowhere/plan.json");
    let error = Plan::default().save(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if *path == missing),
        "{error}"
    );
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert_eq!(files_in(folder.path()), [""; 0]);

    // a folder in the way: everything succeeds but the last step
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).expect("a writable folder");
    let error = Plan::default().save(&taken).unwrap_err();
    assert!(matches!(error, Error::File { .. }), "{error}");
    assert_eq!(files_in(folder.path()), ["taken"]);
    assert_eq!(files_in(&taken), [""; 0]);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_keeps_its_plan() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    let (old, new) = (plan_with("old", filter(2)), plan_with("new", filter(3)));
    old.save(&path).expect("a writable folder");
    let allow = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(), permissions).expect("my own folder");
    };
    allow(0o555);
    let saved = new.save(&path);
    let found = Plan::load(&path).expect("one of the two");
    allow(0o755);
    // the administrator may write everywhere
    match saved {
        Ok(()) => assert_eq!(found, new),
        Err(error) => {
            assert!(matches!(error, Error::File { .. }), "{error}");
            assert_eq!(found, old);
        }
    }
    assert_eq!(files_in(folder.path()), ["plan.json"]);
}

#[test]
fn a_reader_sees_the_old_plan_or_the_new() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("plan.json");
    let plans = [
        plan_with("short", Method::Exact),
        plan_with(&"long".repeat(5_000), filter(2)),
    ];
    plans[0].save(&path).expect("a writable folder");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads == 0 {
                let plan = Plan::load(&path).expect("a whole plan");
                assert!(plans.contains(&plan));
                reads += 1;
            }
        });
        let written = (0..50).try_for_each(|turn: usize| plans[turn % 2].save(&path));
        done.store(true, Ordering::Relaxed);
        reader.join().expect("only whole plans");
        written.expect("a writable folder");
    });
}

#[test]
fn a_file_that_is_no_plan_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing.json");
    let error = Plan::load(&missing).unwrap_err();
    assert!(
        matches!(&error, Error::File { path, .. } if *path == missing),
        "{error}"
    );
    assert!(error.to_string().contains("missing.json"), "{error}");

    let refused = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a writable folder");
        let error = Plan::load(&path).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        error
    };
    assert!(matches!(refused("empty.json", b""), Error::NotAPlan { .. }));
    assert!(matches!(
        refused("other.json", b"{\"a\": 1}"),
        Error::NotAPlan { .. }
    ));
    assert!(matches!(
        refused("newer.json", b"{\"version\": 9}"),
        Error::NewerPlan { .. }
    ));
    assert!(matches!(
        refused("binary.json", &[0xff, 0xfe, 0x00]),
        Error::File { .. }
    ));
    assert!(matches!(
        Plan::load(folder.path()).unwrap_err(),
        Error::File { .. }
    ));
}

// ------------------------------------------------------------------------------------------------
// Records and optimizers

#[derive(Module, Debug)]
struct Ours {
    conv: Conv2d,
}

#[derive(Module, Debug)]
struct Burns {
    conv: burn::nn::conv::Conv2d,
}

#[test]
fn burns_records_load_and_ours_load_back() {
    for (name, device) in devices() {
        let burns = Burns {
            conv: burn::nn::conv::Conv2dConfig::new([4, 4], [3, 3]).init(&device),
        };
        let (weight, id) = (values(burns.conv.weight.val()), burns.conv.weight.id);

        let plan = plan_with("conv", filter(2));
        let ours = plan
            .apply(Ours {
                conv: conv(&device),
            })
            .expect("its layer");
        let ours = ours.load_record(burns.into_record());
        assert_eq!(values(ours.conv.weight.val()), weight, "{name}");
        assert_eq!(
            ours.conv.weight.id, id,
            "{name}: optimizer state goes by id"
        );
        assert_eq!(
            ours.conv.method.method(),
            filter(2),
            "{name}: a record has no method"
        );

        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("layer.bpk");
        ours.save_file(&path).expect("a writable folder");
        let burns = Burns {
            conv: burn::nn::conv::Conv2dConfig::new([4, 4], [3, 3]).init(&device),
        };
        let burns = burns.load_file(&path);
        assert_eq!(values(burns.conv.weight.val()), weight, "{name}");
        assert_eq!(burns.conv.weight.id, id, "{name}");
    }
}

#[test]
fn layers_convert_both_ways_without_a_copy() {
    for (name, device) in devices() {
        let config = burn::nn::conv::Conv2dConfig::new([6, 4], [3, 5])
            .with_groups(2)
            .with_stride([2, 1])
            .with_dilation([1, 2])
            .with_padding(burn::nn::PaddingConfig2d::Explicit(1, 2, 0, 3));
        let burns = config.init(&device);
        let id = burns.weight.id;
        let ours = Conv2d::from(burns);
        assert!(
            !ours.weight.is_initialized(),
            "{name}: the parameters only move"
        );
        assert_eq!(ours.weight.id, id, "{name}");
        let weight = values(ours.weight.val());
        let back = burn::nn::conv::Conv2d::from(ours);
        assert_eq!(back.weight.id, id, "{name}");
        assert_eq!(back.to_string(), config.init(&device).to_string(), "{name}");
        assert_eq!(values(back.weight.val()), weight, "{name}");
    }
}

/// Three steps with momentum; `between` gets the model after the first.
fn train(
    device: &Device,
    start: &Ours,
    between: impl FnOnce(Ours, &mut ModuleOptimizer) -> Ours,
) -> Vec<f64> {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    let mut model = start.clone();
    let mut between = Some(between);
    for step in 0..3 {
        let x = random(step, [1, 4, 6, 6], device);
        let gradients = model.conv.forward(x).powi_scalar(2).mean().backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        model = optimizer.step(0.1, model, gradients);
        if let Some(between) = between.take() {
            model = between(model, &mut optimizer);
        }
    }
    values(model.conv.weight.val())
}

#[test]
fn optimizer_state_survives_a_plan() {
    for (name, device) in autodiff_devices() {
        let start = Ours {
            conv: conv(&device),
        };
        start.conv.weight.val();
        let straight = train(&device, &start, |model, _| model);

        // patch 1 computes the exact gradient: only a lost momentum could make a difference
        let plan = plan_with("conv", filter(1));
        let planned = train(&device, &start, |model, optimizer| {
            let before = optimizer.to_record().len();
            let model = plan.apply(model).expect("its layer");
            assert_eq!(optimizer.to_record().len(), before, "{name}");
            model
        });
        assert_eq!(planned, straight, "{name}");

        let forgetful = train(&device, &start, |model, optimizer| {
            let momentum = MomentumConfig::new().with_momentum(0.9);
            *optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
            model
        });
        assert_ne!(forgetful, straight, "{name}: the momentum matters here");
    }
}

#[test]
fn a_clone_is_independent() {
    let original = conv(&Device::default());
    let clone = original.clone().with_method(filter(2)).expect("suitable");
    assert_eq!(original.method.method(), Method::Exact);
    assert_eq!(clone.method.method(), filter(2));
    assert_eq!(clone.weight.id, original.weight.id);
}

#[test]
fn a_layer_shows_its_method() {
    let conv = conv(&Device::default())
        .with_method(filter(2))
        .expect("suitable");
    let shown = conv.to_string();
    assert!(shown.contains("gradient filter, patch 2"), "{shown}");
    assert!(shown.contains("ch_in: 4"), "{shown}");
}

// ------------------------------------------------------------------------------------------------
// Configuration errors

#[test]
fn sizes_that_do_not_fit_are_errors() {
    let config = || Conv2dConfig::new([4, 6], [3, 3]);
    let wrong = [
        (
            config().with_groups(4),
            "input channels (4) and output channels (6)",
        ),
        (config().with_groups(3), "groups (3)"),
        (config().with_groups(0), "groups must be at least 1"),
        (config().with_stride([0, 1]), "stride [0, 1]"),
        (config().with_dilation([1, 0]), "dilation [1, 0]"),
        (Conv2dConfig::new([4, 6], [3, 0]), "kernel [3, 0]"),
    ];
    for (config, reason) in wrong {
        let error = config.try_init(&Device::default()).unwrap_err();
        assert!(matches!(error, Error::Convolution { .. }), "{error}");
        let message = error.to_string();
        assert!(message.contains(reason), "{message}");
        assert!(message.contains("[4, 6]"), "{message}: which layer?");
        let panic = panic_message(|| config.init(&Device::default()));
        assert_eq!(panic, Some(message));
    }
}

#[test]
fn a_wrong_input_panics_with_the_operation_and_the_shapes() {
    for (name, device) in devices()
        .into_iter()
        .flat_map(|(name, device)| [(name, device.clone()), (name, device.autodiff())])
    {
        let conv = Conv2dConfig::new([4, 6], [3, 5])
            .with_groups(2)
            .init(&device);
        let forward = |shape: [usize; 4]| {
            let message = panic_message(|| conv.forward(Tensor::zeros(shape, &device)));
            let message = message.unwrap_or_else(|| panic!("{name}: {shape:?} is accepted"));
            let shapes = [format!("{shape:?}"), "[6, 2, 3, 5]".to_string()];
            for part in ["Conv2d::forward"]
                .into_iter()
                .chain(shapes.iter().map(String::as_str))
            {
                assert!(
                    message.contains(part),
                    "{name}: `{part}` is not in: {message}"
                );
            }
            message
        };
        assert!(forward([1, 3, 8, 8]).contains("3 channels"));
        assert!(forward([1, 2, 8, 8]).contains("needs 4"));
        assert!(forward([1, 4, 2, 8]).contains("spans 3 pixels of height"));
        assert!(forward([1, 4, 8, 4]).contains("spans 5 pixels of width"));
    }
}
