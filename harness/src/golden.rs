//! `check --golden`: a checkpoint with another implementation's outputs for it,
//! held against the CPU reference and against both chains on the GPU.
//!
//! A golden folder is an MLC or MLX checkpoint, or `prompts.json` whose `gguf` has
//! the `sha256` of a file that can be fetched, and `expected.safetensors`. That file
//! has, for each prompt `P`, `P.input_ids` [n] and `P.logits` [n, V] or
//! `P.last_logits` [V] of the last position alone, and may have `P.logits_cached` [n, V] or `P.logits_cached_last` [1, V] (fed token by
//! token), `P.greedy` with `P.greedy_gap` [m], and stages of the forward pass:
//! `P.STAGE` [n, D] of every position, `P.last.STAGE` [1, D] of the last. Stages
//! are `embed`, `layers.L.` with `input_norm`, `mixer_out`, `post_attn_residual`,
//! `post_attn_norm`, `ffn_out` and `out`, and `final_norm`.

use crate::{
    check::{EXCUSED_SHARE, Noise, logit_worst, logits, logits_rel_rms},
    device::Gpu,
    engine::{Arm, Captured, Engine, every},
    model,
};
use anyhow::{Context as _, Result, bail, ensure};
use kernels::{Elem, Settings, kv::KvFormat, plan::Buffer};
use reference::{
    Checkpoint, Forward, Numerics,
    fetch::DOWNLOADS,
    folder,
    forward::{Trace, TraceRows},
    gguf,
    golden::{Golden, Values},
    roles::argmax,
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

/// The file beside the checkpoint.
const EXPECTED: &str = "expected.safetensors";
/// The file that names the weights where they are not beside it.
const PROMPTS: &str = "prompts.json";
/// README of the golden data, "other f32 code": relative rms of a row.
const F32_REL_RMS: f64 = 6e-5;
/// The same, dense models: the largest error of one logit.
const F32_LOGIT: f64 = 7e-5;
/// Standard deviation of the logits up to which that bound was measured; beyond
/// it the bound grows in proportion.
const F32_LOGIT_STD: f64 = 1.8;

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

/// One prompt with its expected outputs.
#[derive(Debug)]
struct Prompt {
    name: String,
    ids: Vec<u32>,
    /// Rows by position.
    logits: BTreeMap<usize, Vec<f64>>,
    /// Logits of single positions when fed token by token.
    cached: BTreeMap<usize, Vec<f64>>,
    greedy: Vec<u32>,
    gaps: Vec<f64>,
    /// Stages in the order of computation.
    stages: Vec<Stage>,
}

impl Prompt {
    /// Whether every position has expected logits, not the last alone.
    fn has_all_rows(&self) -> bool {
        self.logits.len() == self.ids.len()
    }
}

/// Expected values of one stage.
#[derive(Debug)]
struct Stage {
    name: String,
    /// Rows by position.
    rows: BTreeMap<usize, Vec<f64>>,
}

/// A golden folder in memory.
#[derive(Debug)]
pub struct Folder {
    /// The checkpoint.
    pub weights: Checkpoint,
    /// Tensors of the file that nothing is compared with.
    pub ignored: Vec<String>,
    prompts: Vec<Prompt>,
}

impl Folder {
    /// Reads a folder and checks the shape of everything in it.
    ///
    /// # Errors
    /// When it is not of the form that this module describes.
    pub fn open(dir: &Path) -> Result<Self> {
        let shown = dir.display();
        ensure!(dir.is_dir(), "{shown}: no such folder");
        ensure!(
            dir.join(EXPECTED).is_file(),
            "{shown}: not a golden folder: it has no {EXPECTED}; expected it beside an MLC or MLX \
             checkpoint"
        );
        let weights = if dir.join(PROMPTS).is_file() {
            fetched(&dir.join(PROMPTS))?
        } else {
            folder::read(dir, &|_, _| {})?
        };
        let golden = Golden::open(dir.join(EXPECTED))?;
        let mut reader = Reader {
            golden: &golden,
            weights: &weights,
            unread: golden.names()?.into_iter().collect(),
        };
        let prompts = reader
            .prompts()
            .with_context(|| format!("{shown}/{EXPECTED}"))?;
        Ok(Self {
            prompts,
            ignored: reader.unread.into_iter().collect(),
            weights,
        })
    }

    /// Positions that the longest prompt and its continuation take.
    fn context(&self) -> usize {
        let positions = self.prompts.iter().map(|p| p.ids.len() + p.greedy.len());
        positions.max().unwrap_or(0)
    }
}

/// The weights that a list of prompts names.
fn fetched(prompts: &Path) -> Result<Checkpoint> {
    let shown = prompts.display();
    let text = std::fs::read(prompts).with_context(|| shown.to_string())?;
    let document: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| shown.to_string())?;
    let sha256 = document["gguf"]["sha256"].as_str();
    let sha256 = sha256.with_context(|| format!("{shown}: it has no gguf.sha256"))?;
    let mut known = DOWNLOADS.iter();
    let download = known.find(|d| d.sha256 == sha256).with_context(|| {
        format!("{shown}: gguf.sha256: expected that of a file that can be fetched, found {sha256}")
    })?;
    Ok(gguf::load(&model::fetch(download.model)?, &|_, _| {})?)
}

struct Reader<'a> {
    golden: &'a Golden,
    weights: &'a Checkpoint,
    unread: BTreeSet<String>,
}

impl Reader<'_> {
    fn prompts(&mut self) -> Result<Vec<Prompt>> {
        let names: Vec<String> = self
            .unread
            .iter()
            .filter_map(|name| name.strip_suffix(".input_ids"))
            .map(str::to_owned)
            .collect();
        ensure!(
            !names.is_empty(),
            "no prompt: expected tensors like p0.input_ids and p0.logits"
        );
        names.into_iter().map(|name| self.prompt(name)).collect()
    }

    fn prompt(&mut self, name: String) -> Result<Prompt> {
        let (vocab, d) = {
            let spec = self.weights.spec();
            (spec.vocab_size, spec.hidden_size)
        };
        let ids = self.tokens(&format!("{name}.input_ids"))?;
        ensure!(!ids.is_empty(), "{name}.input_ids is empty");
        let last = ids.len() - 1;
        let one = format!("{name}.last_logits");
        let logits = if self.unread.contains(&one) {
            self.unread.remove(&format!("{name}.greedy_logit"));
            let row = self.rows(&one, 1, vocab)?.concat();
            BTreeMap::from([(last, row)])
        } else {
            let rows = self.rows(&format!("{name}.logits"), ids.len(), vocab)?;
            rows.into_iter().enumerate().collect()
        };
        let mut cached = BTreeMap::new();
        let all = format!("{name}.logits_cached");
        if self.unread.contains(&all) {
            cached.extend(self.rows(&all, ids.len(), vocab)?.into_iter().enumerate());
        }
        let one = format!("{name}.logits_cached_last");
        if self.unread.contains(&one) {
            cached.extend(
                self.rows(&one, 1, vocab)?
                    .into_iter()
                    .map(|row| (last, row)),
            );
        }
        let (mut greedy, mut gaps) = (vec![], vec![]);
        let tokens = format!("{name}.greedy");
        if self.unread.contains(&tokens) {
            greedy = self.tokens(&tokens)?;
            gaps = self
                .rows(&format!("{name}.greedy_gap"), 1, greedy.len())?
                .concat();
        }
        let mut stages = Vec::new();
        for stage in stages_of(self.weights.spec().num_hidden_layers) {
            let mut rows = BTreeMap::new();
            let all = format!("{name}.{stage}");
            if self.unread.contains(&all) {
                rows.extend(self.rows(&all, ids.len(), d)?.into_iter().enumerate());
            }
            let one = format!("{name}.last.{stage}");
            if self.unread.contains(&one) {
                rows.extend(self.rows(&one, 1, d)?.into_iter().map(|row| (last, row)));
            }
            if !rows.is_empty() {
                stages.push(Stage { name: stage, rows });
            }
        }
        Ok(Prompt {
            name,
            ids,
            logits,
            cached,
            greedy,
            gaps,
            stages,
        })
    }

    /// Token ids of the model.
    fn tokens(&mut self, name: &str) -> Result<Vec<u32>> {
        self.unread.remove(name);
        let vocab = self.weights.spec().vocab_size;
        let ids = self.golden.i32(name)?.data;
        let token = |id: i32| {
            let token = u32::try_from(id).ok().filter(|&t| (t as usize) < vocab);
            token.with_context(|| format!("{name}: {id} is outside the vocabulary of {vocab}"))
        };
        ids.into_iter().map(token).collect()
    }

    /// `rows` rows of `width` values; one row may be a vector.
    fn rows(&mut self, name: &str, rows: usize, width: usize) -> Result<Vec<Vec<f64>>> {
        self.unread.remove(name);
        let Values { shape, data } = self.golden.f32(name)?;
        if shape != [rows, width] && !(rows == 1 && shape == [width]) {
            bail!("{name}: expected [{rows}, {width}], found {shape:?}");
        }
        let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
        Ok(data.chunks_exact(width.max(1)).map(row).collect())
    }
}

/// Every stage that may be compared, in the order of computation.
fn stages_of(layers: usize) -> Vec<String> {
    let mut stages = vec!["embed".to_owned()];
    for layer in 0..layers {
        for stage in [
            "input_norm",
            "mixer_out",
            "post_attn_residual",
            "post_attn_norm",
            "ffn_out",
            "out",
        ] {
            stages.push(format!("layers.{layer}.{stage}"));
        }
    }
    stages.push("final_norm".into());
    stages
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
    for pass in [Pass::Prefill, Pass::Decode] {
        for prompt in &folder.prompts {
            all.extend(chain(&engine, pass, &arm, prompt)?);
        }
    }
    for prompt in folder.prompts.iter().filter(|p| !p.greedy.is_empty()) {
        let worst = worst_logit(&all, prompt);
        all.push(greedy_on_gpu(&engine, &arm, prompt, worst)?);
    }
    all.extend(excused(&all, folder));
    Ok(all)
}

fn reference(weights: &Checkpoint, prompt: &Prompt) -> Result<Vec<Comparison>> {
    let mut trace = Trace::new(TraceRows::All);
    if !prompt.stages.is_empty() {
        let mut traced = Forward::new(weights, Numerics::Formula)?;
        traced.prefill_traced(&prompt.ids, &mut trace)?;
    }
    let mut all = Vec::new();
    for stage in &prompt.stages {
        let rows = trace
            .get(&stage.name)
            .context("the reference knows every stage")?;
        all.push(stage_comparison(Pass::Reference, prompt, stage, |at| {
            rows.get(at).map(Vec::as_slice)
        }));
    }
    let mut forward = Forward::new(weights, Numerics::Formula)?;
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
        let most = F32_LOGIT * (rms(expected) / F32_LOGIT_STD).max(1.0);
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
        let tokens = greedy(prompt, F32_LOGIT, Pass::Reference, |fed| {
            if let Some(token) = fed {
                next = forward.step(token)?;
            }
            Ok(argmax::compute(&next).context("the logits hold NaN")? as u32)
        })?;
        all.push(tokens);
    }
    Ok(all)
}

/// One chain over a prompt, position by position with the head.
fn chain(engine: &Engine<'_>, pass: Pass, arm: &Arm, prompt: &Prompt) -> Result<Vec<Comparison>> {
    let stages = prompt.stages.iter();
    let wanted: BTreeSet<usize> = stages.flat_map(|s| s.rows.keys().copied()).collect();
    let mut found: BTreeMap<String, BTreeMap<usize, Vec<f64>>> = BTreeMap::new();
    let mut rows = Vec::new();
    let first = if prompt.has_all_rows() {
        0
    } else {
        engine.prefill_whole(&arm.prefill, &prompt.ids)?;
        prompt.ids.len() - 1
    };
    for position in first..prompt.ids.len() {
        // The rows before were stored by the chunks before.
        let fed = match pass {
            Pass::Prefill => arm.prefill.last_chunk(position + 1),
            Pass::Decode | Pass::Reference => position..position + 1,
        };
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
            let spec = engine.weights.spec();
            let (layers, d) = (spec.num_hidden_layers, spec.hidden_size);
            engine.run_captured(program, fed.start, every, |captured| {
                for (stage, mut values) in stages_in(&captured, layers) {
                    // The chunk's last token has the first row.
                    values.truncate(d);
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
        let check = logits(
            "logits",
            &logits_found,
            expected,
            Noise::default(),
            program.plan.elem,
        );
        rows.push(logits_comparison(
            pass,
            prompt,
            position,
            &logits_found,
            expected,
            errors(&logits_found, expected, logits_rel_rms(program.plan.elem)),
            check.note.filter(|_| !check.passed),
        ));
    }
    let stages = prompt.stages.iter();
    let mut all: Vec<Comparison> = stages
        .map(|stage| {
            let rows = found.get(&stage.name);
            stage_comparison(pass, prompt, stage, |at| rows?.get(&at).map(Vec::as_slice))
        })
        .collect();
    all.extend(rows);
    Ok(all)
}

/// The stages that a dispatch finished, with their values.
fn stages_in(captured: &Captured<'_>, layers: usize) -> Vec<(String, Vec<f64>)> {
    let label = captured.dispatch.label.as_str();
    let (layer, site) = match label
        .strip_prefix("layers.")
        .and_then(|l| l.split_once('.'))
    {
        Some((layer, site)) => (layer.parse().unwrap_or(0), site),
        None => (0, label),
    };
    let of_layer = |stage: &str| format!("layers.{layer}.{stage}");
    // Outputs by their number among the storage bindings.
    let outputs = match site {
        "embed" => vec![("embed".to_owned(), 0)],
        "input_norm" => vec![(of_layer("input_norm"), 0)],
        "o" => vec![(of_layer("mixer_out"), 0)],
        "post_norm" => vec![
            (of_layer("post_attn_norm"), 3),
            (of_layer("post_attn_residual"), 4),
        ],
        "down" => vec![(of_layer("ffn_out"), 0)],
        "next_norm" => {
            let next = if layer + 1 < layers {
                format!("layers.{}.input_norm", layer + 1)
            } else {
                "final_norm".into()
            };
            vec![(next, 3), (of_layer("out"), 4)]
        }
        _ => vec![],
    };
    let value = |at: usize| match captured.dispatch.buffers[at] {
        Buffer::Activation(activation) => captured.activations[&activation].clone(),
        Buffer::Param { .. }
        | Buffer::KvPages { .. }
        | Buffer::KvCodes { .. }
        | Buffer::KvScales { .. }
        | Buffer::State(_) => {
            panic!("{label}: binding {at} is no activation")
        }
    };
    outputs
        .into_iter()
        .map(|(stage, at)| (stage, value(at)))
        .collect()
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
    found: impl Fn(usize) -> Option<&'r [f64]>,
) -> Comparison {
    let bound = match pass {
        Pass::Reference => F32_REL_RMS,
        Pass::Prefill | Pass::Decode => logits_rel_rms(Elem::F16),
    };
    let rows = stage
        .rows
        .iter()
        .map(|(&at, expected)| errors(found(at).unwrap_or_default(), expected, bound));
    let worst = rows.reduce(|a, b| Errors {
        worst_abs: a.worst_abs.max(b.worst_abs),
        worst_rel: a.worst_rel.max(b.worst_rel),
        rel_rms: a.rel_rms.max(b.rel_rms),
        bound,
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
        passed: worst.is_some_and(|worst| within(worst.rel_rms, bound)),
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

fn greedy_on_gpu(
    engine: &Engine<'_>,
    arm: &Arm,
    prompt: &Prompt,
    worst: f64,
) -> Result<Comparison> {
    engine.prefill_whole(&arm.prefill, &prompt.ids)?;
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
