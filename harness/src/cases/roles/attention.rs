//! Attention: over all positions, over parts of them, and for a chunk of tokens.

use super::{Cache, behind, concat, held, untouched};
use crate::{
    cases::bench::{Bench, Judged, set, unplanned},
    check::{attention_form, merges, score_form, store},
    kernel::{Operand, Outputs},
};
use anyhow::{Result, ensure};
use half::f16;
use kernels::{
    Elem, ModelSpec, Variant,
    kv::{KvFormat, pages_for, partial_len},
};
use reference::{
    Expected, Numerics,
    numerics::widen,
    roles::{
        attention, attention_combine, attention_splitk,
        kv_quantize_int8::{self, Pages, Quantised},
    },
};

/// Queries `[Q]`, keys and values `[len, KV]`, and how they are paged.
#[derive(Clone, Debug)]
pub(crate) struct Attended {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    /// At least the pages of the sequence, in any order.
    pub(crate) table: Vec<u32>,
    /// Entries of other sequences in front of the table's.
    pub(crate) first_page: usize,
    /// Entries in front of pages, lengths and page tables.
    pub(crate) offset: usize,
}

/// Elements that a wide load takes: pages start at a multiple of it.
const WIDE_LOAD: usize = 8;
/// Codes that no slot may be left with.
const JUNK: u32 = 0x8181_8181;

/// Keys and values in pages.
enum Stored {
    Plain(Vec<f32>),
    Int8(Pages),
}

impl Stored {
    fn operands(&self) -> Vec<(&'static str, Operand<'_>)> {
        match self {
            Self::Plain(pages) => vec![("kv_pages", Operand::Floats(pages))],
            Self::Int8(pages) => vec![
                ("kv_pages", Operand::data(&pages.codes)),
                ("kv_scales", Operand::data(&pages.scales)),
            ],
        }
    }
}

fn quantised(spec: &ModelSpec, x: &[f32]) -> Quantised {
    kv_quantize_int8::compute(&widen(x), spec.head_dim, Numerics::Faithful(Elem::F16))
}

impl Attended {
    /// The same as the variant's type holds it.
    fn held(&self, variant: Variant) -> Self {
        Self {
            q: held(variant, &self.q),
            k: held(variant, &self.k),
            v: held(variant, &self.v),
            ..self.clone()
        }
    }

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
        let stored = self.stored(spec, variant, self.offset);
        let first = self.first_page as i32;
        let indptr = [first, first + pages_for(len) as i32];
        let indptr = behind(self.offset, i32::MAX, &indptr);
        let lengths = behind(self.offset, i32::MAX, &[len as i32, 0, 0]);
        let table = behind(self.first_page, 0, &self.table);
        let table = behind(self.offset, 0, &table);
        let mut dispatch = bench.dispatch(variant, spec, parts);
        if parts > 0 {
            // One part is no choice of a flag, and a grid like any other.
            dispatch.grid[0] = parts;
            set(&mut dispatch, "num_splits", parts);
        }
        let pages_offset = WIDE_LOAD * self.offset;
        set(&mut dispatch, "pages_elem_offset", pages_offset as u32);
        for name in [
            "page_indptr_elem_offset",
            "page_values_elem_offset",
            "length_info_elem_offset",
        ] {
            set(&mut dispatch, name, self.offset as u32);
        }
        if matches!(stored, Stored::Int8(_)) {
            set(&mut dispatch, "scales_elem_offset", self.offset as u32);
        }
        let mut operands = vec![
            ("q", Operand::Floats(&self.q)),
            ("page_indptr", Operand::data(&indptr)),
            ("page_values", Operand::data(&table)),
            ("length_info", Operand::data(&lengths)),
            out,
        ];
        operands.extend(stored.operands());
        bench.run(variant, spec, dispatch, operands)
    }

    /// Keys and values in the pages that a variant reads, behind `offset` scales and
    /// as many wide loads. Slots that hold none are NaN.
    fn stored(&self, spec: &ModelSpec, variant: Variant, offset: usize) -> Stored {
        if variant.role.kv_format() == Some(KvFormat::Int8) {
            let layout = spec.kv_layout().int8();
            let mut pages = Pages::filled(layout, spec.max_pages, JUNK, f16::NAN);
            let row = spec.kv_dim();
            let rows = self.k.chunks_exact(row).zip(self.v.chunks_exact(row));
            for (position, (k, v)) in rows.enumerate() {
                let [k, v] = [k, v].map(|x| quantised(spec, x));
                pages
                    .write(layout, &self.table, position as i32, [&k, &v])
                    .expect("the table lists every page");
            }
            return Stored::Int8(Pages {
                codes: behind(WIDE_LOAD * offset, JUNK, &pages.codes),
                scales: behind(offset, f16::NAN, &pages.scales),
            });
        }
        let mut cache = Cache::empty(spec, self.table.clone(), offset);
        cache.fill(spec, &self.k, &self.v);
        Stored::Plain(behind(WIDE_LOAD * offset, f32::NAN, &cache.pages))
    }

    /// Keys and values as a variant reads them.
    fn read(&self, spec: &ModelSpec, variant: Variant) -> [Vec<f64>; 2] {
        [&self.k, &self.v].map(|x| {
            if variant.role.kv_format() == Some(KvFormat::Int8) {
                let rows = x.chunks_exact(spec.kv_dim());
                return rows.flat_map(|x| quantised(spec, x).decode()).collect();
            }
            widen(x)
        })
    }
}

pub(crate) fn attention(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
) -> Result<Vec<Judged>> {
    let attended = &attended.held(variant);
    let out = ("out", Operand::FloatOutput(spec.q_dim()));
    let found = attended.run(bench, variant, spec, 0, out)?.values("out");
    let expected = whole(variant, spec, attended, merges(variant));
    Ok(vec![Judged::new("out", found, expected)])
}

/// What a variant must give, in one piece (`merges` 0) or in parts (1).
pub(crate) fn whole(
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
    merges: usize,
) -> Expected {
    let form = attention::AttentionForm {
        merges,
        ..attention_form(variant, spec.head_dim)
    };
    let attended = attended.held(variant);
    let [k, v] = attended.read(spec, variant);
    let shape = attention::AttentionShape::of(spec);
    attention::expected(&widen(&attended.q), &k, &v, shape, form)
}

/// What `attention_splitk` gives.
pub(crate) fn partials(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
    parts: u32,
) -> Result<Vec<f64>> {
    let elements = spec.num_attention_heads * parts as usize * partial_len(spec.head_dim);
    let out = ("partials", Operand::FloatOutput(elements));
    let attended = attended.held(variant);
    let found = attended.run(bench, variant, spec, parts, out)?;
    Ok(found.values("partials"))
}

pub(crate) fn attention_splitk(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    attended: &Attended,
    parts: u32,
) -> Result<Vec<Judged>> {
    let found = partials(bench, variant, spec, attended, parts)?;
    let Attended { q, k, v, .. } = attended.held(variant);
    let expected = attention_splitk::expected(
        &widen(&q),
        &widen(&k),
        &widen(&v),
        attention::AttentionShape::of(spec),
        parts as usize,
        score_form(variant, spec.head_dim),
        merges(variant),
    );
    Ok(vec![Judged::new("partials", found, expected)])
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
        ("partials", Operand::Floats(partials)),
        ("out", Operand::FloatOutput(spec.q_dim())),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?.values("out");
    let partials: Vec<f64> = partials.iter().map(|&x| f64::from(x)).collect();
    let (head_dim, parts) = (spec.head_dim, parts as usize);
    let expected = attention_combine::expected(&partials, head_dim, parts, store(variant));
    Ok(vec![Judged::new("out", found, expected)])
}

/// Queries `[T, Q]` of a chunk over a cache that holds its own keys and values too.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) q: Vec<f32>,
    /// A negative position is padding.
    pub(crate) positions: Vec<i32>,
    /// Every position's keys and values, `[len, KV]`, and their pages.
    pub(crate) cached: Attended,
}

impl Chunk {
    /// A token on its own: its query, over the positions up to its own.
    pub(crate) fn token(&self, spec: &ModelSpec, token: usize) -> Option<Attended> {
        let position = usize::try_from(self.positions[token]).ok()?;
        let seen = (position + 1) * spec.kv_dim();
        Some(Attended {
            q: self.q[token * spec.q_dim()..][..spec.q_dim()].to_vec(),
            k: self.cached.k[..seen].to_vec(),
            v: self.cached.v[..seen].to_vec(),
            ..self.cached.clone()
        })
    }
}

/// Rows of the chunk's tokens; those of padding must stay as they are.
pub(crate) fn attention_prefill(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    chunk: &Chunk,
) -> Result<Vec<Judged>> {
    let tokens = chunk.positions.len();
    let mut dispatch = unplanned(variant);
    // A token past `seq_len` must stay as it is too.
    dispatch.grid = [tokens as u32 + 1, spec.num_attention_heads as u32, 1];
    set(&mut dispatch, "seq_len", tokens as u32);
    let scale = (spec.attention_scale() as f32).to_bits();
    set(&mut dispatch, "sm_scale", scale);
    let mut position_map = chunk.positions.clone();
    position_map.push(0);
    let mut q = chunk.q.clone();
    q.resize(q.len() + spec.q_dim(), 1.0);
    let stored = chunk.cached.held(variant).stored(spec, variant, 0);
    let mut operands = vec![
        ("q", Operand::Floats(&q)),
        ("page_values", Operand::data(&chunk.cached.table)),
        ("out", Operand::FloatOutput(q.len())),
        ("position_map", Operand::data(&position_map)),
    ];
    operands.extend(stored.operands());
    let found = bench.run(variant, spec, dispatch, operands)?;
    let row_bytes = spec.q_dim() * variant.elem.bytes();
    let mut rows = found.bytes("out").chunks_exact(row_bytes);
    let values = found.values("out");
    let (mut written, mut expected) = (vec![], vec![]);
    for (token, row) in rows.by_ref().take(tokens).enumerate() {
        match chunk.token(spec, token) {
            Some(attended) => {
                written.extend_from_slice(&values[token * spec.q_dim()..][..spec.q_dim()]);
                expected.push(whole(variant, spec, &attended, merges(variant)));
            }
            None => ensure!(untouched(row), "a padded row is written"),
        }
    }
    ensure!(rows.all(untouched), "a row past seq_len is written");
    let expected = concat(expected.into_iter());
    Ok(vec![Judged::new("out", written, expected)])
}
