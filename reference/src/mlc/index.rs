//! The index and its shards: everything is checked against everything else
//! before it is used.

use super::CONFIG;
use super::write::vector_shape;
use crate::checkpoint::{Key, Progress, describe, hex};
use crate::folder::{
    FETCH_AGAIN, FolderError, Shard, VERSIONS_DIFFER, Verification, field, io, is_plain_name,
};
use crate::inspect::Stored;
use half::{bf16, f16};
use kernels::models::{ModelSpec, Shape};
use kernels::quant::{Elem, QuantFormat};
use kernels::suggest;
use md5::{Digest, Md5};
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The index as written. A record of `records` is a shard with records of its
/// own, or, in flat indexes, a tensor.
#[derive(Deserialize)]
pub(super) struct RawIndex {
    records: Vec<RawRecord>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRecord {
    data_path: Option<String>,
    format: Option<String>,
    // Numbers as written: one that is none is an error that names its record.
    nbytes: Option<Value>,
    byte_offset: Option<Value>,
    md5sum: Option<String>,
    name: Option<String>,
    shape: Option<Value>,
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
    const fn name(self) -> &'static str {
        match self {
            Self::Uint32 => "uint32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float32AsBf16 => "float32 as bf16",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Uint32 | Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 | Self::Float32AsBf16 => 2,
        }
    }
}

pub(super) struct Record {
    name: String,
    file: String,
    shape: Vec<u64>,
    dtype: Dtype,
    start: u64,
    end: u64,
    /// Kept in f32.
    wide: bool,
}

struct ShardFile {
    /// Absent in flat indexes.
    nbytes: Option<u64>,
    md5sum: String,
}

pub(super) struct Index {
    path: PathBuf,
    files: BTreeMap<String, ShardFile>,
    pub(super) records: Vec<Record>,
}

/// Names of a parameter's records as the index has them; of a matrix those of the parts
/// whose rows are joined.
#[derive(Default)]
pub(super) struct Names {
    /// `.q_weight`, or the vector.
    pub(super) main: Vec<String>,
    /// `.q_scale`.
    pub(super) scale: Vec<String>,
}

/// A decoded record.
pub(super) enum Part {
    Words(Vec<u32>),
    Half(Vec<f16>),
    /// Vectors that stay in f32, and scales of a format whose scales are f32.
    Wide(Vec<f32>),
}

/// A value as an error shows it.
fn shown(value: Option<&Value>) -> String {
    value.map_or("nothing".into(), |value| {
        value.to_string().chars().take(80).collect()
    })
}

impl Part {
    /// The parts one after the other; none where there is none or where their types
    /// differ.
    pub(super) fn joined(parts: impl IntoIterator<Item = Self>) -> Option<Self> {
        parts.into_iter().reduce(|all, next| match (all, next) {
            (Self::Words(a), Self::Words(b)) => Self::Words([a, b].concat()),
            (Self::Half(a), Self::Half(b)) => Self::Half([a, b].concat()),
            (Self::Wide(a), Self::Wide(b)) => Self::Wide([a, b].concat()),
            // A wrong dtype was refused by `match_parameters`.
            (all, _) => all,
        })
    }
}

impl Index {
    pub(super) fn new(path: &Path, raw: RawIndex) -> Result<Self, FolderError> {
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

    fn error(&self, at: String, expected: impl ToString, found: impl ToString) -> FolderError {
        field(&self.path, at, expected, found, FETCH_AGAIN)
    }

    fn add_shard(&mut self, at: &str, raw: RawRecord) -> Result<(), FolderError> {
        let file = self.data_path(at, raw.data_path.as_deref())?;
        match raw.format.as_deref() {
            Some("raw-shard") | None => (),
            Some(other) => return Err(self.error(format!("{at}.format"), "raw-shard", other)),
        }
        let Some(nbytes) = raw.nbytes.as_ref().and_then(Value::as_u64) else {
            let found = shown(raw.nbytes.as_ref());
            return Err(self.error(format!("{at}.nbytes"), "the shard's size", found));
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
    fn data_path(&self, at: &str, path: Option<&str>) -> Result<String, FolderError> {
        match path {
            Some(path) if is_plain_name(path) => Ok(path.to_owned()),
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
    ) -> Result<(), FolderError> {
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

    fn add_record(&mut self, at: &str, raw: RawRecord, file: &str) -> Result<(), FolderError> {
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
        let sizes = raw.shape.as_ref().and_then(Value::as_array);
        let sizes = sizes.and_then(|s| s.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
        let Some(shape) = sizes else {
            let found = shown(raw.shape.as_ref());
            return Err(self.error(of("shape"), "a list of sizes", found));
        };
        let expected = shape
            .iter()
            .try_fold(dtype.bytes(), |n, &d| n.checked_mul(d));
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
        let (nbytes, start) = (number(&raw.nbytes), number(&raw.byte_offset));
        if nbytes.is_none() || nbytes != expected {
            let expected = expected.map_or("a shape that fits memory".into(), |n| {
                format!("{n} bytes for {shape:?} of {} bytes each", dtype.bytes())
            });
            let found = shown(raw.nbytes.as_ref());
            return Err(self.error(of("nbytes"), expected, found));
        }
        let end = start.and_then(|start| start.checked_add(nbytes?));
        let (Some(start), Some(end)) = (start, end) else {
            let found = shown(raw.byte_offset.as_ref());
            return Err(self.error(of("byteOffset"), "a place in the shard", found));
        };
        self.records.push(Record {
            name,
            file: file.to_owned(),
            shape,
            dtype,
            start,
            end,
            wide: false,
        });
        Ok(())
    }

    /// Records lie inside their shards and do not overlap.
    fn check_layout(&mut self) -> Result<(), FolderError> {
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

    /// The files that it names.
    pub(super) fn shards(&self) -> Vec<Shard> {
        let shards = self.files.iter().map(|(name, file)| Shard {
            name: name.clone(),
            bytes: file.nbytes,
            md5: Some(file.md5sum.clone()),
        });
        shards.collect()
    }

    /// The records, as `inspect` lists them.
    pub(super) fn stored(&self) -> Vec<Stored> {
        let mut all: Vec<Stored> = self
            .records
            .iter()
            .map(|record| Stored {
                name: record.name.clone(),
                shape: record.shape.clone(),
                dtype: record.dtype.name().to_owned(),
                bytes: record.end - record.start,
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Pairs the model's parameters with records: all there, none besides, each
    /// of its dtype and shape.
    pub(super) fn match_parameters(
        &mut self,
        spec: &ModelSpec,
    ) -> Result<BTreeMap<Key, Names>, FolderError> {
        let floats = spec.tensors().into_iter();
        let floats = floats.filter(|&(_, t)| matches!(spec.shape(t), Shape::Floats { .. }));
        let floats: BTreeSet<String> = floats.map(|(l, t)| spec.param_name(l, t)).collect();
        let wide_scales = spec.format.scale_type() == Elem::F32;
        for record in &mut self.records {
            let scale = wide_scales && record.name.ends_with(".q_scale");
            record.wide = scale || floats.contains(&record.name);
        }
        let mut by_name = BTreeMap::new();
        for record in &self.records {
            if by_name.insert(record.name.as_str(), record).is_some() {
                return Err(self.error(record.name.clone(), "one record", "a second one"));
            }
        }
        let mut names = BTreeMap::new();
        let mut known = Vec::new();
        for key @ (layer, tensor) in spec.tensors() {
            let mut find = |name: String, shape: Vec<usize>, words: bool| {
                // Newer checkpoints of the Qwen family name it as Llama does.
                let alias = name.replace(".c_attn", ".qkv_proj");
                let record = by_name
                    .remove(name.as_str())
                    .or_else(|| by_name.remove(alias.as_str()));
                known.push(name.clone());
                let Some(record) = record else {
                    return Err(FolderError::Missing {
                        file: self.path.clone(),
                        name,
                        shape: describe(spec.shape(tensor)),
                    });
                };
                self.check_record(record, &shape, words)?;
                Ok(record.name.clone())
            };
            let mut found = Names::default();
            for (base, rows) in spec.param_parts(layer, tensor) {
                match spec.shape(tensor) {
                    Shape::Matrix { k, .. } => {
                        let words = vec![rows, spec.format.words_per_row(k)];
                        let scales = vec![rows, spec.format.scales_per_row(k)];
                        found
                            .main
                            .push(find(format!("{base}.q_weight"), words, true)?);
                        let scale = find(format!("{base}.q_scale"), scales, false)?;
                        self.check_scale(&scale, spec.format)?;
                        found.scale.push(scale);
                    }
                    Shape::Vector { len } | Shape::Floats { len } => {
                        let shape = vector_shape(spec, tensor, len);
                        found.main.push(find(base, shape, false)?);
                    }
                }
            }
            names.insert(key, found);
        }
        match by_name.keys().next() {
            None => Ok(names),
            Some(&name) => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                Err(FolderError::Unknown {
                    file: self.path.clone(),
                    name: name.to_owned(),
                    model: spec.id.clone(),
                    nearest: suggest::nearest(name, &known)
                        .map_or(String::new(), |near| format!("; the nearest is {near}")),
                })
            }
        }
    }

    /// Refuses scales of another type than the configuration's format has.
    fn check_scale(&self, name: &str, format: QuantFormat) -> Result<(), FolderError> {
        let of_name = |r: &&Record| r.name == name;
        let Some(record) = self.records.iter().find(of_name) else {
            return Ok(());
        };
        let (fits, wanted) = match format.scale_type() {
            Elem::F16 => (record.dtype == Dtype::Float16, "float16"),
            Elem::F32 => (
                matches!(record.dtype, Dtype::Float32 | Dtype::Float32AsBf16),
                "float32",
            ),
        };
        if fits {
            return Ok(());
        }
        Err(field(
            &self.path,
            format!("{}, dtype", record.name),
            format!("{wanted}, since quantization in {CONFIG} is {format}"),
            record.dtype.name(),
            "; index and configuration differ: fetch both again",
        ))
    }

    fn check_record(
        &self,
        record: &Record,
        shape: &[usize],
        words: bool,
    ) -> Result<(), FolderError> {
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

    /// Every shard is there and of its size; none is read.
    pub(super) fn check_files(&self, dir: &Path) -> Result<(), FolderError> {
        for (name, shard) in &self.files {
            let path = dir.join(name);
            shard.check_size(&path, &self.path)?;
            // Flat indexes state no size of the shard.
            let size = fs::metadata(&path).map_err(io(&path))?.len();
            let of_file = self.records.iter().filter(|r| r.file == *name);
            for record in of_file {
                record.within(size, &path)?;
            }
        }
        Ok(())
    }

    /// Verifies and decodes all shards, in parallel.
    pub(super) fn read_shards(
        &self,
        dir: &Path,
        verification: Verification<'_>,
        progress: Progress<'_>,
    ) -> Result<BTreeMap<String, Part>, FolderError> {
        self.check_files(dir)?;
        let total = self.records.iter().map(|r| r.end - r.start).sum();
        let done = AtomicU64::new(0);
        let shards: Vec<(&String, &ShardFile)> = self.files.iter().collect();
        let parts = shards
            .into_par_iter()
            .map(|(name, shard)| {
                let path = dir.join(name);
                let bytes = shard.read_verified(&path, verification)?;
                let mut parts = Vec::new();
                for record in self.records.iter().filter(|r| r.file == *name) {
                    parts.push((record.name.clone(), record.decode(&bytes, &path)?));
                    let step = record.end - record.start;
                    progress(done.fetch_add(step, Ordering::Relaxed) + step, total);
                }
                Ok(parts)
            })
            .collect::<Result<Vec<_>, FolderError>>()?;
        Ok(parts.into_iter().flatten().collect())
    }
}

impl ShardFile {
    /// Refuses a file that is not there, or of another size than the index has.
    fn check_size(&self, path: &Path, index: &Path) -> Result<(), FolderError> {
        let info = match fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let expected = format!("the shard {name} beside it");
                return Err(field(
                    index,
                    "dataPath",
                    expected,
                    "no such file",
                    FETCH_AGAIN,
                ));
            }
            info => info.map_err(io(path))?,
        };
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
        Ok(())
    }

    /// The file's bytes, once size and md5 are the index's.
    fn read_verified(
        &self,
        path: &Path,
        verification: Verification<'_>,
    ) -> Result<Vec<u8>, FolderError> {
        let due = verification.is_due(path, &self.md5sum);
        let bytes = fs::read(path).map_err(io(path))?;
        if !due {
            return Ok(bytes);
        }
        let found = hex(&Md5::digest(&bytes));
        if found != self.md5sum {
            let expected = format!("{} as in the index", self.md5sum);
            return Err(field(path, "md5", expected, found, VERSIONS_DIFFER));
        }
        verification.remember(path, &self.md5sum);
        Ok(bytes)
    }
}

impl Record {
    fn range(&self) -> String {
        format!("bytes {} to {}", self.start, self.end)
    }

    /// Refuses a shard of `size` bytes that ends before the record does.
    fn within(&self, size: u64, path: &Path) -> Result<(), FolderError> {
        if self.end <= size {
            return Ok(());
        }
        let expected = format!("{} for {}", self.range(), self.name);
        let found = format!("{size} bytes");
        Err(field(path, "size", expected, found, VERSIONS_DIFFER))
    }

    fn decode(&self, shard: &[u8], path: &Path) -> Result<Part, FolderError> {
        self.within(shard.len() as u64, path)?;
        let bytes = &shard[self.start as usize..self.end as usize];
        let (pairs, _) = bytes.as_chunks::<2>();
        let (fours, _) = bytes.as_chunks::<4>();
        let wide: Vec<f32> = match self.dtype {
            Dtype::Uint32 => {
                let words = fours.iter().map(|&b| u32::from_le_bytes(b));
                return Ok(Part::Words(words.collect()));
            }
            Dtype::Float16 if self.wide => pairs
                .iter()
                .map(|&b| f16::from_le_bytes(b).to_f32())
                .collect(),
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
        if self.wide {
            return match wide.iter().position(|w| !w.is_finite()) {
                None => Ok(Part::Wide(wide)),
                Some(i) => Err(self.not_finite(path, i, "a finite number", wide[i])),
            };
        }
        let halves: Vec<f16> = wide.iter().map(|&w| f16::from_f32(w)).collect();
        match halves.iter().position(|h| !h.is_finite()) {
            None => Ok(Part::Half(halves)),
            Some(i) => {
                let expected = "a number that f16 holds (up to 65504)";
                Err(self.not_finite(path, i, expected, wide[i]))
            }
        }
    }

    fn not_finite(&self, path: &Path, i: usize, expected: &str, found: f32) -> FolderError {
        field(
            path,
            format!("{}, element {i}", self.name),
            expected,
            found,
            "",
        )
    }
}
