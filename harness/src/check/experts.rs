//! A mixture of experts, from the operands that its dispatches had.

use super::{
    Captured, Engine, Judged, Rows, concat, exact, param_matrix, store, sum_form, topk_form,
};
use anyhow::{Context as _, Result};
use kernels::{Role, plan::Activation};
use reference::{
    Expected,
    bounds::Store,
    roles::{int4_matmul, int4_matmul_moe, moe_combine, moe_router_topk},
};

/// A field of the uniform of `int4_matmul_moe`, by its place.
#[derive(Clone, Copy)]
enum Field {
    Rows = 2,
    InSlot = 3,
    OutSlot = 4,
    InToken = 5,
    OutToken = 6,
    Slots = 7,
    OutFirst = 8,
    FirstExpert = 9,
    Experts = 10,
}

pub(super) fn judge(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    rows: &Rows,
    bound: impl Fn(usize) -> Activation,
) -> Result<Judged> {
    let spec = engine.weights.spec();
    let experts = spec.experts.context("the model has no experts")?;
    let dispatch = captured.dispatch;
    let variant = dispatch.variant;
    let tokens = rows.positions.len();
    let act = |i: usize| captured.activations[&bound(i)].as_slice();
    let judged = if variant.role == Role::MoeRouterLogits {
        let w = param_matrix(engine.weights, dispatch);
        let sum = sum_form(variant, w.k);
        let expected = rows.expected(act(1), w.k, |x| {
            int4_matmul::expected(w, x, sum, Store::F32)
        });
        vec![("", act(0).to_vec(), expected)]
    } else if variant.role == Role::MoeRouterTopk {
        let form = topk_form(variant, &experts);
        let logits = act(2).chunks_exact(experts.stack());
        let chosen = logits.map(|row| moe_router_topk::expected(row, &experts, form));
        let (ids, weights): (Vec<_>, Vec<_>) = chosen.map(|c| (c.ids, c.weights)).unzip();
        let ids = ids.concat().into_iter().map(f64::from).collect();
        vec![
            ("ids", act(0).to_vec(), exact(ids)),
            ("score", act(1).to_vec(), concat(weights.into_iter())),
        ]
    } else if variant.role == Role::MoeCombine {
        let slots = act(1).chunks_exact(experts.slots() * spec.hidden_size);
        let weights = act(2).chunks_exact(experts.slots());
        let rows = slots.zip(weights);
        let expected = rows.map(|(x, w)| moe_combine::expected(x, w, store(variant)));
        vec![("", act(0).to_vec(), concat(expected))]
    } else {
        // int4_matmul_moe
        let field = |field: Field| dispatch.uniform[field as usize] as usize;
        let w = param_matrix(engine.weights, dispatch);
        let (n, slots) = (field(Field::Rows), field(Field::Slots));
        let here = field(Field::FirstExpert)..field(Field::FirstExpert) + field(Field::Experts);
        let ids = &captured.activations[&Activation::ExpertIds];
        let form = sum_form(variant, w.k);
        let (mut found, mut expected): (Vec<f64>, Vec<Expected>) = (vec![], vec![]);
        for (at, &id) in ids.iter().enumerate().take(tokens * slots) {
            // The others' outputs are those of another dispatch.
            if !here.contains(&(id as usize)) {
                continue;
            }
            let (token, slot) = (at / slots, at % slots);
            let x = token * field(Field::InToken) + slot * field(Field::InSlot);
            let y = token * field(Field::OutToken) + slot * field(Field::OutSlot);
            let x = &act(1)[x..][..w.k];
            let id = (id as usize - here.start) as u32;
            expected.push(int4_matmul_moe::expected(
                w,
                n,
                id,
                x,
                form,
                store(variant),
            )?);
            found.extend_from_slice(&act(0)[y + field(Field::OutFirst)..][..n]);
        }
        vec![("", found, concat(expected.into_iter()))]
    };
    Ok(judged)
}
