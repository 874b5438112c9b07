//! `mlc-chat-config.json` to a model's constants. Unknown keys are refused.

use super::{MlcError, field};
use kernels::models::{Family, ModelSpec, registry};
use kernels::quant::QuantFormat;
use kernels::suggest;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Most KV pages of a model that the registry does not know.
const MAX_PAGES: usize = 512;

/// Keys of `model_config` that say nothing about the weights or the arithmetic.
const IGNORED_KEYS: [&str; 10] = [
    "prefill_chunk_size",
    "tensor_parallel_shards",
    "pipeline_parallel_stages",
    "max_batch_size",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];
const USED_KEYS: [&str; 18] = [
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
    "partial_rotary_factor",
    "context_window_size",
    "model_type",
    "hidden_act",
    "attention_bias",
    "weight_block_size",
];

pub(super) struct Config<'a> {
    pub(super) file: PathBuf,
    pub(super) map: &'a Map<String, Value>,
}

impl Config<'_> {
    fn error(&self, key: &str, expected: impl ToString, found: Option<&Value>) -> MlcError {
        let found = found.map_or("nothing".into(), |value| {
            let text = value.to_string();
            text.chars().take(80).collect::<String>()
        });
        field(&self.file, key, expected, found, "")
    }

    /// The model; `records` bounds the number of layers.
    pub(super) fn spec(&self, dir: &Path, records: usize) -> Result<ModelSpec, MlcError> {
        let model_type = self.map.get("model_type");
        let family = match model_type.and_then(Value::as_str) {
            Some("llama") => Family::Llama,
            Some("phi3") => Family::Phi3,
            Some("qwen3") => Family::Qwen3,
            Some(_) | None => {
                return Err(self.error("model_type", "llama, phi3 or qwen3", model_type));
            }
        };
        let quantization = self.map.get("quantization");
        let format = QuantFormat::Q4f16_1;
        if quantization.and_then(Value::as_str) != Some(format.name()) {
            return Err(self.error("quantization", format.name(), quantization));
        }
        let Some(Value::Object(model)) = self.map.get("model_config") else {
            return Err(self.error("model_config", "an object", self.map.get("model_config")));
        };
        let model = Config {
            file: self.file.clone(),
            map: model,
        };
        model.check_keys(model_type)?;
        let spec = model.dimensions(family, records)?;
        let name = dir
            .file_name()
            .map_or("checkpoint".into(), |n| n.to_string_lossy().into_owned());
        let unregistered = ModelSpec {
            id: name.clone(),
            title: name,
            stop_ids: self.stop_ids()?,
            ..spec
        };
        Ok(registry()
            .into_iter()
            .find(|known| same_architecture(known, &unregistered))
            .unwrap_or(unregistered))
    }

    /// Refuses keys that could change the arithmetic unseen.
    fn check_keys(&self, model_type: Option<&Value>) -> Result<(), MlcError> {
        for (key, value) in self.map {
            let known = || USED_KEYS.iter().chain(&IGNORED_KEYS);
            if !known().any(|k| k == key) {
                let known: Vec<&str> = known().copied().collect();
                return Err(self.error(
                    &format!("model_config.{key}"),
                    match suggest::nearest(key, &known) {
                        Some(near) => format!("no such key (did you mean {near}?)"),
                        None => "no such key, as it may change the arithmetic".into(),
                    },
                    Some(value),
                ));
            }
        }
        let fixed = [
            ("rope_scaling", Value::Null),
            ("hidden_act", json!("silu")),
            ("attention_bias", json!(false)),
            ("weight_block_size", Value::Null),
            ("model_type", model_type.cloned().unwrap_or_default()),
        ];
        for (key, only) in fixed {
            match self.map.get(key) {
                Some(value) if *value != only => {
                    return Err(self.error(&format!("model_config.{key}"), only, Some(value)));
                }
                Some(_) | None => (),
            }
        }
        Ok(())
    }

    fn dimensions(&self, family: Family, records: usize) -> Result<ModelSpec, MlcError> {
        let hidden_size = self.size("hidden_size")?;
        let num_hidden_layers = self.size("num_hidden_layers")?;
        let num_attention_heads = self.size("num_attention_heads")?;
        // A layer has at least ten records, so this bounds the list of parameters.
        if num_hidden_layers > records {
            return Err(self.error(
                "model_config.num_hidden_layers",
                format!("at most the {records} records of the index"),
                self.map.get("num_hidden_layers"),
            ));
        }
        let head_dim = match self.map.get("head_dim") {
            None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
            Some(_) => self.size("head_dim")?,
        };
        let rotary_factor = self.number("partial_rotary_factor", Some(1.0))?;
        let theta = match family {
            Family::Llama | Family::Phi3 => "position_embedding_base",
            Family::Qwen3 | Family::Qwen35 | Family::Qwen36Moe => "rope_theta",
        };
        let tie_word_embeddings = match self.map.get("tie_word_embeddings") {
            None => false,
            Some(Value::Bool(tied)) => *tied,
            other => {
                return Err(self.error("model_config.tie_word_embeddings", "true or false", other));
            }
        };
        let context = match self.map.get("context_window_size") {
            None => MAX_PAGES * kernels::kv::PAGE_SIZE,
            Some(_) => self.size("context_window_size")?,
        };
        Ok(ModelSpec {
            id: String::new(),
            title: String::new(),
            aliases: Vec::new(),
            family,
            hidden_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads: self.size("num_key_value_heads")?,
            head_dim,
            intermediate_size: self.size("intermediate_size")?,
            vocab_size: self.size("vocab_size")?,
            rotary_dim: (rotary_factor * head_dim as f64).round() as usize,
            rope_theta: self.number(theta, None)?,
            rms_norm_eps: self.number("rms_norm_eps", None)?,
            tie_word_embeddings,
            max_pages: kernels::kv::pages_for(context).clamp(1, MAX_PAGES),
            stop_ids: Vec::new(),
            format: QuantFormat::Q4f16_1,
        })
    }

    /// A positive integer that fits the kernels.
    fn size(&self, key: &str) -> Result<usize, MlcError> {
        const MOST: u64 = 1 << 24;
        let value = self.map.get(key);
        match value.and_then(Value::as_u64) {
            Some(size) if (1..=MOST).contains(&size) => Ok(size as usize),
            Some(_) | None => {
                let expected = format!("an integer from 1 to {MOST}");
                Err(self.error(&format!("model_config.{key}"), expected, value))
            }
        }
    }

    /// A positive number.
    fn number(&self, key: &str, default: Option<f64>) -> Result<f64, MlcError> {
        let value = self.map.get(key);
        match (value.and_then(Value::as_f64), default) {
            (Some(number), _) if number > 0.0 && number <= 1e12 => Ok(number),
            (None, Some(default)) if value.is_none() => Ok(default),
            (Some(_) | None, _) => {
                let expected = "a number above 0, up to 1e12";
                Err(self.error(&format!("model_config.{key}"), expected, value))
            }
        }
    }

    fn stop_ids(&self) -> Result<Vec<u32>, MlcError> {
        let value = self.map.get("eos_token_id");
        let ids = match value {
            None => return Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.as_slice(),
            Some(id) => std::slice::from_ref(id),
        };
        ids.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<_>>()
            .ok_or_else(|| self.error("eos_token_id", "token ids", value))
    }
}

/// Equal in everything that decides the weights and the arithmetic.
fn same_architecture(known: &ModelSpec, found: &ModelSpec) -> bool {
    let named = ModelSpec {
        id: known.id.clone(),
        title: known.title.clone(),
        aliases: known.aliases.clone(),
        max_pages: known.max_pages,
        stop_ids: known.stop_ids.clone(),
        ..found.clone()
    };
    *known == named
}
