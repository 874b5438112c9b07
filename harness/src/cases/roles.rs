//! One function per role: operands in, what the kernel gave beside what the
//! reference expects of exactly these operands.

use super::{
    bench::{Bench, Judged, model, set},
    data::Packed,
};
use crate::{
    check::{head_form, merges, norm_form, output_store, score_form, sum_form},
    kernel::{Operand, Outputs},
};
use anyhow::{Result, ensure};
use half::f16;
use kernels::{
    ModelSpec, Variant,
    kv::{PAGE_SIZE, Side, pages_for},
    models::Family,
    plan::fold,
};
use reference::{
    Expected,
    bounds::{Accumulation, Store, Trig},
    numerics::decode,
    roles::{
        add_norm, argmax, attention, attention_combine, attention_splitk, embedding, fused_ffn,
        int4_matmul, kv_append, qk_norm,
        qk_norm_rope_append::{self, HeadNorm},
        qkv_fused::{self, QkvShape},
        rms_norm, rope,
    },
};

fn inv_freq(spec: &ModelSpec) -> Vec<f32> {
    spec.inv_freq().iter().map(|&f| f as f32).collect()
}

/// `offset` entries that must not be read, then `values`.
fn behind<T: Copy>(offset: usize, junk: T, values: &[T]) -> Vec<T> {
    let mut all = vec![junk; offset];
    all.extend_from_slice(values);
    all
}

// ---- norms ----

/// `x` `[T, D]`.
pub(crate) fn rms_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    x: &[f16],
    gamma: &[f16],
) -> Result<Vec<Judged>> {
    let d = spec.hidden_size;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.groups(&mut dispatch, x.len() / d);
    let operands = vec![
        ("out", Operand::output::<f16>(x.len())),
        ("x", Operand::data(x)),
        ("gamma", Operand::data(gamma)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?.f16("out");
    let gamma = decode(gamma);
    let rows = x.chunks_exact(d).map(|x| {
        let form = norm_form(variant, d);
        rms_norm::expected(&decode(x), &gamma, spec.rms_norm_eps, form, Store::F16)
    });
    Ok(vec![Judged::new("out", found, concat(rows))])
}

/// `a` and `b` `[T, D]`.
pub(crate) fn add_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    a: &[f16],
    b: &[f16],
    gamma: &[f16],
) -> Result<Vec<Judged>> {
    let d = spec.hidden_size;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.groups(&mut dispatch, a.len() / d);
    let operands = vec![
        ("a", Operand::data(a)),
        ("b", Operand::data(b)),
        ("gamma", Operand::data(gamma)),
        ("normed", Operand::output::<f16>(a.len())),
        ("residual", Operand::output::<f16>(a.len())),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let gamma = decode(gamma);
    let rows: Vec<_> = a
        .chunks_exact(d)
        .zip(b.chunks_exact(d))
        .map(|(a, b)| {
            let (a, b, form) = (decode(a), decode(b), norm_form(variant, d));
            add_norm::expected(&a, &b, &gamma, spec.rms_norm_eps, form, Store::F16)
        })
        .collect();
    Ok(vec![
        Judged::new(
            "residual",
            found.f16("residual"),
            concat(rows.iter().map(|row| row.residual.clone())),
        ),
        Judged::new(
            "normed",
            found.f16("normed"),
            concat(rows.iter().map(|row| row.normed.clone())),
        ),
    ])
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

/// `qkv` `[T, Q + 2 KV]`, gammas of query and key heads `[HD]`.
pub(crate) fn qk_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f16],
    gammas: [&[f16]; 2],
) -> Result<Vec<Judged>> {
    let spec = &with_head_norm(spec);
    let tokens = qkv.len() / spec.qkv_dim();
    let heads = spec.num_attention_heads + spec.num_key_value_heads;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(&mut dispatch, "seq_len", tokens as u32);
    bench.groups(&mut dispatch, tokens * heads);
    // A token past `seq_len` must stay as it is.
    let mut before = qkv.to_vec();
    before.resize(qkv.len() + spec.qkv_dim(), f16::ONE);
    let operands = vec![
        ("qkv", Operand::data(&before)),
        ("q_gamma", Operand::data(gammas[0])),
        ("k_gamma", Operand::data(gammas[1])),
    ];
    let after = bench.run(variant, spec, dispatch, operands)?.halves("qkv");
    let (after, rest) = after.split_at(qkv.len());
    let shape = QkvShape::of(spec);
    let form = head_form(variant, spec.head_dim);
    let [q_gamma, k_gamma] = gammas.map(decode);
    let (mut found, mut expected) = ([vec![], vec![]], [vec![], vec![]]);
    let (mut v_found, mut v) = (bits(rest), bits(&before[qkv.len()..]));
    let rows = qkv.chunks_exact(spec.qkv_dim());
    for (before, after) in rows.zip(after.chunks_exact(spec.qkv_dim())) {
        let values = spec.q_dim() + spec.kv_dim();
        v_found.extend(bits(&after[values..]));
        v.extend(bits(&before[values..]));
        let (before, after) = (decode(before), decode(after));
        let (before, after) = (shape.split(&before), shape.split(&after));
        found[0].extend_from_slice(after.q);
        found[1].extend_from_slice(after.k);
        for (x, gamma, to) in [(before.q, &q_gamma, 0), (before.k, &k_gamma, 1)] {
            let eps = spec.rms_norm_eps;
            expected[to].push(qk_norm::expected(x, gamma, eps, form, Store::F16));
        }
    }
    let [q_found, k_found] = found;
    let [q, k] = expected.map(|rows| concat(rows.into_iter()));
    Ok(vec![
        Judged::new("q", q_found, q),
        Judged::new("k", k_found, k),
        Judged::exact("v and what follows", v_found, v),
    ])
}

// ---- matrices ----

/// `w` `[V, D]` as the head.
pub(crate) fn int4_matmul(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    x: &[f16],
) -> Result<Vec<Judged>> {
    let spec = ModelSpec {
        hidden_size: w.k,
        vocab_size: w.rows,
        ..model()
    };
    let dispatch = bench.dispatch(variant, &spec, 0);
    let store = output_store(variant);
    let out = match store {
        Store::F32 => Operand::output::<f32>(w.rows),
        Store::F16 | Store::F16Either => Operand::output::<f16>(w.rows),
    };
    let operands = vec![
        ("out", out),
        ("x", Operand::data(x)),
        ("scales", Operand::data(&w.scales)),
        ("weights", Operand::data(&w.words)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?;
    let found = match store {
        Store::F32 => found.f32("out"),
        Store::F16 | Store::F16Either => found.f16("out"),
    };
    let form = sum_form(variant, w.k);
    let expected = int4_matmul::expected(w.matrix(), &decode(x), form, store);
    Ok(vec![Judged::new("out", found, expected)])
}

/// `w` `[2 F, D]`; only the first `units` of the F outputs are asked for, and
/// the others must stay as they are.
pub(crate) fn fused_ffn(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    x: &[f16],
    units: usize,
) -> Result<Vec<Judged>> {
    let f = w.rows / 2;
    let spec = ModelSpec {
        hidden_size: w.k,
        intermediate_size: f,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "packGridDimX", units as u32);
    let groups = units.div_ceil(variant.outputs_per_workgroup());
    dispatch.grid = fold(groups, bench.max_groups);
    let operands = vec![
        ("out", Operand::output::<f16>(f)),
        ("x", Operand::data(x)),
        ("scales", Operand::data(&w.scales)),
        ("weights", Operand::data(&w.words)),
    ];
    let mut found = bench.run(variant, &spec, dispatch, operands)?.f16("out");
    let rest = found.split_off(units);
    ensure!(
        rest.iter().all(|y| y.is_nan()),
        "a unit past packGridDimX is written"
    );
    let form = sum_form(variant, w.k);
    let mut expected = fused_ffn::expected(w.matrix(), &decode(x), form, Store::F16);
    expected.value.truncate(units);
    expected.limit.truncate(units);
    Ok(vec![Judged::new("out", found, expected)])
}

/// `w` `[V, D]`.
pub(crate) fn embedding(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    ids: &[u32],
) -> Result<Vec<Judged>> {
    let spec = ModelSpec {
        hidden_size: w.k,
        vocab_size: w.rows,
        ..model()
    };
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    bench.tokens(&mut dispatch, ids.len(), w.k);
    let operands = vec![
        ("out", Operand::output::<f16>(ids.len() * w.k)),
        ("ids", Operand::data(ids)),
        ("scales", Operand::data(&w.scales)),
        ("weights", Operand::data(&w.words)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?.f16("out");
    let rows: Vec<Expected> = ids
        .iter()
        .map(|&id| embedding::expected(w.matrix(), id))
        .collect::<Result<_, _>>()?;
    Ok(vec![Judged::new("out", found, concat(rows.into_iter()))])
}

/// `w` `[Q + 2 KV, D]`; `pages` are the cache before, all of `max_pages`.
pub(crate) fn qkv_fused(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    w: &Packed,
    x: &[f16],
    cache: &Cache,
    position: usize,
) -> Result<Vec<Judged>> {
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(
        &mut dispatch,
        "position_map_elem_offset",
        cache.offset as u32,
    );
    set(&mut dispatch, "pages_elem_offset", cache.offset as u32);
    let position_map = behind(cache.offset, i32::MAX, &[position as i32]);
    let before = behind(cache.offset, f16::NAN, &cache.pages);
    let inv_freq = inv_freq(spec);
    let operands = vec![
        ("q_out", Operand::output::<f16>(spec.q_dim())),
        ("kv_pages", Operand::data(&before)),
        ("x", Operand::data(x)),
        ("scales", Operand::data(&w.scales)),
        ("weights", Operand::data(&w.words)),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
        ("inv_freq", Operand::data(&inv_freq)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let after = found.halves("kv_pages").split_off(cache.offset);
    let at = |side| -> Result<Vec<f16>> {
        let layout = spec.kv_layout();
        let all = kv_append::gather(&after, layout, &cache.table, side, position + 1)?;
        Ok(all[position * spec.kv_dim()..].to_vec())
    };
    let (k, v) = (at(Side::K)?, at(Side::V)?);
    let form = qkv_fused::QkvForm {
        sum: sum_form(variant, w.k),
        trig: Trig::CONFORMANT,
        store: Store::F16,
    };
    let expected = qkv_fused::expected(
        w.matrix(),
        &decode(x),
        QkvShape::of(spec),
        &rope::Rope::of(spec),
        position,
        form,
    );
    let mut replaced = cache.pages.clone();
    let layout = spec.kv_layout();
    kv_append::compute(&mut replaced, layout, &cache.table, position as i32, &k, &v)?;
    Ok(vec![
        Judged::new("q", found.f16("q_out"), expected.q),
        Judged::new("k", decode(&k), expected.k),
        Judged::new("v", decode(&v), expected.v),
        Judged::exact("other slots", bits(&after), bits(&replaced)),
    ])
}

/// Bit patterns, so that NaN and the sign of zero compare too.
fn bits(values: &[f16]) -> Vec<f64> {
    values.iter().map(|v| f64::from(v.to_bits())).collect()
}

// ---- rotation and cache ----

/// `qkv` `[T, Q + 2 KV]`; without `rotate` it is only split.
pub(crate) fn rope(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f16],
    positions: &[i32],
    offset: usize,
    rotate: bool,
) -> Result<Vec<Judged>> {
    let tokens = positions.len();
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.tokens(&mut dispatch, tokens, spec.qkv_dim());
    set(&mut dispatch, "position_map_elem_offset", offset as u32);
    set(&mut dispatch, "apply_rope", u32::from(rotate));
    let position_map = behind(offset, i32::MAX, positions);
    let inv_freq = inv_freq(spec);
    let operands = vec![
        ("q_out", Operand::output::<f16>(tokens * spec.q_dim())),
        ("k_out", Operand::output::<f16>(tokens * spec.kv_dim())),
        ("v_out", Operand::output::<f16>(tokens * spec.kv_dim())),
        ("qkv", Operand::data(qkv)),
        ("position_map", Operand::data(&position_map)),
        ("inv_freq", Operand::data(&inv_freq)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let table = rope::Rope::of(spec);
    let (mut q, mut k, mut v) = (vec![], vec![], vec![]);
    for (qkv, &position) in qkv.chunks_exact(spec.qkv_dim()).zip(positions) {
        let qkv = decode(qkv);
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
            rope::expected(&table, x, &none, position, Trig::CONFORMANT, Store::F16)
        };
        q.push(rotated(row.q));
        k.push(rotated(row.k));
        v.extend_from_slice(row.v);
    }
    Ok(vec![
        Judged::new("q", found.f16("q_out"), concat(q.into_iter())),
        Judged::new("k", found.f16("k_out"), concat(k.into_iter())),
        Judged::exact("v", found.f16("v_out"), v),
    ])
}

/// Pages with a table: page `i` of the sequence is page `table[i]` of `pages`.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    pub(crate) pages: Vec<f16>,
    pub(crate) table: Vec<u32>,
    /// Entries that stand in front of pages and positions, not to be read.
    pub(crate) offset: usize,
}

impl Cache {
    /// All of `spec`'s pages, each slot NaN.
    pub(crate) fn empty(spec: &ModelSpec, table: Vec<u32>, offset: usize) -> Self {
        Self {
            pages: vec![f16::NAN; spec.max_pages * spec.kv_layout().page_stride()],
            table,
            offset,
        }
    }

    /// Stores keys and values `[len, KV]` from position 0 on.
    pub(crate) fn fill(&mut self, spec: &ModelSpec, k: &[f16], v: &[f16]) {
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
    k: &[f16],
    v: &[f16],
) -> Result<Vec<Judged>> {
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
    let before = behind(cache.offset, f16::NAN, &cache.pages);
    let operands = vec![
        ("k", Operand::data(k)),
        ("v", Operand::data(v)),
        ("kv_pages", Operand::data(&before)),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let mut expected = cache.pages.clone();
    let kv = spec.kv_dim();
    let rows = k.chunks_exact(kv).zip(v.chunks_exact(kv));
    for (&position, (k, v)) in positions.iter().zip(rows) {
        let layout = spec.kv_layout();
        kv_append::compute(&mut expected, layout, &cache.table, position, k, v)?;
    }
    let expected = behind(cache.offset, f16::NAN, &expected);
    let after = bits(&found.halves("kv_pages"));
    Ok(vec![Judged::exact("pages", after, bits(&expected))])
}

/// `qkv` `[T, Q + 2 KV]`, gammas of query and key heads `[HD]`; a negative
/// position is padding. `cache.offset` is not used: the uniform has none.
pub(crate) fn qk_norm_rope_append(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f16],
    gammas: [&[f16]; 2],
    cache: &Cache,
    positions: &[i32],
) -> Result<Vec<Judged>> {
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
        ("q_out", Operand::output::<f16>(tokens * spec.q_dim())),
        ("kv_pages", Operand::data(&cache.pages)),
        ("qkv", Operand::data(qkv)),
        ("q_gamma", Operand::data(gammas[0])),
        ("k_gamma", Operand::data(gammas[1])),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
        ("inv_freq", Operand::data(&inv_freq)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let after = found.halves("kv_pages");
    let q_found = found.f16("q_out");
    let [q_gamma, k_gamma] = gammas.map(decode);
    let norm = HeadNorm {
        q_gamma: &q_gamma,
        k_gamma: &k_gamma,
        eps: spec.rms_norm_eps,
    };
    let form = qkv_fused::QkvForm {
        sum: head_form(variant, spec.head_dim),
        trig: Trig::CONFORMANT,
        store: Store::F16,
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
        let stored = |side| -> Result<Vec<f16>> {
            let all = kv_append::gather(&after, layout, &cache.table, side, at + 1)?;
            Ok(all[at * spec.kv_dim()..].to_vec())
        };
        let (key, value) = (stored(Side::K)?, stored(Side::V)?);
        kv_append::compute(&mut replaced, layout, &cache.table, position, &key, &value)?;
        let shape = QkvShape::of(spec);
        let expected = qk_norm_rope_append::expected(&decode(row), shape, norm, &table, at, form);
        written.extend_from_slice(query);
        k_found.extend(decode(&key));
        v_found.extend(decode(&value));
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

// ---- attention ----

/// Queries `[Q]`, keys and values `[len, KV]`, and how they are paged.
#[derive(Clone, Debug)]
pub(crate) struct Attended {
    pub(crate) q: Vec<f16>,
    pub(crate) k: Vec<f16>,
    pub(crate) v: Vec<f16>,
    /// At least the pages of the sequence, in any order.
    pub(crate) table: Vec<u32>,
    /// Entries of other sequences in front of the table's.
    pub(crate) first_page: usize,
    /// Entries in front of pages, lengths and page tables.
    pub(crate) offset: usize,
}

impl Attended {
    fn len(&self, spec: &ModelSpec) -> usize {
        self.k.len() / spec.kv_dim()
    }

    /// Runs the role; `out` is its output.
    fn run(
        &self,
        bench: &mut Bench<'_>,
        variant: Variant,
        spec: &ModelSpec,
        parts: u32,
        out: (&'static str, Operand<'_>),
    ) -> Result<Outputs> {
        let len = self.len(spec);
        let mut cache = Cache::empty(spec, self.table.clone(), self.offset);
        cache.fill(spec, &self.k, &self.v);
        // Wide loads take eight elements, so pages start at a multiple of eight.
        let pages_offset = 8 * self.offset;
        let pages = behind(pages_offset, f16::NAN, &cache.pages);
        let first = self.first_page as i32;
        let indptr = [first, first + pages_for(len) as i32];
        let indptr = behind(self.offset, i32::MAX, &indptr);
        let lengths = behind(self.offset, i32::MAX, &[len as i32, 0, 0]);
        let table = behind(self.first_page, 0, &self.table);
        let table = behind(self.offset, 0, &table);
        let mut dispatch = bench.dispatch(variant, spec, parts);
        set(&mut dispatch, "pages_elem_offset", pages_offset as u32);
        for name in [
            "page_indptr_elem_offset",
            "page_values_elem_offset",
            "length_info_elem_offset",
        ] {
            set(&mut dispatch, name, self.offset as u32);
        }
        let operands = vec![
            ("q", Operand::data(&self.q)),
            ("page_indptr", Operand::data(&indptr)),
            ("page_values", Operand::data(&table)),
            ("kv_pages", Operand::data(&pages)),
            ("length_info", Operand::data(&lengths)),
            out,
        ];
        bench.run(variant, spec, dispatch, operands)
    }
}

pub(crate) fn attention(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
) -> Result<Vec<Judged>> {
    let out = ("out", Operand::output::<f16>(spec.q_dim()));
    let found = attended.run(bench, variant, spec, 0, out)?.f16("out");
    let expected = whole(spec, attended, score_form(variant, spec.head_dim), merges(variant));
    Ok(vec![Judged::new("out", found, expected)])
}

/// What attention in one piece (`merges` 0) or in parts (1) must give.
pub(crate) fn whole(
    spec: &ModelSpec,
    attended: &Attended,
    score: Accumulation,
    merges: usize,
) -> Expected {
    let form = attention::AttentionForm {
        score,
        merges,
        store: Store::F16,
    };
    let Attended { q, k, v, .. } = attended;
    let shape = attention::AttentionShape::of(spec);
    attention::expected(&decode(q), &decode(k), &decode(v), shape, form)
}

fn partials_len(spec: &ModelSpec, parts: u32) -> usize {
    spec.num_attention_heads * parts as usize * kernels::kv::partial_len(spec.head_dim)
}

pub(crate) fn attention_splitk(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
    parts: u32,
) -> Result<Vec<Judged>> {
    let out = (
        "partials",
        Operand::output::<f32>(partials_len(spec, parts)),
    );
    let found = attended.run(bench, variant, spec, parts, out)?;
    let Attended { q, k, v, .. } = attended;
    let expected = attention_splitk::expected(
        &decode(q),
        &decode(k),
        &decode(v),
        attention::AttentionShape::of(spec),
        parts as usize,
        score_form(variant, spec.head_dim),
        merges(variant),
    );
    Ok(vec![Judged::new(
        "partials",
        found.f32("partials"),
        expected,
    )])
}

pub(crate) fn attention_combine(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    partials: &[f32],
    parts: u32,
) -> Result<Vec<Judged>> {
    let dispatch = bench.dispatch(variant, spec, parts);
    let operands = vec![
        ("partials", Operand::data(partials)),
        ("out", Operand::output::<f16>(spec.q_dim())),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?.f16("out");
    let partials: Vec<f64> = partials.iter().map(|&x| f64::from(x)).collect();
    let (head_dim, parts) = (spec.head_dim, parts as usize);
    let expected = attention_combine::expected(&partials, head_dim, parts, Store::F16);
    Ok(vec![Judged::new("out", found, expected)])
}

// ---- sampling ----

/// Logits as the variant reads them.
pub(crate) fn argmax(
    bench: &mut Bench<'_>,
    variant: Variant,
    logits: &[f32],
) -> Result<Vec<Judged>> {
    let spec = ModelSpec {
        vocab_size: logits.len(),
        ..model()
    };
    let dispatch = bench.dispatch(variant, &spec, 0);
    let halves: Vec<f16> = logits.iter().map(|&x| f16::from_f32(x)).collect();
    let (bound, read) = match output_store(variant) {
        Store::F32 => (
            Operand::data(logits),
            logits.iter().map(|&x| f64::from(x)).collect(),
        ),
        Store::F16 | Store::F16Either => (Operand::data(&halves), decode(&halves)),
    };
    let operands = vec![("logits", bound), ("token", Operand::output::<i32>(1))];
    let found = bench.run(variant, &spec, dispatch, operands)?.i32("token");
    let expected = argmax::compute(&read).expect("logits without NaN");
    let found = found.into_iter().map(f64::from).collect();
    Ok(vec![Judged::exact("token", found, vec![expected as f64])])
}

/// Positions that a cache of `spec` holds.
pub(crate) fn last_slot(spec: &ModelSpec) -> usize {
    spec.max_pages * PAGE_SIZE - 1
}
