//! Correctness: every dispatch of a token against its role's reference, and the
//! whole model against the reference forward pass.
//!
//! A role is judged from the operands it really had, so that an error of one
//! kernel does not hide behind those before it; the whole model is judged by its
//! logits and by its greedy tokens.

use crate::engine::{Arm, Captured, Engine};
use anyhow::{Context as _, Result, bail};
use half::f16;
use kernels::{
    ModelSpec, Role, Tensor, Variant,
    kv::Side,
    plan::{Activation, Buffer},
    variants::{Load, Reduce},
};
use reference::{
    Checkpoint, Expected, Forward, Matrix, Numerics,
    bounds::{Accumulation, Store, Trig},
    numerics::decode,
    roles::{
        add_norm, argmax, attention, attention_combine, attention_splitk, embedding, fused_ffn,
        int4_matmul, kv_append, qkv_fused, rms_norm, rope,
    },
};
use results::record;

/// Largest relative root-mean-square error of f16 logits against the reference:
/// the dense bound of the golden data's README.
pub(crate) const LOGITS_REL_RMS: f64 = 0.005;
/// Largest error of one logit: design.md counts no gap above it as a near tie.
pub(crate) const LOGIT_WORST: f64 = 0.25;
/// Share of tokens that near ties may excuse.
pub(crate) const EXCUSED_SHARE: f64 = 0.05;

/// Outcome of one comparison.
pub type Check = record::Check;

/// Compares `found` with `expected`, element by element; NaN, infinities and a
/// wrong length never pass.
pub fn compare(stage: &str, role: &str, found: &[f64], expected: &Expected) -> Check {
    let worst = expected.worst(found);
    let used = worst.map_or(f64::INFINITY, |w| w.used);
    let error = worst.map_or(f64::INFINITY, |w| (w.found - w.value).abs());
    let relative = worst.map_or(f64::INFINITY, |w| {
        error / w.value.abs().max(f64::MIN_POSITIVE)
    });
    let passed = used <= 1.0;
    Check {
        arm: record::Arm::A,
        stage: stage.to_owned(),
        role: role.to_owned(),
        elements: expected.value.len() as u64,
        worst_abs: error,
        worst_rel: if error == 0.0 { 0.0 } else { relative },
        bound: 1.0,
        worst_ratio: used,
        passed,
        note: worst.filter(|_| !passed).map(|w| {
            format!(
                "element {}: expected {} within {}, found {}",
                w.index, w.value, w.limit, w.found
            )
        }),
    }
}

/// Checks every dispatch of one decoded (or prompt) token, in order.
///
/// # Errors
/// A device error; a failed comparison is a [`Check`] that did not pass.
pub fn roles(
    engine: &Engine<'_>,
    program: &crate::engine::Program,
    position: usize,
) -> Result<Vec<Check>> {
    let token = engine.token()?;
    let mut checks = Vec::new();
    engine.run_captured(program, position, |captured| {
        let stage = captured.dispatch.label.clone();
        let role = captured.dispatch.variant.role;
        for (name, found, expected) in judge(engine, &captured, token, position)? {
            let stage = if name.is_empty() {
                stage.clone()
            } else {
                format!("{stage}.{name}")
            };
            checks.push(compare(&stage, role.name(), &found, &expected));
        }
        Ok(())
    })?;
    Ok(checks)
}

type Judged = Vec<(&'static str, Vec<f64>, Expected)>;

/// How a matrix variant adds its products over K.
pub fn sum_form(variant: Variant, k: usize) -> Accumulation {
    let width = match variant.load {
        Load::Word => 8,
        Load::Vec2 => 16,
        Load::Vec4 => 32,
    };
    match variant.reduce {
        Reduce::Row => Accumulation::serial(k),
        Reduce::Tree | Reduce::Elementwise => Accumulation::strided(k, variant.threads(), width),
    }
}

/// How a norm adds the squares of a row of `d` elements.
pub fn norm_form(variant: Variant, d: usize) -> Accumulation {
    Accumulation::strided(d, variant.threads(), 1)
}

/// How attention adds the products of one score.
pub const fn score_form(head_dim: usize) -> Accumulation {
    Accumulation::serial(head_dim)
}

fn exact(values: Vec<f64>) -> Expected {
    Expected {
        limit: vec![0.0; values.len()],
        value: values,
    }
}

fn judge(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    token: u32,
    position: usize,
) -> Result<Judged> {
    let weights = engine.weights;
    let spec = weights.spec();
    let dispatch = captured.dispatch;
    let variant = dispatch.variant;
    let act = |a: Activation| captured.activations[&a].as_slice();
    let bound = |i: usize| match dispatch.buffers[i] {
        Buffer::Activation(a) => a,
        Buffer::Param { .. } | Buffer::KvPages { .. } | Buffer::State(_) => {
            panic!("{}: binding {i} is no activation", dispatch.label)
        }
    };
    let matrix = || param_matrix(weights, dispatch);
    let eps = spec.rms_norm_eps;
    let wide = norm_form(variant, spec.hidden_size);
    let shape = attention::AttentionShape::of(spec);
    Ok(match variant.role {
        Role::Embedding => vec![(
            "",
            act(bound(0)).to_vec(),
            embedding::expected(matrix(), token)?,
        )],
        Role::RmsNorm => vec![(
            "",
            act(bound(0)).to_vec(),
            rms_norm::expected(
                act(bound(1)),
                &param_vector(weights, dispatch),
                eps,
                wide,
                Store::F16,
            ),
        )],
        Role::AddNorm => {
            let gamma = param_vector(weights, dispatch);
            let expected =
                add_norm::expected(act(bound(0)), act(bound(1)), &gamma, eps, wide, Store::F16);
            vec![
                ("residual", act(bound(4)).to_vec(), expected.residual),
                ("normed", act(bound(3)).to_vec(), expected.normed),
            ]
        }
        Role::Int4Matmul => {
            let w = matrix();
            let expected =
                int4_matmul::expected(w, act(bound(1)), sum_form(variant, w.k), Store::F16);
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::FusedFfn => {
            let w = matrix();
            let expected =
                fused_ffn::expected(w, act(bound(1)), sum_form(variant, w.k), Store::F16);
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::QkvFused => {
            let w = matrix();
            let form = qkv_fused::QkvForm {
                sum: sum_form(variant, w.k),
                trig: Trig::CONFORMANT,
                store: Store::F16,
            };
            let expected = qkv_fused::expected(
                w,
                act(bound(2)),
                qkv_fused::QkvShape::of(spec),
                &rope::Rope::of(spec),
                position,
                form,
            );
            let [before, after] = pages(captured)?;
            let (k, v) = stored_at(engine, after, position)?;
            // Every other slot keeps what it held: put this position's new
            // values into the old pages and the two must be the same.
            let mut replaced = before.clone();
            let half = |x: &[f64]| x.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>();
            kv_append::compute(
                &mut replaced,
                spec.kv_layout(),
                &engine.memory.page_table,
                position as i32,
                &half(&k),
                &half(&v),
            )?;
            vec![
                ("q", act(bound(0)).to_vec(), expected.q),
                ("k", k, expected.k),
                ("v", v, expected.v),
                ("pages", decode(after), exact(decode(&replaced))),
            ]
        }
        Role::Rope => {
            let qkv = qkv_fused::QkvShape::of(spec).split(act(bound(3)));
            let table = rope::Rope::of(spec);
            let rotated = |x: &[f64]| {
                let zero = vec![0.0; x.len()];
                rope::expected(&table, x, &zero, position, Trig::CONFORMANT, Store::F16)
            };
            vec![
                ("q", act(bound(0)).to_vec(), rotated(qkv.q)),
                ("k", act(bound(1)).to_vec(), rotated(qkv.k)),
                ("v", act(bound(2)).to_vec(), exact(qkv.v.to_vec())),
            ]
        }
        Role::KvAppend => {
            let [before, after] = pages(captured)?;
            let mut expected = before.clone();
            let half = |x: &[f64]| x.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>();
            kv_append::compute(
                &mut expected,
                spec.kv_layout(),
                &engine.memory.page_table,
                position as i32,
                &half(act(bound(0))),
                &half(act(bound(1))),
            )?;
            vec![("", decode(after), exact(decode(&expected)))]
        }
        Role::Attention | Role::AttentionSplitk => {
            let [_, after] = pages(captured)?;
            let gather = |side| {
                kv_append::gather(
                    after,
                    spec.kv_layout(),
                    &engine.memory.page_table,
                    side,
                    position + 1,
                )
                .map(|values| decode(&values))
            };
            let (k, v) = (gather(Side::K)?, gather(Side::V)?);
            let score = score_form(spec.head_dim);
            let found = act(bound(5)).to_vec();
            let expected = if variant.role == Role::Attention {
                let form = attention::AttentionForm {
                    score,
                    merges: 0,
                    store: Store::F16,
                };
                attention::expected(act(bound(0)), &k, &v, shape, form)
            } else {
                let parts = dispatch.grid[0] as usize;
                attention_splitk::expected(act(bound(0)), &k, &v, shape, parts, score)
            };
            vec![("", found, expected)]
        }
        Role::AttentionCombine => {
            let parts = dispatch.uniform[0] as usize;
            let expected =
                attention_combine::expected(act(bound(0)), spec.head_dim, parts, Store::F16);
            vec![("", act(bound(1)).to_vec(), expected)]
        }
        Role::Argmax => {
            let best = argmax::compute(act(bound(0))).context("the logits hold NaN")?;
            vec![(
                "",
                vec![f64::from(engine.token()?)],
                exact(vec![best as f64]),
            )]
        }
    })
}

fn pages<'c>(captured: &'c Captured<'_>) -> Result<&'c [Vec<f16>; 2]> {
    captured
        .kv
        .as_ref()
        .with_context(|| format!("{}: no pages are bound", captured.dispatch.label))
}

/// Keys and values of one position, `[KV]` each.
fn stored_at(engine: &Engine<'_>, pages: &[f16], position: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let spec = engine.weights.spec();
    let side = |side| -> Result<Vec<f64>> {
        let all = kv_append::gather(
            pages,
            spec.kv_layout(),
            &engine.memory.page_table,
            side,
            position + 1,
        )?;
        Ok(decode(&all[position * spec.kv_dim()..]))
    };
    Ok((side(Side::K)?, side(Side::V)?))
}

fn param(dispatch: &kernels::Dispatch) -> (Option<usize>, Tensor) {
    dispatch
        .buffers
        .iter()
        .find_map(|&buffer| match buffer {
            Buffer::Param { layer, tensor, .. } => Some((layer, tensor)),
            Buffer::Activation(_) | Buffer::KvPages { .. } | Buffer::State(_) => None,
        })
        .expect("a role with weights binds a parameter")
}

fn param_matrix<'w>(weights: &'w Checkpoint, dispatch: &kernels::Dispatch) -> Matrix<'w> {
    let (layer, tensor) = param(dispatch);
    weights.matrix(layer, tensor)
}

fn param_vector(weights: &Checkpoint, dispatch: &kernels::Dispatch) -> Vec<f64> {
    let (layer, tensor) = param(dispatch);
    decode(weights.vector(layer, tensor))
}

/// Limits of logits: every element within the worst error, the row within the
/// relative root-mean-square error, and argmax and four of the top five agree.
pub fn logits(stage: &str, found: &[f64], expected: &[f64]) -> Check {
    let expected_within = Expected {
        value: expected.to_vec(),
        limit: vec![LOGIT_WORST; expected.len()],
    };
    let mut check = compare(stage, "logits", found, &expected_within);
    let mut fail = |why: String| {
        check.passed = false;
        check.worst_ratio = check.worst_ratio.max(1.0 + f64::EPSILON);
        check.note = Some(why);
    };
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(expected).map(|(f, e)| square(f - e)).sum();
    let size: f64 = expected.iter().copied().map(square).sum();
    let rel_rms = (error / size).sqrt();
    if rel_rms.is_nan() || rel_rms > LOGITS_REL_RMS {
        fail(format!(
            "relative rms error {rel_rms:.5}, limit {LOGITS_REL_RMS}"
        ));
    }
    let overlap = {
        let expected = top5(expected);
        top5(found).iter().filter(|i| expected.contains(i)).count()
    };
    if overlap < 4 {
        fail(format!(
            "{overlap} of the top five logits agree, expected at least 4"
        ));
    }
    check.worst_rel = rel_rms;
    check
}

fn top5(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(5);
    order
}

/// Outcome of a greedy comparison.
#[derive(Debug)]
pub struct Greedy {
    /// The comparisons: one per step's logits, and `greedy` at the end.
    pub checks: Vec<Check>,
    /// Logits of every step, for a comparison arm against arm.
    pub logits: Vec<Vec<f64>>,
}

/// Decodes `steps` tokens on GPU and reference side by side, feeding the
/// reference's token to both, from the state that a prefill of `prompt` left.
///
/// A difference of tokens is excused as a near tie where the reference's top-2
/// gap is below twice the run's largest logit error and at most 0.25; more than
/// 5 % excused is a failure.
///
/// # Errors
/// A device error, or a reference that cannot run the model.
pub fn greedy(engine: &Engine<'_>, arm: &Arm, prompt: &[u32], steps: usize) -> Result<Greedy> {
    let mut forward = Forward::new(engine.weights, Numerics::Faithful)?;
    let mut expected = forward.prefill(prompt)?;
    let mut found = engine.logits()?;
    let mut found_token = engine.token()?;
    let mut all = Greedy {
        checks: Vec::new(),
        logits: Vec::new(),
    };
    let mut worst = 0.0_f64;
    let mut differing = Vec::new();
    for step in 0..=steps {
        let check = logits(&format!("logits.{step}"), &found, &expected);
        worst = worst.max(check.worst_abs);
        all.checks.push(check);
        let token = argmax::compute(&expected).context("the reference's logits hold NaN")? as u32;
        if token != found_token {
            differing.push((step, argmax::top2_gap(&expected).unwrap_or(f64::INFINITY)));
        }
        all.logits.push(found);
        if step == steps {
            break;
        }
        engine.set_token(token);
        engine.decode(&arm.decode, prompt.len() + step, 1)?;
        found = engine.logits()?;
        found_token = engine.token()?;
        expected = forward.step(token)?;
    }
    let excusable = (2.0 * worst).min(LOGIT_WORST);
    let wrong: Vec<String> = differing
        .iter()
        .filter(|&&(_, gap)| gap >= excusable)
        .map(|(step, gap)| format!("step {step} with a gap of {gap:.3}"))
        .collect();
    let share = differing.len() as f64 / (steps + 1) as f64;
    let passed = wrong.is_empty() && share <= EXCUSED_SHARE;
    all.checks.push(Check {
        arm: record::Arm::A,
        stage: "greedy".into(),
        role: "greedy".into(),
        elements: steps as u64 + 1,
        worst_abs: differing.len() as f64,
        worst_rel: share,
        bound: 1.0,
        worst_ratio: if passed {
            share / EXCUSED_SHARE
        } else {
            f64::INFINITY
        },
        passed,
        note: if passed {
            (!differing.is_empty()).then(|| format!("{} near ties", differing.len()))
        } else {
            Some(format!(
                "{} of {} tokens differ; beyond near ties (gap {excusable:.3}): {}",
                differing.len(),
                steps + 1,
                if wrong.is_empty() {
                    "none".into()
                } else {
                    wrong.join(", ")
                }
            ))
        },
    });
    Ok(all)
}

/// Refuses a model that the reference cannot run.
///
/// # Errors
/// When a check failed: lists the first three.
pub fn require_passed(checks: &[Check], spec: &ModelSpec) -> Result<()> {
    let failed: Vec<String> = checks
        .iter()
        .filter(|c| !c.passed)
        .take(3)
        .map(|c| format!("{}: {}", c.stage, c.note.as_deref().unwrap_or("failed")))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}: {}", spec.id, failed.join("; "))
}
