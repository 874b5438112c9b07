//! What a checkpoint is: its tensors, and what it would lack to be a registered model.
//! Headers, configurations and indexes are read, weights are not.

use crate::folder::FolderError;
use crate::gguf::{self, Gguf, LoadError};
use crate::{mlc, mlx};
use kernels::models::{ModelSpec, registry};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Models of which differences are listed: those that differ least.
const NEAREST: usize = 3;

/// Kind of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A GGUF file.
    Gguf,
    /// An MLC folder.
    Mlc,
    /// An MLX folder.
    Mlx,
    /// A Hugging Face folder in floating point.
    HuggingFace,
}

impl Kind {
    /// Its name in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gguf => "GGUF",
            Self::Mlc => "MLC",
            Self::Mlx => "MLX",
            Self::HuggingFace => "Hugging Face, in floating point",
        }
    }
}

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Type of its elements or blocks, by the container's name.
    pub dtype: String,
    /// Its size.
    pub bytes: u64,
}

/// What a checkpoint lacks to be a registered model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The model's id.
    pub model: String,
    /// Tensors that the model has and the checkpoint has not.
    pub missing: Vec<String>,
    /// Tensors that the checkpoint has and the model has not.
    pub unknown: Vec<String>,
    /// Tensors of another shape: `NAME: expected [..], found [..]`.
    pub other_shape: Vec<String>,
}

impl Difference {
    /// Tensors in which they differ.
    pub fn count(&self) -> usize {
        self.missing.len() + self.unknown.len() + self.other_shape.len()
    }
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Its kind.
    pub kind: Kind,
    /// The model that its configuration describes; none where it describes none that
    /// the workbench knows.
    pub model: Option<String>,
    /// Why it is not one, or that a configuration stands there without weights.
    pub problem: Option<String>,
    /// Weights of that model.
    pub parameters: Option<u64>,
    /// Tensors by name.
    pub tensors: Vec<Stored>,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// What it lacks to be a registered model: nothing of one that it is, or of those
    /// that differ least.
    pub differences: Vec<Difference>,
}

/// A checkpoint that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// A GGUF file.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// A folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// Reads what a file or folder says of itself.
///
/// # Errors
/// [`InspectError`]: a file that is none, or whose header cannot be read.
pub fn inspect(path: &Path) -> Result<Inspection, InspectError> {
    let (kind, described, tensors) = if !path.is_dir() {
        let gguf = Gguf::open(path)?;
        let described = gguf::Model::new(&gguf)
            .map(|model| model.spec().clone())
            .map_err(|error: LoadError| error.to_string());
        (Kind::Gguf, described, gguf.stored())
    } else if path.join(mlc::CONFIG).exists() {
        let (spec, tensors) = mlc::described(path)?;
        (Kind::Mlc, spec.map_err(|e| e.to_string()), tensors)
    } else if path.join(mlx::CONFIG).exists() {
        let mlx::Described {
            quantised,
            spec,
            tensors,
        } = mlx::described(path)?;
        let kind = if quantised {
            Kind::Mlx
        } else {
            Kind::HuggingFace
        };
        (kind, spec.map_err(|e| e.to_string()), tensors)
    } else {
        return Err(FolderError::NoCheckpoint {
            dir: path.to_owned(),
        }
        .into());
    };
    let lacks = match kind {
        Kind::Gguf => None,
        Kind::Mlc => mlc::lacks_weights(path),
        Kind::Mlx | Kind::HuggingFace => mlx::lacks_weights(path),
    };
    let differences = match &lacks {
        None => differences(kind, &tensors),
        // It lacks everything.
        Some(_) => vec![],
    };
    let (model, problem) = match described {
        Ok(spec) => (Some(spec), lacks),
        Err(problem) => (None, Some(problem)),
    };
    Ok(Inspection {
        kind,
        parameters: model.as_ref().map(ModelSpec::parameters),
        differences,
        model: model.map(|spec| spec.id),
        problem,
        bytes: tensors.iter().map(|t| t.bytes).sum(),
        tensors,
    })
}

/// Rows and columns that a model has in a container, by the tensor's name; no columns
/// where they follow from the format.
type Expected = BTreeMap<String, (u64, Option<u64>)>;

fn expected(kind: Kind, spec: &ModelSpec) -> Option<Expected> {
    // Of these the names are known in the quantised folders alone.
    let sparse = spec.delta_net.is_some() || spec.experts.is_some();
    if sparse && matches!(kind, Kind::Gguf | Kind::HuggingFace) {
        return None;
    }
    Some(match kind {
        Kind::Gguf => gguf::expected(spec),
        Kind::Mlc => mlc::expected(spec),
        Kind::Mlx => mlx::expected(spec, true),
        Kind::HuggingFace => mlx::expected(spec, false),
    })
}

fn differences(kind: Kind, tensors: &[Stored]) -> Vec<Difference> {
    let stored: BTreeMap<&str, &Stored> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut all: Vec<Difference> = registry()
        .iter()
        .filter_map(|spec| Some(difference(spec, &expected(kind, spec)?, &stored)))
        .collect();
    all.sort_by_key(Difference::count);
    if let Some(none) = all.iter().position(|d| d.count() > 0)
        && none > 0
    {
        all.truncate(none);
    }
    all.truncate(NEAREST);
    all
}

fn difference(
    spec: &ModelSpec,
    expected: &Expected,
    stored: &BTreeMap<&str, &Stored>,
) -> Difference {
    let mut found = Difference {
        model: spec.id.clone(),
        missing: vec![],
        unknown: vec![],
        other_shape: vec![],
    };
    for (name, &(rows, columns)) in expected {
        let Some(tensor) = stored.get(name.as_str()) else {
            found.missing.push(name.clone());
            continue;
        };
        // A vector has one dimension.
        let (first, last) = match *tensor.shape.as_slice() {
            [len] => (1, len),
            [rows, columns] => (rows, columns),
            [matrices, rows, columns] => (matrices * rows, columns),
            _ => (0, 0),
        };
        if first != rows || columns.is_some_and(|columns| columns != last) {
            let expected = match columns {
                Some(columns) => format!("[{rows}, {columns}]"),
                None => format!("[{rows}, ..]"),
            };
            found.other_shape.push(format!(
                "{name}: expected {expected}, found {:?}",
                tensor.shape
            ));
        }
    }
    let names = stored.keys().filter(|name| !expected.contains_key(**name));
    found.unknown = names.map(|&name| name.to_owned()).collect();
    found
}
