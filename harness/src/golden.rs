//! `check --golden`: a checkpoint with another implementation's outputs for it,
//! held against the CPU reference and against both chains on the GPU.

mod folder;

pub use folder::Folder;

use crate::{
    check::{EXCUSED_SHARE, Noise, logit_worst, logits, logits_rel_rms},
    device::Gpu,
    engine::{Arm, Captured, Engine, every},
};
use anyhow::{Context as _, Result, bail};
use folder::{Prompt, ROUTER, ROUTER_MARGIN, SHARED_GATE, Stage};
use kernels::{Elem, ModelSpec, Settings, kv::KvFormat, plan::Buffer};
use reference::{
    Checkpoint, Forward, Numerics,
    forward::{Trace, TraceRows},
    roles::argmax,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// README of the golden data, "other f32 code": relative rms of a row.
const F32_REL_RMS: f64 = 6e-5;
/// Standard deviation of the logits up to which that bound was measured; beyond
/// it the bound grows in proportion.
const F32_LOGIT_STD: f64 = 1.8;

/// The largest error of one logit there, by what the layers are.
fn f32_logit(spec: &ModelSpec) -> f64 {
    match (spec.experts.is_some(), spec.delta_net.is_some()) {
        (true, _) => 2e-4,
        (false, true) => 8e-5,
        (false, false) => 7e-5,
    }
}

/// Relative rms of a row on the GPU: what the README calls sensible for f16 of a hybrid
/// and of experts, else as of every model.
fn gpu_rel_rms(spec: &ModelSpec, elem: Elem) -> f64 {
    match (elem, spec.experts.is_some(), spec.delta_net.is_some()) {
        (Elem::F16, true, _) => 0.01,
        (Elem::F16, false, true) => 0.006,
        (Elem::F16, false, false) | (Elem::F32, _, _) => logits_rel_rms(elem),
    }
}

/// What is held against the expected outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// The CPU reference in f64.
    Reference,
    /// The GPU's unfused chain, as a prompt goes through it: each position as the
    /// last of its chunk.
    Prefill,
    /// The GPU's fused chain, as decoded tokens go through it.
    Decode,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reference => "reference",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// How far rows of values are from the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// Largest difference of an element.
    pub worst_abs: f64,
    /// The same, relative to the root mean square of the element's row.
    pub worst_rel: f64,
    /// Largest root mean square of a row's differences, relative likewise.
    pub rel_rms: f64,
    /// Limit of `rel_rms`.
    pub bound: f64,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What was compared.
    pub pass: Pass,
    /// The prompt.
    pub prompt: String,
    /// A stage of the forward pass, `logits` or `greedy`.
    pub stage: String,
    /// Position of a row of logits.
    pub row: Option<usize>,
    /// Values or tokens compared.
    pub elements: usize,
    /// The errors; none for tokens.
    #[serde(flatten)]
    pub errors: Option<Errors>,
    /// Whether a row's greatest logit is the expected one.
    pub argmax_agrees: Option<bool>,
    /// Greedy tokens that differ at near ties.
    pub excused: Option<usize>,
    /// Whether it is within its bound.
    pub passed: bool,
    /// Why not, or what was excused.
    pub note: Option<String>,
}

/// Runs reference and GPU over every prompt.
///
/// # Errors
/// When the model has no plan or a device reports an error; a failed comparison
/// is a [`Comparison`] that did not pass.
pub fn check(gpu: &Gpu, folder: &Folder, settings: &Settings) -> Result<Vec<Comparison>> {
    if settings.kv_format() == KvFormat::Int8 {
        bail!(
            "kv8=1 cannot be held against golden outputs: expected a cache that keeps what they \
             were computed from, found one of int8 codes; leave kv8 off here, and `check` without \
             --golden compares it with the reference's own int8 cache"
        );
    }
    let mut engine = Engine::new(gpu, &folder.weights, folder.context(), None)?;
    let arm = engine.arm(settings)?;
    let mut all = Vec::new();
    for prompt in &folder.prompts {
        all.extend(reference(&folder.weights, prompt)?);
    }
    for prompt in &folder.prompts {
        let rounding = Rounding::of(&folder.weights, prompt, settings.elem())?;
        if !prompt.has_all_rows() {
            engine.prefill_whole(&arm.prefill, &prompt.ids)?;
        }
        for pass in [Pass::Prefill, Pass::Decode] {
            all.extend(chain(&engine, pass, &arm, prompt, &rounding)?);
        }
        if !prompt.greedy.is_empty() {
            let worst = worst_logit(&all, prompt);
            all.push(greedy_on_gpu(&engine, &arm, prompt, worst)?);
        }
    }
    all.extend(excused(&all, folder));
    Ok(all)
}

fn reference(weights: &Checkpoint, prompt: &Prompt) -> Result<Vec<Comparison>> {
    let mut trace = Trace::new(TraceRows::All);
    if !prompt.stages.is_empty() {
        let mut traced = Forward::new(weights, Numerics::Formula);
        traced.prefill_traced(&prompt.ids, &mut trace)?;
    }
    let mut all = Vec::new();
    for stage in &prompt.stages {
        let rows = stage_rows(&trace, &stage.name)?;
        let row = |at: usize| rows.get(at).map(Vec::as_slice);
        let bound = |_| F32_REL_RMS;
        all.push(stage_comparison(Pass::Reference, prompt, stage, bound, row));
    }
    let mut forward = Forward::new(weights, Numerics::Formula);
    let last = prompt.ids.len() - 1;
    let found: BTreeMap<usize, Vec<f64>> = if prompt.has_all_rows() {
        let rows = forward.prefill_all(&prompt.ids)?;
        rows.into_iter().enumerate().collect()
    } else {
        BTreeMap::from([(last, forward.prefill(&prompt.ids)?)])
    };
    for (&row, found) in &found {
        let expected = &prompt.logits[&row];
        let errors = errors(found, expected, F32_REL_RMS);
        let most = f32_logit(weights.spec()) * (rms(expected) / F32_LOGIT_STD).max(1.0);
        let wrong = (!within(errors.worst_abs, most))
            .then(|| format!("a logit is off by more than {most:.1e}"));
        all.push(logits_comparison(
            Pass::Reference,
            prompt,
            row,
            found,
            expected,
            errors,
            wrong,
        ));
    }
    if !prompt.greedy.is_empty() {
        let first = forward.logits().map(<[f64]>::to_vec);
        let mut next = first.context("the prompt has logits")?;
        let tokens = greedy(prompt, f32_logit(weights.spec()), Pass::Reference, |fed| {
            if let Some(token) = fed {
                next = forward.step(token)?;
            }
            Ok(argmax::compute(&next).context("the logits hold NaN")? as u32)
        })?;
        all.push(tokens);
    }
    Ok(all)
}

/// The rows of a stage as the reference computed them; a router's with that of the
/// shared expert's gate behind it.
fn stage_rows(trace: &Trace, name: &str) -> Result<Vec<Vec<f64>>> {
    let rows = trace.get(name).context("the reference knows every stage")?;
    let gates = trace.get(&name.replace(ROUTER, SHARED_GATE));
    Ok(match gates.filter(|_| name.ends_with(ROUTER)) {
        None => rows.to_vec(),
        Some(gates) => {
            let rows = rows.iter().zip(gates);
            rows.map(|(row, gate)| [&row[..], gate].concat()).collect()
        }
    })
}

/// What rounding alone changes in a prompt's rows, relative: the rounding-faithful
/// reference against the formula. A router amplifies it, and in one row much more than
/// in another, so it is known of models with experts alone.
#[derive(Debug, Default)]
struct Rounding {
    /// By stage, and by position.
    stages: BTreeMap<String, Vec<f64>>,
    logits: Vec<f64>,
}

impl Rounding {
    fn of(weights: &Checkpoint, prompt: &Prompt, elem: Elem) -> Result<Self> {
        if weights.spec().experts.is_none() {
            return Ok(Self::default());
        }
        let run = |numerics| -> Result<_> {
            let mut trace = Trace::new(TraceRows::All);
            Forward::new(weights, numerics).prefill_traced(&prompt.ids, &mut trace)?;
            let logits = Forward::new(weights, numerics).prefill_all(&prompt.ids)?;
            Ok((trace, logits))
        };
        let (exact, exact_logits) = run(Numerics::Formula)?;
        let (rounded, rounded_logits) = run(Numerics::Faithful(elem))?;
        let relative = |rounded: &[Vec<f64>], exact: &[Vec<f64>]| -> Vec<f64> {
            let rows = rounded.iter().zip(exact);
            rows.map(|(r, e)| errors(r, e, 0.0).rel_rms).collect()
        };
        let mut stages = BTreeMap::new();
        for Stage { name, .. } in &prompt.stages {
            let rows = [stage_rows(&rounded, name)?, stage_rows(&exact, name)?];
            stages.insert(name.clone(), relative(&rows[0], &rows[1]));
        }
        Ok(Self {
            stages,
            logits: relative(&rounded_logits, &exact_logits),
        })
    }

    /// The limit of a row on the GPU: as of every row, and twice what rounding alone
    /// makes in this one (as [`crate::check::Expectation`] has it).
    fn limit(of_rows: f64, rounding: Option<&Vec<f64>>, at: usize) -> f64 {
        let rounding = rounding.and_then(|rows| rows.get(at));
        of_rows.max(2.0 * rounding.copied().unwrap_or(0.0))
    }
}

/// One chain over the rows of a prompt that have golden logits, position by position
/// with the head; the cache holds what is before the first of them.
fn chain(
    engine: &Engine<'_>,
    pass: Pass,
    arm: &Arm,
    prompt: &Prompt,
    rounding: &Rounding,
) -> Result<Vec<Comparison>> {
    let stages = prompt.stages.iter();
    let wanted: BTreeSet<usize> = stages.flat_map(|s| s.rows.keys().copied()).collect();
    let mut found: BTreeMap<String, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    let mut rows = Vec::new();
    let mut squares = Squares::default();
    let first = if prompt.has_all_rows() {
        0
    } else {
        prompt.ids.len() - 1
    };
    for position in first..prompt.ids.len() {
        // The rows before are in the cache; states are made to follow.
        let fed = match pass {
            Pass::Prefill => arm.prefill.last_chunk(position + 1),
            Pass::Decode | Pass::Reference => position..position + 1,
        };
        engine.reach(&arm.prefill, &prompt.ids[..fed.start])?;
        engine.set_tokens(&prompt.ids[fed.clone()]);
        let in_chunk;
        let program = match pass {
            Pass::Prefill => {
                in_chunk = engine.prefill_program(&arm.prefill, fed.len(), true)?;
                &*in_chunk
            }
            Pass::Decode | Pass::Reference => &arm.decode,
        };
        if wanted.contains(&position) {
            engine.run_captured(program, fed.start, every, |captured| {
                for (stage, values) in stages_in(&captured, engine.weights.spec()) {
                    found.entry(stage).or_default().insert(position, values);
                }
                Ok(())
            })?;
        } else {
            engine.run(program, fed.start)?;
        }
        let expected = match (pass, prompt.cached.get(&position)) {
            (Pass::Decode, Some(cached)) => cached,
            (Pass::Decode | Pass::Prefill | Pass::Reference, _) => &prompt.logits[&position],
        };
        let logits_found = engine.logits(&program.plan)?;
        let elem = program.plan.elem;
        let bound = gpu_rel_rms(engine.weights.spec(), elem);
        squares.add(&logits_found, expected, prompt.open.contains(&position));
        let bound = Rounding::limit(bound, Some(&rounding.logits), position);
        let noise = Noise {
            rel_rms: bound / 2.0,
            worst: 0.0,
        };
        let check = logits("logits", &logits_found, expected, noise, elem);
        let errors = errors(&logits_found, expected, bound);
        let wrong = check.note.filter(|_| !check.passed);
        rows.push(if prompt.open.contains(&position) {
            open_comparison(pass, prompt, position, expected.len(), errors)
        } else {
            logits_comparison(
                pass,
                prompt,
                position,
                &logits_found,
                expected,
                errors,
                wrong,
            )
        });
    }
    let settings = arm.prefill.settings();
    let stages = prompt.stages.iter();
    let mut all: Vec<Comparison> = stages
        .filter(|stage| is_formed(pass, settings, &stage.name))
        .map(|stage| {
            let rows = found.get(&stage.name);
            // A plan of f32 is held to no less.
            let bound = gpu_rel_rms(engine.weights.spec(), Elem::F16);
            let of_stage = rounding.stages.get(&stage.name);
            let limit = |at| Rounding::limit(bound, of_stage, at);
            stage_comparison(pass, prompt, stage, limit, |at| {
                rows?.get(&at).map(Vec::as_slice)
            })
        })
        .collect();
    all.extend(rows);
    if engine.weights.spec().experts.is_some() {
        let bound = gpu_rel_rms(engine.weights.spec(), arm.decode.plan.elem);
        all.push(squares.comparison(pass, prompt, bound));
    }
    Ok(all)
}

/// Squares of all rows of a prompt's logits together, as the golden data's README
/// measured what is to be expected of experts; open rows are left out.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    elements: usize,
    errors: f64,
    expected: f64,
}

impl Squares {
    fn add(&mut self, found: &[f64], expected: &[f64], open: bool) {
        if open {
            return;
        }
        self.elements += expected.len();
        let square = |x: f64| x * x;
        let rows = found.iter().zip(expected);
        self.errors += rows.map(|(f, e)| square(f - e)).sum::<f64>();
        self.expected += expected.iter().map(|&e| square(e)).sum::<f64>();
    }

    fn comparison(self, pass: Pass, prompt: &Prompt, bound: f64) -> Comparison {
        let rel_rms = (self.errors / self.expected).sqrt();
        Comparison {
            pass,
            prompt: prompt.name.clone(),
            stage: "all_logits".into(),
            row: None,
            elements: self.elements,
            errors: Some(Errors {
                worst_abs: 0.0,
                worst_rel: 0.0,
                rel_rms,
                bound,
            }),
            argmax_agrees: None,
            excused: None,
            passed: within(rel_rms, bound),
            note: None,
        }
    }
}

/// Whether a dispatch stores the stage: `fuseprologue` leaves the sum after attention, and
/// its norm, within the feed-forward layer of a decoded token.
fn is_formed(pass: Pass, settings: &Settings, stage: &str) -> bool {
    let fused = pass == Pass::Decode && settings.get("fuseprologue").is_on();
    !(fused && stage.contains(".post_attn_"))
}

/// The stages of a folder that no dispatch stores under these settings.
pub fn not_formed(folder: &Folder, settings: &Settings) -> Vec<String> {
    let stages = folder.prompts.iter().flat_map(|prompt| {
        let stages = prompt.stages.iter();
        stages.map(|stage| (&prompt.name, &stage.name))
    });
    let unformed = stages.filter(|(_, stage)| !is_formed(Pass::Decode, settings, stage));
    unformed
        .map(|(prompt, stage)| format!("decode {prompt}.{stage} (within fused_ffn_prologue)"))
        .collect()
}

/// The stages that a dispatch finished, with their values of the first row: the chunk's
/// last token.
fn stages_in(captured: &Captured<'_>, spec: &ModelSpec) -> Vec<(String, Vec<f64>)> {
    let label = captured.dispatch.label.as_str();
    let (layer, site) = match label
        .strip_prefix("layers.")
        .and_then(|l| l.split_once('.'))
    {
        Some((layer, site)) => (layer.parse().unwrap_or(0), site),
        None => (0, label),
    };
    let of_layer = |stage: &str| format!("layers.{layer}.{stage}");
    let of_norm = |name: &str| {
        let mut bindings = captured.dispatch.variant.storage_bindings();
        let at = bindings.position(|binding| binding.name == name);
        at.expect("a norm of a sum has this binding")
    };
    // Outputs by their number among the storage bindings.
    let outputs = match site {
        "embed" => vec![("embed".to_owned(), 0)],
        "input_norm" => vec![(of_layer("input_norm"), 0)],
        "o" | "out_proj" => vec![(of_layer("mixer_out"), 0)],
        "post_norm" => vec![
            (of_layer("post_attn_norm"), of_norm("normed")),
            (of_layer("post_attn_residual"), of_norm("residual")),
        ],
        "down" | "combine_experts" => vec![(of_layer("ffn_out"), 0)],
        "next_norm" => {
            let next = if layer + 1 < spec.num_hidden_layers {
                format!("layers.{}.input_norm", layer + 1)
            } else {
                "final_norm".into()
            };
            vec![
                (next, of_norm("normed")),
                (of_layer("out"), of_norm("residual")),
            ]
        }
        "router" => vec![(of_layer(ROUTER), 0)],
        _ => vec![],
    };
    let value = |at: usize| match captured.dispatch.buffers[at] {
        Buffer::Activation(activation) => captured.activations[&activation].clone(),
        Buffer::Param { .. }
        | Buffer::KvPages { .. }
        | Buffer::KvCodes { .. }
        | Buffer::KvScales { .. }
        | Buffer::GdnRing { .. }
        | Buffer::GdnState { .. }
        | Buffer::State(_) => {
            panic!("{label}: binding {at} is no activation")
        }
    };
    let mut stages = Vec::new();
    for (stage, at) in outputs {
        let mut row = value(at);
        match spec.experts.filter(|_| site == "router") {
            None => row.truncate(spec.hidden_size),
            Some(experts) => row.truncate(experts.stack()),
        }
        stages.push((stage, row));
    }
    stages
}

/// Root mean square.
fn rms(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().map(|v| v * v).sum();
    (sum / values.len() as f64).sqrt()
}

fn within(value: f64, most: f64) -> bool {
    // Not true of NaN.
    value <= most
}

/// Errors of one row; infinite where the lengths differ or a value is NaN.
fn errors(found: &[f64], expected: &[f64], bound: f64) -> Errors {
    let none = Errors {
        worst_abs: 0.0,
        worst_rel: 0.0,
        rel_rms: 0.0,
        bound,
    };
    if found == expected {
        return none;
    }
    let differences: Vec<f64> = found.iter().zip(expected).map(|(f, e)| f - e).collect();
    let worst = differences.iter().fold(0.0_f64, |worst, d| {
        if d.is_nan() {
            f64::INFINITY
        } else {
            worst.max(d.abs())
        }
    });
    let (size, error) = (rms(expected), rms(&differences));
    let comparable = found.len() == expected.len() && worst.is_finite() && size > 0.0;
    if !comparable {
        return Errors {
            worst_abs: f64::INFINITY,
            worst_rel: f64::INFINITY,
            rel_rms: f64::INFINITY,
            bound,
        };
    }
    Errors {
        worst_abs: worst,
        worst_rel: worst / size,
        rel_rms: error / size,
        bound,
    }
}

/// What to say of an expected row that no values can equal.
fn no_number(at: usize, expected: &[f64]) -> Option<String> {
    let wrong = expected.iter().find(|value| !value.is_finite())?;
    Some(format!("position {at}: expected value is {wrong}"))
}

/// Compares a stage's rows; `found` gives the row of a position.
fn stage_comparison<'r>(
    pass: Pass,
    prompt: &Prompt,
    stage: &Stage,
    bound: impl Fn(usize) -> f64,
    found: impl Fn(usize) -> Option<&'r [f64]>,
) -> Comparison {
    // Where rounding may choose another expert, a GPU's row says nothing.
    let judged = |at: &usize| pass == Pass::Reference || !prompt.open.contains(at);
    let rows = stage
        .rows
        .iter()
        .filter(|(at, _)| judged(at))
        .map(|(&at, expected)| errors(found(at).unwrap_or_default(), expected, bound(at)));
    // The row that uses most of its limit.
    let used = |row: &Errors| row.rel_rms / row.bound;
    let worst = rows.reduce(|a, b| Errors {
        worst_abs: a.worst_abs.max(b.worst_abs),
        worst_rel: a.worst_rel.max(b.worst_rel),
        ..if used(&a) >= used(&b) { a } else { b }
    });
    Comparison {
        pass,
        prompt: prompt.name.clone(),
        stage: stage.name.clone(),
        row: None,
        elements: stage.rows.values().map(Vec::len).sum(),
        errors: worst,
        argmax_agrees: None,
        excused: None,
        passed: worst.is_some_and(|worst| within(worst.rel_rms, worst.bound)),
        note: stage.rows.iter().find_map(|(&at, row)| no_number(at, row)),
    }
}

/// Compares a row of logits; `wrong` is what is wrong with it beside the
/// relative error and the greatest logit.
fn logits_comparison(
    pass: Pass,
    prompt: &Prompt,
    row: usize,
    found: &[f64],
    expected: &[f64],
    errors: Errors,
    wrong: Option<String>,
) -> Comparison {
    let wrong = no_number(row, expected).or(wrong);
    let agrees = argmax::compute(found) == argmax::compute(expected);
    let gap = argmax::top2_gap(expected).unwrap_or(f64::INFINITY);
    let near_tie = is_near_tie(gap, errors.worst_abs);
    let note = match (&wrong, agrees) {
        (Some(wrong), _) => Some(wrong.clone()),
        (None, true) => None,
        (None, false) if near_tie => Some(format!("the greatest differs at a gap of {gap:.3}")),
        (None, false) => Some(format!(
            "the greatest differs at a gap of {gap:.3}, more than a near tie"
        )),
    };
    Comparison {
        pass,
        prompt: prompt.name.clone(),
        stage: "logits".into(),
        row: Some(row),
        elements: expected.len(),
        errors: Some(errors),
        argmax_agrees: Some(agrees),
        excused: None,
        passed: wrong.is_none() && within(errors.rel_rms, errors.bound) && (agrees || near_tie),
        note,
    }
}

/// A row at a position at which rounding may give the token another expert: that it is
/// finite is all that is asked of it.
fn open_comparison(
    pass: Pass,
    prompt: &Prompt,
    row: usize,
    elements: usize,
    errors: Errors,
) -> Comparison {
    Comparison {
        pass,
        prompt: prompt.name.clone(),
        stage: "logits".into(),
        row: Some(row),
        elements,
        errors: None,
        argmax_agrees: None,
        excused: None,
        passed: errors.worst_abs.is_finite(),
        note: Some(format!(
            "not judged: a router's margin below {ROUTER_MARGIN}; rel. rms {:.4}",
            errors.rel_rms
        )),
    }
}

/// Whether logits that are off by `worst` may choose another token at this gap.
fn is_near_tie(gap: f64, worst: f64) -> bool {
    gap < (2.0 * worst).min(logit_worst(Elem::F16))
}

/// Largest error of a prompt's logits on the GPU.
fn worst_logit(all: &[Comparison], prompt: &Prompt) -> f64 {
    all.iter()
        .filter(|c| c.pass != Pass::Reference && c.prompt == prompt.name && c.row.is_some())
        .filter_map(|c| c.errors)
        .fold(0.0, |worst, errors| worst.max(errors.worst_abs))
}

/// The continuation of a prompt whose last token was decoded just now.
fn greedy_on_gpu(
    engine: &Engine<'_>,
    arm: &Arm,
    prompt: &Prompt,
    worst: f64,
) -> Result<Comparison> {
    let mut position = prompt.ids.len();
    greedy(prompt, worst, Pass::Decode, |fed| {
        if let Some(token) = fed {
            engine.set_token(token);
            engine.decode(&arm.decode, position, 1)?;
            position += 1;
        }
        engine.token()
    })
}

/// Compares a greedy continuation token by token. `next` is fed the expected
/// token before (none at first) and gives the one it would choose.
fn greedy(
    prompt: &Prompt,
    worst: f64,
    pass: Pass,
    mut next: impl FnMut(Option<u32>) -> Result<u32>,
) -> Result<Comparison> {
    let mut fed = None;
    let (mut excused, mut wrong) = (0, Vec::new());
    for (step, (&expected, &gap)) in prompt.greedy.iter().zip(&prompt.gaps).enumerate() {
        let found = next(fed)?;
        if found != expected {
            if is_near_tie(gap, worst) {
                excused += 1;
            } else {
                wrong.push(format!(
                    "step {step}: expected {expected} with a gap of {gap:.3}, found {found}"
                ));
            }
        }
        fed = Some(expected);
    }
    Ok(Comparison {
        pass,
        prompt: prompt.name.clone(),
        stage: "greedy".into(),
        row: None,
        elements: prompt.greedy.len(),
        errors: None,
        argmax_agrees: None,
        excused: Some(excused),
        passed: wrong.is_empty(),
        note: (!wrong.is_empty()).then(|| wrong.join("; ")),
    })
}

/// Near ties may excuse few of all greedy tokens of a pass.
fn excused(all: &[Comparison], folder: &Folder) -> Vec<Comparison> {
    let tokens: usize = folder.prompts.iter().map(|p| p.greedy.len()).sum();
    let passes = [Pass::Reference, Pass::Decode].into_iter();
    passes
        .filter(|_| tokens > 0)
        .map(|pass| {
            let of_pass = all.iter().filter(|c| c.pass == pass);
            let excused: usize = of_pass.filter_map(|c| c.excused).sum();
            Comparison {
                pass,
                prompt: "all".into(),
                stage: "greedy".into(),
                row: None,
                elements: tokens,
                errors: None,
                argmax_agrees: None,
                excused: Some(excused),
                passed: excused as f64 <= EXCUSED_SHARE * tokens as f64,
                note: (excused > 0)
                    .then(|| format!("{excused} of {tokens} tokens differ at near ties")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_row_and_nan_never_passes() {
        let errors_of = |found: &[f64]| errors(found, &[3.0, -4.0], 0.1);
        assert_eq!(errors_of(&[3.0, -4.0]).worst_abs, 0.0, "equal");
        let found = errors_of(&[3.0, -4.5]);
        assert_eq!(found.worst_abs, 0.5, "absolute");
        assert_eq!(found.worst_rel, 0.5 / 12.5_f64.sqrt(), "of the row's rms");
        assert!((found.rel_rms - 0.1).abs() < 1e-12, "0.5 of 5");
        for wrong in [&[3.0, f64::NAN][..], &[3.0], &[f64::INFINITY, -4.0]] {
            assert_eq!(errors_of(wrong).rel_rms, f64::INFINITY, "{wrong:?}");
        }
        assert!(!within(f64::NAN, 1.0), "NaN");
        let said = no_number(3, &[1.0, f64::NAN]);
        assert_eq!(said.as_deref(), Some("position 3: expected value is NaN"));
    }

    #[test]
    fn a_near_tie_is_below_twice_the_error_and_below_the_cap() {
        assert!(is_near_tie(0.05, 0.03), "0.06");
        assert!(!is_near_tie(0.07, 0.03), "0.06");
        assert!(!is_near_tie(0.3, 1.0), "0.25");
    }
}
