//! The page: the answer first, then the evidence.

use results::journal::AbRun;
use results::record::{Arm, Metric, Status};
use results::stats::{Kind, Verdict};
use results::summary::{AbSummary, ContrastSummary, signed_pct};

use super::{correctness, sections};
use crate::text::cell;

/// The page, with the pictures that were drawn.
pub(super) fn page(run: &AbRun, summary: &AbSummary, pictures: &[&str]) -> String {
    let sections = [
        format!("# {}\n\n{}", cell(&summary.title), answer(run, summary)),
        show(pictures, summary),
        format!("## Arms\n\n{}", sections::arms(run, summary)),
        format!("## Statistics\n\n{}", sections::statistics(summary)),
        sections::published(summary),
        format!("## Correctness\n\n{}", correctness::table(&run.checks)),
        format!("## Environment\n\n{}", sections::environment(run)),
        format!("## Shaders\n\n{}", sections::shaders(run)),
        format!("## How to reproduce\n\n{}", sections::reproduce(run)),
        format!("## Notes and limits\n\n{}", sections::notes(summary)),
    ];
    let shown: Vec<String> = sections.into_iter().filter(|s| !s.is_empty()).collect();
    shown.join("\n")
}

/// Two lines in plain words.
fn answer(run: &AbRun, summary: &AbSummary) -> String {
    let (a, b) = (run.run.plan(Arm::A), run.run.plan(Arm::B));
    let first = match (summary.verdict, summary.effect_pct) {
        _ if !summary.contrasts.is_empty() => {
            let level = sections::level(summary);
            let told = |contrast| of_two_flags(contrast, &level);
            let contrasts: Vec<String> = summary.contrasts.iter().map(told).collect();
            contrasts.join("  \n")
        }
        (Some(verdict), Some(effect)) => {
            let interval = summary.ci_pct.map_or_else(String::new, |[lo, hi]| {
                format!(
                    " ({} % interval {} to {})",
                    sections::level(summary),
                    signed_pct(lo, 2),
                    signed_pct(hi, 2)
                )
            });
            let size = if effect < 0.0 {
                format!("{:.2} % less", -effect)
            } else {
                format!("{effect:.2} % more")
            };
            let word = match verdict {
                Verdict::Faster | Verdict::Slower | Verdict::Equivalent => "takes",
                Verdict::Inconclusive | Verdict::Invalid => "seems to take",
            };
            format!(
                "`{}` {word} {size} {} than `{}`{interval}. **{verdict}**: {}.",
                cell(&b.name),
                match summary.metric {
                    Metric::Dispatch => "time per dispatch".to_owned(),
                    metric @ (Metric::Decode | Metric::Prefill | Metric::SecondTurn) => {
                        format!("{metric} time per token")
                    }
                },
                cell(&a.name),
                cell(&summary.reason)
            )
        }
        (Some(verdict), None) => format!("**{verdict}**: {}.", cell(&summary.reason)),
        (None, _) => format!("**No times are given**: {}.", cell(&summary.reason)),
    };
    let ended = match run.status() {
        Status::Complete => String::new(),
        Status::Interrupted => " The run was interrupted; what it recorded stands.".to_owned(),
        Status::Void => " The run is void.".to_owned(),
    };
    let checks = summary.checks;
    format!(
        "{first}  \n{} of {} correctness checks passed; {} blocks on {}.{ended}\n",
        checks.passed,
        checks.passed + checks.failed,
        summary.blocks,
        cell(&summary.adapter)
    )
}

/// One effect of two flags in plain words.
fn of_two_flags(contrast: &ContrastSummary, level: &str) -> String {
    let size = contrast.effect_pct.map_or_else(String::new, |effect| {
        let interval = contrast.ci_pct.map_or_else(String::new, |[lo, hi]| {
            let (lo, hi) = (signed_pct(lo, 2), signed_pct(hi, 2));
            format!(" ({level} % interval {lo} to {hi})")
        });
        format!(" {}{interval}", signed_pct(effect, 2))
    });
    let (of, reason) = (cell(&contrast.of), cell(&contrast.reason));
    let what = match contrast.kind {
        Kind::Change | Kind::MainEffect => "whatever the other flag, time changes by",
        Kind::Interaction => {
            "beyond the product of each change alone, both together change time by"
        }
    };
    format!("`{of}`: {what}{size}. **{}**: {reason}.", contrast.verdict)
}

fn show(pictures: &[&str], summary: &AbSummary) -> String {
    let two_flags = "Each square is what one block says, below 0 where time is saved; each triangle is the same of two copies of A.";
    let ratio = match &summary.contrasts[..] {
        [] => {
            "Each square is the paired change of one block, below 0 where B is faster; each triangle is the same statistic of two copies of A."
        }
        _ => two_flags,
    };
    let captions = [
        (
            "distribution.svg",
            "Time of every element, by arm",
            "Each point is one timed element; the box spans the quartiles, its thick line is the median. The axis does not start at 0.",
        ),
        (
            "ratio.svg",
            "Change of time in each block, with interval and margin",
            ratio,
        ),
        (
            "ratio-2.svg",
            "Change of time by the second flag in each block, with interval and margin",
            two_flags,
        ),
        (
            "interaction.svg",
            "Interaction in each block, with interval and margin",
            "Each square is what one block says, below 0 where both changes together save more than the product of each alone; each triangle is the same of two copies of A.",
        ),
        (
            "context.svg",
            "Time per token against context length",
            "Points are single measurements, lines join their medians. Lengths at which two times of one arm differ by more than a quarter are left out: the clock was still rising. The axis does not start at 0.",
        ),
    ];
    let shown: Vec<String> = captions
        .iter()
        .filter(|(file, ..)| pictures.contains(file))
        .map(|(file, alt, caption)| {
            format!("![{alt}, {}]({file})\n\n{caption}\n", cell(&summary.flag))
        })
        .collect();
    shown.join("\n")
}
