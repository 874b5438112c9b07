//! One function per role: operands in, what the kernel gave beside what the
//! reference expects of exactly these operands.

mod attention;
mod delta_net;
mod experts;
mod kv_int8;
mod norms;
mod sampling;

pub(crate) use attention::{
    Attended, Chunk, attention, attention_combine, attention_prefill, attention_splitk, partials,
    whole,
};
pub(crate) use delta_net::{
    Convolved, Recurred, attn_gate, gated_qkv_split, gdn_conv, gdn_gates, gdn_norm_out, gdn_recur,
};
pub(crate) use experts::{Slots, int4_matmul_moe, moe_combine, moe_router_logits, moe_router_topk};
pub(crate) use kv_int8::{Int8Cache, kv_quantize_int8, quantised};
pub(crate) use norms::{add_norm, add3_norm, qk_norm, rms_norm};
pub(crate) use sampling::{argmax, sample_reduce, sample_select};

use super::bench::{Bench, Judged, Operands, model, set, unplanned};
use crate::{
    check::{head_form, norm_form, output_store, qkv_form, store, sum_form},
    engine::POISON,
    kernel::Operand,
};
use anyhow::{Result, ensure};
use half::f16;
use kernels::{
    Dispatch, Elem, ModelSpec, Variant,
    kv::{PAGE_SIZE, Side},
    models::Family,
    variants::INT8_GROUP,
};
use std::ops::Range;

use reference::{
    Expected, Matrix, Packed,
    bounds::Trig,
    numerics::widen,
    roles::{
        embedding, fused_ffn, fused_ffn_norm, fused_ffn_prologue, int4_matmul, int4_matmul_add,
        kv_append,
        qk_norm_rope_append::{self, HeadNorm},
        qkv_fused::{self, QkvShape},
        qkv_fused_norm::{self, Normed},
        rope, silu_mul,
    },
};

fn inv_freq(spec: &ModelSpec) -> Vec<f32> {
    spec.inv_freq().iter().map(|&f| f as f32).collect()
}

/// Values as the variant's type of activations holds them.
pub(crate) fn held(variant: Variant, values: &[f32]) -> Vec<f32> {
    match variant.elem {
        Elem::F16 => values.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        Elem::F32 => values.to_vec(),
    }
}

/// `offset` entries that must not be read, then `values`.
fn behind<T: Copy>(offset: usize, junk: T, values: &[T]) -> Vec<T> {
    let mut all = vec![junk; offset];
    all.extend_from_slice(values);
    all
}

/// Whether bytes of an output are what they were before the dispatch.
fn untouched(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == POISON)
}

fn concat(rows: impl Iterator<Item = Expected>) -> Expected {
    Expected::from_pairs(rows.flat_map(|row| row.value.into_iter().zip(row.limit)))
}

/// The same model with a norm of heads.
fn with_head_norm(spec: &ModelSpec) -> ModelSpec {
    ModelSpec {
        family: Family::Qwen3,
        ..spec.clone()
    }
}

// ---- matrices ----

/// Operands of a role and the parts of its matrix.
fn with_weights<'a>(operands: Operands<'a>, w: &'a Packed) -> Operands<'a> {
    with_matrix(operands, w.matrix())
}

fn with_matrix<'a>(mut operands: Operands<'a>, w: Matrix<'a>) -> Operands<'a> {
    operands.push(("scales", Operand::Data(w.scales.bytes())));
    operands.push(("weights", Operand::data(w.words)));
    if w.format.is_affine() {
        operands.push(("biases", Operand::data(w.biases)));
    }
    operands
}

/// `w` `[N, K]` and `x` `[M, K]`; for one vector `w` is the head.
pub(crate) fn int4_matmul(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    x: &[f32],
) -> Result<Vec<Judged>> {
    let x = &held(variant, x);
    let spec = ModelSpec {
        hidden_size: w.k,
        vocab_size: w.rows,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "packGridDimX", w.rows as u32);
    bench.tiles(&mut dispatch, w.rows, x.len() / w.k);
    let found = product(bench, &spec, dispatch, w, x, w.rows)?;
    let form = sum_form(variant, w.k);
    let rows = x.chunks_exact(w.k);
    let store = output_store(variant);
    let rows = rows.map(|x| int4_matmul::expected(w.matrix(), &widen(x), form, store));
    Ok(vec![Judged::new("out", found, concat(rows))])
}

/// The output `[M, width]` of a matrix role; nothing behind it may be written.
fn product(
    bench: &mut Bench<'_>,
    spec: &ModelSpec,
    dispatch: Dispatch,
    w: &Packed,
    x: &[f32],
    width: usize,
) -> Result<Vec<f64>> {
    let variant = dispatch.variant;
    let tokens = x.len() / w.k;
    // The rows of the tile that the last tokens leave empty.
    let rows = tokens.next_multiple_of(variant.tokens_per_workgroup());
    let operands = vec![
        ("out", Operand::FloatOutput(rows * width)),
        ("x", Operand::Floats(x)),
    ];
    let operands = with_weights(operands, w);
    let mut found = bench.run(variant, spec, dispatch, operands)?.values("out");
    let rest = found.split_off(tokens * width);
    ensure!(
        rest.iter().all(|y| y.is_nan()),
        "a row past the last token is written"
    );
    Ok(found)
}

/// `w` `[2 F, D]` and `x` `[M, D]`; only the first `units` of the F outputs are asked
/// for, and the others must stay as they are.
pub(crate) fn fused_ffn(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    x: &[f32],
    units: usize,
) -> Result<Vec<Judged>> {
    let x = &held(variant, x);
    let f = w.rows / 2;
    let spec = ModelSpec {
        hidden_size: w.k,
        intermediate_size: f,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "packGridDimX", units as u32);
    bench.tiles(&mut dispatch, units, x.len() / w.k);
    let all = product(bench, &spec, dispatch, w, x, f)?;
    let form = sum_form(variant, w.k);
    let (mut found, mut expected) = (vec![], vec![]);
    for (row, x) in all.chunks_exact(f).zip(x.chunks_exact(w.k)) {
        let (row, rest) = row.split_at(units);
        ensure!(
            rest.iter().all(|y| y.is_nan()),
            "a unit past packGridDimX is written"
        );
        found.extend_from_slice(row);
        let mut row = fused_ffn::expected(w.matrix(), &widen(x), form, store(variant));
        row.value.truncate(units);
        row.limit.truncate(units);
        expected.push(row);
    }
    Ok(vec![Judged::new(
        "out",
        found,
        concat(expected.into_iter()),
    )])
}

/// `w` `[N, K]`, `x` `[K]` and `residual` `[N]`.
pub(crate) fn int4_matmul_add(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    [x, residual]: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let [x, residual] = &[x, residual].map(|x| held(variant, x));
    let spec = ModelSpec {
        hidden_size: w.rows.next_multiple_of(INT8_GROUP),
        intermediate_size: w.k,
        ..model()
    };
    let mut dispatch = unplanned(variant);
    set(
        &mut dispatch,
        "K_PACKED",
        w.format.words_per_row(w.k) as u32,
    );
    set(
        &mut dispatch,
        "SCALES_PER_ROW",
        w.format.scales_per_row(w.k) as u32,
    );
    set(&mut dispatch, "packGridDimX", w.rows as u32);
    bench.tiles(&mut dispatch, w.rows, 1);
    let operands = vec![
        ("out", Operand::FloatOutput(w.rows)),
        ("residual", Operand::Floats(residual)),
        ("x", Operand::Floats(x)),
    ];
    let operands = with_weights(operands, w);
    let found = bench.run(variant, &spec, dispatch, operands)?.values("out");
    let [x, residual] = [x, residual].map(|x| widen(x));
    let form = sum_form(variant, w.k);
    let expected = int4_matmul_add::expected(w.matrix(), &x, &residual, form, store(variant));
    Ok(vec![Judged::new("out", found, expected)])
}

/// `w` `[2 F, D]`, `x` and `gamma` `[D]`; of the F outputs the first `units`, and the
/// others must stay as they are.
pub(crate) fn fused_ffn_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    [x, gamma]: [&[f32]; 2],
    units: usize,
) -> Result<Vec<Judged>> {
    let [x, gamma] = &[x, gamma].map(|x| held(variant, x));
    let f = w.rows / 2;
    let spec = ModelSpec {
        hidden_size: w.k,
        intermediate_size: f,
        ..model()
    };
    let mut dispatch = unplanned(variant);
    set(&mut dispatch, "packGridDimX", units as u32);
    bench.tiles(&mut dispatch, units, 1);
    let operands = vec![
        ("out", Operand::FloatOutput(f)),
        ("x", Operand::Floats(x)),
        ("gamma", Operand::Floats(gamma)),
    ];
    let operands = with_weights(operands, w);
    let mut found = bench.run(variant, &spec, dispatch, operands)?.values("out");
    ensure!(
        found.split_off(units).iter().all(|y| y.is_nan()),
        "a unit past packGridDimX is written"
    );
    let [x, gamma] = [x, gamma].map(|x| widen(x));
    let normed = Normed {
        x: &x,
        gamma: &gamma,
        eps: spec.rms_norm_eps,
    };
    let (squares, products) = (norm_form(variant, w.k), sum_form(variant, w.k));
    let store = store(variant);
    let mut expected = fused_ffn_norm::expected(w.matrix(), normed, squares, products, store);
    expected.value.truncate(units);
    expected.limit.truncate(units);
    Ok(vec![Judged::new("out", found, expected)])
}

/// `w` `[2 F, D]`, `delta`, `residual` and `gamma` `[D]`; of the F outputs the first
/// `units`, and the others must stay as they are.
pub(crate) fn fused_ffn_prologue(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    [delta, residual, gamma]: [&[f32]; 3],
    units: usize,
) -> Result<Vec<Judged>> {
    let [delta, residual, gamma] = &[delta, residual, gamma].map(|x| held(variant, x));
    let f = w.rows / 2;
    let spec = ModelSpec {
        hidden_size: w.k,
        intermediate_size: f,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "packGridDimX", units as u32);
    bench.tiles(&mut dispatch, units, 1);
    let operands = vec![
        ("out", Operand::FloatOutput(f)),
        ("residual", Operand::Floats(residual)),
        ("delta", Operand::Floats(delta)),
        ("gamma", Operand::Floats(gamma)),
    ];
    let operands = with_weights(operands, w);
    let mut found = bench.run(variant, &spec, dispatch, operands)?.values("out");
    ensure!(
        found.split_off(units).iter().all(|y| y.is_nan()),
        "a unit past packGridDimX is written"
    );
    let [delta, residual, gamma] = [delta, residual, gamma].map(|x| widen(x));
    let sum = fused_ffn_prologue::Sum {
        delta: &delta,
        residual: &residual,
        gamma: &gamma,
        eps: spec.rms_norm_eps,
    };
    let (squares, products) = (norm_form(variant, w.k), sum_form(variant, w.k));
    let store = store(variant);
    let mut expected = fused_ffn_prologue::expected(w.matrix(), sum, squares, products, store);
    expected.value.truncate(units);
    expected.limit.truncate(units);
    Ok(vec![Judged::new("out", found, expected)])
}

/// `gate_up` `[T, 2 F]`.
pub(crate) fn silu_mul(
    bench: &mut Bench<'_>,
    variant: Variant,
    f: usize,
    gate_up: &[f32],
) -> Result<Vec<Judged>> {
    let gate_up = &held(variant, gate_up);
    let found = activated(bench, variant, f, gate_up)?;
    let rows = gate_up.chunks_exact(2 * f).map(|row| {
        let none = vec![0.0; row.len()];
        silu_mul::expected(&widen(row), &none, store(variant))
    });
    Ok(vec![Judged::new("out", widen(&found), concat(rows))])
}

/// What `silu_mul` gives; a token past `seq_len` must stay as it is.
pub(crate) fn activated(
    bench: &mut Bench<'_>,
    variant: Variant,
    f: usize,
    gate_up: &[f32],
) -> Result<Vec<f32>> {
    let spec = ModelSpec {
        intermediate_size: f,
        ..model()
    };
    let tokens = gate_up.len() / (2 * f);
    let mut dispatch = unplanned(variant);
    bench.tokens(&mut dispatch, tokens, f);
    let operands = vec![
        ("out", Operand::FloatOutput((tokens + 1) * f)),
        ("gate_up", Operand::Floats(gate_up)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?;
    let rest = &found.bytes("out")[tokens * f * variant.elem.bytes()..];
    ensure!(untouched(rest), "a row past seq_len is written");
    let mut found = found.floats("out");
    found.truncate(tokens * f);
    Ok(found)
}

/// `w` `[V, D]`.
pub(crate) fn embedding(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    ids: &[u32],
) -> Result<Vec<Judged>> {
    embedding_rows(bench, variant, w, ids, 0..w.rows)
}

/// The same of a part of the rows of `w`; tokens of the others must stay as they are.
pub(crate) fn embedding_rows(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    ids: &[u32],
    part: Range<usize>,
) -> Result<Vec<Judged>> {
    let spec = ModelSpec {
        hidden_size: w.k,
        vocab_size: w.rows,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    bench.tokens(&mut dispatch, ids.len(), w.k);
    set(&mut dispatch, "first_row", part.start as u32);
    set(&mut dispatch, "row_count", part.len() as u32);
    // A token past `seq_len` would be stored behind the output.
    let listed = [ids, &[part.start as u32]].concat();
    let operands = vec![
        ("out", Operand::FloatOutput(ids.len() * w.k)),
        ("ids", Operand::data(&listed)),
    ];
    let operands = with_matrix(operands, w.matrix().part(part.start, part.len()));
    let all = bench.run(variant, &spec, dispatch, operands)?.values("out");
    let (mut found, mut expected) = (vec![], vec![]);
    for (row, &id) in all.chunks_exact(w.k).zip(ids) {
        if part.contains(&(id as usize)) {
            found.extend_from_slice(row);
            expected.push(embedding::expected(w.matrix(), id, variant.elem)?);
        } else {
            let untouched = row.iter().all(|x| x.is_nan());
            ensure!(untouched, "a token of another part is written");
        }
    }
    let expected = concat(expected.into_iter());
    Ok(vec![Judged::new("out", found, expected)])
}

/// `w` `[Q + 2 KV, D]`; keys and values are stored as they are.
pub(crate) fn qkv_fused_scratch(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    w: &Packed,
    x: &[f32],
    [offset, position]: [usize; 2],
) -> Result<Vec<Judged>> {
    let x = &held(variant, x);
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(&mut dispatch, "position_map_elem_offset", offset as u32);
    let position_map = behind(offset, i32::MAX, &[position as i32]);
    let inv_freq = inv_freq(spec);
    let operands = vec![
        ("q_out", Operand::FloatOutput(spec.q_dim())),
        ("k_out", Operand::FloatOutput(spec.kv_dim())),
        ("v_out", Operand::FloatOutput(spec.kv_dim())),
        ("x", Operand::Floats(x)),
        ("position_map", Operand::data(&position_map)),
        ("inv_freq", Operand::Floats(&inv_freq)),
    ];
    let operands = with_weights(operands, w);
    let found = bench.run(variant, spec, dispatch, operands)?;
    let expected = qkv_fused::expected(
        w.matrix(),
        &widen(x),
        QkvShape::of(spec),
        &rope::Rope::of(spec),
        position,
        qkv_form(variant, w.k),
    );
    Ok(vec![
        Judged::new("q", found.values("q_out"), expected.q),
        Judged::new("k", found.values("k_out"), expected.k),
        Judged::new("v", found.values("v_out"), expected.v),
    ])
}

/// `w` `[Q + 2 KV, D]`; `pages` are the cache before, all of `max_pages`. With a gamma, `x`
/// is normalised first.
pub(crate) fn qkv_fused(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    w: &Packed,
    (x, gamma): (&[f32], Option<&[f32]>),
    cache: &Cache,
    position: usize,
) -> Result<Vec<Judged>> {
    let cache = &cache.held(variant);
    let x = &held(variant, x);
    let gamma = gamma.map(|gamma| held(variant, gamma));
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(
        &mut dispatch,
        "position_map_elem_offset",
        cache.offset as u32,
    );
    set(&mut dispatch, "pages_elem_offset", cache.offset as u32);
    let position_map = behind(cache.offset, i32::MAX, &[position as i32]);
    let before = behind(cache.offset, f32::NAN, &cache.pages);
    let inv_freq = inv_freq(spec);
    let mut operands = vec![
        ("q_out", Operand::FloatOutput(spec.q_dim())),
        ("kv_pages", Operand::Floats(&before)),
        ("x", Operand::Floats(x)),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
        ("inv_freq", Operand::Floats(&inv_freq)),
    ];
    operands.extend(gamma.iter().map(|gamma| ("gamma", Operand::Floats(gamma))));
    let operands = with_weights(operands, w);
    let found = bench.run(variant, spec, dispatch, operands)?;
    let after = found.floats("kv_pages").split_off(cache.offset);
    let at = |side| -> Result<Vec<f32>> {
        let layout = spec.kv_layout();
        let all = kv_append::gather(&after, layout, &cache.table, side, position + 1)?;
        Ok(all[position * spec.kv_dim()..].to_vec())
    };
    let (k, v) = (at(Side::K)?, at(Side::V)?);
    let form = qkv_form(variant, w.k);
    let (shape, table, x) = (QkvShape::of(spec), rope::Rope::of(spec), &widen(x));
    let w = w.matrix();
    let expected = if let Some(gamma) = gamma {
        let normed = Normed {
            x,
            gamma: &widen(&gamma),
            eps: spec.rms_norm_eps,
        };
        let squares = norm_form(variant, w.k);
        qkv_fused_norm::expected(w, normed, shape, &table, position, squares, form)
    } else {
        qkv_fused::expected(w, x, shape, &table, position, form)
    };
    let mut replaced = cache.pages.clone();
    let layout = spec.kv_layout();
    kv_append::compute(&mut replaced, layout, &cache.table, position as i32, &k, &v)?;
    Ok(vec![
        Judged::new("q", found.values("q_out"), expected.q),
        Judged::new("k", widen(&k), expected.k),
        Judged::new("v", widen(&v), expected.v),
        Judged::exact("other slots", bits(&after), bits(&replaced)),
    ])
}

/// Bit patterns, so that NaN and the sign of zero compare too.
fn bits(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(v.to_bits())).collect()
}

// ---- rotation and cache ----

/// `qkv` `[T, Q + 2 KV]`; without `rotate` it is only split.
pub(crate) fn rope(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f32],
    positions: &[i32],
    offset: usize,
    rotate: bool,
) -> Result<Vec<Judged>> {
    let qkv = &held(variant, qkv);
    let tokens = positions.len();
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.tokens(&mut dispatch, tokens, spec.qkv_dim());
    set(&mut dispatch, "position_map_elem_offset", offset as u32);
    set(&mut dispatch, "apply_rope", u32::from(rotate));
    let position_map = behind(offset, i32::MAX, positions);
    let inv_freq = inv_freq(spec);
    let operands = vec![
        ("q_out", Operand::FloatOutput(tokens * spec.q_dim())),
        ("k_out", Operand::FloatOutput(tokens * spec.kv_dim())),
        ("v_out", Operand::FloatOutput(tokens * spec.kv_dim())),
        ("qkv", Operand::Floats(qkv)),
        ("position_map", Operand::data(&position_map)),
        ("inv_freq", Operand::Floats(&inv_freq)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let table = rope::Rope::of(spec);
    let (mut q, mut k, mut v) = (vec![], vec![], vec![]);
    for (qkv, &position) in qkv.chunks_exact(spec.qkv_dim()).zip(positions) {
        let qkv = widen(qkv);
        let row = QkvShape::of(spec).split(&qkv);
        let rotated = |x: &[f64]| {
            let none = vec![0.0; x.len()];
            if !rotate {
                return Expected {
                    value: x.to_vec(),
                    limit: none,
                };
            }
            let position = position as usize;
            rope::expected(&table, x, &none, position, Trig::CONFORMANT, store(variant))
        };
        q.push(rotated(row.q));
        k.push(rotated(row.k));
        v.extend_from_slice(row.v);
    }
    Ok(vec![
        Judged::new("q", found.values("q_out"), concat(q.into_iter())),
        Judged::new("k", found.values("k_out"), concat(k.into_iter())),
        Judged::exact("v", found.values("v_out"), v),
    ])
}

/// Pages with a table: page `i` of the sequence is page `table[i]` of `pages`.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) pages: Vec<f32>,
    pub(crate) table: Vec<u32>,
    /// Entries that stand in front of pages and positions, not to be read.
    pub(crate) offset: usize,
}

impl Cache {
    /// All of `spec`'s pages, each slot NaN.
    pub(crate) fn empty(spec: &ModelSpec, table: Vec<u32>, offset: usize) -> Self {
        Self {
            pages: vec![f32::NAN; spec.max_pages * spec.kv_layout().page_stride()],
            table,
            offset,
        }
    }

    /// The same as the variant's type holds it.
    fn held(&self, variant: Variant) -> Self {
        Self {
            pages: held(variant, &self.pages),
            ..self.clone()
        }
    }

    /// Stores keys and values `[len, KV]` from position 0 on.
    pub(crate) fn fill(&mut self, spec: &ModelSpec, k: &[f32], v: &[f32]) {
        let rows = k
            .chunks_exact(spec.kv_dim())
            .zip(v.chunks_exact(spec.kv_dim()));
        for (position, (k, v)) in rows.enumerate() {
            let layout = spec.kv_layout();
            kv_append::compute(&mut self.pages, layout, &self.table, position as i32, k, v)
                .expect("the table lists every page");
        }
    }
}

/// `k` and `v` `[T, KV]`; a negative position is padding.
pub(crate) fn kv_append(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    cache: &Cache,
    positions: &[i32],
    [k, v]: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let cache = &cache.held(variant);
    let [k, v] = &[k, v].map(|x| held(variant, x));
    let found = appended(bench, variant, spec, cache, positions, [k, v])?;
    let mut expected = cache.pages.clone();
    let kv = spec.kv_dim();
    let rows = k.chunks_exact(kv).zip(v.chunks_exact(kv));
    for (&position, (k, v)) in positions.iter().zip(rows) {
        let layout = spec.kv_layout();
        kv_append::compute(&mut expected, layout, &cache.table, position, k, v)?;
    }
    let expected = behind(cache.offset, f32::NAN, &expected);
    Ok(vec![Judged::exact("pages", bits(&found), bits(&expected))])
}

/// The pages after `kv_append`, what stands in front of them too.
pub(crate) fn appended(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    cache: &Cache,
    positions: &[i32],
    [k, v]: [&[f32]; 2],
) -> Result<Vec<f32>> {
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.tokens(&mut dispatch, positions.len(), spec.kv_dim());
    set(
        &mut dispatch,
        "position_map_elem_offset",
        cache.offset as u32,
    );
    set(&mut dispatch, "pages_elem_offset", cache.offset as u32);
    let mut position_map = behind(cache.offset, i32::MAX, positions);
    // A token past `ntoken` would overwrite the first slot.
    position_map.push(0);
    let before = behind(cache.offset, f32::NAN, &cache.pages);
    let operands = vec![
        ("k", Operand::Floats(k)),
        ("v", Operand::Floats(v)),
        ("kv_pages", Operand::Floats(&before)),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    Ok(found.floats("kv_pages"))
}

/// `qkv` `[T, Q + 2 KV]`, gammas of query and key heads `[HD]`; a negative
/// position is padding. `cache.offset` is not used: the uniform has none.
pub(crate) fn qk_norm_rope_append(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f32],
    gammas: [&[f32]; 2],
    cache: &Cache,
    positions: &[i32],
) -> Result<Vec<Judged>> {
    let cache = &cache.held(variant);
    let gammas = gammas.map(|gamma| held(variant, gamma));
    let qkv = &held(variant, qkv);
    let spec = &with_head_norm(spec);
    let tokens = positions.len();
    let heads = spec.num_attention_heads + 2 * spec.num_key_value_heads;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(&mut dispatch, "seq_len", tokens as u32);
    bench.groups(&mut dispatch, tokens * heads);
    // A token past `seq_len` would overwrite the first slot.
    let mut position_map = positions.to_vec();
    position_map.push(0);
    let inv_freq = inv_freq(spec);
    let operands = vec![
        ("q_out", Operand::FloatOutput(tokens * spec.q_dim())),
        ("kv_pages", Operand::Floats(&cache.pages)),
        ("qkv", Operand::Floats(qkv)),
        ("q_gamma", Operand::Floats(&gammas[0])),
        ("k_gamma", Operand::Floats(&gammas[1])),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
        ("inv_freq", Operand::Floats(&inv_freq)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let after = found.floats("kv_pages");
    let q_found = found.values("q_out");
    let [q_gamma, k_gamma] = gammas.map(|gamma| widen(&gamma));
    let norm = HeadNorm {
        q_gamma: &q_gamma,
        k_gamma: &k_gamma,
        eps: spec.rms_norm_eps,
    };
    let form = qkv_fused::QkvForm {
        sum: head_form(variant, spec.head_dim),
        trig: Trig::CONFORMANT,
        store: store(variant),
    };
    let layout = spec.kv_layout();
    let table = rope::Rope::of(spec);
    let mut replaced = cache.pages.clone();
    let (mut q, mut k, mut v) = (vec![], vec![], vec![]);
    let (mut written, mut k_found, mut v_found) = (vec![], vec![], vec![]);
    let rows = qkv.chunks_exact(spec.qkv_dim());
    let queries = q_found.chunks_exact(spec.q_dim());
    for ((row, query), &position) in rows.zip(queries).zip(positions) {
        let Ok(at) = usize::try_from(position) else {
            let skipped = query.iter().all(|q| q.is_nan());
            ensure!(skipped, "queries of padding are written");
            continue;
        };
        let stored = |side| -> Result<Vec<f32>> {
            let all = kv_append::gather(&after, layout, &cache.table, side, at + 1)?;
            Ok(all[at * spec.kv_dim()..].to_vec())
        };
        let (key, value) = (stored(Side::K)?, stored(Side::V)?);
        kv_append::compute(&mut replaced, layout, &cache.table, position, &key, &value)?;
        let shape = QkvShape::of(spec);
        let expected = qk_norm_rope_append::expected(&widen(row), shape, norm, &table, at, form);
        written.extend_from_slice(query);
        k_found.extend(widen(&key));
        v_found.extend(widen(&value));
        q.push(expected.q);
        k.push(expected.k);
        v.push(expected.v);
    }
    Ok(vec![
        Judged::new("q", written, concat(q.into_iter())),
        Judged::new("k", k_found, concat(k.into_iter())),
        Judged::new("v", v_found, concat(v.into_iter())),
        Judged::exact("other slots", bits(&after), bits(&replaced)),
    ])
}

/// Positions that a cache of `spec` holds.
pub(crate) fn last_slot(spec: &ModelSpec) -> usize {
    spec.max_pages * PAGE_SIZE - 1
}
