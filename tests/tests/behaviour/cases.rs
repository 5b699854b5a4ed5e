//! Guards the numbers: forward and gradients of every method against an independent float64
//! reference, for each case of a folder, on every backend, in both precisions and with both
//! checkpointing strategies.
//!
//! `FRUGAL_CASES` names the folder (as written by `reference/make_cases.py`); without it the
//! committed copy is used.

mod files;
mod low_rank;

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Device, Tensor, TensorData, module::conv2d, ops::ConvOptions};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal::plan::TrainingState;
use burn_frugal_tests::{Pass, autodiff_devices, panic_message, relative_error, values};

use files::{Array, Case, Geometry, Operation, folder, load, load_edited};

/// How a case is run.
struct Setting {
    name: String,
    device: Device,
    dtype: DType,
    tolerance: f64,
}

impl Setting {
    fn all(dtype: DType, tolerance: f64) -> Vec<Self> {
        autodiff_devices()
            .into_iter()
            .map(|(device_name, device)| Self {
                name: format!("{device_name}, {dtype:?}"),
                device,
                dtype,
                tolerance,
            })
            .collect()
    }

    /// What the low-rank methods may be off by: several products and a factorisation in a row.
    fn low_rank_tolerance(&self) -> f64 {
        match self.dtype {
            DType::F64 => 10.0 * self.tolerance,
            _ => 2.0 * self.tolerance,
        }
    }
}

impl Array {
    fn data(&self, setting: &Setting) -> TensorData {
        let data = TensorData::new(self.values.clone(), self.shape.clone());
        data.convert_dtype(setting.dtype)
    }

    fn tensor<const D: usize>(&self, setting: &Setting) -> Tensor<D> {
        Tensor::from_data(self.data(setting), (&setting.device, setting.dtype))
    }
}

impl Case {
    fn array(&self, name: &str) -> Result<&Array, String> {
        let array = self.tensors.get(name);
        array.ok_or_else(|| format!("the file has no tensor `{name}`"))
    }

    /// Everything that goes wrong, one line a tensor.
    fn problems(&self, setting: &Setting) -> Vec<String> {
        let run = match &self.operation {
            Operation::Exact(geometry) => vec![("", self.check_exact(setting, geometry))],
            Operation::GradientFilter { geometry, patch } => vec![
                ("", self.check_filter(setting, geometry, *patch)),
                (
                    "published scaling, ",
                    self.check_published(setting, geometry, *patch),
                ),
            ],
            Operation::ChannelSparse { geometry, channels } => {
                vec![("", self.check_sparse(setting, geometry, channels))]
            }
            Operation::Shortcut { geometry, ranks } => {
                vec![("", self.check_shortcut(setting, geometry, *ranks))]
            }
            Operation::Hosvd {
                geometry,
                energy,
                ranks,
            } => vec![("", self.check_hosvd(setting, geometry, *energy, *ranks))],
            Operation::ShortcutLinear { ranks } => {
                vec![("", self.check_shortcut_linear(setting, *ranks))]
            }
        };
        let line =
            |what: &str, problem| format!("{} ({}): {what}{problem}", self.name, setting.name);
        run.into_iter()
            .flat_map(|(what, result)| {
                let problems = result.unwrap_or_else(|problem| vec![problem]);
                problems.into_iter().map(move |problem| line(what, problem))
            })
            .collect()
    }

    fn check_exact(&self, setting: &Setting, geometry: &Geometry) -> Result<Vec<String>, String> {
        let expected = |name| self.array(name).map(|array| array.values.clone());
        let expected = Pass {
            output: expected("expect_y")?,
            input: Some(expected("expect_gx")?),
            weight: Some(expected("expect_gw")?),
            bias: Some(expected("expect_gb")?),
        };
        let found = self.run(setting, geometry, Method::Exact)?;
        Ok(differences(&found, &expected, setting.tolerance))
    }

    fn check_filter(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        patch: usize,
    ) -> Result<Vec<String>, String> {
        let found = self.run(setting, geometry, Method::gradient_filter(patch))?;
        let expected = self.filtered(setting, geometry, ["expect_gx", "expect_gw"])?;
        Ok(differences(&found, &expected, setting.tolerance))
    }

    /// Where the reference has no result for the published operator, the library must not have one
    /// either.
    fn check_published(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        patch: usize,
    ) -> Result<Vec<String>, String> {
        let names = ["expect_published_gx", "expect_published_gw"];
        let method = Method::published_gradient_filter(patch);
        match (
            self.tensors.contains_key(names[0]),
            self.run(setting, geometry, method),
        ) {
            (true, found) => {
                let expected = self.filtered(setting, geometry, names)?;
                Ok(differences(&found?, &expected, setting.tolerance))
            }
            (false, Ok(_)) => Err("computed where it is not defined".to_string()),
            (false, Err(refusal)) if refusal.contains("published") => Ok(Vec::new()),
            (false, Err(refusal)) if refusal.contains("Scaling::Published") => Ok(Vec::new()),
            (false, Err(refusal)) => Err(format!("refused without saying why: {refusal}")),
        }
    }

    fn check_sparse(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        channels: &[usize],
    ) -> Result<Vec<String>, String> {
        // the ratio does not matter once the channels are chosen
        let state = TrainingState::default().with_channels("", channels.to_vec());
        let conv = self.layer(setting, geometry, Method::channel_sparse(0.5))?;
        let conv = state.restore(conv).map_err(|error| error.to_string())?;
        let found = self.run_layer(setting, &conv)?;
        let expected = self.weight_only(setting, geometry)?;
        Ok(differences(&found, &expected, setting.tolerance))
    }

    /// The filter's results: its gradients of input and weight are in the file.
    fn filtered(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        [gx, gw]: [&str; 2],
    ) -> Result<Pass, String> {
        Ok(Pass {
            output: self.burn_output(setting, geometry)?,
            input: Some(self.array(gx)?.values.clone()),
            weight: Some(self.array(gw)?.values.clone()),
            bias: Some(self.bias_gradient()?),
        })
    }

    /// The results of a method that changes the weight's gradient only, which is in the file.
    fn weight_only(&self, setting: &Setting, geometry: &Geometry) -> Result<Pass, String> {
        Ok(Pass {
            output: self.burn_output(setting, geometry)?,
            input: Some(self.exact_input_gradient(setting, geometry)?),
            weight: Some(self.array("expect_gw")?.values.clone()),
            bias: Some(self.bias_gradient()?),
        })
    }

    fn bias_gradient(&self) -> Result<Vec<f64>, String> {
        let gy = self.array("gy")?;
        let (channels, pixels) = (gy.shape[1], gy.shape[2] * gy.shape[3]);
        let mut gb = vec![0.0; channels];
        for (plane, values) in gy.values.chunks(pixels.max(1)).enumerate() {
            gb[plane % channels] += values.iter().sum::<f64>();
        }
        Ok(gb)
    }

    /// Burn's own convolution, in double precision.
    fn burn_output(&self, setting: &Setting, geometry: &Geometry) -> Result<Vec<f64>, String> {
        let [x, w] = [self.double(setting, "x")?, self.double(setting, "w")?];
        let plain = Tensor::without_autodiff;
        let bias = self.double::<1>(setting, "bias")?.without_autodiff();
        let options = geometry.options();
        Ok(values(conv2d(plain(x), plain(w), Some(bias), options)))
    }

    fn exact_input_gradient(
        &self,
        setting: &Setting,
        geometry: &Geometry,
    ) -> Result<Vec<f64>, String> {
        let x = self.double::<4>(setting, "x")?.require_grad();
        let [w, gy] = [self.double(setting, "w")?, self.double(setting, "gy")?];
        let output = conv2d(x.clone(), w, None, geometry.options());
        let gradients = (output * gy).sum().backward();
        Ok(values(x.grad(&gradients).ok_or("no input gradient")?))
    }

    fn double<const D: usize>(&self, setting: &Setting, name: &str) -> Result<Tensor<D>, String> {
        let setting = Setting {
            name: setting.name.clone(),
            device: setting.device.clone(),
            dtype: DType::F64,
            tolerance: setting.tolerance,
        };
        Ok(self.array(name)?.tensor(&setting))
    }

    /// The layer's results, or why there are none.
    fn run(&self, setting: &Setting, geometry: &Geometry, method: Method) -> Result<Pass, String> {
        self.run_layer(setting, &self.layer(setting, geometry, method)?)
    }

    fn run_layer(&self, setting: &Setting, conv: &Conv2d) -> Result<Pass, String> {
        let x = self.array("x")?.tensor(setting).require_grad();
        let gy = self.array("gy")?.tensor(setting);
        let mut pass = None;
        match panic_message(|| pass = Some(Pass::step(conv, x, gy))) {
            Some(message) => Err(format!("panics: {message}")),
            None => Ok(pass.expect("it returned")),
        }
    }

    fn layer(
        &self,
        setting: &Setting,
        geometry: &Geometry,
        method: Method,
    ) -> Result<Conv2d, String> {
        let weight = self.array("w")?;
        let &[outputs, group_inputs, rows, columns] = weight.shape.as_slice() else {
            return Err(format!("the weight has shape {:?}", weight.shape));
        };
        let groups = geometry.groups;
        let [[top, bottom], [left, right]] = geometry.padding;
        let mut conv = Conv2dConfig::new([group_inputs * groups, outputs], [rows, columns])
            .with_stride(geometry.stride)
            .with_padding(PaddingConfig2d::Explicit(top, left, bottom, right))
            .with_dilation(geometry.dilation)
            .with_groups(groups)
            .try_init(&setting.device)
            .map_err(|error| error.to_string())?;
        conv.weight = Param::from_tensor(weight.tensor(setting));
        conv.bias = Some(Param::from_tensor(self.array("bias")?.tensor(setting)));
        conv.with_method(method).map_err(|error| error.to_string())
    }
}

impl Geometry {
    fn options(&self) -> ConvOptions<2> {
        let padding = self.padding.map(|[before, after]| (before, after));
        ConvOptions::new_with_padding(self.stride, padding, self.dilation, self.groups)
    }
}

fn differences(found: &Pass, expected: &Pass, tolerance: f64) -> Vec<String> {
    let pairs = found.tensors().into_iter().zip(expected.tensors());
    pairs
        .filter_map(|((name, found), (_, expected))| difference(name, found, expected, tolerance))
        .collect()
}

fn difference(what: &str, found: &[f64], expected: &[f64], tolerance: f64) -> Option<String> {
    let error = relative_error(found, expected);
    (error > tolerance).then(|| format!("{what}: relative error {error:e}, allowed {tolerance:e}"))
}

fn run_folder(dtype: DType, tolerance: f64) {
    let folder = folder();
    let cases = load(&folder).unwrap_or_else(|problem| panic!("{problem}"));
    let settings = Setting::all(dtype, tolerance);
    let runs = settings
        .iter()
        .flat_map(|setting| cases.iter().map(move |case| case.problems(setting)));
    let problems: Vec<String> = runs.flatten().collect();
    println!(
        "{}: {} cases in {dtype:?} on {} devices",
        folder.display(),
        cases.len(),
        settings.len(),
    );
    assert!(!settings.is_empty(), "no backend is compiled");
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

#[test]
fn cases_in_single_precision() {
    run_folder(DType::F32, 1e-5);
}

#[test]
fn cases_in_double_precision() {
    run_folder(DType::F64, 1e-12);
}

/// The runner itself: a wrong expectation must be reported, with the tensor's name.
#[test]
fn cases_with_another_expectation_fail() {
    let mut cases = load_edited(|_| ()).expect("two good cases");
    for case in &mut cases {
        case.tensors
            .get_mut("expect_gw")
            .expect("a gradient")
            .values[0] += 1.0;
    }
    for setting in Setting::all(DType::F32, 1e-5) {
        for case in &cases {
            let problems = case.problems(&setting);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("weight gradient"), "{problems:?}");
        }
    }
}
