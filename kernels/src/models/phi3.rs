//! Phi-3 family.

use super::{Family, ModelSpec, Tensor};
use crate::quant::QuantFormat;

/// Phi-3-mini-4k-instruct.
pub(super) fn phi3_mini() -> ModelSpec {
    ModelSpec {
        id: "phi3-mini".into(),
        title: "Phi-3-mini".into(),
        aliases: vec![
            "Phi-3-mini-4k-instruct".into(),
            "Phi-3-mini-4k-instruct-q4f16_1-MLC".into(),
        ],
        family: Family::Phi3,
        hidden_size: 3072,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: 32,
        head_dim: 96,
        intermediate_size: 8192,
        vocab_size: 32_064,
        rotary_dim: 96,
        rope_theta: 1e4,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: false,
        max_pages: 257,
        stop_ids: vec![2, 32_000, 32_007],
        format: QuantFormat::Q4f16_1,
        other_formats: vec![],
    }
}

pub(super) fn param_name(layer: Option<usize>, tensor: Tensor) -> String {
    let of_layer = |name: &str| {
        let layer = layer.expect("a layer's parameter needs its layer");
        format!("transformer.h.{layer}.{name}")
    };
    match tensor {
        Tensor::Embedding => "transformer.embd".into(),
        Tensor::InputNorm => of_layer("ln.weight"),
        Tensor::Qkv => of_layer("mixer.qkv_proj"),
        Tensor::QNorm => of_layer("mixer.q_norm.weight"),
        Tensor::KNorm => of_layer("mixer.k_norm.weight"),
        Tensor::O => of_layer("mixer.out_proj"),
        Tensor::PostNorm => of_layer("post_attention_layernorm.weight"),
        Tensor::GateUp => of_layer("mlp.gate_up_proj"),
        Tensor::Down => of_layer("mlp.down_proj"),
        Tensor::FinalNorm => "transformer.norm.weight".into(),
        Tensor::LmHead => "lm_head".into(),
    }
}
