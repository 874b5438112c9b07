//! The tensors of a folder's safetensors files: headers checked, data read by range.

use crate::folder::{
    FETCH_AGAIN, FolderError, Shard, VERSIONS_DIFFER, field, io, is_plain_name, read_json,
};
use crate::inspect::Stored;
use crate::ranges;
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const SINGLE: &str = "model.safetensors";
/// Longest header: that of the largest models has a few megabytes.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// Types of elements that a checkpoint uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dtype {
    U32,
    F16,
    Bf16,
    F32,
    /// Of no use here, but its tensors may be skipped.
    Other,
}

impl Dtype {
    pub(crate) const FLOATS: &'static [Self] = &[Self::F16, Self::Bf16, Self::F32];

    fn of(name: &str) -> Self {
        match name {
            "U32" => Self::U32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F32" => Self::F32,
            _ => Self::Other,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::U32 => "U32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::Other => "another type",
        }
    }

    /// Bytes of an element; none where it is not known.
    const fn bytes(self) -> Option<u64> {
        match self {
            Self::U32 | Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Other => None,
        }
    }
}

/// An entry of a header as written.
#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A tensor's place.
#[derive(Debug)]
pub(crate) struct TensorFile {
    name: String,
    path: PathBuf,
    dtype: Dtype,
    /// As the header has it.
    dtype_name: String,
    shape: Vec<u64>,
    /// From the start of the file.
    start: u64,
    bytes: usize,
}

/// Every tensor of a folder, by name.
#[derive(Debug)]
pub(crate) struct Tensors {
    index: PathBuf,
    all: BTreeMap<String, TensorFile>,
}

/// The index as written.
#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

/// The files that an index names.
fn files_of<'m>(
    index: &Path,
    weight_map: &'m BTreeMap<String, String>,
) -> Result<BTreeSet<&'m String>, FolderError> {
    let files: BTreeSet<&String> = weight_map.values().collect();
    match files.iter().find(|file| !is_plain_name(file)) {
        None => Ok(files),
        Some(file) => {
            let expected = "names of files beside the index";
            Err(field(index, "weight_map", expected, file, FETCH_AGAIN))
        }
    }
}

/// The files that the index of a folder names, or the one file; they need not be there.
pub(crate) fn shards(dir: &Path) -> Result<Vec<Shard>, FolderError> {
    let shard = |name: &str| Shard {
        name: name.to_owned(),
        bytes: None,
        md5: None,
    };
    let index = dir.join(INDEX);
    if !index.exists() {
        return Ok(vec![shard(SINGLE)]);
    }
    let RawIndex { weight_map } = read_json(&index)?;
    let files = files_of(&index, &weight_map)?;
    Ok(files.into_iter().map(|name| shard(name)).collect())
}

impl Tensors {
    /// Reads the headers of the files that the index lists, or of the one file.
    pub(crate) fn open(dir: &Path) -> Result<Self, FolderError> {
        let index = dir.join(INDEX);
        let mut tensors = Self {
            index: dir.join(SINGLE),
            all: BTreeMap::new(),
        };
        if !index.exists() {
            let file = tensors.index.clone();
            tensors.add(read_header(&file)?)?;
            return Ok(tensors);
        }
        let RawIndex { weight_map } = read_json(&index)?;
        for file in files_of(&index, &weight_map)? {
            let path = dir.join(file);
            if !path.exists() {
                let expected = format!("the file {file} beside it");
                return Err(field(
                    &index,
                    "weight_map",
                    expected,
                    "no such file",
                    FETCH_AGAIN,
                ));
            }
            tensors.add(read_header(&path)?)?;
        }
        for (name, file) in &weight_map {
            let listed = dir.join(file);
            let found = tensors.all.get(name).map(|tensor| &tensor.path);
            if found != Some(&listed) {
                let found = found.map_or("none".into(), |path| path.display().to_string());
                let expected = format!("a tensor of {}", listed.display());
                return Err(field(&index, name, expected, found, VERSIONS_DIFFER));
            }
        }
        tensors.index = index;
        Ok(tensors)
    }

    fn add(&mut self, tensors: Vec<TensorFile>) -> Result<(), FolderError> {
        for tensor in tensors {
            let path = tensor.path.clone();
            if let Some(before) = self.all.insert(tensor.name.clone(), tensor) {
                let expected = format!("one tensor {}", before.name);
                let found = format!("another in {}", before.path.display());
                return Err(field(&path, before.name, expected, found, FETCH_AGAIN));
            }
        }
        Ok(())
    }

    /// The index, or the one file.
    pub(crate) fn index(&self) -> &Path {
        &self.index
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// All of them, as `inspect` lists them.
    pub(crate) fn stored(&self) -> Vec<Stored> {
        let stored = self.all.values().map(|tensor| Stored {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: tensor.dtype_name.clone(),
            bytes: tensor.bytes as u64,
        });
        stored.collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<&TensorFile> {
        self.all.get(name)
    }

    /// The file of a tensor of [`Self::names`].
    pub(crate) fn file_of(&self, name: &str) -> &Path {
        self.all
            .get(name)
            .map_or(&self.index, |tensor| &tensor.path)
    }
}

/// The tensors of one file: their ranges lie in it, hold their shapes and do not
/// overlap.
fn read_header(path: &Path) -> Result<Vec<TensorFile>, FolderError> {
    let mut file = File::open(path).map_err(io(path))?;
    let size = file.metadata().map_err(io(path))?.len();
    let mut len = [0; 8];
    if size < 8 {
        let found = format!("{size} bytes");
        return Err(field(path, "size", "a header", found, FETCH_AGAIN));
    }
    file.read_exact(&mut len).map_err(io(path))?;
    let len = u64::from_le_bytes(len);
    let most = MAX_HEADER_BYTES.min(size - 8);
    if len > most {
        let expected = format!("a header of up to {most} bytes");
        return Err(field(path, "header length", expected, len, FETCH_AGAIN));
    }
    let mut header = vec![0; len as usize];
    file.read_exact(&mut header).map_err(io(path))?;
    let header: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|cause| FolderError::Json {
            file: path.to_owned(),
            cause,
        })?;
    let data = 8 + len;
    let mut tensors = Vec::new();
    for (name, value) in header {
        if name == "__metadata__" {
            continue;
        }
        let raw: RawTensor = serde_json::from_value(value).map_err(|cause| FolderError::Json {
            file: path.to_owned(),
            cause,
        })?;
        let dtype = Dtype::of(&raw.dtype);
        let (from, to) = raw.data_offsets;
        let range = || format!("bytes {from} to {to} of the data");
        if from > to || to > size - data {
            let expected = format!("a range within {} bytes of data", size - data);
            return Err(field(path, name, expected, range(), FETCH_AGAIN));
        }
        let elements = raw.shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        let fits = match (elements, dtype.bytes()) {
            (Some(elements), Some(bytes)) => elements.checked_mul(bytes) == Some(to - from),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !fits {
            let expected = format!("the bytes of {} {:?}", raw.dtype, raw.shape);
            return Err(field(path, name, expected, range(), FETCH_AGAIN));
        }
        tensors.push(TensorFile {
            name,
            path: path.to_owned(),
            dtype,
            dtype_name: raw.dtype,
            shape: raw.shape,
            start: data + from,
            bytes: (to - from) as usize,
        });
    }
    tensors.sort_by_key(|tensor| (tensor.start, tensor.bytes));
    for pair in tensors.windows(2) {
        if pair[0].start + pair[0].bytes as u64 > pair[1].start {
            let expected = format!("a range after that of {}", pair[0].name);
            let found = "one that overlaps it";
            return Err(field(path, &pair[1].name, expected, found, FETCH_AGAIN));
        }
    }
    Ok(tensors)
}

impl TensorFile {
    /// Requires a shape and one of some types.
    pub(crate) fn require(&self, shape: &[usize], types: &[Dtype]) -> Result<(), FolderError> {
        let wrong = |what: &str, expected: String, found: String| {
            let what = format!("{}, {what}", self.name);
            field(
                &self.path,
                what,
                expected,
                found,
                "; weights and configuration differ",
            )
        };
        if !types.contains(&self.dtype) {
            let names: Vec<&str> = types.iter().map(|t| t.name()).collect();
            let found = self.dtype_name.clone();
            return Err(wrong("dtype", names.join(" or "), found));
        }
        let same = self.shape.len() == shape.len()
            && self.shape.iter().zip(shape).all(|(&a, &b)| a == b as u64);
        if !same {
            return Err(wrong(
                "shape",
                format!("{shape:?}"),
                format!("{:?}", self.shape),
            ));
        }
        Ok(())
    }

    /// Its dimensions.
    pub(crate) fn shape(&self) -> &[u64] {
        &self.shape
    }

    fn read(&self) -> Result<Vec<u8>, FolderError> {
        ranges::read(&self.path, self.start, self.bytes).map_err(io(&self.path))
    }

    /// The values of `out.len()` elements from `first` on, as f32.
    pub(crate) fn floats(&self, first: usize, out: &mut [f32]) -> Result<(), FolderError> {
        let width = self.dtype.bytes().unwrap_or(1);
        let (start, len) = (first as u64 * width, out.len() * width as usize);
        if start + len as u64 > self.bytes as u64 {
            let expected = format!("{} elements from {first} on", out.len());
            let found = format!("{} bytes", self.bytes);
            return Err(field(&self.path, &self.name, expected, found, FETCH_AGAIN));
        }
        let bytes = ranges::read(&self.path, self.start + start, len).map_err(io(&self.path))?;
        self.widen(&bytes, out);
        Ok(())
    }

    fn widen(&self, bytes: &[u8], out: &mut [f32]) {
        let pairs = bytes.as_chunks::<2>().0.iter();
        let words = bytes.as_chunks::<4>().0.iter();
        match self.dtype {
            Dtype::F16 => pairs
                .zip(out)
                .for_each(|(&b, out)| *out = f16::from_le_bytes(b).to_f32()),
            Dtype::Bf16 => pairs
                .zip(out)
                .for_each(|(&b, out)| *out = bf16::from_le_bytes(b).to_f32()),
            Dtype::F32 | Dtype::U32 | Dtype::Other => words
                .zip(out)
                .for_each(|(&b, out)| *out = f32::from_le_bytes(b)),
        }
    }

    /// Its `u32` values.
    pub(crate) fn words(&self) -> Result<Vec<u32>, FolderError> {
        let bytes = self.read()?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|&b| u32::from_le_bytes(b)).collect())
    }

    /// Its values as the nearest f16, ties to even; a value that f16 cannot hold is
    /// an error.
    pub(crate) fn halves(&self) -> Result<Vec<f16>, FolderError> {
        let bytes = self.read()?;
        let mut wide = vec![0.0; bytes.len() / self.dtype.bytes().unwrap_or(4) as usize];
        self.widen(&bytes, &mut wide);
        let halves: Vec<f16> = wide.iter().map(|&w| f16::from_f32(w)).collect();
        match halves.iter().position(|h| !h.is_finite()) {
            None => Ok(halves),
            Some(i) => Err(field(
                &self.path,
                format!("{}, element {i}", self.name),
                "a number that f16 holds (up to 65504)",
                wide[i],
                "",
            )),
        }
    }
}
