//! Reading of golden data: tensors by name from safetensors files.

use half::f16;
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// Golden data that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// The file cannot be read.
    #[error("{file}: {cause}")]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// No golden folder above the working directory.
    #[error(
        "no folder reference/tests/golden in or above the working directory; \
         run from the repository or name the folder"
    )]
    NoFolder,
    /// The file is not safetensors.
    #[error("{file}: not a safetensors file, or a part of one: {reason}; write it again")]
    Format {
        /// The file.
        file: PathBuf,
        /// What the reader said.
        reason: String,
    },
    /// No tensor of that name and type.
    #[error("{file}: tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        file: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Type asked for.
        expected: &'static str,
        /// What there is.
        found: String,
    },
}

/// The folder of golden data: `explicit`, or `reference/tests/golden` in or
/// above the working directory (tests of any crate run inside the repository).
///
/// # Errors
/// [`GoldenError::NoFolder`].
pub fn dir(explicit: Option<&Path>) -> Result<PathBuf, GoldenError> {
    if let Some(dir) = explicit {
        return Ok(dir.to_owned());
    }
    let here = std::env::current_dir().map_err(|cause| GoldenError::Io {
        file: ".".into(),
        cause,
    })?;
    here.ancestors()
        .map(|dir| dir.join("reference/tests/golden"))
        .find(|dir| dir.is_dir())
        .ok_or(GoldenError::NoFolder)
}

/// One safetensors file in memory.
#[derive(Debug)]
pub struct Golden {
    file: PathBuf,
    bytes: Vec<u8>,
}

/// A tensor: row-major values and their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Values<T> {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// `shape`'s product of values.
    pub data: Vec<T>,
}

impl Golden {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`GoldenError::Io`] or [`GoldenError::Format`].
    pub fn open(file: impl Into<PathBuf>) -> Result<Self, GoldenError> {
        let file = file.into();
        let bytes = std::fs::read(&file).map_err(|cause| GoldenError::Io {
            file: file.clone(),
            cause,
        })?;
        let golden = Self { file, bytes };
        golden.parse()?;
        Ok(golden)
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    fn parse(&self) -> Result<SafeTensors<'_>, GoldenError> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| GoldenError::Format {
            file: self.file.clone(),
            reason: error.to_string(),
        })
    }

    /// Names of all tensors, sorted.
    ///
    /// # Errors
    /// [`GoldenError::Format`].
    pub fn names(&self) -> Result<Vec<String>, GoldenError> {
        let mut names: Vec<String> = self.parse()?.names().iter().map(|&n| n.into()).collect();
        names.sort();
        Ok(names)
    }

    /// A tensor of f32.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn f32(&self, name: &str) -> Result<Values<f32>, GoldenError> {
        self.read(name, Dtype::F32, "f32", f32::from_le_bytes)
    }

    /// A tensor of f16.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn f16(&self, name: &str) -> Result<Values<f16>, GoldenError> {
        self.read(name, Dtype::F16, "f16", f16::from_le_bytes)
    }

    /// A tensor of i32.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn i32(&self, name: &str) -> Result<Values<i32>, GoldenError> {
        self.read(name, Dtype::I32, "i32", i32::from_le_bytes)
    }

    /// A tensor of u32.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn u32(&self, name: &str) -> Result<Values<u32>, GoldenError> {
        self.read(name, Dtype::U32, "u32", u32::from_le_bytes)
    }

    /// A tensor of u16.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn u16(&self, name: &str) -> Result<Values<u16>, GoldenError> {
        self.read(name, Dtype::U16, "u16", u16::from_le_bytes)
    }

    /// A tensor of u8.
    ///
    /// # Errors
    /// [`GoldenError::Tensor`] when there is none of that name and type.
    pub fn u8(&self, name: &str) -> Result<Values<u8>, GoldenError> {
        self.read(name, Dtype::U8, "u8", u8::from_le_bytes)
    }

    fn read<T, const N: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        expected: &'static str,
        value: fn([u8; N]) -> T,
    ) -> Result<Values<T>, GoldenError> {
        let tensors = self.parse()?;
        let wrong = |found: String| GoldenError::Tensor {
            file: self.file.clone(),
            name: name.to_owned(),
            expected,
            found,
        };
        let tensor = tensors
            .tensor(name)
            .map_err(|_| wrong("no tensor of this name".into()))?;
        if tensor.dtype() != dtype {
            return Err(wrong(format!("{:?}", tensor.dtype())));
        }
        let (chunks, _) = tensor.data().as_chunks::<N>();
        Ok(Values {
            shape: tensor.shape().to_vec(),
            data: chunks.iter().map(|&bytes| value(bytes)).collect(),
        })
    }
}
