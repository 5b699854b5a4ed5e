//! Guards plans: which layers of a user's own model they reach, what they change and what they
//! leave alone.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Device;
use burn_frugal::Method;
use burn_frugal::plan::{Plan, PlanBuilder};
use burn_frugal_tests::{autodiff_devices, devices, values};

use crate::user_model::{PATHS, conv, expected, filter, network, plan_with};

/// The layers whose method is not exact, with their method.
fn changed<M: Module>(model: &M) -> BTreeMap<String, Method> {
    let layers = Plan::layers(model).into_iter();
    let changed = layers.filter(|layer| layer.method != Method::Exact);
    changed.map(|layer| (layer.path, layer.method)).collect()
}

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
    let build = |builder: PlanBuilder| {
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
fn another_plan_trains_its_own_layers() {
    for (name, device) in autodiff_devices() {
        let first = plan_with("stem", filter(2));
        let second = plan_with("array.0", filter(2));
        let network = first.freeze_rest(network(&device), &[]).expect("a layer");
        let network = second.freeze_rest(network, &["head"]).expect("a layer");
        let found = [
            network.stem.weight.is_require_grad(),
            network.array[0].weight.is_require_grad(),
            network.head.weight.is_require_grad(),
        ];
        assert_eq!(found, [false, true, true], "{name}");
    }
}
