//! Qwen3 family: the dense Qwen3, the gated-DeltaNet hybrid Qwen3.5 and the
//! mixture of experts Qwen3.6.

use super::{Family, ModelSpec, Tensor, llama};
use crate::quant::QuantFormat;

/// Qwen3-4B.
pub(super) fn qwen3_4b() -> ModelSpec {
    ModelSpec {
        id: "qwen3-4b".into(),
        title: "Qwen3-4B".into(),
        aliases: vec!["Qwen3-4B-q4f16_1-MLC".into()],
        family: Family::Qwen3,
        hidden_size: 2560,
        num_hidden_layers: 36,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        head_dim: 128,
        intermediate_size: 9728,
        vocab_size: 151_936,
        rotary_dim: 128,
        rope_theta: 1e6,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        max_pages: 448,
        stop_ids: vec![151_645, 151_643],
        format: QuantFormat::Q4f16_1,
        other_formats: vec![],
    }
}

/// Qwen3-0.6B; constants of the configuration of Qwen/Qwen3-0.6B.
pub(super) fn qwen3_0_6b() -> ModelSpec {
    ModelSpec {
        id: "qwen3-0.6b".into(),
        title: "Qwen3-0.6B".into(),
        aliases: vec!["Qwen3-0.6B-q4f16_1-MLC".into()],
        hidden_size: 1024,
        num_hidden_layers: 28,
        num_attention_heads: 16,
        intermediate_size: 3072,
        ..qwen3_4b()
    }
}

/// Qwen3-1.7B; constants of the configuration of Qwen/Qwen3-1.7B.
pub(super) fn qwen3_1_7b() -> ModelSpec {
    ModelSpec {
        id: "qwen3-1.7b".into(),
        title: "Qwen3-1.7B".into(),
        aliases: vec!["Qwen3-1.7B-q4f16_1-MLC".into()],
        hidden_size: 2048,
        intermediate_size: 6144,
        ..qwen3_0_6b()
    }
}

/// Qwen3-8B; constants of the configuration of Qwen/Qwen3-8B.
pub(super) fn qwen3_8b() -> ModelSpec {
    ModelSpec {
        id: "qwen3-8b".into(),
        title: "Qwen3-8B".into(),
        aliases: vec!["Qwen3-8B-q4f16_1-MLC".into()],
        hidden_size: 4096,
        intermediate_size: 12_288,
        tie_word_embeddings: false,
        ..qwen3_4b()
    }
}

/// Qwen3.5-4B.
pub(super) fn qwen35_4b() -> ModelSpec {
    ModelSpec {
        id: "qwen35-4b".into(),
        title: "Qwen3.5-4B".into(),
        aliases: vec!["Qwen3.5-4B".into()],
        family: Family::Qwen35,
        num_hidden_layers: 32,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        head_dim: 256,
        intermediate_size: 9216,
        vocab_size: 248_320,
        rotary_dim: 64,
        rope_theta: 1e7,
        max_pages: 2048,
        stop_ids: vec![248_046, 248_044],
        ..qwen3_4b()
    }
}

/// Qwen3.6-35B-A3B.
pub(super) fn qwen36_35b_a3b() -> ModelSpec {
    ModelSpec {
        id: "qwen36-35b-a3b".into(),
        title: "Qwen3.6-35B-A3B".into(),
        aliases: vec!["Qwen3.6-35B-A3B".into()],
        family: Family::Qwen36Moe,
        hidden_size: 2048,
        num_hidden_layers: 40,
        num_key_value_heads: 2,
        intermediate_size: 512,
        tie_word_embeddings: false,
        max_pages: 384,
        ..qwen35_4b()
    }
}

pub(super) fn param_name(layer: Option<usize>, tensor: Tensor) -> String {
    let name = llama::param_name(layer, tensor);
    match tensor {
        Tensor::Qkv => name.replace("qkv_proj", "c_attn"),
        Tensor::Embedding
        | Tensor::InputNorm
        | Tensor::QNorm
        | Tensor::KNorm
        | Tensor::O
        | Tensor::PostNorm
        | Tensor::GateUp
        | Tensor::Down
        | Tensor::FinalNorm
        | Tensor::LmHead => name,
    }
}
