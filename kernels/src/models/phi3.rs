//! Phi-3 family: Phi-3, Phi-3.5 and Phi-4-mini.

use super::{Family, ModelSpec, RopeScaling, Tensor, qwen3};
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
        rope_scaling: None,
        rms_norm_eps: 1e-5,
        tie_word_embeddings: false,
        max_pages: 257,
        stop_ids: vec![2, 32_000, 32_007],
        format: QuantFormat::Q4f16_1,
        other_formats: vec![],
        attn_output_gate: false,
        delta_net: None,
        experts: None,
    }
}

/// Phi-3.5-mini-instruct; constants of the configuration of
/// microsoft/Phi-3.5-mini-instruct. Its cache holds the positions that it was first
/// trained on, so the short factors hold.
pub(super) fn phi35_mini() -> ModelSpec {
    ModelSpec {
        id: "phi3.5-mini".into(),
        title: "Phi-3.5-mini".into(),
        aliases: vec![
            "Phi-3.5-mini-instruct".into(),
            "Phi-3.5-mini-instruct-q4f16_1-MLC".into(),
        ],
        rope_scaling: Some(longrope(&PHI35_SHORT, &PHI35_LONG)),
        max_pages: 256,
        ..phi3_mini()
    }
}

/// Phi-4-mini-instruct; constants of the configuration of
/// microsoft/Phi-4-mini-instruct. Its cache as that of Phi-3.5.
pub(super) fn phi4_mini() -> ModelSpec {
    ModelSpec {
        id: "phi4-mini".into(),
        title: "Phi-4-mini".into(),
        aliases: vec![
            "Phi-4-mini-instruct".into(),
            "Phi-4-mini-instruct-q4f16_1-MLC".into(),
        ],
        num_attention_heads: 24,
        num_key_value_heads: 8,
        head_dim: 128,
        vocab_size: 200_064,
        rope_scaling: Some(longrope(&[1.0; 48], &PHI4_LONG)),
        tie_word_embeddings: true,
        max_pages: 256,
        stop_ids: vec![200_020, 199_999],
        ..phi3_mini()
    }
}

fn longrope(short: &[f64], long: &[f64]) -> RopeScaling {
    RopeScaling::Longrope {
        short_factor: short.to_vec(),
        long_factor: long.to_vec(),
        original_max_position_embeddings: 4096,
        max_position_embeddings: 131_072,
    }
}

/// `short_factor` of Phi-3.5-mini.
#[rustfmt::skip]
const PHI35_SHORT: [f64; 48] = [
    1.0, 1.0199999809265137, 1.0299999713897705, 1.0299999713897705, 1.0499999523162842,
    1.0499999523162842, 1.0499999523162842, 1.0499999523162842, 1.0499999523162842, 1.0699999332427979,
    1.0999999046325684, 1.1099998950958252, 1.1599998474121094, 1.1599998474121094, 1.1699998378753662,
    1.2899998426437378, 1.339999794960022, 1.679999828338623, 1.7899998426437378, 1.8199998140335083,
    1.8499997854232788, 1.8799997568130493, 1.9099997282028198, 1.9399996995925903, 1.9899996519088745,
    2.0199997425079346, 2.0199997425079346, 2.0199997425079346, 2.0199997425079346, 2.0199997425079346,
    2.0199997425079346, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914,
    2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914, 2.0299997329711914,
    2.0799996852874756, 2.0899996757507324, 2.189999580383301, 2.2199995517730713, 2.5899994373321533,
    2.729999542236328, 2.749999523162842, 2.8399994373321533,
];

/// `long_factor` of Phi-3.5-mini.
#[rustfmt::skip]
const PHI35_LONG: [f64; 48] = [
    1.0800000429153442, 1.1100000143051147, 1.1399999856948853, 1.340000033378601, 1.5899999141693115,
    1.600000023841858, 1.6200000047683716, 2.620000123977661, 3.2300000190734863, 3.2300000190734863,
    4.789999961853027, 7.400000095367432, 7.700000286102295, 9.09000015258789, 12.199999809265137,
    17.670000076293945, 24.46000099182129, 28.57000160217285, 30.420001983642578, 30.840002059936523,
    32.590003967285156, 32.93000411987305, 42.320003509521484, 44.96000289916992, 50.340003967285156,
    50.45000457763672, 57.55000305175781, 57.93000411987305, 58.21000289916992, 60.1400032043457,
    62.61000442504883, 62.62000274658203, 62.71000289916992, 63.1400032043457, 63.1400032043457,
    63.77000427246094, 63.93000411987305, 63.96000289916992, 63.970001220703125, 64.02999877929688,
    64.06999969482422, 64.08000183105469, 64.12000274658203, 64.41000366210938, 64.4800033569336,
    64.51000213623047, 64.52999877929688, 64.83999633789062,
];

/// `long_factor` of Phi-4-mini; its short factors are 1.
#[rustfmt::skip]
const PHI4_LONG: [f64; 48] = [
    1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225,
    1.74916897, 1.956131817, 2.187582649, 2.446418898, 2.735880826,
    3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845,
    5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318,
    9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252,
    16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418,
    28.64115884, 32.03, 32.1, 32.13, 32.23,
    32.6, 32.61, 32.64, 32.66, 32.7,
    32.71, 32.93, 32.97, 33.28, 33.49,
    33.5, 44.16, 47.77,
];

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
        // No model of the family has them.
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
