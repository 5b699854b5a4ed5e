//! Guards the numbers: forward and gradients of every method against an independent float64
//! reference, for each case of a folder, on every backend, in both precisions and with both
//! checkpointing strategies.
//!
//! `FRUGAL_CASES` names the folder (as written by `reference/make_cases.py`); without it the
//! committed copy is used.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Device, Tensor, TensorData, module::conv2d, ops::ConvOptions};
use burn_frugal::Method;
use burn_frugal::nn::{Conv2d, Conv2dConfig};
use burn_frugal_tests::{Pass, autodiff_devices, panic_message, relative_error, values};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Operations whose methods the library does not have yet; a method that arrives leaves this list.
const PENDING: [&str; 4] = ["channel_sparse", "shortcut", "hosvd", "shortcut_linear"];

/// One line of `cases.json`; `options` are read by the case's operation.
#[derive(Deserialize)]
struct Entry {
    name: String,
    op: String,
    #[serde(flatten)]
    options: Map<String, Value>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Geometry {
    stride: [usize; 2],
    /// `[[top, bottom], [left, right]]`
    padding: [[usize; 2]; 2],
    dilation: [usize; 2],
    groups: usize,
}

enum Operation {
    Exact,
    GradientFilter { patch: usize },
}

struct Case {
    name: String,
    geometry: Geometry,
    operation: Operation,
    tensors: HashMap<String, Array>,
}

struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

/// The cases of a folder that can run, and the names of those whose method is pending.
struct Cases {
    ready: Vec<Case>,
    pending: Vec<String>,
}

fn folder() -> PathBuf {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/cases");
    std::env::var_os("FRUGAL_CASES").map_or_else(committed, PathBuf::from)
}

fn load(folder: &Path) -> Result<Cases, String> {
    let index = folder.join("cases.json");
    let text = std::fs::read_to_string(&index);
    let text = text.map_err(|error| format!("{}: {error}", index.display()))?;
    let entries: Vec<Entry> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", index.display()))?;
    let (mut ready, mut pending) = (Vec::new(), Vec::new());
    for entry in entries {
        let name = entry.name.clone();
        match load_case(folder, entry).map_err(|problem| format!("case {name}: {problem}"))? {
            Some(case) => ready.push(case),
            None => pending.push(name),
        }
    }
    if ready.is_empty() {
        return Err(format!("{}: no case that can run", index.display()));
    }
    Ok(Cases { ready, pending })
}

/// `None` if the operation is pending. Its file has to be there all the same.
fn load_case(folder: &Path, mut entry: Entry) -> Result<Option<Case>, String> {
    let tensors = load_tensors(&folder.join(format!("{}.safetensors", entry.name)))?;
    let operation = match entry.op.as_str() {
        "exact" => Operation::Exact,
        "gradient_filter" => {
            let patch = entry.options.remove("patch").ok_or("no `patch`")?;
            let patch = serde_json::from_value(patch).map_err(|error| error.to_string())?;
            Operation::GradientFilter { patch }
        }
        op if PENDING.contains(&op) => return Ok(None),
        op => return Err(format!("unknown operation `{op}`")),
    };
    let geometry = serde_json::from_value(Value::Object(entry.options));
    Ok(Some(Case {
        name: entry.name,
        geometry: geometry.map_err(|error| error.to_string())?,
        operation,
        tensors,
    }))
}

fn load_tensors(path: &Path) -> Result<HashMap<String, Array>, String> {
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(path).map_err(|error| problem(&error))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| problem(&error))?;
    let array = |(name, view): (&str, safetensors::tensor::TensorView)| {
        let values = match view.dtype() {
            Dtype::F32 => floats(view.data(), |bytes| f32::from_le_bytes(bytes).into()),
            Dtype::F64 => floats(view.data(), f64::from_le_bytes),
            dtype => return Err(problem(&format!("`{name}` is {dtype:?}, not a float"))),
        };
        let shape = view.shape().to_vec();
        Ok((name.to_string(), Array { shape, values }))
    };
    file.iter().map(array).collect()
}

fn floats<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|&chunk| read(chunk)).collect()
}

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

/// Two of the committed cases in a folder of their own, whose index `edit` changes.
fn load_edited(edit: impl FnOnce(&mut Vec<Value>)) -> Result<Cases, String> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/cases");
    let index = std::fs::read_to_string(committed.join("cases.json")).expect("committed");
    let mut entries: Vec<Value> = serde_json::from_str(&index).expect("committed");
    entries.retain(|entry| ["exact-same3", "gradient_filter-same3-r2"].contains(&name(entry)));
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in &entries {
        let file = format!("{}.safetensors", name(entry));
        std::fs::copy(committed.join(&file), folder.path().join(&file)).expect("a copy");
    }
    edit(&mut entries);
    let index = serde_json::to_string(&entries).expect("JSON");
    std::fs::write(folder.path().join("cases.json"), index).expect("a file");
    load(folder.path())
}

fn name(entry: &Value) -> &str {
    entry["name"].as_str().expect("every case has a name")
}

#[track_caller]
fn assert_refused(edit: impl FnOnce(&mut Vec<Value>), expected: &str) {
    let problem = load_edited(edit).err().expect("refused");
    assert!(
        problem.contains(expected),
        "`{expected}` is not in: {problem}"
    );
}

#[test]
fn cases_that_say_something_else_are_refused() {
    let unedited = load_edited(|_| ()).expect("two good cases");
    assert_eq!((unedited.ready.len(), unedited.pending.len()), (2, 0));

    assert_refused(
        |cases| cases[0]["op"] = "fourier".into(),
        "unknown operation `fourier`",
    );
    assert_refused(
        |cases| cases[0]["patch"] = 2.into(),
        "unknown field `patch`",
    );
    assert_refused(
        |cases| cases[1]["channels"] = 2.into(),
        "unknown field `channels`",
    );
    assert_refused(|cases| cases[1]["patch"] = "two".into(), "invalid type");
    assert_refused(
        |cases| cases[0]["name"] = "elsewhere".into(),
        "elsewhere.safetensors",
    );
    assert_refused(Vec::clear, "no case that can run");
    assert_refused(
        |cases| {
            cases
                .iter_mut()
                .for_each(|case| case["op"] = PENDING[0].into())
        },
        "no case that can run",
    );
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
