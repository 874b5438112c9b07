//! The page: the answer first, then the evidence.

use results::journal::AbRun;
use results::record::Status;
use results::stats::Verdict;
use results::summary::{AbSummary, signed_pct};

use super::{correctness, sections};
use crate::text::cell;

/// The page, with the pictures that were drawn: distribution, ratio, context.
pub(super) fn page(run: &AbRun, summary: &AbSummary, pictures: &[bool; 3]) -> String {
    let sections = [
        format!("# {}\n\n{}", cell(&summary.title), answer(run, summary)),
        show(pictures, &summary.flag),
        format!("## Arms\n\n{}", sections::arms(run, summary)),
        format!("## Statistics\n\n{}", sections::statistics(summary)),
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
    let [a, b] = &run.run.arms;
    let first = match (summary.verdict, summary.effect_pct) {
        (Some(verdict), Some(effect)) => {
            let interval = summary.ci_pct.map_or_else(String::new, |[lo, hi]| {
                format!(
                    " (95 % interval {} to {})",
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
                Verdict::Inconclusive => "seems to take",
            };
            format!(
                "`{}` {word} {size} {} time per token than `{}`{interval}. **{verdict}**: {}.",
                cell(&b.name),
                summary.metric,
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

fn show(pictures: &[bool; 3], flag: &str) -> String {
    let captions = [
        (
            "distribution.svg",
            "Time per token of every element, by arm",
            "Each point is one timed element; the box spans the quartiles, its thick line is the median. The axis does not start at 0.",
        ),
        (
            "ratio.svg",
            "Change of time in each block, with interval and margin",
            "Each square is the paired change of one block, below 0 where B is faster; each triangle is the same statistic of two copies of A.",
        ),
        (
            "context.svg",
            "Time per token against context length",
            "Points are single measurements, lines join their medians. The axis does not start at 0.",
        ),
    ];
    let shown: Vec<String> = captions
        .iter()
        .zip(pictures)
        .filter(|(_, drawn)| **drawn)
        .map(|((file, alt, caption), _)| format!("![{alt}, {}]({file})\n\n{caption}\n", cell(flag)))
        .collect();
    shown.join("\n")
}
