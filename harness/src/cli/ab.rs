//! `ab`: what is compared, and the answer in lines.

pub(super) mod kernel;
mod several;

use super::{
    ModelArgs, answer, choices,
    measure::{self, CHOSEN_FROM, MeasureArgs, arguments, command_line},
    ppl::{TEXT, TEXT_NAME},
};
use crate::{
    ab::{
        self, ArmSettings, Subject,
        publish::{self, Work},
        quality::Passage,
    },
    device::Gpu,
    diff::Revision,
    engine::Texts,
    interrupt, model,
    text::{self, Text},
};
use ::kernels::{
    Flag, Value,
    flag::{Choices, Metric},
    models,
};
use anyhow::{Result, bail};
use clap::Args;
use reference::Checkpoint;
use results::{
    stats::Kind,
    summary::{ContrastSummary, PublishedSummary},
};
use std::{path::Path, rc::Rc, time::Duration};

#[derive(Debug, Args)]
pub(super) struct AbArgs {
    /// The flag to compare
    #[arg(long)]
    flag: Option<String>,
    /// Two flags: four arms, the effect of each flag and their interaction
    #[arg(
        long,
        value_name = "FLAG,FLAG",
        value_delimiter = ',',
        conflicts_with_all = ["flag", "values"]
    )]
    flags: Vec<String>,
    /// The kernels of this git revision against those of the working tree
    #[arg(
        long,
        value_name = "REV",
        group = "dispatch",
        conflicts_with_all = ["flag", "flags", "values"]
    )]
    base: Option<String>,
    /// One dispatch against another: two forms of this role
    #[arg(
        long,
        value_name = "ROLE",
        group = "dispatch",
        conflicts_with_all = ["flag", "flags", "base", "values"]
    )]
    kernel: Option<String>,
    /// With --kernel: a form of the role; twice, the baseline first
    #[arg(long, value_name = "VARIANT", requires = "kernel")]
    variant: Vec<String>,
    /// With --kernel: the place in a token, `qkv` or `lm_head` for instance; with --base:
    /// the dispatch at this place alone
    #[arg(long, value_name = "NAME", requires = "dispatch")]
    site: Option<String>,
    /// With --kernel: a matrix of this shape instead of a model's, `9216x3072`
    #[arg(long, value_name = "ROWSxK", requires = "kernel")]
    shape: Option<kernel::Shape>,
    /// Both arms' values, A then B; of more than two, each against the first, and the one
    /// that takes the least time is chosen
    #[arg(long, value_name = "A,B", requires = "flag")]
    values: Option<String>,
    /// The screening runs of all values but the first, in a process that measures the one
    /// that they chose
    #[arg(
        long,
        value_name = "RUNS",
        value_delimiter = ',',
        hide = true,
        requires = "publish"
    )]
    chosen_from: Vec<String>,
    /// Another flag, the same in every arm; repeatable
    #[arg(long = "with", value_name = "FLAG=VALUE")]
    with: Vec<String>,
    /// Tokens decoded per element
    #[arg(long, default_value_t = 16)]
    tokens: usize,
    /// Go on with a published run that was stopped
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with_all = ["flag", "flags", "base", "kernel", "values", "with", "publish"]
    )]
    resume: Option<String>,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl AbArgs {
    /// The flag or flags under test.
    fn flags(&self) -> Result<Vec<&'static Flag>> {
        if let Some(name) = &self.flag {
            return Ok(vec![Flag::find(name)?]);
        }
        let flags: Vec<&Flag> = self
            .flags
            .iter()
            .map(|name| Flag::find(name.trim()))
            .collect::<Result<_, _>>()?;
        let given = self.flags.join(",");
        let [first, second] = flags[..] else {
            bail!("--flags {given}: expected two flags, e.g. splitk,fuseqk");
        };
        if first.name == second.name {
            bail!("--flags {given}: expected two different flags");
        }
        if first.metric != second.metric {
            bail!("--flags {given}: one is judged on decode and one on prefill; test each alone");
        }
        Ok(flags)
    }

    /// Refuses what is wrong before anything is opened.
    fn require_sound(&self) -> Result<()> {
        if self.tokens < 16 {
            bail!(
                "--tokens {}: an element decodes at least 16 tokens",
                self.tokens
            );
        }
        self.measure.require_sound()
    }

    /// The text that says what a lossy flag costs, where the weights mean something and
    /// have a tokenizer.
    fn passage(&self, weights: &Checkpoint) -> Result<Option<Passage>> {
        let lossy = match &self.flag {
            Some(name) => Flag::find(name)?.lossy,
            None => false,
        };
        if !lossy || model::is_synthetic(weights) {
            return Ok(None);
        }
        let source = text::source(self.model.id(), self.model.weights.as_deref());
        let text = source.and_then(|source| Text::open(&source));
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                eprintln!("note: no quality figure, since no tokenizer can be had: {error:#}");
                return Ok(None);
            }
        };
        let ids = text.encode(TEXT, false)?;
        text.require_within(&ids, weights.spec().vocab_size)?;
        let name = TEXT_NAME.to_owned();
        Ok(Some(Passage { name, ids }))
    }

    fn budget(&self) -> Duration {
        self.measure.budget(90.0)
    }

    /// What the arms differ in, and the arms.
    fn compared(&self, gpu: &Gpu) -> Result<(Subject, Vec<ArmSettings>)> {
        let with = choices(&self.with)?;
        match &self.base {
            Some(base) => of_revision(gpu, base, &with),
            None => self.of_flags(gpu, &with),
        }
    }

    /// The arm that a published run slows.
    fn slowed(&self, baseline: &ArmSettings) -> ArmSettings {
        let share = publish::SLOWED_MARGINS * self.measure.margin().unwrap_or(ab::MARGIN);
        ArmSettings {
            name: format!("{} with {:.1} % more work", baseline.name, 100.0 * share),
            slowed: share,
            ..baseline.clone()
        }
    }

    /// The values under test, two at least; none where the flag's own are.
    fn values(&self, flag: &Flag) -> Result<Option<Vec<Value>>> {
        let Some(text) = &self.values else {
            return Ok(None);
        };
        let values: Vec<Value> = (text.split(','))
            .map(|value| flag.parse(value))
            .collect::<Result<_, _>>()?;
        if values.len() < 2 {
            bail!("--values {text}: expected two values, e.g. 0,8, or more to choose among");
        }
        for (at, value) in values.iter().enumerate() {
            if values[..at].contains(value) {
                bail!("--values {text}: {value} stands there twice; expected different values");
            }
        }
        Ok(Some(values))
    }

    fn of_flags(&self, gpu: &Gpu, with: &Choices) -> Result<(Subject, Vec<ArmSettings>)> {
        let flags = self.flags()?;
        let values = match self.values(flags[0])?.as_deref() {
            None => None,
            Some(&[a, b]) => Some([a, b]),
            Some(several) => Some([several[0], several::chosen(several, &self.chosen_from)?]),
        };
        let changes: Vec<ab::Change> = flags
            .into_iter()
            .map(|flag| ab::Change {
                flag,
                values: values.unwrap_or_else(|| flag.arms(&gpu.features)),
            })
            .collect();
        let arms = ab::arms(&changes, with, &gpu.features)?;
        Ok((Subject::of(&changes), arms))
    }
}

/// The kernels of a revision against those of this build.
fn of_revision(gpu: &Gpu, base: &str, with: &Choices) -> Result<(Subject, Vec<ArmSettings>)> {
    let revision = Revision::read(Path::new("."), base)?;
    let commit = revision.commit.get(..12).unwrap_or(&revision.commit);
    let settings = ab::settings(&gpu.features, with)?;
    let arm = |name: String, texts| ArmSettings {
        name,
        settings: settings.clone(),
        slowed: 0.0,
        texts,
    };
    let arms = vec![
        arm(
            format!("kernels of {commit}"),
            Texts::Revision(base.to_owned(), Rc::new(revision.sources)),
        ),
        arm("working tree".to_owned(), Texts::Build),
    ];
    let subject = Subject {
        names: vec!["base".to_owned()],
        metric: Metric::Decode,
        excluded: vec![],
    };
    Ok((subject, arms))
}

pub(super) fn run(args: &AbArgs) -> Result<u8> {
    if let Some(id) = &args.resume {
        let outcome = measure::resumed(id, args.measure.budget_of_resumed())?;
        return told(args.model.json, &outcome);
    }
    let names = args.flag.is_some() || !args.flags.is_empty();
    if !names && args.base.is_none() && args.kernel.is_none() {
        bail!(
            "what is to be compared? Expected --flag F (its two values), --flags F,G (two flags), \
             --base REV (the kernels of a git revision), --kernel ROLE (two forms of a dispatch) \
             or --resume RUN"
        );
    }
    args.require_sound()?;
    let [data_dir, reports_dir] = ab::folders()?;
    // Unknown names are refused before a process is started or a device opened.
    let mut several = None;
    if args.base.is_none() && args.kernel.is_none() {
        let flag = args.flags()?[0];
        let values = args.values(flag)?.filter(|values| values.len() > 2);
        several = values.map(|values| (flag, values));
    }
    choices(&args.with)?;
    models::find(args.model.id())?;
    if let Some((flag, values)) = several.filter(|_| args.chosen_from.is_empty()) {
        return several::run(args, flag, &values);
    }
    if let Some(role) = &args.kernel {
        kernel::require_sound(args, role)?;
    }
    if args.measure.publish && args.measure.journal.is_none() {
        return match (&args.base, &args.site) {
            (Some(_), None) => kernel::published_base(args),
            (Some(_), Some(_)) | (None, _) => published(args, &[], args.budget()),
        };
    }
    if let Some(role) = &args.kernel {
        return kernel::run(args, role);
    }
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let (subject, mut arms) = args.compared(&gpu)?;
    if let (Some(_), Some(site)) = (&args.base, &args.site) {
        return kernel::run_of_base(args, &gpu, arms, site);
    }
    let (source, prompt) = args.model.source(args.tokens)?;
    ab::require_difference(&source.spec, &gpu.features, &arms)?;
    if args.measure.publish {
        arms.push(args.slowed(&arms[0]));
    }
    let chosen_from = several::candidates(&args.chosen_from)?;
    let publish = args.measure.publishing(&gpu, chosen_from)?;
    let weights = args.model.read(&source)?;
    eprintln!("{}", weights.provenance().title);
    let passage = args.passage(&weights)?;
    interrupt::listen();
    let request = ab::Request {
        subject,
        arms,
        prompt,
        tokens: args.tokens,
        budget: args.budget(),
        margin: args.measure.margin(),
        seed: args.model.seed,
        command: command_line(&arguments()),
        passage,
        publish,
        id: args.measure.id(),
        data_dir: &data_dir,
        reports_dir: &reports_dir,
    };
    let part = args.measure.part(&gpu, &weights, &request, Work::Tokens)?;
    if let Some(status) = part {
        return Ok(status);
    }
    let outcome = ab::run(&gpu, &weights, &request)?;
    if args.base.is_none() || !outcome.correct {
        return told(args.model.json, &outcome);
    }
    let kernels = kernel::of_base(&gpu, &weights, &request)?;
    told_with_kernels(args, &outcome, &kernels)
}

/// Whole tokens, and each dispatch that differs.
fn told_with_kernels(args: &AbArgs, outcome: &ab::Outcome, kernels: &[ab::Outcome]) -> Result<u8> {
    let mut document = serde_json::to_value(&outcome.summary)?;
    if let Some(document) = document.as_object_mut() {
        let summaries: Vec<_> = kernels.iter().map(|k| &k.summary).collect();
        document.insert("kernels".to_owned(), serde_json::to_value(summaries)?);
    }
    let all = std::iter::once(outcome).chain(kernels);
    let texts: Vec<String> = all.clone().map(ab_text).collect();
    answer(args.model.json, &document, &texts.join("\n\n"))?;
    let correct = all.clone().all(|outcome| outcome.correct);
    Ok(u8::from(!correct))
}

/// Begins a published run, of the arm that the runs `chosen_from` chose, and measures it.
fn published(args: &AbArgs, chosen_from: &[String], budget: Duration) -> Result<u8> {
    let mut subject: Vec<String> = match (&args.base, &args.kernel) {
        (Some(_), _) => vec!["base".to_owned()],
        (None, Some(role)) => vec![role.clone()],
        (None, None) => args.flag.iter().chain(&args.flags).cloned().collect(),
    };
    subject.extend(args.site.iter().cloned());
    let words = match chosen_from {
        [] => vec![],
        runs => vec![CHOSEN_FROM.to_owned(), runs.join(",")],
    };
    let outcome = measure::published(&subject, words, budget)?;
    told(args.model.json, &outcome)
}

pub(super) fn told(json: bool, outcome: &ab::Outcome) -> Result<u8> {
    answer(json, &outcome.summary, &ab_text(outcome))?;
    Ok(u8::from(!outcome.correct))
}

fn ab_text(outcome: &ab::Outcome) -> String {
    let s = &outcome.summary;
    let mut lines = Vec::new();
    if outcome.is_synthetic() {
        lines.push("synthetic weights: times are real, the text is not".to_owned());
    }
    lines.push(format!("{}, {}", s.title, s.adapter));
    for arm in &s.arms {
        if s.metric == results::record::Metric::Dispatch {
            let us = arm.dispatch_us.map_or("-".into(), |us| format!("{us:.2}"));
            lines.push(format!("  {:<34} {us} us per dispatch", arm.name));
            continue;
        }
        lines.push(format!(
            "  {:<12} {} dispatches per token, decode {} ms per token, prefill {} ms",
            arm.name,
            arm.dispatches_per_token,
            arm.decode_ms_per_token
                .map_or("-".into(), |v| format!("{v:.2}")),
            arm.prefill_ms.map_or("-".into(), |v| format!("{v:.1}")),
        ));
    }
    for contrast in &s.contrasts {
        lines.push(contrast_text(contrast));
    }
    let verdict = s.verdict.map_or("no verdict".into(), |v| v.to_string());
    match (s.effect_pct, s.ci_pct, s.mde_pct) {
        (Some(effect), Some([low, high]), Some(mde)) => lines.push(format!(
            "{verdict} ({}): {effect:+.2} % [{low:+.2}, {high:+.2}], margin {} %, minimum \
             detectable effect {mde:.2} %, {} blocks",
            s.mode, s.margin_pct, s.blocks
        )),
        _ if s.contrasts.is_empty() => lines.push(format!(
            "{verdict} ({}), complete blocks: {}",
            s.mode, s.blocks
        )),
        _ => lines.push(format!(
            "{}, margin {} %, complete blocks: {}",
            s.mode, s.margin_pct, s.blocks
        )),
    }
    if s.contrasts.is_empty() {
        lines.push(s.reason.clone());
        lines.push(s.more_time.clone());
    }
    if let Some(quality) = &s.quality {
        let interval = quality
            .change_ci_pct
            .map_or_else(String::new, |[low, high]| {
                format!(" [{low:+.3}, {high:+.3}]")
            });
        lines.push(format!(
            "quality: perplexity {:.4} and {:.4}, {:+.3} %{interval}, over {} tokens",
            quality.perplexity[0], quality.perplexity[1], quality.change_pct, quality.tokens
        ));
    }
    lines.extend(s.published.iter().map(published_text));
    lines.push(format!(
        "checks: {} passed, {} failed",
        s.checks.passed, s.checks.failed
    ));
    lines.push(format!("report: {}", s.report));
    lines.join("\n")
}

/// One effect of an A/B of two flags.
fn contrast_text(contrast: &ContrastSummary) -> String {
    let size = match (contrast.effect_pct, contrast.ci_pct, contrast.mde_pct) {
        (Some(effect), Some([low, high]), Some(mde)) => format!(
            ": {effect:+.2} % [{low:+.2}, {high:+.2}], minimum detectable effect {mde:.2} %"
        ),
        _ => String::new(),
    };
    let what = match contrast.kind {
        Kind::Change | Kind::MainEffect => "effect of",
        Kind::Interaction => "interaction",
    };
    format!(
        "{what} {}: {}{size}; {}; {}",
        contrast.of, contrast.verdict, contrast.reason, contrast.more_time
    )
}

fn published_text(published: &PublishedSummary) -> String {
    let pct = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:+.2} %"));
    let mut text = format!(
        "{} replicates; slowed arm {} for {:.1} % more work; {} blocks broke a gate",
        published.replicates,
        pct(published.slowed_pct),
        published.slowed_work_pct,
        published.void_blocks
    );
    if let Some(then) = published.when_chosen_pct() {
        text.push_str(&format!(
            "; B read {then:+.2} % when it was chosen among {} values, on blocks that are not these",
            published.chosen_from.len()
        ));
    }
    if let Some(share) = published.pct_of_roof {
        text.push_str(&format!(
            "; A reads {share:.1} % of the roof of {:.1} GB/s",
            published.roof_gb_s
        ));
    }
    text
}
