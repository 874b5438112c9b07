//! `ab --values` with more than two values: each against the first, and the one that takes
//! the least time. What chose it was partly luck, so its time counts only where it is
//! measured again: `--publish` does, in replicates that the choice has not seen.

use super::{AbArgs, ab_text, answer, arguments, choices, command_line, published};
use crate::{
    ab::{self, ArmSettings, Change, Subject},
    device::Gpu,
    interrupt,
};
use ::kernels::{Flag, Value};
use anyhow::{Context as _, Result};
use results::{journal::AbRun, record::Candidate, stats, summary::Analysis};
use serde_json::json;
use std::time::{Duration, Instant};

/// Share of a published run's budget that the choice takes.
const SHARE: f64 = 0.2;

/// The runs of a choice as their journals tell them.
pub(super) fn candidates(runs: &[String]) -> Result<Vec<Candidate>> {
    let [data_dir, _] = ab::folders()?;
    let of = |id: &String| {
        let run = AbRun::load(&data_dir.join(format!("{id}.jsonl")))?;
        let analysis = Analysis::of(&run)?;
        let effect = (analysis.contrasts.first()).and_then(|change| change.judgement.effect);
        let effect = effect.with_context(|| format!("{id}: no complete block, no choice"))?;
        Ok(Candidate {
            name: run.run.arms[1].name.clone(),
            run: run.run.id,
            effect: effect.centre,
        })
    };
    runs.iter().map(of).collect()
}

/// The value that these runs, of all values but the first, chose.
pub(super) fn chosen(values: &[Value], runs: &[String]) -> Result<Value> {
    let all = candidates(runs)?;
    let best = Candidate::best(&all);
    let at = all.iter().position(|candidate| Some(candidate) == best);
    let value = at.and_then(|at| values.get(at + 1));
    value.copied().with_context(|| {
        format!(
            "--chosen-from: expected a run for each of {} values but the first, found {}",
            values.len(),
            runs.len()
        )
    })
}

pub(super) fn run(args: &AbArgs, flag: &'static Flag, values: &[Value]) -> Result<u8> {
    let begin = Instant::now();
    interrupt::listen();
    let outcomes = screened(args, flag, values)?;
    let correct = outcomes.iter().all(|outcome| outcome.correct);
    let complete = correct && outcomes.len() + 1 == values.len() && !interrupt::asked();
    let ids: Vec<String> = outcomes.iter().map(id).collect();
    if args.measure.publish && complete {
        for outcome in &outcomes {
            eprintln!("{}", outcome.summary.title);
        }
        return published(args, &ids, args.budget().saturating_sub(begin.elapsed()));
    }
    let all = if complete { candidates(&ids)? } else { vec![] };
    let best = Candidate::best(&all);
    let mut text: Vec<String> = (outcomes.iter()).map(ab_text).collect();
    text.push(match best {
        Some(best) => format!(
            "of {} values {} took the least time, {:+.2} %; that it looked best is partly luck, and \
             --publish measures it again",
            all.len(),
            best.name,
            stats::percent(best.effect)
        ),
        None => "no value is chosen: not every one was measured".to_owned(),
    });
    let summaries: Vec<_> = outcomes.iter().map(|outcome| &outcome.summary).collect();
    let document = json!({ "runs": summaries, "best": best.map(|best| &best.name) });
    answer(args.model.json, &document, &text.join("\n\n"))?;
    Ok(u8::from(!correct))
}

/// A screening run of each value but the first, up to one that is wrong.
fn screened(args: &AbArgs, flag: &'static Flag, values: &[Value]) -> Result<Vec<ab::Outcome>> {
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let with = choices(&args.with)?;
    let mut pairs: Vec<(Subject, Vec<ArmSettings>)> = Vec::new();
    for &value in &values[1..] {
        let change = [Change {
            flag,
            values: [values[0], value],
        }];
        let arms = ab::arms(&change, &with, &gpu.features)?;
        pairs.push((Subject::of(&change), arms));
    }
    let baseline = pairs.iter().take(1).flat_map(|(_, arms)| &arms[..1]);
    let arms = baseline.chain(pairs.iter().map(|(_, arms)| &arms[1]));
    let arms: Vec<ArmSettings> = arms.cloned().collect();
    let (source, prompt) = args.model.source(args.tokens)?;
    ab::require_difference(&source.spec, &gpu.features, &arms)?;
    let weights = args.model.read(&source)?;
    eprintln!("{}", weights.provenance().title);
    let passage = args.passage(&weights)?;
    let [data_dir, reports_dir] = ab::folders()?;
    let mut outcomes: Vec<ab::Outcome> = Vec::new();
    for (subject, arms) in pairs {
        let stop = interrupt::asked() || outcomes.iter().any(|outcome| !outcome.correct);
        if stop {
            break;
        }
        let request = ab::Request {
            subject,
            arms,
            prompt: prompt.clone(),
            tokens: args.tokens,
            budget: budget(args, values.len() - 1),
            margin: args.measure.margin(),
            seed: args.model.seed,
            command: command_line(&arguments()),
            passage: passage.clone(),
            publish: None,
            id: None,
            data_dir: &data_dir,
            reports_dir: &reports_dir,
        };
        outcomes.push(ab::run(&gpu, &weights, &request)?);
    }
    Ok(outcomes)
}

/// What each of `count` screening runs may take.
fn budget(args: &AbArgs, count: usize) -> Duration {
    if args.measure.publish {
        args.budget().mul_f64(SHARE / count as f64)
    } else {
        args.budget()
    }
}

fn id(outcome: &ab::Outcome) -> String {
    let journal = std::path::Path::new(&outcome.summary.journal);
    let stem = journal.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}
