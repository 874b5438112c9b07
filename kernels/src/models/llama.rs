//! Llama family: SmolLM2 and Llama 3.2.

use super::{Family, ModelSpec, RopeScaling, Tensor, qwen3};
use crate::quant::QuantFormat;

/// SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0).
pub(super) fn smollm2_135m() -> ModelSpec {
    ModelSpec {
        id: "smollm2-135m".into(),
        title: "SmolLM2".into(),
        aliases: vec!["SmolLM2-135M-Instruct".into()],
        family: Family::Llama,
        hidden_size: 576,
        num_hidden_layers: 30,
        num_attention_heads: 9,
        num_key_value_heads: 3,
        head_dim: 64,
        intermediate_size: 1536,
        vocab_size: 49_152,
        rotary_dim: 64,
        rope_theta: 1e5,
        rope_scaling: None,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        max_pages: 512,
        stop_ids: vec![2, 0],
        format: QuantFormat::Q4f16_1,
        other_formats: vec![],
        attn_output_gate: false,
        delta_net: None,
        experts: None,
    }
}

/// SmolLM2-360M-Instruct; constants of the configuration of
/// HuggingFaceTB/SmolLM2-360M-Instruct.
pub(super) fn smollm2_360m() -> ModelSpec {
    ModelSpec {
        id: "smollm2-360m".into(),
        title: "SmolLM2-360M".into(),
        aliases: vec!["SmolLM2-360M-Instruct".into()],
        hidden_size: 960,
        num_hidden_layers: 32,
        num_attention_heads: 15,
        num_key_value_heads: 5,
        intermediate_size: 2560,
        ..smollm2_135m()
    }
}

/// SmolLM2-1.7B-Instruct; constants of the configuration of
/// HuggingFaceTB/SmolLM2-1.7B-Instruct.
pub(super) fn smollm2_1_7b() -> ModelSpec {
    ModelSpec {
        id: "smollm2-1.7b".into(),
        title: "SmolLM2-1.7B".into(),
        aliases: vec!["SmolLM2-1.7B-Instruct".into()],
        hidden_size: 2048,
        num_hidden_layers: 24,
        num_attention_heads: 32,
        num_key_value_heads: 32,
        intermediate_size: 8192,
        rope_theta: 1.3e5,
        ..smollm2_135m()
    }
}

/// Llama-3.2-1B-Instruct; constants of the configuration of
/// meta-llama/Llama-3.2-1B-Instruct.
pub(super) fn llama32_1b() -> ModelSpec {
    ModelSpec {
        id: "llama-3.2-1b".into(),
        title: "Llama-3.2-1B".into(),
        aliases: vec![
            "Llama-3.2-1B-Instruct".into(),
            "Llama-3.2-1B-Instruct-q4f16_1-MLC".into(),
        ],
        hidden_size: 2048,
        num_hidden_layers: 16,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        intermediate_size: 8192,
        vocab_size: 128_256,
        rope_theta: 5e5,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        }),
        stop_ids: vec![128_001, 128_008, 128_009],
        ..smollm2_135m()
    }
}

pub(super) fn param_name(layer: Option<usize>, tensor: Tensor) -> String {
    let of_layer = |name: &str| {
        let layer = layer.expect("a layer's parameter needs its layer");
        format!("model.layers.{layer}.{name}")
    };
    match tensor {
        Tensor::Embedding => "model.embed_tokens".into(),
        Tensor::InputNorm => of_layer("input_layernorm.weight"),
        Tensor::Qkv => of_layer("self_attn.qkv_proj"),
        Tensor::QNorm => of_layer("self_attn.q_norm.weight"),
        Tensor::KNorm => of_layer("self_attn.k_norm.weight"),
        Tensor::O => of_layer("self_attn.o_proj"),
        Tensor::PostNorm => of_layer("post_attention_layernorm.weight"),
        Tensor::GateUp => of_layer("mlp.gate_up_proj"),
        Tensor::Down => of_layer("mlp.down_proj"),
        Tensor::FinalNorm => "model.norm.weight".into(),
        Tensor::LmHead => "lm_head".into(),
        Tensor::GdnProj
        | Tensor::GdnConv
        | Tensor::GdnALog
        | Tensor::GdnDtBias
        | Tensor::GdnNorm
        | Tensor::GdnOut
        | Tensor::Router
        | Tensor::ExpertGate
        | Tensor::ExpertUp
        | Tensor::ExpertDown => qwen3::param_name(layer, tensor),
    }
}
