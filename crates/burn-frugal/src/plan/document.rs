//! Plans and profiles as JSON: `{"version": 1, "layers": ...}`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::error::Error;
use crate::files;

/// Version of the JSON form; a change that an older reader would misread increments it.
const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<L> {
    version: u64,
    layers: L,
}

/// Read before anything else: the rest of a later version's document may look different.
#[derive(Deserialize)]
struct Header {
    version: u64,
}

/// `layers` as JSON, with the version of its form.
pub(super) fn to_json<L: Serialize>(layers: &L) -> String {
    let document = Document {
        version: VERSION,
        layers,
    };
    serde_json::to_string_pretty(&document).expect("strings and numbers only")
}

/// Writes a document to a file, which is replaced only once the new one is complete.
pub(super) fn save(json: &str, path: &Path) -> Result<(), Error> {
    files::replace(path, format!("{json}\n").as_bytes()).map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })
}

/// Reads a file that holds `what` ("a plan").
pub(super) fn load<L: DeserializeOwned>(path: &Path, what: &'static str) -> Result<L, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::File {
        path: path.to_path_buf(),
        source,
    })?;
    parse(&text, what, &path.display().to_string())
}

/// Reads `what` ("a plan") from text that comes from `origin`.
pub(super) fn parse<L: DeserializeOwned>(
    text: &str,
    what: &'static str,
    origin: &str,
) -> Result<L, Error> {
    let wrong = |source| Error::NotADocument {
        origin: origin.to_string(),
        expected: what,
        source,
    };
    let header: Header = serde_json::from_str(text).map_err(wrong)?;
    if header.version == 0 {
        return Err(wrong(serde::de::Error::custom("there is no version 0")));
    }
    if header.version > VERSION {
        return Err(Error::NewerDocument {
            origin: origin.to_string(),
            what,
            found: header.version,
            expected: VERSION,
        });
    }
    let document: Document<L> = serde_json::from_str(text).map_err(wrong)?;
    Ok(document.layers)
}
