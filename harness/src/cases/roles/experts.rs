//! Products with the matrices of experts, their router, and the sum of their outputs.

use super::{concat, held, with_matrix, with_weights};
use crate::{
    cases::bench::{Bench, Judged, model, set, unplanned},
    check::{store, sum_form, topk_form},
    kernel::Operand,
};
use anyhow::{Result, ensure};
use kernels::{ModelSpec, Variant, models::Experts};
use reference::{
    Packed,
    bounds::Store,
    numerics::widen,
    roles::{int4_matmul, int4_matmul_moe, moe_combine, moe_router_topk},
};
use std::ops::Range;

/// Experts' matrices and the slots that name them. Strides are in elements.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    /// Rows of one expert.
    pub(crate) rows: usize,
    /// The expert of each slot of each token.
    pub(crate) ids: Vec<Vec<u32>>,
    /// Whether each slot has activations of its own.
    pub(crate) own_x: bool,
    /// Elements between two runs of activations, ids or outputs that are not theirs;
    /// a multiple of 32.
    pub(crate) gap: usize,
    /// Experts whose matrices are bound; the others' outputs must stay as they are.
    pub(crate) bound: Range<usize>,
}

/// `w` `[E, N, K]` as its rows; `x` `[T, S, K]`, of which the first slot's serve all
/// where they share.
pub(crate) fn int4_matmul_moe(
    bench: &mut Bench<'_>,
    variant: Variant,
    w: &Packed,
    x: &[f32],
    slots: &Slots,
) -> Result<Vec<Judged>> {
    let Slots {
        rows,
        ids,
        own_x,
        gap,
        bound,
    } = slots;
    let (tokens, count) = (ids.len(), ids[0].len());
    let (in_slot, out_slot) = (if *own_x { w.k + gap } else { 0 }, rows + gap);
    let (in_token, out_token) = (count * (w.k + gap) + gap, count * out_slot + gap);
    // What lies between is read as NaN, and an id there names no expert.
    let mut padded = vec![f32::NAN; tokens * in_token];
    let mut named = vec![i32::MAX; tokens * (count + gap)];
    for (t, of_token) in ids.iter().enumerate() {
        for (s, &id) in of_token.iter().enumerate() {
            let from = &x[(t * count + s) * w.k..][..w.k];
            padded[t * in_token + s * (w.k + gap)..][..w.k].copy_from_slice(from);
            named[t * (count + gap) + s] = id as i32;
        }
    }
    let mut dispatch = unplanned(variant);
    let format = w.format;
    for (name, value) in [
        ("K_PACKED", format.words_per_row(w.k)),
        ("SCALES_PER_ROW", format.scales_per_row(w.k)),
        ("N", *rows),
        ("IN_SLOT", in_slot),
        ("OUT_SLOT", out_slot),
        ("IN_TOK", in_token),
        ("OUT_TOK", out_token),
        ("IDS_STRIDE", count + gap),
        ("OUT_FIRST", *gap),
        ("FIRST_EXPERT", bound.start),
        ("EXPERTS", bound.len()),
    ] {
        set(&mut dispatch, name, value as u32);
    }
    let groups = rows.div_ceil(variant.outputs_per_workgroup());
    dispatch.grid = [groups as u32, tokens as u32, count as u32];
    let operands = vec![
        ("out", Operand::FloatOutput(tokens * out_token + gap)),
        ("x", Operand::Floats(&padded)),
        ("ids", Operand::data(&named)),
    ];
    let part = w.matrix().slice(bound.start * rows, bound.len() * rows);
    let operands = with_matrix(operands, part);
    let found = bench
        .run(variant, &model(), dispatch, operands)?
        .values("out");
    let form = sum_form(variant, w.k);
    let (mut written, mut expected) = (vec![], vec![]);
    let mut between = found.clone();
    for (t, of_token) in ids.iter().enumerate() {
        for (s, &id) in of_token.iter().enumerate() {
            if !bound.contains(&(id as usize)) {
                continue;
            }
            let x = &x[(t * count + if *own_x { s } else { 0 }) * w.k..][..w.k];
            let x = widen(&held(variant, x));
            let row = int4_matmul_moe::expected(w.matrix(), *rows, id, &x, form, store(variant))?;
            expected.push(row);
            let at = gap + t * out_token + s * out_slot;
            written.extend_from_slice(&found[at..at + rows]);
            between[at..at + rows].fill(f64::NAN);
        }
    }
    ensure!(
        between.iter().all(|y| y.is_nan()),
        "something between the outputs is written"
    );
    Ok(vec![Judged::new(
        "out",
        written,
        concat(expected.into_iter()),
    )])
}

/// `w` `[rows, D]` and `x` `[T, D]`; nothing behind the last token may be written.
pub(crate) fn moe_router_logits(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    w: &Packed,
    x: &[f32],
) -> Result<Vec<Judged>> {
    let x = &held(variant, x);
    let tokens = x.len() / w.k;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    dispatch.grid[1] = tokens as u32;
    let operands = vec![
        ("out", Operand::FloatOutput((tokens + 1) * w.rows)),
        ("x", Operand::Floats(x)),
    ];
    let operands = with_weights(operands, w);
    let mut found = bench.run(variant, spec, dispatch, operands)?.values("out");
    let rest = found.split_off(tokens * w.rows);
    ensure!(
        rest.iter().all(|y| y.is_nan()),
        "a row past the last token is written"
    );
    let form = sum_form(variant, w.k);
    let rows = x.chunks_exact(w.k);
    let rows = rows.map(|x| int4_matmul::expected(w.matrix(), &widen(x), form, Store::F32));
    Ok(vec![Judged::new("out", found, concat(rows))])
}

/// `logits` `[T, E]`, with the shared gate's behind them where there is one.
pub(crate) fn moe_router_topk(
    bench: &mut Bench<'_>,
    variant: Variant,
    experts: &Experts,
    logits: &[f32],
) -> Result<Vec<Judged>> {
    let spec = ModelSpec {
        experts: Some(*experts),
        ..model()
    };
    let tokens = logits.len() / experts.stack();
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    dispatch.grid[0] = tokens as u32;
    let slots = tokens * experts.slots();
    let operands = vec![
        ("ids", Operand::output::<i32>(slots + 1)),
        ("score", Operand::FloatOutput(slots + 1)),
        ("logits", Operand::Floats(logits)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?;
    let (mut ids, mut score) = (found.i32("ids"), found.values("score"));
    let (id, weight) = (ids.split_off(slots), score.split_off(slots));
    ensure!(
        id == [-1] && weight[0].is_nan(),
        "a slot past the last is written"
    );
    let form = topk_form(variant, experts);
    let rows = logits.chunks_exact(experts.stack());
    let chosen = rows.map(|row| moe_router_topk::expected(&widen(row), experts, form));
    let (expected, weights): (Vec<_>, Vec<_>) = chosen.map(|c| (c.ids, c.weights)).unzip();
    let expected = expected.concat().into_iter().map(f64::from).collect();
    let ids = ids.into_iter().map(f64::from).collect();
    Ok(vec![
        Judged::exact("ids", ids, expected),
        Judged::new("score", score, concat(weights.into_iter())),
    ])
}

/// `slots` `[T, S, N]` and `score` `[T, S]`.
pub(crate) fn moe_combine(
    bench: &mut Bench<'_>,
    variant: Variant,
    tokens: usize,
    slots: &[f32],
    score: &[f32],
) -> Result<Vec<Judged>> {
    let slots = &held(variant, slots);
    let (per, n) = (score.len() / tokens, slots.len() / score.len());
    let mut dispatch = unplanned(variant);
    set(&mut dispatch, "N", n as u32);
    set(&mut dispatch, "SLOTS", per as u32);
    dispatch.grid = [n.div_ceil(variant.threads()) as u32, tokens as u32, 1];
    let operands = vec![
        ("out", Operand::FloatOutput((tokens + 1) * n)),
        ("slots", Operand::Floats(slots)),
        ("score", Operand::Floats(score)),
    ];
    let mut found = bench
        .run(variant, &model(), dispatch, operands)?
        .values("out");
    let rest = found.split_off(tokens * n);
    ensure!(
        rest.iter().all(|y| y.is_nan()),
        "a row past the last token is written"
    );
    let rows = slots.chunks_exact(per * n).zip(score.chunks_exact(per));
    let rows = rows.map(|(x, w)| moe_combine::expected(&widen(x), &widen(w), store(variant)));
    Ok(vec![Judged::new("out", found, concat(rows))])
}
