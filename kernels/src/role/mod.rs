//! Kernel roles: what a kernel computes, what it binds, what its uniform holds.
//!
//! Symbols used throughout: `y[N] = W[N, K] x[K]`; D the hidden size, F the
//! feed-forward width, V the vocabulary, HD the head dimension, Q and KV the
//! query and key widths, T the tokens of a dispatch, E the experts of a layer, S
//! the slots of a token. Of gated DeltaNet: P the rows of its projection, C the
//! channels of its convolution, VH its value heads, DK and DV elements of a key and a
//! value.

mod bindings;
mod uniforms;

pub use bindings::{Access, Binding, Element};
pub use uniforms::{Scalar, UniformField};

use crate::{kv::KvFormat, suggest};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What a kernel computes. Published names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token ids to rows of the dequantised embedding.
    Embedding,
    /// `x * gamma / sqrt(mean(x^2) + eps)`.
    RmsNorm,
    /// QKV projection, RoPE and KV append in one dispatch (decode).
    QkvFused,
    /// The same with keys and values to buffers of their own, not to pages.
    QkvFusedScratch,
    /// The same of `rms_norm(x)`, which every workgroup makes for itself.
    QkvFusedNorm,
    /// Paged attention with online softmax.
    Attention,
    /// Attention over one part of the pages; writes f32 partials.
    AttentionSplitk,
    /// Merges split-K partials.
    AttentionCombine,
    /// Paged attention over int8 keys and values.
    AttentionInt8,
    /// Attention of each token of a chunk to the positions up to its own (prefill).
    AttentionPrefill,
    /// The same over int8 keys and values.
    AttentionPrefillInt8,
    /// `y = W x` with packed 4-bit weights.
    Int4Matmul,
    /// `y = residual + W x`.
    Int4MatmulAdd,
    /// `y = W x` with the matrix of the expert that each slot of a token names.
    Int4MatmulMoe,
    /// `silu(Wg x) * (Wu x)`.
    FusedFfn,
    /// The same of `x = rms_norm(residual + delta)`, which every workgroup makes for
    /// itself; neither the sum nor the norm is stored.
    FusedFfnPrologue,
    /// `silu(Wg n) * (Wu n)` of `n = rms_norm(x)`, which every workgroup makes for itself.
    FusedFfnNorm,
    /// `silu(gate) * up` of projections that are there already.
    SiluMul,
    /// `residual = a + b; normed = rms_norm(residual)`.
    AddNorm,
    /// `residual = (a + b) + c; normed = rms_norm(residual)`.
    Add3Norm,
    /// Stores rotated keys and values into their pages (prefill).
    KvAppend,
    /// Quantises rotated keys and values to int8 into their pages.
    KvQuantizeInt8,
    /// Splits QKV and rotates Q and K (prefill).
    Rope,
    /// RMSNorm of each query and key head, in place, before RoPE (Qwen3).
    QkNorm,
    /// The same with RoPE and KV append in one dispatch.
    QkNormRopeAppend,
    /// Splits a projection whose heads are `[query | gate]` into QKV and gates.
    GatedQkvSplit,
    /// `out *= sigmoid(gate)`, in place.
    AttnGate,
    /// Causal convolution over the last tokens, then silu; its ring keeps raw tokens.
    GdnConv,
    /// The same for a chunk, from the ring as it was before (prefill).
    GdnConvSeq,
    /// Stores the last tokens of a chunk in the ring (prefill).
    GdnConvCommit,
    /// Decay and update rate of each value head.
    GdnGates,
    /// The gated delta rule: `S = a S + k (x) b (v - (a S)^T k)`; `out = S^T q`.
    GdnRecur,
    /// `rms_norm(x) * silu(z)` of each value head.
    GdnNormOut,
    /// Router logits of every expert and, where there is one, of the shared gate.
    MoeRouterLogits,
    /// The experts of a token and their weights.
    MoeRouterTopk,
    /// Weighted sum of the outputs of a token's experts.
    MoeCombine,
    /// Index of the largest logit; the lowest index wins a tie.
    Argmax,
    /// The largest logit of each part of the vocabulary and the sum of its weights.
    SampleReduce,
    /// Draws a token from the logits.
    SampleSelect,
}

impl Role {
    /// Every role, in the order of the documentation.
    pub const ALL: &'static [Self] = &[
        Self::Embedding,
        Self::RmsNorm,
        Self::QkvFused,
        Self::QkvFusedScratch,
        Self::QkvFusedNorm,
        Self::Attention,
        Self::AttentionSplitk,
        Self::AttentionCombine,
        Self::AttentionInt8,
        Self::AttentionPrefill,
        Self::AttentionPrefillInt8,
        Self::Int4Matmul,
        Self::Int4MatmulAdd,
        Self::Int4MatmulMoe,
        Self::FusedFfn,
        Self::FusedFfnPrologue,
        Self::FusedFfnNorm,
        Self::SiluMul,
        Self::AddNorm,
        Self::Add3Norm,
        Self::KvAppend,
        Self::KvQuantizeInt8,
        Self::Rope,
        Self::QkNorm,
        Self::QkNormRopeAppend,
        Self::GatedQkvSplit,
        Self::AttnGate,
        Self::GdnConv,
        Self::GdnConvSeq,
        Self::GdnConvCommit,
        Self::GdnGates,
        Self::GdnRecur,
        Self::GdnNormOut,
        Self::MoeRouterLogits,
        Self::MoeRouterTopk,
        Self::MoeCombine,
        Self::Argmax,
        Self::SampleReduce,
        Self::SampleSelect,
    ];

    /// The published name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::RmsNorm => "rms_norm",
            Self::QkvFused => "qkv_fused",
            Self::QkvFusedScratch => "qkv_fused_scratch",
            Self::QkvFusedNorm => "qkv_fused_norm",
            Self::Attention => "attention",
            Self::AttentionSplitk => "attention_splitk",
            Self::AttentionCombine => "attention_combine",
            Self::AttentionInt8 => "attention_int8",
            Self::AttentionPrefill => "attention_prefill",
            Self::AttentionPrefillInt8 => "attention_prefill_int8",
            Self::Int4Matmul => "int4_matmul",
            Self::Int4MatmulAdd => "int4_matmul_add",
            Self::Int4MatmulMoe => "int4_matmul_moe",
            Self::FusedFfn => "fused_ffn",
            Self::FusedFfnPrologue => "fused_ffn_prologue",
            Self::FusedFfnNorm => "fused_ffn_norm",
            Self::SiluMul => "silu_mul",
            Self::AddNorm => "add_norm",
            Self::Add3Norm => "add3_norm",
            Self::KvAppend => "kv_append",
            Self::KvQuantizeInt8 => "kv_quantize_int8",
            Self::Rope => "rope",
            Self::QkNorm => "qk_norm",
            Self::QkNormRopeAppend => "qk_norm_rope_append",
            Self::GatedQkvSplit => "gated_qkv_split",
            Self::AttnGate => "attn_gate",
            Self::GdnConv => "gdn_conv",
            Self::GdnConvSeq => "gdn_conv_seq",
            Self::GdnConvCommit => "gdn_conv_commit",
            Self::GdnGates => "gdn_gates",
            Self::GdnRecur => "gdn_recur",
            Self::GdnNormOut => "gdn_norm_out",
            Self::MoeRouterLogits => "moe_router_logits",
            Self::MoeRouterTopk => "moe_router_topk",
            Self::MoeCombine => "moe_combine",
            Self::Argmax => "argmax",
            Self::SampleReduce => "sample_reduce",
            Self::SampleSelect => "sample_select",
        }
    }

    /// Whether it is `y = W x` and nothing else.
    pub const fn is_product(self) -> bool {
        matches!(
            self,
            Self::Int4Matmul | Self::Int4MatmulMoe | Self::MoeRouterLogits
        )
    }

    /// How the keys and values are cached that it reads or stores; `None` where it
    /// does neither.
    pub const fn kv_format(self) -> Option<KvFormat> {
        match self {
            Self::QkvFused
            | Self::QkvFusedNorm
            | Self::Attention
            | Self::AttentionSplitk
            | Self::AttentionPrefill
            | Self::KvAppend
            | Self::QkNormRopeAppend => Some(KvFormat::Plain),
            Self::AttentionInt8 | Self::AttentionPrefillInt8 | Self::KvQuantizeInt8 => {
                Some(KvFormat::Int8)
            }
            Self::Embedding
            | Self::RmsNorm
            | Self::QkvFusedScratch
            | Self::AttentionCombine
            | Self::Int4Matmul
            | Self::Int4MatmulAdd
            | Self::Int4MatmulMoe
            | Self::FusedFfn
            | Self::FusedFfnPrologue
            | Self::FusedFfnNorm
            | Self::SiluMul
            | Self::AddNorm
            | Self::Add3Norm
            | Self::Rope
            | Self::QkNorm
            | Self::GatedQkvSplit
            | Self::AttnGate
            | Self::GdnConv
            | Self::GdnConvSeq
            | Self::GdnConvCommit
            | Self::GdnGates
            | Self::GdnRecur
            | Self::GdnNormOut
            | Self::MoeRouterLogits
            | Self::MoeRouterTopk
            | Self::MoeCombine
            | Self::Argmax
            | Self::SampleReduce
            | Self::SampleSelect => None,
        }
    }

    /// Bindings in `@binding` order, the uniform at its own number; a variant has
    /// those of [`crate::Variant::bindings`].
    pub const fn bindings(self) -> &'static [Binding] {
        bindings::of(self)
    }

    /// Fields of the uniform struct in order; empty where the role has none.
    pub const fn uniform(self) -> &'static [UniformField] {
        uniforms::of(self)
    }

    /// The same of a variant that takes the number of its vectors from there.
    pub const fn batched_uniform(self) -> &'static [UniformField] {
        uniforms::batched_of(self)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role name that does not exist.
#[derive(Clone, Debug, thiserror::Error)]
#[error("unknown role `{name}`; {known}")]
pub struct UnknownRole {
    name: String,
    known: String,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|role| role.name() == name)
            .ok_or_else(|| UnknownRole {
                name: name.to_owned(),
                known: suggest::known(name, Self::ALL.iter().map(|r| r.name())),
            })
    }
}
