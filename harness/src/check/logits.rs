//! Logits and greedy tokens against the reference.

use super::{
    Check,
    choices::{Fed, Router, are_same, choices, judge_choices},
    compare,
};
use crate::engine::{Arm, Engine};
use anyhow::{Context as _, Result};
use kernels::{Elem, Settings, kv::KvFormat};
use reference::{Checkpoint, Expected, Forward, Int8, Numerics, forward::Choices, roles::argmax};
use results::record;

/// Largest relative root-mean-square error of logits against the reference. For
/// f16 the dense bound of the golden data's README; for f32 three times what that
/// README gives for other f32 code.
pub(crate) const fn logits_rel_rms(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => 0.005,
        Elem::F32 => 2e-4,
    }
}

/// Largest error of one logit: eight times the greatest that the golden data's
/// README gives for dense models in that type (design.md counts no f16 gap above it
/// as a near tie); for f32 rounded up from 5.6e-4, since a real model's logits are
/// ten times as large.
pub(crate) const fn logit_worst(elem: Elem) -> f64 {
    match elem {
        Elem::F16 => 0.25,
        Elem::F32 => 5e-3,
    }
}

/// Tokens that are compared after the prompt's own unless it is said. With those, 21: one
/// near tie among them is within the share that may be excused.
pub const STEPS: usize = 20;

/// Share of tokens that near ties may excuse, where [`Noise::worst`] does not say more.
pub(crate) const EXCUSED_SHARE: f64 = 0.05;

/// Limits of logits: every element within the worst error, the row within its
/// relative root-mean-square error ([`rel_rms`]), and four of the top five agree, or are
/// as near to the fifth as [`Noise::worst`] allows.
///
/// `noise` is the error that rounding alone makes in this row, where it is known:
/// two runs that round alike but add in another order differ by about 1.4 times as
/// much, and twice as much is allowed.
pub fn logits(stage: &str, found: &[f64], expected: &[f64], noise: Noise, elem: Elem) -> Check {
    let worst = logit_worst(elem).max(2.0 * noise.worst);
    let expected_within = Expected {
        value: expected.to_vec(),
        limit: vec![worst; expected.len()],
    };
    let mut check = compare(stage, "logits", found, &expected_within);
    let mut fail = |why: String| {
        check.passed = false;
        check.worst_ratio = check.worst_ratio.max(1.0 + f64::EPSILON);
        check.note = Some(why);
    };
    let limit = logits_rel_rms(elem).max(2.0 * noise.rel_rms);
    let rel_rms = rel_rms(found, expected);
    if rel_rms.is_nan() || rel_rms > limit {
        fail(format!("relative rms error {rel_rms:.5}, limit {limit:.5}"));
    }
    // Where codes moved single logits, the fifth may have changed places with its neighbours.
    let fifth = top5(expected)
        .last()
        .map_or(f64::NEG_INFINITY, |&i| expected[i]);
    let near = fifth - 2.0 * noise.worst;
    let top = top5(found);
    let overlap = top.iter().filter(|&&i| expected[i] >= near).count();
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

/// What rounding alone changes in a row of logits: the rounding-faithful reference
/// against the formula.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Relative root-mean-square error.
    pub rel_rms: f64,
    /// Largest error of a logit, over int8 codes of the cache or of activations; else zero,
    /// and the limit of one logit is fixed. A value that rounding moves over the edge of an int8 code
    /// changes by a whole code, and a few such codes move single logits far.
    pub worst: f64,
}

impl Noise {
    fn of(row: &[f64], exact: &[f64], kind: Kind) -> Self {
        let errors = row.iter().zip(exact).map(|(a, b)| (a - b).abs());
        Self {
            rel_rms: rel_rms(row, exact),
            worst: if kind.kv == KvFormat::Int8 || kind.int8 != Int8::Nothing {
                errors.fold(0.0, f64::max)
            } else {
                0.0
            },
        }
    }

    /// The greater of two.
    pub fn max(self, other: Self) -> Self {
        Self {
            rel_rms: self.rel_rms.max(other.rel_rms),
            worst: self.worst.max(other.worst),
        }
    }
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
    /// What rounding alone changes in each row.
    pub noise: Vec<Noise>,
    kind: Kind,
    /// By layer and position; empty without experts.
    pub(super) routers: Vec<Vec<Router>>,
    pub(super) choices: Choices,
}

/// What settings change in the values of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// Type of activations.
    elem: Elem,
    /// Format of the cache.
    kv: KvFormat,
    /// What multiplies int8 activations.
    int8: Int8,
}

impl Kind {
    fn of(settings: &Settings) -> Self {
        let is_on = |flag| settings.get(flag).is_on();
        Self {
            elem: settings.elem(),
            kv: settings.kv_format(),
            int8: match (is_on("dp4a"), is_on("chunk") && !is_on("gemm")) {
                (false, _) => Int8::Nothing,
                (true, true) => Int8::Steps,
                (true, false) => Int8::Everything,
            },
        }
    }
}

impl Expectation {
    /// Runs both references over the prompt and `steps` tokens, those that the
    /// faithful one decodes greedily, with activations and cache as `settings` say.
    ///
    /// # Errors
    /// A reference that cannot run the model, or NaN in its logits.
    pub fn new(
        weights: &Checkpoint,
        prompt: &[u32],
        steps: usize,
        settings: &Settings,
    ) -> Result<Self> {
        let kind = Kind::of(settings);
        Self::fed(weights, prompt, steps, kind, Choices::new(), |_, best| best)
    }

    /// Whether these settings ask for the same values.
    pub fn serves(&self, settings: &Settings) -> bool {
        self.kind == Kind::of(settings)
    }

    /// The same tokens with other settings; none where these ask for the same.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with(&self, weights: &Checkpoint, settings: &Settings) -> Result<Option<Self>> {
        let kind = Kind::of(settings);
        if kind == self.kind {
            return Ok(None);
        }
        self.again(weights, kind, Choices::new()).map(Some)
    }

    /// The same tokens, given to the experts that a GPU chose, and what is to be said of
    /// that choice.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn following(
        &self,
        weights: &Checkpoint,
        choices: &Choices,
    ) -> Result<(Option<Self>, Option<Check>)> {
        let Some(experts) = weights.spec().experts else {
            return Ok((None, None));
        };
        let followed = match are_same(&self.choices, choices) {
            true => None,
            false => Some(self.again(weights, self.kind, choices.clone())?),
        };
        let routers = &followed.as_ref().unwrap_or(self).routers;
        let check = judge_choices(routers, &experts);
        Ok((followed, Some(check)))
    }

    fn again(&self, weights: &Checkpoint, kind: Kind, choices: Choices) -> Result<Self> {
        let steps = self.tokens.len() - 1;
        let fed = |step, _| self.tokens[step];
        Self::fed(weights, &self.prompt, steps, kind, choices, fed)
    }

    /// With the experts of `followed`, if any. The formula has those of the faithful pass.
    fn fed(
        weights: &Checkpoint,
        prompt: &[u32],
        steps: usize,
        kind: Kind,
        followed: Choices,
        next: impl Fn(usize, u32) -> u32,
    ) -> Result<Self> {
        let pass = |numerics, choices| {
            Forward::new(weights, numerics)
                .cached_as(kind.kv)
                .with_int8(kind.int8)
                .following(choices)
        };
        let mut faithful = pass(Numerics::Faithful(kind.elem), followed);
        let (mut tokens, mut logits) = (Vec::new(), Vec::new());
        let mut row = faithful.prefill(prompt)?;
        loop {
            let best = argmax::compute(&row).context("the reference's logits hold NaN")? as u32;
            let token = next(tokens.len(), best);
            tokens.push(token);
            logits.push(row);
            if tokens.len() > steps {
                break;
            }
            row = faithful.step(token)?;
        }
        let choices = faithful.choices();
        let mut formula = pass(Numerics::Formula, choices.clone());
        let mut noise = vec![Noise::of(&logits[0], &formula.prefill(prompt)?, kind)];
        for (&token, row) in tokens.iter().zip(&logits[1..]) {
            noise.push(Noise::of(row, &formula.step(token)?, kind));
        }
        let routers = (0..weights.spec().num_hidden_layers).map(|layer| {
            let rows = faithful.routed(layer).iter().zip(formula.routed(layer));
            rows.map(|(row, exact)| Router::new(row, exact, kind.elem))
                .collect()
        });
        Ok(Self {
            prompt: prompt.to_vec(),
            tokens,
            logits,
            noise,
            kind,
            routers: routers.collect(),
            choices,
        })
    }
}

/// Outcome of a greedy comparison.
#[derive(Debug)]
pub struct Greedy {
    /// The comparisons: one of the choice of experts, where the model has any, one per
    /// step's logits, and `greedy` at the end.
    pub checks: Vec<Check>,
    /// Logits of every step, for a comparison arm against arm.
    pub logits: Vec<Vec<f64>>,
    /// What they were compared with, where the GPU chose other experts.
    pub followed: Option<Expectation>,
}

/// Feeds the GPU the prompt and the tokens of `expected`, which gives the tokens to the
/// experts of the GPU where those are others.
///
/// A difference of tokens is excused as a near tie where the reference's top-2
/// gap is below twice the run's largest logit error and within the limit of one
/// logit. More excused than 5 %, or than the share of tokens whose gap is within
/// that limit where it follows from [`Noise::worst`], is a failure.
///
/// # Errors
/// A device error.
pub fn greedy(engine: &Engine<'_>, arm: &Arm, expected: &Expectation) -> Result<Greedy> {
    let steps = expected.tokens.len() - 1;
    let elem = arm.decode.plan.elem;
    let prompt = &expected.prompt;
    let (followed, check) = {
        let fed = [prompt, &expected.tokens[..steps]].concat();
        let parts = [
            Fed::Prompt(0..prompt.len()),
            Fed::Steps(prompt.len()..fed.len()),
        ];
        match choices(engine, arm, &fed, &parts)? {
            Some(choices) => expected.following(engine.weights, &choices)?,
            None => (None, None),
        }
    };
    let expected = followed.as_ref().unwrap_or(expected);
    engine.prefill_whole(&arm.prefill, prompt)?;
    let mut found = engine.logits(&arm.decode.plan)?;
    let mut found_token = engine.token()?;
    let mut all = Greedy {
        checks: check.into_iter().collect(),
        logits: Vec::new(),
        followed: None,
    };
    let mut worst = 0.0_f64;
    let mut differing = Vec::new();
    for (step, &token) in expected.tokens.iter().enumerate() {
        let row = &expected.logits[step];
        let check = logits(
            &format!("logits.{step}"),
            &found,
            row,
            expected.noise[step],
            elem,
        );
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
        found = engine.logits(&arm.decode.plan)?;
        found_token = engine.token()?;
    }
    let limit = |noise: Noise| logit_worst(elem).max(2.0 * noise.worst);
    let gaps = expected.logits.iter().map(|row| argmax::top2_gap(row));
    let near = gaps
        .zip(&expected.noise)
        .filter(|(gap, noise)| noise.worst > 0.0 && gap.is_some_and(|gap| gap < 2.0 * noise.worst));
    let may_differ = EXCUSED_SHARE.max(near.count() as f64 / (steps + 1) as f64);
    let excusable = |step: usize| (2.0 * worst).min(limit(expected.noise[step]));
    let wrong: Vec<String> = differing
        .iter()
        .filter(|&&(step, gap)| gap >= excusable(step))
        .map(|(step, gap)| format!("step {step} with a gap of {gap:.3}"))
        .collect();
    let share = differing.len() as f64 / (steps + 1) as f64;
    let passed = wrong.is_empty() && share <= may_differ;
    all.checks.push(Check {
        arm: record::Arm::A,
        stage: "greedy".into(),
        role: "greedy".into(),
        elements: steps as u64 + 1,
        worst_abs: differing.len() as f64,
        worst_rel: share,
        bound: 1.0,
        worst_ratio: if passed {
            share / may_differ
        } else {
            f64::INFINITY
        },
        passed,
        note: if passed {
            (!differing.is_empty()).then(|| format!("{} near ties", differing.len()))
        } else {
            Some(format!(
                "{} of {} tokens differ, at most {:.0} % may; beyond near ties: {}",
                differing.len(),
                steps + 1,
                100.0 * may_differ,
                if wrong.is_empty() {
                    "none".into()
                } else {
                    wrong.join(", ")
                }
            ))
        },
    });
    Ok(Greedy { followed, ..all })
}
