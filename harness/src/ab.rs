//! The A/B of a flag, screening form: one process, paired blocks, an A/A
//! control, correctness before time.

mod element;

use crate::{
    check, device,
    engine::{Arm, Engine},
    env,
    model::{Prompt, split_mix},
};
use anyhow::{Context as _, Result, bail};
use element::{Element, Turns};
use indicatif::{ProgressBar, ProgressStyle};
use kernels::{
    Features, Flag, ModelSpec, Phase, Plan, Settings, Value,
    flag::{Choices, Metric},
};
use reference::Checkpoint;
use results::{
    journal::{AbRun, JournalWriter, next_run_id},
    record::{self, Line, Status},
    summary::AbSummary,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

/// What an A/B is asked to do.
#[derive(Debug)]
pub struct Request<'a> {
    /// The flag.
    pub flag: &'static Flag,
    /// Its two values.
    pub arms: [Value; 2],
    /// Every flag of both arms; see [`settings`].
    pub settings: [Settings; 2],
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens decoded per element.
    pub tokens: usize,
    /// Time to spend on measuring.
    pub budget: Duration,
    /// Margin as a fraction of the decode time.
    pub margin: f64,
    /// Seed of the block order and of what the sweep puts in the KV cache.
    pub seed: u64,
    /// The command line, for the record.
    pub command: String,
    /// Folder of journals.
    pub data_dir: &'a Path,
    /// Folder of reports.
    pub reports_dir: &'a Path,
}

/// A finished A/B.
#[derive(Debug)]
pub struct Outcome {
    /// The `--json` document.
    pub summary: AbSummary,
    /// Whether every check passed.
    pub correct: bool,
}

/// Decode steps of the correctness gate, after the prompt's own logits.
///
/// With those, 21 tokens: one near tie among them is within the share that may
/// be excused.
const GATE_STEPS: usize = 20;
/// Context lengths of the sweep, where the model and the cache hold them.
const SWEEP: [usize; 5] = [64, 128, 256, 512, 1024];
/// Fewest and most tokens of one timing of the sweep, and how long it should last.
const SWEEP_TOKENS: [usize; 2] = [2, 64];
const SWEEP_TIME: Duration = Duration::from_millis(200);
/// Share of the budget that the sweep may take.
const SWEEP_SHARE: f64 = 0.2;

/// Set by Ctrl-C: the run ends after the element in flight, its journal whole.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Runs the A/B and writes journal and report.
///
/// # Errors
/// When the arms are the same, a device fails, or a file cannot be written.
pub fn run(gpu: &device::Gpu, weights: &Checkpoint, request: &Request<'_>) -> Result<Outcome> {
    let spec = weights.spec();
    let context = (request.prompt.ids.len() + request.tokens)
        .max(SWEEP[SWEEP.len() - 1] + SWEEP_TOKENS[1])
        .max(request.prompt.ids.len() + GATE_STEPS)
        .max(match request.flag.metric {
            Metric::Decode | Metric::Prefill => 0,
            Metric::SecondTurn => Turns::of(request).tokens(),
        })
        .min(spec.max_context());
    let settings = &request.settings;
    require_difference(spec, &gpu.features, settings)?;
    let mut engine = Engine::new(gpu, weights, context, None)?;
    let arms = [engine.arm(&settings[0])?, engine.arm(&settings[1])?];
    let control = engine.control(&settings[0])?;
    let mut journal = start(gpu, &engine, request, &arms)?;
    let path = journal.path().to_path_buf();

    let result = measure(&engine, request, &arms, &control, &mut journal);
    let end = match &result {
        Ok(_) if interrupted() => (Status::Interrupted, Some("stopped by the user".to_owned())),
        Ok(true) => (Status::Complete, None),
        Ok(false) => (Status::Void, Some("a correctness check failed".to_owned())),
        Err(error) => (Status::Interrupted, Some(format!("{error:#}"))),
    };
    journal.append(&Line::End(record::End {
        status: end.0,
        reason: end.1,
    }))?;
    let correct = result?;
    let run = AbRun::load(&path)?;
    if run.was_stopped_early() {
        bail!(
            "stopped before anything was timed; {} says so, and gets no report",
            path.display()
        );
    }
    let report = request.reports_dir.join(&run.run.id);
    reports::ab::write(&run, &report)?;
    Ok(Outcome {
        summary: AbSummary::of(&run, &report)?,
        correct,
    })
}

/// Both arms' settings: the flag's value, what the flag excludes off, all else
/// as chosen or by default.
///
/// # Errors
/// When a choice contradicts the flag under test.
pub fn settings(
    flag: &Flag,
    values: [Value; 2],
    chosen: &Choices,
    features: &Features,
) -> Result<[Settings; 2]> {
    if let Some(value) = chosen.get(flag.name) {
        bail!(
            "--with {}={value}: the flag under test takes its values from --values",
            flag.name
        );
    }
    for &excluded in flag.excludes {
        if chosen.get(excluded).is_some_and(|v| v.is_on()) {
            bail!("flag {} excludes {excluded}, which was chosen", flag.name);
        }
    }
    let resolve = |value| {
        let mut choices = chosen.clone();
        choices.insert(flag.name, value);
        choices.extend(flag.excludes.iter().map(|&name| (name, Value::Off)));
        Settings::resolve(features, &choices)
    };
    Ok([resolve(values[0])?, resolve(values[1])?])
}

/// Refuses arms that dispatch the same kernels.
///
/// # Errors
/// When they do, or when an arm has no plan.
pub fn require_difference(
    spec: &ModelSpec,
    features: &Features,
    settings: &[Settings; 2],
) -> Result<()> {
    // These change what runs of a prompt, not what a plan has.
    let differ = |flag| settings[0].get(flag) != settings[1].get(flag);
    if ["chunk", "reuse"].into_iter().any(differ) {
        return Ok(());
    }
    let tokens = (settings[0].get("chunk").count() as usize).max(1);
    for phase in [Phase::Decode, Phase::Prefill { tokens, head: true }] {
        let plan = |arm: &Settings| Plan::build(spec, arm, features, phase);
        if plan(&settings[0])? != plan(&settings[1])? {
            return Ok(());
        }
    }
    bail!(
        "both arms run the same shaders and the same plan on this adapter: nothing to compare; \
         `cargo xtask plan --adapter` shows what is chosen"
    );
}

fn start(
    gpu: &device::Gpu,
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm; 2],
) -> Result<JournalWriter> {
    let weights = engine.weights;
    let spec = weights.spec();
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    for dir in [request.data_dir, request.reports_dir] {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let topic = request.flag.name;
    let id = next_run_id(&[request.data_dir, request.reports_dir], &now[..10], topic)?;
    let prompt_tokens = request.prompt.ids.len();
    let arm_plan = |i: usize| -> Result<record::ArmPlan> {
        let totals = arms[i].decode.plan.totals();
        let prompt = engine.prefill_programs(&arms[i].prefill, 0..prompt_tokens)?;
        let prefill: usize = prompt.iter().map(|p| p.plan.dispatches.len()).sum();
        let turn = match request.flag.metric {
            Metric::Decode | Metric::Prefill => None,
            Metric::SecondTurn => {
                let turns = Turns::of(request);
                let fed = turns.reused(&arms[i])..turns.tokens();
                let programs = engine.prefill_programs(&arms[i].prefill, fed)?;
                let dispatches = programs.iter().map(|p| p.plan.dispatches.len() as u64);
                Some(dispatches.sum())
            }
        };
        let mut programs = vec![&arms[i].decode];
        programs.extend(prompt.iter().map(|program| &**program));
        let values = request.settings[i].values();
        Ok(record::ArmPlan {
            name: format!("{}={}", request.flag.name, request.arms[i]),
            settings: values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.to_string()))
                .collect(),
            dispatches_per_token: totals.dispatches_per_token,
            by_role: totals
                .by_role
                .iter()
                .map(|(role, count)| ((*role).to_owned(), *count))
                .collect(),
            prefill_dispatches: Some(prefill as u64),
            second_turn_dispatches: turn,
            shaders: engine.shader_hashes(&programs),
        })
    };
    let provenance = weights.provenance();
    let mut notes = provenance.notes.clone();
    if request.settings[0].kv_format() != request.settings[1].kv_format() {
        notes.push(
            "the arms cache keys and values in different formats: each is checked against the CPU \
             reference with a cache of its own format, and their logits are not compared with each \
             other"
                .to_owned(),
        );
    }
    let run = record::Run {
        schema: record::SCHEMA,
        id: id.clone(),
        started_utc: now,
        command: request.command.clone(),
        flag: request.flag.name.to_owned(),
        mode: record::Mode::Screening,
        model: record::Model {
            id: spec.id.clone(),
            name: spec.title.clone(),
            title: provenance.title.clone(),
            weights: match provenance.weights {
                reference::checkpoint::Container::Mlc => record::Weights::Mlc,
                reference::checkpoint::Container::Mlx => record::Weights::Mlx,
                reference::checkpoint::Container::Gguf => record::Weights::Gguf,
                reference::checkpoint::Container::Synthetic => record::Weights::Synthetic,
            },
            weights_sha256: provenance.sha256.clone(),
            parameters: spec.parameters(),
            bytes_per_token: arms[0].decode.plan.totals().bytes_per_token,
        },
        adapter: adapter_record(gpu),
        environment: env::environment(),
        seed: request.seed,
        prompt: record::Prompt {
            name: request.prompt.name.clone(),
            tokens: prompt_tokens as u32,
        },
        second_turn_tokens: match request.flag.metric {
            Metric::Decode | Metric::Prefill => None,
            Metric::SecondTurn => Some(Turns::of(request).tokens() as u32),
        },
        decode_tokens: request.tokens as u32,
        budget_s: request.budget.as_secs_f64(),
        metric: match request.flag.metric {
            Metric::Decode => record::Metric::Decode,
            Metric::Prefill => record::Metric::Prefill,
            Metric::SecondTurn => record::Metric::SecondTurn,
        },
        margin: request.margin,
        arms: [arm_plan(0)?, arm_plan(1)?],
        excluded: request
            .flag
            .excludes
            .iter()
            .map(|&e| e.to_owned())
            .collect(),
        notes,
    };
    let path = request.data_dir.join(format!("{id}.jsonl"));
    Ok(JournalWriter::create(&path, &run)?)
}

fn adapter_record(gpu: &device::Gpu) -> record::Adapter {
    let features = gpu.device.features();
    record::Adapter {
        name: gpu.info.name.clone(),
        vendor: format!("{:#06x}", gpu.info.vendor),
        device_type: format!("{:?}", gpu.info.device_type),
        backend: gpu.info.backend.to_string(),
        driver: gpu.info.driver.clone(),
        driver_info: gpu.info.driver_info.clone(),
        features: features
            .iter_names()
            .map(|(name, _)| name.to_owned())
            .collect(),
        limits: device::limits_of(&gpu.device.limits()),
        timestamp_query: features.contains(wgpu::Features::TIMESTAMP_QUERY),
    }
}

/// Prefills, checks, warms up, measures; false where a check failed.
fn measure(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm; 2],
    control: &Arm,
    journal: &mut JournalWriter,
) -> Result<bool> {
    let prompt = &request.prompt.ids;
    let kinds = [record::Arm::A, record::Arm::B];
    let bar = ProgressBar::new(request.budget.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    phase(&bar, "the CPU reference");
    let weights = engine.weights;
    let settings = &request.settings;
    let expected = check::Expectation::new(weights, prompt, GATE_STEPS, &settings[0])?;
    // Both arms are fed the same tokens.
    let other = expected.with(weights, &settings[1])?;
    let expected = [&expected, other.as_ref().unwrap_or(&expected)];
    let mut gates = Vec::new();
    for ((arm, kind), expected) in arms.iter().zip(kinds).zip(expected) {
        if interrupted() {
            return Ok(true);
        }
        phase(&bar, &format!("checking arm {kind}"));
        // The first prefill warms up and feeds the gate; the second is timed.
        engine.prefill_whole(&arm.prefill, prompt)?;
        let gate = check::greedy(engine, arm, expected)?;
        gates.push(gate.logits);
        append_checks(journal, kind, gate.checks.clone())?;
        if gate.checks.iter().any(|c| !c.passed) {
            return Ok(false);
        }
    }
    if request.flag.metric == Metric::SecondTurn {
        phase(&bar, "checking the second turn");
        for (arm, kind) in arms.iter().zip(kinds) {
            let check = Turns::of(request).check(engine, request, arm)?;
            let passed = check.passed;
            append_checks(journal, kind, vec![check])?;
            if !passed {
                return Ok(false);
            }
        }
    }
    let mut apart = Vec::new();
    // Arms with caches of different formats compute different things.
    let same = settings[0].kv_format() == settings[1].kv_format();
    for (step, (a, b)) in gates[0].iter().zip(&gates[1]).enumerate().filter(|_| same) {
        apart.push(check::logits(
            &format!("arm against arm.{step}"),
            b,
            a,
            expected[0].noise[step].max(expected[1].noise[step]),
            settings[0].elem().min(settings[1].elem()),
        ));
    }
    let agree = apart.iter().all(|c| c.passed);
    append_checks(journal, record::Arm::B, apart)?;
    if !agree {
        return Ok(false);
    }
    phase(&bar, "timing the prefill");
    for (arm, kind) in arms.iter().zip(kinds) {
        if interrupted() {
            return Ok(true);
        }
        let wall_ns = engine.prefill_whole(&arm.prefill, prompt)?.wall_ns;
        journal.append(&Line::Prefill(record::Prefill {
            arm: kind,
            index: 0,
            tokens: prompt.len() as u32,
            wall_ns,
        }))?;
    }
    engine.memory.snapshot(engine.gpu)?;
    let first = engine.token()?;
    blocks(engine, request, arms, control, first, &bar, journal)?;
    // Both arms decode alike where the prompt is what differs.
    let mut passed = true;
    if request.flag.metric == Metric::Decode && !interrupted() {
        phase(&bar, "sweeping the context length");
        passed = sweep(engine, request, arms, journal)?;
    }
    bar.finish_and_clear();
    Ok(passed)
}

/// Says what is going on: on a terminal in the bar, else as a line.
fn phase(bar: &ProgressBar, what: &str) {
    if bar.is_hidden() {
        eprintln!("{what}");
    }
    bar.set_message(what.to_owned());
    bar.tick();
}

fn append_checks(
    journal: &mut JournalWriter,
    arm: record::Arm,
    checks: Vec<check::Check>,
) -> Result<()> {
    for check in checks {
        journal.append(&Line::Check(record::Check { arm, ..check }))?;
    }
    Ok(())
}

/// Blocks of six elements, `A A' B B A' A` or, by a seeded coin, with A and B
/// exchanged; A' is arm A compiled a second time.
fn blocks(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm; 2],
    control: &Arm,
    first: u32,
    bar: &ProgressBar,
    journal: &mut JournalWriter,
) -> Result<()> {
    use record::Arm::{A, B, Control};
    phase(bar, "warming up");
    for arm in [&arms[0], control, &arms[1]] {
        Element::run(engine, request, arm, first)?;
    }
    let mut coin = request.seed;
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut tokens: BTreeMap<bool, Vec<u32>> = BTreeMap::new();
    let mut block = 0;
    while start.elapsed() + longest <= request.budget || block == 0 {
        let block_start = Instant::now();
        let order = if split_mix(&mut coin) & 1 == 0 {
            [A, Control, B, B, Control, A]
        } else {
            [B, Control, A, A, Control, B]
        };
        for (position, kind) in order.into_iter().enumerate() {
            if interrupted() {
                return Ok(());
            }
            let spent = start.elapsed();
            bar.set_position(spent.min(request.budget).as_secs());
            bar.set_message(format!(
                "block {}, {} s of measuring left",
                block + 1,
                request.budget.saturating_sub(spent).as_secs()
            ));
            let arm = match kind {
                A => &arms[0],
                Control => control,
                B => &arms[1],
            };
            let done = Element::run(engine, request, arm, first)?;
            // Both arms do the same work: the tokens of an arm never change.
            let known = tokens.entry(kind == B).or_insert_with(|| done.made.clone());
            if *known != done.made {
                bail!(
                    "block {block}: an arm made other tokens than before; the output is not stable"
                );
            }
            journal.append(&Line::Sample(record::Sample {
                block,
                position: position as u8,
                arm: kind,
                tokens: done.tokens as u32,
                dispatches: done.dispatches,
                wall_ns: done.wall_ns,
                spans: done.spans,
            }))?;
        }
        longest = longest.max(block_start.elapsed());
        block += 1;
    }
    Ok(())
}

/// Time per token against context length: the KV cache is filled with seeded
/// values, the first layer's dispatches of each arm are compared with the
/// reference there, then both arms are timed. Logits would say little: over keys
/// that no token made, the layers enlarge every rounding.
fn sweep(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm; 2],
    journal: &mut JournalWriter,
) -> Result<bool> {
    let mut state = request.seed;
    let values: Vec<f32> = (0..engine.memory.layer_elements())
        .map(|_| (split_mix(&mut state) >> 40) as f32 / (1_u32 << 24) as f32 - 0.5)
        .collect();
    let token = request.prompt.ids[0];
    let kinds = [record::Arm::A, record::Arm::B];
    let start = Instant::now();
    for context in SWEEP {
        if context + SWEEP_TOKENS[1] > engine.memory.context() || interrupted() {
            break;
        }
        if start.elapsed().as_secs_f64() > SWEEP_SHARE * request.budget.as_secs_f64() {
            break;
        }
        let mut slowest = Duration::ZERO;
        for (arm, kind) in arms.iter().zip(kinds) {
            engine.memory.fill_kv(engine.gpu, &values)?;
            engine.set_token(token);
            let mut checks = check::roles(engine, &arm.decode, context - 1, |dispatch| {
                dispatch.label.starts_with("layers.0.")
            })?;
            for check in &mut checks {
                check.stage = format!("context {context}.{}", check.stage);
            }
            let passed = checks.iter().all(|c| c.passed);
            append_checks(journal, kind, checks)?;
            if !passed {
                return Ok(false);
            }
            engine.set_token(token);
            let warm = engine.decode(&arm.decode, context - 1, SWEEP_TOKENS[0])?;
            slowest = slowest.max(Duration::from_nanos(warm.wall_ns) / SWEEP_TOKENS[0] as u32);
        }
        // As many tokens as last a moment, the same for both arms.
        let tokens = (SWEEP_TIME.as_nanos() / slowest.as_nanos().max(1)) as usize;
        let tokens = tokens.clamp(SWEEP_TOKENS[0], SWEEP_TOKENS[1]);
        for index in [0, 1, 1, 0] {
            engine.set_token(token);
            let decoded = engine.decode(&arms[index].decode, context - 1, tokens)?;
            journal.append(&Line::Context(record::Context {
                arm: kinds[index],
                context: context as u32,
                tokens: tokens as u32,
                wall_ns: decoded.wall_ns,
            }))?;
        }
    }
    Ok(true)
}

/// Journal and report folders under the working folder.
pub fn folders() -> [PathBuf; 2] {
    [PathBuf::from("results/data"), PathBuf::from("reports")]
}
