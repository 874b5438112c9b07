//! What this workbench adds to a folder it writes: the title of its weights and its
//! reasons.

use super::{FolderError, read_json, write_json};
use crate::checkpoint::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::Path;

const ORIGIN: &str = "zero-tvm-origin.json";

/// Where a folder that this workbench wrote has its weights from.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Origin {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn read(dir: &Path) -> Result<Option<Origin>, FolderError> {
    let file = dir.join(ORIGIN);
    if file.exists() {
        read_json(&file).map(Some)
    } else {
        Ok(None)
    }
}

pub(crate) fn write(dir: &Path, provenance: &Provenance) -> Result<(), FolderError> {
    let origin = Origin {
        title: provenance.title.clone(),
        notes: provenance.notes.clone(),
    };
    write_json(&dir.join(ORIGIN), &json!(origin))
}
