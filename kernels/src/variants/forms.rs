//! The table of forms: every way to write a role.

use super::{Batch, Form, Load, Reduce, Tile};
use crate::{quant::Elem, role::Role};

const fn form(role: Role, reduce: Reduce, load: Load) -> Form {
    Form {
        role,
        reduce,
        load,
        tile: Tile::One,
        batch: Batch::One,
        out: Elem::F16,
    }
}

/// The subgroup form of a role.
const fn subgroup(role: Role, tile: Tile, load: Load) -> Form {
    Form {
        tile,
        ..form(role, Reduce::Subgroup, load)
    }
}

/// The form of integer products, whose workgroups own `tile` outputs.
const fn dp4a(role: Role, tile: Tile) -> Form {
    subgroup(role, tile, Load::Dp4a)
}

/// The same form for several vectors.
const fn batched(batch: Batch, form: Form) -> Form {
    Form { batch, ..form }
}

/// Every form, by role in the order of [`Role::ALL`].
pub const FORMS: &[Form] = &[
    form(Role::Embedding, Reduce::Elementwise, Load::Word),
    form(Role::RmsNorm, Reduce::Tree, Load::Word),
    form(Role::QkvFused, Reduce::Tree, Load::Word),
    form(Role::QkvFused, Reduce::Row, Load::Vec4),
    form(Role::QkvFused, Reduce::Row, Load::Texture),
    subgroup(Role::QkvFused, Tile::One, Load::Word),
    subgroup(Role::QkvFused, Tile::One, Load::Vec4),
    subgroup(Role::QkvFused, Tile::Two, Load::Word),
    dp4a(Role::QkvFused, Tile::Four),
    dp4a(Role::QkvFused, Tile::Sixteen),
    form(Role::QkvFusedScratch, Reduce::Tree, Load::Word),
    form(Role::QkvFusedScratch, Reduce::Row, Load::Vec4),
    form(Role::QkvFusedScratch, Reduce::Row, Load::Texture),
    subgroup(Role::QkvFusedScratch, Tile::One, Load::Word),
    subgroup(Role::QkvFusedScratch, Tile::One, Load::Vec4),
    subgroup(Role::QkvFusedScratch, Tile::Two, Load::Word),
    dp4a(Role::QkvFusedScratch, Tile::Four),
    dp4a(Role::QkvFusedScratch, Tile::Sixteen),
    dp4a(Role::QkvFusedNorm, Tile::Four),
    dp4a(Role::QkvFusedNorm, Tile::Sixteen),
    form(Role::Attention, Reduce::Tree, Load::Word),
    form(Role::Attention, Reduce::Row, Load::Vec4),
    subgroup(Role::Attention, Tile::One, Load::Word),
    subgroup(Role::Attention, Tile::One, Load::Vec4),
    form(Role::AttentionSplitk, Reduce::Tree, Load::Word),
    form(Role::AttentionSplitk, Reduce::Row, Load::Vec4),
    subgroup(Role::AttentionSplitk, Tile::One, Load::Word),
    subgroup(Role::AttentionSplitk, Tile::One, Load::Vec4),
    form(Role::AttentionCombine, Reduce::Elementwise, Load::Word),
    form(Role::AttentionInt8, Reduce::Tree, Load::Word),
    form(Role::AttentionInt8, Reduce::Row, Load::Vec4),
    form(Role::AttentionPrefill, Reduce::Tree, Load::Word),
    form(Role::AttentionPrefill, Reduce::Row, Load::Vec4),
    form(Role::AttentionPrefillInt8, Reduce::Tree, Load::Word),
    form(Role::AttentionPrefillInt8, Reduce::Row, Load::Vec4),
    form(Role::Int4Matmul, Reduce::Tree, Load::Word),
    form(Role::Int4Matmul, Reduce::Tree, Load::Vec2),
    form(Role::Int4Matmul, Reduce::Tree, Load::Vec4),
    form(Role::Int4Matmul, Reduce::Row, Load::Vec4),
    form(Role::Int4Matmul, Reduce::Row, Load::Texture),
    subgroup(Role::Int4Matmul, Tile::One, Load::Word),
    subgroup(Role::Int4Matmul, Tile::One, Load::Vec2),
    subgroup(Role::Int4Matmul, Tile::One, Load::Vec4),
    subgroup(Role::Int4Matmul, Tile::Four, Load::Word),
    subgroup(Role::Int4Matmul, Tile::Four, Load::Vec2),
    subgroup(Role::Int4Matmul, Tile::Four, Load::Vec4),
    subgroup(Role::Int4Matmul, Tile::Eight, Load::Word),
    subgroup(Role::Int4Matmul, Tile::Eight, Load::Vec2),
    subgroup(Role::Int4Matmul, Tile::Eight, Load::Vec4),
    dp4a(Role::Int4Matmul, Tile::Eight),
    dp4a(Role::Int4Matmul, Tile::ThirtyTwo),
    dp4a(Role::Int4MatmulAdd, Tile::Eight),
    dp4a(Role::Int4MatmulAdd, Tile::ThirtyTwo),
    form(Role::Int4MatmulMoe, Reduce::Tree, Load::Word),
    form(Role::Int4MatmulMoe, Reduce::Tree, Load::Vec2),
    form(Role::Int4MatmulMoe, Reduce::Row, Load::Vec4),
    subgroup(Role::Int4MatmulMoe, Tile::Four, Load::Word),
    subgroup(Role::Int4MatmulMoe, Tile::Four, Load::Vec2),
    batched(
        Batch::Four,
        form(Role::Int4Matmul, Reduce::Tree, Load::Word),
    ),
    batched(
        Batch::Dynamic,
        form(Role::Int4Matmul, Reduce::Tree, Load::Word),
    ),
    batched(
        Batch::Dynamic,
        form(Role::Int4Matmul, Reduce::Gemm, Load::Vec4),
    ),
    batched(
        Batch::Dynamic,
        form(Role::Int4Matmul, Reduce::Gemm, Load::Dp4a),
    ),
    batched(
        Batch::Dynamic,
        form(Role::Int4Matmul, Reduce::Row, Load::Vec4),
    ),
    batched(
        Batch::Dynamic,
        form(Role::Int4Matmul, Reduce::Row, Load::Texture),
    ),
    form(Role::FusedFfn, Reduce::Tree, Load::Word),
    form(Role::FusedFfn, Reduce::Row, Load::Vec4),
    form(Role::FusedFfn, Reduce::Row, Load::Texture),
    subgroup(Role::FusedFfn, Tile::Four, Load::Word),
    dp4a(Role::FusedFfn, Tile::Four),
    dp4a(Role::FusedFfn, Tile::Sixteen),
    form(Role::FusedFfnPrologue, Reduce::Tree, Load::Word),
    form(Role::FusedFfnPrologue, Reduce::Row, Load::Vec4),
    form(Role::FusedFfnPrologue, Reduce::Row, Load::Texture),
    subgroup(Role::FusedFfnPrologue, Tile::Four, Load::Word),
    batched(
        Batch::Dynamic,
        form(Role::FusedFfn, Reduce::Tree, Load::Word),
    ),
    batched(
        Batch::Dynamic,
        form(Role::FusedFfn, Reduce::Row, Load::Vec4),
    ),
    batched(
        Batch::Dynamic,
        form(Role::FusedFfn, Reduce::Row, Load::Texture),
    ),
    dp4a(Role::FusedFfnNorm, Tile::Four),
    dp4a(Role::FusedFfnNorm, Tile::Sixteen),
    form(Role::SiluMul, Reduce::Elementwise, Load::Word),
    form(Role::AddNorm, Reduce::Tree, Load::Word),
    form(Role::Add3Norm, Reduce::Tree, Load::Word),
    form(Role::KvAppend, Reduce::Elementwise, Load::Word),
    form(Role::KvQuantizeInt8, Reduce::Tree, Load::Word),
    form(Role::Rope, Reduce::Elementwise, Load::Word),
    form(Role::QkNorm, Reduce::Tree, Load::Word),
    form(Role::QkNormRopeAppend, Reduce::Tree, Load::Word),
    form(Role::GatedQkvSplit, Reduce::Elementwise, Load::Word),
    form(Role::AttnGate, Reduce::Elementwise, Load::Word),
    form(Role::GdnConv, Reduce::Elementwise, Load::Word),
    form(Role::GdnConvSeq, Reduce::Elementwise, Load::Word),
    form(Role::GdnConvCommit, Reduce::Elementwise, Load::Word),
    form(Role::GdnGates, Reduce::Elementwise, Load::Word),
    form(Role::GdnRecur, Reduce::Tree, Load::Word),
    form(Role::GdnRecur, Reduce::Tree, Load::Vec4),
    subgroup(Role::GdnRecur, Tile::One, Load::Word),
    subgroup(Role::GdnRecur, Tile::One, Load::Vec4),
    batched(
        Batch::Dynamic,
        form(Role::GdnRecur, Reduce::Tree, Load::Word),
    ),
    form(Role::GdnNormOut, Reduce::Tree, Load::Word),
    subgroup(Role::GdnNormOut, Tile::One, Load::Word),
    form(Role::MoeRouterLogits, Reduce::Tree, Load::Word),
    form(Role::MoeRouterLogits, Reduce::Tree, Load::Vec2),
    form(Role::MoeRouterLogits, Reduce::Row, Load::Vec4),
    subgroup(Role::MoeRouterLogits, Tile::Four, Load::Word),
    subgroup(Role::MoeRouterLogits, Tile::Four, Load::Vec2),
    form(Role::MoeRouterTopk, Reduce::Tree, Load::Word),
    subgroup(Role::MoeRouterTopk, Tile::One, Load::Word),
    form(Role::MoeCombine, Reduce::Elementwise, Load::Word),
    form(Role::Argmax, Reduce::Tree, Load::Word),
    subgroup(Role::Argmax, Tile::One, Load::Word),
    subgroup(Role::Argmax, Tile::One, Load::Vec4),
    form(Role::SampleReduce, Reduce::Tree, Load::Word),
    form(Role::SampleSelect, Reduce::Tree, Load::Word),
];
