//! The norms: of the residual stream, alone or with what is added to it before, and
//! of heads.

use super::super::bench::{Bench, Judged, set};
use super::{bits, concat, held, with_head_norm};
use crate::{
    check::{head_form, norm_form, store},
    kernel::Operand,
};
use anyhow::Result;
use kernels::{ModelSpec, Variant};
use reference::{
    Expected,
    numerics::widen,
    roles::{add_norm, add3_norm, qk_norm, qkv_fused::QkvShape, rms_norm},
};

/// `x` `[T, D]`.
pub(crate) fn rms_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    x: &[f32],
    gamma: &[f32],
) -> Result<Vec<Judged>> {
    let x = &held(variant, x);
    let gamma = &held(variant, gamma);
    let d = spec.hidden_size;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.groups(&mut dispatch, x.len() / d);
    let operands = vec![
        ("out", Operand::FloatOutput(x.len())),
        ("x", Operand::Floats(x)),
        ("gamma", Operand::Floats(gamma)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?.values("out");
    let gamma = widen(gamma);
    let rows = x.chunks_exact(d).map(|x| {
        let form = norm_form(variant, d);
        rms_norm::expected(&widen(x), &gamma, spec.rms_norm_eps, form, store(variant))
    });
    Ok(vec![Judged::new("out", found, concat(rows))])
}

/// `a` and `b` `[T, D]`.
pub(crate) fn add_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    a: &[f32],
    b: &[f32],
    gamma: &[f32],
) -> Result<Vec<Judged>> {
    let form = norm_form(variant, spec.hidden_size);
    sum_norm(bench, variant, spec, [a, b], gamma, |[a, b], gamma| {
        add_norm::expected(&a, &b, gamma, spec.rms_norm_eps, form, store(variant))
    })
}

/// `a`, `b` and `c` `[T, D]`.
pub(crate) fn add3_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    addends: [&[f32]; 3],
    gamma: &[f32],
) -> Result<Vec<Judged>> {
    let form = norm_form(variant, spec.hidden_size);
    sum_norm(bench, variant, spec, addends, gamma, |rows, gamma| {
        let rows = rows.each_ref().map(|row| &row[..]);
        add3_norm::expected(rows, gamma, spec.rms_norm_eps, form, store(variant))
    })
}

/// The norm of a sum of `addends` `[T, D]`; `expected` is that of one token's rows.
fn sum_norm<const N: usize>(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    addends: [&[f32]; N],
    gamma: &[f32],
    expected: impl Fn([Vec<f64>; N], &[f64]) -> add_norm::AddNorm<Expected>,
) -> Result<Vec<Judged>> {
    let addends = addends.map(|x| held(variant, x));
    let gamma = &held(variant, gamma);
    let (d, len) = (spec.hidden_size, addends[0].len());
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.groups(&mut dispatch, len / d);
    let named = ["a", "b", "c"].into_iter().zip(&addends);
    let mut operands: Vec<_> = named.map(|(name, x)| (name, Operand::Floats(x))).collect();
    operands.extend([
        ("gamma", Operand::Floats(gamma)),
        ("normed", Operand::FloatOutput(len)),
        ("residual", Operand::FloatOutput(len)),
    ]);
    let found = bench.run(variant, spec, dispatch, operands)?;
    let gamma = widen(gamma);
    let row = |at: usize| {
        let out = expected(addends.each_ref().map(|x| widen(&x[at..][..d])), &gamma);
        (out.residual, out.normed)
    };
    let rows = (0..len).step_by(d).map(row);
    let (residual, normed): (Vec<_>, Vec<_>) = rows.unzip();
    let judged =
        |name, rows: Vec<Expected>| Judged::new(name, found.values(name), concat(rows.into_iter()));
    Ok(vec![judged("residual", residual), judged("normed", normed)])
}

/// `qkv` `[T, Q + 2 KV]`, gammas of query and key heads `[HD]`.
pub(crate) fn qk_norm(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    qkv: &[f32],
    gammas: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let gammas = gammas.map(|gamma| held(variant, gamma));
    let qkv = &held(variant, qkv);
    let spec = &with_head_norm(spec);
    let tokens = qkv.len() / spec.qkv_dim();
    let heads = spec.num_attention_heads + spec.num_key_value_heads;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    set(&mut dispatch, "seq_len", tokens as u32);
    bench.groups(&mut dispatch, tokens * heads);
    // A token past `seq_len` must stay as it is.
    let mut before = qkv.to_vec();
    before.resize(qkv.len() + spec.qkv_dim(), 1.0);
    let operands = vec![
        ("qkv", Operand::Floats(&before)),
        ("q_gamma", Operand::Floats(&gammas[0])),
        ("k_gamma", Operand::Floats(&gammas[1])),
    ];
    let after = bench.run(variant, spec, dispatch, operands)?.floats("qkv");
    let (after, rest) = after.split_at(qkv.len());
    let shape = QkvShape::of(spec);
    let form = head_form(variant, spec.head_dim);
    let [q_gamma, k_gamma] = gammas.map(|gamma| widen(&gamma));
    let (mut found, mut expected) = ([vec![], vec![]], [vec![], vec![]]);
    let (mut v_found, mut v) = (bits(rest), bits(&before[qkv.len()..]));
    let rows = qkv.chunks_exact(spec.qkv_dim());
    for (before, after) in rows.zip(after.chunks_exact(spec.qkv_dim())) {
        let values = spec.q_dim() + spec.kv_dim();
        v_found.extend(bits(&after[values..]));
        v.extend(bits(&before[values..]));
        let (before, after) = (widen(before), widen(after));
        let (before, after) = (shape.split(&before), shape.split(&after));
        found[0].extend_from_slice(after.q);
        found[1].extend_from_slice(after.k);
        for (x, gamma, to) in [(before.q, &q_gamma, 0), (before.k, &k_gamma, 1)] {
            let eps = spec.rms_norm_eps;
            expected[to].push(qk_norm::expected(x, gamma, eps, form, store(variant)));
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
