//! The experts that the GPU gave its tokens, and whether it might.
//!
//! Rounding may choose another expert where a router is near a tie, and everything that
//! follows is then another sum. So the reference takes the experts of the GPU, and the
//! choice is judged by itself: against the reference's logits of that router.

use super::{Check, logits::logits_rel_rms};
use crate::engine::{Arm, Captured, Engine, Program};
use anyhow::{Context as _, Result, ensure};
use kernels::{
    Dispatch, Elem, Role,
    models::Experts,
    plan::{Activation, chunk_positions, chunks},
};
use reference::forward::{Choices, Routed};
use results::record;
use std::ops::Range;

/// Tokens that go through an arm in one way.
#[derive(Clone, Debug)]
pub(crate) enum Fed {
    /// As a prompt, in chunks.
    Prompt(Range<usize>),
    /// One by one.
    Steps(Range<usize>),
}

/// The experts that an arm gives `tokens`, none for a model without: runs them, from the
/// first on, in the ways that `fed` says. The engine is then behind the last.
///
/// # Errors
/// A device error, or a router that names no experts of the model.
pub(crate) fn choices(
    engine: &Engine<'_>,
    arm: &Arm,
    tokens: &[u32],
    fed: &[Fed],
) -> Result<Option<Choices>> {
    let spec = engine.weights.spec();
    let Some(experts) = spec.experts else {
        return Ok(None);
    };
    let mut all: Choices = vec![vec![vec![]; tokens.len()]; spec.num_hidden_layers];
    let mut run = |program: &Program, positions: Range<usize>| -> Result<()> {
        engine.set_tokens(&tokens[positions.clone()]);
        engine.run_captured(program, positions.start, routes, |captured| {
            note(&captured, &experts, positions.clone(), &mut all)
        })
    };
    for part in fed {
        match part {
            Fed::Prompt(positions) => {
                let programs = engine.prefill_programs(&arm.prefill, positions.clone())?;
                let parts = chunks(positions.clone(), arm.prefill.chunk());
                for (positions, program) in parts.zip(programs) {
                    run(&program, positions)?;
                }
            }
            Fed::Steps(positions) => {
                for position in positions.clone() {
                    run(&arm.decode, position..position + 1)?;
                }
            }
        }
    }
    Ok(Some(all))
}

/// Whether a dispatch chooses experts.
pub(crate) fn routes(dispatch: &Dispatch) -> bool {
    dispatch.variant.role == Role::MoeRouterTopk
}

/// Notes the experts that such a dispatch gave the tokens of a chunk.
///
/// # Errors
/// When they are none of the model.
pub(crate) fn note(
    captured: &Captured<'_>,
    experts: &Experts,
    chunk: Range<usize>,
    all: &mut Choices,
) -> Result<()> {
    let label = &captured.dispatch.label;
    let layer = layer_of(label).and_then(|(layer, _)| all.get_mut(layer));
    let layer = layer.with_context(|| format!("{label}: expected it of a layer"))?;
    let ids = captured.activations[&Activation::ExpertIds].chunks_exact(experts.slots());
    for (ids, position) in ids.zip(chunk_positions(chunk.start, chunk.len())) {
        let ids = routed(ids, experts);
        layer[position] = ids.with_context(|| format!("{label}, position {position}"))?;
    }
    Ok(())
}

/// The layer of a dispatch, and its place there.
pub(crate) fn layer_of(label: &str) -> Option<(usize, &str)> {
    let (layer, site) = label.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, site))
}

/// The routed experts among a token's slots.
fn routed(slots: &[f64], experts: &Experts) -> Result<Vec<u32>> {
    let mut ids: Vec<u32> = Vec::new();
    for &id in &slots[..experts.num_experts_per_tok] {
        ensure!(
            (0.0..experts.num_experts as f64).contains(&id) && !ids.contains(&(id as u32)),
            "expected {} different experts of {}, found {slots:?}",
            experts.num_experts_per_tok,
            experts.num_experts
        );
        ids.push(id as u32);
    }
    Ok(ids)
}

/// Whether both name the same experts, in whatever order.
pub(crate) fn are_same(a: &Choices, b: &Choices) -> bool {
    let sorted = |ids: &Vec<u32>| {
        let mut ids = ids.clone();
        ids.sort_unstable();
        ids
    };
    let all =
        |choices: &Choices| -> Vec<Vec<u32>> { choices.iter().flatten().map(sorted).collect() };
    all(a) == all(b)
}

/// A router's row as the reference has it.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    routed: Routed,
    /// By how much the last of the greatest logits may exceed a chosen expert's.
    limit: f64,
}

impl Router {
    /// A row of the rounding-faithful reference and of the formula for the same experts.
    ///
    /// A logit is off by no more than twice what rounding alone makes of any in the row, or
    /// by what a row of logits may be relative to its root mean square; and two are compared.
    pub(crate) fn new(routed: &Routed, exact: &Routed, elem: Elem) -> Self {
        let pairs = routed.logits.iter().zip(&exact.logits);
        let rounding = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let squares: f64 = routed.logits.iter().map(|x| x * x).sum();
        let rms = (squares / routed.logits.len() as f64).sqrt();
        Self {
            routed: routed.clone(),
            limit: 2.0 * (2.0 * rounding).max(logits_rel_rms(elem) * rms),
        }
    }

    /// Of the chosen experts the one of the least logit, and by how much that is below the
    /// last of the greatest logits; none where they are those.
    fn shortfall(&self, experts: &Experts) -> Option<(u32, f64)> {
        let Routed { logits, ids } = &self.routed;
        let mut order: Vec<f64> = logits[..experts.num_experts].to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        let least = order[experts.num_experts_per_tok - 1];
        let below = ids.iter().map(|&id| (id, least - logits[id as usize]));
        below
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|&(_, below)| below > 0.0 || below.is_nan())
    }
}

/// Judges the experts of every token: `[layer][position]`.
pub(crate) fn judge_choices(routers: &[Vec<Router>], experts: &Experts) -> Check {
    let rows = routers.iter().enumerate().flat_map(|(layer, rows)| {
        let rows = rows.iter().enumerate();
        rows.map(move |(position, router)| (layer, position, router))
    });
    let others: Vec<_> = rows
        .filter_map(|(layer, position, router)| {
            let (id, below) = router.shortfall(experts)?;
            Some((layer, position, id, below, router.limit))
        })
        .collect();
    let used = |other: &(usize, usize, u32, f64, f64)| match other.3 {
        below if below.is_finite() => below / other.4,
        _ => f64::INFINITY,
    };
    let worst = others.iter().max_by(|a, b| used(a).total_cmp(&used(b)));
    let worst_ratio = worst.map_or(0.0, used);
    let passed = worst_ratio <= 1.0;
    Check {
        arm: record::Arm::A,
        stage: "experts".into(),
        role: Role::MoeRouterTopk.name().into(),
        elements: routers.iter().map(|rows| rows.len() as u64).sum(),
        worst_abs: worst.map_or(0.0, |other| other.3),
        worst_rel: 0.0,
        bound: 1.0,
        worst_ratio,
        passed,
        note: match worst {
            Some((layer, position, id, below, limit)) if !passed => Some(format!(
                "layers.{layer}, position {position}: expert {id} was chosen, whose logit is \
                 {below:.4} below the last that the reference chooses; rounding explains {limit:.4}"
            )),
            Some(_) => Some(format!("{} near ties", others.len())),
            None => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Expectation;
    use kernels::{Features, ModelSpec, Settings, flag, models};
    use reference::{Checkpoint, synth};

    const EXPERTS: Experts = Experts {
        num_experts: 4,
        num_experts_per_tok: 2,
        norm_topk_prob: true,
        shared_expert: true,
    };

    /// One token whose rounded logits are these, of which two in the formula are off by
    /// 1e-3, with its experts.
    fn judged(logits: [f64; 5], ids: [u32; 2]) -> Check {
        let row = |logits: Vec<f64>| Routed {
            logits,
            ids: ids.to_vec(),
        };
        let mut exact = logits.to_vec();
        exact[0] += 1e-3;
        exact[4] -= 1e-3;
        let router = Router::new(&row(logits.to_vec()), &row(exact), Elem::F16);
        judge_choices(&[vec![router]], &EXPERTS)
    }

    #[test]
    fn another_expert_may_be_chosen_near_a_tie_alone() {
        // Their root mean square is 0.5: 2 * 0.0025, above 2 * 2e-3 of rounding.
        let logits = [0.7, 0.2, 0.2 - 4.9e-3, -0.4, 0.74];
        for ids in [[0, 1], [1, 0]] {
            let own = judged(logits, ids);
            assert!(own.passed && own.note.is_none(), "{own:?}");
        }
        let near = judged(logits, [2, 0]);
        assert!(near.passed, "{near:?}");
        assert_eq!(near.note.as_deref(), Some("1 near ties"), "it is said");
        let wrong = judged(logits, [3, 0]);
        assert!(!wrong.passed, "{wrong:?}");
        let note = wrong.note.expect("why");
        assert!(
            note.contains("expert 3 was chosen, whose logit is 0.6000 below"),
            "{note}"
        );
        // Twice that gap is none.
        let wrong = judged([0.7, 0.2, 0.2 - 9.8e-3, -0.4, 0.74], [0, 2]);
        assert!(!wrong.passed, "{wrong:?}");
        let nan = judged([0.7, 0.2, f64::NAN, -0.4, 0.74], [0, 2]);
        assert!(!nan.passed, "{nan:?}");
    }

    /// Seeded layers of experts alone.
    fn synthetic() -> Checkpoint {
        let whole = models::find("qwen3-30b-a3b").expect("registered");
        let spec = ModelSpec {
            hidden_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 64,
            rotary_dim: 64,
            intermediate_size: 64,
            vocab_size: 100,
            experts: whole.experts.map(|experts| Experts {
                num_experts: 12,
                num_experts_per_tok: 3,
                ..experts
            }),
            ..whole
        };
        synth::checkpoint(&spec, 5).expect("synthetic weights")
    }

    #[test]
    fn the_reference_takes_the_experts_of_the_gpu_and_says_which_it_would_not() {
        let weights = synthetic();
        let experts = weights.spec().experts.expect("experts");
        let settings = Settings::resolve(&Features::PUBLISHED, &flag::Choices::new());
        let settings = settings.expect("defaults");
        let prompt: Vec<u32> = (0..60).map(|i| i * 37 % 100).collect();
        let own = Expectation::new(&weights, &prompt, 3, &settings).expect("the reference runs");
        let (followed, check) = own.following(&weights, &own.choices).expect("the same");
        let check = check.expect("the model has experts");
        assert!(followed.is_none() && check.passed, "{check:?}");
        assert_eq!(check.elements, 2 * 63, "every token of every layer");

        // The last of the chosen gives way to the greatest that is not, or to the least.
        let other = |layer: usize, position: usize, rank: usize| {
            let Router { routed, limit } = &own.routers[layer][position];
            let mut order: Vec<u32> = (0..experts.num_experts as u32).collect();
            let logit = |id: &u32| routed.logits[*id as usize];
            order.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
            let last = experts.num_experts_per_tok - 1;
            let mut choices = own.choices.clone();
            choices[layer][position][last] = order[rank];
            (choices, (logit(&order[last]) - logit(&order[rank])) / limit)
        };
        let next = experts.num_experts_per_tok;
        // In the first layer, which later tokens see in the second.
        let layer = 0;
        let used = |position| other(layer, position, next).1;
        let nearest = (0..60).min_by(|&a, &b| used(a).total_cmp(&used(b)));
        let position = nearest.expect("rows");
        let (near, used) = other(layer, position, next);
        assert!(used < 1.0, "seed 5 has a near tie: {used}");
        let (followed, check) = own.following(&weights, &near).expect("the reference runs");
        let check = check.expect("judged");
        assert!(check.passed, "{check:?}");
        let note = check.note.as_deref().unwrap_or_default();
        assert!(note.ends_with("near ties"), "it is said: {check:?}");
        let followed = followed.expect("another pass");
        assert!(are_same(&followed.choices, &near), "every choice");
        assert_eq!(followed.tokens, own.tokens, "fed the same");
        assert!(followed.logits != own.logits, "other experts, other logits");

        let (wrong, used) = other(layer, position, experts.num_experts - 1);
        assert!(used > 1.0, "the least logit is none: {used}");
        let check = own.following(&weights, &wrong).expect("runs").1;
        let check = check.expect("judged");
        assert!(!check.passed && check.worst_ratio > 1.0, "{check:?}");
        let note = check.note.expect("why");
        let place = format!("layers.{layer}, position {position}: expert ");
        assert!(note.starts_with(&place), "{note}");
    }

    #[test]
    fn experts_that_the_model_has_not_are_refused() {
        let slots = |a, b| routed(&[a, b, 4.0], &EXPERTS);
        assert_eq!(slots(3.0, 0.0).expect("two of four"), [3, 0]);
        for (a, b) in [(4.0, 0.0), (1.0, 1.0), (f64::NAN, 0.0), (-1.0, 0.0)] {
            let error = slots(a, b).expect_err("no experts");
            assert!(error.to_string().contains("2 different experts of 4"));
        }
    }
}
