//! MLC checkpoints: `mlc-chat-config.json`, `ndarray-cache.json` (or
//! `tensor-cache.json`) and shards.
//!
//! Reading: the index is checked against the model and against itself, then
//! every shard's size and md5 against the index, and only then is a byte of it
//! used ([`Verification`] can remember the md5, and leave it out). Each tensor goes by its own dtype; `format` matters for float32 alone.
//! Writing: into a sibling folder that is renamed at the end, so that a
//! half-written folder is never taken for a whole one.

mod config;
mod index;
mod write;

pub use write::write;
pub(crate) use write::{write_files, write_layers, write_scaling};

use crate::checkpoint::{self, Checkpoint, Container, Key, Progress, Provenance};
use crate::folder::{
    self, FolderError, Shard, VERSIONS_DIFFER, Verification, field, fields::Fields, origin,
    read_json,
};
use crate::inspect::Stored;
use crate::matrix::{Packed, ScaleValues};
use index::{Index, Names, Part};
use kernels::models::{ModelSpec, Shape};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that makes a folder an MLC checkpoint.
pub const CONFIG: &str = "mlc-chat-config.json";
/// The index's name now and of old, in the order they are looked for.
pub(crate) const INDEXES: [&str; 2] = ["tensor-cache.json", "ndarray-cache.json"];

/// Reads a checkpoint folder; `progress` counts bytes of shards.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read(dir: &Path, progress: Progress<'_>) -> Result<Checkpoint, FolderError> {
    read_with(dir, Verification::default(), progress)
}

/// The same, shards verified as the caller says.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read_with(
    dir: &Path,
    verification: Verification<'_>,
    progress: Progress<'_>,
) -> Result<Checkpoint, FolderError> {
    let (spec, index, wanted) = open(dir)?;
    let origin = origin::read(dir)?;
    let checkpoint_error = |cause| FolderError::Checkpoint {
        dir: dir.to_owned(),
        cause,
    };
    let mut parts = index.read_shards(dir, verification, progress)?;
    let mut take = |names: Vec<String>| {
        let taken: Vec<Part> = names.iter().filter_map(|n| parts.remove(n)).collect();
        Part::joined(taken)
    };
    let mut tensors = Vec::new();
    for (key, names) in wanted {
        let stored = match (spec.shape(key.1), take(names.main), take(names.scale)) {
            (Shape::Matrix { rows, k }, Some(Part::Words(words)), Some(scales)) => {
                let scales = match scales {
                    Part::Half(scales) => ScaleValues::F16(scales),
                    Part::Wide(scales) => ScaleValues::F32(scales),
                    // A wrong dtype was refused by `match_parameters`.
                    Part::Words(_) => continue,
                };
                checkpoint::Stored::Matrix(Packed {
                    format: spec.format_of(key.0, key.1),
                    rows,
                    k,
                    words,
                    scales,
                    biases: vec![],
                })
            }
            (Shape::Vector { .. }, Some(Part::Half(values)), None) => {
                checkpoint::Stored::Vector(values)
            }
            (Shape::Floats { .. }, Some(Part::Wide(values)), None) => {
                checkpoint::Stored::Floats(values)
            }
            (Shape::Matrix { .. } | Shape::Vector { .. } | Shape::Floats { .. }, _, _) => continue,
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

/// What a folder says of itself: the model, or why it is none, and its records. Shards
/// are there and of their sizes where it is one; they are not read.
pub(crate) fn described(
    dir: &Path,
) -> Result<(Result<ModelSpec, FolderError>, Vec<Stored>), FolderError> {
    let config = read_json::<Map<String, Value>>(&dir.join(CONFIG))?;
    if lacks_weights(dir).is_some() {
        return Ok((folder::describe(dir), vec![]));
    }
    let index_path = one_index(dir)?;
    let mut index = Index::new(&index_path, read_json(&index_path)?)?;
    let fields = Fields::of(dir.join(CONFIG), &config);
    let records = index.stored();
    let spec = config::spec(&fields, dir, records.len());
    let whole = spec.and_then(|spec| {
        folder::require_valid(&spec, dir)?;
        index.match_parameters(&spec)?;
        index.check_files(dir)?;
        Ok(spec)
    });
    Ok((whole, records))
}

/// The model, the index, and the parameters of the one in the other.
fn open(dir: &Path) -> Result<(ModelSpec, Index, BTreeMap<Key, Names>), FolderError> {
    let config = read_json::<Map<String, Value>>(&dir.join(CONFIG))?;
    let index_path = one_index(dir)?;
    let mut index = Index::new(&index_path, read_json(&index_path)?)?;
    let fields = Fields::of(dir.join(CONFIG), &config);
    let spec = config::spec(&fields, dir, index.records.len())?;
    folder::require_valid(&spec, dir)?;
    let wanted = index.match_parameters(&spec)?;
    Ok((spec, index, wanted))
}

/// The shards that the index names, once it has the parameters of the configuration.
pub(crate) fn shards(dir: &Path) -> Result<Vec<Shard>, FolderError> {
    let (_, index, _) = open(dir)?;
    Ok(index.shards())
}

/// Refuses a folder whose shards are not all there, or are of other sizes.
pub(crate) fn require_shards(dir: &Path) -> Result<(), FolderError> {
    let index_path = one_index(dir)?;
    Index::new(&index_path, read_json(&index_path)?)?.check_files(dir)
}

/// The model of a folder's configuration alone, of up to `layers` layers.
pub(crate) fn configured(dir: &Path, layers: usize) -> Result<ModelSpec, FolderError> {
    let config = read_json::<Map<String, Value>>(&dir.join(CONFIG))?;
    config::spec(&Fields::of(dir.join(CONFIG), &config), dir, layers)
}

/// What a folder lacks where it has a configuration and no weights.
pub(crate) fn lacks_weights(dir: &Path) -> Option<String> {
    let there = INDEXES.iter().any(|name| dir.join(name).exists());
    let [new, old] = INDEXES;
    (!there).then(|| format!("its weights are missing: {new} or {old}, and the shards"))
}

/// Rows of each record of a model, and columns of its vectors.
pub(crate) fn expected(spec: &ModelSpec) -> BTreeMap<String, (u64, Option<u64>)> {
    let mut all = BTreeMap::new();
    for (layer, tensor) in spec.tensors() {
        for (name, rows) in spec.param_parts(layer, tensor) {
            match spec.shape(tensor) {
                Shape::Vector { len } | Shape::Floats { len } => {
                    let shape = write::vector_shape(spec, tensor, len);
                    let (rows, columns) = match shape[..] {
                        [channels, 1, taps] => (channels, taps),
                        _ => (1, len),
                    };
                    all.insert(name, (rows as u64, Some(columns as u64)));
                }
                Shape::Matrix { k, .. } => {
                    let words = spec.format.words_per_row(k) as u64;
                    let groups = spec.format.scales_per_row(k) as u64;
                    let rows = rows as u64;
                    all.insert(format!("{name}.q_weight"), (rows, Some(words)));
                    all.insert(format!("{name}.q_scale"), (rows, Some(groups)));
                }
            }
        }
    }
    all
}

/// The index. A folder may have it under both names; they must then say the same.
fn one_index(dir: &Path) -> Result<PathBuf, FolderError> {
    let [new, old] = INDEXES.map(|name| dir.join(name));
    if !new.exists() {
        return Ok(old);
    }
    if old.exists() && read_json::<Value>(&new)? != read_json::<Value>(&old)? {
        let expected = format!("the same as in {}", old.display());
        return Err(field(
            &new,
            "records",
            expected,
            "another index",
            VERSIONS_DIFFER,
        ));
    }
    Ok(new)
}
