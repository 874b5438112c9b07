//! `check --golden`: a checkpoint with another implementation's outputs for it,
//! held against the CPU reference and against both chains on the GPU.

mod folder;
mod followed;

pub use folder::Folder;

use crate::{
    check::{
        self, EXCUSED_SHARE, Fed, Noise, layer_of, logit_worst, logits, logits_rel_rms, note,
        routes,
    },
    device::Gpu,
    engine::{Arm, Captured, Engine},
};
use anyhow::{Context as _, Result, bail};
use folder::{Prompt, ROUTER, SHARED_GATE, Stage};
use followed::{Followed, LOGITS};
use kernels::{Dispatch, Elem, ModelSpec, Settings, kv::KvFormat, plan::Buffer};
use reference::{
    Checkpoint, Forward, Numerics,
    forward::{Choices, Trace, TraceRows},
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
        if !prompt.has_all_rows() {
            engine.prefill_whole(&arm.prefill, &prompt.ids)?;
        }
        for pass in [Pass::Prefill, Pass::Decode] {
            all.extend(chain(&engine, pass, &arm, prompt)?);
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
        let expected = |_, row: &[f64]| (row.to_vec(), F32_REL_RMS);
        all.push(stage_comparison(
            Pass::Reference,
            prompt,
            stage,
            expected,
            row,
        ));
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

/// One chain over the rows of a prompt that have golden logits, position by position
/// with the head; the cache holds what is before the first of them.
fn chain(engine: &Engine<'_>, pass: Pass, arm: &Arm, prompt: &Prompt) -> Result<Vec<Comparison>> {
    let stages = prompt.stages.iter();
    let wanted: BTreeSet<usize> = stages.flat_map(|s| s.rows.keys().copied()).collect();
    let mut found: BTreeMap<String, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    let mut logits_found = Vec::new();
    let spec = engine.weights.spec();
    let mut choices: Choices = vec![vec![vec![]; prompt.ids.len()]; spec.num_hidden_layers];
    // Those that each row of logits is of.
    let mut chosen: Vec<Choices> = Vec::new();
    let first = if prompt.has_all_rows() {
        0
    } else {
        let fed = [Fed::Prompt(0..prompt.ids.len())];
        choices = check::choices(engine, arm, &prompt.ids, &fed)?.unwrap_or(choices);
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
        let judged = wanted.contains(&position);
        if judged || spec.experts.is_some() {
            let select = |dispatch: &Dispatch| judged || routes(dispatch);
            engine.run_captured(program, fed.start, select, |captured| {
                if let Some(experts) = spec.experts.filter(|_| routes(captured.dispatch)) {
                    note(&captured, &experts, fed.clone(), &mut choices)?;
                }
                if judged {
                    for (stage, values) in stages_in(&captured, spec) {
                        found.entry(stage).or_default().insert(position, values);
                    }
                }
                Ok(())
            })?;
        } else {
            engine.run(program, fed.start)?;
        }
        logits_found.push((position, engine.logits(&program.plan)?));
        let until = |layer: &Vec<Vec<u32>>| layer[..=position].to_vec();
        chosen.push(choices.iter().map(until).collect());
    }
    // The longest first, which most others begin.
    let mut followed: Vec<Followed> = Vec::new();
    let elem = arm.decode.plan.elem;
    for choices in chosen.iter().rev().filter(|_| spec.experts.is_some()) {
        if !followed.iter().any(|f| f.is_of(choices)) {
            followed.push(Followed::new(engine.weights, prompt, choices, elem)?);
        }
    }
    let of_row = |at: usize| followed.iter().find(|f| f.is_of(&chosen[at - first]));
    let expected = |stage: &str, at: usize, golden: &[f64], of_rows: f64| match of_row(at) {
        None => (golden.to_vec(), of_rows),
        Some(followed) => (
            followed.expected(stage, at, golden),
            followed.limit(stage, at, of_rows),
        ),
    };
    let settings = arm.prefill.settings();
    let stages = prompt.stages.iter();
    let mut all: Vec<Comparison> = stages
        .filter(|stage| is_formed(pass, settings, &stage.name))
        .map(|stage| {
            let rows = found.get(&stage.name);
            // A plan of f32 is held to no less.
            let of_rows = gpu_rel_rms(spec, Elem::F16);
            let expected = |at, golden: &[f64]| expected(&stage.name, at, golden, of_rows);
            stage_comparison(pass, prompt, stage, expected, |at| {
                rows?.get(&at).map(Vec::as_slice)
            })
        })
        .collect();
    let mut squares = Squares::default();
    let of_rows = gpu_rel_rms(spec, elem);
    for (position, found) in &logits_found {
        let golden = match (pass, prompt.cached.get(position)) {
            (Pass::Decode, Some(cached)) => cached,
            (Pass::Decode | Pass::Prefill | Pass::Reference, _) => &prompt.logits[position],
        };
        let (expected, bound) = expected(LOGITS, *position, golden, of_rows);
        squares.add(found, &expected);
        let noise = Noise {
            rel_rms: bound / 2.0,
            worst: 0.0,
        };
        let check = logits("logits", found, &expected, noise, elem);
        let errors = errors(found, &expected, bound);
        let wrong = check.note.filter(|_| !check.passed);
        all.push(logits_comparison(
            pass, prompt, *position, found, &expected, errors, wrong,
        ));
    }
    if spec.experts.is_some() {
        all.push(squares.comparison(pass, prompt, of_rows));
    }
    let choices = followed.into_iter().map(|followed| Comparison {
        pass,
        prompt: prompt.name.clone(),
        stage: EXPERTS.into(),
        row: None,
        elements: followed.check.elements as usize,
        errors: None,
        argmax_agrees: None,
        excused: None,
        passed: followed.check.passed,
        note: followed.check.note,
    });
    all.extend(choices);
    Ok(all)
}

/// The stage of what the routers chose.
pub const EXPERTS: &str = "experts";

/// Squares of all rows of a prompt's logits together, as the golden data's README
/// measured what is to be expected of experts.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    elements: usize,
    errors: f64,
    expected: f64,
}

impl Squares {
    fn add(&mut self, found: &[f64], expected: &[f64]) {
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
    let (layer, site) = layer_of(label).unwrap_or((0, label));
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

/// Compares a stage's rows; `expected` gives what is expected of one in the place of the
/// golden row, with its limit, and `found` the row of a position.
fn stage_comparison<'r>(
    pass: Pass,
    prompt: &Prompt,
    stage: &Stage,
    expected: impl Fn(usize, &[f64]) -> (Vec<f64>, f64),
    found: impl Fn(usize) -> Option<&'r [f64]>,
) -> Comparison {
    let rows = stage.rows.iter().map(|(&at, golden)| {
        let (expected, bound) = expected(at, golden);
        errors(found(at).unwrap_or_default(), &expected, bound)
    });
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
