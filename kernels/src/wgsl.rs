//! Hand-written WGSL bodies. They declare no binding and no model constant:
//! the generator puts a prelude made from the tables in front.

use crate::role::Role;

/// A source file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path in the repository.
    pub path: &'static str,
    /// Its text when this was built.
    pub text: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source {
            path: concat!("kernels/wgsl/", $name),
            text: include_str!(concat!("../wgsl/", $name)),
        }
    };
}

/// Body of a role that is written by hand; `None` where a template makes it.
pub const fn body(role: Role) -> Option<Source> {
    match role {
        Role::RmsNorm => Some(source!("rms_norm.wgsl")),
        Role::KvAppend => Some(source!("kv_append.wgsl")),
        Role::KvQuantizeInt8 => Some(source!("kv_quantize_int8.wgsl")),
        Role::SiluMul => Some(source!("silu_mul.wgsl")),
        Role::Rope => Some(source!("rope.wgsl")),
        Role::QkNorm => Some(source!("qk_norm.wgsl")),
        Role::QkNormRopeAppend => Some(source!("qk_norm_rope_append.wgsl")),
        Role::AttentionCombine => Some(source!("attention_combine.wgsl")),
        Role::GatedQkvSplit => Some(source!("gated_qkv_split.wgsl")),
        Role::AttnGate => Some(source!("attn_gate.wgsl")),
        Role::GdnConv => Some(source!("gdn_conv.wgsl")),
        Role::GdnConvSeq => Some(source!("gdn_conv_seq.wgsl")),
        Role::GdnConvCommit => Some(source!("gdn_conv_commit.wgsl")),
        Role::GdnGates => Some(source!("gdn_gates.wgsl")),
        Role::MoeCombine => Some(source!("moe_combine.wgsl")),
        Role::SampleReduce => Some(source!("sample_reduce.wgsl")),
        Role::SampleSelect => Some(source!("sample_select.wgsl")),
        Role::Embedding
        | Role::QkvFused
        | Role::QkvFusedScratch
        | Role::QkvFusedNorm
        | Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8
        | Role::Int4Matmul
        | Role::Int4MatmulAdd
        | Role::Int4MatmulMoe
        | Role::FusedFfn
        | Role::FusedFfnPrologue
        | Role::FusedFfnNorm
        | Role::AddNorm
        | Role::Add3Norm
        | Role::GdnRecur
        | Role::GdnNormOut
        | Role::MoeRouterLogits
        | Role::MoeRouterTopk
        | Role::Argmax => None,
    }
}

/// Functions that a role's body calls and others share.
pub const fn library(role: Role) -> Option<Source> {
    match role {
        Role::QkvFused
        | Role::QkvFusedScratch
        | Role::QkvFusedNorm
        | Role::Rope
        | Role::QkNormRopeAppend => Some(source!("cos_sin.wgsl")),
        Role::Embedding
        | Role::RmsNorm
        | Role::AddNorm
        | Role::Add3Norm
        | Role::KvAppend
        | Role::QkNorm
        | Role::GatedQkvSplit
        | Role::AttnGate
        | Role::GdnConv
        | Role::GdnConvSeq
        | Role::GdnConvCommit
        | Role::GdnGates
        | Role::GdnRecur
        | Role::GdnNormOut
        | Role::MoeRouterLogits
        | Role::MoeRouterTopk
        | Role::MoeCombine
        | Role::Argmax
        | Role::SampleReduce
        | Role::SampleSelect
        | Role::AttentionCombine
        | Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8
        | Role::KvQuantizeInt8
        | Role::SiluMul
        | Role::Int4Matmul
        | Role::Int4MatmulAdd
        | Role::Int4MatmulMoe
        | Role::FusedFfn
        | Role::FusedFfnPrologue
        | Role::FusedFfnNorm => None,
    }
}
