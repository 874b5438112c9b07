//! GGUF to q4f16_1: a Llama-family file becomes a checkpoint of a registered
//! model. Container are decoded and quantised again, so the result is an
//! approximation of the file and its title says "(requantised)".

use crate::checkpoint::{
    Checkpoint, CheckpointError, Container, Key, Progress, Provenance, Stored, describe, hex,
};
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::matrix::{Packed, ScaleValues};
use crate::quantise::{FORMAT, quantise_row};
use half::f16;
use kernels::models::{Family, ModelSpec, Shape, Tensor, registry};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A GGUF file that is not the model it should be.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The file itself.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The parameters do not make the model.
    #[error("{file}: {cause}")]
    Checkpoint {
        /// The file.
        file: String,
        /// Why.
        cause: CheckpointError,
    },
    /// The file is another model.
    #[error("{file}: {field} is {found}, but {model} has {expected}; choose a GGUF of {model}")]
    Model {
        /// The file.
        file: String,
        /// The metadata key.
        field: String,
        /// The file's value.
        found: String,
        /// The model's id.
        model: String,
        /// The model's value.
        expected: String,
    },
    /// No registered model can come from a GGUF of this architecture.
    #[error("{file}: general.architecture is {found}; supported: llama")]
    Architecture {
        /// The file.
        file: String,
        /// The file's architecture.
        found: String,
    },
    /// A tensor has another shape than the model's.
    #[error("{file}: tensor {tensor}: expected {expected}, found [{rows}, {k}]")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The model's shape.
        expected: String,
        /// Rows found.
        rows: usize,
        /// Width found.
        k: usize,
    },
    /// A tensor that the model does not have.
    #[error("{file}: tensor {tensor} is unknown to {model}; this is another architecture")]
    Unknown {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The model's id.
        model: String,
    },
    /// A value that f16 cannot hold.
    #[error("{file}: tensor {tensor}, row {row}, column {column}: {value} is not a finite f16")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Row of the value.
        row: usize,
        /// Column of the value.
        column: usize,
        /// The value.
        value: f32,
    },
}

/// Reads a GGUF and converts it to the registered model that it holds;
/// `progress` counts parameters.
///
/// # Errors
/// [`ConvertError`]; where no registered model fits, the first difference to
/// the nearest one, both sides named.
pub fn load(path: &Path, progress: Progress<'_>) -> Result<Checkpoint, ConvertError> {
    let gguf = Gguf::open(path)?;
    let candidates: Vec<ModelSpec> = registry()
        .into_iter()
        .filter(|spec| spec.family == Family::Llama)
        .collect();
    let mut first_error = None;
    for spec in candidates {
        match check_model(&gguf, &spec) {
            Ok(()) => return from_gguf(&gguf, spec, progress),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    Err(first_error.expect("the registry has a Llama-family model"))
}

/// Converts a GGUF in memory to `spec`, parameters and rows in parallel.
///
/// # Errors
/// [`ConvertError`].
pub fn from_gguf(
    gguf: &Gguf,
    spec: ModelSpec,
    progress: Progress<'_>,
) -> Result<Checkpoint, ConvertError> {
    check_model(gguf, &spec)?;
    check_names(gguf, &spec)?;
    let keys = spec.tensors();
    let done = AtomicU64::new(0);
    let tensors: Vec<(Key, Stored)> = keys
        .par_iter()
        .map(|&key| {
            let stored = parameter(gguf, &spec, key)?;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, keys.len() as u64);
            Ok((key, stored))
        })
        .collect::<Result<_, ConvertError>>()?;
    let sha256 = hex(&Sha256::digest(gguf.bytes()));
    let provenance = Provenance {
        weights: Container::Gguf,
        title: format!("{} (requantised)", spec.title),
        notes: vec![format!(
            "q4f16_1 made from the decoded weights of the GGUF with sha256 {sha256}"
        )],
        sha256,
    };
    Checkpoint::new(spec, provenance, tensors).map_err(|cause| ConvertError::Checkpoint {
        file: gguf.file().to_owned(),
        cause,
    })
}

/// Compares the architecture's metadata with the model, field by field.
fn check_model(gguf: &Gguf, spec: &ModelSpec) -> Result<(), ConvertError> {
    let architecture = gguf.string("general.architecture")?;
    if architecture != "llama" || spec.family != Family::Llama {
        return Err(ConvertError::Architecture {
            file: gguf.file().to_owned(),
            found: architecture.to_owned(),
        });
    }
    let differs = |field: &str, found: String, expected: String| ConvertError::Model {
        file: gguf.file().to_owned(),
        field: field.to_owned(),
        found,
        model: spec.id.clone(),
        expected,
    };
    let integers = [
        ("llama.block_count", spec.num_hidden_layers),
        ("llama.embedding_length", spec.hidden_size),
        ("llama.feed_forward_length", spec.intermediate_size),
        ("llama.attention.head_count", spec.num_attention_heads),
        ("llama.attention.head_count_kv", spec.num_key_value_heads),
        ("llama.rope.dimension_count", spec.rotary_dim),
    ];
    for (field, expected) in integers {
        let found = gguf.unsigned(field)?;
        if found != expected as u64 {
            return Err(differs(field, found.to_string(), expected.to_string()));
        }
    }
    let floats = [
        ("llama.rope.freq_base", spec.rope_theta),
        ("llama.attention.layer_norm_rms_epsilon", spec.rms_norm_eps),
    ];
    for (field, expected) in floats {
        let found = gguf.float(field)?;
        // The file's are f32.
        if found as f32 != expected as f32 {
            return Err(differs(field, found.to_string(), expected.to_string()));
        }
    }
    if let Some(field) = gguf
        .metadata()
        .keys()
        .find(|key| key.starts_with("llama.rope.scal"))
    {
        let found = format!("{:?}", gguf.metadata()[field]);
        return Err(differs(field, found, "no RoPE scaling".into()));
    }
    if gguf.metadata().contains_key("llama.vocab_size") {
        let found = gguf.unsigned("llama.vocab_size")?;
        if found != spec.vocab_size as u64 {
            return Err(differs(
                "llama.vocab_size",
                found.to_string(),
                spec.vocab_size.to_string(),
            ));
        }
    }
    Ok(())
}

/// How a projection's rows are ordered in the file.
#[derive(Clone, Copy)]
enum RowOrder {
    AsStored,
    /// Rows of a head are stored in pairs `[head_dim / 2, 2]` for interleaved
    /// RoPE; half-split RoPE needs `[2, head_dim / 2]`.
    Interleaved {
        head_dim: usize,
    },
}

impl RowOrder {
    /// The stored row that becomes `row`.
    fn source(self, row: usize) -> usize {
        match self {
            Self::AsStored => row,
            Self::Interleaved { head_dim } => {
                let (head, i) = (row / head_dim, row % head_dim);
                let (side, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + side
            }
        }
    }
}

/// A parameter's tensors in the file, fused along rows in this order, each with
/// its number of rows.
fn parts(spec: &ModelSpec, (layer, tensor): Key) -> Vec<(String, usize, RowOrder)> {
    let block = |name: &str| match layer {
        Some(layer) => format!("blk.{layer}.{name}.weight"),
        None => format!("{name}.weight"),
    };
    let part = |name: &str, rows| (block(name), rows, RowOrder::AsStored);
    let rotated = |name: &str, rows| {
        let head_dim = spec.head_dim;
        (block(name), rows, RowOrder::Interleaved { head_dim })
    };
    let d = spec.hidden_size;
    match tensor {
        Tensor::Embedding => vec![part("token_embd", spec.vocab_size)],
        Tensor::InputNorm => vec![part("attn_norm", 1)],
        Tensor::Qkv => vec![
            rotated("attn_q", spec.q_dim()),
            rotated("attn_k", spec.kv_dim()),
            part("attn_v", spec.kv_dim()),
        ],
        Tensor::QNorm => vec![part("attn_q_norm", 1)],
        Tensor::KNorm => vec![part("attn_k_norm", 1)],
        Tensor::O => vec![part("attn_output", d)],
        Tensor::PostNorm => vec![part("ffn_norm", 1)],
        Tensor::GateUp => vec![
            part("ffn_gate", spec.intermediate_size),
            part("ffn_up", spec.intermediate_size),
        ],
        Tensor::Down => vec![part("ffn_down", d)],
        Tensor::FinalNorm => vec![part("output_norm", 1)],
        Tensor::LmHead => vec![part("output", spec.vocab_size)],
    }
}

fn check_names(gguf: &Gguf, spec: &ModelSpec) -> Result<(), ConvertError> {
    let known: std::collections::BTreeSet<String> = spec
        .tensors()
        .into_iter()
        .flat_map(|key| parts(spec, key))
        .map(|(name, _, _)| name)
        .collect();
    match gguf.tensors().keys().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(tensor) => Err(ConvertError::Unknown {
            file: gguf.file().to_owned(),
            tensor: tensor.clone(),
            model: spec.id.clone(),
        }),
    }
}

fn parameter(gguf: &Gguf, spec: &ModelSpec, key: Key) -> Result<Stored, ConvertError> {
    let parts = parts(spec, key);
    match spec.shape(key.1) {
        Shape::Matrix { rows, k } => {
            let words_per_row = FORMAT.words_per_row(k);
            let scales_per_row = FORMAT.scales_per_row(k);
            let mut words = vec![0; rows * words_per_row];
            let mut scales = vec![f16::ZERO; rows * scales_per_row];
            let mut start = 0;
            for (name, rows, order) in parts {
                let tensor = sized(gguf, &name, rows, k)?;
                words[start * words_per_row..][..rows * words_per_row]
                    .par_chunks_mut(words_per_row)
                    .zip(
                        scales[start * scales_per_row..][..rows * scales_per_row]
                            .par_chunks_mut(scales_per_row),
                    )
                    .enumerate()
                    .try_for_each_init(
                        || vec![0.0; k],
                        |weights, (row, (words, scales))| {
                            let source = order.source(row);
                            gguf.dequantise_row(tensor, source, weights);
                            quantise_row(weights, words, scales)
                                .map_err(|i| not_finite(gguf, &name, source, i, weights[i]))
                        },
                    )?;
                start += rows;
            }
            Ok(Stored::Matrix(Packed {
                format: FORMAT,
                rows,
                k,
                words,
                scales: ScaleValues::F16(scales),
                biases: vec![],
            }))
        }
        Shape::Vector { len } => {
            let (name, rows, _) = &parts[0];
            let tensor = sized(gguf, name, *rows, len)?;
            let mut values = vec![0.0; len];
            gguf.dequantise_row(tensor, 0, &mut values);
            let rounded = values.iter().enumerate().map(|(i, &value)| {
                let rounded = f16::from_f32(value);
                if rounded.is_finite() {
                    Ok(rounded)
                } else {
                    Err(not_finite(gguf, name, 0, i, value))
                }
            });
            Ok(Stored::Vector(rounded.collect::<Result<_, _>>()?))
        }
    }
}

fn sized<'a>(
    gguf: &'a Gguf,
    name: &str,
    rows: usize,
    k: usize,
) -> Result<&'a TensorInfo, ConvertError> {
    let tensor = gguf.tensor(name)?;
    if (tensor.rows, tensor.k) != (rows, k) {
        return Err(ConvertError::Shape {
            file: gguf.file().to_owned(),
            tensor: name.to_owned(),
            expected: describe(Shape::Matrix { rows, k }),
            rows: tensor.rows,
            k: tensor.k,
        });
    }
    Ok(tensor)
}

fn not_finite(gguf: &Gguf, tensor: &str, row: usize, column: usize, value: f32) -> ConvertError {
    ConvertError::NotFinite {
        file: gguf.file().to_owned(),
        tensor: tensor.to_owned(),
        row,
        column,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_become_halves() {
        let order = RowOrder::Interleaved { head_dim: 6 };
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(
            rows,
            [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11],
            "[3, 2] to [2, 3] per head"
        );
    }
}
