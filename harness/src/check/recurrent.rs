//! Gated DeltaNet and the gates of attention, from the operands that they had.

use super::{Captured, Engine, Judged, Rows, concat, exact, head_form, state_form, store};
use anyhow::{Context as _, Result};
use kernels::{Role, Tensor, Variant, models::GatedDeltaNet, plan::Activation};
use reference::{
    Expected,
    numerics::{decode, widen},
    roles::{
        attn_gate, gated_qkv_split, gdn_conv,
        gdn_gates::{self, Rates},
        gdn_norm_out, gdn_recur,
    },
};

/// Rows in the order of their positions: the last token has the first.
fn in_order(values: &[f64], tokens: usize) -> Vec<Vec<f64>> {
    let rows: Vec<Vec<f64>> = values
        .chunks_exact(values.len() / tokens)
        .map(<[f64]>::to_vec)
        .collect();
    rows.iter().cycle().skip(1).take(tokens).cloned().collect()
}

/// The other way round.
fn in_rows<T>(mut ordered: Vec<T>) -> Vec<T> {
    ordered.rotate_right(1);
    ordered
}

/// What a form of the recurrence may give.
pub(crate) fn recurred(
    variant: Variant,
    net: &GatedDeltaNet,
    conv: &[Vec<f64>],
    gates: &[Vec<f64>],
    state: &[f64],
) -> gdn_recur::Recurred {
    if variant.is_batched() {
        gdn_recur::scan::expected(net, conv, gates, state)
    } else {
        gdn_recur::expected(net, conv, gates, state, state_form(variant, net))
    }
}

pub(super) fn judge(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    rows: &Rows,
    bound: impl Fn(usize) -> Activation,
) -> Result<Judged> {
    let weights = engine.weights;
    let spec = weights.spec();
    let dispatch = captured.dispatch;
    let variant = dispatch.variant;
    let tokens = rows.positions.len();
    let start = rows.positions[0] + 1 - tokens;
    let act = |i: usize| captured.activations[&bound(i)].as_slice();
    if variant.role == Role::GatedQkvSplit {
        let split = act(2).chunks_exact(spec.c_attn_dim());
        let split = split.map(|row| gated_qkv_split::compute(row, spec));
        let (qkv, gate): (Vec<_>, Vec<_>) = split.map(|s| (s.qkv, s.gate)).unzip();
        return Ok(vec![
            ("qkv", act(0).to_vec(), exact(qkv.concat())),
            ("gate", act(1).to_vec(), exact(gate.concat())),
        ]);
    }
    if variant.role == Role::AttnGate {
        let before = &captured.replaced[&bound(0)];
        let expected = attn_gate::expected(before, act(1), store(variant));
        return Ok(vec![("", act(0).to_vec(), expected)]);
    }
    let net = spec.delta_net.context("the model has no gated DeltaNet")?;
    let layer = {
        let label = dispatch.label.strip_prefix("layers.");
        let layer = label
            .and_then(|l| l.split_once('.'))
            .map(|(layer, _)| layer.parse());
        layer.with_context(|| format!("{}: no layer", dispatch.label))??
    };
    let vector = |tensor| decode(weights.vector(Some(layer), tensor));
    let channels = |proj: &[f64]| -> Vec<Vec<f64>> {
        let rows = in_order(proj, tokens);
        rows.into_iter()
            .map(|row| row[..net.conv_dim()].to_vec())
            .collect()
    };
    let remembered = || -> Result<[[Vec<f64>; 2]; 2]> {
        let both = captured.remembered.as_ref();
        let both = both.with_context(|| format!("{}: no state is bound", dispatch.label))?;
        Ok(both
            .each_ref()
            .map(|one| one.each_ref().map(|values| widen(values))))
    };
    let judged = if matches!(variant.role, Role::GdnConv | Role::GdnConvSeq) {
        let [[before, _], [after, _]] = remembered()?;
        let raw = channels(act(1));
        let taps = vector(Tensor::GdnConv);
        let expected = gdn_conv::expected(&raw, &before, &taps, start, store(variant));
        let mut ring = before;
        if variant.role == Role::GdnConv {
            gdn_conv::commit(&raw, &mut ring, start);
        }
        vec![
            ("", act(0).to_vec(), concat(in_rows(expected).into_iter())),
            ("ring", after, exact(ring)),
        ]
    } else if variant.role == Role::GdnConvCommit {
        let [[mut ring, _], [after, _]] = remembered()?;
        gdn_conv::commit(&channels(act(0)), &mut ring, start);
        vec![("ring", after, exact(ring))]
    } else if variant.role == Role::GdnGates {
        let [a_log, dt_bias] = [Tensor::GdnALog, Tensor::GdnDtBias]
            .map(|tensor| widen(weights.floats(Some(layer), tensor)));
        let rates = Rates {
            a_log: &a_log,
            dt_bias: &dt_bias,
        };
        let first = net.conv_dim() + net.value_dim();
        let rows = act(1).chunks_exact(net.proj_dim()).map(|row| {
            let (a, b) = row[first..].split_at(net.linear_num_value_heads);
            gdn_gates::expected(a, b, rates)
        });
        vec![("", act(0).to_vec(), concat(rows))]
    } else if variant.role == Role::GdnRecur {
        let [[_, mut before], [_, after]] = remembered()?;
        if start == 0 {
            before.fill(0.0);
        }
        let (conv, gates) = (in_order(act(1), tokens), in_order(act(2), tokens));
        let expected = recurred(variant, &net, &conv, &gates, &before);
        vec![
            (
                "",
                act(0).to_vec(),
                concat(in_rows(expected.out).into_iter()),
            ),
            ("state", after, expected.state),
        ]
    } else {
        // gdn_norm_out
        let gamma = vector(Tensor::GdnNorm);
        let form = head_form(variant, net.linear_value_head_dim);
        let read = act(1).chunks_exact(net.value_dim());
        let rows = read
            .zip(act(3).chunks_exact(net.proj_dim()))
            .map(|(x, proj)| {
                let z = &proj[net.conv_dim()..][..net.value_dim()];
                let eps = spec.rms_norm_eps;
                gdn_norm_out::expected(x, z, &gamma, eps, form, store(variant))
            });
        let expected: Vec<Expected> = rows.collect();
        vec![("", act(0).to_vec(), concat(expected.into_iter()))]
    };
    Ok(judged)
}
