//! Properties of every role over ragged shapes and adversarial data, against the
//! reference with its derived limits. A seed draws one case of a property.

mod attention;
mod cache;
mod delta_net;
mod experts;
mod ffn;
mod norms;
mod sampling;

use self::attention::{
    attention, attention_combine, attention_prefill, attention_splitk, chunk_as_steps, every_score,
    last_part_dominates, long_context, page_order, parts_alone,
};
use self::cache::{
    append_as_steps, every_head_dim, kv_append, kv_quantize_int8, quantise_as_steps,
};
pub(crate) use self::delta_net::of_net;
use self::delta_net::{
    attn_gate, gated_qkv_split, gdn_conv, gdn_gates, gdn_norm_out, gdn_recur, recur_as_steps,
};
use self::experts::{int4_matmul_moe, moe_combine, moe_router_logits, moe_router_topk};
use self::ffn::{
    folded_ffn, folded_prologue, fused_ffn, fused_ffn_norm, fused_ffn_prologue, gamma_for,
    long_ffn_norm, silu_mul, silu_mul_folds, silu_saturates,
};
use self::norms::{
    add_norm, add3_norm, padded_positions, qk_norm, qk_norm_rope_append, rms_norm, rope,
};
use self::sampling::{
    argmax, argmax_of, sample_reduce, sample_reduce_of, sample_select, sample_select_of,
};
use super::{
    bench::{Bench, Judged, model},
    data::{Kind, Values, WeightKind},
    roles::{self as cases, Attended, Cache, Chunk, Int8Cache, last_slot},
};
use anyhow::{Context as _, Result, anyhow, ensure};
use kernels::{
    Elem, ModelSpec, QuantFormat, Role, Variant,
    kv::{PAGE_SIZE, pages_for, partial_len},
    models::RopeScaling,
    variants::Batch,
};
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner},
};
use reference::{
    Packed,
    numerics::widen,
    roles::{attention::AttentionShape, attention_splitk},
};
use std::cell::RefCell;

/// Something that holds for every variant of a role.
#[derive(Debug)]
pub(crate) struct Property {
    /// The last part of its cases' id.
    pub(crate) name: &'static str,
    /// The role.
    role: Role,
    /// Whether a seed draws another case, and not other data of the same one.
    pub(crate) drawn: bool,
    /// Whether it is about the format of weights too; fixed shapes are about the form,
    /// and tried in one format.
    every_format: bool,
    /// The variants of the role that it is tried on.
    pub(crate) of: fn(Variant) -> bool,
    /// Runs the case of a seed.
    pub(crate) run: fn(&mut Bench<'_>, Variant, Draw) -> Result<()>,
}

impl Property {
    /// Whether it is tried on a variant.
    pub(crate) fn holds(&self, variant: Variant) -> bool {
        let tried = self.every_format || variant.in_base_format();
        self.role == variant.role && tried && (self.of)(variant)
    }
}

const fn drawn(role: Role, run: fn(&mut Bench<'_>, Variant, Draw) -> Result<()>) -> Property {
    Property {
        name: "drawn",
        role,
        drawn: true,
        every_format: true,
        of: |_| true,
        run,
    }
}

const fn fixed(
    name: &'static str,
    role: Role,
    run: fn(&mut Bench<'_>, Variant, Draw) -> Result<()>,
) -> Property {
    Property {
        name,
        role,
        drawn: false,
        every_format: false,
        of: |_| true,
        run,
    }
}

/// A property of many rows, which cost a case much and which the types of operands
/// have no part in: tried in f16 alone.
const fn of_rows(
    name: &'static str,
    role: Role,
    run: fn(&mut Bench<'_>, Variant, Draw) -> Result<()>,
) -> Property {
    Property {
        of: |v| v.elem == Elem::F16 && v.out == Elem::F16,
        ..fixed(name, role, run)
    }
}

/// Every property, by role; of one role the cheap ones first.
pub(crate) const PROPERTIES: &[Property] = &[
    fixed("parts", Role::Embedding, embedding_parts),
    fixed("vocab_1003", Role::Embedding, |b, v, d| {
        embedding_of(b, v, d, 1003)
    }),
    drawn(Role::Embedding, embedding),
    fixed("vocab_40001", Role::Embedding, |b, v, d| {
        embedding_of(b, v, d, 40_001)
    }),
    drawn(Role::RmsNorm, rms_norm),
    fixed("every_lane", Role::QkvFused, qkv_every_lane),
    drawn(Role::QkvFused, qkv_fused),
    fixed("every_lane", Role::QkvFusedNorm, qkv_every_lane),
    drawn(Role::QkvFusedNorm, qkv_fused),
    fixed("every_lane", Role::QkvFusedScratch, qkv_every_lane),
    drawn(Role::QkvFusedScratch, qkv_fused_scratch),
    fixed("page_order", Role::Attention, page_order),
    fixed("context_2048", Role::Attention, |b, v, d| {
        long_context(b, v, d, 128)
    }),
    fixed("context_8192", Role::Attention, |b, v, d| {
        long_context(b, v, d, 512)
    }),
    fixed("every_score", Role::Attention, every_score),
    drawn(Role::Attention, attention),
    fixed("page_order", Role::AttentionSplitk, page_order),
    fixed("context_2048", Role::AttentionSplitk, |b, v, d| {
        long_context(b, v, d, 128)
    }),
    fixed("every_score", Role::AttentionSplitk, every_score),
    drawn(Role::AttentionSplitk, attention_splitk),
    fixed("parts_alone", Role::AttentionSplitk, parts_alone),
    fixed(
        "last_part_dominates",
        Role::AttentionCombine,
        last_part_dominates,
    ),
    drawn(Role::AttentionCombine, attention_combine),
    fixed("page_order", Role::AttentionInt8, page_order),
    fixed("every_score", Role::AttentionInt8, every_score),
    drawn(Role::AttentionInt8, attention),
    fixed("page_order", Role::AttentionPrefillInt8, page_order),
    fixed("every_score", Role::AttentionPrefillInt8, every_score),
    fixed("chunk_as_steps", Role::AttentionPrefillInt8, chunk_as_steps),
    drawn(Role::AttentionPrefillInt8, attention_prefill),
    fixed("page_order", Role::AttentionPrefill, page_order),
    fixed("every_score", Role::AttentionPrefill, every_score),
    fixed("chunk_as_steps", Role::AttentionPrefill, chunk_as_steps),
    drawn(Role::AttentionPrefill, attention_prefill),
    fixed("vocab_1003", Role::Int4Matmul, |b, v, d| {
        head_of(b, v, d, 1003)
    }),
    drawn(Role::Int4Matmul, int4_matmul),
    drawn(Role::Int4MatmulAdd, int4_matmul_add),
    fixed("long_row", Role::Int4MatmulAdd, long_matmul_add),
    of_rows("vocab_40001", Role::Int4Matmul, |b, v, d| {
        head_of(b, v, d, 40_001)
    }),
    Property {
        of: |v| v.elem == Elem::F16 && v.out == Elem::F16 && !v.is_batched(),
        ..fixed("rows_at_the_limit", Role::Int4Matmul, rows_at_the_limit)
    },
    Property {
        // A wide form's matrix of this many rows is too large.
        of: |v| v.elem == Elem::F16 && v.out == Elem::F16 && !v.is_batched() && v.k_step() == 32,
        ..fixed("vocab_151936", Role::Int4Matmul, |b, v, d| {
            head_of(b, v, d, 151_936)
        })
    },
    Property {
        every_format: true,
        of: |v| v.out == Elem::F32 && v.elem == Elem::F16,
        ..fixed("wider_than_f16", Role::Int4Matmul, wider_than_f16)
    },
    drawn(Role::Int4MatmulMoe, int4_matmul_moe),
    fixed("folded", Role::FusedFfn, folded_ffn),
    fixed("silu_saturates", Role::FusedFfn, silu_saturates),
    drawn(Role::FusedFfn, fused_ffn),
    fixed("folded", Role::FusedFfnPrologue, folded_prologue),
    drawn(Role::FusedFfnPrologue, fused_ffn_prologue),
    drawn(Role::FusedFfnNorm, fused_ffn_norm),
    fixed("long_row", Role::FusedFfnNorm, long_ffn_norm),
    drawn(Role::SiluMul, silu_mul),
    fixed("groups_69632", Role::SiluMul, silu_mul_folds),
    drawn(Role::AddNorm, add_norm),
    drawn(Role::Add3Norm, add3_norm),
    fixed("chunk_as_steps", Role::KvAppend, append_as_steps),
    drawn(Role::KvAppend, kv_append),
    fixed("every_head_dim", Role::KvQuantizeInt8, every_head_dim),
    fixed("chunk_as_steps", Role::KvQuantizeInt8, quantise_as_steps),
    drawn(Role::KvQuantizeInt8, kv_quantize_int8),
    drawn(Role::Rope, rope),
    drawn(Role::QkNorm, qk_norm),
    drawn(Role::QkNormRopeAppend, qk_norm_rope_append),
    drawn(Role::GatedQkvSplit, gated_qkv_split),
    drawn(Role::AttnGate, attn_gate),
    drawn(Role::GdnConv, gdn_conv),
    drawn(Role::GdnConvSeq, gdn_conv),
    drawn(Role::GdnConvCommit, gdn_conv),
    drawn(Role::GdnGates, gdn_gates),
    drawn(Role::GdnRecur, gdn_recur),
    Property {
        // The form for a chunk adds in another order.
        of: |v| !v.is_batched(),
        ..fixed("chunk_as_steps", Role::GdnRecur, recur_as_steps)
    },
    drawn(Role::GdnNormOut, gdn_norm_out),
    drawn(Role::MoeRouterLogits, moe_router_logits),
    drawn(Role::MoeRouterTopk, moe_router_topk),
    drawn(Role::MoeCombine, moe_combine),
    fixed("vocab_1003", Role::Argmax, |b, v, d| {
        argmax_of(b, v, d, 1003)
    }),
    drawn(Role::Argmax, argmax),
    fixed("vocab_40001", Role::Argmax, |b, v, d| {
        argmax_of(b, v, d, 40_001)
    }),
    fixed("vocab_151936", Role::Argmax, |b, v, d| {
        argmax_of(b, v, d, 151_936)
    }),
    drawn(Role::SampleReduce, sample_reduce),
    fixed("vocab_151936", Role::SampleReduce, |b, v, d| {
        sample_reduce_of(b, v, d, 151_936)
    }),
    drawn(Role::SampleSelect, sample_select),
    fixed("vocab_40001", Role::SampleSelect, |b, v, d| {
        sample_select_of(b, v, d, 40_001)
    }),
];

/// What a case is drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) seed: u64,
    /// Simpler cases tried after a failure; each is compiled and run.
    pub(crate) shrinks: u32,
}

impl Draw {
    /// Draws one case and judges it; a failure names the simplest case that fails.
    fn judge<S: Strategy>(
        self,
        bench: &mut Bench<'_>,
        variant: Variant,
        strategy: S,
        property: impl Fn(&mut Bench<'_>, Variant, &S::Value) -> Result<()>,
    ) -> Result<()> {
        let config = Config {
            cases: 1,
            rng_seed: RngSeed::Fixed(self.seed),
            failure_persistence: None,
            max_shrink_iters: self.shrinks,
            ..Config::default()
        };
        let bench = RefCell::new(bench);
        let result = TestRunner::new(config).run(&strategy, |case| {
            property(&mut bench.borrow_mut(), variant, &case)
                .map_err(|error| TestCaseError::fail(format!("{error:#}")))
        });
        result.map_err(|error| match error {
            TestError::Fail(why, case) => anyhow!("{why}\n{case:?}"),
            TestError::Abort(why) => anyhow!("no case can be drawn: {why}"),
        })
    }
}

fn require(judged: Result<Vec<Judged>>) -> Result<()> {
    judged?.iter().try_for_each(Judged::require)
}

// ---- shapes ----

/// Numbers of quantisation groups along K: primes, so that no power of two
/// covers a row evenly.
const GROUPS: [usize; 9] = [1, 2, 3, 5, 7, 11, 17, 23, 47];

/// A width of whole groups of 32.
fn widths() -> impl Strategy<Value = usize> {
    select(&GROUPS[..]).prop_map(|groups| groups * 32)
}

/// Multiples of what a variant needs of K.
fn widths_for(variant: Variant) -> BoxedStrategy<usize> {
    match variant.k_step() {
        group @ ..=64 => select(&GROUPS[..]).prop_map(move |n| n * group).boxed(),
        step => select(&[1, 2, 3][..]).prop_map(move |n| n * step).boxed(),
    }
}

/// The format of a variant that reads weights.
fn format_of(variant: Variant) -> QuantFormat {
    variant.format.expect("a role with weights has a format")
}

/// The dispatch limit of every device.
const WHOLE: u32 = 65_535;
/// A limit that folds small grids.
const FOLDS: u32 = 7;

/// The device's own dispatch limit, or one that folds small grids into z.
fn max_groups() -> impl Strategy<Value = u32> {
    select(&[WHOLE, FOLDS][..])
}

/// Heads, as a model with small other dimensions.
fn heads() -> impl Strategy<Value = ModelSpec> {
    let head_dims = select(&[32_usize, 64, 96, 128, 256][..]);
    let kv_heads = select(&[1_usize, 2, 3][..]);
    let group = select(&[1_usize, 2, 3, 5][..]);
    let pages = select(&[1_usize, 4, 7][..]);
    let rotary = (select(&[1_usize, 2][..]), any::<bool>());
    (head_dims, kv_heads, group, pages, rotary).prop_map(
        |(head_dim, kv, group, max_pages, (part, scaled))| ModelSpec {
            head_dim,
            num_key_value_heads: kv,
            num_attention_heads: kv * group,
            max_pages,
            rotary_dim: head_dim / part,
            rope_scaling: scaled.then(|| scaled_rope(head_dim / part / 2)),
            ..model()
        },
    )
}

/// A scaling of RoPE that multiplies rotated values by 1.04.
fn scaled_rope(pairs: usize) -> RopeScaling {
    RopeScaling::Longrope {
        short_factor: (0..pairs).map(|i| 1.0 + i as f64 / 8.0).collect(),
        long_factor: vec![1.0; pairs],
        original_max_position_embeddings: 4096,
        max_position_embeddings: 8192,
    }
}

/// Positions at the edges of pages, up to the last slot.
fn edges(spec: &ModelSpec) -> Vec<usize> {
    let last = last_slot(spec);
    let mut edges: Vec<usize> = [0, 14, 15, 16, 17, 30, 31, 32, last - 1, last]
        .into_iter()
        .filter(|&position| position <= last)
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// `x` halved until no element of `W x` exceeds `most`.
fn fitted(w: &Packed, mut x: Vec<f32>, most: f64) -> Vec<f32> {
    loop {
        let y = w.matrix().matvec(&widen(&x));
        if y.iter().all(|y| y.abs() <= most) {
            return x;
        }
        for x in &mut x {
            *x *= 0.5;
        }
    }
}

/// A product `W x`.
#[derive(Clone, Debug)]
struct Product {
    k: usize,
    rows: usize,
    weights: WeightKind,
    x: Kind,
    max_groups: u32,
    seed: u64,
}

impl Product {
    /// Matrix and activations of one vector; no element of the product exceeds `most`.
    fn operands(&self, variant: Variant, most: f64) -> (Packed, Vec<f32>) {
        self.operands_of(variant, 1, most)
    }

    /// The same of several vectors.
    fn operands_of(&self, variant: Variant, tokens: usize, most: f64) -> (Packed, Vec<f32>) {
        let mut values = Values(self.seed);
        let w = values.packed(format_of(variant), self.rows, self.k, self.weights);
        let x = (0..tokens).flat_map(|token| {
            let x = match self.weights {
                // Nearly equal activations: the sum is small, its parts are not.
                WeightKind::Cancelling => (0..self.k)
                    .map(|i| 100.0 + ((i + token) % 7) as f32 * 0.0625)
                    .collect(),
                WeightKind::Ordinary
                | WeightKind::ZeroScales
                | WeightKind::SubnormalScales
                | WeightKind::NegativeScales => values.activations(self.k, self.x, 0.7),
            };
            fitted(&w, x, most)
        });
        let x = x.collect();
        (w, x)
    }
}

/// Products of widths that a variant takes. In another format than q4f16_1 few are
/// drawn, so activations are of kinds that let every weight show.
fn products(
    variant: Variant,
    rows: impl Strategy<Value = usize>,
) -> impl Strategy<Value = Product> {
    let x = if variant.in_base_format() {
        &Kind::ALL[..]
    } else {
        &[Kind::Ordinary, Kind::OutlierChannels, Kind::Large]
    };
    let kinds = (select(&WeightKind::ALL[..]), select(x));
    (widths_for(variant), rows, kinds, max_groups(), any::<u64>()).prop_map(
        |(k, rows, (weights, x), max_groups, seed)| Product {
            k,
            rows,
            weights,
            x,
            max_groups,
            seed,
        },
    )
}

// ---- matrices ----

/// Vectors of a dispatch: one, or as many as fill a tile, and more or fewer.
fn vectors_for(variant: Variant) -> BoxedStrategy<usize> {
    match variant.batch {
        Batch::One => Just(1).boxed(),
        Batch::Four => Just(4).boxed(),
        Batch::Dynamic => select(&[1_usize, 2, 3, 4, 5, 31, 33, 64, 65][..]).boxed(),
    }
}

fn int4_matmul(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let rows = || select(&[1_usize, 2, 3, 15, 16, 17, 31, 53, 97, 130][..]);
    draw.judge(
        bench,
        variant,
        (products(variant, rows()), vectors_for(variant)),
        |bench, variant, (case, vectors)| {
            let (w, x) = case.operands_of(variant, *vectors, 60_000.0);
            bench.max_groups = case.max_groups;
            require(cases::int4_matmul(bench, variant, &w, &x))
        },
    )
}

fn int4_matmul_add(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let rows = || select(&[1_usize, 2, 3, 15, 16, 17, 31, 53, 97, 130][..]);
    draw.judge(
        bench,
        variant,
        (products(variant, rows()), select(&Kind::ALL[..])),
        |bench, variant, (case, kind)| {
            let (w, x) = case.operands(variant, 30_000.0);
            let residual = Values(case.seed).activations(case.rows, *kind, 1.0);
            bench.max_groups = case.max_groups;
            require(cases::int4_matmul_add(bench, variant, &w, [&x, &residual]))
        },
    )
}

/// A row of more groups of 32 than a workgroup has invocations.
const LONG_ROW: usize = 8384;

fn long_matmul_add(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), 40, LONG_ROW, WeightKind::Ordinary);
    let x = fitted(&w, values.activations(w.k, Kind::Ordinary, 0.7), 30_000.0);
    let residual = values.activations(w.rows, Kind::Ordinary, 1.0);
    require(cases::int4_matmul_add(bench, variant, &w, [&x, &residual]))
}

fn embedding(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let vocabularies = || select(&[1_usize, 2, 40, 1003][..]);
    draw.judge(
        bench,
        variant,
        (products(variant, vocabularies()), 1_usize..4),
        |bench, variant, (case, tokens)| {
            let mut values = Values(case.seed);
            let w = values.packed(format_of(variant), case.rows, case.k, case.weights);
            bench.max_groups = case.max_groups;
            let mut ids = vec![case.rows as u32 - 1];
            ids.extend((1..*tokens).map(|_| values.below(case.rows) as u32));
            require(cases::embedding(bench, variant, &w, &ids))
        },
    )
}

fn qkv_fused(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(
        bench,
        variant,
        {
            let products = products(variant, Just(0));
            (heads(), products, select(&[0_usize, 3][..]))
        },
        |bench, variant, (heads, case, offset)| {
            let spec = ModelSpec {
                hidden_size: case.k,
                ..heads.clone()
            };
            let product = Product {
                rows: spec.qkv_dim(),
                ..case.clone()
            };
            // A rotation can grow an element by sqrt(2).
            let (w, x) = product.operands(variant, 40_000.0);
            let mut values = Values(case.seed);
            bench.max_groups = case.max_groups;
            let positions = if variant.in_base_format() {
                edges(&spec)
            } else {
                vec![last_slot(&spec)]
            };
            let gamma = (variant.role == Role::QkvFusedNorm)
                .then(|| gamma_for(&w, &x, 40_000.0, &mut values));
            let x = (&x[..], gamma.as_deref());
            for position in positions {
                let cache = Cache::empty(&spec, values.permutation(spec.max_pages), *offset);
                require(cases::qkv_fused(
                    bench, variant, &spec, &w, x, &cache, position,
                ))
                .with_context(|| format!("position {position}"))?;
            }
            Ok(())
        },
    )
}

/// The same to buffers of their own, at positions near and far.
fn qkv_fused_scratch(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let position = select(&[0_usize, 1, 15, 16, 4095, 131_071][..]);
    draw.judge(
        bench,
        variant,
        {
            let products = products(variant, Just(0));
            (heads(), products, select(&[0_usize, 3][..]), position)
        },
        |bench, variant, (heads, case, offset, position)| {
            let spec = ModelSpec {
                hidden_size: case.k,
                ..heads.clone()
            };
            let product = Product {
                rows: spec.qkv_dim(),
                ..case.clone()
            };
            let (w, x) = product.operands(variant, 40_000.0);
            bench.max_groups = case.max_groups;
            let at = [*offset, *position];
            require(cases::qkv_fused_scratch(bench, variant, &spec, &w, &x, at))
        },
    )
}

/// Rows so long that every invocation of a workgroup has a share of each.
fn qkv_every_lane(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let k = 1504_usize.next_multiple_of(variant.k_step());
    let spec = ModelSpec {
        hidden_size: k,
        ..model()
    };
    let mut values = Values(draw.seed);
    let rows = spec.qkv_dim();
    let w = values.packed(format_of(variant), rows, k, WeightKind::Ordinary);
    let x = values.activations(k, Kind::Ordinary, 0.7);
    if variant.role == Role::QkvFusedScratch {
        return require(cases::qkv_fused_scratch(
            bench,
            variant,
            &spec,
            &w,
            &x,
            [0, 5],
        ));
    }
    let cache = Cache::empty(&spec, values.permutation(spec.max_pages), 0);
    let gamma =
        (variant.role == Role::QkvFusedNorm).then(|| gamma_for(&w, &x, 40_000.0, &mut values));
    let x = (&x[..], gamma.as_deref());
    require(cases::qkv_fused(bench, variant, &spec, &w, x, &cache, 5))
}

/// The head of a vocabulary that no tile divides.
fn head_of(bench: &mut Bench<'_>, variant: Variant, draw: Draw, vocab: usize) -> Result<()> {
    let k = variant.k_step().max(96);
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), vocab, k, WeightKind::Ordinary);
    let vectors = if variant.is_batched() { 4 } else { 1 };
    let x = values.activations(vectors * k, Kind::Ordinary, 0.7);
    bench.max_groups = if vocab < 40_001 { FOLDS } else { WHOLE };
    require(cases::int4_matmul(bench, variant, &w, &x))
}

/// Rows without cancellation, whose limit is far below the rounding to f16 of an output
/// that is to be f32.
fn wider_than_f16(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (rows, k) = (4, 96_usize.next_multiple_of(variant.k_step()));
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), rows, k, WeightKind::Ordinary);
    let x = values.activations(k, Kind::Ordinary, 0.7);
    for row in 0..rows {
        let mut weights = vec![0.0; k];
        w.matrix().row_into(row, &mut weights);
        let aligned = weights.iter().zip(&x).map(|(w, x)| x.abs().copysign(*w));
        let aligned: Vec<f32> = aligned.collect();
        let judged = cases::int4_matmul(bench, variant, &w, &aligned)?;
        let out = judged.first().context("an output")?;
        let (value, limit) = (out.expected.value[row], out.expected.limit[row]);
        ensure!(
            limit < value.abs() * f64::from(half::f16::EPSILON) / 8.0,
            "row {row}: {value} within {limit} says little of its type"
        );
        require(Ok(judged))?;
    }
    Ok(())
}

/// As many rows, and as many workgroups, as one dimension of a dispatch takes, and
/// one and two more.
fn rows_at_the_limit(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    // A limit that keeps a wide form's matrix small; the whole one for the others.
    let limit = if variant.k_step() == 32 { WHOLE } else { 255 };
    let mut values = Values(draw.seed);
    bench.max_groups = limit;
    let limit = limit as usize;
    let outputs = variant.outputs_per_workgroup();
    let tiles = if outputs <= 8 { limit * outputs } else { limit };
    for rows in [limit, limit + 1, limit + 2, tiles, tiles + 1, tiles + 2] {
        let w = values.packed(
            format_of(variant),
            rows,
            variant.k_step(),
            WeightKind::Ordinary,
        );
        let x = values.activations(variant.k_step(), Kind::Ordinary, 0.7);
        require(cases::int4_matmul(bench, variant, &w, &x))
            .with_context(|| format!("{rows} rows"))?;
    }
    Ok(())
}

/// The embedding of the same.
fn embedding_of(bench: &mut Bench<'_>, variant: Variant, draw: Draw, vocab: usize) -> Result<()> {
    let mut values = Values(draw.seed);
    // Four tokens of the smaller vocabulary fold the grid.
    let (k, max_groups) = if vocab < 40_001 {
        (1024, FOLDS)
    } else {
        (96, WHOLE)
    };
    let w = values.packed(format_of(variant), vocab, k, WeightKind::Ordinary);
    bench.max_groups = max_groups;
    let ids = [0, 1, vocab as u32 / 2, vocab as u32 - 1];
    require(cases::embedding(bench, variant, &w, &ids))
}

/// Rows in two parts, as where one binding cannot hold all.
fn embedding_parts(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (vocab, cut, k) = (300, 128, 192);
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), vocab, k, WeightKind::Ordinary);
    let ids = [299, 0, 127, 128, 5, 129];
    for part in [0..cut, cut..vocab] {
        require(cases::embedding_rows(bench, variant, &w, &ids, part))?;
    }
    Ok(())
}
