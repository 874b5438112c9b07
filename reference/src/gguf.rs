//! GGUF: metadata, tensor table and blocks.
//!
//! The header is hostile until proven otherwise: every count, length and range
//! is checked against the file's size before anything of that size is
//! allocated, and the header's own size is limited, so that no file takes more
//! than 64 MB before it is refused. Metadata arrays stay in the header's bytes;
//! only their type, length and place are kept. Tensors are read by range.

mod arrays;
mod blocks;
mod load;
mod model;

pub use blocks::{BlockType, dequantise};
pub use load::{load, load_model};
pub(crate) use model::expected;
pub use model::{LoadError, Model};

use crate::inspect::Stored;
use crate::ranges;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
const DEFAULT_ALIGNMENT: u64 = 32;
/// Longest name of a key or tensor in bytes, as GGUF's specification has it.
const MAX_NAME_BYTES: usize = 65_535;
const MAX_ARRAY_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;
/// Largest file: 64 GiB, beyond any model of the registry.
const MAX_FILE_BYTES: u64 = 1 << 36;
/// Longest header: with 260,000 tokens and as many merges it has under 12 MB. Keys,
/// names and texts are copied out of it, so it is held twice at most.
const MAX_HEADER_BYTES: u64 = 24 << 20;
/// Most tensors, and most keys: models of the field have under 2,000.
const MAX_ENTRIES: u64 = 16_384;
/// Longest part of a text that an error shows, in bytes.
const SHOWN_BYTES: usize = 80;

/// A file that is not a GGUF this workbench can read.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        cause: std::io::Error,
    },
    /// It is no GGUF file at all.
    #[error(
        "{file}: no GGUF file: expected a file that begins with GGUF, of up to {MAX_FILE_BYTES} \
         bytes, found {found}; name a GGUF file, or the folder of another checkpoint"
    )]
    NotGguf {
        /// The file.
        file: String,
        /// What it is.
        found: String,
    },
    /// A field is wrong.
    #[error("{file}: {field}: expected {expected}, found {found}; fetch the file again")]
    Field {
        /// The file.
        file: String,
        /// The field, with the tensor or key it belongs to.
        field: String,
        /// What a whole file has there.
        expected: String,
        /// What this file has there.
        found: String,
    },
    /// A tensor's type has no decoder.
    #[error(
        "{file}: tensor {tensor}: type {id} is not supported; convert the model to one of {}",
        BlockType::names()
    )]
    Type {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// GGML's number of the type.
        id: u32,
    },
    /// The file has no such key or tensor.
    #[error("{file}: {what} is missing; this is not a complete language model")]
    Missing {
        /// The file.
        file: String,
        /// The key or tensor.
        what: String,
    },
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// An array, left in the file.
    Array {
        /// Number of elements.
        len: u64,
        /// Where its elements lie in the file, in bytes.
        bytes: Range<usize>,
    },
}

/// A tensor of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Outer dimensions' product: rows.
    pub rows: usize,
    /// Innermost dimension: values of a row.
    pub k: usize,
    /// How rows are stored.
    pub block_type: BlockType,
    /// Where the rows begin in the file, in bytes.
    start: u64,
}

impl TensorInfo {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.k / self.block_type.block_len() * self.block_type.block_bytes()
    }

    /// The byte after the last row.
    fn end(&self) -> u64 {
        self.start + (self.rows * self.row_bytes()) as u64
    }
}

/// A checked GGUF file: its header in memory, its tensors in the file.
#[derive(Debug)]
pub struct Gguf {
    file: String,
    /// The header, or the whole file where there is no path.
    bytes: Vec<u8>,
    path: Option<PathBuf>,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Gguf {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`GgufError`], naming file and field.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = path.display().to_string();
        let io = |cause| GgufError::Io {
            file: file.clone(),
            cause,
        };
        let info = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let found = "nothing of this name".to_owned();
                return Err(GgufError::NotGguf { file, found });
            }
            info => info.map_err(io)?,
        };
        if !info.is_file() || info.len() > MAX_FILE_BYTES {
            let found = if info.is_file() {
                format!("{} bytes", info.len())
            } else {
                "a folder or device".into()
            };
            return Err(GgufError::NotGguf { file, found });
        }
        let mut bytes = Vec::new();
        let opened = File::open(path).map_err(io)?;
        let mut head = opened.take(MAX_HEADER_BYTES);
        head.read_to_end(&mut bytes).map_err(io)?;
        let mut reader = Reader {
            file,
            bytes: &bytes,
            size: info.len(),
            at: 0,
        };
        let (metadata, tensors) = reader.header()?;
        let (file, end) = (reader.file, reader.at);
        bytes.truncate(end);
        Ok(Self {
            file,
            bytes,
            path: Some(path.to_owned()),
            metadata,
            tensors,
        })
    }

    /// Checks a file's bytes; `file` is its name in errors.
    ///
    /// # Errors
    /// [`GgufError`], naming file and field.
    pub fn parse(file: impl Into<String>, bytes: Vec<u8>) -> Result<Self, GgufError> {
        let mut reader = Reader {
            file: file.into(),
            bytes: &bytes,
            size: bytes.len() as u64,
            at: 0,
        };
        let (metadata, tensors) = reader.header()?;
        let file = reader.file;
        Ok(Self {
            file,
            bytes,
            path: None,
            metadata,
            tensors,
        })
    }

    /// The file's name in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The file's bytes from its start to the end of its header at least: where the
    /// elements of [`Value::Array`] lie.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensors, as `inspect` lists them.
    pub(crate) fn stored(&self) -> Vec<Stored> {
        let stored = self.tensors.iter().map(|(name, info)| Stored {
            name: name.clone(),
            shape: match info.rows {
                1 => vec![info.k as u64],
                rows => vec![rows as u64, info.k as u64],
            },
            dtype: info.block_type.name().to_owned(),
            bytes: info.end() - info.start,
        });
        stored.collect()
    }

    /// SHA-256 of the whole file, lower-case hex.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn sha256(&self) -> Result<String, GgufError> {
        match &self.path {
            None => Ok(ranges::sha256_of_bytes(&self.bytes)),
            Some(path) => ranges::sha256(path).map_err(|cause| self.io(cause)),
        }
    }

    fn io(&self, cause: std::io::Error) -> GgufError {
        GgufError::Io {
            file: self.file.clone(),
            cause,
        }
    }

    /// All metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// [`GgufError::Missing`].
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensors.get(name).ok_or_else(|| GgufError::Missing {
            file: self.file.clone(),
            what: format!("tensor {name}"),
        })
    }

    /// The blocks of `count` rows from `first` on.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    ///
    /// # Panics
    /// When the tensor has not as many rows.
    pub fn rows(
        &self,
        tensor: &TensorInfo,
        first: usize,
        count: usize,
    ) -> Result<Vec<u8>, GgufError> {
        assert!(
            first + count <= tensor.rows,
            "rows {first} to {} of {}",
            first + count,
            tensor.rows
        );
        let row_bytes = tensor.row_bytes();
        let (start, len) = (tensor.start + (first * row_bytes) as u64, count * row_bytes);
        match &self.path {
            None => Ok(self.bytes[start as usize..][..len].to_vec()),
            Some(path) => ranges::read(path, start, len).map_err(|cause| self.io(cause)),
        }
    }

    /// A text value.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn string(&self, key: &str) -> Result<&str, GgufError> {
        let value = self.value(key)?;
        if let Value::String(text) = value {
            return Ok(text);
        }
        Err(self.wrong(key, "text", value))
    }

    /// An integer value that is not negative.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn unsigned(&self, key: &str) -> Result<u64, GgufError> {
        let value = self.value(key)?;
        if let Value::Unsigned(number) = value {
            return Ok(*number);
        }
        if let Value::Signed(number @ 0..) = value {
            return Ok(number.unsigned_abs());
        }
        Err(self.wrong(key, "an integer from 0", value))
    }

    /// An integer value that is not negative, where there is one.
    ///
    /// # Errors
    /// Of another type.
    pub fn optional_unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.metadata.contains_key(key) {
            true => self.unsigned(key).map(Some),
            false => Ok(None),
        }
    }

    /// A floating-point value.
    ///
    /// # Errors
    /// Missing, or of another type.
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        let value = self.value(key)?;
        if let Value::Float(number) = value {
            return Ok(*number);
        }
        Err(self.wrong(key, "a floating-point number", value))
    }

    fn value(&self, key: &str) -> Result<&Value, GgufError> {
        self.metadata.get(key).ok_or_else(|| GgufError::Missing {
            file: self.file.clone(),
            what: format!("metadata {key}"),
        })
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> GgufError {
        GgufError::Field {
            file: self.file.clone(),
            field: format!("metadata {key}"),
            expected: expected.into(),
            found: found.shown(),
        }
    }
}

impl Value {
    /// For an error: the value, of a text its beginning.
    fn shown(&self) -> String {
        match self {
            Self::String(text) => {
                let start: String = text.chars().take(SHOWN_BYTES).collect();
                format!("{start:?}")
            }
            other @ (Self::Unsigned(_)
            | Self::Signed(_)
            | Self::Float(_)
            | Self::Bool(_)
            | Self::Array { .. }) => format!("{other:?}"),
        }
    }
}

type Header = (BTreeMap<String, Value>, BTreeMap<String, TensorInfo>);

/// GGUF's type numbers of metadata values.
#[derive(Clone, Copy)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    const BY_ID: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// Bytes of a value; `None` where it carries its own length.
    fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Least bytes of a value in a file.
    fn least_bytes(self) -> u64 {
        match self.fixed_bytes() {
            Some(bytes) => bytes as u64,
            // A string's length; an array's type and length are more.
            None => 8,
        }
    }
}

struct Reader<'a> {
    file: String,
    /// The beginning of the file.
    bytes: &'a [u8],
    /// Bytes of the whole file.
    size: u64,
    at: usize,
}

impl Reader<'_> {
    fn header(&mut self) -> Result<Header, GgufError> {
        let (magic, _) = self.bytes.split_at(MAGIC.len().min(self.bytes.len()));
        if magic != MAGIC {
            let found = match magic {
                [] => "no bytes".to_owned(),
                _ => format!("\"{}\"", magic.escape_ascii()),
            };
            let file = self.file.clone();
            return Err(GgufError::NotGguf { file, found });
        }
        self.at = MAGIC.len();
        let version = self.u32("version")?;
        if !VERSIONS.contains(&version) {
            return Err(self.field("version", "2 or 3", version));
        }
        // Name (length and one byte), dimensions' number and one dimension, type, offset.
        let tensor_count = self.count("tensor count", 8 + 1 + 4 + 8 + 4 + 8)?;
        // Key's length, type, one byte.
        let key_count = self.count("metadata count", 8 + 4 + 1)?;
        for (field, count) in [
            ("tensor count", tensor_count),
            ("metadata count", key_count),
        ] {
            if count > MAX_ENTRIES {
                return Err(self.field(field, format!("at most {MAX_ENTRIES}"), count));
            }
        }
        let metadata = self.metadata(key_count)?;
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(&Value::Unsigned(n)) if n.is_power_of_two() && n <= 1 << 20 => n,
            Some(other) => {
                let expected = "a power of two up to 1048576";
                return Err(self.field("metadata general.alignment", expected, other.shown()));
            }
        };
        let tensors = self.tensors(tensor_count, alignment)?;
        Ok((metadata, tensors))
    }

    fn metadata(&mut self, count: u64) -> Result<BTreeMap<String, Value>, GgufError> {
        let mut metadata = BTreeMap::new();
        for i in 0..count {
            let key = self.name(&format!("key {i} of {count}"))?;
            let field = format!("metadata {key}");
            let kind = self.kind(&field)?;
            let value = self.value(kind, &field, 0)?;
            if metadata.insert(key, value).is_some() {
                return Err(self.field(&field, "one value", "a second one"));
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: Kind, field: &str, depth: usize) -> Result<Value, GgufError> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u8::from_le_bytes(self.array(field)?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array(field)?).into()),
            Kind::U32 => Value::Unsigned(self.u32(field)?.into()),
            Kind::U64 => Value::Unsigned(self.u64(field)?),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.array(field)?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array(field)?).into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array(field)?).into()),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array(field)?)),
            Kind::F32 => Value::Float(f32::from_le_bytes(self.array(field)?).into()),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.array(field)?)),
            Kind::Bool => match self.array(field)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(self.field(field, "0 or 1", other)),
            },
            Kind::String => {
                let bytes = self.string(field, usize::MAX)?.to_vec();
                Value::String(self.text(field, bytes)?)
            }
            Kind::Array => self.skip_array(field, depth)?,
        })
    }

    /// Checks an array and steps over it.
    fn skip_array(&mut self, field: &str, depth: usize) -> Result<Value, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            let expected = format!("arrays nested up to {MAX_ARRAY_DEPTH} deep");
            return Err(self.field(field, expected, "a deeper one"));
        }
        let kind = self.kind(field)?;
        let len = self.count(&format!("{field}, length"), kind.least_bytes())?;
        let start = self.at;
        match kind.fixed_bytes() {
            // `count` has checked that these bytes are there.
            Some(bytes) => self.at += len as usize * bytes,
            None => {
                for _ in 0..len {
                    if matches!(kind, Kind::Array) {
                        self.skip_array(field, depth + 1)?;
                    } else {
                        self.string(field, usize::MAX)?;
                    }
                }
            }
        }
        Ok(Value::Array {
            len,
            bytes: start..self.at,
        })
    }

    fn tensors(
        &mut self,
        count: u64,
        alignment: u64,
    ) -> Result<BTreeMap<String, TensorInfo>, GgufError> {
        let mut table = Vec::new();
        for i in 0..count {
            let name = self.name(&format!("name of tensor {i} of {count}"))?;
            let entry = self.tensor_entry(&name, alignment)?;
            table.push((name, entry));
        }
        let data = (self.at as u64).next_multiple_of(alignment);
        let available = self.size.saturating_sub(data);
        let mut tensors = BTreeMap::new();
        for (name, (rows, k, block_type, offset, nbytes)) in table {
            let field = format!("tensor {name}");
            if offset.checked_add(nbytes).is_none_or(|end| end > available) {
                let expected = format!("data within {available} bytes after the header");
                let found = format!("{nbytes} bytes at offset {offset}; the file is cut off");
                return Err(self.field(&field, expected, found));
            }
            let info = TensorInfo {
                rows,
                k,
                block_type,
                start: data + offset,
            };
            if tensors.insert(name, info).is_some() {
                return Err(self.field(&field, "one entry", "a second one"));
            }
        }
        self.check_overlaps(&tensors)?;
        Ok(tensors)
    }

    /// Rows, k, type, offset into the data and bytes.
    fn tensor_entry(
        &mut self,
        name: &str,
        alignment: u64,
    ) -> Result<(usize, usize, BlockType, u64, u64), GgufError> {
        let field = |part: &str| format!("tensor {name}, {part}");
        let dims_field = field("dimensions");
        let dims = self.u32(&dims_field)?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return Err(self.field(&dims_field, format!("1 to {MAX_DIMS} dimensions"), dims));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            shape.push(self.u64(&dims_field)?);
        }
        let id = self.u32(&field("type"))?;
        let offset = self.u64(&field("offset"))?;
        let Some(block_type) = BlockType::ALL.into_iter().find(|t| t.id() == id) else {
            return Err(GgufError::Type {
                file: self.file.clone(),
                tensor: name.to_owned(),
                id,
            });
        };
        let k = shape[0];
        let rows = shape[1..].iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        let blocks = k / block_type.block_len() as u64;
        let nbytes = rows
            .and_then(|rows| rows.checked_mul(blocks))
            .and_then(|blocks| blocks.checked_mul(block_type.block_bytes() as u64));
        let fits = nbytes.is_some_and(|n| n <= self.size);
        let (Some(rows), Some(nbytes), true) = (rows, nbytes, fits) else {
            let expected = format!("a tensor within the file's {} bytes", self.size);
            return Err(self.field(&dims_field, expected, format!("{shape:?}")));
        };
        if shape.contains(&0) || !k.is_multiple_of(block_type.block_len() as u64) {
            let expected = format!(
                "positive numbers, the first a multiple of {}",
                block_type.block_len()
            );
            return Err(self.field(&dims_field, expected, format!("{shape:?}")));
        }
        if !offset.is_multiple_of(alignment) {
            let expected = format!("a multiple of the alignment {alignment}");
            return Err(self.field(&field("offset"), expected, offset));
        }
        Ok((rows as usize, k as usize, block_type, offset, nbytes))
    }

    fn check_overlaps(&self, tensors: &BTreeMap<String, TensorInfo>) -> Result<(), GgufError> {
        let mut by_start: Vec<_> = tensors.iter().collect();
        by_start.sort_by_key(|(_, info)| info.start);
        for pair in by_start.windows(2) {
            let ((before, a), (after, b)) = (pair[0], pair[1]);
            if a.end() > b.start {
                let expected = format!("data from byte {}, the end of {before}", a.end());
                let found = format!("data from byte {}", b.start);
                return Err(self.field(&format!("tensor {after}, offset"), expected, found));
            }
        }
        Ok(())
    }

    fn take(&mut self, len: usize, field: &str) -> Result<&[u8], GgufError> {
        let left = self.bytes.len() - self.at;
        if len > left {
            let expected = format!("{len} bytes at byte {}", self.at);
            let found = if (self.bytes.len() as u64) < self.size {
                format!("more than the {MAX_HEADER_BYTES} bytes that a header may have")
            } else {
                format!("{left} bytes to the end; the file is cut off or a length is wrong")
            };
            return Err(self.field(field, expected, found));
        }
        self.at += len;
        Ok(&self.bytes[self.at - len..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count of things of at least `least_bytes` each, which must fit into
    /// the rest of the file.
    fn count(&mut self, field: &str, least_bytes: u64) -> Result<u64, GgufError> {
        let count = self.u64(field)?;
        let most = (self.bytes.len() - self.at) as u64 / least_bytes;
        if count > most {
            let of = if (self.bytes.len() as u64) < self.size {
                format!("a header of {MAX_HEADER_BYTES} bytes")
            } else {
                format!("a file of {} bytes", self.size)
            };
            let expected = format!("at most {most} in {of}");
            return Err(self.field(field, expected, count));
        }
        Ok(count)
    }

    fn string(&mut self, field: &str, most: usize) -> Result<&[u8], GgufError> {
        let len = self.u64(&format!("{field}, length of text"))?;
        match usize::try_from(len) {
            Ok(len) if len <= most => self.take(len, field),
            Ok(_) | Err(_) => Err(self.field(field, format!("at most {most} bytes of text"), len)),
        }
    }

    fn name(&mut self, field: &str) -> Result<String, GgufError> {
        let bytes = self.string(field, MAX_NAME_BYTES)?.to_vec();
        self.text(field, bytes)
    }

    fn text(&self, field: &str, bytes: Vec<u8>) -> Result<String, GgufError> {
        String::from_utf8(bytes).map_err(|error| {
            let shown = error.as_bytes().iter().take(SHOWN_BYTES);
            let found: String = shown
                .flat_map(|b| b.escape_ascii().map(char::from))
                .collect();
            self.field(field, "UTF-8", found)
        })
    }

    fn kind(&mut self, field: &str) -> Result<Kind, GgufError> {
        let id = self.u32(field)?;
        Kind::BY_ID
            .get(id as usize)
            .copied()
            .ok_or_else(|| self.field(field, "a value of type 0 to 12", format!("type {id}")))
    }

    fn field(&self, field: &str, expected: impl ToString, found: impl ToString) -> GgufError {
        GgufError::Field {
            file: self.file.clone(),
            field: field.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}
