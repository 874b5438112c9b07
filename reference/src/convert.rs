//! Decoded weights to a checkpoint in a format that other programs read too.

use crate::checkpoint::{
    Checkpoint, CheckpointError, Container, Key, Progress, Provenance, Stored,
};
use crate::folder::{self, FolderError, io, write_whole};
use crate::gguf::{self, Gguf, LoadError};
use crate::matrix::{Packed, ScaleValues};
use crate::mlx::FloatFolder;
use crate::quantise::{quantise_row, quantise_row_affine, quantise_row_wide};
use crate::{mlc, mlx};
use half::f16;
use kernels::models::{ModelSpec, Shape};
use kernels::quant::{Elem, QuantFormat};
use rayon::prelude::*;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows that one job reads and quantises.
const JOB_ROWS: usize = 64;

/// What cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A GGUF file that cannot be read.
    #[error(transparent)]
    Gguf(#[from] LoadError),
    /// A folder that cannot be read or written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The parameters do not make the model.
    #[error("{input}: {cause}")]
    Checkpoint {
        /// The file or folder.
        input: String,
        /// Why.
        cause: CheckpointError,
    },
    /// Experts, to a container that has none.
    #[error(
        "{input}: a mixture of experts cannot be made {target}: MLC's folders have no experts; \
         expected --format {}",
        Target::MlxAffine4.name()
    )]
    Experts {
        /// The file or folder.
        input: String,
        /// The target's name.
        target: &'static str,
    },
    /// A weight that the format cannot hold.
    #[error(
        "{input}: parameter {name}, row {row}, column {column}: {value} cannot be held in {format}; \
         the file is damaged or needs rescaling"
    )]
    Weight {
        /// The file or folder.
        input: String,
        /// The parameter.
        name: String,
        /// Row of the weight.
        row: usize,
        /// Column of the weight, or of the first of its group.
        column: usize,
        /// The weight.
        value: f32,
        /// The format.
        format: QuantFormat,
    },
}

/// A model whose weights can be had as f32.
pub trait FloatModel: Sync {
    /// The file or folder.
    fn input(&self) -> String;

    /// The model's constants; its formats are not used.
    fn spec(&self) -> &ModelSpec;

    /// Writes rows of a parameter into `out`, `[rows.len(), k]`; a vector is one row.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn rows(&self, key: Key, rows: Range<usize>, out: &mut [f32]) -> Result<(), ConvertError>;
}

impl FloatModel for gguf::Model<'_> {
    fn input(&self) -> String {
        self.gguf().file().to_owned()
    }

    fn spec(&self) -> &ModelSpec {
        self.spec()
    }

    fn rows(&self, key: Key, rows: Range<usize>, out: &mut [f32]) -> Result<(), ConvertError> {
        Ok(self.rows(key, rows, out)?)
    }
}

/// What a conversion makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An MLC folder in q4f16_1.
    Q4f16_1,
    /// An MLC folder in q4f32_1.
    Q4f32_1,
    /// An MLX folder, 4 bits in groups of 64.
    MlxAffine4,
}

impl Target {
    /// Every target.
    pub const ALL: [Self; 3] = [Self::Q4f16_1, Self::Q4f32_1, Self::MlxAffine4];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q4f16_1 => "q4f16_1",
            Self::Q4f32_1 => "q4f32_1",
            Self::MlxAffine4 => "mlx-affine4",
        }
    }

    /// Format of the matrices.
    pub const fn format(self) -> QuantFormat {
        match self {
            Self::Q4f16_1 => QuantFormat::Q4f16_1,
            Self::Q4f32_1 => QuantFormat::Q4f32_1,
            Self::MlxAffine4 => QuantFormat::Affine4G64,
        }
    }

    const fn container(self) -> Container {
        match self {
            Self::Q4f16_1 | Self::Q4f32_1 => Container::Mlc,
            Self::MlxAffine4 => Container::Mlx,
        }
    }
}

/// Reads a GGUF file, or a Hugging Face folder in floating point, and quantises its
/// decoded weights; `progress` counts weights.
///
/// # Errors
/// [`ConvertError`].
pub fn read(
    input: &Path,
    target: Target,
    progress: Progress<'_>,
) -> Result<Checkpoint, ConvertError> {
    if input.is_dir() {
        return quantise(&FloatFolder::open(input)?, target, progress);
    }
    let gguf = Gguf::open(input).map_err(LoadError::from)?;
    quantise(&gguf::Model::new(&gguf)?, target, progress)
}

/// Files of a folder that say how its model reads and writes text.
pub const TEXT_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
];

/// A file that stands beside the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub content: Content,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The same as in this one.
    CopyOf(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Those of [`TEXT_FILES`] that a folder has.
pub fn text_files(dir: &Path) -> Vec<Beside> {
    let there = TEXT_FILES.iter().filter_map(|&name| {
        let file = dir.join(name);
        file.is_file().then(|| Beside {
            name: name.to_owned(),
            content: Content::CopyOf(file),
        })
    });
    there.collect()
}

/// Writes a checkpoint in the container of its formats: MLX where its matrices are
/// affine, else MLC; `progress` counts bytes.
///
/// # Errors
/// [`FolderError`].
pub fn write(
    checkpoint: &Checkpoint,
    output: &Path,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    write_with(checkpoint, output, &[], progress)
}

/// The same with other files beside the weights: nothing is at `output` unless all of
/// it is.
///
/// # Errors
/// [`FolderError`].
pub fn write_with(
    checkpoint: &Checkpoint,
    output: &Path,
    beside: &[Beside],
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    write_whole(output, |partial| {
        if checkpoint.spec().format.is_affine() {
            mlx::write_files(checkpoint, partial, mlx::SHARD_BYTES, progress)?;
        } else {
            mlc::write_files(checkpoint, partial, progress)?;
        }
        for Beside { name, content } in beside {
            let to = partial.join(name);
            match content {
                Content::CopyOf(from) => drop(fs::copy(from, &to).map_err(io(from))?),
                Content::Bytes(bytes) => fs::write(&to, bytes).map_err(io(&to))?,
            }
        }
        Ok(())
    })
}

/// Refuses an output folder that could not be written, before there is anything to write.
///
/// # Errors
/// [`FolderError`].
pub fn require_writable(output: &Path) -> Result<(), FolderError> {
    folder::require_writable(output)
}

/// Quantises all matrices, rows in parallel, as [`ModelSpec::quantised_to`] says;
/// `progress` counts weights.
///
/// # Errors
/// [`ConvertError`].
pub fn quantise(
    model: &dyn FloatModel,
    target: Target,
    progress: Progress<'_>,
) -> Result<Checkpoint, ConvertError> {
    let format = target.format();
    let spec = model.spec().quantised_to(format);
    if spec.experts.is_some() && target.container() == Container::Mlc {
        return Err(ConvertError::Experts {
            input: model.input(),
            target: target.name(),
        });
    }
    let checkpoint_error = |cause| ConvertError::Checkpoint {
        input: model.input(),
        cause,
    };
    spec.validate()
        .map_err(CheckpointError::from)
        .map_err(checkpoint_error)?;
    let (done, total) = (AtomicU64::new(0), spec.parameters());
    let advance = |weights: usize| {
        let weights = weights as u64;
        progress(done.fetch_add(weights, Ordering::Relaxed) + weights, total);
    };
    let tensors = spec.tensors().into_iter().map(|key| {
        let stored = match spec.shape(key.1) {
            Shape::Matrix { rows, k } => matrix(model, &spec, key, (rows, k), &advance)?,
            Shape::Vector { len } => {
                let mut values = vec![0.0; len];
                model.rows(key, 0..1, &mut values)?;
                advance(len);
                let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
                if let Some(i) = halves.iter().position(|h| !h.is_finite()) {
                    return Err(weight_error(model, &spec, key, (0, i), values[i]));
                }
                Stored::Vector(halves)
            }
            Shape::Floats { len } => {
                let mut values = vec![0.0; len];
                model.rows(key, 0..1, &mut values)?;
                advance(len);
                Stored::Floats(values)
            }
        };
        Ok((key, stored))
    });
    let tensors = tensors.collect::<Result<Vec<_>, ConvertError>>()?;
    let provenance = Provenance {
        weights: target.container(),
        title: format!("{} (requantised)", spec.title),
        sha256: String::new(),
        notes: vec![format!(
            "{format} made from the decoded weights of {}",
            Path::new(&model.input())
                .file_name()
                .map_or("a file".into(), |n| n.to_string_lossy())
        )],
    };
    Checkpoint::new(spec, provenance, tensors).map_err(checkpoint_error)
}

fn matrix(
    model: &dyn FloatModel,
    spec: &ModelSpec,
    key: Key,
    (rows, k): (usize, usize),
    advance: &(dyn Fn(usize) + Sync),
) -> Result<Stored, ConvertError> {
    let format = spec.format_of(key.0, key.1);
    let (words_per_row, groups) = (format.words_per_row(k), format.scales_per_row(k));
    let jobs = (0..rows.div_ceil(JOB_ROWS)).into_par_iter().map(|job| {
        let first = job * JOB_ROWS;
        let count = JOB_ROWS.min(rows - first);
        let mut weights = vec![0.0; count * k];
        model.rows(key, first..first + count, &mut weights)?;
        let mut part = Rows {
            words: vec![0; count * words_per_row],
            halves: vec![f16::ZERO; count * groups],
            wide: vec![],
            biases: vec![],
        };
        if format.scale_type() == Elem::F32 {
            part.wide = vec![0.0; part.halves.len()];
        }
        if format.is_affine() {
            part.biases = part.halves.clone();
        }
        for (i, weights) in weights.chunks_exact(k).enumerate() {
            let words = &mut part.words[i * words_per_row..][..words_per_row];
            let groups = i * groups..(i + 1) * groups;
            let quantised = if format.is_affine() {
                let biases = &mut part.biases[groups.clone()];
                quantise_row_affine(format, weights, words, &mut part.halves[groups], biases)
            } else if format.scale_type() == Elem::F32 {
                quantise_row_wide(weights, words, &mut part.wide[groups])
            } else {
                quantise_row(weights, words, &mut part.halves[groups])
            };
            quantised.map_err(|column| {
                weight_error(model, spec, key, (first + i, column), weights[column])
            })?;
        }
        advance(count * k);
        Ok(part)
    });
    let jobs = jobs.collect::<Result<Vec<Rows>, ConvertError>>()?;
    let (mut words, mut halves, mut wide, mut biases) = (vec![], vec![], vec![], vec![]);
    for part in jobs {
        words.extend(part.words);
        halves.extend(part.halves);
        wide.extend(part.wide);
        biases.extend(part.biases);
    }
    Ok(Stored::Matrix(Packed {
        format,
        rows,
        k,
        words,
        scales: match format.scale_type() {
            Elem::F16 => ScaleValues::F16(halves),
            Elem::F32 => ScaleValues::F32(wide),
        },
        biases,
    }))
}

/// Quantised rows of one job.
struct Rows {
    words: Vec<u32>,
    halves: Vec<f16>,
    wide: Vec<f32>,
    biases: Vec<f16>,
}

fn weight_error(
    model: &dyn FloatModel,
    spec: &ModelSpec,
    (layer, tensor): Key,
    (row, column): (usize, usize),
    value: f32,
) -> ConvertError {
    ConvertError::Weight {
        input: model.input(),
        name: spec.param_name(layer, tensor),
        row,
        column,
        value,
        format: spec.format_of(layer, tensor),
    }
}
