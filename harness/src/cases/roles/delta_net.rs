//! Gated DeltaNet and the gates of attention. Rows are given in the order of their
//! positions; a kernel has the last of them first.

use super::{concat, held, untouched};
use crate::{
    cases::bench::{Bench, Judged, set},
    check::{head_form, recurred, store},
    kernel::Operand,
};
use anyhow::{Result, ensure};
use kernels::{Dispatch, ModelSpec, Role, Variant, models::GatedDeltaNet, plan::chunk_positions};
use reference::{
    numerics::widen,
    roles::{
        attn_gate, gated_qkv_split, gdn_conv,
        gdn_gates::{self, Rates},
        gdn_norm_out,
    },
};

fn net_of(spec: &ModelSpec) -> GatedDeltaNet {
    spec.delta_net.expect("the case is about a state")
}

/// The last row first, as a chunk has its tokens.
fn in_rows(ordered: &[f32], width: usize) -> Vec<f32> {
    let mut rows = ordered.to_vec();
    rows.rotate_right(width);
    rows
}

fn rows_of(values: &[f32], width: usize) -> Vec<Vec<f64>> {
    values.chunks_exact(width).map(widen).collect()
}

fn last_first<T>(mut ordered: Vec<T>) -> impl Iterator<Item = T> {
    ordered.rotate_right(1);
    ordered.into_iter()
}

fn position_map(start: usize, tokens: usize) -> Vec<i32> {
    chunk_positions(start, tokens).map(|p| p as i32).collect()
}

/// An output without the row behind the last, which must be as it was.
fn without_guard(mut found: Vec<f64>, elements: usize) -> Result<Vec<f64>> {
    let rest = found.split_off(elements);
    ensure!(
        rest.iter().all(|x| x.is_nan()),
        "a row past seq_len is written"
    );
    Ok(found)
}

fn of_tokens(bench: &Bench<'_>, dispatch: &mut Dispatch, tokens: usize, groups: usize) {
    set(dispatch, "seq_len", tokens as u32);
    bench.groups(dispatch, groups);
}

/// `c_attn` `[T, 2 Q + 2 KV]`.
pub(crate) fn gated_qkv_split(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    c_attn: &[f32],
) -> Result<Vec<Judged>> {
    let c_attn = &held(variant, c_attn);
    let tokens = c_attn.len() / spec.c_attn_dim();
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.tokens(&mut dispatch, tokens, spec.c_attn_dim());
    let operands = vec![
        ("qkv", Operand::FloatOutput((tokens + 1) * spec.qkv_dim())),
        ("gate", Operand::FloatOutput((tokens + 1) * spec.q_dim())),
        ("c_attn", Operand::Floats(c_attn)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let rows = c_attn.chunks_exact(spec.c_attn_dim());
    let rows = rows.map(|row| gated_qkv_split::compute(&widen(row), spec));
    let (qkv, gate): (Vec<_>, Vec<_>) = rows.map(|split| (split.qkv, split.gate)).unzip();
    let written = |name: &str, width: usize| without_guard(found.values(name), tokens * width);
    Ok(vec![
        Judged::exact("qkv", written("qkv", spec.qkv_dim())?, qkv.concat()),
        Judged::exact("gate", written("gate", spec.q_dim())?, gate.concat()),
    ])
}

/// `x` and `gate` `[T, Q]`.
pub(crate) fn attn_gate(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    [x, gate]: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let [x, gate] = [x, gate].map(|values| held(variant, values));
    let tokens = x.len() / spec.q_dim();
    let mut dispatch = bench.dispatch(variant, spec, 0);
    bench.tokens(&mut dispatch, tokens, spec.q_dim());
    // Behind the last token something that must stay.
    let mut before = x.clone();
    before.extend(vec![3.0; spec.q_dim()]);
    let mut gates = gate.clone();
    gates.extend(vec![1.0; spec.q_dim()]);
    let operands = vec![
        ("attn_out", Operand::Floats(&before)),
        ("gate", Operand::Floats(&gates)),
    ];
    let mut found = bench
        .run(variant, spec, dispatch, operands)?
        .values("attn_out");
    let rest = found.split_off(x.len());
    ensure!(
        rest.iter().all(|&x| x == 3.0),
        "a row past seq_len is written"
    );
    let expected = attn_gate::expected(&widen(&x), &widen(&gate), store(variant));
    Ok(vec![Judged::new("out", found, expected)])
}

/// Raw tokens and what is remembered of those before.
#[derive(Clone, Debug)]
pub(crate) struct Convolved {
    /// `[T, P]`; the channels of the convolution come first.
    pub(crate) proj: Vec<f32>,
    /// `[taps - 1, C]`.
    pub(crate) ring: Vec<f32>,
    /// `[C, taps]`.
    pub(crate) taps: Vec<f32>,
    /// Position of the first token.
    pub(crate) start: usize,
}

/// `gdn_conv` of one token, `gdn_conv_seq` or `gdn_conv_commit` of several.
pub(crate) fn gdn_conv(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    case: &Convolved,
) -> Result<Vec<Judged>> {
    let net = net_of(spec);
    let (proj, ring) = (held(variant, &case.proj), held(variant, &case.ring));
    let taps = held(variant, &case.taps);
    let (channels, width) = (net.conv_dim(), net.proj_dim());
    let tokens = proj.len() / width;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    let elements = if variant.role == Role::GdnConvCommit {
        net.ring_len() * channels
    } else {
        tokens * channels
    };
    bench.tokens(&mut dispatch, 1, elements);
    set(&mut dispatch, "seq_len", tokens as u32);
    let raw = in_rows(&proj, width);
    let positions = position_map(case.start, tokens);
    let mut operands = vec![
        ("qkv_raw", Operand::Floats(&raw)),
        ("ring", Operand::Floats(&ring)),
        ("position_map", Operand::data(&positions)),
    ];
    if variant.role != Role::GdnConvCommit {
        operands.push(("w", Operand::Floats(&taps)));
        operands.push(("out", Operand::FloatOutput((tokens + 1) * channels)));
    }
    let found = bench.run(variant, spec, dispatch, operands)?;
    let rows: Vec<Vec<f64>> = rows_of(&proj, width)
        .into_iter()
        .map(|row| row[..channels].to_vec())
        .collect();
    let before = widen(&ring);
    let mut judged = vec![];
    if variant.role != Role::GdnConvCommit {
        let expected =
            gdn_conv::expected(&rows, &before, &widen(&taps), case.start, store(variant));
        let out = without_guard(found.values("out"), tokens * channels)?;
        judged.push(Judged::new("out", out, concat(last_first(expected))));
    }
    if variant.role != Role::GdnConvSeq {
        let mut after = before;
        gdn_conv::commit(&rows, &mut after, case.start);
        // Slots that hold no token yet hold NaN, which equals nothing.
        let zero = |values: Vec<f64>| values.into_iter().map(|x| if x.is_nan() { 0.0 } else { x });
        let found = zero(found.values("ring")).collect();
        judged.push(Judged::exact("ring", found, zero(after).collect()));
    }
    Ok(judged)
}

/// `proj` `[T, P]`, `a_log` and `dt_bias` `[VH]`.
pub(crate) fn gdn_gates(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    proj: &[f32],
    [a_log, dt_bias]: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let net = net_of(spec);
    let proj = &held(variant, proj);
    let heads = net.linear_num_value_heads;
    let tokens = proj.len() / net.proj_dim();
    let mut dispatch = bench.dispatch(variant, spec, 0);
    let groups = (tokens * heads).div_ceil(variant.threads());
    of_tokens(bench, &mut dispatch, tokens, groups);
    let operands = vec![
        ("gates", Operand::FloatOutput((tokens + 1) * 2 * heads)),
        ("ab", Operand::Floats(proj)),
        ("a_log", Operand::Floats(a_log)),
        ("dt_bias", Operand::Floats(dt_bias)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let found = without_guard(found.values("gates"), tokens * 2 * heads)?;
    let (a_log, dt_bias) = (widen(a_log), widen(dt_bias));
    let rates = Rates {
        a_log: &a_log,
        dt_bias: &dt_bias,
    };
    let first = net.conv_dim() + net.value_dim();
    let rows = proj.chunks_exact(net.proj_dim()).map(|row| {
        let ab = widen(&row[first..]);
        let (a, b) = ab.split_at(heads);
        gdn_gates::expected(a, b, rates)
    });
    Ok(vec![Judged::new("gates", found, concat(rows))])
}

/// Tokens of a recurrence and the state before them.
#[derive(Clone, Debug)]
pub(crate) struct Recurred {
    /// `[T, C]`.
    pub(crate) conv: Vec<f32>,
    /// `[T, 2, VH]`, decays first.
    pub(crate) gates: Vec<f32>,
    /// `[VH, DK, DV]`.
    pub(crate) state: Vec<f32>,
    /// Position of the first token; at 0 the state before does not count.
    pub(crate) start: usize,
}

pub(crate) fn gdn_recur(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    case: &Recurred,
) -> Result<Vec<Judged>> {
    let net = net_of(spec);
    let conv = held(variant, &case.conv);
    let (channels, values) = (net.conv_dim(), net.value_dim());
    let gates = 2 * net.linear_num_value_heads;
    let tokens = conv.len() / channels;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    of_tokens(bench, &mut dispatch, tokens, net.linear_num_value_heads);
    let (rows, gate_rows) = (in_rows(&conv, channels), in_rows(&case.gates, gates));
    let positions = position_map(case.start, tokens);
    let operands = vec![
        ("out", Operand::FloatOutput((tokens + 1) * values)),
        ("conv", Operand::Floats(&rows)),
        ("gates", Operand::Floats(&gate_rows)),
        ("state", Operand::Floats(&case.state)),
        ("position_map", Operand::data(&positions)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let out = without_guard(found.values("out"), tokens * values)?;
    let before = match case.start {
        0 => vec![0.0; case.state.len()],
        _ => widen(&case.state),
    };
    let expected = recurred(
        variant,
        &net,
        &rows_of(&conv, channels),
        &rows_of(&case.gates, gates),
        &before,
    );
    Ok(vec![
        Judged::new("out", out, concat(last_first(expected.out))),
        Judged::new("state", found.values("state"), expected.state),
    ])
}

/// `x` `[T, VH, DV]`, `gamma` `[DV]`, `proj` `[T, P]`.
pub(crate) fn gdn_norm_out(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    x: &[f32],
    gamma: &[f32],
    proj: &[f32],
) -> Result<Vec<Judged>> {
    let net = net_of(spec);
    let (gamma, proj) = (held(variant, gamma), held(variant, proj));
    let values = net.value_dim();
    let tokens = x.len() / values;
    let mut dispatch = bench.dispatch(variant, spec, 0);
    of_tokens(
        bench,
        &mut dispatch,
        tokens,
        tokens * net.linear_num_value_heads,
    );
    let operands = vec![
        ("out", Operand::FloatOutput((tokens + 1) * values)),
        ("recur", Operand::Floats(x)),
        ("gamma", Operand::Floats(&gamma)),
        ("z", Operand::Floats(&proj)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let rest = &found.bytes("out")[tokens * values * variant.elem.bytes()..];
    ensure!(untouched(rest), "a row past seq_len is written");
    let mut out = found.values("out");
    out.truncate(tokens * values);
    let gamma = widen(&gamma);
    let form = head_form(variant, net.linear_value_head_dim);
    let rows = x
        .chunks_exact(values)
        .zip(proj.chunks_exact(net.proj_dim()));
    let rows = rows.map(|(x, proj)| {
        let z = widen(&proj[net.conv_dim()..][..values]);
        let eps = spec.rms_norm_eps;
        gdn_norm_out::expected(&widen(x), &z, &gamma, eps, form, store(variant))
    });
    Ok(vec![Judged::new("out", out, concat(rows))])
}
