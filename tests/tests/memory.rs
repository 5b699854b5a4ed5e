//! Guards the memory: what a layer really keeps between forward and backward, as an allocator
//! counts it, is what its method promises, and nothing accumulates over thousands of steps.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::Method;
use burn_frugal::memory::CountingAllocator;
use burn_frugal::methods::{GradientFilter, Scaling};
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_tests::layers::same;
use burn_frugal_tests::{autodiff_devices, random};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The allocator counts the whole process, so one test measures at a time.
fn alone() -> MutexGuard<'static, ()> {
    static MEASURING: Mutex<()> = Mutex::new(());
    // another test's failure is reported by that test
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that live after `forward`, besides its output. The smallest of some runs: the kernels keep
/// a scratch buffer a thread, which the first runs may grow.
fn kept_bytes(forward: impl Fn() -> Tensor<4>) -> usize {
    let measure = || {
        let before = ALLOCATOR.live_bytes();
        let output = forward();
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
        const BYTES: usize = 60 * GRAPH_BYTES;
        let conv = self.config.init(device).with_method(method);
        let conv = conv.expect("every method suits these layers");
        let [channels, height, width] = self.image;
        let one = method.bytes(
            conv.geometry([1, channels, height, width]),
            size_of::<f32>(),
        );
        (conv, [BYTES.div_ceil(one), channels, height, width])
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
fn leaf(shape: [usize; 4], device: &Device) -> Tensor<4> {
    random(1, shape, device).require_grad()
}

/// More than what stays besides the saved map: nodes, shapes, the boxed step (2 to 2.5 KB).
const GRAPH_BYTES: usize = 3 << 10;

/// One method of each kind.
const KINDS: [Method; 2] = [Method::Exact, Method::GradientFilter(HALVED)];
const HALVED: GradientFilter = GradientFilter {
    patch: 2,
    scaling: Scaling::MassPreserving,
};

/// Calls `check` with every layer, device and one of the methods, and the shape of the input.
fn for_each_layer(methods: &[Method], check: impl Fn(&str, &Device, Conv2d, [usize; 4])) {
    for (device_name, device) in autodiff_devices() {
        for layer in layers() {
            for &method in methods {
                let (conv, input) = layer.measurable(method, &device);
                let name = format!("{}, {method} ({device_name})", layer.name);
                check(&name, &device, conv, input);
            }
        }
    }
}

#[test]
fn a_layer_keeps_what_its_method_promises() {
    let _alone = alone();
    let filters = [2, 4, 7].map(Method::gradient_filter);
    let methods = [&[Method::Exact], filters.as_slice()].concat();
    for_each_layer(&methods, |name, device, conv, input| {
        let leaf = leaf(input, device);
        let kept = kept_bytes(|| conv.forward(leaf.clone() * 2.0));
        let method = conv.method.method();
        let promised = method.bytes(conv.geometry(input), size_of::<f32>());
        assert!(
            kept.abs_diff(promised) <= promised / 50,
            "{name}: keeps {kept} bytes, promises {promised}",
        );
    });
}

/// The promises are only worth something if they are far below the input.
#[test]
fn a_filter_promises_a_fraction_of_the_input() {
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
}

/// pytorch 133566: with a frozen weight nobody needs the input, whether or not the bias is trained.
#[test]
fn pytorch_133566_a_frozen_weight_keeps_nothing_of_the_input() {
    let _alone = alone();
    for_each_layer(&KINDS, |name, device, conv, input| {
        let leaf = leaf(input, device);
        let mut frozen = conv.no_grad();
        for bias_trained in [false, true] {
            frozen.bias = frozen.bias.map(|bias| bias.set_require_grad(bias_trained));
            let kept = kept_bytes(|| frozen.forward(leaf.clone() * 2.0));
            assert!(
                kept <= GRAPH_BYTES,
                "{name}, bias trained: {bias_trained}: {kept} bytes"
            );
        }
    });
}

#[test]
fn a_valid_model_keeps_nothing() {
    let _alone = alone();
    for_each_layer(&KINDS, |name, device, conv, input| {
        let x = random(1, input, &device.clone().without_autodiff());
        let conv = conv.valid();
        let kept = kept_bytes(|| conv.forward(x.clone() * 2.0));
        assert!(kept <= GRAPH_BYTES, "{name}: {kept} bytes");
    });
}

/// A view shares the buffer of the map it is cut from; kept as it is, it would keep all of it.
#[test]
fn a_view_keeps_its_own_pixels_only() {
    let _alone = alone();
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
            let kept = kept_bytes(|| conv.forward(view(leaf.clone() * 2.0)));
            assert!(
                kept.abs_diff(promised) <= promised / 50,
                "{name} ({device_name}): keeps {kept} bytes, the view has {promised}",
            );
        }
    }
}

const STEPS: usize = 2_000;
const WARM_UP: usize = 100;
/// Far below one step's 8 bytes x 2,000, far above an allocator's or a hash table's slack.
const DRIFT: usize = 8 << 10;

/// Fails if `step`, run 2,000 times, leaves more bytes behind than its first 100 runs did.
fn assert_flat(what: &str, mut step: impl FnMut(usize)) {
    (0..WARM_UP).for_each(&mut step);
    let before = ALLOCATOR.live_bytes();
    (WARM_UP..STEPS).for_each(&mut step);
    let after = ALLOCATOR.live_bytes();
    assert!(
        after <= before + DRIFT,
        "{what}: {before} bytes became {after}"
    );
}

/// 8x8 pixels: small enough for thousands of steps, large enough for one leaked map a step
/// (512 bytes) to be seen.
fn tiny(device: &Device, method: Method) -> (Conv2d, Tensor<4>) {
    let conv = Conv2dConfig::new([2, 2], [3, 3]).init(device);
    let conv = conv.with_method(method).expect("suitable");
    (conv, random(1, [1, 2, 8, 8], device))
}

#[test]
fn evaluation_leaves_nothing_behind() {
    let _alone = alone();
    for (device_name, device) in autodiff_devices() {
        for method in KINDS {
            let (conv, x) = tiny(&device, method);
            let (conv, x) = (conv.valid(), x.without_autodiff());
            assert_flat(&format!("{method} ({device_name})"), |_| {
                conv.forward(x.clone());
            });
        }
    }
}

/// burn 2743, burn 4339: Burn frees the graph of a forward pass that nobody goes backward through
/// at the next backward pass anywhere, not when its output is dropped. So there is one now and
/// then, and what has to be flat is the memory after it.
#[test]
fn abandoned_forward_passes_go_with_the_next_backward_pass() {
    const ABANDONED: usize = 19;
    let _alone = alone();
    for (device_name, device) in autodiff_devices() {
        for method in KINDS {
            let (conv, x) = tiny(&device, method);
            assert_flat(&format!("{method} ({device_name})"), |step| {
                let output = conv.forward(x.clone() * 2.0);
                if step % (ABANDONED + 1) == ABANDONED {
                    output.sum().backward();
                }
            });
        }
    }
}

#[test]
fn training_leaves_nothing_behind() {
    let _alone = alone();
    for (device_name, device) in autodiff_devices() {
        for method in KINDS {
            let (conv, x) = tiny(&device, method);
            let mut conv = Some(conv);
            let mut optimizer = SgdConfig::new().init();
            assert_flat(&format!("{method} ({device_name})"), |_| {
                let trained = conv.take().expect("put back below");
                let gradients = trained.forward(x.clone()).sum().backward();
                let gradients = GradientsParams::from_grads(gradients, &trained);
                conv = Some(optimizer.step(1e-6, trained, gradients));
            });
        }
    }
}
