//! Checkpoint folders of either kind: reading one, and what both have in common.

pub(crate) mod fields;
pub(crate) mod origin;
mod verify;

pub use verify::{Verification, Verify};

use crate::checkpoint::{Checkpoint, CheckpointError, Progress};
use crate::tensors::{self, Tensors};
use crate::{mlc, mlx};
use kernels::models::ModelSpec;
use std::fs;
use std::path::{Path, PathBuf};

const MAX_JSON_BYTES: u64 = 64 << 20;

/// A file of weights, as an index names it.
pub(crate) struct Shard {
    pub(crate) name: String,
    /// Its size, where the index states it.
    pub(crate) bytes: Option<u64>,
    /// Its sum, where the index states it.
    pub(crate) md5: Option<String>,
}

/// A folder that is not a whole checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("{file}: {cause}")]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Not the JSON that it should be.
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
    /// A folder without a configuration.
    #[error(
        "{dir}: no checkpoint: it has neither {} (MLC) nor {} (MLX, or Hugging Face's floating \
         point); name the folder that has one, or a GGUF file",
        mlc::CONFIG,
        mlx::CONFIG
    )]
    NoCheckpoint {
        /// The folder.
        dir: PathBuf,
    },
    /// A configuration without weights.
    #[error("{dir}: {lacks}; put them there, or fetch the folder again")]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// That they are missing, and the names that they would have.
        lacks: String,
    },
    /// Weights in floating point, which the kernels do not read.
    #[error(
        "{dir}: its weights are in floating point; quantise them with `cargo xtask convert {dir} \
         OUT --format q4f16_1`"
    )]
    Unquantised {
        /// The folder.
        dir: PathBuf,
    },
    /// Weights that are quantised already, where those in floating point are expected.
    #[error(
        "{dir}: {kind}, quantised already; expected a Hugging Face folder in floating point or a \
         GGUF file. Run it as it is with `--weights {dir}`"
    )]
    Quantised {
        /// The folder.
        dir: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The folder to write to has something in it.
    #[error("{dir}: the folder exists and is not empty; name a new one or empty it")]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
    },
}

/// Whether an index may name a file so: beside itself, not outside its folder.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', ':', '\0'])
}

/// Advice where a file is damaged.
pub(crate) const FETCH_AGAIN: &str = "; fetch the folder again";
/// Advice where files contradict each other.
pub(crate) const VERSIONS_DIFFER: &str =
    "; index and shard come from different versions or a download was cut off: fetch both again";

pub(crate) fn io(file: &Path) -> impl FnOnce(std::io::Error) -> FolderError + '_ {
    |cause| FolderError::Io {
        file: file.to_owned(),
        cause,
    }
}

/// A field that is wrong; see [`FolderError::Field`].
pub(crate) fn field(
    file: &Path,
    field: impl Into<String>,
    expected: impl ToString,
    found: impl ToString,
    advice: &'static str,
) -> FolderError {
    FolderError::Field {
        file: file.to_owned(),
        field: field.into(),
        expected: expected.to_string(),
        found: found.to_string(),
        advice,
    }
}

/// Reads an MLC or an MLX checkpoint folder, by its configuration. What has an md5 is
/// verified.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read(dir: &Path, progress: Progress<'_>) -> Result<Checkpoint, FolderError> {
    read_with(dir, Verification::default(), progress)
}

/// The same, verified as the caller says.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn read_with(
    dir: &Path,
    verification: Verification<'_>,
    progress: Progress<'_>,
) -> Result<Checkpoint, FolderError> {
    require_weights(dir)?;
    if dir.join(mlc::CONFIG).exists() {
        mlc::read_with(dir, verification, progress)
    } else {
        mlx::read(dir, progress)
    }
}

/// Refuses a folder without a configuration, or without an index or a file of weights.
///
/// # Errors
/// [`FolderError::NoCheckpoint`], [`FolderError::NoWeights`].
pub fn require_weights(dir: &Path) -> Result<(), FolderError> {
    let lacks = if dir.join(mlc::CONFIG).exists() {
        mlc::lacks_weights(dir)
    } else if dir.join(mlx::CONFIG).exists() {
        mlx::lacks_weights(dir)
    } else {
        return Err(FolderError::NoCheckpoint {
            dir: dir.to_owned(),
        });
    };
    match lacks {
        None => Ok(()),
        Some(lacks) => Err(FolderError::NoWeights {
            dir: dir.to_owned(),
            lacks,
        }),
    }
}

/// The files of weights that the index of a folder names, which need not be there. An
/// index that names the model's parameters is compared with the configuration first.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub(crate) fn shards(dir: &Path) -> Result<Vec<Shard>, FolderError> {
    if dir.join(mlc::CONFIG).exists() {
        mlc::shards(dir)
    } else {
        tensors::shards(dir)
    }
}

/// Refuses a folder whose files of weights are not all there, or are of other sizes than
/// index or headers say. No weight is read.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub(crate) fn require_shards(dir: &Path) -> Result<(), FolderError> {
    if dir.join(mlc::CONFIG).exists() {
        mlc::require_shards(dir)
    } else {
        Tensors::open(dir).map(drop)
    }
}

/// Most layers of a model whose weights are not there to count them.
const MAX_LAYERS: usize = 1024;

/// The model that a configuration describes, whose weights need not be there: of a
/// folder, or the file itself. Matrices are in the configuration's formats, or in
/// q4f16_1 where it is of weights in floating point.
///
/// # Errors
/// [`FolderError`], naming file and field.
pub fn describe(path: &Path) -> Result<ModelSpec, FolderError> {
    let (dir, is_mlc) = if path.is_dir() {
        (path, path.join(mlc::CONFIG).exists())
    } else {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        (
            dir,
            path.file_name().is_some_and(|name| name == mlc::CONFIG),
        )
    };
    let file = dir.join(if is_mlc { mlc::CONFIG } else { mlx::CONFIG });
    if !file.exists() {
        return Err(FolderError::NoCheckpoint {
            dir: dir.to_owned(),
        });
    }
    let spec = if is_mlc {
        mlc::configured(dir, MAX_LAYERS)?
    } else {
        mlx::configured(dir, MAX_LAYERS)?
    };
    require_valid(&spec, dir)?;
    Ok(spec)
}

/// Refuses a model that the configuration of `dir` describes and that cannot be.
///
/// # Errors
/// [`FolderError::Checkpoint`], naming what contradicts itself.
pub(crate) fn require_valid(spec: &ModelSpec, dir: &Path) -> Result<(), FolderError> {
    let valid = spec.validate().map_err(CheckpointError::from);
    valid.map_err(|cause| FolderError::Checkpoint {
        dir: dir.to_owned(),
        cause,
    })
}

/// Writes a folder beside `dir` with `fill` and renames it to `dir`, so that nothing
/// is there unless all of it is.
///
/// # Errors
/// [`FolderError::NotEmpty`], or what `fill` or the file system says.
pub(crate) fn write_whole(
    dir: &Path,
    fill: impl FnOnce(&Path) -> Result<(), FolderError>,
) -> Result<(), FolderError> {
    let partial = partial_of(dir)?;
    fs::create_dir_all(&partial).map_err(not_made(dir))?;
    let written = fill(&partial).and_then(|()| {
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

/// Refuses a place at which [`write_whole`] could make no folder, before anything is made
/// to put there. Nothing is left.
///
/// # Errors
/// [`FolderError::NotEmpty`], or why no folder can be made.
pub(crate) fn require_writable(dir: &Path) -> Result<(), FolderError> {
    let partial = partial_of(dir)?;
    let mut above = partial.ancestors().skip(1);
    let there = above.find(|path| !path.as_os_str().is_empty() && path.exists());
    let name = partial.file_name().unwrap_or_default();
    let tried = there.unwrap_or(Path::new(".")).join(name);
    fs::create_dir(&tried)
        .and_then(|()| fs::remove_dir(&tried))
        .map_err(not_made(dir))
}

/// The folder beside `dir` that becomes it.
fn partial_of(dir: &Path) -> Result<PathBuf, FolderError> {
    let empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            let expected = "a folder, or nothing there yet";
            return Err(field(dir, "output folder", expected, "a file", ""));
        }
        Err(error) => return Err(io(dir)(error)),
    };
    if !empty {
        return Err(FolderError::NotEmpty {
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
    Ok(dir.with_file_name(partial))
}

/// The error of a folder that cannot be made: it names what was asked for, not the folder
/// that becomes it.
fn not_made(dir: &Path) -> impl FnOnce(std::io::Error) -> FolderError + '_ {
    |cause| {
        let expected = "a place where a folder can be made";
        field(dir, "output folder", expected, cause, "; name another")
    }
}

pub(crate) fn write_json(file: &Path, value: &serde_json::Value) -> Result<(), FolderError> {
    let text = serde_json::to_string_pretty(value).map_err(|cause| FolderError::Json {
        file: file.to_owned(),
        cause,
    })?;
    fs::write(file, text + "\n").map_err(io(file))
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, FolderError> {
    let metadata = fs::metadata(file).map_err(io(file))?;
    if !metadata.is_file() {
        return Err(field(file, "type", "a regular file", "none", FETCH_AGAIN));
    }
    let size = metadata.len();
    if size > MAX_JSON_BYTES {
        let expected = format!("up to {MAX_JSON_BYTES} bytes");
        return Err(field(file, "size", expected, format!("{size} bytes"), ""));
    }
    let text = fs::read(file).map_err(io(file))?;
    serde_json::from_slice(&text).map_err(|cause| FolderError::Json {
        file: file.to_owned(),
        cause,
    })
}
