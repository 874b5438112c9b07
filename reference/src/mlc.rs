//! MLC checkpoints: `mlc-chat-config.json`, `ndarray-cache.json` (or
//! `tensor-cache.json`) and shards.
//!
//! Reading: the index is checked against the model and against itself, then
//! every shard's size and md5 against the index, and only then is a byte of it
//! used. Each tensor goes by its own dtype; `format` matters for float32 alone.
//! Writing: into a sibling folder that is renamed at the end, so that a
//! half-written folder is never taken for a whole one.

mod config;
mod index;
mod write;

pub use write::write;

use crate::checkpoint::{
    Checkpoint, CheckpointError, Container, Progress, Provenance, Stored, supported,
};
use config::Config;
use index::{Index, Part};
use kernels::models::Shape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

const CONFIG: &str = "mlc-chat-config.json";
/// The index's name now and of old, in the order they are looked for.
const INDEXES: [&str; 2] = ["tensor-cache.json", "ndarray-cache.json"];
/// What this workbench adds to a folder it writes: the title and its reasons.
const ORIGIN: &str = "zero-tvm-origin.json";
const MAX_JSON_BYTES: u64 = 64 << 20;

/// A folder that is not a whole MLC checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum MlcError {
    /// A file cannot be read or written.
    #[error("{file}: {cause}")]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Not the JSON that MLC writes.
    #[error("{file}: {cause}; fetch the folder again")]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why.
        cause: serde_json::Error,
    },
    /// A field is wrong.
    #[error("{file}: {field}: expected {expected}, found {found}{advice}")]
    Field {
        /// The file.
        file: PathBuf,
        /// The field, with the record it belongs to.
        field: String,
        /// What a whole checkpoint has there.
        expected: String,
        /// What this one has there.
        found: String,
        /// What to do, after a semicolon; may be empty.
        advice: &'static str,
    },
    /// A parameter that the model does not have.
    #[error("{file}: parameter {name} is unknown to {model}{nearest}")]
    Unknown {
        /// The index.
        file: PathBuf,
        /// The parameter.
        name: String,
        /// The model's id.
        model: String,
        /// The nearest name, after a semicolon; may be empty.
        nearest: String,
    },
    /// A parameter that the model needs is not listed.
    #[error("{file}: parameter {name} ({shape}) is missing; index and model differ")]
    Missing {
        /// The index.
        file: PathBuf,
        /// The parameter.
        name: String,
        /// Its shape.
        shape: String,
    },
    /// The parameters do not make the model.
    #[error("{dir}: {cause}")]
    Checkpoint {
        /// The folder.
        dir: PathBuf,
        /// Why.
        cause: CheckpointError,
    },
    /// The folder to write to has something in it.
    #[error("{dir}: the folder exists and is not empty; name a new one or empty it")]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
    },
}

const FETCH_AGAIN: &str = "; fetch the folder again";
const VERSIONS_DIFFER: &str =
    "; index and shard come from different versions or a download was cut off: fetch both again";

fn io(file: &Path) -> impl FnOnce(std::io::Error) -> MlcError + '_ {
    |cause| MlcError::Io {
        file: file.to_owned(),
        cause,
    }
}

fn field(
    file: &Path,
    field: impl Into<String>,
    expected: impl ToString,
    found: impl ToString,
    advice: &'static str,
) -> MlcError {
    MlcError::Field {
        file: file.to_owned(),
        field: field.into(),
        expected: expected.to_string(),
        found: found.to_string(),
        advice,
    }
}

/// Reads a checkpoint folder; `progress` counts bytes of shards.
///
/// # Errors
/// [`MlcError`], naming file and field.
pub fn read(dir: &Path, progress: Progress<'_>) -> Result<Checkpoint, MlcError> {
    let config = read_json::<Map<String, Value>>(&dir.join(CONFIG))?;
    let index_path = INDEXES
        .iter()
        .map(|name| dir.join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| dir.join(INDEXES[1]));
    let index = Index::new(&index_path, read_json(&index_path)?)?;
    let spec = Config {
        file: dir.join(CONFIG),
        map: &config,
    }
    .spec(dir, index.records.len())?;
    let origin = read_origin(dir)?;
    let checkpoint_error = |cause| MlcError::Checkpoint {
        dir: dir.to_owned(),
        cause,
    };
    supported(&spec).map_err(checkpoint_error)?;
    let wanted = index.match_parameters(&spec)?;
    let mut parts = index.read_shards(dir, progress)?;
    let mut take = |name: Option<String>| name.and_then(|name| parts.remove(&name));
    let mut tensors = Vec::new();
    for (key, names) in wanted {
        let stored = match (spec.shape(key.1), take(names.main), take(names.scale)) {
            (Shape::Matrix { rows, k }, Some(Part::Words(words)), Some(Part::Half(scales))) => {
                Stored::Matrix {
                    rows,
                    k,
                    words,
                    scales,
                }
            }
            (Shape::Vector { .. }, Some(Part::Half(values)), None) => Stored::Vector(values),
            // A wrong dtype was refused by `match_parameters`.
            (Shape::Matrix { .. } | Shape::Vector { .. }, _, _) => continue,
        };
        tensors.push((key, stored));
    }
    let (title, notes) = match origin {
        Some(origin) => (origin.title, origin.notes),
        None => (spec.title.clone(), Vec::new()),
    };
    let provenance = Provenance {
        weights: Container::Mlc,
        title,
        sha256: String::new(),
        notes,
    };
    Checkpoint::new(spec, provenance, tensors).map_err(checkpoint_error)
}

fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, MlcError> {
    let size = fs::metadata(file).map_err(io(file))?.len();
    if size > MAX_JSON_BYTES {
        let expected = format!("up to {MAX_JSON_BYTES} bytes");
        return Err(field(file, "size", expected, format!("{size} bytes"), ""));
    }
    let text = fs::read(file).map_err(io(file))?;
    serde_json::from_slice(&text).map_err(|cause| MlcError::Json {
        file: file.to_owned(),
        cause,
    })
}

/// Where a folder that this workbench wrote has its weights from.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Origin {
    title: String,
    notes: Vec<String>,
}

fn read_origin(dir: &Path) -> Result<Option<Origin>, MlcError> {
    let file = dir.join(ORIGIN);
    if file.exists() {
        read_json(&file).map(Some)
    } else {
        Ok(None)
    }
}
