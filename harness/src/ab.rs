//! The A/B of one flag or of two, screening form: one process, paired blocks, an
//! A/A control, correctness before time. Of two flags there are four arms: the
//! baseline, each change alone, and both.

mod blocks;
mod element;
mod gate;
pub mod kernel;
pub mod publish;
pub mod quality;
mod sentinel;
pub(crate) mod start;
mod sweep;

use crate::{
    check, device,
    engine::{Arm, Engine, Making, Texts},
    interrupt,
    model::Prompt,
    progress::phase,
};
use anyhow::{Context as _, Result, anyhow, bail};
use blocks::{Until, blocks};
use element::{Tokens, Turns};
use gate::gate;
use indicatif::{ProgressBar, ProgressStyle};
use kernels::{
    Features, Flag, ModelSpec, Phase, Settings, Value,
    flag::{Choices, FlagError, Metric},
};
use publish::Publishing;
use quality::{Passage, quality};
use reference::Checkpoint;
use results::{
    journal::{AbRun, JournalWriter},
    record::{self, Line, Status},
    summary::AbSummary,
};
use start::{Run, start};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};
use sweep::{SWEEP_POSITIONS, sweep};

/// What an A/B is asked to do.
#[derive(Debug)]
pub struct Request<'a> {
    /// What the arms differ in.
    pub subject: Subject,
    /// What is compared; see [`arms`].
    pub arms: Vec<ArmSettings>,
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens decoded per element.
    pub tokens: usize,
    /// Time to spend on measuring.
    pub budget: Duration,
    /// Margin as a fraction of the time; by default [`MARGIN`], and of one dispatch what its
    /// control reads before the run.
    pub margin: Option<f64>,
    /// Seed of the block order and of what the sweep puts in the KV cache.
    pub seed: u64,
    /// The command line, for the record.
    pub command: String,
    /// The text that says what a lossy change costs.
    pub passage: Option<Passage>,
    /// What a published run adds.
    pub publish: Option<Publishing>,
    /// The run's id; by default the first free one of the day.
    pub id: Option<String>,
    /// Folder of journals.
    pub data_dir: &'a Path,
    /// Folder of reports.
    pub reports_dir: &'a Path,
}

impl Request<'_> {
    /// What is timed, the control among them.
    fn timed(&self) -> &'static [record::Arm] {
        record::Arm::of(self.arms.len(), self.publish.is_some())
    }

    /// The arms by number, without the control.
    fn kinds(&self) -> Vec<record::Arm> {
        let timed = self.timed().iter().copied();
        timed.filter(|&kind| kind != record::Arm::Control).collect()
    }

    /// The number of an arm; the control is made as the first.
    fn number(&self, kind: record::Arm) -> Result<usize> {
        let number = kind.plan(self.timed());
        number.with_context(|| format!("arm {kind} is not one of this A/B"))
    }
}

/// Margin of whole tokens, where nobody says.
pub const MARGIN: f64 = 0.02;

/// What the arms of a run differ in.
#[derive(Clone, Debug)]
pub struct Subject {
    /// One flag, or two of one metric, or what else differs.
    pub names: Vec<String>,
    /// What it is judged on.
    pub metric: Metric,
    /// Flags that these exclude, off in every arm.
    pub excluded: Vec<String>,
}

impl Subject {
    /// The subject of one flag, or of two.
    pub fn of(changes: &[Change]) -> Self {
        let excluded = changes.iter().flat_map(|change| change.flag.excludes);
        let excluded: BTreeSet<String> = excluded.map(|&e| e.to_owned()).collect();
        Self {
            names: changes.iter().map(|c| c.flag.name.to_owned()).collect(),
            metric: changes[0].flag.metric,
            excluded: excluded.into_iter().collect(),
        }
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
#[derive(Clone, Debug)]
pub struct ArmSettings {
    /// The values of the flags under test, `splitk=0`.
    pub name: String,
    /// Every flag.
    pub settings: Settings,
    /// Share of work that is done twice; 0 but for a slowed arm.
    pub slowed: f64,
    /// Where the kernels' texts come from.
    pub texts: Texts,
}

impl ArmSettings {
    fn making(&self) -> Making<'_> {
        Making {
            settings: &self.settings,
            slowed: self.slowed,
            texts: self.texts.clone(),
        }
    }
}

/// The compiled arms and the control.
struct Compared {
    arms: Vec<Arm>,
    control: Arm,
}

impl Compared {
    fn new(engine: &mut Engine<'_>, request: &Request<'_>) -> Result<Self> {
        let mut arms = Vec::new();
        for arm in &request.arms {
            arms.push(engine.made(&arm.making())?);
        }
        let control = engine.control(&request.arms[0].making())?;
        Ok(Self { arms, control })
    }
}

/// A finished A/B.
#[derive(Debug)]
pub struct Outcome {
    /// The `--json` document.
    pub summary: AbSummary,
    /// Whether every check passed.
    pub correct: bool,
}

impl Outcome {
    /// Whether the weights were made up.
    pub fn is_synthetic(&self) -> bool {
        self.summary.weights == record::Weights::Synthetic
    }
}

/// Runs the A/B and writes journal and report.
///
/// # Errors
/// When the arms are the same, a device fails, or a file cannot be written.
pub fn run(gpu: &device::Gpu, weights: &Checkpoint, request: &Request<'_>) -> Result<Outcome> {
    let spec = weights.spec();
    require_difference(spec, &gpu.features, &request.arms)?;
    let mut engine = Engine::new(gpu, weights, context(spec, request), None)?;
    let compared = Compared::new(&mut engine, request)?;
    let mut journal = start(gpu, &engine, request, &compared.arms, &Run::Tokens)?;

    let result = measure(&engine, request, &compared, &mut journal);
    ended(journal, result, request.reports_dir)
}

/// Why a run is void.
pub(crate) const CHECK_FAILED: &str = "a correctness check failed";

/// Ends the journal with what became of the run, true where every check passed, and writes
/// the report.
fn ended(mut journal: JournalWriter, result: Result<bool>, reports_dir: &Path) -> Result<Outcome> {
    let (status, reason) = match &result {
        Ok(_) if interrupt::asked() => {
            (Status::Interrupted, Some("stopped by the user".to_owned()))
        }
        Ok(true) => (Status::Complete, None),
        Ok(false) => (Status::Void, Some(CHECK_FAILED.to_owned())),
        Err(error) => (Status::Interrupted, Some(format!("{error:#}"))),
    };
    journal.append(&Line::End(record::End { status, reason }))?;
    finished(journal.path(), reports_dir, result?)
}

/// Positions that the run needs.
fn context(spec: &ModelSpec, request: &Request<'_>) -> usize {
    (request.prompt.ids.len() + request.tokens)
        .max(SWEEP_POSITIONS)
        .max(request.prompt.ids.len() + check::STEPS)
        .max(match request.subject.metric {
            Metric::Decode | Metric::Prefill => 0,
            Metric::SecondTurn => Turns::of(request).tokens(),
        })
        .min(spec.max_context())
}

/// Writes the report of a journal.
fn finished(path: &Path, reports_dir: &Path, correct: bool) -> Result<Outcome> {
    let run = AbRun::load(path)?;
    if run.was_stopped_early() {
        bail!(
            "stopped before anything was timed; {} says so, and gets no report",
            path.display()
        );
    }
    let report = reports_dir.join(&run.run.id);
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
            settings: settings(features, &choices)?,
            slowed: 0.0,
            texts: Texts::Build,
        })
    };
    (0..1 << changes.len()).map(arm).collect()
}

/// The settings of an arm. Where a flag lacks what it needs, the error has the options.
///
/// # Errors
/// As [`Settings::resolve`].
pub(crate) fn settings(features: &Features, choices: &Choices) -> Result<Settings> {
    Settings::resolve(features, choices).map_err(|error| {
        let FlagError::Needs { choose, .. } = &error else {
            return error.into();
        };
        let options = choose.iter().map(|choice| format!("--with {choice}"));
        let options = options.collect::<Vec<_>>().join(" ");
        anyhow!("{error}; say {options}")
    })
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
            if !differ(spec, features, first, second)? {
                let texts = [first, second].iter().all(|arm| arm.texts.are_of_build());
                let hint = if texts {
                    "`cargo xtask plan --adapter` shows what is chosen"
                } else {
                    "the kernels of a token are identical, text for text; `cargo xtask kernels \
                     diff REV` shows what differs in others"
                };
                bail!(
                    "the arms {} and {} run the same shaders and the same plan on this adapter: \
                     nothing to compare; {hint}",
                    first.name,
                    second.name
                );
            }
        }
    }
    Ok(())
}

/// Whether two arms run different things in any phase.
fn differ(
    spec: &ModelSpec,
    features: &Features,
    first: &ArmSettings,
    second: &ArmSettings,
) -> Result<bool> {
    let (a, b) = (&first.settings, &second.settings);
    // These change what runs of a prompt, not what a plan has.
    if ["chunk", "reuse"]
        .into_iter()
        .any(|flag| a.get(flag) != b.get(flag))
    {
        return Ok(true);
    }
    let tokens = a.most_of_chunk();
    for phase in [Phase::Decode, Phase::Prefill { tokens, head: true }] {
        let plan = |arm: &ArmSettings| arm.making().plan(spec, features, phase);
        let (a, b) = (plan(first)?, plan(second)?);
        if a != b {
            return Ok(true);
        }
        if first.texts.are_of_build() && second.texts.are_of_build() {
            continue;
        }
        for variant in a.variants() {
            let text = |arm: &ArmSettings| arm.texts.render(variant, spec);
            if text(first)?.sha256 != text(second)?.sha256 {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Prefills, checks, warms up, measures; false where a check failed.
fn measure(
    engine: &Engine<'_>,
    request: &Request<'_>,
    compared: &Compared,
    journal: &mut JournalWriter,
) -> Result<bool> {
    let prompt = &request.prompt.ids;
    let arms = &compared.arms;
    let bar = ProgressBar::new(request.budget.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
        bar.set_style(style);
    }
    if !gate(engine, request, arms, &bar, journal)? {
        return Ok(false);
    }
    if interrupt::asked() {
        return Ok(true);
    }
    phase(&bar, "timing the prefill");
    for (arm, kind) in arms.iter().zip(request.kinds()) {
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
    let timed = Tokens {
        engine,
        request,
        compared,
        first,
    };
    blocks(&timed, request, Until::Budget, &bar, journal)?;
    // Both arms decode alike where the prompt is what differs.
    let mut passed = true;
    if request.subject.metric == Metric::Decode && !interrupt::asked() {
        phase(&bar, "sweeping the context length");
        passed = sweep(engine, request, arms, journal)?;
    }
    if passed {
        quality(engine, request, compared, &bar, journal)?;
    }
    bar.finish_and_clear();
    Ok(passed)
}
/// The journal of the next run of today.
///
/// # Errors
/// When a folder cannot be made or read.
pub fn next_journal(data_dir: &Path, reports_dir: &Path, names: &[String]) -> Result<PathBuf> {
    let id = start::next_id(data_dir, reports_dir, names)?;
    Ok(data_dir.join(format!("{id}.jsonl")))
}

/// Journal and report folders under the working folder, which need not be there.
///
/// # Errors
/// When something else has the name of one.
pub fn folders() -> Result<[PathBuf; 2]> {
    let folders = ["results/data", "reports"].map(PathBuf::from);
    for folder in &folders {
        for path in folder.ancestors() {
            if path.exists() && !path.is_dir() {
                bail!(
                    "{}: expected a folder, of records or of reports, found a file; move it away",
                    path.display()
                );
            }
        }
    }
    Ok(folders)
}
