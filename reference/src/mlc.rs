//! MLC checkpoints: `mlc-chat-config.json`, `ndarray-cache.json` (or
//! `tensor-cache.json`) and shards.
//!
//! Reading: the index is checked against the model and against itself, then
//! every shard's size and md5 against the index, and only then is a byte of it
//! used. Each tensor goes by its own dtype; `format` matters for float32 alone.
//! Writing: into a sibling folder that is renamed at the end, so that a
//! half-written folder is never taken for a whole one.

use crate::checkpoint::{
    Checkpoint, CheckpointError, Key, Progress, Provenance, Stored, Weights, describe, hex,
    supported,
};
use half::{bf16, f16};
use kernels::models::{Family, ModelSpec, Shape, registry};
use kernels::quant::QuantFormat;
use kernels::suggest;
use md5::{Digest, Md5};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const CONFIG: &str = "mlc-chat-config.json";
/// The index's name now and of old, in the order they are looked for.
const INDEXES: [&str; 2] = ["tensor-cache.json", "ndarray-cache.json"];
/// What this workbench adds to a folder it writes: the title and its reasons.
const ORIGIN: &str = "zero-tvm-origin.json";
const MAX_JSON_BYTES: u64 = 64 << 20;
/// A shard is filled up to this; a larger tensor has one of its own.
const SHARD_BYTES: usize = 32 << 20;
/// Most KV pages of a model that the registry does not know.
const MAX_PAGES: usize = 512;

/// A folder that is not a whole MLC checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum MlcError {
    /// A file cannot be read or written.
    #[error("{file}: {source}")]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not the JSON that MLC writes.
    #[error("{file}: {source}; fetch the folder again")]
    Json {
        /// The file.
        file: PathBuf,
        /// Where and why.
        source: serde_json::Error,
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
    #[error("{dir}: {source}")]
    Checkpoint {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: CheckpointError,
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
    |source| MlcError::Io {
        file: file.to_owned(),
        source,
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
    let checkpoint_error = |source| MlcError::Checkpoint {
        dir: dir.to_owned(),
        source,
    };
    supported(&spec).map_err(checkpoint_error)?;
    let mut wanted = index.match_parameters(&spec)?;
    let mut parts = index.read_shards(dir, progress)?;
    let mut take = |name: Option<String>| name.and_then(|name| parts.remove(&name));
    let mut tensors = Vec::new();
    for (key, names) in std::mem::take(&mut wanted) {
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
        weights: Weights::Mlc,
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
    serde_json::from_slice(&text).map_err(|source| MlcError::Json {
        file: file.to_owned(),
        source,
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

// ---------------------------------------------------------------- config

/// Keys of `model_config` that say nothing about the weights or the arithmetic.
const IGNORED_KEYS: [&str; 10] = [
    "prefill_chunk_size",
    "tensor_parallel_shards",
    "pipeline_parallel_stages",
    "max_batch_size",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];
const USED_KEYS: [&str; 18] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "position_embedding_base",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "context_window_size",
    "model_type",
    "hidden_act",
    "attention_bias",
    "weight_block_size",
];

struct Config<'a> {
    file: PathBuf,
    map: &'a Map<String, Value>,
}

impl Config<'_> {
    fn error(&self, key: &str, expected: impl ToString, found: Option<&Value>) -> MlcError {
        let found = found.map_or("nothing".into(), |value| {
            let text = value.to_string();
            text.chars().take(80).collect::<String>()
        });
        field(&self.file, key, expected, found, "")
    }

    /// The model; `records` bounds the number of layers.
    fn spec(&self, dir: &Path, records: usize) -> Result<ModelSpec, MlcError> {
        let model_type = self.map.get("model_type");
        let family = match model_type.and_then(Value::as_str) {
            Some("llama") => Family::Llama,
            Some("phi3") => Family::Phi3,
            Some("qwen3") => Family::Qwen3,
            Some(_) | None => {
                return Err(self.error("model_type", "llama, phi3 or qwen3", model_type));
            }
        };
        let quantization = self.map.get("quantization");
        let format = QuantFormat::Q4f16_1;
        if quantization.and_then(Value::as_str) != Some(format.name()) {
            return Err(self.error("quantization", format.name(), quantization));
        }
        let Some(Value::Object(model)) = self.map.get("model_config") else {
            return Err(self.error("model_config", "an object", self.map.get("model_config")));
        };
        let model = Config {
            file: self.file.clone(),
            map: model,
        };
        model.check_keys(model_type)?;
        let spec = model.dimensions(family, records)?;
        let name = dir
            .file_name()
            .map_or("checkpoint".into(), |n| n.to_string_lossy().into_owned());
        let unregistered = ModelSpec {
            id: name.clone(),
            title: name,
            stop_ids: self.stop_ids()?,
            ..spec
        };
        Ok(registry()
            .into_iter()
            .find(|known| same_architecture(known, &unregistered))
            .unwrap_or(unregistered))
    }

    /// Refuses keys that could change the arithmetic unseen.
    fn check_keys(&self, model_type: Option<&Value>) -> Result<(), MlcError> {
        for (key, value) in self.map {
            let known = || USED_KEYS.iter().chain(&IGNORED_KEYS);
            if !known().any(|k| k == key) {
                let known: Vec<&str> = known().copied().collect();
                return Err(self.error(
                    &format!("model_config.{key}"),
                    match suggest::nearest(key, &known) {
                        Some(near) => format!("no such key (did you mean {near}?)"),
                        None => "no such key, as it may change the arithmetic".into(),
                    },
                    Some(value),
                ));
            }
        }
        let fixed = [
            ("rope_scaling", Value::Null),
            ("hidden_act", json!("silu")),
            ("attention_bias", json!(false)),
            ("weight_block_size", Value::Null),
            ("model_type", model_type.cloned().unwrap_or_default()),
        ];
        for (key, only) in fixed {
            match self.map.get(key) {
                Some(value) if *value != only => {
                    return Err(self.error(&format!("model_config.{key}"), only, Some(value)));
                }
                Some(_) | None => (),
            }
        }
        Ok(())
    }

    fn dimensions(&self, family: Family, records: usize) -> Result<ModelSpec, MlcError> {
        let hidden_size = self.size("hidden_size")?;
        let num_hidden_layers = self.size("num_hidden_layers")?;
        let num_attention_heads = self.size("num_attention_heads")?;
        // A layer has at least ten records, so this bounds the list of parameters.
        if num_hidden_layers > records {
            return Err(self.error(
                "model_config.num_hidden_layers",
                format!("at most the {records} records of the index"),
                self.map.get("num_hidden_layers"),
            ));
        }
        let head_dim = match self.map.get("head_dim") {
            None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
            Some(_) => self.size("head_dim")?,
        };
        let rotary_factor = self.number("partial_rotary_factor", Some(1.0))?;
        let theta = match family {
            Family::Llama | Family::Phi3 => "position_embedding_base",
            Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => "rope_theta",
        };
        let tie_word_embeddings = match self.map.get("tie_word_embeddings") {
            None => false,
            Some(Value::Bool(tied)) => *tied,
            other => {
                return Err(self.error("model_config.tie_word_embeddings", "true or false", other));
            }
        };
        let context = match self.map.get("context_window_size") {
            None => MAX_PAGES * kernels::kv::PAGE_SIZE,
            Some(_) => self.size("context_window_size")?,
        };
        Ok(ModelSpec {
            id: String::new(),
            title: String::new(),
            aliases: Vec::new(),
            family,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: self.size("num_key_value_heads")?,
            head_dim,
            intermediate_size: self.size("intermediate_size")?,
            vocab_size: self.size("vocab_size")?,
            rotary_dim: (rotary_factor * head_dim as f64).round() as usize,
            rope_theta: self.number(theta, None)?,
            rms_norm_eps: self.number("rms_norm_eps", None)?,
            tie_word_embeddings,
            max_pages: kernels::kv::pages_for(context).clamp(1, MAX_PAGES),
            stop_ids: Vec::new(),
            format: QuantFormat::Q4f16_1,
        })
    }

    /// A positive integer that fits the kernels.
    fn size(&self, key: &str) -> Result<usize, MlcError> {
        const MOST: u64 = 1 << 24;
        let value = self.map.get(key);
        match value.and_then(Value::as_u64) {
            Some(size) if (1..=MOST).contains(&size) => Ok(size as usize),
            Some(_) | None => {
                let expected = format!("an integer from 1 to {MOST}");
                Err(self.error(&format!("model_config.{key}"), expected, value))
            }
        }
    }

    /// A positive number.
    fn number(&self, key: &str, default: Option<f64>) -> Result<f64, MlcError> {
        let value = self.map.get(key);
        match (value.and_then(Value::as_f64), default) {
            (Some(number), _) if number > 0.0 && number <= 1e12 => Ok(number),
            (None, Some(default)) if value.is_none() => Ok(default),
            (Some(_) | None, _) => {
                let expected = "a number above 0, up to 1e12";
                Err(self.error(&format!("model_config.{key}"), expected, value))
            }
        }
    }

    fn stop_ids(&self) -> Result<Vec<u32>, MlcError> {
        let value = self.map.get("eos_token_id");
        let ids = match value {
            None => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.as_slice(),
            Some(id) => std::slice::from_ref(id),
        };
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .ok_or_else(|| self.error("eos_token_id", "token ids", value))
    }
}

/// Equal in everything that decides the weights and the arithmetic.
fn same_architecture(known: &ModelSpec, found: &ModelSpec) -> bool {
    let named = ModelSpec {
        id: known.id.clone(),
        title: known.title.clone(),
        aliases: known.aliases.clone(),
        max_pages: known.max_pages,
        stop_ids: known.stop_ids.clone(),
        ..found.clone()
    };
    *known == named
}

// ----------------------------------------------------------------- index

/// The index as written. A record of `records` is a shard with records of its
/// own, or, in flat indexes, a tensor.
#[derive(Deserialize)]
struct RawIndex {
    records: Vec<RawRecord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRecord {
    data_path: Option<String>,
    format: Option<String>,
    nbytes: Option<u64>,
    byte_offset: Option<u64>,
    md5sum: Option<String>,
    name: Option<String>,
    shape: Option<Vec<u64>>,
    dtype: Option<String>,
    records: Option<Vec<RawRecord>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Dtype {
    Uint32,
    Float16,
    Bfloat16,
    Float32,
    /// float32 stored as the upper 16 bits.
    Float32AsBf16,
}

impl Dtype {
    fn bytes(self) -> u64 {
        match self {
            Self::Uint32 | Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 | Self::Float32AsBf16 => 2,
        }
    }
}

struct Record {
    name: String,
    file: String,
    shape: Vec<u64>,
    dtype: Dtype,
    start: u64,
    end: u64,
}

struct ShardFile {
    /// Absent in flat indexes.
    nbytes: Option<u64>,
    md5sum: String,
}

struct Index {
    path: PathBuf,
    files: BTreeMap<String, ShardFile>,
    records: Vec<Record>,
}

/// Names of a parameter's records as the index has them.
struct Names {
    /// `.q_weight`, or the vector.
    main: Option<String>,
    /// `.q_scale`.
    scale: Option<String>,
}

/// A decoded record.
enum Part {
    Words(Vec<u32>),
    Half(Vec<f16>),
}

impl Index {
    fn new(path: &Path, raw: RawIndex) -> Result<Self, MlcError> {
        let mut index = Self {
            path: path.to_owned(),
            files: BTreeMap::new(),
            records: Vec::new(),
        };
        for (i, raw) in raw.records.into_iter().enumerate() {
            let at = format!("records[{i}]");
            match &raw.records {
                Some(_) => index.add_shard(&at, raw)?,
                None => {
                    let file = index.data_path(&at, raw.data_path.as_deref())?;
                    index.add_file(&at, &file, None, raw.md5sum.as_deref())?;
                    index.add_record(&at, raw, &file)?;
                }
            }
        }
        index.check_layout()?;
        Ok(index)
    }

    fn error(&self, at: String, expected: impl ToString, found: impl ToString) -> MlcError {
        field(&self.path, at, expected, found, FETCH_AGAIN)
    }

    fn add_shard(&mut self, at: &str, raw: RawRecord) -> Result<(), MlcError> {
        let file = self.data_path(at, raw.data_path.as_deref())?;
        match raw.format.as_deref() {
            Some("raw-shard") | None => (),
            Some(other) => return Err(self.error(format!("{at}.format"), "raw-shard", other)),
        }
        let Some(nbytes) = raw.nbytes else {
            return Err(self.error(format!("{at}.nbytes"), "the shard's size", "nothing"));
        };
        self.add_file(at, &file, Some(nbytes), raw.md5sum.as_deref())?;
        for (i, inner) in raw.records.unwrap_or_default().into_iter().enumerate() {
            let at = format!("{at}.records[{i}]");
            if inner.records.is_some() {
                return Err(self.error(format!("{at}.records"), "a tensor", "another shard"));
            }
            let file = match inner.data_path.as_deref() {
                None => file.clone(),
                path => self.data_path(&at, path)?,
            };
            self.add_record(&at, inner, &file)?;
        }
        Ok(())
    }

    /// A shard's name: a plain file name, so that an index cannot point outside
    /// its folder.
    fn data_path(&self, at: &str, path: Option<&str>) -> Result<String, MlcError> {
        match path {
            Some(path)
                if !path.is_empty()
                    && path.len() <= 255
                    && path != "."
                    && path != ".."
                    && !path.contains(['/', '\\', ':', '\0']) =>
            {
                Ok(path.to_owned())
            }
            other => Err(self.error(
                format!("{at}.dataPath"),
                "the name of a file beside the index",
                other.unwrap_or("nothing"),
            )),
        }
    }

    fn add_file(
        &mut self,
        at: &str,
        file: &str,
        nbytes: Option<u64>,
        md5sum: Option<&str>,
    ) -> Result<(), MlcError> {
        let md5sum = match md5sum {
            Some(sum) if sum.len() == 32 && sum.bytes().all(|b| b.is_ascii_hexdigit()) => {
                sum.to_ascii_lowercase()
            }
            other => {
                let found = other.unwrap_or("nothing: the shard cannot be verified");
                return Err(self.error(format!("{at}.md5sum"), "32 hexadecimal digits", found));
            }
        };
        let shard = ShardFile { nbytes, md5sum };
        let (size, sum) = (shard.nbytes, shard.md5sum.clone());
        if let Some(before) = self.files.insert(file.to_owned(), shard)
            && (before.nbytes, &before.md5sum) != (size, &sum)
        {
            let expected = format!("one size and md5 of {file}");
            return Err(self.error(at.into(), expected, "two that differ"));
        }
        Ok(())
    }

    fn add_record(&mut self, at: &str, raw: RawRecord, file: &str) -> Result<(), MlcError> {
        let Some(name) = raw.name else {
            return Err(self.error(format!("{at}.name"), "a parameter's name", "nothing"));
        };
        let of = |part: &str| format!("{at} ({name}), {part}");
        let bf16 = match raw.format.as_deref() {
            Some("raw") => false,
            Some("f32-to-bf16") => true,
            other => {
                let found = other.unwrap_or("nothing");
                return Err(self.error(of("format"), "raw or f32-to-bf16", found));
            }
        };
        let dtype = match raw.dtype.as_deref() {
            Some("uint32") => Dtype::Uint32,
            Some("float16") => Dtype::Float16,
            Some("bfloat16") => Dtype::Bfloat16,
            Some("float32") if bf16 => Dtype::Float32AsBf16,
            Some("float32") => Dtype::Float32,
            other => {
                let expected = "uint32, float16, bfloat16 or float32";
                return Err(self.error(of("dtype"), expected, other.unwrap_or("nothing")));
            }
        };
        let Some(shape) = raw.shape else {
            return Err(self.error(of("shape"), "a list of sizes", "nothing"));
        };
        let expected = shape
            .iter()
            .try_fold(dtype.bytes(), |n, &d| n.checked_mul(d));
        let (nbytes, start) = (raw.nbytes, raw.byte_offset);
        if nbytes.is_none() || nbytes != expected {
            let expected = expected.map_or("a shape that fits memory".into(), |n| {
                format!("{n} bytes for {shape:?} of {} bytes each", dtype.bytes())
            });
            let found = nbytes.map_or("nothing".into(), |n| n.to_string());
            return Err(self.error(of("nbytes"), expected, found));
        }
        let end = start.and_then(|start| start.checked_add(nbytes?));
        let (Some(start), Some(end)) = (start, end) else {
            let found = start.map_or("nothing".into(), |n| n.to_string());
            return Err(self.error(of("byteOffset"), "a place in the shard", found));
        };
        self.records.push(Record {
            name,
            file: file.to_owned(),
            shape,
            dtype,
            start,
            end,
        });
        Ok(())
    }

    /// Records lie inside their shards and do not overlap.
    fn check_layout(&mut self) -> Result<(), MlcError> {
        if self.records.is_empty() {
            return Err(self.error("records".into(), "at least one tensor", "none"));
        }
        self.records
            .sort_by(|a, b| (&a.file, a.start, a.end).cmp(&(&b.file, b.start, b.end)));
        for record in &self.records {
            let at = format!("{}, byteOffset and nbytes", record.name);
            match self.files.get(&record.file) {
                None => {
                    let expected = format!("a shard {} with its md5", record.file);
                    return Err(self.error(at, expected, "none"));
                }
                Some(shard) if shard.nbytes.is_some_and(|n| record.end > n) => {
                    let n = shard.nbytes.unwrap_or_default();
                    let expected = format!("a range within the {n} bytes of {}", record.file);
                    return Err(self.error(at, expected, record.range()));
                }
                Some(_) => (),
            }
        }
        for pair in self.records.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            if a.file == b.file && b.start < a.end {
                let expected = format!("no overlap with {} ({})", a.name, a.range());
                return Err(self.error(format!("{}, byteOffset", b.name), expected, b.range()));
            }
        }
        Ok(())
    }

    /// Pairs the model's parameters with records: all there, none besides, each
    /// of its dtype and shape.
    fn match_parameters(&self, spec: &ModelSpec) -> Result<BTreeMap<Key, Names>, MlcError> {
        let mut by_name = BTreeMap::new();
        for record in &self.records {
            if by_name.insert(record.name.as_str(), record).is_some() {
                return Err(self.error(record.name.clone(), "one record", "a second one"));
            }
        }
        let mut names = BTreeMap::new();
        let mut known = Vec::new();
        for key @ (layer, tensor) in spec.tensors() {
            let base = spec.param_name(layer, tensor);
            let mut find = |suffix: &str, shape: Vec<usize>, words: bool| {
                let name = format!("{base}{suffix}");
                // Newer checkpoints of the Qwen family name it as Llama does.
                let alias = name.replace(".c_attn", ".qkv_proj");
                let record = by_name
                    .remove(name.as_str())
                    .or_else(|| by_name.remove(alias.as_str()));
                known.push(name.clone());
                let Some(record) = record else {
                    return Err(MlcError::Missing {
                        file: self.path.clone(),
                        name,
                        shape: describe(spec.shape(tensor)),
                    });
                };
                self.check_record(record, &shape, words)?;
                Ok(Some(record.name.clone()))
            };
            let found = match spec.shape(tensor) {
                Shape::Matrix { rows, k } => {
                    let words = vec![rows, spec.format.words_per_row(k)];
                    let scales = vec![rows, spec.format.scales_per_row(k)];
                    Names {
                        main: find(".q_weight", words, true)?,
                        scale: find(".q_scale", scales, false)?,
                    }
                }
                Shape::Vector { len } => Names {
                    main: find("", vec![len], false)?,
                    scale: None,
                },
            };
            names.insert(key, found);
        }
        match by_name.keys().next() {
            None => Ok(names),
            Some(&name) => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                Err(MlcError::Unknown {
                    file: self.path.clone(),
                    name: name.to_owned(),
                    model: spec.id.clone(),
                    nearest: suggest::nearest(name, &known)
                        .map_or(String::new(), |near| format!("; the nearest is {near}")),
                })
            }
        }
    }

    fn check_record(&self, record: &Record, shape: &[usize], words: bool) -> Result<(), MlcError> {
        if (record.dtype == Dtype::Uint32) != words {
            let expected = if words { "uint32" } else { "a float type" };
            let found = if words { "a float type" } else { "uint32" };
            return Err(self.error(format!("{}, dtype", record.name), expected, found));
        }
        let same = record.shape.len() == shape.len()
            && record.shape.iter().zip(shape).all(|(&a, &b)| a == b as u64);
        if !same {
            return Err(field(
                &self.path,
                format!("{}, shape", record.name),
                format!("{shape:?} as the configuration has it"),
                format!("{:?}", record.shape),
                "; index and configuration differ",
            ));
        }
        Ok(())
    }

    /// Verifies and decodes all shards, in parallel.
    fn read_shards(
        &self,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<BTreeMap<String, Part>, MlcError> {
        let total = self.records.iter().map(|r| r.end - r.start).sum();
        let done = AtomicU64::new(0);
        let shards: Vec<(&String, &ShardFile)> = self.files.iter().collect();
        let parts = shards
            .into_par_iter()
            .map(|(name, shard)| {
                let path = dir.join(name);
                let bytes = shard.read_verified(&path)?;
                let mut parts = Vec::new();
                for record in self.records.iter().filter(|r| r.file == *name) {
                    parts.push((record.name.clone(), record.decode(&bytes, &path)?));
                    let step = record.end - record.start;
                    progress(done.fetch_add(step, Ordering::Relaxed) + step, total);
                }
                Ok(parts)
            })
            .collect::<Result<Vec<_>, MlcError>>()?;
        Ok(parts.into_iter().flatten().collect())
    }
}

impl ShardFile {
    /// The file's bytes, once size and md5 are the index's.
    fn read_verified(&self, path: &Path) -> Result<Vec<u8>, MlcError> {
        let info = fs::metadata(path).map_err(io(path))?;
        if !info.is_file() {
            return Err(field(path, "type", "a regular file", "none", FETCH_AGAIN));
        }
        if let Some(nbytes) = self.nbytes
            && info.len() != nbytes
        {
            let expected = format!("{nbytes} bytes as in the index");
            let found = format!("{} bytes", info.len());
            return Err(field(path, "size", expected, found, VERSIONS_DIFFER));
        }
        let bytes = fs::read(path).map_err(io(path))?;
        let found = hex(&Md5::digest(&bytes));
        if found != self.md5sum {
            let expected = format!("{} as in the index", self.md5sum);
            return Err(field(path, "md5", expected, found, VERSIONS_DIFFER));
        }
        Ok(bytes)
    }
}

impl Record {
    fn range(&self) -> String {
        format!("bytes {} to {}", self.start, self.end)
    }

    fn decode(&self, shard: &[u8], path: &Path) -> Result<Part, MlcError> {
        // Flat indexes state no size of the shard.
        let Some(bytes) = shard.get(self.start as usize..self.end as usize) else {
            let expected = format!("{} for {}", self.range(), self.name);
            let found = format!("{} bytes", shard.len());
            return Err(field(path, "size", expected, found, VERSIONS_DIFFER));
        };
        let (pairs, _) = bytes.as_chunks::<2>();
        let (fours, _) = bytes.as_chunks::<4>();
        let wide: Vec<f32> = match self.dtype {
            Dtype::Uint32 => {
                let words = fours.iter().map(|&b| u32::from_le_bytes(b));
                return Ok(Part::Words(words.collect()));
            }
            Dtype::Float16 => {
                let halves = pairs.iter().map(|&b| f16::from_le_bytes(b));
                return Ok(Part::Half(halves.collect()));
            }
            Dtype::Bfloat16 | Dtype::Float32AsBf16 => pairs
                .iter()
                .map(|&b| bf16::from_le_bytes(b).to_f32())
                .collect(),
            Dtype::Float32 => fours.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        };
        let halves: Vec<f16> = wide.iter().map(|&w| f16::from_f32(w)).collect();
        match halves.iter().position(|h| !h.is_finite()) {
            None => Ok(Part::Half(halves)),
            Some(i) => Err(field(
                path,
                format!("{}, element {i}", self.name),
                "a number that f16 holds (up to 65504)",
                wide[i],
                "",
            )),
        }
    }
}

// ----------------------------------------------------------------- write

/// Writes a checkpoint folder; `progress` counts bytes of weights. Nothing is
/// left at `dir` unless all of it is written.
///
/// # Errors
/// [`MlcError::NotEmpty`], or a file that cannot be written.
pub fn write(checkpoint: &Checkpoint, dir: &Path, progress: Progress<'_>) -> Result<(), MlcError> {
    let empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(source) => return Err(io(dir)(source)),
    };
    if !empty {
        return Err(MlcError::NotEmpty {
            dir: dir.to_owned(),
        });
    }
    // `a/..` has no name to put a sibling beside.
    let Some(name) = dir.file_name() else {
        let expected = "a folder's name at the end of the path";
        return Err(field(dir, "output folder", expected, "none", ""));
    };
    let mut partial = name.to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = dir.with_file_name(partial);
    fs::create_dir_all(&partial).map_err(io(&partial))?;
    let written = write_files(checkpoint, &partial, progress).and_then(|()| {
        if dir.exists() {
            fs::remove_dir(dir).map_err(io(dir))?;
        }
        fs::rename(&partial, dir).map_err(io(dir))
    });
    if written.is_err() {
        // Best effort: the error to report is the first one.
        let _ = fs::remove_dir_all(&partial);
    }
    written
}

fn write_files(
    checkpoint: &Checkpoint,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<(), MlcError> {
    let spec = checkpoint.spec();
    let mut shards = Shards {
        dir,
        total: checkpoint.payload_bytes(),
        done: 0,
        progress,
        pending: Vec::new(),
        pending_records: Vec::new(),
        entries: Vec::new(),
    };
    let mut count = 0;
    for (layer, tensor) in spec.tensors() {
        let name = spec.param_name(layer, tensor);
        match spec.shape(tensor) {
            Shape::Matrix { rows, .. } => {
                let matrix = checkpoint.matrix(layer, tensor);
                let (words, scales) = (matrix.words, matrix.scales);
                let shape = [rows, words.len() / rows];
                let name_of = |suffix: &str| format!("{name}{suffix}");
                let bytes = bytemuck::cast_slice(words);
                shards.add(&name_of(".q_weight"), &shape, "uint32", bytes)?;
                let shape = [rows, scales.len() / rows];
                let bytes = bytemuck::cast_slice(scales);
                shards.add(&name_of(".q_scale"), &shape, "float16", bytes)?;
                count += 2;
            }
            Shape::Vector { len } => {
                let bytes = bytemuck::cast_slice(checkpoint.vector(layer, tensor));
                shards.add(&name, &[len], "float16", bytes)?;
                count += 1;
            }
        }
    }
    shards.flush()?;
    let bytes = shards.total as f64;
    let index = json!({
        "metadata": {
            "ParamSize": count,
            "ParamBytes": bytes,
            "BitsPerParam": bytes * 8.0 / spec.parameters() as f64,
        },
        "records": shards.entries,
    });
    write_json(&dir.join(INDEXES[1]), &index)?;
    write_json(&dir.join(CONFIG), &config_of(spec))?;
    let origin = Origin {
        title: checkpoint.provenance().title.clone(),
        notes: checkpoint.provenance().notes.clone(),
    };
    write_json(&dir.join(ORIGIN), &json!(origin))
}

fn write_json(file: &Path, value: &Value) -> Result<(), MlcError> {
    let text = serde_json::to_string_pretty(value).map_err(|source| MlcError::Json {
        file: file.to_owned(),
        source,
    })?;
    fs::write(file, text + "\n").map_err(io(file))
}

fn config_of(spec: &ModelSpec) -> Value {
    let (model_type, theta) = match spec.family {
        Family::Llama => ("llama", "position_embedding_base"),
        Family::Phi3 => ("phi3", "position_embedding_base"),
        Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => ("qwen3", "rope_theta"),
    };
    let mut model = json!({
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_key_value_heads": spec.num_key_value_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "head_dim": spec.head_dim,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "context_window_size": spec.max_context(),
    });
    model[theta] = json!(spec.rope_theta);
    if spec.rotary_dim != spec.head_dim {
        let factor = spec.rotary_dim as f64 / spec.head_dim as f64;
        model["partial_rotary_factor"] = json!(factor);
    }
    json!({
        "version": "0.1.0",
        "model_type": model_type,
        "quantization": spec.format.name(),
        "model_config": model,
        "vocab_size": spec.vocab_size,
        "context_window_size": spec.max_context(),
        "eos_token_id": spec.stop_ids,
    })
}

/// Fills shards and their part of the index.
struct Shards<'a> {
    dir: &'a Path,
    total: u64,
    done: u64,
    progress: Progress<'a>,
    pending: Vec<u8>,
    pending_records: Vec<Value>,
    entries: Vec<Value>,
}

impl Shards<'_> {
    fn add(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: &str,
        bytes: &[u8],
    ) -> Result<(), MlcError> {
        let record = |offset: usize| {
            json!({
                "name": name,
                "shape": shape,
                "dtype": dtype,
                "format": "raw",
                "nbytes": bytes.len(),
                "byteOffset": offset,
            })
        };
        if bytes.len() >= SHARD_BYTES {
            return self.write_shard(bytes, vec![record(0)]);
        }
        if self.pending.len() + bytes.len() > SHARD_BYTES {
            self.flush()?;
        }
        self.pending_records.push(record(self.pending.len()));
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MlcError> {
        let bytes = std::mem::take(&mut self.pending);
        let records = std::mem::take(&mut self.pending_records);
        if records.is_empty() {
            return Ok(());
        }
        self.write_shard(&bytes, records)
    }

    fn write_shard(&mut self, bytes: &[u8], records: Vec<Value>) -> Result<(), MlcError> {
        let name = format!("params_shard_{}.bin", self.entries.len());
        let path = self.dir.join(&name);
        fs::write(&path, bytes).map_err(io(&path))?;
        self.entries.push(json!({
            "dataPath": name,
            "format": "raw-shard",
            "nbytes": bytes.len(),
            "records": records,
            "md5sum": hex(&Md5::digest(bytes)),
        }));
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(())
    }
}
