//! Properties of gated DeltaNet and of the gates of attention.

use super::super::{
    bench::{Bench, model},
    data::{Kind, Values},
    roles::{self as cases, Convolved, Recurred},
};
use super::{Draw, FOLDS, heads, max_groups, require};
use anyhow::{Result, ensure};
use kernels::{ModelSpec, Variant, models::GatedDeltaNet};
use proptest::{prelude::*, sample::select};

/// A model of one such layer, of several shapes of heads.
fn nets() -> impl Strategy<Value = ModelSpec> {
    let keys = select(&[1_usize, 2, 3][..]);
    let group = select(&[1_usize, 2, 3][..]);
    let dims = select(&[32_usize, 64, 128, 160][..]);
    let taps = select(&[2_usize, 4, 5][..]);
    (keys, group, dims.clone(), dims, taps).prop_map(|(keys, group, dk, dv, taps)| {
        of_net(GatedDeltaNet {
            linear_num_key_heads: keys,
            linear_num_value_heads: keys * group,
            linear_key_head_dim: dk,
            linear_value_head_dim: dv,
            linear_conv_kernel_dim: taps,
            full_attention_interval: 2,
        })
    })
}

/// A model of one layer of it.
pub(crate) fn of_net(net: GatedDeltaNet) -> ModelSpec {
    ModelSpec {
        delta_net: Some(net),
        ..model()
    }
}

fn net_of(spec: &ModelSpec) -> GatedDeltaNet {
    spec.delta_net.expect("of these models")
}

/// Tokens of a dispatch: one where the variant takes no chunk.
fn tokens(variant: Variant) -> impl Strategy<Value = usize> {
    let one = variant.role == kernels::Role::GdnConv;
    select(if one {
        &[1_usize][..]
    } else {
        &[1, 2, 3, 5, 9]
    })
}

/// What most properties draw beside a model.
fn rest() -> impl Strategy<Value = (Kind, u32, u64)> {
    (select(&Kind::ALL[..]), max_groups(), any::<u64>())
}

fn rows(values: &mut Values, count: usize, width: usize, kind: Kind) -> Vec<f32> {
    (0..count)
        .flat_map(|_| values.activations(width, kind, 1.0))
        .collect()
}

pub(super) fn gated_qkv_split(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let strategy = (gated(), tokens(variant), rest());
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, (kind, max_groups, seed)) = case;
        bench.max_groups = *max_groups;
        let c_attn = rows(&mut Values(*seed), *tokens, spec.c_attn_dim(), *kind);
        require(cases::gated_qkv_split(bench, variant, spec, &c_attn))
    })
}

/// Heads with gates.
fn gated() -> impl Strategy<Value = ModelSpec> {
    heads().prop_map(|spec| ModelSpec {
        attn_output_gate: true,
        ..spec
    })
}

pub(super) fn attn_gate(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let strategy = (gated(), tokens(variant), rest(), select(&Kind::ALL[..]));
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, (kind, max_groups, seed), gate) = case;
        bench.max_groups = *max_groups;
        let mut values = Values(*seed);
        let x = rows(&mut values, *tokens, spec.q_dim(), *kind);
        let gate = rows(&mut values, *tokens, spec.q_dim(), *gate);
        require(cases::attn_gate(bench, variant, spec, [&x, &gate]))
    })
}

/// Raw tokens from `start` on; the slots of tokens that there are not hold NaN.
fn convolved(
    spec: &ModelSpec,
    tokens: usize,
    start: usize,
    kind: Kind,
    values: &mut Values,
) -> Convolved {
    let net = net_of(spec);
    let (slots, channels) = (net.ring_len(), net.conv_dim());
    let mut ring = rows(values, slots, channels, kind);
    let first = start.saturating_sub(slots);
    for (slot, held) in ring.chunks_exact_mut(channels).enumerate() {
        if !(first..start).any(|position| position % slots == slot) {
            held.fill(f32::NAN);
        }
    }
    let proj = rows(values, tokens, net.proj_dim(), kind);
    let count = net.linear_conv_kernel_dim;
    let mut taps = values.activations(channels * count, Kind::Ordinary, 0.5);
    if matches!(kind, Kind::Large) {
        // Values up to 30,000: a sum of them must be one that f16 holds.
        for taps in taps.chunks_exact_mut(count) {
            let sum: f32 = taps.iter().map(|tap| tap.abs()).sum();
            taps.iter_mut().for_each(|tap| *tap /= sum.max(1.0));
        }
    }
    Convolved {
        proj,
        ring,
        taps,
        start,
    }
}

/// Positions before which there are no tokens, few, and more than are remembered.
const STARTS: [usize; 7] = [0, 1, 2, 3, 7, 64, 4095];

pub(super) fn gdn_conv(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let strategy = (nets(), tokens(variant), select(&STARTS[..]), rest());
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, start, (kind, max_groups, seed)) = case;
        bench.max_groups = *max_groups;
        let case = convolved(spec, *tokens, *start, *kind, &mut Values(*seed));
        require(cases::gdn_conv(bench, variant, spec, &case))
    })
}

pub(super) fn gdn_gates(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let strategy = (nets(), tokens(variant), rest());
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, (kind, max_groups, seed)) = case;
        bench.max_groups = *max_groups;
        let mut values = Values(*seed);
        let net = net_of(spec);
        let heads = net.linear_num_value_heads;
        let mut proj = rows(&mut values, *tokens, net.proj_dim(), *kind);
        // Both branches of softplus, and where they meet.
        proj[net.conv_dim() + net.value_dim()] = 24.0;
        let last = proj.len() - heads - 1;
        proj[last] = 19.5;
        let a_log = values.activations(heads, Kind::Ordinary, 0.5);
        let dt_bias = values.activations(heads, Kind::Ordinary, 1.0);
        require(cases::gdn_gates(
            bench,
            variant,
            spec,
            &proj,
            [&a_log, &dt_bias],
        ))
    })
}

fn recurred(
    spec: &ModelSpec,
    tokens: usize,
    start: usize,
    kind: Kind,
    values: &mut Values,
) -> Recurred {
    let net = net_of(spec);
    let heads = net.linear_num_value_heads;
    let state = match start {
        // Whatever it holds.
        0 => vec![f32::NAN; net.state_len()],
        _ => values.activations(net.state_len(), Kind::Ordinary, 0.2),
    };
    Recurred {
        conv: rows(values, tokens, net.conv_dim(), kind),
        gates: (0..tokens * 2 * heads)
            .map(|_| values.uniform() as f32)
            .collect(),
        state,
        start,
    }
}

pub(super) fn gdn_recur(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let strategy = (
        nets(),
        tokens(variant),
        select(&[0_usize, 1, 70][..]),
        rest(),
    );
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, start, (kind, max_groups, seed)) = case;
        bench.max_groups = *max_groups;
        let case = recurred(spec, *tokens, *start, *kind, &mut Values(*seed));
        require(cases::gdn_recur(bench, variant, spec, &case))
    })
}

/// A chunk gives, and leaves, what its tokens give one by one, to the bit.
pub(super) fn recur_as_steps(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let spec = of_net(GatedDeltaNet {
        linear_num_key_heads: 2,
        linear_num_value_heads: 4,
        full_attention_interval: 2,
        ..GatedDeltaNet::PUBLISHED
    });
    let net = net_of(&spec);
    let case = recurred(&spec, 64, 3, Kind::Ordinary, &mut Values(draw.seed));
    let whole = cases::gdn_recur(bench, variant, &spec, &case)?;
    // A chunk has its last token first.
    let (first, rest) = whole[0].found.split_at(net.value_dim());
    let mut out = rest.to_vec();
    out.extend_from_slice(first);
    let gates = 2 * net.linear_num_value_heads;
    let rows = case.conv.chunks_exact(net.conv_dim());
    let rows = rows.zip(case.gates.chunks_exact(gates));
    let mut state = case.state;
    let mut stepped = vec![];
    for (i, (conv, gates)) in rows.enumerate() {
        let step = Recurred {
            conv: conv.to_vec(),
            gates: gates.to_vec(),
            state,
            start: case.start + i,
        };
        let judged = cases::gdn_recur(bench, variant, &spec, &step)?;
        stepped.extend_from_slice(&judged[0].found);
        state = judged[1].found.iter().map(|&x| x as f32).collect();
    }
    let left: Vec<f64> = state.into_iter().map(f64::from).collect();
    ensure!(
        out == stepped,
        "a chunk reads something else than its tokens"
    );
    ensure!(
        whole[1].found == left,
        "a chunk leaves another state than its tokens"
    );
    Ok(())
}

pub(super) fn gdn_norm_out(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    // An output of f16 holds no gate that is large.
    let gates = select(&[Kind::Ordinary, Kind::Subnormal, Kind::Zero][..]);
    let strategy = (nets(), tokens(variant), rest(), gates);
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (spec, tokens, (kind, max_groups, seed), gate) = case;
        // Heads that fold with groups to spare.
        bench.max_groups = if *max_groups == FOLDS { 4 } else { *max_groups };
        let mut values = Values(*seed);
        let net = net_of(spec);
        let x = rows(&mut values, *tokens, net.value_dim(), *kind);
        let proj = rows(&mut values, *tokens, net.proj_dim(), *gate);
        let gamma = values.activations(net.linear_value_head_dim, Kind::Ordinary, 1.0);
        require(cases::gdn_norm_out(bench, variant, spec, &x, &gamma, &proj))
    })
}
