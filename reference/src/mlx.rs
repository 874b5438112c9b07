//! MLX checkpoints: `config.json` and safetensors files, matrices in affine formats.
//!
//! Every file's header is checked before a byte of its data is used: types, shapes
//! and ranges against each other, against the file's size, and against the model.
//! Each tensor goes by the type in its header. Tensors are read by range, so a file
//! may be larger than memory; query, key and value, and gate and up, are joined by
//! rows. What belongs to a vision tower, or drafts tokens, is skipped. A folder of the same form in
//! floating point is no checkpoint yet; [`FloatFolder`] reads it for conversion.

mod config;
mod float;
mod write;

pub use float::FloatFolder;
pub(crate) use write::{SHARD_BYTES, write_files};
pub use write::{write, write_in_shards};

use crate::checkpoint::{Checkpoint, Container, Key, Progress, Provenance, Stored, describe};
use crate::folder::{self, FolderError, fields::Fields, origin, read_json};
use crate::inspect;
use crate::matrix::{Packed, ScaleValues};
use crate::tensors::{Dtype, INDEX, SINGLE, TensorFile, Tensors};
use config::{Config, flattened, part_shape, parts, vector_name, vector_shape};
use kernels::models::{ModelSpec, Shape};
use kernels::suggest;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file that makes a folder an MLX checkpoint.
pub const CONFIG: &str = "config.json";
/// What the names of a model that also sees begin with: its text, as MLX and as Hugging
/// Face have it.
const TEXT_PREFIX: &str = "language_model.";
const INNER_TEXT_PREFIX: &str = "model.language_model.";
/// Names of what sees and of what drafts tokens, which are skipped.
const SKIPPED_PREFIXES: [&str; 4] = ["vision_tower.", "model.visual.", "mtp.", "model.mtp."];

/// Reads a checkpoint folder; `progress` counts parameters.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read(dir: &Path, progress: Progress<'_>) -> Result<Checkpoint, FolderError> {
    let map = flattened(read_json(&dir.join(CONFIG))?);
    let fields = Fields::of(dir.join(CONFIG), &map);
    let tensors = Tensors::open(dir)?;
    let config = Config::new(&fields)?;
    if !config.is_quantised() {
        return Err(FolderError::Unquantised {
            dir: dir.to_owned(),
        });
    }
    let spec = config.spec(dir, tensors.names().count())?;
    let checkpoint_error = |cause| FolderError::Checkpoint {
        dir: dir.to_owned(),
        cause,
    };
    folder::require_valid(&spec, dir)?;
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
    let (title, notes) = match origin::read(dir)? {
        Some(origin) => (origin.title, origin.notes),
        None => (spec.title.clone(), Vec::new()),
    };
    let provenance = Provenance {
        weights: Container::Mlx,
        title,
        sha256: String::new(),
        notes,
    };
    Checkpoint::new(spec, provenance, stored).map_err(checkpoint_error)
}

/// What a folder says of itself.
pub(crate) struct Described {
    pub(crate) quantised: bool,
    /// The model, or why it is none.
    pub(crate) spec: Result<ModelSpec, FolderError>,
    pub(crate) tensors: Vec<inspect::Stored>,
}

/// Reads configuration and headers.
pub(crate) fn described(dir: &Path) -> Result<Described, FolderError> {
    let map = flattened(read_json(&dir.join(CONFIG))?);
    let fields = Fields::of(dir.join(CONFIG), &map);
    let quantised = map.contains_key("quantization");
    if lacks_weights(dir).is_some() {
        return Ok(Described {
            quantised,
            spec: folder::describe(dir),
            tensors: vec![],
        });
    }
    let tensors = Tensors::open(dir)?;
    let stored = tensors.stored();
    let spec = || -> Result<ModelSpec, FolderError> {
        if !quantised {
            return Ok(FloatFolder::open(dir)?.spec);
        }
        let spec = Config::new(&fields)?.spec(dir, stored.len())?;
        folder::require_valid(&spec, dir)?;
        refuse_unknown(&tensors, &spec)?;
        for key in spec.tensors() {
            pieces(&tensors, &spec, key)?;
        }
        Ok(spec)
    };
    Ok(Described {
        quantised,
        spec: spec(),
        tensors: stored,
    })
}

/// The model of a folder's configuration alone, of up to `layers` layers.
pub(crate) fn configured(dir: &Path, layers: usize) -> Result<ModelSpec, FolderError> {
    let map = flattened(read_json(&dir.join(CONFIG))?);
    Config::new(&Fields::of(dir.join(CONFIG), &map))?.spec(dir, layers)
}

/// What a folder lacks where it has a configuration and no weights.
pub(crate) fn lacks_weights(dir: &Path) -> Option<String> {
    let there = [INDEX, SINGLE].iter().any(|name| dir.join(name).exists());
    (!there).then(|| format!("its weights are missing: {SINGLE}, or {INDEX} and its files"))
}

/// Rows of each tensor of a model, and columns where no format decides them.
pub(crate) fn expected(spec: &ModelSpec, quantised: bool) -> BTreeMap<String, (u64, Option<u64>)> {
    let mut all = BTreeMap::new();
    for key in spec.tensors() {
        for (base, rows) in parts(spec, key) {
            let rows = rows as u64;
            match spec.shape(key.1) {
                Shape::Vector { .. } | Shape::Floats { .. } => {
                    let shape = vector_shape(spec, key.1, rows as usize);
                    let (rows, columns) = match shape[..] {
                        [channels, taps, 1] => (channels * taps, 1),
                        _ => (1, shape[0]),
                    };
                    let name = vector_name(key.1, &base);
                    all.insert(name, (rows as u64, Some(columns as u64)));
                }
                Shape::Matrix { k, .. } if !quantised => {
                    all.insert(format!("{base}.weight"), (rows, Some(k as u64)));
                }
                Shape::Matrix { .. } => {
                    for part in ["weight", "scales", "biases"] {
                        all.insert(format!("{base}.{part}"), (rows, None));
                    }
                }
            }
        }
    }
    all
}

/// A tensor by its name, or by that in the text of a model that also sees.
fn find<'t>(tensors: &'t Tensors, name: &str, shape: &str) -> Result<&'t TensorFile, FolderError> {
    let inner = name.strip_prefix("model.");
    let names = [
        Some(name.to_owned()),
        Some(format!("{TEXT_PREFIX}{name}")),
        inner.map(|name| format!("{INNER_TEXT_PREFIX}{name}")),
    ];
    let found = names.iter().flatten().find_map(|name| tensors.find(name));
    found.ok_or_else(|| FolderError::Missing {
        file: tensors.index().to_owned(),
        name: name.to_owned(),
        shape: shape.to_owned(),
    })
}

/// The name of a tensor without what a model that also sees puts in it.
fn text_name(name: &str) -> Cow<'_, str> {
    match name.strip_prefix(INNER_TEXT_PREFIX) {
        Some(inner) => format!("model.{inner}").into(),
        None => name.strip_prefix(TEXT_PREFIX).unwrap_or(name).into(),
    }
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
                Shape::Vector { .. } | Shape::Floats { .. } => {
                    known.insert(vector_name(key.1, &base));
                }
            }
        }
    }
    refuse_others(tensors, spec, &known)
}

/// Refuses tensors that are not known. A tied head that is stored all the same is
/// skipped, and so are frequencies of RoPE, which the configuration has, and what is not
/// of the text.
fn refuse_others(
    tensors: &Tensors,
    spec: &ModelSpec,
    known: &BTreeSet<String>,
) -> Result<(), FolderError> {
    for name in tensors.names() {
        let skipped = name.ends_with(".rotary_emb.inv_freq")
            || spec.tie_word_embeddings && name.starts_with("lm_head.");
        let text = text_name(name);
        let skipped = skipped
            || SKIPPED_PREFIXES
                .iter()
                .any(|prefix| text.starts_with(prefix));
        if skipped || known.contains(&*text) {
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

/// A tensor of a parameter, of a type and shape that the parameter takes.
struct Piece<'t> {
    part: &'static str,
    file: &'t TensorFile,
}

/// The tensors of a parameter in the order of its rows, each checked against the model.
fn pieces<'t>(
    tensors: &'t Tensors,
    spec: &ModelSpec,
    key: Key,
) -> Result<Vec<Piece<'t>>, FolderError> {
    let (layer, tensor) = key;
    let shape = spec.shape(tensor);
    let mut all = Vec::new();
    for (base, rows) in parts(spec, key) {
        let mut add = |part, name: &str, shape_of_part: &[usize], types: &[Dtype]| {
            let file = find(tensors, name, &describe(shape))?;
            file.require(shape_of_part, types)?;
            all.push(Piece { part, file });
            Ok(())
        };
        let Shape::Matrix { k, .. } = shape else {
            let name = vector_name(tensor, &base);
            add(
                "weight",
                &name,
                &vector_shape(spec, tensor, rows),
                Dtype::FLOATS,
            )?;
            continue;
        };
        let format = spec.format_of(layer, tensor);
        let of_width = |width| part_shape(spec, &base, rows, width);
        let words = of_width(format.words_per_row(k));
        add("weight", &format!("{base}.weight"), &words, &[Dtype::U32])?;
        let scales = of_width(format.scales_per_row(k));
        for part in ["scales", "biases"] {
            add(part, &format!("{base}.{part}"), &scales, Dtype::FLOATS)?;
        }
    }
    Ok(all)
}

fn parameter(tensors: &Tensors, spec: &ModelSpec, key: Key) -> Result<Stored, FolderError> {
    let pieces = pieces(tensors, spec, key)?;
    let (rows, k) = match spec.shape(key.1) {
        Shape::Matrix { rows, k } => (rows, k),
        // A vector is one tensor.
        Shape::Vector { .. } => return Ok(Stored::Vector(pieces[0].file.halves()?)),
        Shape::Floats { len } => {
            let mut values = vec![0.0; len];
            pieces[0].file.floats(0, &mut values)?;
            return Ok(Stored::Floats(values));
        }
    };
    let (mut words, mut scales, mut biases) = (vec![], vec![], vec![]);
    for Piece { part, file } in pieces {
        match part {
            "scales" => scales.extend(file.halves()?),
            "biases" => biases.extend(file.halves()?),
            _ => words.extend(file.words()?),
        }
    }
    Ok(Stored::Matrix(Packed {
        format: spec.format_of(key.0, key.1),
        rows,
        k,
        words,
        scales: ScaleValues::F16(scales),
        biases,
    }))
}
