//! Which forms a mutant is tried on, by what they have in common.

use kernels::{
    Elem, Role,
    variants::{Batch, Form, Load, Reduce, Tile},
};

/// The forms of some roles; of an axis that nothing is asked of, every value, but for loads
/// whose texts have nothing in common with the others.
#[derive(Clone, Copy, Debug)]
pub struct Forms {
    roles: &'static [Role],
    reduce: &'static [Reduce],
    load: &'static [Load],
    tile: &'static [Tile],
    batch: Batch,
    out: Elem,
}

/// The forms of these roles, for one vector and with outputs in f16.
const fn of(roles: &'static [Role]) -> Forms {
    Forms {
        roles,
        reduce: &[],
        load: &[],
        tile: &[],
        batch: Batch::One,
        out: Elem::F16,
    }
}

impl Forms {
    const fn by(self, reduce: &'static [Reduce]) -> Self {
        Self { reduce, ..self }
    }

    const fn loading(self, load: &'static [Load]) -> Self {
        Self { load, ..self }
    }

    const fn tiled(self, tile: &'static [Tile]) -> Self {
        Self { tile, ..self }
    }

    const fn batched(self, batch: Batch) -> Self {
        Self { batch, ..self }
    }

    const fn giving(self, out: Elem) -> Self {
        Self { out, ..self }
    }

    /// Whether a form is among them.
    pub(super) fn hold(&self, form: &Form) -> bool {
        fn asked<T: PartialEq>(values: &[T], value: &T) -> bool {
            values.is_empty() || values.contains(value)
        }
        // Integer products, and attention and argmax that load wide by subgroup, share no
        // text with the others: they are asked for by their load.
        let wide = form.reduce == Reduce::Subgroup && form.load == Load::Vec4;
        let alone = matches!(
            form.role,
            Role::Attention | Role::AttentionSplitk | Role::Argmax
        );
        let apart = form.load == Load::Dp4a || (wide && alone);
        let apart = apart && !self.load.contains(&form.load);
        self.roles.contains(&form.role)
            && !apart
            && asked(self.reduce, &form.reduce)
            && asked(self.load, &form.load)
            && asked(self.tile, &form.tile)
            && (self.batch, self.out) == (form.batch, form.out)
    }
}

const TREE: &[Reduce] = &[Reduce::Tree];
const ROW: &[Reduce] = &[Reduce::Row];
const SUBGROUP: &[Reduce] = &[Reduce::Subgroup];
const TREE_OR_SUBGROUP: &[Reduce] = &[Reduce::Tree, Reduce::Subgroup];
const WORDS: &[Load] = &[Load::Word];
const WIDE: &[Load] = &[Load::Vec2, Load::Vec4];

const MATRIX: Forms = of(&[Role::Int4Matmul, Role::QkvFused, Role::FusedFfn]);
const PRODUCT: Forms = of(&[Role::Int4Matmul]);
const EXPERTS: Forms = of(&[Role::Int4MatmulMoe]);
const PROJECTION: Forms = of(&[Role::QkvFused]);
const EVERY_PROJECTION: Forms = of(&[Role::QkvFused, Role::QkvFusedScratch]);
const FEED_FORWARD: Forms = of(&[Role::FusedFfn]);
const ATTENTION: Forms = of(&[
    Role::Attention,
    Role::AttentionSplitk,
    Role::AttentionInt8,
    Role::AttentionPrefill,
    Role::AttentionPrefillInt8,
]);
const PLAIN_ATTENTION: Forms = of(&[
    Role::Attention,
    Role::AttentionSplitk,
    Role::AttentionPrefill,
]);
const INT8_ATTENTION: Forms = of(&[Role::AttentionInt8, Role::AttentionPrefillInt8]);

// matrices
pub(super) const QUANT: &[Forms] = &[
    MATRIX,
    EXPERTS,
    of(&[Role::MoeRouterLogits, Role::QkvFusedScratch]),
];
pub(super) const ZERO_POINT: &[Forms] = &[MATRIX, of(&[Role::Embedding])];
pub(super) const BUFFERS: &[Forms] = &[MATRIX.loading(&[Load::Word, Load::Vec2, Load::Vec4])];
pub(super) const WORD: &[Forms] = &[MATRIX.loading(WORDS)];
pub(super) const HALF_WIDE: &[Forms] = &[PRODUCT.loading(&[Load::Vec2])];
pub(super) const VEC4: &[Forms] = &[MATRIX.loading(&[Load::Vec4])];
pub(super) const PACKED: &[Forms] = &[MATRIX.by(ROW).loading(&[Load::Vec4])];
pub(super) const TEXTURE: &[Forms] = &[MATRIX.loading(&[Load::Texture])];
pub(super) const SCALAR_X: &[Forms] = &[
    MATRIX.by(TREE).loading(WORDS),
    of(&[Role::Int4Matmul, Role::QkvFused])
        .by(SUBGROUP)
        .loading(WORDS),
];
pub(super) const VEC4_X: &[Forms] = &[
    of(&[Role::Int4Matmul, Role::QkvFused])
        .by(TREE_OR_SUBGROUP)
        .loading(WIDE),
    FEED_FORWARD.by(SUBGROUP),
];
pub(super) const FOLDED: &[Forms] = &[MATRIX, of(&[Role::QkvFusedScratch])];
pub(super) const TREE_SUMS: &[Forms] = &[MATRIX.by(TREE)];
pub(super) const TREE_MM: &[Forms] = &[PRODUCT.by(TREE)];
pub(super) const ROW_MM: &[Forms] = &[PRODUCT.by(ROW)];
pub(super) const STRIDED_MM: &[Forms] = &[PRODUCT.by(TREE), PRODUCT.by(SUBGROUP).loading(WORDS)];
pub(super) const STRIDED_D: &[Forms] = &[of(&[Role::QkvFused, Role::FusedFfn])
    .by(TREE_OR_SUBGROUP)
    .loading(WORDS)];
pub(super) const ROW_PAIRS: &[Forms] = &[of(&[Role::QkvFused, Role::FusedFfn]).by(ROW)];
pub(super) const MOE: &[Forms] = &[EXPERTS];
pub(super) const QKV: &[Forms] = &[PROJECTION];
pub(super) const EVERY_QKV: &[Forms] = &[EVERY_PROJECTION];
pub(super) const SCRATCH: &[Forms] = &[of(&[Role::QkvFusedScratch])];
pub(super) const TREE_QKV: &[Forms] = &[PROJECTION.by(TREE)];
pub(super) const ROW_QKV: &[Forms] = &[PROJECTION.by(ROW)];
pub(super) const FFN: &[Forms] = &[FEED_FORWARD];
pub(super) const TREE_FFN: &[Forms] = &[FEED_FORWARD.by(TREE)];
pub(super) const ROW_FFN: &[Forms] = &[FEED_FORWARD.by(ROW)];
pub(super) const FFN_DOT_ROWS: &[Forms] = &[FEED_FORWARD.by(&[Reduce::Row, Reduce::Subgroup])];
pub(super) const F32_MM: &[Forms] = &[PRODUCT.giving(Elem::F32)];
pub(super) const F32_TREE: &[Forms] = &[PRODUCT.by(TREE).giving(Elem::F32)];
pub(super) const F32_ROW: &[Forms] = &[PRODUCT.by(ROW).giving(Elem::F32)];
const PROLOGUES: Forms = of(&[Role::FusedFfnPrologue]);
pub(super) const PROLOGUE: &[Forms] = &[PROLOGUES];
pub(super) const TREE_PROLOGUE: &[Forms] = &[PROLOGUES.by(TREE)];
/// Those whose workgroup is more than a vector of the software driver.
pub(super) const WIDE_PROLOGUE: &[Forms] = &[PROLOGUES.by(TREE_OR_SUBGROUP)];

// sums by subgroup
const SG_PRODUCTS: Forms =
    of(&[Role::Int4Matmul, Role::Int4MatmulMoe, Role::MoeRouterLogits]).by(SUBGROUP);
const SG_F32: Forms = PRODUCT.by(SUBGROUP).giving(Elem::F32);
const SG_PROJECTION: Forms = EVERY_PROJECTION.by(SUBGROUP);
const SG_FEED_FORWARD: Forms = FEED_FORWARD.by(SUBGROUP);
pub(super) const SG_SUM: &[Forms] = &[
    SG_PRODUCTS,
    SG_PROJECTION,
    SG_FEED_FORWARD,
    ATTENTION.by(SUBGROUP),
    of(&[Role::GdnRecur, Role::GdnNormOut]).by(SUBGROUP),
];
pub(super) const SG_MM_1: &[Forms] = &[SG_PRODUCTS.tiled(&[Tile::One])];
pub(super) const SG_MM_4: &[Forms] = &[SG_PRODUCTS.tiled(&[Tile::Four])];
pub(super) const SG_MM_8: &[Forms] = &[SG_PRODUCTS.tiled(&[Tile::Eight])];
pub(super) const SG_MM_TILED: &[Forms] = &[SG_PRODUCTS.tiled(&[Tile::Four, Tile::Eight])];
pub(super) const SG_MM_WIDE: &[Forms] = &[SG_PRODUCTS.loading(WIDE)];
pub(super) const SG_QKV_1: &[Forms] = &[SG_PROJECTION.tiled(&[Tile::One])];
pub(super) const SG_QKV_2: &[Forms] = &[SG_PROJECTION.tiled(&[Tile::Two])];
pub(super) const SG_QKV_WIDE: &[Forms] = &[SG_PROJECTION.loading(WIDE)];
pub(super) const SG_FFN: &[Forms] = &[SG_FEED_FORWARD];
pub(super) const SG_QKV_TILED: &[Forms] = &[SG_PROJECTION.tiled(&[Tile::Two]), SG_FEED_FORWARD];
pub(super) const SG_F32_1: &[Forms] = &[SG_F32.tiled(&[Tile::One])];
pub(super) const SG_F32_4: &[Forms] = &[SG_F32.tiled(&[Tile::Four])];
pub(super) const SG_F32_8: &[Forms] = &[SG_F32.tiled(&[Tile::Eight])];

// several vectors
const BATCHED_PRODUCT: Forms = PRODUCT.batched(Batch::Dynamic);
const BATCHED_FEED_FORWARD: Forms = FEED_FORWARD.batched(Batch::Dynamic);
const TREE_OR_ROW: &[Reduce] = &[Reduce::Tree, Reduce::Row];
pub(super) const GEMM: &[Forms] = &[BATCHED_PRODUCT.by(&[Reduce::Gemm])];
pub(super) const BATCHED: &[Forms] = &[BATCHED_PRODUCT.by(TREE_OR_ROW), BATCHED_FEED_FORWARD];
pub(super) const BATCHED_MM: &[Forms] = &[BATCHED_PRODUCT.by(TREE_OR_ROW)];
pub(super) const BATCHED_FFN: &[Forms] = &[BATCHED_FEED_FORWARD];
pub(super) const TREE_BATCHED: &[Forms] =
    &[BATCHED_PRODUCT.by(TREE), BATCHED_FEED_FORWARD.by(TREE)];
pub(super) const TREE_BATCHED_MM: &[Forms] = &[BATCHED_PRODUCT.by(TREE)];
pub(super) const ROW_BATCHED_MM: &[Forms] = &[BATCHED_PRODUCT.by(ROW)];
pub(super) const TREE_BATCHED_FFN: &[Forms] = &[BATCHED_FEED_FORWARD.by(TREE)];
pub(super) const ROW_BATCHED_FFN: &[Forms] = &[BATCHED_FEED_FORWARD.by(ROW)];
pub(super) const FOUR: &[Forms] = &[PRODUCT.batched(Batch::Four)];

// integer products
const DP4A_LOAD: &[Load] = &[Load::Dp4a];
const DP4A_ROLES: &[Role] = &[
    Role::Int4Matmul,
    Role::Int4MatmulAdd,
    Role::QkvFused,
    Role::QkvFusedScratch,
    Role::QkvFusedNorm,
    Role::FusedFfn,
    Role::FusedFfnNorm,
];
pub(super) const DP4A: &[Forms] = &[of(DP4A_ROLES).loading(DP4A_LOAD)];
pub(super) const DP4A_32: &[Forms] = &[of(DP4A_ROLES)
    .loading(DP4A_LOAD)
    .tiled(&[Tile::Sixteen, Tile::ThirtyTwo])];
pub(super) const DP4A_GEMM: &[Forms] = &[BATCHED_PRODUCT.by(&[Reduce::Gemm]).loading(DP4A_LOAD)];
pub(super) const DP4A_F32: &[Forms] =
    &[of(&[Role::Int4Matmul]).loading(DP4A_LOAD).giving(Elem::F32)];
/// Those whose outputs need not fill a workgroup, and that read nothing at their places.
pub(super) const DP4A_ENDS: &[Forms] =
    &[of(&[Role::Int4Matmul, Role::FusedFfn, Role::FusedFfnNorm]).loading(DP4A_LOAD)];
pub(super) const DP4A_ADD: &[Forms] = &[of(&[Role::Int4MatmulAdd]).loading(DP4A_LOAD)];
pub(super) const DP4A_FFN: &[Forms] =
    &[of(&[Role::FusedFfn, Role::FusedFfnNorm]).loading(DP4A_LOAD)];
pub(super) const DP4A_NORM: &[Forms] =
    &[of(&[Role::QkvFusedNorm, Role::FusedFfnNorm]).loading(DP4A_LOAD)];

// attention and argmax that load wide
const WIDE_LOAD: &[Load] = &[Load::Vec4];
pub(super) const WIDE_ATT: &[Forms] = &[of(&[Role::Attention, Role::AttentionSplitk])
    .by(SUBGROUP)
    .loading(WIDE_LOAD)];
const EITHER_ARGMAX: Forms = of(&[Role::Argmax]).by(SUBGROUP).loading(WIDE_LOAD);
pub(super) const WIDE_ARGMAX: &[Forms] = &[EITHER_ARGMAX];
pub(super) const WIDE_F32_ARGMAX: &[Forms] = &[EITHER_ARGMAX.giving(Elem::F32)];

// attention
pub(super) const ATT: &[Forms] = &[ATTENTION];
pub(super) const TREE_ATT: &[Forms] = &[ATTENTION.by(TREE)];
pub(super) const ROW_ATT: &[Forms] = &[ATTENTION.by(ROW)];
pub(super) const SG_ATT: &[Forms] = &[ATTENTION.by(SUBGROUP)];
pub(super) const BLOCK_ATT: &[Forms] = &[ATTENTION.by(TREE_OR_SUBGROUP)];
pub(super) const ROW_OR_SG_ATT: &[Forms] = &[ATTENTION.by(&[Reduce::Row, Reduce::Subgroup])];
pub(super) const PLAIN_ATT: &[Forms] = &[PLAIN_ATTENTION];
pub(super) const PLAIN_TREE: &[Forms] = &[PLAIN_ATTENTION.by(TREE)];
pub(super) const PLAIN_ROW: &[Forms] = &[PLAIN_ATTENTION.by(ROW)];
pub(super) const PLAIN_BLOCK: &[Forms] = &[PLAIN_ATTENTION.by(TREE_OR_SUBGROUP)];
pub(super) const INT8_ATT: &[Forms] = &[INT8_ATTENTION];
pub(super) const INT8_TREE: &[Forms] = &[INT8_ATTENTION.by(TREE)];
pub(super) const INT8_ROW: &[Forms] = &[INT8_ATTENTION.by(ROW)];
pub(super) const ONE_QUERY: &[Forms] = &[of(&[
    Role::Attention,
    Role::AttentionSplitk,
    Role::AttentionInt8,
])];
pub(super) const ONE_INT8_QUERY: &[Forms] = &[of(&[Role::AttentionInt8])];
pub(super) const CHUNK: &[Forms] = &[of(&[Role::AttentionPrefill, Role::AttentionPrefillInt8])];
pub(super) const WHOLE: &[Forms] = &[of(&[Role::Attention, Role::AttentionInt8])];
pub(super) const SPLIT: &[Forms] = &[of(&[Role::AttentionSplitk])];
pub(super) const EMPTY_PARTS: &[Forms] = &[of(&[Role::Attention, Role::AttentionSplitk]).by(ROW)];
pub(super) const COMBINE: &[Forms] = &[of(&[Role::AttentionCombine])];

// roles of one form
pub(super) const RMS_NORM: &[Forms] = &[of(&[Role::RmsNorm])];
pub(super) const ADD_NORM: &[Forms] = &[of(&[Role::AddNorm])];
pub(super) const ADD3_NORM: &[Forms] = &[of(&[Role::Add3Norm])];
pub(super) const SUM_NORMS: &[Forms] = &[of(&[Role::AddNorm, Role::Add3Norm])];
pub(super) const NORMS: &[Forms] = &[of(&[Role::RmsNorm, Role::AddNorm, Role::Add3Norm])];
pub(super) const EVERY_NORM: &[Forms] = &[of(&[
    Role::RmsNorm,
    Role::AddNorm,
    Role::Add3Norm,
    Role::QkNorm,
    Role::QkNormRopeAppend,
])];
pub(super) const HEAD_NORMS: &[Forms] = &[of(&[Role::QkNorm, Role::QkNormRopeAppend])];
pub(super) const QK_NORM: &[Forms] = &[of(&[Role::QkNorm])];
pub(super) const QK_APPEND: &[Forms] = &[of(&[Role::QkNormRopeAppend])];
pub(super) const EMBEDDING: &[Forms] = &[of(&[Role::Embedding])];
pub(super) const ROPE: &[Forms] = &[of(&[Role::Rope])];
pub(super) const ROTATION: &[Forms] =
    &[of(&[Role::Rope, Role::QkNormRopeAppend]), EVERY_PROJECTION];
pub(super) const ELEMENTS: &[Forms] = &[of(&[
    Role::Embedding,
    Role::Rope,
    Role::KvAppend,
    Role::GatedQkvSplit,
    Role::AttnGate,
    Role::GdnConvSeq,
])];
pub(super) const KV_APPEND: &[Forms] = &[of(&[Role::KvAppend])];
pub(super) const KV_QUANTIZE: &[Forms] = &[of(&[Role::KvQuantizeInt8])];
pub(super) const SILU_MUL: &[Forms] = &[of(&[Role::SiluMul])];
const SAMPLING: Forms = of(&[Role::Argmax]);
pub(super) const ARGMAX: &[Forms] = &[SAMPLING.by(TREE)];
pub(super) const SG_ARGMAX: &[Forms] = &[SAMPLING.by(SUBGROUP)];
pub(super) const EVERY_ARGMAX: &[Forms] = &[SAMPLING];
pub(super) const F32_ARGMAX: &[Forms] = &[SAMPLING.giving(Elem::F32)];
const REDUCTION: Forms = of(&[Role::SampleReduce]);
pub(super) const SAMPLE_REDUCE: &[Forms] = &[REDUCTION, REDUCTION.giving(Elem::F32)];
const SELECTION: Forms = of(&[Role::SampleSelect]);
pub(super) const SAMPLE_SELECT: &[Forms] = &[SELECTION, SELECTION.giving(Elem::F32)];

// gated DeltaNet and experts
pub(super) const GATED_SPLIT: &[Forms] = &[of(&[Role::GatedQkvSplit])];
pub(super) const ATTN_GATE: &[Forms] = &[of(&[Role::AttnGate])];
pub(super) const ONE_CONV: &[Forms] = &[of(&[Role::GdnConv])];
pub(super) const CHUNK_CONV: &[Forms] = &[of(&[Role::GdnConvSeq])];
pub(super) const CONVS: &[Forms] = &[of(&[Role::GdnConv, Role::GdnConvSeq])];
pub(super) const CONV_COMMIT: &[Forms] = &[of(&[Role::GdnConvCommit])];
pub(super) const GATES: &[Forms] = &[of(&[Role::GdnGates])];
const STATE: Forms = of(&[Role::GdnRecur]);
pub(super) const RECUR: &[Forms] = &[STATE];
pub(super) const TREE_RECUR: &[Forms] = &[STATE.by(TREE)];
pub(super) const SG_RECUR: &[Forms] = &[STATE.by(SUBGROUP)];
pub(super) const SCAN: &[Forms] = &[STATE.batched(Batch::Dynamic)];
pub(super) const NORM_OUT: &[Forms] = &[of(&[Role::GdnNormOut])];
pub(super) const TREE_ADDED: &[Forms] = &[of(&[Role::GdnRecur, Role::GdnNormOut]).by(TREE)];
pub(super) const ROUTER: &[Forms] = &[of(&[Role::MoeRouterLogits])];
pub(super) const TOPK: &[Forms] = &[of(&[Role::MoeRouterTopk])];
pub(super) const MIXTURE: &[Forms] = &[of(&[Role::MoeCombine])];
