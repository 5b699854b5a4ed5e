//! Guards how plans reach linear layers among convolutions, and what those refuse.

use burn::tensor::Device;
use burn_frugal::methods::{LayerKind, Unsuitable};
use burn_frugal::plan::Plan;
use burn_frugal::{Error, Method, PerMode};
use burn_frugal_tests::{assert_contains, autodiff_devices, random};

use super::network;
use crate::user_model::{expected, plan_with};

const PATHS: [&str; 6] = ["colours", "stem", "tokens.0", "tokens.1", "mixer", "head"];

#[test]
fn linear_layers_have_paths_among_convolutions() {
    let layers = Plan::layers(&network(&Device::default()));
    let paths: Vec<&str> = layers.iter().map(|layer| layer.path.as_str()).collect();
    assert_eq!(paths, PATHS);
    let linear = |path: &str| !["stem", "mixer"].contains(&path);
    for layer in &layers {
        let is_linear = layer.shape.kind == LayerKind::Linear;
        assert_eq!(is_linear, linear(&layer.path), "{}", layer.path);
    }
    assert_eq!(layers[2].shape.channels, [6, 8]);
    assert_eq!(layers[2].shape.weight_len(), 48);
}

#[test]
fn the_last_convolutions_are_convolutions() {
    let network = network(&Device::default());
    let method = Method::gradient_filter(2);
    let plan = |count| Plan::builder().last_convs(count, method).build(&network);
    assert_eq!(
        plan(1).expect("there are two").methods(),
        &expected([("mixer", method)])
    );
    assert_eq!(
        plan(2).expect("there are two").methods(),
        &expected([("stem", method), ("mixer", method)])
    );
    let error = plan(3).unwrap_err();
    let both = Error::TooFewConvolutions {
        expected: 3,
        found: 2,
    };
    assert_eq!(error.to_string(), both.to_string());
}

#[test]
fn patterns_and_paths_reach_linear_layers() {
    let network = network(&Device::default());
    let [sparse, shortcut] = [
        Method::channel_sparse(0.5),
        Method::activation_shortcut([2, 4, 3]),
    ];
    let plan = Plan::builder()
        .pattern("o", sparse)
        .pattern(r"^tokens\.", shortcut)
        .layer("head", sparse)
        .build(&network)
        .expect("they suit");
    let methods = expected([
        ("colours", sparse),
        ("tokens.0", shortcut),
        ("tokens.1", shortcut),
        ("head", sparse),
    ]);
    assert_eq!(plan.methods(), &methods);
    let network = plan.apply(network).expect("its layers");
    assert_eq!(network.colours.method.method(), sparse);
    assert_eq!(network.tokens[1].method.method(), shortcut);
    assert_eq!(network.stem.method.method(), Method::Exact);
    assert_eq!(Plan::from_json(&plan.to_json()).expect("a plan"), plan);
}

#[test]
fn a_layer_refuses_what_it_has_no_use_for() {
    let network = network(&Device::default());
    let shortcut =
        |ranks: &[usize]| Method::activation_shortcut(PerMode::new(ranks).expect("2 to 4 ranks"));
    let only_convolutions = "convolutions only, found a linear layer";
    let refused = [
        ("head", Method::gradient_filter(2), only_convolutions),
        ("tokens.1", Method::gradient_filter(1), only_convolutions),
        (
            "head",
            Method::published_gradient_filter(2),
            only_convolutions,
        ),
        (
            "stem",
            shortcut(&[2, 4]),
            "expected 4 ranks, one a mode of the input, found 2: 2x4",
        ),
        ("mixer", shortcut(&[2, 4, 2]), "expected 4 ranks"),
        (
            "stem",
            shortcut(&[2, 5, 2, 2]),
            "rank 5 of the channel mode is above the layer's 4 input",
        ),
        (
            "tokens.0",
            shortcut(&[2, 7]),
            "rank 7 of the channel mode is above the layer's 6 input",
        ),
        (
            "tokens.1",
            shortcut(&[2, 4, 9]),
            "rank 9 of the channel mode is above the layer's 8",
        ),
        (
            "colours",
            shortcut(&[2, 2, 2, 4]),
            "rank 4 of the channel mode is above the layer's 3",
        ),
        (
            "head",
            shortcut(&[0, 4]),
            "every rank is at least 1, found 0x4",
        ),
        (
            "mixer",
            shortcut(&[1, 2, 0, 1]),
            "every rank is at least 1, found 1x2x0x1",
        ),
        (
            "head",
            Method::channel_sparse(0.0),
            "above 0 and at most 1, found 0",
        ),
        (
            "head",
            Method::channel_sparse(1.5),
            "above 0 and at most 1, found 1.5",
        ),
        ("head", Method::channel_sparse(f64::NAN), "found NaN"),
        ("head", Method::hosvd(0.0), "above 0 and at most 1, found 0"),
        (
            "head",
            Method::hosvd(1.01),
            "above 0 and at most 1, found 1.01",
        ),
    ];
    for (path, method, reason) in refused {
        let built = Plan::builder().layer(path, method).build(&network);
        let mut errors = vec![built.unwrap_err()];
        // JSON has no NaN
        if !matches!(method, Method::ChannelSparse(sparse) if sparse.ratio.is_nan()) {
            let applied = plan_with(path, method).apply(network.clone());
            errors.push(applied.unwrap_err());
        }
        for error in errors {
            assert!(
                matches!(&error, Error::Method { layer, .. } if layer == path),
                "{path}, {method}: {error}"
            );
            assert_contains(&error.to_string(), &[&format!("`{path}`"), reason]);
        }
    }
    // ranks above the sizes of other modes are clipped, and any number of rows may come
    for ranks in [&[999, 6][..], &[999, 999, 6], &[9, 9, 9, 6]] {
        let plan = Plan::builder().layer("tokens.0", shortcut(ranks));
        assert!(plan.build(&network).is_ok(), "{ranks:?}");
    }

    let filter = Method::gradient_filter(2);
    let error = network.head.with_method(filter).unwrap_err();
    assert!(
        matches!(&error, Error::Method { layer, source: Unsuitable::FilterOnLinear } if layer == "Linear"),
        "{error}"
    );
}

#[test]
fn freezing_the_rest_leaves_linear_layers_of_the_plan() {
    for (name, device) in autodiff_devices() {
        let network = network(&device);
        let plan = Plan::builder()
            .layer("tokens.1", Method::channel_sparse(0.5))
            .layer("mixer", Method::gradient_filter(2))
            .build(&network)
            .expect("they suit");
        let network = plan.apply(network).expect("its layers");
        let network = plan.freeze_rest(network, &["head.bias"]);
        let network = network.expect("parameters under them");
        let images = random(1, [2, 6, 6, 3], &device);
        let gradients = network.forward(images).powi_scalar(2).sum().backward();
        let linears = [
            ("colours", &network.colours, [false, false]),
            ("tokens.0", &network.tokens[0], [false, false]),
            ("tokens.1", &network.tokens[1], [true, true]),
            ("head", &network.head, [false, true]),
        ];
        for (path, linear, trained) in linears {
            let bias = linear.bias.as_ref().expect("a bias").val();
            let found = [
                linear.weight.val().grad(&gradients).is_some(),
                bias.grad(&gradients).is_some(),
            ];
            assert_eq!(found, trained, "{path} ({name}): weight, bias");
        }
        for (path, conv, trained) in [
            ("stem", &network.stem, false),
            ("mixer", &network.mixer, true),
        ] {
            let found = conv.weight.val().grad(&gradients).is_some();
            assert_eq!(found, trained, "{path} ({name})");
        }
        assert_eq!(
            network.tokens[0].method.channels(),
            None,
            "{name}: a frozen layer chooses nothing"
        );
    }
}
