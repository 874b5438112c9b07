//! Writing a checkpoint folder in MLX's form.

use super::CONFIG;
use super::config::{part_shape, parts, vector_name, vector_shape};
use crate::checkpoint::{Checkpoint, Progress};
use crate::folder::{FolderError, field, io, origin, write_json, write_whole};
use crate::matrix::Scales;
use crate::mlc::{write_layers, write_scaling};
use crate::tensors::{INDEX, SINGLE};
use kernels::models::{Family, ModelSpec, Shape};
use kernels::quant::QuantFormat;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// A file is filled up to this; a larger tensor has one of its own.
pub(crate) const SHARD_BYTES: u64 = 4 << 30;

/// Writes a checkpoint folder; `progress` counts bytes of weights. Nothing is left at
/// `dir` unless all of it is written.
///
/// # Errors
/// [`FolderError::NotEmpty`], a matrix that is not affine, or a file that cannot be
/// written.
pub fn write(
    checkpoint: &Checkpoint,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    write_in_shards(checkpoint, dir, SHARD_BYTES, progress)
}

/// The same in files of up to `shard_bytes`.
///
/// # Errors
/// As [`write`].
pub fn write_in_shards(
    checkpoint: &Checkpoint,
    dir: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    write_whole(dir, |partial| {
        write_files(checkpoint, partial, shard_bytes, progress)
    })
}

/// Its files, into a folder that is there.
pub(crate) fn write_files(
    checkpoint: &Checkpoint,
    dir: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    let tensors = tensors(checkpoint, dir)?;
    let mut shards: Vec<Vec<&Tensor<'_>>> = vec![vec![]];
    let mut filled = 0;
    for tensor in &tensors {
        let bytes = tensor.bytes.len() as u64;
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(vec![]);
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("at least one").push(tensor);
    }
    let total = tensors.iter().map(|t| t.bytes.len() as u64).sum();
    let mut done = 0;
    let mut weight_map = Map::new();
    for (i, shard) in shards.iter().enumerate() {
        let name = if shards.len() == 1 {
            SINGLE.to_owned()
        } else {
            format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len())
        };
        for tensor in shard {
            weight_map.insert(tensor.name.clone(), json!(name));
            done += tensor.bytes.len() as u64;
        }
        write_shard(&dir.join(name), shard)?;
        progress(done, total);
    }
    if shards.len() > 1 {
        let index = json!({
            "metadata": { "total_size": total },
            "weight_map": weight_map,
        });
        write_json(&dir.join(INDEX), &index)?;
    }
    write_json(&dir.join(CONFIG), &config_of(checkpoint.spec()))?;
    origin::write(dir, checkpoint.provenance())
}

struct Tensor<'a> {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

/// The tensors by their published names, joined rows apart again.
fn tensors<'a>(checkpoint: &'a Checkpoint, dir: &Path) -> Result<Vec<Tensor<'a>>, FolderError> {
    let spec = checkpoint.spec();
    let mut all = Vec::new();
    for key @ (layer, tensor) in spec.tensors() {
        let vector = match spec.shape(tensor) {
            Shape::Vector { len } => {
                let values = checkpoint.vector(layer, tensor);
                Some((len, "F16", bytemuck::cast_slice(values)))
            }
            Shape::Floats { len } => {
                let values = checkpoint.floats(layer, tensor);
                Some((len, "F32", bytemuck::cast_slice(values)))
            }
            Shape::Matrix { .. } => None,
        };
        if let Some((len, dtype, bytes)) = vector {
            let (base, _) = parts(spec, key).swap_remove(0);
            all.push(Tensor {
                name: vector_name(tensor, &base),
                dtype,
                shape: vector_shape(spec, tensor, len),
                bytes,
            });
            continue;
        }
        let matrix = checkpoint.matrix(layer, tensor);
        let (true, Scales::F16(scales)) = (matrix.format.is_affine(), matrix.scales) else {
            let name = spec.param_name(layer, tensor);
            return Err(field(dir, name, "an affine format", matrix.format, ""));
        };
        let words_per_row = matrix.format.words_per_row(matrix.k);
        let groups = matrix.format.scales_per_row(matrix.k);
        let mut first = 0;
        for (base, rows) in parts(spec, key) {
            let of = |per_row: usize| first * per_row..(first + rows) * per_row;
            let parts: [(&str, &str, usize, &[u8]); 3] = [
                (
                    "weight",
                    "U32",
                    words_per_row,
                    bytemuck::cast_slice(&matrix.words[of(words_per_row)]),
                ),
                (
                    "scales",
                    "F16",
                    groups,
                    bytemuck::cast_slice(&scales[of(groups)]),
                ),
                (
                    "biases",
                    "F16",
                    groups,
                    bytemuck::cast_slice(&matrix.biases[of(groups)]),
                ),
            ];
            for (part, dtype, width, bytes) in parts {
                all.push(Tensor {
                    name: format!("{base}.{part}"),
                    dtype,
                    shape: part_shape(spec, &base, rows, width),
                    bytes,
                });
            }
            first += rows;
        }
    }
    Ok(all)
}

fn write_shard(path: &Path, tensors: &[&Tensor<'_>]) -> Result<(), FolderError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "mlx" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes.len();
        header.insert(
            tensor.name.clone(),
            json!({
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": [start, end],
            }),
        );
        start = end;
    }
    let mut header = Value::Object(header).to_string();
    // Data begins at a multiple of eight.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        for tensor in tensors {
            file.write_all(tensor.bytes)?;
        }
        file.flush()
    };
    write().map_err(io(path))
}

fn config_of(spec: &ModelSpec) -> Value {
    let model_type = match spec.family {
        Family::Llama => "llama",
        Family::Phi3 => "phi3",
        Family::Qwen3 if spec.experts.is_some() => "qwen3_moe",
        Family::Qwen3 => "qwen3",
        Family::Qwen35 => "qwen3_5_text",
        Family::Qwen36Moe => "qwen3_5_moe_text",
    };
    let object = |format: QuantFormat| {
        json!({
            "group_size": format.group_size(),
            "bits": format.bits(),
        })
    };
    let mut quantization = object(spec.format);
    for other in &spec.other_formats {
        for (path, _) in parts(spec, (other.layer, other.tensor)) {
            quantization[path] = object(other.format);
        }
    }
    let mut config = json!({
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "max_position_embeddings": spec.max_context(),
        "eos_token_id": spec.stop_ids,
        "quantization": quantization,
    });
    if spec.rotary_dim != spec.head_dim {
        let factor = spec.rotary_dim as f64 / spec.head_dim as f64;
        config["partial_rotary_factor"] = json!(factor);
    }
    if let Some(scaling) = &spec.rope_scaling {
        write_scaling(scaling, &mut config);
    }
    write_layers(spec, &mut config);
    config
}
