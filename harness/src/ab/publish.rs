//! A published A/B: replicates, each a process of its own with a device and pipelines
//! of its own, and the looks at which their record is judged.
//!
//! One process [`prepare`]s: it compares the arms with the reference and writes down
//! what is going to be measured. Then one process after another measures a
//! [`replicate`]; [`orchestrate`] starts them, reads the record at every look and stops
//! at a verdict, at the last look or when the time is over. The journal is the only
//! thing that they share, so a run that is killed goes on where it stopped.

use super::{
    CHECK_FAILED, Compared, Outcome, Request,
    blocks::{Until, blocks},
    context,
    element::{Timed, Tokens},
    finished,
    gate::{append_checks, gate},
    kernel::{self, Placed, Site},
    quality::quality,
    require_difference,
    sentinel::Sentinel,
    start::{Run, start},
};
use crate::{
    again::{self, again},
    check,
    device::Gpu,
    engine::{Arm, Engine},
    env, interrupt,
    progress::{phase, spinner},
    roof,
    timer::Timer,
};
use anyhow::{Context as _, Result, bail, ensure};
use indicatif::ProgressBar;
use reference::Checkpoint;
use results::{
    draw::{shuffle, split_mix},
    journal::{AbRun, JournalWriter},
    record::{self, Line, Status},
    summary::Analysis,
};
use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

/// Numbers of replicates at which the record is judged.
pub const LOOKS: [u32; 3] = [5, 8, 12];
/// Two-sided error rate of each look: 5 % over all.
pub const ALPHA: f64 = 0.05 / LOOKS.len() as f64;
/// Work that the slowed arm does more, in margins.
pub const SLOWED_MARGINS: f64 = 3.0;

/// What a published run adds to a request.
#[derive(Clone, Debug)]
pub struct Publishing {
    /// The words of the command line after the program.
    pub arguments: Vec<String>,
    /// Blocks of each replicate.
    pub blocks: u32,
    /// The adapter's bounds.
    pub roof: record::Roof,
    /// The values among which arm B was chosen.
    pub chosen_from: Vec<record::Candidate>,
}

/// What a published run times.
#[derive(Clone, Copy, Debug)]
pub enum Work<'w> {
    /// Tokens, a prompt, or the prompt of a second turn.
    Tokens,
    /// The dispatches of a site.
    Dispatch(&'w Site),
}

impl Work<'_> {
    fn context(&self, weights: &Checkpoint, request: &Request<'_>) -> usize {
        match self {
            Self::Tokens => context(weights.spec(), request),
            Self::Dispatch(_) => kernel::context(request),
        }
    }
}

/// Departure of the sentinel from its median that a block may have, a log ratio: 2 %,
/// and 10 % on a CPU adapter, whose cores it shares with the system.
pub(super) fn sentinel_limit(gpu: &Gpu) -> f64 {
    let limit: f64 = if gpu.features.cpu { 1.10 } else { 1.02 };
    limit.ln()
}

/// Weight bytes that the slowed arm reads more than the baseline, as a share.
pub(super) fn slowed_share(arms: &[Arm]) -> f64 {
    let bytes = |arm: &Arm| arm.decode.plan.totals().bytes_per_token as f64;
    arms.last()
        .map_or(0.0, |slowed| bytes(slowed) / bytes(&arms[0]) - 1.0)
}

/// The adapter's bounds, for [`Publishing`].
///
/// # Errors
/// As [`roof::measure`].
pub fn measured_roof(gpu: &Gpu) -> Result<record::Roof> {
    let bar = spinner();
    let roof = roof::measure(gpu, |what| phase(&bar, what))?;
    bar.finish_and_clear();
    Ok(record::Roof {
        read_gb_s: roof.read_gb_s,
        dispatch_us: roof.dispatch_us,
    })
}

/// Compares the arms with the reference and begins the journal; false where a check
/// failed, which ends it.
///
/// # Errors
/// When the arms are the same, a device fails, or a file cannot be written.
pub fn prepare(
    gpu: &Gpu,
    weights: &Checkpoint,
    request: &Request<'_>,
    work: Work<'_>,
) -> Result<bool> {
    if matches!(work, Work::Tokens) {
        require_difference(weights.spec(), &gpu.features, &request.arms)?;
    }
    let mut engine = Engine::new(gpu, weights, work.context(weights, request), None)?;
    let compared = Compared::new(&mut engine, request)?;
    let bar = spinner();
    let (mut journal, passed) = match work {
        Work::Tokens => {
            let mut journal = start(gpu, &engine, request, &compared.arms, &Run::Tokens)?;
            let passed = gate(&engine, request, &compared.arms, &bar, &mut journal)?;
            if passed {
                quality(&engine, request, &compared, &bar, &mut journal)?;
            }
            (journal, passed)
        }
        Work::Dispatch(site) => {
            let timer = Timer::new(gpu)?;
            let placed = Placed::new(&engine, request, &compared, &timer, site, None)?;
            let run = placed.described(site);
            let mut journal = start(gpu, &engine, request, &compared.arms, &run)?;
            phase(&bar, "comparing with the reference");
            let passed = placed.checked("before all", &mut journal)?;
            (journal, passed)
        }
    };
    bar.finish_and_clear();
    if !passed {
        journal.append(&Line::End(record::End {
            status: Status::Void,
            reason: Some(CHECK_FAILED.to_owned()),
        }))?;
    }
    Ok(passed)
}

/// Measures the next replicate of a journal; false where a check failed or where it was
/// interrupted, which leaves the replicate without its end.
///
/// # Errors
/// When the kernels are not those of the run, a device fails, or a file cannot be
/// written.
pub fn replicate(
    gpu: &Gpu,
    weights: &Checkpoint,
    request: &Request<'_>,
    work: Work<'_>,
    path: &Path,
    index: u32,
) -> Result<bool> {
    let run = AbRun::load(path)?.run;
    let mut state = request.seed ^ (u64::from(index) << 32);
    let seed = split_mix(&mut state);
    let mut engine = Engine::new(gpu, weights, work.context(weights, request), None)?;
    let (compared, made) = in_drawn_order(&mut engine, request, seed)?;
    require_recorded(&engine, request, &compared, &run, work)?;
    let mut journal = JournalWriter::reopen(path)?;
    journal.append(&Line::Replicate(record::Replicate {
        index,
        seed,
        made,
        load: env::load(),
    }))?;
    let bar = ProgressBar::new_spinner();
    let replicate = Replicate {
        engine: &engine,
        request,
        compared: &compared,
        run: &run,
        index,
        seed,
        draws: [(); 2].map(|()| split_mix(&mut state)),
        bar: &bar,
    };
    let tokens = match work {
        Work::Tokens => replicate.tokens(&mut journal)?,
        Work::Dispatch(site) => replicate.dispatches(site, &mut journal)?,
    };
    let Some(tokens) = tokens else {
        return Ok(false);
    };
    bar.finish_and_clear();
    journal.append(&Line::ReplicateEnd(record::ReplicateEnd {
        index,
        tokens_sha256: (tokens.into_iter())
            .map(|(arm, tokens)| (arm, tokens_sha256(&tokens)))
            .collect(),
    }))?;
    Ok(true)
}

fn tokens_sha256(tokens: &[u32]) -> String {
    let words: Vec<String> = tokens.iter().map(u32::to_string).collect();
    generators::sha256(&words.join(" "))
}

/// The arms and the control, made in an order drawn from the seed.
fn in_drawn_order(
    engine: &mut Engine<'_>,
    request: &Request<'_>,
    seed: u64,
) -> Result<(Compared, Vec<record::Arm>)> {
    let mut order: Vec<record::Arm> = request.timed().to_vec();
    let mut state = seed;
    shuffle(&mut order, &mut state);
    let mut made = BTreeMap::new();
    for &kind in &order {
        let making = request.arms[request.number(kind)?].making();
        let arm = if kind == record::Arm::Control {
            engine.control(&making)?
        } else {
            engine.made(&making)?
        };
        made.insert(kind, arm);
    }
    let control = made.remove(&record::Arm::Control);
    let arms = request
        .kinds()
        .into_iter()
        .filter_map(|kind| made.remove(&kind));
    let compared = Compared {
        arms: arms.collect(),
        control: control.context("the control is one of the arms")?,
    };
    Ok((compared, order))
}

/// Refuses kernels that are not those of the run: the build changed since.
fn require_recorded(
    engine: &Engine<'_>,
    request: &Request<'_>,
    compared: &Compared,
    run: &record::Run,
    work: Work<'_>,
) -> Result<()> {
    for (i, arm) in compared.arms.iter().enumerate() {
        let recorded = &run.arms[i];
        let mut found = engine.shader_hashes(arm, &[&arm.decode]);
        if let Work::Dispatch(site) = work {
            let of_site = site.variants.map(|variant| variant.id());
            found.retain(|id, _| of_site.contains(id));
        }
        let other = (found.iter()).find(|(id, sha)| recorded.shaders.get(*id) != Some(*sha));
        if let Some((id, _)) = other {
            bail!(
                "the kernel {id} of arm {} is not the one that run {} began with; a run is of one \
                 build: start a new one",
                request.arms[i].name,
                run.id
            );
        }
        ensure!(
            matches!(work, Work::Dispatch(_))
                || arm.decode.plan.dispatches_per_token() == recorded.dispatches_per_token,
            "arm {} has {} dispatches per token, run {} began with {}; start a new one",
            request.arms[i].name,
            arm.decode.plan.dispatches_per_token(),
            run.id,
            recorded.dispatches_per_token
        );
    }
    Ok(())
}

/// What one replicate measures, its kernels checked before and after on the buffers that
/// it times.
struct Replicate<'r, 'e> {
    engine: &'r Engine<'e>,
    request: &'r Request<'r>,
    compared: &'r Compared,
    run: &'r record::Run,
    index: u32,
    seed: u64,
    /// What picks the layer that is checked before, and after.
    draws: [u64; 2],
    bar: &'r ProgressBar,
}

/// The tokens that each arm made; nothing where a check failed or it was interrupted.
type Made = Option<BTreeMap<record::Arm, Vec<u32>>>;

impl Replicate<'_, '_> {
    fn tokens(&self, journal: &mut JournalWriter) -> Result<Made> {
        let (engine, prompt) = (self.engine, &self.request.prompt.ids);
        let [before, after] = self.draws;
        if !self.checked("before", before, journal)? {
            return Ok(None);
        }
        for (arm, kind) in self.compared.arms.iter().zip(self.request.kinds()) {
            let wall_ns = engine.prefill_whole(&arm.prefill, prompt)?.wall_ns;
            journal.append(&Line::Prefill(record::Prefill {
                arm: kind,
                index: self.index,
                tokens: prompt.len() as u32,
                wall_ns,
            }))?;
        }
        engine.memory.snapshot(engine.gpu)?;
        let timed = Tokens {
            engine,
            request: self.request,
            compared: self.compared,
            first: engine.token()?,
        };
        let made = self.blocks(&timed, journal)?;
        if made.is_none() || !self.checked("after", after, journal)? {
            return Ok(None);
        }
        Ok(made)
    }

    fn dispatches(&self, site: &Site, journal: &mut JournalWriter) -> Result<Made> {
        let timer = Timer::new(self.engine.gpu)?;
        // The same elements as in every replicate.
        let begun = Some(self.run);
        let placed = Placed::new(
            self.engine,
            self.request,
            self.compared,
            &timer,
            site,
            begun,
        )?;
        let when = |when: &str| format!("replicate {}.{when}", self.index);
        phase(self.bar, &format!("replicate {}: checking", self.index));
        if !placed.checked(&when("before"), journal)? {
            return Ok(None);
        }
        let made = self.blocks(&placed, journal)?;
        if made.is_none() || !placed.checked(&when("after"), journal)? {
            return Ok(None);
        }
        Ok(made)
    }

    fn blocks(&self, timed: &dyn Timed, journal: &mut JournalWriter) -> Result<Made> {
        let publish = self.run.publish.as_ref();
        let sentinel = Sentinel::new(self.engine.gpu)?;
        let until = Until::Count {
            replicate: self.index,
            blocks: publish.context("not a published run")?.blocks,
            seed: self.seed,
            sentinel: &sentinel,
        };
        blocks(timed, self.request, until, self.bar, journal)
    }

    /// Compares the dispatches of a layer that `draw` picks, and those outside all layers,
    /// with the reference, for every arm and the control; false where one is off.
    fn checked(&self, when: &str, draw: u64, journal: &mut JournalWriter) -> Result<bool> {
        let prompt = &self.request.prompt.ids;
        let layers = self.engine.weights.spec().num_hidden_layers;
        let layer = format!("layers.{}.", draw % layers as u64);
        let arms = self.request.kinds().into_iter().zip(&self.compared.arms);
        let control = (record::Arm::Control, &self.compared.control);
        let mut passed = true;
        for (kind, arm) in arms.chain([control]) {
            if interrupt::asked() {
                return Ok(false);
            }
            phase(
                self.bar,
                &format!("replicate {}: checking arm {kind}", self.index),
            );
            self.engine.prefill_whole(&arm.prefill, prompt)?;
            let last = prompt.len() - 1;
            self.engine.set_token(prompt[last]);
            let mut checks = check::roles(self.engine, &arm.decode, last, |dispatch| {
                dispatch.label.starts_with(&layer) || !dispatch.label.starts_with("layers.")
            })?;
            for check in &mut checks {
                check.stage = format!("replicate {}.{when}.{}", self.index, check.stage);
            }
            passed &= checks.iter().all(|check| check.passed);
            append_checks(journal, kind, checks)?;
        }
        Ok(passed)
    }
}

/// Measures replicates in processes of their own until the record says enough or
/// `budget` is over, and writes the report.
///
/// # Errors
/// When a process fails, or the journal cannot be read.
pub fn orchestrate(path: &Path, reports_dir: &Path, budget: Duration) -> Result<Outcome> {
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    loop {
        let run = AbRun::load(path)?;
        let publish =
            run.run.publish.as_ref().with_context(|| {
                format!("{}: a screening run, which cannot go on", path.display())
            })?;
        if run.end.is_some() {
            break;
        }
        let analysis = (!run.replicates.is_empty()).then(|| Analysis::of(&run));
        let analysis = analysis.transpose()?;
        let failed = run.checks.iter().any(|check| !check.passed);
        let found = analysis.as_ref().and_then(Analysis::slowest);
        if failed || found.is_some_and(|found| found.finished) {
            end(path, failed)?;
            break;
        }
        let index = run.replicates.len() as u32;
        if interrupt::asked() || (index > 0 && begin.elapsed() + longest > budget) {
            let why = if interrupt::asked() {
                "stopped"
            } else {
                "the budget is over"
            };
            eprintln!(
                "{why} after {index} replicates; `cargo xtask ab --resume {}` goes on",
                run.run.id
            );
            break;
        }
        if let Some(found) = found {
            eprintln!(
                "{index} replicates: {}",
                found.judgement.effect.map_or_else(
                    || "no valid block yet".to_owned(),
                    |effect| format!(
                        "{:+.2} % so far, judged at {}",
                        results::stats::percent(effect.centre),
                        found.next_look.unwrap_or(index)
                    )
                )
            );
        }
        let started = Instant::now();
        let words = [
            "--replicate".to_owned(),
            index.to_string(),
            "--journal".to_owned(),
            path.display().to_string(),
        ];
        let arguments = publish.arguments.iter().chain(&words);
        let status = again::code(again(arguments)?);
        longest = longest.max(started.elapsed());
        if AbRun::load(path)?.replicates.len() as u32 > index {
            continue;
        }
        // Without its end: interrupted, a failed check, or a failure that it printed.
        match status {
            0 => interrupt::ask(),
            1 => {
                end(path, true)?;
                break;
            }
            status => bail!(
                "replicate {index} was not measured (status {status}), for the reason above; \
                 `cargo xtask ab --resume {}` goes on",
                run.run.id
            ),
        }
    }
    let correct = AbRun::load(path)?.checks.iter().all(|check| check.passed);
    finished(path, reports_dir, correct)
}

fn end(path: &Path, failed: bool) -> Result<()> {
    let (status, reason) = if failed {
        (Status::Void, Some(CHECK_FAILED.to_owned()))
    } else {
        (Status::Complete, None)
    };
    let line = Line::End(record::End { status, reason });
    Ok(JournalWriter::reopen(path)?.append(&line)?)
}
