//! `mlc-chat-config.json` to a model's constants.

use crate::folder::{
    FolderError,
    fields::{Fields, named},
};
use kernels::models::{Family, ModelSpec};
use kernels::quant::QuantFormat;
use serde_json::{Value, json};
use std::path::Path;

/// Keys of `model_config` that say nothing about the weights or the arithmetic.
const IGNORED_KEYS: [&str; 8] = [
    "prefill_chunk_size",
    "tensor_parallel_shards",
    "pipeline_parallel_stages",
    "max_batch_size",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];
const USED_KEYS: &[&str] = &[
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "position_embedding_base",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "context_window_size",
    "model_type",
    "hidden_act",
    "attention_bias",
    "weight_block_size",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "layer_types",
];

/// The model; `records` bounds the number of layers.
pub(super) fn spec(
    fields: &Fields<'_>,
    dir: &Path,
    records: usize,
) -> Result<ModelSpec, FolderError> {
    let model_type = fields.map.get("model_type");
    let family = match model_type.and_then(Value::as_str) {
        Some("llama") => Family::Llama,
        Some("phi3") => Family::Phi3,
        Some("qwen3") => Family::Qwen3,
        Some("qwen3_5") => Family::Qwen35,
        Some(_) | None => {
            let expected = "llama, phi3, qwen3 or qwen3_5";
            return Err(fields.error("model_type", expected, model_type));
        }
    };
    let quantization = fields.map.get("quantization");
    let mut formats = [QuantFormat::Q4f16_1, QuantFormat::Q4f32_1].into_iter();
    let is = |f: &QuantFormat| quantization.and_then(Value::as_str) == Some(f.name());
    let Some(format) = formats.find(is) else {
        return Err(fields.error("quantization", "q4f16_1 or q4f32_1", quantization));
    };
    let Some(Value::Object(model)) = fields.map.get("model_config") else {
        return Err(fields.error("model_config", "an object", fields.map.get("model_config")));
    };
    let model = Fields {
        file: fields.file.clone(),
        prefix: "model_config.",
        map: model,
    };
    let only = [
        ("hidden_act", json!("silu")),
        ("attention_bias", json!(false)),
        ("weight_block_size", Value::Null),
        ("model_type", model_type.cloned().unwrap_or_default()),
    ];
    model.check_keys(USED_KEYS, &IGNORED_KEYS, &only)?;
    let theta = match family {
        Family::Llama | Family::Phi3 => "position_embedding_base",
        Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => "rope_theta",
    };
    let spec = model.dimensions(family, records, theta, "context_window_size")?;
    Ok(named(
        dir,
        ModelSpec {
            stop_ids: fields.stop_ids()?,
            format,
            ..spec
        },
    ))
}
