//! `config.json` to a model's constants and the formats of its matrices.

use super::text_name;
use crate::checkpoint::Key;
use crate::folder::{
    FolderError,
    fields::{Fields, named},
};
use kernels::models::{Experts, Family, GatedDeltaNet, ModelSpec, Shape, Tensor, TensorFormat};
use kernels::quant::QuantFormat;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Keys that say nothing about the weights or the arithmetic.
const IGNORED_KEYS: &[&str] = &[
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "full_attn_mod",
    "initializer_range",
    "interpolate_factor",
    "is_llama_config",
    "layer_types",
    "max_window_layers",
    "pad_token_id",
    "pretraining_tp",
    "quantization_config",
    "resid_pdrop",
    "sliding_window",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
    // Of training, of drafts of tokens, and of pictures.
    "image_token_id",
    "language_model_only",
    "mamba_ssm_dtype",
    "mlp_only_layers",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "output_router_logits",
    "router_aux_loss_coef",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
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
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "model_type",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "use_sliding_window",
    "quantization",
    "lm_head_bias",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_interleaved",
    "attn_output_gate",
    "decoder_sparse_step",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "shared_expert_intermediate_size",
];

/// The keys of a model that also sees: those of its text, in front of those beside it;
/// and those of RoPE, which newer configurations keep in an object of their own.
pub(super) fn flattened(map: Map<String, Value>) -> Map<String, Value> {
    let mut flat = map;
    if let Some(Value::Object(text)) = flat.remove("text_config") {
        let model_type = flat.remove("model_type");
        flat.extend(text);
        flat.extend(model_type.map(|model_type| ("model_type".into(), model_type)));
    }
    if let Some(Value::Object(rope)) = flat.remove("rope_parameters") {
        // Text has one position, so the sections of a rotation by three are alike.
        let plain = |key: &str| matches!(key, "mrope_interleaved" | "mrope_section");
        let mut scaling = Map::new();
        for (key, value) in rope {
            match key.as_str() {
                "rope_theta" | "partial_rotary_factor" => drop(flat.insert(key, value)),
                key if plain(key) => (),
                _ => drop(scaling.insert(key, value)),
            }
        }
        if !scaling.is_empty() {
            flat.insert("rope_scaling".into(), Value::Object(scaling));
        }
    }
    flat
}

pub(super) struct Config<'a> {
    fields: &'a Fields<'a>,
    family: Family,
    /// None where the weights are not quantised.
    quantization: Option<&'a Map<String, Value>>,
}

impl<'a> Config<'a> {
    pub(super) fn new(fields: &'a Fields<'a>) -> Result<Self, FolderError> {
        let model_type = fields.map.get("model_type");
        let family = match model_type.and_then(Value::as_str) {
            Some("llama") => Family::Llama,
            Some("phi3") => Family::Phi3,
            Some("qwen3" | "qwen3_moe") => Family::Qwen3,
            Some("qwen3_5" | "qwen3_5_text") => Family::Qwen35,
            Some("qwen3_5_moe" | "qwen3_5_moe_text") => Family::Qwen36Moe,
            Some(_) | None => {
                let expected = "llama, phi3, qwen3, qwen3_moe, qwen3_5 or qwen3_5_moe";
                return Err(fields.error("model_type", expected, model_type));
            }
        };
        let only = [
            ("hidden_act", json!("silu")),
            ("attention_bias", json!(false)),
            ("mlp_bias", json!(false)),
            ("lm_head_bias", json!(false)),
            ("rope_interleaved", json!(false)),
            ("use_sliding_window", json!(false)),
            ("attn_output_gate", json!(true)),
            ("decoder_sparse_step", json!(1)),
            ("mlp_only_layers", json!([])),
        ];
        fields.check_keys(USED_KEYS, IGNORED_KEYS, &only)?;
        let quantization = match fields.map.get("quantization") {
            None => None,
            Some(Value::Object(quantization)) => Some(quantization),
            other => {
                let expected = "an object with bits and group_size";
                return Err(fields.error("quantization", expected, other));
            }
        };
        match quantization.and_then(|q| q.get("mode")) {
            None => (),
            Some(mode) if mode == "affine" => (),
            mode => return Err(fields.error("quantization.mode", "affine", mode)),
        }
        Ok(Self {
            fields,
            family,
            quantization,
        })
    }

    /// Whether the weights are in MLX's formats, not in floating point.
    pub(super) fn is_quantised(&self) -> bool {
        self.quantization.is_some()
    }

    /// The model; `tensors` bounds the number of layers.
    pub(super) fn spec(&self, dir: &Path, tensors: usize) -> Result<ModelSpec, FolderError> {
        let spec = self.fields.dimensions(
            self.family,
            tensors,
            "rope_theta",
            "max_position_embeddings",
        )?;
        let mut spec = ModelSpec {
            stop_ids: self.fields.stop_ids()?,
            ..spec
        };
        if let Some(quantization) = self.quantization {
            spec.format = self.format("quantization", quantization)?;
            spec.other_formats = self.other_formats(quantization, &spec)?;
        }
        Ok(named(dir, spec))
    }

    /// The format of an object with `bits` and `group_size`.
    fn format(&self, key: &str, object: &Map<String, Value>) -> Result<QuantFormat, FolderError> {
        let number = |key: &str| object.get(key).and_then(Value::as_u64);
        let (bits, group) = (number("bits"), number("group_size"));
        let mut formats = QuantFormat::ALL.iter().copied();
        let is = |f: &QuantFormat| {
            f.is_affine() && bits == Some(f.bits() as u64) && group == Some(f.group_size() as u64)
        };
        formats.find(is).ok_or_else(|| {
            self.fields.error(
                key,
                "bits 4 or 8 with group_size 32 or 64, or bits 3 with group_size 64",
                Some(&Value::Object(object.clone())),
            )
        })
    }

    /// Matrices whose format is not the model's, by the entries of their paths.
    fn other_formats(
        &self,
        quantization: &Map<String, Value>,
        spec: &ModelSpec,
    ) -> Result<Vec<TensorFormat>, FolderError> {
        let mut others = Vec::new();
        for key @ (layer, tensor) in spec.tensors() {
            if !matches!(spec.shape(tensor), Shape::Matrix { .. }) {
                continue;
            }
            let mut found: Option<(String, QuantFormat)> = None;
            for (path, _) in parts(spec, key) {
                let format = self.format_of(quantization, &path, spec.format)?;
                match &found {
                    Some((first, other)) if *other != format => {
                        return Err(self.fields.error(
                            &format!("quantization.{path}"),
                            format!("{other}, as {first} is, since their rows are joined"),
                            Some(&json!(format.name())),
                        ));
                    }
                    Some(_) => (),
                    None => found = Some((path, format)),
                }
            }
            if let Some((_, format)) = found.filter(|(_, format)| *format != spec.format) {
                others.push(TensorFormat {
                    layer,
                    tensor,
                    format,
                });
            }
        }
        Ok(others)
    }

    fn format_of(
        &self,
        quantization: &Map<String, Value>,
        path: &str,
        default: QuantFormat,
    ) -> Result<QuantFormat, FolderError> {
        let mut entries = quantization.iter();
        match entries.find(|(key, _)| *text_name(key) == *path) {
            None => Ok(default),
            Some((key, Value::Object(object))) => {
                self.format(&format!("quantization.{key}"), object)
            }
            Some((key, other)) => {
                let key = format!("quantization.{key}");
                let expected = "an object with bits and group_size";
                Err(self.fields.error(&key, expected, Some(other)))
            }
        }
    }
}

/// A parameter's tensors, joined by rows in this order, each without `.weight` and
/// with its number of rows (of a vector, of elements).
pub(super) fn parts(spec: &ModelSpec, (layer, tensor): Key) -> Vec<(String, usize)> {
    let name = |name: &str| match layer {
        Some(layer) => format!("model.layers.{layer}.{name}"),
        None => format!("model.{name}"),
    };
    let part = |part: &str, rows| (name(part), rows);
    let (d, f) = (spec.hidden_size, spec.intermediate_size);
    let fused = spec.family == Family::Phi3;
    let queries = spec.c_attn_dim() - 2 * spec.kv_dim();
    let net = spec.delta_net.unwrap_or(GatedDeltaNet::PUBLISHED);
    let heads = net.linear_num_value_heads;
    // The experts' stack, and behind it the shared one's matrix.
    let experts = |routed: &str, shared: &str, rows: usize| {
        let Experts {
            num_experts,
            shared_expert,
            ..
        } = spec.experts.expect("the model has experts");
        let mut all = vec![part(routed, num_experts * rows)];
        all.extend(shared_expert.then(|| part(shared, rows)));
        all
    };
    match tensor {
        Tensor::Embedding => vec![part("embed_tokens", spec.vocab_size)],
        Tensor::InputNorm => vec![part("input_layernorm", d)],
        Tensor::Qkv if fused => vec![part("self_attn.qkv_proj", spec.qkv_dim())],
        Tensor::Qkv => vec![
            part("self_attn.q_proj", queries),
            part("self_attn.k_proj", spec.kv_dim()),
            part("self_attn.v_proj", spec.kv_dim()),
        ],
        Tensor::QNorm => vec![part("self_attn.q_norm", spec.head_dim)],
        Tensor::KNorm => vec![part("self_attn.k_norm", spec.head_dim)],
        Tensor::O => vec![part("self_attn.o_proj", d)],
        Tensor::PostNorm => vec![part("post_attention_layernorm", d)],
        Tensor::GateUp if fused => vec![part("mlp.gate_up_proj", 2 * f)],
        Tensor::GateUp => vec![part("mlp.gate_proj", f), part("mlp.up_proj", f)],
        Tensor::Down => vec![part("mlp.down_proj", d)],
        Tensor::FinalNorm => vec![part("norm", d)],
        Tensor::LmHead => vec![("lm_head".into(), spec.vocab_size)],
        Tensor::GdnProj => vec![
            part("linear_attn.in_proj_qkv", net.conv_dim()),
            part("linear_attn.in_proj_z", net.value_dim()),
            part("linear_attn.in_proj_a", heads),
            part("linear_attn.in_proj_b", heads),
        ],
        Tensor::GdnConv => vec![part(
            "linear_attn.conv1d",
            net.conv_dim() * net.linear_conv_kernel_dim,
        )],
        Tensor::GdnALog => vec![part("linear_attn.A_log", heads)],
        Tensor::GdnDtBias => vec![part("linear_attn.dt_bias", heads)],
        Tensor::GdnNorm => vec![part("linear_attn.norm", net.linear_value_head_dim)],
        Tensor::GdnOut => vec![part("linear_attn.out_proj", d)],
        Tensor::Router => experts("mlp.gate", "mlp.shared_expert_gate", 1),
        Tensor::ExpertGate => experts("mlp.switch_mlp.gate_proj", "mlp.shared_expert.gate_proj", f),
        Tensor::ExpertUp => experts("mlp.switch_mlp.up_proj", "mlp.shared_expert.up_proj", f),
        Tensor::ExpertDown => experts("mlp.switch_mlp.down_proj", "mlp.shared_expert.down_proj", d),
    }
}

/// The name of a vector's tensor, given that of [`parts`].
pub(super) fn vector_name(tensor: Tensor, base: &str) -> String {
    if matches!(tensor, Tensor::GdnALog | Tensor::GdnDtBias) {
        base.to_owned()
    } else {
        format!("{base}.weight")
    }
}

/// The dimensions of a vector's tensor.
pub(super) fn vector_shape(spec: &ModelSpec, tensor: Tensor, len: usize) -> Vec<usize> {
    match (tensor, &spec.delta_net) {
        (Tensor::GdnConv, Some(net)) => vec![net.conv_dim(), net.linear_conv_kernel_dim, 1],
        _ => vec![len],
    }
}

/// The dimensions of a part of a matrix: a stack of experts has one more.
pub(super) fn part_shape(spec: &ModelSpec, base: &str, rows: usize, width: usize) -> Vec<usize> {
    match spec.experts {
        Some(experts) if base.contains(".switch_mlp.") => {
            vec![experts.num_experts, rows / experts.num_experts, width]
        }
        Some(_) | None => vec![rows, width],
    }
}
