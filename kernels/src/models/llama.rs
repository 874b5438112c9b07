//! Llama family: SmolLM2.

use super::{Family, ModelSpec, Tensor};
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
        rms_norm_eps: 1e-5,
        tie_word_embeddings: true,
        max_pages: 512,
        stop_ids: vec![2, 0],
        format: QuantFormat::Q4f16_1,
        other_formats: vec![],
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
    }
}
