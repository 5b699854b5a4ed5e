//! Guards the numbers: forward and gradients of every method against an independent float64
//! reference, for each case of a folder, on every backend, in both precisions and with both
//! checkpointing strategies.
//!
//! `FRUGAL_CASES` names the folder (as written by `reference/make_cases.py`); without it the
//! committed copy is used.

mod files;

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Device, Tensor, TensorData, module::conv2d, ops::ConvOptions};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
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
}

impl Array {
    fn tensor<const D: usize>(&self, setting: &Setting) -> Tensor<D> {
        let data = TensorData::new(self.values.clone(), self.shape.clone());
        let data = data.convert_dtype(setting.dtype);
        Tensor::from_data(data, (&setting.device, setting.dtype))
    }
}

impl Case {
    fn array(&self, name: &str) -> Result<&Array, String> {
        let array = self.tensors.get(name);
        array.ok_or_else(|| format!("the file has no tensor `{name}`"))
    }

    /// Everything that goes wrong, one line a tensor.
    fn problems(&self, setting: &Setting) -> Vec<String> {
        let run = match self.operation {
            Operation::Exact => vec![("", self.check_exact(setting))],
            Operation::GradientFilter { patch } => vec![
                ("", self.check_filter(setting, patch)),
                ("published scaling, ", self.check_published(setting, patch)),
            ],
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

    fn check_exact(&self, setting: &Setting) -> Result<Vec<String>, String> {
        let expected = |name| self.array(name).map(|array| array.values.clone());
        let expected = Pass {
            output: expected("expect_y")?,
            input: Some(expected("expect_gx")?),
            weight: Some(expected("expect_gw")?),
            bias: Some(expected("expect_gb")?),
        };
        Ok(differences(
            &self.run(setting, Method::Exact)?,
            &expected,
            setting.tolerance,
        ))
    }

    fn check_filter(&self, setting: &Setting, patch: usize) -> Result<Vec<String>, String> {
        let found = self.run(setting, Method::gradient_filter(patch))?;
        let expected = self.filtered(["expect_gx", "expect_gw"], setting)?;
        Ok(differences(&found, &expected, setting.tolerance))
    }

    /// Where the reference has no result for the published operator, the library must not have one
    /// either.
    fn check_published(&self, setting: &Setting, patch: usize) -> Result<Vec<String>, String> {
        let names = ["expect_published_gx", "expect_published_gw"];
        let method = Method::published_gradient_filter(patch);
        match (
            self.tensors.contains_key(names[0]),
            self.run(setting, method),
        ) {
            (true, found) => {
                let expected = self.filtered(names, setting)?;
                Ok(differences(&found?, &expected, setting.tolerance))
            }
            (false, Ok(_)) => Err("computed where it is not defined".to_string()),
            (false, Err(refusal)) if refusal.contains("published") => Ok(Vec::new()),
            (false, Err(refusal)) if refusal.contains("Scaling::Published") => Ok(Vec::new()),
            (false, Err(refusal)) => Err(format!("refused without saying why: {refusal}")),
        }
    }

    /// The filter's results: its gradients of input and weight are in the file; its output and bias
    /// gradient are the exact ones, which come from Burn's own convolution and from summing.
    fn filtered(&self, [gx, gw]: [&str; 2], setting: &Setting) -> Result<Pass, String> {
        let gy = self.array("gy")?;
        let (channels, pixels) = (gy.shape[1], gy.shape[2] * gy.shape[3]);
        let mut gb = vec![0.0; channels];
        for (plane, values) in gy.values.chunks(pixels.max(1)).enumerate() {
            gb[plane % channels] += values.iter().sum::<f64>();
        }
        Ok(Pass {
            output: self.burn_output(setting)?,
            input: Some(self.array(gx)?.values.clone()),
            weight: Some(self.array(gw)?.values.clone()),
            bias: Some(gb),
        })
    }

    fn burn_output(&self, setting: &Setting) -> Result<Vec<f64>, String> {
        let plain = Setting {
            name: setting.name.clone(),
            device: setting.device.clone().without_autodiff(),
            dtype: DType::F64,
            tolerance: setting.tolerance,
        };
        let Geometry {
            stride,
            padding,
            dilation,
            groups,
        } = self.geometry;
        let padding = padding.map(|[before, after]| (before, after));
        let options = ConvOptions::new_with_padding(stride, padding, dilation, groups);
        let [x, w] = [
            self.array("x")?.tensor(&plain),
            self.array("w")?.tensor(&plain),
        ];
        Ok(values(conv2d(
            x,
            w,
            Some(self.array("bias")?.tensor(&plain)),
            options,
        )))
    }

    /// The layer's results, or why there are none.
    fn run(&self, setting: &Setting, method: Method) -> Result<Pass, String> {
        let conv = self.layer(setting)?;
        let conv = conv
            .with_method(method)
            .map_err(|error| error.to_string())?;
        let x = self.array("x")?.tensor(setting).require_grad();
        let gy = self.array("gy")?.tensor(setting);
        let mut pass = None;
        match panic_message(|| pass = Some(Pass::run(&conv, x, gy))) {
            Some(message) => Err(format!("panics: {message}")),
            None => Ok(pass.expect("it returned")),
        }
    }

    fn layer(&self, setting: &Setting) -> Result<Conv2d, String> {
        let weight = self.array("w")?;
        let &[outputs, group_inputs, rows, columns] = weight.shape.as_slice() else {
            return Err(format!("the weight has shape {:?}", weight.shape));
        };
        let Geometry {
            stride,
            padding,
            dilation,
            groups,
        } = self.geometry;
        let [[top, bottom], [left, right]] = padding;
        let mut conv = Conv2dConfig::new([group_inputs * groups, outputs], [rows, columns])
            .with_stride(stride)
            .with_padding(PaddingConfig2d::Explicit(top, left, bottom, right))
            .with_dilation(dilation)
            .with_groups(groups)
            .try_init(&setting.device)
            .map_err(|error| error.to_string())?;
        conv.weight = Param::from_tensor(weight.tensor(setting));
        conv.bias = Some(Param::from_tensor(self.array("bias")?.tensor(setting)));
        Ok(conv)
    }
}

fn differences(found: &Pass, expected: &Pass, tolerance: f64) -> Vec<String> {
    let pairs = found.tensors().into_iter().zip(expected.tensors());
    pairs
        .map(|((name, found), (_, expected))| (name, relative_error(found, expected)))
        .filter(|(_, error)| *error > tolerance)
        .map(|(name, error)| format!("{name}: relative error {error:e}, allowed {tolerance:e}"))
        .collect()
}

fn run_folder(dtype: DType, tolerance: f64) {
    let folder = folder();
    let cases = load(&folder).unwrap_or_else(|problem| panic!("{problem}"));
    let settings = Setting::all(dtype, tolerance);
    let runs = settings.iter().flat_map(|setting| {
        let cases = cases.ready.iter();
        cases.map(move |case| case.problems(setting))
    });
    let problems: Vec<String> = runs.flatten().collect();
    println!(
        "{}: {} cases in {dtype:?} on {} devices, {} pending",
        folder.display(),
        cases.ready.len(),
        settings.len(),
        cases.pending.len(),
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
    for case in &mut cases.ready {
        case.tensors
            .get_mut("expect_gw")
            .expect("a gradient")
            .values[0] += 1.0;
    }
    for setting in Setting::all(DType::F32, 1e-5) {
        for case in &cases.ready {
            let problems = case.problems(&setting);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("weight gradient"), "{problems:?}");
        }
    }
}
