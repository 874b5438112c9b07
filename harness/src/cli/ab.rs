//! `ab`: what is compared, and the answer in lines.

use super::{ModelArgs, answer, choices};
use crate::{ab, device::Gpu, interrupt, model};
use ::kernels::{Flag, models};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use results::{stats::Kind, summary::ContrastSummary};
use std::time::Duration;

#[derive(Debug, Args)]
pub(super) struct AbArgs {
    /// The flag to compare
    #[arg(long, required_unless_present = "flags")]
    flag: Option<String>,
    /// Two flags: four arms, the effect of each flag and their interaction
    #[arg(
        long,
        value_name = "FLAG,FLAG",
        value_delimiter = ',',
        conflicts_with_all = ["flag", "values"]
    )]
    flags: Vec<String>,
    /// Both arms' values, A then B
    #[arg(long, value_name = "A,B")]
    values: Option<String>,
    /// Another flag, the same in every arm; repeatable
    #[arg(long = "with", value_name = "FLAG=VALUE")]
    with: Vec<String>,
    /// Tokens decoded per element
    #[arg(long, default_value_t = 16)]
    tokens: usize,
    /// Seconds of measuring
    #[arg(long, default_value_t = 90.0, allow_negative_numbers = true)]
    budget: f64,
    /// Margin of the verdict in percent
    #[arg(long, default_value_t = 2.0, allow_negative_numbers = true)]
    margin: f64,
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
}

pub(super) fn run(args: &AbArgs) -> Result<u8> {
    let flags = args.flags()?;
    let with = choices(&args.with)?;
    if args.tokens < 16 {
        bail!(
            "--tokens {}: an element decodes at least 16 tokens",
            args.tokens
        );
    }
    if !(args.budget > 0.0 && args.budget <= 86_400.0) {
        bail!(
            "--budget {}: expected seconds, above 0 and up to 86400",
            args.budget
        );
    }
    if !(args.margin > 0.0 && args.margin < 100.0) {
        bail!(
            "--margin {}: expected percent, above 0 and below 100",
            args.margin
        );
    }
    let values = match &args.values {
        None => None,
        Some(text) => {
            let (a, b) = text
                .split_once(',')
                .with_context(|| format!("--values {text}: expected two values, e.g. 0,8"))?;
            Some([flags[0].parse(a)?, flags[0].parse(b)?])
        }
    };
    models::find(args.model.id())?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let changes: Vec<ab::Change> = flags
        .into_iter()
        .map(|flag| ab::Change {
            flag,
            values: values.unwrap_or_else(|| flag.arms(&gpu.features)),
        })
        .collect();
    let arms = ab::arms(&changes, &with, &gpu.features)?;
    // Weights of a named file or folder say themselves what model they are.
    if args.model.is_registered() {
        ab::require_difference(&models::find(args.model.id())?, &gpu.features, &arms)?;
    }
    let (weights, prompt) = args.model.load(args.tokens)?;
    eprintln!("{}", weights.provenance().title);
    interrupt::listen();
    let [data_dir, reports_dir] = ab::folders();
    let request = ab::Request {
        changes: &changes,
        arms,
        prompt,
        tokens: args.tokens,
        budget: Duration::from_secs_f64(args.budget),
        margin: args.margin / 100.0,
        seed: args.model.seed,
        command: command_line(),
        data_dir: &data_dir,
        reports_dir: &reports_dir,
    };
    let outcome = ab::run(&gpu, &weights, &request)?;
    answer(
        args.model.json,
        &outcome.summary,
        &ab_text(&outcome, model::is_synthetic(&weights)),
    )?;
    Ok(u8::from(!outcome.correct))
}

/// The command as a user would type it again.
fn command_line() -> String {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo xtask {}", typed.join(" "))
}

fn ab_text(outcome: &ab::Outcome, synthetic: bool) -> String {
    let s = &outcome.summary;
    let mut lines = Vec::new();
    if synthetic {
        lines.push("synthetic weights: times are real, the text is not".to_owned());
    }
    lines.push(format!("{}, {}", s.title, s.adapter));
    for arm in &s.arms {
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
            "{verdict} (screening): {effect:+.2} % [{low:+.2}, {high:+.2}], margin {} %, minimum \
             detectable effect {mde:.2} %, {} blocks",
            s.margin_pct, s.blocks
        )),
        _ if s.contrasts.is_empty() => lines.push(format!(
            "{verdict} (screening), complete blocks: {}",
            s.blocks
        )),
        _ => lines.push(format!(
            "screening, margin {} %, complete blocks: {}",
            s.margin_pct, s.blocks
        )),
    }
    if s.contrasts.is_empty() {
        lines.push(s.reason.clone());
        lines.push(s.more_time.clone());
    }
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
