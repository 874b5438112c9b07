//! Writing a checkpoint folder.

use super::{CONFIG, INDEXES};
use crate::checkpoint::{Checkpoint, Progress, hex};
use crate::folder::{FolderError, field, io, origin, write_json, write_whole};
use crate::matrix::Scales;
use kernels::QuantFormat;
use kernels::models::{Family, ModelSpec, RopeScaling, Shape, Tensor};
use md5::{Digest, Md5};
use rayon::prelude::*;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A shard is filled up to this; a larger tensor has one of its own.
const SHARD_BYTES: usize = 32 << 20;

/// Writes a checkpoint folder; `progress` counts bytes of weights. Nothing is
/// left at `dir` unless all of it is written.
///
/// # Errors
/// [`FolderError::NotEmpty`], or a file that cannot be written.
pub fn write(
    checkpoint: &Checkpoint,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    write_whole(dir, |partial| write_files(checkpoint, partial, progress))
}

/// Its files, into a folder that is there.
pub(crate) fn write_files(
    checkpoint: &Checkpoint,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    let spec = checkpoint.spec();
    let records = records(checkpoint, dir)?;
    let shards = in_shards(&records);
    let (done, total) = (AtomicU64::new(0), checkpoint.payload_bytes());
    let entries: Vec<Value> = shards
        .par_iter()
        .enumerate()
        .map(|(number, shard)| {
            let entry = write_shard(dir, number, shard)?;
            let bytes = shard.iter().map(|r| r.bytes.len() as u64).sum();
            progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
            Ok(entry)
        })
        .collect::<Result<_, FolderError>>()?;
    let bytes = total as f64;
    let index = json!({
        "metadata": {
            "ParamSize": records.len(),
            "ParamBytes": bytes,
            "BitsPerParam": bytes * 8.0 / spec.parameters() as f64,
        },
        "records": entries,
    });
    write_json(&dir.join(INDEXES[1]), &index)?;
    write_json(&dir.join(CONFIG), &config_of(spec))?;
    origin::write(dir, checkpoint.provenance())
}

/// A tensor as the index names it.
struct Record<'a> {
    name: String,
    shape: Vec<usize>,
    dtype: &'static str,
    bytes: &'a [u8],
}

fn records<'a>(checkpoint: &'a Checkpoint, dir: &Path) -> Result<Vec<Record<'a>>, FolderError> {
    let spec = checkpoint.spec();
    let mut all = Vec::new();
    for (layer, tensor) in spec.tensors() {
        let vector: Option<(&str, &[u8])> = match spec.shape(tensor) {
            Shape::Vector { .. } => {
                let values = checkpoint.vector(layer, tensor);
                Some(("float16", bytemuck::cast_slice(values)))
            }
            Shape::Floats { .. } => {
                let values = checkpoint.floats(layer, tensor);
                Some(("float32", bytemuck::cast_slice(values)))
            }
            Shape::Matrix { .. } => None,
        };
        if let Some((dtype, bytes)) = vector {
            let (name, len) = spec.param_parts(layer, tensor).swap_remove(0);
            all.push(Record {
                name,
                shape: vector_shape(spec, tensor, len),
                dtype,
                bytes,
            });
            continue;
        }
        let whole = checkpoint.matrix(layer, tensor);
        if !matches!(whole.format, QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1) {
            let name = spec.param_name(layer, tensor);
            return Err(field(dir, name, "q4f16_1 or q4f32_1", whole.format, ""));
        }
        let mut first = 0;
        for (name, rows) in spec.param_parts(layer, tensor) {
            let matrix = whole.slice(first, rows);
            first += rows;
            all.push(Record {
                name: format!("{name}.q_weight"),
                shape: vec![rows, matrix.words.len() / rows],
                dtype: "uint32",
                bytes: bytemuck::cast_slice(matrix.words),
            });
            all.push(Record {
                name: format!("{name}.q_scale"),
                shape: vec![rows, matrix.scales.len() / rows],
                dtype: match matrix.scales {
                    Scales::F16(_) => "float16",
                    Scales::F32(_) => "float32",
                },
                bytes: matrix.scales.bytes(),
            });
        }
    }
    Ok(all)
}

/// Records by their shards, in order: a large one has a shard of its own, written
/// before those that are still to be filled.
fn in_shards<'r, 'a>(records: &'r [Record<'a>]) -> Vec<Vec<&'r Record<'a>>> {
    let (mut shards, mut pending, mut filled) = (vec![], vec![], 0);
    for record in records {
        let bytes = record.bytes.len();
        if bytes >= SHARD_BYTES {
            shards.push(vec![record]);
            continue;
        }
        if filled + bytes > SHARD_BYTES && !pending.is_empty() {
            shards.push(std::mem::take(&mut pending));
            filled = 0;
        }
        filled += bytes;
        pending.push(record);
    }
    if !pending.is_empty() {
        shards.push(pending);
    }
    shards
}

/// Writes a shard; its entry of the index.
fn write_shard(dir: &Path, number: usize, records: &[&Record<'_>]) -> Result<Value, FolderError> {
    let name = format!("params_shard_{number}.bin");
    let path = dir.join(&name);
    let mut md5 = Md5::new();
    let mut entries = Vec::new();
    let mut file = File::create(&path).map_err(io(&path))?;
    let mut offset = 0;
    for record in records {
        file.write_all(record.bytes).map_err(io(&path))?;
        md5.update(record.bytes);
        entries.push(json!({
            "name": record.name,
            "shape": record.shape,
            "dtype": record.dtype,
            "format": "raw",
            "nbytes": record.bytes.len(),
            "byteOffset": offset,
        }));
        offset += record.bytes.len();
    }
    Ok(json!({
        "dataPath": name,
        "format": "raw-shard",
        "nbytes": offset,
        "records": entries,
        "md5sum": hex(&md5.finalize()),
    }))
}

fn config_of(spec: &ModelSpec) -> Value {
    let (model_type, theta) = match spec.family {
        Family::Llama => ("llama", "position_embedding_base"),
        Family::Phi3 => ("phi3", "position_embedding_base"),
        Family::Qwen3 => ("qwen3", "rope_theta"),
        Family::Qwen35 => ("qwen3_5", "rope_theta"),
        Family::Qwen36Moe => ("qwen3_5_moe", "rope_theta"),
    };
    let mut model = json!({
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_hidden_layers": spec.num_hidden_layers,
        "num_key_value_heads": spec.num_key_value_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "vocab_size": spec.vocab_size,
        "head_dim": spec.head_dim,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "context_window_size": spec.max_context(),
    });
    model[theta] = json!(spec.rope_theta);
    if let Some(scaling) = &spec.rope_scaling {
        write_scaling(scaling, &mut model);
    }
    if spec.rotary_dim != spec.head_dim {
        let factor = spec.rotary_dim as f64 / spec.head_dim as f64;
        model["partial_rotary_factor"] = json!(factor);
    }
    write_layers(spec, &mut model);
    json!({
        "version": "0.1.0",
        "model_type": model_type,
        "quantization": spec.format.name(),
        "model_config": model,
        "vocab_size": spec.vocab_size,
        "context_window_size": spec.max_context(),
        "eos_token_id": spec.stop_ids,
    })
}

/// The dimensions of a vector's record.
pub(super) fn vector_shape(spec: &ModelSpec, tensor: Tensor, len: usize) -> Vec<usize> {
    match (tensor, &spec.delta_net) {
        (Tensor::GdnConv, Some(net)) => vec![net.conv_dim(), 1, net.linear_conv_kernel_dim],
        _ => vec![len],
    }
}

/// Adds the keys of gated DeltaNet and of experts, as the configurations have them.
pub(crate) fn write_layers(spec: &ModelSpec, config: &mut Value) {
    let mut add = |object: Value| {
        if let (Some(config), Value::Object(object)) = (config.as_object_mut(), object) {
            config.extend(object);
        }
    };
    if let Some(net) = &spec.delta_net {
        add(json!(net));
    }
    if let Some(experts) = &spec.experts {
        add(json!(experts));
        add(json!({ "moe_intermediate_size": spec.intermediate_size }));
        if experts.shared_expert {
            add(json!({ "shared_expert_intermediate_size": spec.intermediate_size }));
        }
        if let Some(config) = config.as_object_mut() {
            config.remove("shared_expert");
        }
    }
}

/// Adds the keys of a scaled RoPE, as the published configurations have them.
pub(crate) fn write_scaling(scaling: &RopeScaling, config: &mut Value) {
    let mut object = json!(scaling);
    if let RopeScaling::Longrope {
        original_max_position_embeddings,
        max_position_embeddings,
        ..
    } = scaling
    {
        config["original_max_position_embeddings"] = json!(original_max_position_embeddings);
        config["max_position_embeddings"] = json!(max_position_embeddings);
        if let Some(map) = object.as_object_mut() {
            map.remove("original_max_position_embeddings");
            map.remove("max_position_embeddings");
        }
    }
    config["rope_scaling"] = object;
}
