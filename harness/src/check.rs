//! Correctness: every dispatch of a token against its role's reference, and the
//! whole model against the reference forward pass.
//!
//! A role is judged from the operands it really had, so that an error of one
//! kernel does not hide behind those before it; the whole model is judged by its
//! logits and by its greedy tokens.

use crate::engine::{Arm, Captured, Engine};
use anyhow::{Context as _, Result, bail};
use kernels::{
    Dispatch, Elem, ModelSpec, Role, Tensor, Variant,
    kv::Side,
    plan::{Activation, Buffer},
    variants::{Load, Reduce},
};
use reference::{
    Checkpoint, Expected, Forward, Matrix, Numerics,
    bounds::{Accumulation, Store, Trig},
    numerics::{decode, widen},
    roles::{
        add_norm, argmax, attention, attention_combine, attention_splitk, embedding, fused_ffn,
        int4_matmul, kv_append, qk_norm,
        qk_norm_rope_append::{self, HeadNorm},
        qkv_fused::{self, Qkv},
        rms_norm, rope,
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

/// Checks the dispatches of one decoded (or prompt) token that `select` takes, in
/// order.
///
/// # Errors
/// A device error; a failed comparison is a [`Check`] that did not pass.
pub fn roles(
    engine: &Engine<'_>,
    program: &crate::engine::Program,
    position: usize,
    select: impl Fn(&Dispatch) -> bool,
) -> Result<Vec<Check>> {
    let token = engine.token()?;
    let mut checks = Vec::new();
    engine.run_captured(program, position, select, |captured| {
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
        Load::Vec4 | Load::Texture => 32,
    };
    match variant.reduce {
        Reduce::Row => Accumulation::serial(k),
        Reduce::Tree | Reduce::Elementwise => Accumulation::strided(k, variant.threads(), width),
        Reduce::Subgroup => Accumulation::any_order(k, variant.threads(), width),
    }
}

/// How a variant stores a product or a logit.
pub fn output_store(variant: Variant) -> Store {
    match variant.out {
        Elem::F16 => store(variant),
        Elem::F32 => Store::F32,
    }
}

/// How a variant stores activations.
pub fn store(variant: Variant) -> Store {
    match variant.elem {
        Elem::F16 => Store::F16,
        Elem::F32 => Store::F32,
    }
}

/// How a norm adds the squares of a row of `d` elements.
pub fn norm_form(variant: Variant, d: usize) -> Accumulation {
    Accumulation::strided(d, variant.threads(), 1)
}

/// How a norm of heads adds the squares of a head: the fused form in pairs.
pub fn head_form(variant: Variant, head_dim: usize) -> Accumulation {
    let width = if variant.role == Role::QkNormRopeAppend {
        2
    } else {
        1
    };
    Accumulation::strided(head_dim, variant.threads(), width)
}

/// How attention adds the products of one score.
pub fn score_form(variant: Variant, head_dim: usize) -> Accumulation {
    match variant.reduce {
        Reduce::Row | Reduce::Tree | Reduce::Elementwise => Accumulation::serial(head_dim),
        Reduce::Subgroup => Accumulation::any_order(head_dim, variant.threads(), 1),
    }
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
            embedding::expected(matrix(), token, variant.elem)?,
        )],
        Role::RmsNorm => vec![(
            "",
            act(bound(0)).to_vec(),
            rms_norm::expected(
                act(bound(1)),
                &param_vector(weights, dispatch),
                eps,
                wide,
                store(variant),
            ),
        )],
        Role::AddNorm => {
            let gamma = param_vector(weights, dispatch);
            let expected = add_norm::expected(
                act(bound(0)),
                act(bound(1)),
                &gamma,
                eps,
                wide,
                store(variant),
            );
            vec![
                ("residual", act(bound(4)).to_vec(), expected.residual),
                ("normed", act(bound(3)).to_vec(), expected.normed),
            ]
        }
        Role::Int4Matmul => {
            let w = matrix();
            let form = sum_form(variant, w.k);
            let expected = int4_matmul::expected(w, act(bound(1)), form, output_store(variant));
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::FusedFfn => {
            let w = matrix();
            let expected =
                fused_ffn::expected(w, act(bound(1)), sum_form(variant, w.k), store(variant));
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::QkvFused => {
            let w = matrix();
            let form = qkv_fused::QkvForm {
                sum: sum_form(variant, w.k),
                trig: Trig::CONFORMANT,
                store: store(variant),
            };
            let expected = qkv_fused::expected(
                w,
                act(bound(2)),
                qkv_fused::QkvShape::of(spec),
                &rope::Rope::of(spec),
                position,
                form,
            );
            projected(engine, captured, act(bound(0)).to_vec(), expected, position)?
        }
        Role::QkNorm => {
            let shape = qkv_fused::QkvShape::of(spec);
            let [q_gamma, k_gamma] = head_gammas(weights, dispatch);
            let before = shape.split(&captured.replaced[&bound(0)]);
            let after = shape.split(act(bound(0)));
            let normed = |x: &[f64], gamma: &[f64]| {
                let form = head_form(variant, spec.head_dim);
                qk_norm::expected(x, gamma, eps, form, store(variant))
            };
            vec![
                ("q", after.q.to_vec(), normed(before.q, &q_gamma)),
                ("k", after.k.to_vec(), normed(before.k, &k_gamma)),
                ("v", after.v.to_vec(), exact(before.v.to_vec())),
            ]
        }
        Role::QkNormRopeAppend => {
            let [q_gamma, k_gamma] = head_gammas(weights, dispatch);
            let form = qkv_fused::QkvForm {
                sum: head_form(variant, spec.head_dim),
                trig: Trig::CONFORMANT,
                store: store(variant),
            };
            let expected = qk_norm_rope_append::expected(
                act(bound(2)),
                qkv_fused::QkvShape::of(spec),
                HeadNorm {
                    q_gamma: &q_gamma,
                    k_gamma: &k_gamma,
                    eps,
                },
                &rope::Rope::of(spec),
                position,
                form,
            );
            projected(engine, captured, act(bound(0)).to_vec(), expected, position)?
        }
        Role::Rope => {
            let qkv = qkv_fused::QkvShape::of(spec).split(act(bound(3)));
            let table = rope::Rope::of(spec);
            let rotated = |x: &[f64]| {
                let zero = vec![0.0; x.len()];
                rope::expected(&table, x, &zero, position, Trig::CONFORMANT, store(variant))
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
            let held = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
            kv_append::compute(
                &mut expected,
                spec.kv_layout(),
                &engine.memory.page_table,
                position as i32,
                &held(act(bound(0))),
                &held(act(bound(1))),
            )?;
            vec![("", widen(after), exact(widen(&expected)))]
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
                .map(|values| widen(&values))
            };
            let (k, v) = (gather(Side::K)?, gather(Side::V)?);
            let score = score_form(variant, spec.head_dim);
            let merges = merges(variant);
            let found = act(bound(5)).to_vec();
            let expected = if variant.role == Role::Attention {
                let form = attention::AttentionForm {
                    score,
                    merges,
                    store: store(variant),
                };
                attention::expected(act(bound(0)), &k, &v, shape, form)
            } else {
                let parts = dispatch.grid[0] as usize;
                attention_splitk::expected(act(bound(0)), &k, &v, shape, parts, score, merges)
            };
            vec![("", found, expected)]
        }
        Role::AttentionCombine => {
            let parts = dispatch.uniform[0] as usize;
            let expected =
                attention_combine::expected(act(bound(0)), spec.head_dim, parts, store(variant));
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

fn pages<'c>(captured: &'c Captured<'_>) -> Result<&'c [Vec<f32>; 2]> {
    captured
        .kv
        .as_ref()
        .with_context(|| format!("{}: no pages are bound", captured.dispatch.label))
}

/// Queries, and keys and values in their pages, of a role that stores all three.
fn projected(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    q: Vec<f64>,
    expected: Qkv<Expected>,
    position: usize,
) -> Result<Judged> {
    let [before, after] = pages(captured)?;
    let (k, v) = stored_at(engine, after, position)?;
    // Every other slot keeps what it held: put this position's new values into
    // the old pages and the two must be the same.
    let mut replaced = before.clone();
    let held = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    kv_append::compute(
        &mut replaced,
        engine.weights.spec().kv_layout(),
        &engine.memory.page_table,
        position as i32,
        &held(&k),
        &held(&v),
    )?;
    Ok(vec![
        ("q", q, expected.q),
        ("k", k, expected.k),
        ("v", v, expected.v),
        ("pages", widen(after), exact(widen(&replaced))),
    ])
}

/// Keys and values of one position, `[KV]` each.
fn stored_at(engine: &Engine<'_>, pages: &[f32], position: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let spec = engine.weights.spec();
    let side = |side| -> Result<Vec<f64>> {
        let all = kv_append::gather(
            pages,
            spec.kv_layout(),
            &engine.memory.page_table,
            side,
            position + 1,
        )?;
        Ok(widen(&all[position * spec.kv_dim()..]))
    };
    Ok((side(Side::K)?, side(Side::V)?))
}

fn param(dispatch: &Dispatch) -> (Option<usize>, Tensor) {
    dispatch
        .buffers
        .iter()
        .find_map(|&buffer| match buffer {
            Buffer::Param { layer, tensor, .. } => Some((layer, tensor)),
            Buffer::Activation(_) | Buffer::KvPages { .. } | Buffer::State(_) => None,
        })
        .expect("a role with weights binds a parameter")
}

fn param_matrix<'w>(weights: &'w Checkpoint, dispatch: &Dispatch) -> Matrix<'w> {
    let (layer, tensor) = param(dispatch);
    weights.matrix(layer, tensor)
}

fn param_vector(weights: &Checkpoint, dispatch: &Dispatch) -> Vec<f64> {
    let (layer, tensor) = param(dispatch);
    decode(weights.vector(layer, tensor))
}

/// Gammas of the query and key heads that a dispatch binds.
fn head_gammas(weights: &Checkpoint, dispatch: &kernels::Dispatch) -> [Vec<f64>; 2] {
    let (layer, _) = param(dispatch);
    [Tensor::QNorm, Tensor::KNorm].map(|tensor| decode(weights.vector(layer, tensor)))
}

/// Times that an attention kernel merges separate results inside a workgroup: the
/// row form once, what its invocations hold.
pub fn merges(variant: Variant) -> usize {
    match variant.reduce {
        Reduce::Row => 1,
        Reduce::Tree | Reduce::Elementwise | Reduce::Subgroup => 0,
    }
}

/// Limits of logits: every element within the worst error, the row within its
/// relative root-mean-square error ([`rel_rms`]), and four of the top five agree.
///
/// `noise` is the error that f16 stores alone make in this row, where it is
/// known: two runs that round alike but add in another order differ by about
/// 1.4 times as much, and twice as much is allowed.
pub fn logits(stage: &str, found: &[f64], expected: &[f64], noise: f64) -> Check {
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
    let limit = LOGITS_REL_RMS.max(2.0 * noise);
    let rel_rms = rel_rms(found, expected);
    if rel_rms.is_nan() || rel_rms > limit {
        fail(format!("relative rms error {rel_rms:.5}, limit {limit:.5}"));
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

/// Root mean square of the differences over that of the expected logits, both
/// about their mean. A shift of all logits alike, which softmax and argmax do not
/// see, is left to the limit of the worst element: f16 rounding of the outlier
/// channels that real models have makes shifts of 0.5 % of a row.
fn rel_rms(found: &[f64], expected: &[f64]) -> f64 {
    let mean = |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64;
    let (found_mean, expected_mean) = (mean(found), mean(expected));
    let square = |x: f64| x * x;
    let error: f64 = found
        .iter()
        .zip(expected)
        .map(|(f, e)| square((f - found_mean) - (e - expected_mean)))
        .sum();
    let size: f64 = expected.iter().map(|e| square(e - expected_mean)).sum();
    (error / size).sqrt()
}

fn top5(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(5);
    order
}

/// What the reference says of a prompt and the tokens after it.
#[derive(Debug)]
pub struct Expectation {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The tokens that are fed after it.
    pub tokens: Vec<u32>,
    /// The logits after the prompt, then after each of those tokens but the last.
    pub logits: Vec<Vec<f64>>,
    /// Relative root-mean-square error of each row by stores alone: the
    /// rounding-faithful reference against the formula.
    pub noise: Vec<f64>,
}

impl Expectation {
    /// Runs both references over the prompt and `steps` tokens, those that the
    /// reference with activations of type `elem` decodes greedily.
    ///
    /// # Errors
    /// A reference that cannot run the model, or NaN in its logits.
    pub fn new(weights: &Checkpoint, prompt: &[u32], steps: usize, elem: Elem) -> Result<Self> {
        Self::fed(weights, prompt, steps, elem, |_, best| best)
    }

    /// The same tokens, with activations of another type.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_type(&self, weights: &Checkpoint, elem: Elem) -> Result<Self> {
        let steps = self.tokens.len() - 1;
        Self::fed(weights, &self.prompt, steps, elem, |step, _| {
            self.tokens[step]
        })
    }

    fn fed(
        weights: &Checkpoint,
        prompt: &[u32],
        steps: usize,
        elem: Elem,
        next: impl Fn(usize, u32) -> u32,
    ) -> Result<Self> {
        let mut faithful = Forward::new(weights, Numerics::Faithful(elem))?;
        let mut formula = Forward::new(weights, Numerics::Formula)?;
        let mut row = faithful.prefill(prompt)?;
        let mut exact = formula.prefill(prompt)?;
        let mut all = Self {
            prompt: prompt.to_vec(),
            tokens: Vec::new(),
            logits: Vec::new(),
            noise: Vec::new(),
        };
        loop {
            let best = argmax::compute(&row).context("the reference's logits hold NaN")? as u32;
            let token = next(all.tokens.len(), best);
            all.noise.push(rel_rms(&row, &exact));
            all.tokens.push(token);
            all.logits.push(row);
            if all.tokens.len() > steps {
                return Ok(all);
            }
            row = faithful.step(token)?;
            exact = formula.step(token)?;
        }
    }
}

/// Outcome of a greedy comparison.
#[derive(Debug)]
pub struct Greedy {
    /// The comparisons: one per step's logits, and `greedy` at the end.
    pub checks: Vec<Check>,
    /// Logits of every step, for a comparison arm against arm.
    pub logits: Vec<Vec<f64>>,
}

/// Decodes on the GPU, feeding the tokens of `expected`,
/// from the state that a prefill of the prompt left.
///
/// A difference of tokens is excused as a near tie where the reference's top-2
/// gap is below twice the run's largest logit error and at most 0.25; more than
/// 5 % excused is a failure.
///
/// # Errors
/// A device error.
pub fn greedy(engine: &Engine<'_>, arm: &Arm, expected: &Expectation) -> Result<Greedy> {
    let steps = expected.tokens.len() - 1;
    let mut found = engine.logits(&arm.prefill_last)?;
    let mut found_token = engine.token()?;
    let mut all = Greedy {
        checks: Vec::new(),
        logits: Vec::new(),
    };
    let mut worst = 0.0_f64;
    let mut differing = Vec::new();
    for (step, &token) in expected.tokens.iter().enumerate() {
        let row = &expected.logits[step];
        let check = logits(&format!("logits.{step}"), &found, row, expected.noise[step]);
        worst = worst.max(check.worst_abs);
        all.checks.push(check);
        let best = argmax::compute(row).context("the reference's logits hold NaN")? as u32;
        if best != found_token {
            differing.push((step, argmax::top2_gap(row).unwrap_or(f64::INFINITY)));
        }
        all.logits.push(found);
        if step == steps {
            break;
        }
        engine.set_token(token);
        engine.decode(&arm.decode, expected.prompt.len() + step, 1)?;
        found = engine.logits(&arm.decode)?;
        found_token = engine.token()?;
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
                "{} of {} tokens differ, at most {:.0} % may; beyond near ties (gap \
                 {excusable:.3}): {}",
                differing.len(),
                steps + 1,
                100.0 * EXCUSED_SHARE,
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
