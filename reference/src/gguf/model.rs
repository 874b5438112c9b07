//! The model of a GGUF file: its constants from the metadata, and which tensors make
//! each parameter.

use super::{BlockType, Gguf, GgufError, TensorInfo, dequantise};
use crate::checkpoint::{CheckpointError, Key, describe};
use crate::folder::fields::registered;
use kernels::models::{Family, ModelSpec, Shape, Tensor};
use kernels::quant::QuantFormat;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Most KV pages of a model that the registry does not know.
const MAX_PAGES: u64 = 512;
/// RoPE's base where the file states none, as llama.cpp has it.
const DEFAULT_THETA: f64 = 1e4;

/// A GGUF file that is no model, or whose weights the formats cannot hold.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
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
    /// No family comes from a GGUF of this architecture.
    #[error("{file}: general.architecture is {found}; supported: llama, phi3, qwen3")]
    Architecture {
        /// The file.
        file: String,
        /// The file's architecture.
        found: String,
    },
    /// Metadata that no model of the family has.
    #[error("{file}: {field}: expected {expected}, found {found}; choose another GGUF")]
    Metadata {
        /// The file.
        file: String,
        /// The key.
        field: String,
        /// What the family has.
        expected: String,
        /// What the file has.
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
        /// Column of the value, or of the first of its group.
        column: usize,
        /// The value.
        value: f32,
    },
}

/// How a projection's rows are ordered in the file.
#[derive(Clone, Copy, Debug)]
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

/// A tensor of the file that is a range of a parameter's rows.
#[derive(Clone, Debug)]
pub(super) struct Part<'a> {
    pub(super) name: String,
    pub(super) info: &'a TensorInfo,
    order: RowOrder,
}

impl Part<'_> {
    /// The stored row that becomes the part's `row`.
    pub(super) fn source(&self, row: usize) -> usize {
        self.order.source(row)
    }
}

/// A checked GGUF file and the model that it holds. Every parameter is there and has
/// its shape.
#[derive(Debug)]
pub struct Model<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) spec: ModelSpec,
}

impl<'a> Model<'a> {
    /// The model in a file: the registered one of the same constants, or one of its
    /// own under the file's name.
    ///
    /// # Errors
    /// [`LoadError`], naming the key or tensor.
    pub fn new(gguf: &'a Gguf) -> Result<Self, LoadError> {
        let model = Self {
            spec: spec(gguf)?,
            gguf,
        };
        model
            .spec
            .validate()
            .map_err(CheckpointError::from)
            .map_err(|cause| LoadError::Checkpoint {
                file: gguf.file().to_owned(),
                cause,
            })?;
        let mut known = BTreeSet::new();
        for key in model.spec.tensors() {
            known.extend(model.parts(key)?.into_iter().map(|part| part.name));
        }
        match gguf.tensors().keys().find(|name| !known.contains(*name)) {
            None => Ok(model),
            Some(tensor) => Err(LoadError::Unknown {
                file: gguf.file().to_owned(),
                tensor: tensor.clone(),
                model: model.spec.id.clone(),
            }),
        }
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        self.gguf
    }

    /// The model's constants, its matrices in q4f16_1.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Writes rows of a parameter, decoded to f32, into `out`, `[rows.len(), k]`.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    ///
    /// # Panics
    /// When the parameter has not these rows or `out` is of another length.
    pub fn rows(&self, key: Key, rows: Range<usize>, out: &mut [f32]) -> Result<(), LoadError> {
        let k = out.len() / rows.len().max(1);
        let mut outs = out.chunks_exact_mut(k.max(1));
        let mut first = 0;
        for part in self.parts(key)? {
            let end = first + part.info.rows;
            let start = std::mem::replace(&mut first, end);
            let wanted = rows.start.max(start)..rows.end.min(end);
            let sources = wanted.map(|row| part.source(row - start));
            let (Some(lowest), Some(highest)) = (sources.clone().min(), sources.clone().max())
            else {
                continue;
            };
            let blocks = self.gguf.rows(part.info, lowest, highest + 1 - lowest)?;
            let row_bytes = part.info.row_bytes();
            for source in sources {
                let blocks = &blocks[(source - lowest) * row_bytes..][..row_bytes];
                let out = outs.next().expect("a row for each");
                dequantise(part.info.block_type, blocks, out);
            }
        }
        Ok(())
    }

    /// A parameter's tensors, fused along rows in this order.
    pub(super) fn parts(&self, key: Key) -> Result<Vec<Part<'a>>, LoadError> {
        let (rows, k) = match self.spec.shape(key.1) {
            Shape::Matrix { rows, k } => (rows, k),
            Shape::Vector { len } | Shape::Floats { len } => (1, len),
        };
        let names = part_names(&self.spec, key);
        names
            .into_iter()
            .map(|(name, part_rows, order)| {
                let info = self.gguf.tensor(&name)?;
                let part_rows = part_rows.unwrap_or(rows);
                if (info.rows, info.k) != (part_rows, k) {
                    let shape = Shape::Matrix { rows: part_rows, k };
                    return Err(LoadError::Shape {
                        file: self.gguf.file().to_owned(),
                        tensor: name,
                        expected: describe(shape),
                        rows: info.rows,
                        k: info.k,
                    });
                }
                Ok(Part { name, info, order })
            })
            .collect()
    }
}

/// Names of a parameter's tensors, each with its rows where they are not all.
fn part_names(spec: &ModelSpec, (layer, tensor): Key) -> Vec<(String, Option<usize>, RowOrder)> {
    let block = |name: &str| match layer {
        Some(layer) => format!("blk.{layer}.{name}.weight"),
        None => format!("{name}.weight"),
    };
    let part = |name: &str, rows| (block(name), Some(rows), RowOrder::AsStored);
    let whole = |name: &str| vec![(block(name), None, RowOrder::AsStored)];
    let rotated = |name: &str, rows| {
        let head_dim = spec.head_dim;
        let order = match spec.family {
            Family::Llama => RowOrder::Interleaved { head_dim },
            Family::Phi3 | Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => RowOrder::AsStored,
        };
        (block(name), Some(rows), order)
    };
    let fused = spec.family == Family::Phi3;
    match tensor {
        Tensor::Embedding => whole("token_embd"),
        Tensor::InputNorm => whole("attn_norm"),
        Tensor::Qkv if fused => whole("attn_qkv"),
        Tensor::Qkv => vec![
            rotated("attn_q", spec.q_dim()),
            rotated("attn_k", spec.kv_dim()),
            part("attn_v", spec.kv_dim()),
        ],
        Tensor::QNorm => whole("attn_q_norm"),
        Tensor::KNorm => whole("attn_k_norm"),
        Tensor::O => whole("attn_output"),
        Tensor::PostNorm => whole("ffn_norm"),
        Tensor::GateUp if fused => whole("ffn_up"),
        Tensor::GateUp => vec![
            part("ffn_gate", spec.intermediate_size),
            part("ffn_up", spec.intermediate_size),
        ],
        Tensor::Down => whole("ffn_down"),
        Tensor::FinalNorm => whole("output_norm"),
        Tensor::LmHead => whole("output"),
        Tensor::GdnProj
        | Tensor::GdnConv
        | Tensor::GdnALog
        | Tensor::GdnDtBias
        | Tensor::GdnNorm
        | Tensor::GdnOut
        | Tensor::Router
        | Tensor::ExpertGate
        | Tensor::ExpertUp
        | Tensor::ExpertDown => panic!("no architecture that is read from GGUF has {tensor:?}"),
    }
}

/// Rows and columns of each tensor of a model.
pub(crate) fn expected(spec: &ModelSpec) -> BTreeMap<String, (u64, Option<u64>)> {
    let mut all = BTreeMap::new();
    for key in spec.tensors() {
        let (rows, k) = match spec.shape(key.1) {
            Shape::Matrix { rows, k } => (rows, k),
            Shape::Vector { len } | Shape::Floats { len } => (1, len),
        };
        for (name, part_rows, _) in part_names(spec, key) {
            let rows = part_rows.unwrap_or(rows) as u64;
            all.insert(name, (rows, Some(k as u64)));
        }
    }
    all
}

/// The model's constants from the metadata.
fn spec(gguf: &Gguf) -> Result<ModelSpec, LoadError> {
    let architecture = gguf.string("general.architecture")?;
    let family = match architecture {
        "llama" => Family::Llama,
        "phi3" => Family::Phi3,
        "qwen3" => Family::Qwen3,
        other => {
            return Err(LoadError::Architecture {
                file: gguf.file().to_owned(),
                found: other.chars().take(super::SHOWN_BYTES).collect(),
            });
        }
    };
    let key = |name: &str| format!("{architecture}.{name}");
    refuse_scaling(gguf, &key("rope.scaling."))?;
    let size = |name: &str| -> Result<Option<usize>, LoadError> {
        const MOST: u64 = 1 << 24;
        match gguf.optional_unsigned(&key(name))? {
            None => Ok(None),
            Some(size) if (1..=MOST).contains(&size) => Ok(Some(size as usize)),
            Some(size) => Err(metadata(gguf, &key(name), format!("1 to {MOST}"), size)),
        }
    };
    let required = |name: &str| match size(name)? {
        Some(size) => Ok(size),
        None => Err(LoadError::from(GgufError::Missing {
            file: gguf.file().to_owned(),
            what: format!("metadata {}", key(name)),
        })),
    };
    let num_hidden_layers = required("block_count")?;
    // A layer has at least seven tensors, so this bounds the list of parameters.
    if num_hidden_layers > gguf.tensors().len() {
        let expected = format!("at most the {} tensors of the file", gguf.tensors().len());
        return Err(metadata(
            gguf,
            &key("block_count"),
            expected,
            num_hidden_layers,
        ));
    }
    let hidden_size = required("embedding_length")?;
    let num_attention_heads = required("attention.head_count")?;
    let head_dim = size("attention.key_length")?;
    let head_dim = head_dim.unwrap_or(hidden_size / num_attention_heads);
    let vocab_size = gguf.tensor("token_embd.weight")?.rows;
    if let Some(stated) = size("vocab_size")?.filter(|&stated| stated != vocab_size) {
        let expected = format!("{vocab_size}, the rows of token_embd.weight");
        return Err(metadata(gguf, &key("vocab_size"), expected, stated));
    }
    let positions = gguf.optional_unsigned(&key("context_length"))?;
    let pages = positions.map_or(MAX_PAGES, |n| n.div_ceil(kernels::kv::PAGE_SIZE as u64));
    let theta = key("rope.freq_base");
    let name = Path::new(gguf.file()).file_stem();
    let name = name.map_or("gguf".into(), |n| n.to_string_lossy().into_owned());
    let spec = ModelSpec {
        id: name.clone(),
        title: name,
        aliases: Vec::new(),
        family,
        hidden_size,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads: size("attention.head_count_kv")?.unwrap_or(num_attention_heads),
        head_dim,
        intermediate_size: required("feed_forward_length")?,
        vocab_size,
        rotary_dim: size("rope.dimension_count")?.unwrap_or(head_dim),
        rope_theta: if gguf.metadata().contains_key(&theta) {
            positive(gguf, &theta)?
        } else {
            DEFAULT_THETA
        },
        rope_scaling: None,
        rms_norm_eps: positive(gguf, &key("attention.layer_norm_rms_epsilon"))?,
        tie_word_embeddings: !gguf.tensors().contains_key("output.weight"),
        max_pages: pages.clamp(1, MAX_PAGES) as usize,
        stop_ids: stop_ids(gguf)?,
        format: QuantFormat::Q4f16_1,
        other_formats: Vec::new(),
        attn_output_gate: false,
        delta_net: None,
        experts: None,
    };
    Ok(registered(&spec).unwrap_or(spec))
}

/// RoPE is plain where nothing says otherwise.
fn refuse_scaling(gguf: &Gguf, prefix: &str) -> Result<(), LoadError> {
    let scaling = gguf.metadata().iter().find(|(key, value)| {
        let none = key.ends_with(".type") && **value == super::Value::String("none".into());
        key.starts_with(prefix) && !none
    });
    match scaling {
        None => Ok(()),
        Some((key, value)) => Err(metadata(gguf, key, "no RoPE scaling", value.shown())),
    }
}

/// A positive number. Files state f32; the shortest decimal that gives it is what the
/// published configuration has.
fn positive(gguf: &Gguf, key: &str) -> Result<f64, LoadError> {
    let found = gguf.float(key)?;
    let decimal: f64 = (found as f32).to_string().parse().unwrap_or(found);
    if decimal > 0.0 && decimal <= 1e12 {
        return Ok(decimal);
    }
    Err(metadata(gguf, key, "a number above 0, up to 1e12", found))
}

fn stop_ids(gguf: &Gguf) -> Result<Vec<u32>, LoadError> {
    let mut ids = Vec::new();
    for name in ["eos", "eot"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = gguf.optional_unsigned(&key)? else {
            continue;
        };
        match u32::try_from(id) {
            Ok(id) if ids.contains(&id) => (),
            Ok(id) => ids.push(id),
            Err(_) => return Err(metadata(gguf, &key, "a token id", id)),
        }
    }
    Ok(ids)
}

fn metadata(gguf: &Gguf, field: &str, expected: impl ToString, found: impl ToString) -> LoadError {
    LoadError::Metadata {
        file: gguf.file().to_owned(),
        field: field.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Whether a type's weights are exact in a format of the kernels.
pub(super) fn exact_format(block_type: BlockType) -> Option<QuantFormat> {
    match block_type {
        BlockType::Q4_0 => Some(QuantFormat::Q4_0),
        BlockType::Q4_1 => Some(QuantFormat::Affine4G32),
        BlockType::Q8_0 => Some(QuantFormat::Q8_0),
        BlockType::F32
        | BlockType::F16
        | BlockType::Bf16
        | BlockType::Q2K
        | BlockType::Q3K
        | BlockType::Q4K
        | BlockType::Q5K
        | BlockType::Q6K => None,
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
