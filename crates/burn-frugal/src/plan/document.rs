//! Plans as JSON.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

use super::Plan;
use crate::error::Error;
use crate::files;
use crate::methods::Method;

/// Version of the JSON form; a change that an older reader would misread increments it.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    layers: BTreeMap<String, Method>,
}

/// Read before anything else: the rest of a later version's plan may look different.
#[derive(Deserialize)]
struct Header {
    version: u64,
}

impl Plan {
    /// The plan as JSON, with the version of its form.
    pub fn to_json(&self) -> String {
        let document = Document {
            version: VERSION,
            layers: self.methods.clone(),
        };
        serde_json::to_string_pretty(&document).expect("a plan holds strings and numbers only")
    }

    /// Reads what [`to_json`](Self::to_json) writes. Whether a model has the layers is checked when
    /// the plan is applied.
    ///
    /// # Errors
    /// When the text is not a plan, or is one of a later version.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        parse(text, "the text")
    }

    /// Writes the plan to a file, which is replaced only once the new one is complete.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        files::replace(path, (self.to_json() + "\n").as_bytes()).map_err(|source| Error::File {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// When the file cannot be read, is not a plan, or is one of a later version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_path_buf(),
            source,
        })?;
        parse(&text, &path.display().to_string())
    }
}

fn parse(text: &str, origin: &str) -> Result<Plan, Error> {
    let not_a_plan = |source| Error::NotAPlan {
        origin: origin.to_string(),
        source,
    };
    let header: Header = serde_json::from_str(text).map_err(not_a_plan)?;
    if header.version == 0 {
        let source = serde::de::Error::custom("there is no version 0");
        return Err(not_a_plan(source));
    }
    if header.version > VERSION {
        return Err(Error::NewerPlan {
            origin: origin.to_string(),
            found: header.version,
            expected: VERSION,
        });
    }
    let document: Document = serde_json::from_str(text).map_err(not_a_plan)?;
    Ok(Plan {
        methods: document.layers,
    })
}
