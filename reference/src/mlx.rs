//! MLX checkpoints: `config.json` and safetensors files, matrices in affine formats.
//!
//! Every file's header is checked before a byte of its data is used: types, shapes
//! and ranges against each other, against the file's size, and against the model.
//! Each tensor goes by the type in its header. Tensors are read by range, so a file
//! may be larger than memory; query, key and value, and gate and up, are joined by
//! rows. What belongs to a vision tower is skipped.

mod config;
mod tensors;

use crate::checkpoint::{
    Checkpoint, Container, Key, Progress, Provenance, Stored, describe, supported,
};
use crate::folder::{FolderError, fields::Fields, read_json};
use crate::matrix::{Packed, ScaleValues};
use config::{Config, parts};
use kernels::models::{ModelSpec, Shape};
use kernels::suggest;
use rayon::prelude::*;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tensors::{Dtype, Tensors};

/// The file that makes a folder an MLX checkpoint.
pub const CONFIG: &str = "config.json";
/// What the names of a model that also sees begin with: its text, and the rest.
const TEXT_PREFIX: &str = "language_model.";
const VISION_PREFIX: &str = "vision_tower.";

/// Reads a checkpoint folder; `progress` counts parameters.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read(dir: &Path, progress: Progress<'_>) -> Result<Checkpoint, FolderError> {
    let map = read_json::<Map<String, Value>>(&dir.join(CONFIG))?;
    let fields = Fields {
        file: dir.join(CONFIG),
        prefix: "",
        map: &map,
    };
    let tensors = Tensors::open(dir)?;
    let config = Config::new(&fields)?;
    let spec = config.spec(dir, tensors.names().count())?;
    let checkpoint_error = |cause| FolderError::Checkpoint {
        dir: dir.to_owned(),
        cause,
    };
    supported(&spec).map_err(checkpoint_error)?;
    refuse_unknown(&tensors, &spec)?;
    let keys = spec.tensors();
    let done = AtomicU64::new(0);
    let stored = keys
        .par_iter()
        .map(|&key| {
            let stored = parameter(&tensors, &spec, key)?;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, keys.len() as u64);
            Ok((key, stored))
        })
        .collect::<Result<Vec<_>, FolderError>>()?;
    let provenance = Provenance {
        weights: Container::Mlx,
        title: spec.title.clone(),
        sha256: String::new(),
        notes: Vec::new(),
    };
    Checkpoint::new(spec, provenance, stored).map_err(checkpoint_error)
}

/// The name of a tensor without what a model that also sees puts in front.
fn text_name(name: &str) -> &str {
    name.strip_prefix(TEXT_PREFIX).unwrap_or(name)
}

/// Refuses tensors that the model does not have.
fn refuse_unknown(tensors: &Tensors, spec: &ModelSpec) -> Result<(), FolderError> {
    let mut known = BTreeSet::new();
    for key in spec.tensors() {
        for (base, _) in parts(spec, key) {
            match spec.shape(key.1) {
                Shape::Matrix { .. } => {
                    known.extend(
                        ["weight", "scales", "biases"].map(|part| format!("{base}.{part}")),
                    );
                }
                Shape::Vector { .. } => drop(known.insert(format!("{base}.weight"))),
            }
        }
    }
    for name in tensors.names() {
        if name.starts_with(VISION_PREFIX) || known.contains(text_name(name)) {
            continue;
        }
        let all: Vec<&str> = known.iter().map(String::as_str).collect();
        return Err(FolderError::Unknown {
            file: tensors.file_of(name).to_owned(),
            name: name.to_owned(),
            model: spec.id.clone(),
            nearest: suggest::nearest(name, &all)
                .map_or(String::new(), |near| format!("; the nearest is {near}")),
        });
    }
    Ok(())
}

fn parameter(tensors: &Tensors, spec: &ModelSpec, key: Key) -> Result<Stored, FolderError> {
    let (layer, tensor) = key;
    let shape = spec.shape(tensor);
    let find = |name: String| {
        let found = tensors.find(&name);
        let found = found.or_else(|| tensors.find(&format!("{TEXT_PREFIX}{name}")));
        found.ok_or_else(|| FolderError::Missing {
            file: tensors.index().to_owned(),
            name,
            shape: describe(shape),
        })
    };
    let Shape::Matrix { rows, k } = shape else {
        let (base, len) = parts(spec, key).swap_remove(0);
        let vector = find(format!("{base}.weight"))?;
        vector.require(&[len], Dtype::FLOATS)?;
        return Ok(Stored::Vector(vector.halves()?));
    };
    let format = spec.format_of(layer, tensor);
    let (mut words, mut scales, mut biases) = (vec![], vec![], vec![]);
    for (base, rows) in parts(spec, key) {
        let part = find(format!("{base}.weight"))?;
        part.require(&[rows, format.words_per_row(k)], &[Dtype::U32])?;
        words.extend(part.words()?);
        for (name, values) in [("scales", &mut scales), ("biases", &mut biases)] {
            let part = find(format!("{base}.{name}"))?;
            part.require(&[rows, format.scales_per_row(k)], Dtype::FLOATS)?;
            values.extend(part.halves()?);
        }
    }
    Ok(Stored::Matrix(Packed {
        format,
        rows,
        k,
        words,
        scales: ScaleValues::F16(scales),
        biases,
    }))
}
