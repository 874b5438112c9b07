//! Writing a checkpoint folder.

use super::{CONFIG, INDEXES, ORIGIN, Origin};
use crate::checkpoint::{Checkpoint, Progress, hex};
use crate::folder::{FolderError, field, io};
use crate::matrix::Scales;
use kernels::QuantFormat;
use kernels::models::{Family, ModelSpec, Shape};
use md5::{Digest, Md5};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

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
    let empty = match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
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
    let partial = dir.with_file_name(partial);
    fs::create_dir_all(&partial).map_err(io(&partial))?;
    let written = write_files(checkpoint, &partial, progress).and_then(|()| {
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

fn write_files(
    checkpoint: &Checkpoint,
    dir: &Path,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    let spec = checkpoint.spec();
    let mut shards = Shards {
        dir,
        total: checkpoint.payload_bytes(),
        done: 0,
        progress,
        pending: Vec::new(),
        pending_records: Vec::new(),
        entries: Vec::new(),
    };
    let mut count = 0;
    for (layer, tensor) in spec.tensors() {
        let name = spec.param_name(layer, tensor);
        match spec.shape(tensor) {
            Shape::Matrix { rows, .. } => {
                let matrix = checkpoint.matrix(layer, tensor);
                let (QuantFormat::Q4f16_1 | QuantFormat::Q4f32_1, words) =
                    (matrix.format, matrix.words)
                else {
                    let expected = "q4f16_1 or q4f32_1";
                    return Err(field(dir, name, expected, matrix.format, ""));
                };
                let shape = [rows, words.len() / rows];
                let name_of = |suffix: &str| format!("{name}{suffix}");
                let bytes = bytemuck::cast_slice(words);
                shards.add(&name_of(".q_weight"), &shape, "uint32", bytes)?;
                let shape = [rows, matrix.scales.len() / rows];
                let dtype = match matrix.scales {
                    Scales::F16(_) => "float16",
                    Scales::F32(_) => "float32",
                };
                let bytes = matrix.scales.bytes();
                shards.add(&name_of(".q_scale"), &shape, dtype, bytes)?;
                count += 2;
            }
            Shape::Vector { len } => {
                let bytes = bytemuck::cast_slice(checkpoint.vector(layer, tensor));
                shards.add(&name, &[len], "float16", bytes)?;
                count += 1;
            }
        }
    }
    shards.flush()?;
    let bytes = shards.total as f64;
    let index = json!({
        "metadata": {
            "ParamSize": count,
            "ParamBytes": bytes,
            "BitsPerParam": bytes * 8.0 / spec.parameters() as f64,
        },
        "records": shards.entries,
    });
    write_json(&dir.join(INDEXES[1]), &index)?;
    write_json(&dir.join(CONFIG), &config_of(spec))?;
    let origin = Origin {
        title: checkpoint.provenance().title.clone(),
        notes: checkpoint.provenance().notes.clone(),
    };
    write_json(&dir.join(ORIGIN), &json!(origin))
}

fn write_json(file: &Path, value: &Value) -> Result<(), FolderError> {
    let text = serde_json::to_string_pretty(value).map_err(|cause| FolderError::Json {
        file: file.to_owned(),
        cause,
    })?;
    fs::write(file, text + "\n").map_err(io(file))
}

fn config_of(spec: &ModelSpec) -> Value {
    let (model_type, theta) = match spec.family {
        Family::Llama => ("llama", "position_embedding_base"),
        Family::Phi3 => ("phi3", "position_embedding_base"),
        Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => ("qwen3", "rope_theta"),
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
    if spec.rotary_dim != spec.head_dim {
        let factor = spec.rotary_dim as f64 / spec.head_dim as f64;
        model["partial_rotary_factor"] = json!(factor);
    }
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

/// Fills shards and their part of the index.
struct Shards<'a> {
    dir: &'a Path,
    total: u64,
    done: u64,
    progress: Progress<'a>,
    pending: Vec<u8>,
    pending_records: Vec<Value>,
    entries: Vec<Value>,
}

impl Shards<'_> {
    fn add(
        &mut self,
        name: &str,
        shape: &[usize],
        dtype: &str,
        bytes: &[u8],
    ) -> Result<(), FolderError> {
        let record = |offset: usize| {
            json!({
                "name": name,
                "shape": shape,
                "dtype": dtype,
                "format": "raw",
                "nbytes": bytes.len(),
                "byteOffset": offset,
            })
        };
        if bytes.len() >= SHARD_BYTES {
            return self.write_shard(bytes, vec![record(0)]);
        }
        if self.pending.len() + bytes.len() > SHARD_BYTES {
            self.flush()?;
        }
        self.pending_records.push(record(self.pending.len()));
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), FolderError> {
        let bytes = std::mem::take(&mut self.pending);
        let records = std::mem::take(&mut self.pending_records);
        if records.is_empty() {
            return Ok(());
        }
        self.write_shard(&bytes, records)
    }

    fn write_shard(&mut self, bytes: &[u8], records: Vec<Value>) -> Result<(), FolderError> {
        let name = format!("params_shard_{}.bin", self.entries.len());
        let path = self.dir.join(&name);
        fs::write(&path, bytes).map_err(io(&path))?;
        self.entries.push(json!({
            "dataPath": name,
            "format": "raw-shard",
            "nbytes": bytes.len(),
            "records": records,
            "md5sum": hex(&Md5::digest(bytes)),
        }));
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(())
    }
}
