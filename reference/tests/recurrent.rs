//! The roles of gated DeltaNet, gated attention and experts against golden vectors of
//! another implementation, and their bounds against mistakes.

mod support;

use kernels::models::{Experts, GatedDeltaNet};
use reference::bounds::{Accumulation, Store};
use reference::roles::gdn_gates::Rates;
use reference::roles::moe_router_topk::Chosen;
use reference::roles::{
    attn_gate, gated_qkv_split, gdn_conv, gdn_gates, gdn_norm_out, gdn_recur, moe_combine,
    moe_router_topk,
};
use std::collections::BTreeMap;
use support::{Array, golden, max_difference, safetensors};

/// Golden values are f64 results stored as f32.
const STORED: f64 = 2e-7;
const EPS: f64 = 1e-6;

type Arrays = BTreeMap<String, Array>;

fn module(name: &str) -> Option<Arrays> {
    Some(safetensors(&golden(&format!(
        "modules/{name}.safetensors"
    ))?))
}

fn rows(array: &Array) -> Vec<Vec<f64>> {
    array.rows().map(<[f64]>::to_vec).collect()
}

fn close(what: &str, found: &[f64], expected: &Array) {
    let size = expected.data.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
    let difference = max_difference(found, &expected.data);
    assert!(
        difference <= 4.0 * STORED * size,
        "{what}: off by {difference:.2e}"
    );
}

#[test]
fn convolution_and_its_ring() {
    let Some(all) = module("gdn") else { return };
    let taps = &all["conv.weight"].data;
    for (case, start) in [
        ("t1.pos0", 0),
        ("t1.pos7", 7),
        ("t2.pos0", 0),
        ("t5.pos4", 4),
        ("t64.pos0", 0),
        ("t64.pos100", 100),
    ] {
        let of = |part: &str| &all[&format!("conv.{case}.{part}")];
        let x = rows(of("x"));
        let mut ring = of("ring_in").data.clone();
        let y = gdn_conv::compute(&x, &ring, taps, start);
        close(&format!("{case}: y"), &y.concat(), of("y"));
        // One by one.
        let mut stepped = ring.clone();
        for (i, row) in x.iter().enumerate() {
            let row = std::slice::from_ref(row);
            let y = gdn_conv::compute(row, &stepped, taps, start + i);
            assert_eq!(y[0].len(), taps.len() / 4, "{case}: channels");
            close(
                &format!("{case}: step {i}"),
                &y[0],
                &Array {
                    shape: vec![1, y[0].len()],
                    data: of("y").rows().nth(i).expect("a row").to_vec(),
                },
            );
            gdn_conv::commit(row, &mut stepped, start + i);
        }
        gdn_conv::commit(&x, &mut ring, start);
        assert_eq!(
            ring, stepped,
            "{case}: a chunk leaves what its tokens leave"
        );
        close(&format!("{case}: ring"), &ring, of("ring_out"));
    }
}

#[test]
fn gates() {
    let Some(all) = module("gdn") else { return };
    let rates = Rates {
        a_log: &all["gates.A_log"].data,
        dt_bias: &all["gates.dt_bias"].data,
    };
    let tokens = all["gates.a"].rows().zip(all["gates.b"].rows());
    let (mut decays, mut updates) = (vec![], vec![]);
    for (a, b) in tokens {
        let found = gdn_gates::compute(a, b, rates);
        let expected = gdn_gates::expected(a, b, rates);
        assert_eq!(found, expected.value, "the same values");
        assert!(
            expected.limit.iter().all(|&limit| limit < 2e-5),
            "limits of {:.2e}",
            expected.limit.iter().fold(0.0_f64, |m, &l| m.max(l))
        );
        let (decay, update) = found.split_at(a.len());
        decays.extend_from_slice(decay);
        updates.extend_from_slice(update);
    }
    close("decay", &decays, &all["gates.g"]);
    close("beta", &updates, &all["gates.beta"]);
}

/// The layer of the vectors: two key heads for four value heads.
const NET: GatedDeltaNet = GatedDeltaNet {
    linear_num_key_heads: 2,
    linear_num_value_heads: 4,
    ..GatedDeltaNet::PUBLISHED
};

#[test]
fn recurrence_and_its_state() {
    let Some(all) = module("gdn") else { return };
    for case in ["t1.zero", "t5.warm", "t64.warm"] {
        let of = |part: &str| &all[&format!("recur.{case}.{part}")];
        let tokens = of("q_raw")
            .rows()
            .zip(of("k_raw").rows())
            .zip(of("v").rows());
        let conv: Vec<Vec<f64>> = tokens.map(|((q, k), v)| [q, k, v].concat()).collect();
        let gates = of("g").rows().zip(of("beta").rows());
        let gates: Vec<Vec<f64>> = gates.map(|(g, beta)| [g, beta].concat()).collect();
        let before = &of("state_in").data;
        let mut state = before.clone();
        let y = gdn_recur::compute(&NET, &conv, &gates, &mut state);
        close(&format!("{case}: y"), &y.concat(), of("y"));
        close(&format!("{case}: state"), &state, of("state_out"));

        let squares = Accumulation::strided(128, 128, 1);
        let expected = gdn_recur::expected(&NET, &conv, &gates, before, squares);
        assert_eq!(expected.state.value, state, "{case}: the same state");
        let size = |values: &[f64]| values.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
        let limit = size(&expected.state.limit);
        eprintln!(
            "{case}: limit of the state {limit:.2e} of {:.2e}",
            size(&state)
        );
        assert!(limit < 1e-4 * size(&state), "{case}: tight");
        let scan = gdn_recur::scan::expected(&NET, &conv, &gates, before);
        assert!(scan.state.accepts(&state), "{case}: the same truth");
        let limit = size(&scan.state.limit);
        eprintln!("{case}: by blocks {limit:.2e}");
        assert!(limit < 1e-3 * size(&state), "{case}: tight by blocks");

        // Value head h with key head h mod 2, not h / 2.
        let swapped: Vec<Vec<f64>> = conv
            .iter()
            .map(|row| {
                let mut row = row.clone();
                let (q, k) = (row[128..256].to_vec(), row[384..512].to_vec());
                row.copy_within(0..128, 128);
                row.copy_within(256..384, 384);
                row[..128].copy_from_slice(&q);
                row[256..384].copy_from_slice(&k);
                row
            })
            .collect();
        let mut wrong = before.clone();
        let y = gdn_recur::compute(&NET, &swapped, &gates, &mut wrong);
        let off = max_difference(&y.concat(), &of("y").data);
        assert!(off > 1e-2, "{case}: the wrong key head is off by {off:.2e}");
    }
}

#[test]
fn a_chunk_leaves_the_state_that_its_tokens_leave() {
    let Some(all) = module("gdn") else { return };
    let of = |part: &str| &all[&format!("recur.t64.warm.{part}")];
    let tokens = of("q_raw")
        .rows()
        .zip(of("k_raw").rows())
        .zip(of("v").rows());
    let conv: Vec<Vec<f64>> = tokens.map(|((q, k), v)| [q, k, v].concat()).collect();
    let gates = of("g").rows().zip(of("beta").rows());
    let gates: Vec<Vec<f64>> = gates.map(|(g, beta)| [g, beta].concat()).collect();
    let mut whole = of("state_in").data.clone();
    let mut stepped = whole.clone();
    gdn_recur::compute(&NET, &conv, &gates, &mut whole);
    for (conv, gates) in conv.iter().zip(&gates) {
        let (conv, gates) = (std::slice::from_ref(conv), std::slice::from_ref(gates));
        gdn_recur::compute(&NET, conv, gates, &mut stepped);
    }
    assert_eq!(whole, stepped, "to the bit");
}

#[test]
fn norm_and_gates_of_outputs() {
    let Some(all) = module("gdn") else { return };
    let gamma = &all["gnorm.gamma"].data;
    let (x, z) = (&all["gnorm.x"].data, &all["gnorm.z"].data);
    let y = gdn_norm_out::compute(x, z, gamma, EPS);
    close("norm", &y, &all["gnorm.y"]);
    let sum = Accumulation::strided(128, 32, 1);
    let expected = gdn_norm_out::expected(x, z, gamma, EPS, sum, Store::F32);
    assert!(expected.accepts(&y), "within its own limits");

    let (x, gate) = (&all["attn_gate.attn"].data, &all["attn_gate.gate"].data);
    close("gate", &attn_gate::compute(x, gate), &all["attn_gate.y"]);

    let spec = kernels::ModelSpec {
        num_attention_heads: 4,
        num_key_value_heads: 1,
        ..kernels::models::find("qwen35-4b").expect("registered")
    };
    let (mut queries, mut gates) = (vec![], vec![]);
    for heads in all["attn_gate.c_attn_q_part"].rows() {
        let mut c_attn = heads.to_vec();
        c_attn.extend((0..2 * spec.kv_dim()).map(|i| i as f64));
        let split = gated_qkv_split::compute(&c_attn, &spec);
        assert_eq!(split.qkv[spec.q_dim()..], c_attn[heads.len()..], "k and v");
        queries.extend_from_slice(&split.qkv[..spec.q_dim()]);
        gates.extend(split.gate);
    }
    assert_eq!(queries, all["attn_gate.q"].data, "queries");
    assert_eq!(gates, *gate, "gates");
}

#[test]
fn routing() {
    let Some(all) = module("moe") else { return };
    for (num_experts, num_experts_per_tok) in [(16, 4), (32, 8), (60, 4), (128, 8), (256, 8)] {
        for norm_topk_prob in [false, true] {
            let experts = Experts {
                num_experts,
                num_experts_per_tok,
                norm_topk_prob,
                shared_expert: false,
            };
            let case = format!("router.e{num_experts}.k{num_experts_per_tok}");
            let norm = u8::from(norm_topk_prob);
            let weights = &all[&format!("{case}.norm{norm}.weights")];
            let ids = &all[&format!("{case}.ids")];
            let tokens = all[&format!("{case}.logits")].rows();
            for (t, logits) in tokens.enumerate() {
                let Chosen {
                    ids: chosen,
                    weights: found,
                } = moe_router_topk::compute(logits, &experts);
                let expected: Vec<f64> = chosen.iter().map(|&id| f64::from(id)).collect();
                assert_eq!(
                    expected,
                    ids.rows().nth(t).expect("a row"),
                    "{case}: token {t}"
                );
                let expected = weights.rows().nth(t).expect("a row");
                let off = max_difference(&found, expected);
                assert!(
                    off < STORED,
                    "{case}.norm{norm}: token {t} is off by {off:.2e}"
                );
                let limits = moe_router_topk::expected(
                    logits,
                    &experts,
                    Accumulation::strided(num_experts, 32, 1),
                );
                assert!(
                    limits.weights.accepts(&found),
                    "{case}: within its own limits"
                );
            }
        }
    }
}

#[test]
fn combination() {
    let Some(all) = module("moe") else { return };
    let slots = all["combine.slots"].rows();
    let weights = all["combine.weights"].rows();
    let shared = &all["combine.shared_logit"].data;
    let mut found = vec![];
    for ((slots, weights), logit) in slots.zip(weights).zip(shared) {
        let mut weights = weights.to_vec();
        weights.push(1.0 / (1.0 + (-logit).exp()));
        found.extend(moe_combine::compute(slots, &weights));
    }
    close("sum", &found, &all["combine.y"]);
}
