//! The A/B of one flag or of two, screening form: one process, paired blocks, an
//! A/A control, correctness before time. Of two flags there are four arms: the
//! baseline, each change alone, and both.

mod element;

use crate::{
    bench, check, device,
    engine::{Arm, Engine},
    env, interrupt,
    model::{Prompt, split_mix},
    progress::phase,
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
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// What an A/B is asked to do.
#[derive(Debug)]
pub struct Request<'a> {
    /// One flag, or two of one metric.
    pub changes: &'a [Change],
    /// What is compared; see [`arms`].
    pub arms: Vec<ArmSettings>,
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

impl Request<'_> {
    /// What the flags are judged on.
    fn metric(&self) -> Metric {
        self.changes[0].flag.metric
    }
}

/// A flag under test.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The flag.
    pub flag: &'static Flag,
    /// Its value in the baseline, and the change.
    pub values: [Value; 2],
}

/// One arm before it is compiled.
#[derive(Clone, Debug, PartialEq)]
pub struct ArmSettings {
    /// The values of the flags under test, `splitk=0`.
    pub name: String,
    /// Every flag.
    pub settings: Settings,
}

/// The arms of a run by number, without the control.
const KINDS: [record::Arm; 4] = [
    record::Arm::A,
    record::Arm::B,
    record::Arm::C,
    record::Arm::D,
];

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

/// Runs the A/B and writes journal and report.
///
/// # Errors
/// When the arms are the same, a device fails, or a file cannot be written.
pub fn run(gpu: &device::Gpu, weights: &Checkpoint, request: &Request<'_>) -> Result<Outcome> {
    let spec = weights.spec();
    let context = (request.prompt.ids.len() + request.tokens)
        .max(SWEEP[SWEEP.len() - 1] + SWEEP_TOKENS[1])
        .max(request.prompt.ids.len() + GATE_STEPS)
        .max(match request.metric() {
            Metric::Decode | Metric::Prefill => 0,
            Metric::SecondTurn => Turns::of(request).tokens(),
        })
        .min(spec.max_context());
    require_difference(spec, &gpu.features, &request.arms)?;
    let mut engine = Engine::new(gpu, weights, context, None)?;
    let mut arms = Vec::new();
    for arm in &request.arms {
        arms.push(engine.arm(&arm.settings)?);
    }
    let control = engine.control(&request.arms[0].settings)?;
    let mut journal = start(gpu, &engine, request, &arms)?;
    let path = journal.path().to_path_buf();

    let result = measure(&engine, request, &arms, &control, &mut journal);
    let end = match &result {
        Ok(_) if interrupt::asked() => {
            (Status::Interrupted, Some("stopped by the user".to_owned()))
        }
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

/// The arms of one flag (off, on) or of two (neither, the first, the second, both):
/// the flags' values, what the flags exclude off, all else as chosen or by default.
///
/// # Errors
/// When a choice contradicts a flag under test, or two flags under test contradict
/// each other.
pub fn arms(changes: &[Change], chosen: &Choices, features: &Features) -> Result<Vec<ArmSettings>> {
    let mut choices = chosen.clone();
    for Change { flag, .. } in changes {
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
            if changes.iter().any(|other| other.flag.name == excluded) {
                bail!(
                    "flags {} and {excluded} exclude each other, so no arm can have both",
                    flag.name
                );
            }
            choices.insert(excluded, Value::Off);
        }
    }
    let arm = |number: usize| {
        let mut choices = choices.clone();
        let mut names = Vec::new();
        for (bit, Change { flag, values }) in changes.iter().enumerate() {
            let value = values[number >> bit & 1];
            choices.insert(flag.name, value);
            names.push(format!("{}={value}", flag.name));
        }
        Ok(ArmSettings {
            name: names.join(" "),
            settings: Settings::resolve(features, &choices)?,
        })
    };
    (0..1 << changes.len()).map(arm).collect()
}

/// Refuses arms two of which dispatch the same kernels.
///
/// # Errors
/// When two do, or when an arm has no plan.
pub fn require_difference(
    spec: &ModelSpec,
    features: &Features,
    arms: &[ArmSettings],
) -> Result<()> {
    for (at, first) in arms.iter().enumerate() {
        for second in &arms[at + 1..] {
            if !differ(spec, features, &first.settings, &second.settings)? {
                bail!(
                    "the arms {} and {} run the same shaders and the same plan on this adapter: \
                     nothing to compare; `cargo xtask plan --adapter` shows what is chosen",
                    first.name,
                    second.name
                );
            }
        }
    }
    Ok(())
}

/// Whether two choices of flags run different things in any phase.
fn differ(spec: &ModelSpec, features: &Features, a: &Settings, b: &Settings) -> Result<bool> {
    // These change what runs of a prompt, not what a plan has.
    if ["chunk", "reuse"]
        .into_iter()
        .any(|flag| a.get(flag) != b.get(flag))
    {
        return Ok(true);
    }
    let tokens = (a.get("chunk").count() as usize).max(1);
    for phase in [Phase::Decode, Phase::Prefill { tokens, head: true }] {
        let plan = |arm: &Settings| Plan::build(spec, arm, features, phase);
        if plan(a)? != plan(b)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn start(
    gpu: &device::Gpu,
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
) -> Result<JournalWriter> {
    let weights = engine.weights;
    let spec = weights.spec();
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    for dir in [request.data_dir, request.reports_dir] {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let flags: Vec<&str> = request.changes.iter().map(|c| c.flag.name).collect();
    let topic = flags.join("-");
    let id = next_run_id(&[request.data_dir, request.reports_dir], &now[..10], &topic)?;
    let prompt_tokens = request.prompt.ids.len();
    let arm_plan = |i: usize| -> Result<record::ArmPlan> {
        let totals = arms[i].decode.plan.totals();
        let prompt = engine.prefill_programs(&arms[i].prefill, 0..prompt_tokens)?;
        let prefill: usize = prompt.iter().map(|p| p.plan.dispatches.len()).sum();
        let turn = match request.metric() {
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
        let values = request.arms[i].settings.values();
        Ok(record::ArmPlan {
            name: request.arms[i].name.clone(),
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
    let kv_format = |arm: &ArmSettings| arm.settings.kv_format();
    if (request.arms.iter()).any(|arm| kv_format(arm) != kv_format(&request.arms[0])) {
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
        flag: flags.join(","),
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
        second_turn_tokens: match request.metric() {
            Metric::Decode | Metric::Prefill => None,
            Metric::SecondTurn => Some(Turns::of(request).tokens() as u32),
        },
        decode_tokens: request.tokens as u32,
        budget_s: request.budget.as_secs_f64(),
        metric: match request.metric() {
            Metric::Decode => record::Metric::Decode,
            Metric::Prefill => record::Metric::Prefill,
            Metric::SecondTurn => record::Metric::SecondTurn,
        },
        margin: request.margin,
        arms: (0..arms.len()).map(arm_plan).collect::<Result<_>>()?,
        excluded: request
            .changes
            .iter()
            .flat_map(|change| change.flag.excludes)
            .map(|&e| e.to_owned())
            .collect::<BTreeSet<String>>()
            .into_iter()
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
    arms: &[Arm],
    control: &Arm,
    journal: &mut JournalWriter,
) -> Result<bool> {
    let prompt = &request.prompt.ids;
    let bar = ProgressBar::new(request.budget.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    phase(&bar, "the CPU reference");
    let weights = engine.weights;
    let settings = |arm: usize| &request.arms[arm].settings;
    let mut expectations = vec![check::Expectation::new(
        weights,
        prompt,
        GATE_STEPS,
        settings(0),
    )?];
    // Every arm is fed the same tokens.
    for arm in 1..arms.len() {
        if !expectations.iter().any(|e| e.serves(settings(arm)))
            && let Some(other) = expectations[0].with(weights, settings(arm))?
        {
            expectations.push(other);
        }
    }
    let expected = |arm: usize| {
        let mut serving = expectations.iter().filter(|e| e.serves(settings(arm)));
        serving.next().unwrap_or(&expectations[0])
    };
    let mut gates = Vec::new();
    for (arm, kind) in arms.iter().zip(KINDS) {
        if interrupt::asked() {
            return Ok(true);
        }
        phase(&bar, &format!("checking arm {kind}"));
        // The first prefill warms up and feeds the gate; the second is timed.
        engine.prefill_whole(&arm.prefill, prompt)?;
        let gate = check::greedy(engine, arm, expected(kind.plan()))?;
        gates.push(gate.logits);
        append_checks(journal, kind, gate.checks.clone())?;
        if gate.checks.iter().any(|c| !c.passed) {
            return Ok(false);
        }
    }
    if request.metric() == Metric::SecondTurn {
        phase(&bar, "checking the second turn");
        for (arm, kind) in arms.iter().zip(KINDS) {
            let check = Turns::of(request).check(engine, request, arm)?;
            let passed = check.passed;
            append_checks(journal, kind, vec![check])?;
            if !passed {
                return Ok(false);
            }
        }
    }
    for (arm, kind) in KINDS.into_iter().enumerate().take(arms.len()).skip(1) {
        // Arms with caches of different formats compute different things.
        if settings(0).kv_format() != settings(arm).kv_format() {
            continue;
        }
        let mut apart = Vec::new();
        for (step, (a, b)) in gates[0].iter().zip(&gates[arm]).enumerate() {
            apart.push(check::logits(
                &format!("arm against arm.{step}"),
                b,
                a,
                expected(0).noise[step].max(expected(arm).noise[step]),
                settings(0).elem().min(settings(arm).elem()),
            ));
        }
        let agree = apart.iter().all(|c| c.passed);
        append_checks(journal, kind, apart)?;
        if !agree {
            return Ok(false);
        }
    }
    phase(&bar, "timing the prefill");
    for (arm, kind) in arms.iter().zip(KINDS) {
        if interrupt::asked() {
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
    if request.metric() == Metric::Decode && !interrupt::asked() {
        phase(&bar, "sweeping the context length");
        passed = sweep(engine, request, arms, journal)?;
    }
    bar.finish_and_clear();
    Ok(passed)
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

/// The arms once, in the order that [`half_block`] draws, and then the same
/// backwards; A' is arm A compiled a second time.
fn blocks(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    control: &Arm,
    first: u32,
    bar: &ProgressBar,
    journal: &mut JournalWriter,
) -> Result<()> {
    phase(bar, "warming up");
    for arm in arms.iter().chain([control]) {
        Element::run(engine, request, arm, first)?;
    }
    let mut coin = request.seed;
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut tokens: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let mut block = 0;
    while start.elapsed() + longest <= request.budget || block == 0 {
        let block_start = Instant::now();
        let half = half_block(arms.len(), &mut coin);
        let order = half.iter().chain(half.iter().rev()).copied();
        for (position, kind) in order.enumerate() {
            if interrupt::asked() {
                return Ok(());
            }
            let spent = start.elapsed();
            bar.set_position(spent.min(request.budget).as_secs());
            bar.set_message(format!(
                "block {}, {} s of measuring left",
                block + 1,
                request.budget.saturating_sub(spent).as_secs()
            ));
            let arm = if kind == record::Arm::Control {
                control
            } else {
                &arms[kind.plan()]
            };
            let done = Element::run(engine, request, arm, first)?;
            // Every arm does the same work: the tokens of an arm never change.
            let known = tokens
                .entry(kind.plan())
                .or_insert_with(|| done.made.clone());
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

/// The order of a block's first half: of one flag A A' B or B A' A, by a seeded
/// coin; of two any order of the five, each as likely.
fn half_block(arms: usize, coin: &mut u64) -> Vec<record::Arm> {
    use record::Arm::{A, B, Control};
    if arms == 2 {
        return if split_mix(coin) & 1 == 0 {
            vec![A, Control, B]
        } else {
            vec![B, Control, A]
        };
    }
    let mut half: Vec<record::Arm> = record::Arm::OF_TWO_FLAGS.to_vec();
    for last in (1..half.len()).rev() {
        // 64 bits over at most five: the bias is below 1 in 10^18.
        half.swap(last, (split_mix(coin) % (last as u64 + 1)) as usize);
    }
    half
}

/// Time per token against context length: the KV cache is filled with seeded
/// values, the first layer's dispatches of each arm are compared with the
/// reference there, then the arms are timed. Logits would say little: over keys
/// that no token made, the layers enlarge every rounding.
fn sweep(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    journal: &mut JournalWriter,
) -> Result<bool> {
    let mut state = request.seed;
    let values: Vec<f32> = (0..engine.memory.layer_elements())
        .map(|_| (split_mix(&mut state) >> 40) as f32 / (1_u32 << 24) as f32 - 0.5)
        .collect();
    let token = request.prompt.ids[0];
    let start = Instant::now();
    for context in SWEEP {
        if context + SWEEP_TOKENS[1] > engine.memory.context() || interrupt::asked() {
            break;
        }
        if start.elapsed().as_secs_f64() > SWEEP_SHARE * request.budget.as_secs_f64() {
            break;
        }
        let mut slowest = Duration::ZERO;
        for (arm, kind) in arms.iter().zip(KINDS) {
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
        }
        // The reference took a pause, after which clocks are low.
        for arm in arms {
            let start = Instant::now();
            let mut last = Duration::MAX;
            while last == Duration::MAX || start.elapsed() < bench::WARM_UP {
                engine.set_token(token);
                let warm = engine.decode(&arm.decode, context - 1, SWEEP_TOKENS[0])?;
                last = Duration::from_nanos(warm.wall_ns) / SWEEP_TOKENS[0] as u32;
            }
            slowest = slowest.max(last);
        }
        // As many tokens as last a moment, the same for every arm.
        let tokens = (SWEEP_TIME.as_nanos() / slowest.as_nanos().max(1)) as usize;
        let tokens = tokens.clamp(SWEEP_TOKENS[0], SWEEP_TOKENS[1]);
        for index in (0..arms.len()).chain((0..arms.len()).rev()) {
            engine.set_token(token);
            let decoded = engine.decode(&arms[index].decode, context - 1, tokens)?;
            journal.append(&Line::Context(record::Context {
                arm: KINDS[index],
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
