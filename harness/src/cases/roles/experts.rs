//! Products with the matrices of experts.

use super::{concat, held, with_weights};
use crate::{
    cases::bench::{Bench, Judged, model, set, unplanned},
    check::{store, sum_form},
    kernel::Operand,
};
use anyhow::{Result, ensure};
use kernels::Variant;
use reference::{Packed, numerics::widen, roles::int4_matmul_moe};

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
    ] {
        set(&mut dispatch, name, value as u32);
    }
    let groups = rows.div_ceil(variant.outputs_per_workgroup());
    dispatch.grid = [groups as u32, tokens as u32, count as u32];
    let operands = vec![
        ("out", Operand::FloatOutput(tokens * out_token)),
        ("x", Operand::Floats(&padded)),
        ("ids", Operand::data(&named)),
    ];
    let operands = with_weights(operands, w);
    let found = bench
        .run(variant, &model(), dispatch, operands)?
        .values("out");
    let form = sum_form(variant, w.k);
    let (mut written, mut expected) = (vec![], vec![]);
    let mut between = found.clone();
    for (t, of_token) in ids.iter().enumerate() {
        for (s, &id) in of_token.iter().enumerate() {
            let x = &x[(t * count + if *own_x { s } else { 0 }) * w.k..][..w.k];
            let x = widen(&held(variant, x));
            let row = int4_matmul_moe::expected(w.matrix(), *rows, id, &x, form, store(variant))?;
            expected.push(row);
            let at = t * out_token + s * out_slot;
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
