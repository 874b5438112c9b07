//! The Tera templates and their parameters. Everything that chooses is one
//! `Params` struct of closed words; conditions stand at column 0 and swap whole
//! functions.

use crate::{RenderError, Sources};
use kernels::{
    Elem, QuantFormat, Role, Variant,
    kv::KvFormat,
    variants::{Batch, Load, Reduce},
};
use serde::Serialize;
use tera::Context;

/// Parameters of every template.
#[derive(Serialize)]
struct Params {
    /// The variant's id, for the opening comment.
    id: String,
    /// `tree`, `row`, `subgroup` or `gemm`.
    reduce: &'static str,
    /// Outputs of a workgroup of the subgroup form.
    tile: usize,
    /// Rows of its matrix.
    rows: usize,
    /// What the rows of a workgroup of `dp4a` are: `rows`, `units` or `pairs`.
    owns: &'static str,
    /// `word`, `vec2`, `vec4` or `texture`.
    load: &'static str,
    /// How activations are loaded beside packed weights: `scalar`, `vec4`, `shared`,
    /// `packed` or `broadcast`.
    x: &'static str,
    /// `one`, `four` or `dynamic`.
    batch: &'static str,
    /// Tokens of a tile.
    tokens: usize,
    /// What attention gives: `whole` of a query, its `parts`, or `tokens` of a chunk.
    out: &'static str,
    /// What is added before a norm, `two` or `three` vectors, or behind a product: `one`.
    addends: &'static str,
    /// What a role of several does before its products: `none`, or the `norm` of `x` or of
    /// a sum.
    prologue: &'static str,
    /// How keys and values are cached: `plain` or `int8`; `none` where they are not.
    kv: &'static str,
    /// Whether a row is that of the one matrix, of an expert's or, for each token, of the
    /// router's: `one`, `ids` or `router`.
    expert: &'static str,
    /// K must be a multiple of this.
    k_step: usize,
    /// The name of the format of weights, for the opening comment.
    format: &'static str,
    /// Bits of a code: `three`, `four` or `eight`.
    codes: &'static str,
    /// Eights of weights in one load: `one`, `two` or `four`.
    eights: &'static str,
    /// `bias` or `none`.
    affine: &'static str,
    /// Type of scales: `f16` or `f32`.
    scale: &'static str,
}

/// Name and text of each template.
pub(crate) const TEMPLATES: &[(&str, &str)] = &[
    (
        "add_norm.wgsl.tera",
        include_str!("../templates/add_norm.wgsl.tera"),
    ),
    (
        "argmax.wgsl.tera",
        include_str!("../templates/argmax.wgsl.tera"),
    ),
    (
        "attention.wgsl.tera",
        include_str!("../templates/attention.wgsl.tera"),
    ),
    (
        "dp4a.wgsl.tera",
        include_str!("../templates/dp4a.wgsl.tera"),
    ),
    (
        "dp4a_gemm.wgsl.tera",
        include_str!("../templates/dp4a_gemm.wgsl.tera"),
    ),
    (
        "embedding.wgsl.tera",
        include_str!("../templates/embedding.wgsl.tera"),
    ),
    (
        "fused_ffn.wgsl.tera",
        include_str!("../templates/fused_ffn.wgsl.tera"),
    ),
    (
        "fused_ffn_batched.wgsl.tera",
        include_str!("../templates/fused_ffn_batched.wgsl.tera"),
    ),
    (
        "gdn_norm_out.wgsl.tera",
        include_str!("../templates/gdn_norm_out.wgsl.tera"),
    ),
    (
        "gdn_recur.wgsl.tera",
        include_str!("../templates/gdn_recur.wgsl.tera"),
    ),
    (
        "gdn_recur_batched.wgsl.tera",
        include_str!("../templates/gdn_recur_batched.wgsl.tera"),
    ),
    (
        "int4_matmul.wgsl.tera",
        include_str!("../templates/int4_matmul.wgsl.tera"),
    ),
    (
        "int4_matmul_batched.wgsl.tera",
        include_str!("../templates/int4_matmul_batched.wgsl.tera"),
    ),
    (
        "int4_matmul_gemm.wgsl.tera",
        include_str!("../templates/int4_matmul_gemm.wgsl.tera"),
    ),
    (
        "moe_router_topk.wgsl.tera",
        include_str!("../templates/moe_router_topk.wgsl.tera"),
    ),
    (
        "qkv_fused.wgsl.tera",
        include_str!("../templates/qkv_fused.wgsl.tera"),
    ),
    (
        "pairs.wgsl.tera",
        include_str!("../templates/pairs.wgsl.tera"),
    ),
    (
        "prologue.wgsl.tera",
        include_str!("../templates/prologue.wgsl.tera"),
    ),
    (
        "quant/activations.wgsl.tera",
        include_str!("../templates/quant/activations.wgsl.tera"),
    ),
    (
        "quant/int8.wgsl.tera",
        include_str!("../templates/quant/int8.wgsl.tera"),
    ),
    (
        "quant/codes3.wgsl.tera",
        include_str!("../templates/quant/codes3.wgsl.tera"),
    ),
    (
        "quant/codes4.wgsl.tera",
        include_str!("../templates/quant/codes4.wgsl.tera"),
    ),
    (
        "quant/codes8.wgsl.tera",
        include_str!("../templates/quant/codes8.wgsl.tera"),
    ),
    (
        "quant/weights.wgsl.tera",
        include_str!("../templates/quant/weights.wgsl.tera"),
    ),
    (
        "reduce/subgroup.wgsl.tera",
        include_str!("../templates/reduce/subgroup.wgsl.tera"),
    ),
    (
        "reduce/tree.wgsl.tera",
        include_str!("../templates/reduce/tree.wgsl.tera"),
    ),
    (
        "tokens.wgsl.tera",
        include_str!("../templates/tokens.wgsl.tera"),
    ),
];

/// The body of a variant: hand-written, or rendered from its role's template.
pub(crate) fn body(sources: &Sources, variant: Variant) -> Result<String, RenderError> {
    let failed = |message: String| RenderError::Source {
        variant: variant.id(),
        message,
    };
    if let Some(body) = kernels::wgsl::body(variant.role) {
        return sources.written(body).map(str::to_owned).map_err(failed);
    }
    let template = match variant.role {
        _ if variant.load == Load::Dp4a && variant.reduce == Reduce::Gemm => "dp4a_gemm.wgsl.tera",
        _ if variant.load == Load::Dp4a => "dp4a.wgsl.tera",
        _ if variant.reduce == Reduce::Gemm => "int4_matmul_gemm.wgsl.tera",
        _ if variant.is_batched() => &format!("{}_batched.wgsl.tera", variant.role),
        Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8 => "attention.wgsl.tera",
        Role::QkvFused | Role::QkvFusedScratch | Role::QkvFusedNorm => "qkv_fused.wgsl.tera",
        Role::Int4Matmul | Role::Int4MatmulAdd | Role::Int4MatmulMoe | Role::MoeRouterLogits => {
            "int4_matmul.wgsl.tera"
        }
        Role::FusedFfn | Role::FusedFfnPrologue | Role::FusedFfnNorm => "fused_ffn.wgsl.tera",
        Role::AddNorm | Role::Add3Norm => "add_norm.wgsl.tera",
        Role::Embedding
        | Role::RmsNorm
        | Role::AttentionCombine
        | Role::SiluMul
        | Role::KvAppend
        | Role::KvQuantizeInt8
        | Role::Rope
        | Role::QkNorm
        | Role::QkNormRopeAppend
        | Role::GatedQkvSplit
        | Role::AttnGate
        | Role::GdnConv
        | Role::GdnConvSeq
        | Role::GdnConvCommit
        | Role::GdnGates
        | Role::GdnRecur
        | Role::GdnNormOut
        | Role::MoeRouterTopk
        | Role::MoeCombine
        | Role::Argmax
        | Role::SampleReduce
        | Role::SampleSelect => &format!("{}.wgsl.tera", variant.role),
    };
    // A role without weights uses none of the words that follow from the format.
    let format = variant.format.unwrap_or(QuantFormat::Q4f16_1);
    let params = Params {
        id: variant.id(),
        reduce: match variant.reduce {
            Reduce::Row => "row",
            Reduce::Subgroup => "subgroup",
            Reduce::Gemm => "gemm",
            Reduce::Tree | Reduce::Elementwise => "tree",
        },
        tile: variant.tile.outputs(),
        rows: variant.rows_per_workgroup(),
        owns: if variant.projects() {
            "pairs"
        } else if variant.rows_per_workgroup() > variant.tile.outputs() {
            "units"
        } else {
            "rows"
        },
        load: match variant.load {
            Load::Word => "word",
            Load::Vec2 => "vec2",
            Load::Vec4 => "vec4",
            Load::Texture => "texture",
            Load::Dp4a => "dp4a",
        },
        x: match (variant.reduce, variant.load) {
            _ if variant.shares_activations() => "shared",
            (_, Load::Texture) => "broadcast",
            _ if variant.loads_eights() && variant.elem == Elem::F16 => "packed",
            _ if variant.loads_eights() => "vec4",
            (_, Load::Word) => "scalar",
            (_, Load::Vec2 | Load::Vec4 | Load::Dp4a) => "vec4",
        },
        out: match variant.role {
            Role::AttentionSplitk => "parts",
            Role::AttentionPrefill | Role::AttentionPrefillInt8 => "tokens",
            Role::Embedding
            | Role::RmsNorm
            | Role::QkvFused
            | Role::QkvFusedScratch
            | Role::QkvFusedNorm
            | Role::Attention
            | Role::AttentionCombine
            | Role::AttentionInt8
            | Role::Int4Matmul
            | Role::Int4MatmulAdd
            | Role::Int4MatmulMoe
            | Role::FusedFfn
            | Role::FusedFfnPrologue
            | Role::FusedFfnNorm
            | Role::SiluMul
            | Role::AddNorm
            | Role::Add3Norm
            | Role::KvAppend
            | Role::KvQuantizeInt8
            | Role::Rope
            | Role::QkNorm
            | Role::QkNormRopeAppend
            | Role::GatedQkvSplit
            | Role::AttnGate
            | Role::GdnConv
            | Role::GdnConvSeq
            | Role::GdnConvCommit
            | Role::GdnGates
            | Role::GdnRecur
            | Role::GdnNormOut
            | Role::MoeRouterTopk
            | Role::MoeCombine
            | Role::MoeRouterLogits
            | Role::Argmax
            | Role::SampleReduce
            | Role::SampleSelect => "whole",
        },
        batch: match variant.batch {
            Batch::One => "one",
            Batch::Four => "four",
            Batch::Dynamic => "dynamic",
        },
        tokens: variant.tokens_per_workgroup(),
        kv: match variant.role.kv_format() {
            Some(KvFormat::Plain) => "plain",
            Some(KvFormat::Int8) => "int8",
            None => "none",
        },
        addends: if variant.role == Role::Int4MatmulAdd {
            "one"
        } else if variant.role == Role::Add3Norm {
            "three"
        } else {
            "two"
        },
        prologue: if variant.normalises() { "norm" } else { "none" },
        expert: if variant.role == Role::Int4MatmulMoe {
            "ids"
        } else if variant.role == Role::MoeRouterLogits {
            "router"
        } else {
            "one"
        },
        k_step: variant.k_step(),
        format: format.name(),
        codes: match format {
            QuantFormat::Affine3G64 => "three",
            QuantFormat::Q4f16_1
            | QuantFormat::Q4f32_1
            | QuantFormat::Q4_0
            | QuantFormat::Affine4G32
            | QuantFormat::Affine4G64 => "four",
            QuantFormat::Q8_0 | QuantFormat::Affine8G32 | QuantFormat::Affine8G64 => "eight",
        },
        eights: match variant.eights_per_load() {
            1 => "one",
            2 => "two",
            _ => "four",
        },
        affine: if format.is_affine() { "bias" } else { "none" },
        scale: format.scale_type().name(),
    };
    let context = Context::from_serialize(&params).map_err(|error| failed(error.to_string()))?;
    sources.template(template, &context).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Tera takes the else branch of a condition on a name that does not exist;
    /// so every name that a template uses must be a parameter.
    #[test]
    fn templates_use_only_parameters_that_exist() {
        let params = Params {
            id: String::new(),
            reduce: "",
            tile: 0,
            rows: 0,
            owns: "",
            load: "",
            x: "",
            batch: "",
            tokens: 0,
            out: "",
            addends: "",
            prologue: "",
            kv: "",
            expert: "",
            k_step: 0,
            format: "",
            codes: "",
            eights: "",
            affine: "",
            scale: "",
        };
        let context = Context::from_serialize(&params).expect("parameters serialise");
        let mut used = BTreeSet::new();
        for (name, _) in TEMPLATES {
            for variable in Sources::embedded().variables(name) {
                assert!(context.contains_key(&variable), "{name} uses `{variable}`");
                used.insert(variable);
            }
        }
        for name in [
            "id", "reduce", "tile", "rows", "owns", "load", "x", "batch", "tokens", "out",
            "addends", "prologue", "kv", "expert", "k_step", "format", "codes", "eights", "affine",
            "scale",
        ] {
            assert!(used.contains(name), "`{name}` is used by a template");
        }
    }
}
