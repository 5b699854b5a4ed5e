//! Guards that a network trains with every method on its linear layers.

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn_frugal::methods::ActivationShortcut;
use burn_frugal::plan::Plan;
use burn_frugal::{Method, PerMode};
use burn_frugal_tests::{devices, random, values};

use super::{Network, network};

/// Gives every parameter values that depend on its place only, and trains the weights of linear
/// layers alone: biases and convolutions would lower a loss by themselves.
struct LinearWeights(u64);

impl ModuleMapper for LinearWeights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        param.map(|tensor| {
            let values = random(self.0, tensor.dims(), &tensor.device()) * 0.4;
            values.set_require_grad(D == 2)
        })
    }
}

const STEPS: usize = 15;

/// Mean squared error before and after some steps of a network whose linear layers have a method.
fn train(device: &Device, method: impl Fn(usize) -> Method) -> [f64; 2] {
    let network = network(device).map(&mut LinearWeights(0));
    let plan = Plan::builder()
        .layer("colours", method(4))
        .pattern(r"^tokens\.", method(3))
        .layer("head", method(2))
        .build(&network)
        .expect("it suits");
    let mut network = plan.apply(network).expect("its layers");
    let images = random(1, [4, 4, 4, 3], device);
    let targets = random(2, [4, 3], device);
    let loss = |network: &Network| {
        let error = network.forward(images.clone()) - targets.clone();
        error.powi_scalar(2).mean()
    };
    let before = values(loss(&network.valid()))[0];
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..STEPS {
        let gradients = GradientsParams::from_grads(loss(&network).backward(), &network);
        network = optimizer.step(0.2, network, gradients);
    }
    [before, values(loss(&network.valid()))[0]]
}

#[test]
fn a_network_trains_with_every_method_on_its_linear_layers() {
    let shortcut = |axes| {
        let ranks = [4, 4, 4, 2];
        ActivationShortcut::new(PerMode::new(&ranks[4 - axes..]).expect("2 to 4 ranks"))
    };
    type Make<'a> = &'a dyn Fn(usize) -> Method;
    let methods: [Make; 6] = [
        &|_| Method::Exact,
        &|_| Method::channel_sparse(0.5),
        &|axes| shortcut(axes).into(),
        &|axes| shortcut(axes).sequential().into(),
        &|axes| shortcut(axes).frozen().into(),
        &|_| Method::hosvd(0.7),
    ];
    // the strategy of checkpointing changes no gradient
    for (name, device) in devices() {
        let device = device.autodiff();
        for method in methods {
            let [before, after] = train(&device, method);
            let shown = method(3);
            assert!(
                after < 0.9 * before,
                "{shown} ({name}): {before} became {after}"
            );
        }
    }
}
