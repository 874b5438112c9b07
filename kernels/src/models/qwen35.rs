//! Qwen3.5, a hybrid of gated DeltaNet and gated attention, and Qwen3.6, the same with
//! a mixture of experts.

use super::{Experts, Family, GatedDeltaNet, ModelSpec, Tensor, TensorFormat, qwen3};
use crate::quant::QuantFormat;

/// Qwen3.5-4B.
pub(super) fn qwen35_4b() -> ModelSpec {
    ModelSpec {
        id: "qwen35-4b".into(),
        title: "Qwen3.5-4B".into(),
        aliases: vec!["Qwen3.5-4B".into(), "Qwen3.5-4B-q4f16_1-MLC".into()],
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
        attn_output_gate: true,
        delta_net: Some(GatedDeltaNet::PUBLISHED),
        ..qwen3::qwen3_4b()
    }
}

/// Qwen3.6-35B-A3B, in MLX's affine format of 4 bits with routers of 8.
pub(super) fn qwen36_35b_a3b() -> ModelSpec {
    let num_hidden_layers = 40;
    ModelSpec {
        id: "qwen36-35b-a3b".into(),
        title: "Qwen3.6-35B-A3B".into(),
        aliases: vec!["Qwen3.6-35B-A3B".into()],
        family: Family::Qwen36Moe,
        hidden_size: 2048,
        num_hidden_layers,
        num_key_value_heads: 2,
        intermediate_size: 512,
        tie_word_embeddings: false,
        max_pages: 384,
        experts: Some(Experts {
            num_experts: 256,
            num_experts_per_tok: 8,
            norm_topk_prob: true,
            shared_expert: true,
        }),
        format: QuantFormat::Affine4G64,
        other_formats: routers(num_hidden_layers),
        ..qwen35_4b()
    }
}

/// The formats of the routers of as many layers.
pub(super) fn routers(layers: usize) -> Vec<TensorFormat> {
    let router = |layer| TensorFormat {
        layer: Some(layer),
        tensor: Tensor::Router,
        format: QuantFormat::Affine8G64,
    };
    (0..layers).map(router).collect()
}

/// Rows of a matrix as the checkpoint has them, joined in this order: the suffix of
/// each part's name and its number of rows.
pub(super) fn projection_parts(net: &GatedDeltaNet) -> [(&'static str, usize); 4] {
    let gates = net.linear_num_value_heads;
    [
        ("qkv", net.conv_dim()),
        ("z", net.value_dim()),
        ("a", gates),
        ("b", gates),
    ]
}
