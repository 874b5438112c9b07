//! Hand-written WGSL bodies. They declare no binding and no model constant:
//! the generator puts a prelude made from the tables in front.

use crate::role::Role;

/// Body of a role that is written by hand; `None` where a template makes it.
pub const fn body(role: Role) -> Option<&'static str> {
    match role {
        Role::RmsNorm => Some(include_str!("../wgsl/rms_norm.wgsl")),
        Role::AddNorm => Some(include_str!("../wgsl/add_norm.wgsl")),
        Role::KvAppend => Some(include_str!("../wgsl/kv_append.wgsl")),
        Role::KvQuantizeInt8 => Some(include_str!("../wgsl/kv_quantize_int8.wgsl")),
        Role::SiluMul => Some(include_str!("../wgsl/silu_mul.wgsl")),
        Role::Rope => Some(include_str!("../wgsl/rope.wgsl")),
        Role::QkNorm => Some(include_str!("../wgsl/qk_norm.wgsl")),
        Role::QkNormRopeAppend => Some(include_str!("../wgsl/qk_norm_rope_append.wgsl")),
        Role::AttentionCombine => Some(include_str!("../wgsl/attention_combine.wgsl")),
        Role::Embedding
        | Role::QkvFused
        | Role::QkvFusedScratch
        | Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8
        | Role::Int4Matmul
        | Role::Int4MatmulMoe
        | Role::FusedFfn
        | Role::Argmax => None,
    }
}

/// Functions that a role's body calls and others share.
pub const fn library(role: Role) -> &'static str {
    match role {
        Role::QkvFused | Role::QkvFusedScratch | Role::Rope | Role::QkNormRopeAppend => {
            include_str!("../wgsl/cos_sin.wgsl")
        }
        Role::Embedding
        | Role::RmsNorm
        | Role::AddNorm
        | Role::KvAppend
        | Role::QkNorm
        | Role::Argmax
        | Role::AttentionCombine
        | Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8
        | Role::KvQuantizeInt8
        | Role::SiluMul
        | Role::Int4Matmul
        | Role::Int4MatmulMoe
        | Role::FusedFfn => "",
    }
}
