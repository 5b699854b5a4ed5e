//! The folder of cases: its index, each case's tensors, and what makes a case unreadable.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use burn_frugal::PerMode;
use burn_frugal_tests::assert_contains;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
    Exact(Geometry),
    GradientFilter {
        geometry: Geometry,
        patch: usize,
    },
    ChannelSparse {
        geometry: Geometry,
        channels: Vec<usize>,
    },
    Shortcut {
        geometry: Geometry,
        ranks: PerMode,
    },
    Hosvd {
        geometry: Geometry,
        energy: f64,
        ranks: PerMode,
    },
    ShortcutLinear {
        ranks: PerMode,
    },
}

pub struct Case {
    pub name: String,
    pub operation: Operation,
    pub tensors: HashMap<String, Array>,
}

pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/cases")
}

/// The folder whose cases run.
pub fn folder() -> PathBuf {
    std::env::var_os("FRUGAL_CASES").map_or_else(committed, PathBuf::from)
}

/// Reads a folder, or says what is wrong with it.
pub fn load(folder: &Path) -> Result<Vec<Case>, String> {
    let index = folder.join("cases.json");
    let text = std::fs::read_to_string(&index);
    let text = text.map_err(|error| format!("{}: {error}", index.display()))?;
    let entries: Vec<Entry> =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", index.display()))?;
    if entries.is_empty() {
        return Err(format!("{}: no case", index.display()));
    }
    let case = |entry: Entry| {
        let name = entry.name.clone();
        load_case(folder, entry).map_err(|problem| format!("case {name}: {problem}"))
    };
    entries.into_iter().map(case).collect()
}

fn load_case(folder: &Path, entry: Entry) -> Result<Case, String> {
    let tensors = load_tensors(&folder.join(format!("{}.safetensors", entry.name)))?;
    let mut options = Options(entry.options);
    let operation = match entry.op.as_str() {
        "exact" => Operation::Exact(options.rest()?),
        "gradient_filter" => Operation::GradientFilter {
            patch: options.take("patch")?,
            geometry: options.rest()?,
        },
        "channel_sparse" => Operation::ChannelSparse {
            channels: options.take("channels")?,
            geometry: options.rest()?,
        },
        "shortcut" => Operation::Shortcut {
            ranks: options.take("ranks")?,
            geometry: options.rest()?,
        },
        "hosvd" => Operation::Hosvd {
            energy: options.take("energy")?,
            ranks: options.take("ranks")?,
            geometry: options.rest()?,
        },
        "shortcut_linear" => Operation::ShortcutLinear {
            ranks: options.take("ranks")?,
        },
        op => return Err(format!("unknown operation `{op}`")),
    };
    Ok(Case {
        name: entry.name,
        operation,
        tensors,
    })
}

struct Options(Map<String, Value>);

impl Options {
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        let value = self.0.remove(name).ok_or_else(|| format!("no `{name}`"))?;
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    /// The geometry, and nothing else.
    fn rest(&mut self) -> Result<Geometry, String> {
        let rest = Value::Object(std::mem::take(&mut self.0));
        serde_json::from_value(rest).map_err(|error| error.to_string())
    }
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
pub fn load_edited(edit: impl FnOnce(&mut Vec<Value>)) -> Result<Vec<Case>, String> {
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
    assert_eq!(unedited.len(), 2);

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
    assert_refused(Vec::clear, "no case");
}
