//! Qwen3, dense and with a mixture of experts, and the names of the parameters of all
//! Qwen models.

use super::{Experts, Family, ModelSpec, Tensor, llama};
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
        attn_output_gate: false,
        delta_net: None,
        experts: None,
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

/// Qwen3-30B-A3B, in MLX's affine format of 4 bits; constants of the configuration of
/// Qwen/Qwen3-30B-A3B.
pub(super) fn qwen3_30b_a3b() -> ModelSpec {
    ModelSpec {
        id: "qwen3-30b-a3b".into(),
        title: "Qwen3-30B-A3B".into(),
        aliases: vec!["Qwen3-30B-A3B-4bit".into()],
        hidden_size: 2048,
        num_hidden_layers: 48,
        num_key_value_heads: 4,
        intermediate_size: 768,
        tie_word_embeddings: false,
        experts: Some(Experts {
            num_experts: 128,
            num_experts_per_tok: 8,
            norm_topk_prob: true,
            shared_expert: false,
        }),
        format: QuantFormat::Affine4G64,
        ..qwen3_4b()
    }
}

pub(super) fn param_name(layer: Option<usize>, tensor: Tensor) -> String {
    let of_layer = |name: &str| {
        let layer = layer.expect("a layer's parameter needs its layer");
        format!("model.layers.{layer}.{name}")
    };
    match tensor {
        Tensor::GdnProj => of_layer("linear_attn.in_proj"),
        Tensor::GdnConv => of_layer("linear_attn.conv1d_weight"),
        Tensor::GdnALog => of_layer("linear_attn.A_log"),
        Tensor::GdnDtBias => of_layer("linear_attn.dt_bias"),
        Tensor::GdnNorm => of_layer("linear_attn.norm.weight"),
        Tensor::GdnOut => of_layer("linear_attn.out_proj"),
        Tensor::Router => of_layer("mlp.gate"),
        Tensor::ExpertGate => of_layer("mlp.switch_mlp.gate_proj"),
        Tensor::ExpertUp => of_layer("mlp.switch_mlp.up_proj"),
        Tensor::ExpertDown => of_layer("mlp.switch_mlp.down_proj"),
        Tensor::Qkv => of_layer("self_attn.c_attn"),
        Tensor::Embedding
        | Tensor::InputNorm
        | Tensor::QNorm
        | Tensor::KNorm
        | Tensor::O
        | Tensor::PostNorm
        | Tensor::GateUp
        | Tensor::Down
        | Tensor::FinalNorm
        | Tensor::LmHead => llama::param_name(layer, tensor),
    }
}
