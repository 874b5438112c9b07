//! Golden vectors of gated DeltaNet and of experts.

use super::super::{
    bench::Bench,
    properties::of_net,
    roles::{self as cases, Convolved, Recurred},
};
use super::require;
use anyhow::{Context as _, Result};
use kernels::{
    ModelSpec, Role, Variant,
    models::{Experts, GatedDeltaNet},
};
use reference::golden::Golden;

/// Rows of a projection whose convolution has these channels.
fn projected(net: &GatedDeltaNet, x: &[f32]) -> Vec<f32> {
    let rows = x.chunks_exact(net.conv_dim());
    let behind = vec![0.0; net.proj_dim() - net.conv_dim()];
    rows.flat_map(|row| [row, &behind].concat()).collect()
}

/// The last row first.
fn in_rows(values: &[f32], width: usize) -> Vec<f32> {
    let mut rows = values.to_vec();
    rows.rotate_right(width);
    rows
}

pub(super) fn gdn_conv(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    // 384 channels: one head each of 128.
    let net = GatedDeltaNet {
        linear_num_key_heads: 1,
        linear_num_value_heads: 1,
        full_attention_interval: 2,
        ..GatedDeltaNet::PUBLISHED
    };
    let taps = golden.f32("conv.weight")?.data;
    for (case, start) in [
        ("t1.pos0", 0),
        ("t1.pos7", 7),
        ("t2.pos0", 0),
        ("t5.pos4", 4),
        ("t64.pos0", 0),
        ("t64.pos100", 100),
    ] {
        if variant.role == Role::GdnConv && !case.starts_with("t1.") {
            continue;
        }
        let of = |part: &str| golden.f32(&format!("conv.{case}.{part}"));
        let convolved = Convolved {
            proj: projected(&net, &of("x")?.data),
            ring: of("ring_in")?.data,
            taps: taps.clone(),
            start,
        };
        let judged = cases::gdn_conv(bench, variant, &of_net(net), &convolved)?;
        let y = in_rows(&of("y")?.data, net.conv_dim());
        require(&judged, "out", &y).with_context(|| case)?;
    }
    Ok(())
}

pub(super) fn gdn_gates(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let net = GatedDeltaNet {
        full_attention_interval: 2,
        ..GatedDeltaNet::PUBLISHED
    };
    let heads = net.linear_num_value_heads;
    let of = |part: &str| golden.f32(&format!("gates.{part}"));
    let (a, b) = (of("a")?.data, of("b")?.data);
    let before = vec![0.0; net.conv_dim() + net.value_dim()];
    let rows = a.chunks_exact(heads).zip(b.chunks_exact(heads));
    let proj: Vec<f32> = rows
        .flat_map(|(a, b)| [&before[..], a, b].concat())
        .collect();
    let rates = [of("A_log")?.data, of("dt_bias")?.data];
    let rates = rates.each_ref().map(Vec::as_slice);
    let judged = cases::gdn_gates(bench, variant, &of_net(net), &proj, rates)?;
    let (g, beta) = (of("g")?.data, of("beta")?.data);
    let rows = g.chunks_exact(heads).zip(beta.chunks_exact(heads));
    let gates: Vec<f32> = rows.flat_map(|(g, beta)| [g, beta].concat()).collect();
    require(&judged, "gates", &gates)
}

pub(super) fn gdn_recur(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let net = GatedDeltaNet {
        linear_num_key_heads: 2,
        linear_num_value_heads: 4,
        full_attention_interval: 2,
        ..GatedDeltaNet::PUBLISHED
    };
    for (case, start) in [("t1.zero", 0), ("t5.warm", 9), ("t64.warm", 9)] {
        let of = |part: &str| golden.f32(&format!("recur.{case}.{part}"));
        let rows = |part: &str, width: usize| -> Result<Vec<Vec<f32>>> {
            Ok(of(part)?
                .data
                .chunks_exact(width)
                .map(<[f32]>::to_vec)
                .collect())
        };
        let (q, k) = (rows("q_raw", net.key_dim())?, rows("k_raw", net.key_dim())?);
        let v = rows("v", net.value_dim())?;
        let (g, beta) = (rows("g", 4)?, rows("beta", 4)?);
        let conv = q
            .into_iter()
            .zip(k)
            .zip(v)
            .flat_map(|((q, k), v)| [q, k, v].concat());
        let recurred = Recurred {
            conv: conv.collect(),
            gates: g
                .into_iter()
                .zip(beta)
                .flat_map(|(g, beta)| [g, beta].concat())
                .collect(),
            state: of("state_in")?.data,
            start,
        };
        let judged = cases::gdn_recur(bench, variant, &of_net(net), &recurred)?;
        let y = in_rows(&of("y")?.data, net.value_dim());
        require(&judged, "out", &y).with_context(|| case)?;
        require(&judged, "state", &of("state_out")?.data).with_context(|| case)?;
    }
    Ok(())
}

pub(super) fn gdn_norm_out(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let net = GatedDeltaNet {
        linear_num_key_heads: 1,
        linear_num_value_heads: 4,
        full_attention_interval: 2,
        ..GatedDeltaNet::PUBLISHED
    };
    let spec = ModelSpec {
        rms_norm_eps: 1e-6,
        ..of_net(net)
    };
    let of = |part: &str| golden.f32(&format!("gnorm.{part}"));
    let z = of("z")?.data;
    let rows = z.chunks_exact(net.value_dim());
    let (before, behind) = (vec![0.0; net.conv_dim()], [0.0; 8]);
    let proj: Vec<f32> = rows.flat_map(|z| [&before, z, &behind].concat()).collect();
    let (x, gamma) = (of("x")?.data, of("gamma")?.data);
    let judged = cases::gdn_norm_out(bench, variant, &spec, &x, &gamma, &proj)?;
    require(&judged, "out", &of("y")?.data)
}

/// Four heads of 256, as the vectors have.
fn gated() -> ModelSpec {
    ModelSpec {
        num_attention_heads: 4,
        num_key_value_heads: 1,
        head_dim: 256,
        rotary_dim: 64,
        attn_output_gate: true,
        ..super::model()
    }
}

pub(super) fn attn_gate(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let of = |part: &str| golden.f32(&format!("attn_gate.{part}"));
    let (x, gate) = (of("attn")?.data, of("gate")?.data);
    let judged = cases::attn_gate(bench, variant, &gated(), [&x, &gate])?;
    require(&judged, "out", &of("y")?.data)
}

pub(super) fn gated_qkv_split(
    bench: &mut Bench<'_>,
    variant: Variant,
    golden: &Golden,
) -> Result<()> {
    let spec = gated();
    let of = |part: &str| golden.f32(&format!("attn_gate.{part}"));
    let heads = of("c_attn_q_part")?.data;
    let kv: Vec<f32> = (0..2 * spec.kv_dim()).map(|i| i as f32 / 64.0).collect();
    let rows = heads.chunks_exact(2 * spec.q_dim());
    let c_attn: Vec<f32> = rows.flat_map(|heads| [heads, &kv].concat()).collect();
    let judged = cases::gated_qkv_split(bench, variant, &spec, &c_attn)?;
    require(&judged, "gate", &of("gate")?.data)
}

pub(super) fn moe_router_topk(
    bench: &mut Bench<'_>,
    variant: Variant,
    golden: &Golden,
) -> Result<()> {
    for (num_experts, num_experts_per_tok) in [(16, 4), (32, 8), (60, 4), (128, 8), (256, 8)] {
        for norm_topk_prob in [false, true] {
            let case = format!("router.e{num_experts}.k{num_experts_per_tok}");
            let experts = Experts {
                num_experts,
                num_experts_per_tok,
                norm_topk_prob,
                shared_expert: false,
            };
            let logits = golden.f32(&format!("{case}.logits"))?.data;
            let judged = cases::moe_router_topk(bench, variant, &experts, &logits)?;
            let norm = u8::from(norm_topk_prob);
            let weights = golden.f32(&format!("{case}.norm{norm}.weights"))?.data;
            require(&judged, "score", &weights).with_context(|| case.clone())?;
            let ids = golden.i32(&format!("{case}.ids"))?.data;
            let ids: Vec<f32> = ids.into_iter().map(|id| id as f32).collect();
            require(&judged, "ids", &ids).with_context(|| case)?;
        }
    }
    Ok(())
}

pub(super) fn moe_combine(bench: &mut Bench<'_>, variant: Variant, golden: &Golden) -> Result<()> {
    let of = |part: &str| golden.f32(&format!("combine.{part}"));
    let weights = of("weights")?;
    let (tokens, chosen) = (weights.shape[0], weights.shape[1]);
    let shared = of("shared_logit")?.data;
    let rows = weights.data.chunks_exact(chosen).zip(shared);
    let score: Vec<f32> = rows
        .flat_map(|(weights, logit)| [weights, &[1.0 / (1.0 + (-logit).exp())]].concat())
        .collect();
    let judged = cases::moe_combine(bench, variant, tokens, &of("slots")?.data, &score)?;
    require(&judged, "out", &of("y")?.data)
}
