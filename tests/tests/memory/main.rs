//! Guards the memory: what a layer really keeps between forward and backward, as an allocator
//! counts it, is what its method promises, and nothing accumulates over thousands of steps.

mod budget;
mod drift;
mod guards;
mod layers;
mod networks;
mod prediction;
mod transient;

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_frugal::memory::CountingAllocator;
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::nn::{Conv2d, Conv2dConfig, Linear, LinearConfig, Relu, Relu6};
use burn_frugal::plan::{Candidates, Profile};
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{autodiff_devices, random};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Runs a test while no other one measures: the allocator counts the whole process. On a thread that
/// ends first: the kernels' scratch buffers, which go with their thread, would otherwise be freed
/// while the next test measures.
fn alone(test: impl FnOnce() + Send) {
    static MEASURING: Mutex<()> = Mutex::new(());
    // another test's failure is reported by that test
    let _measuring = MEASURING.lock().unwrap_or_else(PoisonError::into_inner);
    let finished = thread::scope(|scope| scope.spawn(test).join());
    if let Err(panic) = finished {
        resume_unwind(panic);
    }
}

/// Bytes that live after `forward`, besides its output. The smallest of some runs: the kernels keep
/// a scratch buffer a thread, which the first runs may grow. Every run gets a fresh copy of `layer`:
/// what a layer carries from step to step is there only after its first.
fn kept_bytes<L: Clone, const D: usize>(layer: &L, forward: impl Fn(&L) -> Tensor<D>) -> usize {
    let measure = || {
        let layer = layer.clone();
        let before = ALLOCATOR.live_bytes();
        let output = forward(&layer);
        let kept = ALLOCATOR.live_bytes().saturating_sub(before);
        let kept = kept.saturating_sub(output.shape().num_elements() * size_of::<f32>());
        if output.is_tracked() {
            // otherwise the graph of this run would live until some later backward pass
            output.sum().backward();
        }
        kept
    };
    (0..3).map(|_| measure()).min().expect("some runs")
}

/// A layer and the shape of one input image.
struct Layer {
    name: &'static str,
    config: Conv2dConfig,
    image: [usize; 3],
}

impl Layer {
    /// The layer with a method, and a batch so large that what the method keeps of it makes the
    /// graph's own objects less than 2 %.
    fn measurable(&self, method: Method, device: &Device) -> (Conv2d, [usize; 4]) {
        let conv = self.config.init(device).with_method(method);
        let conv = conv.expect("every method suits these layers");
        let one = method.bytes(conv.geometry(self.shape(1)), size_of::<f32>());
        (conv, self.shape(MEASURABLE_BYTES.div_ceil(one)))
    }

    /// The same with a method for the batch, one whose ranks are half of all sizes say.
    fn measurable_with(
        &self,
        method: impl Fn(PerMode) -> Method,
        device: &Device,
    ) -> (Conv2d, [usize; 4]) {
        let conv = self.config.init(device);
        let mut batch = 2;
        loop {
            let shape = self.shape(batch);
            let method = method(shape.into());
            let bytes = method.bytes(conv.geometry(shape), size_of::<f32>());
            if bytes >= MEASURABLE_BYTES {
                let conv = conv.with_method(method);
                return (conv.expect("every method suits these layers"), shape);
            }
            batch += 1;
        }
    }

    fn shape(&self, batch: usize) -> [usize; 4] {
        let [channels, height, width] = self.image;
        [batch, channels, height, width]
    }
}

fn layers() -> Vec<Layer> {
    let layer = |name, config, image| Layer {
        name,
        config,
        image,
    };
    vec![
        layer("3x3", same([32, 4], 3), [32, 56, 56]),
        layer("1x1", same([64, 4], 1), [64, 49, 49]),
        layer(
            "5x5 depthwise, stride 2",
            same([64, 64], 5).with_stride([2, 2]).with_groups(64),
            [64, 57, 55],
        ),
        layer("valid", Conv2dConfig::new([16, 4], [3, 3]), [16, 72, 80]),
    ]
}

/// `leaf * 2` makes a map that nothing but the layer keeps alive.
fn leaf<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    random(1, shape, device).require_grad()
}

/// More than what stays besides the saved map: nodes, shapes, the boxed step (2 to 2.5 KB).
const GRAPH_BYTES: usize = 3 << 10;

/// What has to be kept for that to be less than 2 % of it.
const MEASURABLE_BYTES: usize = 60 * GRAPH_BYTES;

/// One method of each kind; the ranks suit every input with as many axes.
fn kinds<const D: usize>() -> Vec<Method> {
    let shortcut = Method::activation_shortcut(PerMode::new(&[1; D]).expect("2 to 4 axes"));
    let mut kinds = vec![Method::Exact];
    if D == 4 {
        kinds.push(Method::gradient_filter(2));
    }
    kinds.extend([
        Method::channel_sparse(0.5),
        shortcut,
        Method::hosvd(0.7),
        Method::quantized(8),
    ]);
    kinds
}

/// Half of every size, rounded up: a channel of 1 keeps it.
fn halves(modes: PerMode) -> PerMode {
    let halves: Vec<usize> = modes
        .as_slice()
        .iter()
        .map(|size| size.div_ceil(2))
        .collect();
    PerMode::new(&halves).expect("as many as there were")
}

/// The variants of the activation shortcut with these ranks.
fn shortcuts(ranks: PerMode) -> [Method; 3] {
    let shortcut = ActivationShortcut::new(ranks);
    [
        shortcut.into(),
        shortcut.sequential().into(),
        shortcut.frozen().into(),
    ]
}

/// Checkpointing treats the step of every method alike, so the first two stand for all there.
fn fewer_with_checkpointing<'a, T>(device_name: &str, methods: &'a [T]) -> &'a [T] {
    if device_name.contains("checkpointing") {
        &methods[..methods.len().min(2)]
    } else {
        methods
    }
}

/// Calls `check` with every layer, device and one of the methods, and the shape of the input.
fn for_each_layer(methods: &[Method], check: impl Fn(&str, &Device, Conv2d, [usize; 4])) {
    for (device_name, device) in autodiff_devices() {
        for layer in layers() {
            for &method in fewer_with_checkpointing(&device_name, methods) {
                let (conv, input) = layer.measurable(method, &device);
                let name = format!("{}, {method} ({device_name})", layer.name);
                check(&name, &device, conv, input);
            }
        }
    }
}

/// Calls `check` with every layer and device, a method of each kind, and the shape of an input that
/// is worth keeping.
fn for_each_kind(check: impl Fn(&str, &Device, Conv2d, [usize; 4])) {
    for (device_name, device) in autodiff_devices() {
        for layer in layers() {
            let (exact, input) = layer.measurable(Method::Exact, &device);
            for &method in fewer_with_checkpointing(&device_name, &kinds::<4>()) {
                let conv = exact.clone().with_method(method).expect("suitable");
                let name = format!("{}, {method} ({device_name})", layer.name);
                check(&name, &device, conv, input);
            }
        }
    }
}

/// Fails if what is kept differs from what was promised by more than 2 %.
#[track_caller]
fn assert_promise(what: &str, kept: usize, promised: usize) {
    assert!(
        kept.abs_diff(promised) <= promised / 50,
        "{what}: keeps {kept} bytes, promises {promised}",
    );
}

fn assert_conv_promise(what: &str, device: &Device, conv: &Conv2d, input: [usize; 4]) {
    // not tracked: its gradient would take most of the time
    let x = random(1, input, device);
    let kept = kept_bytes(conv, |conv| conv.forward(x.clone() * 2.0));
    let method = conv.method.method();
    let promised = method.bytes(conv.geometry(input), size_of::<f32>());
    assert_promise(what, kept, promised);
}

#[test]
fn a_layer_keeps_what_its_method_promises() {
    alone(|| {
        let filters = [2, 7].map(Method::gradient_filter);
        let sparse = [0.25, 0.6].map(Method::channel_sparse);
        let quantized = [8, 4].map(Method::quantized);
        let methods = [&[Method::Exact], &filters[..], &sparse, &quantized].concat();
        for_each_layer(&methods, |name, device, conv, input| {
            assert_conv_promise(name, device, &conv, input);
        });
    });
}

#[test]
fn a_shortcut_keeps_its_core_and_factors() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            for layer in layers() {
                for &variant in fewer_with_checkpointing(&device_name, &[0, 1, 2]) {
                    let halved = |modes| shortcuts(halves(modes))[variant];
                    let (conv, input) = layer.measurable_with(halved, &device);
                    let method = conv.method.method();
                    let name = format!("{}, {method} ({device_name})", layer.name);
                    assert_conv_promise(&name, &device, &conv, input);
                }
            }
        }
    });
}

/// HOSVD's ranks depend on the values: a profile measures what it keeps of them.
#[test]
fn hosvd_keeps_what_its_profile_measured() {
    alone(|| {
        let method = Method::hosvd(0.7);
        for (device_name, device) in autodiff_devices() {
            for layer in layers() {
                let (exact, input) = layer.measurable(Method::Exact, &device);
                let conv = exact.with_method(method).expect("suitable");
                let x = random(1, input, &device);
                let kept = kept_bytes(&conv, |conv| conv.forward(x.clone() * 2.0));
                let candidates = Candidates::new().layer("", [method]);
                let loss = |conv: &Conv2d| conv.forward(x.clone() * 2.0).sum();
                let profile = Profile::measure(&conv, &candidates, loss).expect("it is used");
                let measured = profile.layers()[0].candidates[0].bytes;
                let name = format!("{} ({device_name})", layer.name);
                assert!(
                    kept.abs_diff(measured) <= measured / 50 + GRAPH_BYTES,
                    "{name}: keeps {kept} bytes, measured {measured}"
                );
                let most = method.bytes(conv.geometry(input), size_of::<f32>());
                assert!(measured <= most, "{name}: {measured} of {most}");
                let whole = input.iter().product::<usize>() * size_of::<f32>();
                assert!(3 * kept < 2 * whole, "{name}: {kept} of {whole} bytes");
            }
        }
    });
}

/// A layer with few outputs, so that its own output is small, with a method for this input.
fn linear<const D: usize>(shape: [usize; D], method: Method, device: &Device) -> Linear {
    let linear = LinearConfig::new(shape[D - 1], 3).init(device);
    linear.with_method(method).expect("suitable")
}

fn assert_linear_promises<const D: usize>(shape: [usize; D], methods: &[Method]) {
    for (device_name, device) in autodiff_devices() {
        let x = random(1, shape, &device);
        for &method in fewer_with_checkpointing(&device_name, methods) {
            let linear = linear(shape, method, &device);
            let kept = kept_bytes(&linear, |linear| linear.forward(x.clone() * 2.0));
            let promised = method.bytes(linear.geometry(shape), size_of::<f32>());
            let name = format!("{method}, {shape:?} ({device_name})");
            assert!(promised >= MEASURABLE_BYTES, "{name}: {promised} bytes");
            assert_promise(&name, kept, promised);
        }
    }
}

#[test]
fn an_activation_keeps_one_bit_an_element() {
    alone(|| {
        const SHAPE: [usize; 4] = [16, 32, 64, 64];
        let bits = SHAPE.iter().product::<usize>();
        type Activation = fn(Tensor<4>) -> Tensor<4>;
        let activations: [(&str, Activation); 2] = [
            ("relu", |x| Relu::new().forward(x)),
            ("relu6", |x| Relu6::new().forward(x)),
        ];
        for (device_name, device) in autodiff_devices() {
            let x = random(1, SHAPE, &device).require_grad();
            for (name, activation) in activations {
                // like a layer's output, the product is the activation's own
                let kept = kept_bytes(&(), |()| activation(x.clone() * 2.0));
                let found = kept as f64 / (bits / 8) as f64;
                assert!(
                    (1.0..1.02).contains(&found),
                    "{name} on {device_name}: {kept} bytes for {bits} elements"
                );
            }
        }
    });
}

#[test]
fn a_linear_layer_keeps_what_its_method_promises() {
    alone(|| {
        let sparse = [0.1, 0.5, 1.0].map(Method::channel_sparse);
        let exact_and_sparse = [&[Method::Exact], sparse.as_slice()].concat();
        // beside the graph there are lists of channels, 8 bytes each
        assert_linear_promises([3600, 240], &exact_and_sparse);
        assert_linear_promises([18, 200, 240], &exact_and_sparse[..2]);
        assert_linear_promises([3, 2, 3, 200, 240], &sparse[..1]);

        let quantized = [8, 4].map(Method::quantized);
        assert_linear_promises([7200, 240], &quantized);
        assert_linear_promises([36, 200, 241], &quantized);

        assert_linear_promises([1200, 80], &shortcuts([600, 40].into()));
        assert_linear_promises([64, 72, 80], &shortcuts([32, 36, 40].into()));
        assert_linear_promises([4, 5, 32, 32, 36], &shortcuts([10, 16, 16, 18].into()));
    });
}

#[test]
fn a_linear_layer_that_is_frozen_or_valid_keeps_nothing() {
    alone(|| {
        const SHAPE: [usize; 3] = [8, 40, 160];
        for (device_name, device) in autodiff_devices() {
            let leaf = leaf(SHAPE, &device);
            let plain = random(1, SHAPE, &device.clone().without_autodiff());
            for method in kinds::<3>() {
                let name = format!("{method} ({device_name})");
                let layer = linear(SHAPE, method, &device);
                // the map is worth keeping
                if method == Method::Exact {
                    let kept = kept_bytes(&layer, |layer| layer.forward(leaf.clone() * 2.0));
                    assert!(kept > MEASURABLE_BYTES, "{name}: {kept} bytes");
                }
                let valid = layer.valid();
                let kept = kept_bytes(&valid, |valid| valid.forward(plain.clone() * 2.0));
                assert!(kept <= GRAPH_BYTES, "{name}, valid: {kept} bytes");
                let mut frozen = layer.no_grad();
                for bias_trained in [false, true] {
                    frozen.bias = frozen.bias.map(|bias| bias.set_require_grad(bias_trained));
                    let kept = kept_bytes(&frozen, |frozen| frozen.forward(leaf.clone() * 2.0));
                    assert!(kept <= GRAPH_BYTES, "{name}, frozen: {kept} bytes");
                }
            }
        }
    });
}

/// Between steps a shortcut holds its last step's factors, once, and after the first step the next
/// ones take their place.
#[test]
fn a_shortcut_holds_the_factors_of_its_last_step_only() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            const SHAPE: [usize; 4] = [8, 128, 16, 16];
            let ranks = PerMode::from([4, 64, 8, 8]);
            for method in shortcuts(ranks) {
                let conv = same([128, 1], 1).init(&device);
                let conv = conv.with_method(method).expect("suitable");
                let x = random(1, SHAPE, &device);
                let step = || drop(conv.forward(x.clone()).sum().backward());
                // the first pass of all grows the kernels' scratch buffers
                drop(conv.clone().forward(x.clone()).sum().backward());
                let before = ALLOCATOR.live_bytes();
                let after = || ALLOCATOR.live_bytes().saturating_sub(before);
                step();
                let first = after();
                let factors: usize = (0..4)
                    .filter_map(|mode| conv.method.factor(mode))
                    .map(|factor| factor.shape().num_elements() * size_of::<f32>())
                    .sum();
                let name = format!("{method} ({device_name})");
                assert!(factors > 20_000, "{name}: {factors} bytes of factors");
                assert!(
                    first.abs_diff(factors) <= factors / 50 + GRAPH_BYTES,
                    "{name}: {first} bytes, {factors} of them factors"
                );
                (0..3).for_each(|_| step());
                assert!(
                    after().abs_diff(first) <= GRAPH_BYTES,
                    "{name}: {first} bytes became {}",
                    after()
                );
            }
        }
    });
}

/// The promises are only worth something if they are far below the input.
#[test]
fn a_filter_promises_a_fraction_of_the_input() {
    alone(|| {
        for layer in layers() {
            let (conv, input) = layer.measurable(Method::Exact, &Device::default());
            let bytes = |method: Method| method.bytes(conv.geometry(input), size_of::<f32>());
            let exact = bytes(Method::Exact);
            let whole = input.iter().product::<usize>() * size_of::<f32>();
            assert_eq!(exact, whole, "{}", layer.name);
            for (patch, fraction) in [(2, 3), (4, 11), (7, 30)] {
                let filter = bytes(Method::gradient_filter(patch));
                let name = format!("{}, patch {patch}", layer.name);
                assert!(
                    filter * fraction < exact,
                    "{name}: {filter} of {exact} bytes"
                );
            }
        }
    });
}

/// pytorch 133566: with a frozen weight nobody needs the input, whether or not the bias is trained.
#[test]
fn pytorch_133566_a_frozen_weight_keeps_nothing_of_the_input() {
    alone(|| {
        for_each_kind(|name, device, conv, input| {
            let leaf = leaf(input, device);
            let mut frozen = conv.no_grad();
            for bias_trained in [false, true] {
                frozen.bias = frozen.bias.map(|bias| bias.set_require_grad(bias_trained));
                let kept = kept_bytes(&frozen, |frozen| frozen.forward(leaf.clone() * 2.0));
                assert!(
                    kept <= GRAPH_BYTES,
                    "{name}, bias trained: {bias_trained}: {kept} bytes"
                );
            }
        });
    });
}

#[test]
fn a_valid_model_keeps_nothing() {
    alone(|| {
        for_each_kind(|name, device, conv, input| {
            let x = random(1, input, &device.clone().without_autodiff());
            let conv = conv.valid();
            let kept = kept_bytes(&conv, |conv| conv.forward(x.clone() * 2.0));
            assert!(kept <= GRAPH_BYTES, "{name}: {kept} bytes");
        });
    });
}

/// A view shares the buffer of the map it is cut from; kept as it is, it would keep all of it.
#[test]
fn a_view_keeps_its_own_pixels_only() {
    alone(|| {
        for (device_name, device) in autodiff_devices() {
            let conv = Conv2dConfig::new([8, 8], [3, 3]).init(&device);
            let leaf = leaf([4, 32, 64, 64], &device);
            type View = fn(Tensor<4>) -> Tensor<4>;
            let views: [(&str, View); 3] = [
                ("channels", |map| map.narrow(1, 4, 8)),
                ("images", |map| map.reshape([16, 8, 64, 64]).narrow(0, 1, 3)),
                ("a window", |map| map.narrow(1, 0, 8).narrow(3, 5, 32)),
            ];
            for (name, view) in views {
                let shape = view(leaf.clone()).dims();
                let promised = Method::Exact.bytes(conv.geometry(shape), size_of::<f32>());
                let kept = kept_bytes(&conv, |conv| conv.forward(view(leaf.clone() * 2.0)));
                assert!(
                    kept.abs_diff(promised) <= promised / 50,
                    "{name} ({device_name}): keeps {kept} bytes, the view has {promised}",
                );
            }
        }
    });
}
