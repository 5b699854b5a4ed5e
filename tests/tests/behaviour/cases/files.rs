//! The folder of cases: its index, each case's tensors, and what makes a case unreadable.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn_frugal_tests::assert_contains;
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
pub struct Geometry {
    pub stride: [usize; 2],
    /// `[[top, bottom], [left, right]]`
    pub padding: [[usize; 2]; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

pub enum Operation {
    Exact,
    GradientFilter { patch: usize },
}

pub struct Case {
    pub name: String,
    pub geometry: Geometry,
    pub operation: Operation,
    pub tensors: HashMap<String, Array>,
}

pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

/// The cases of a folder that can run, and the names of those whose method is pending.
pub struct Cases {
    pub ready: Vec<Case>,
    pub pending: Vec<String>,
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/cases")
}

/// The folder whose cases run.
pub fn folder() -> PathBuf {
    std::env::var_os("FRUGAL_CASES").map_or_else(committed, PathBuf::from)
}

/// Reads a folder, or says what is wrong with it.
pub fn load(folder: &Path) -> Result<Cases, String> {
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

/// Two of the committed cases in a folder of their own, whose index `edit` changes.
pub fn load_edited(edit: impl FnOnce(&mut Vec<Value>)) -> Result<Cases, String> {
    let committed = committed();
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
    assert_contains(&problem, &[expected]);
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
