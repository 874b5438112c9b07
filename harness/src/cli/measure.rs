//! How long and against which margin an A/B measures, and the processes of a published one:
//! the same for `ab` and for `bench --wgsl`.

use crate::{
    ab::{
        self,
        publish::{self, Work},
    },
    again::{self, again},
    device::Gpu,
    interrupt,
};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use reference::Checkpoint;
use results::record::Candidate;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

#[derive(Debug, Args)]
pub(super) struct MeasureArgs {
    /// Seconds of measuring; by default 90, of one dispatch 20, and 3600 with --publish
    #[arg(long)]
    budget: Option<f64>,
    /// Margin of the verdict in percent; by default 2, and of one dispatch twice what its
    /// A/A control reads before the run, 1 at least
    #[arg(long)]
    margin: Option<f64>,
    /// Measure for publication: replicates in processes of their own, a slowed arm, a
    /// sentinel, and looks after 5, 8 and 12 replicates
    #[arg(long)]
    pub(super) publish: bool,
    /// With --publish: blocks of each replicate
    #[arg(long, value_name = "N", default_value_t = 12, requires = "publish")]
    blocks: u32,
    /// The journal, in a process that measures a part of a published run
    #[arg(long, value_name = "FILE", hide = true, requires = "publish")]
    pub(super) journal: Option<PathBuf>,
    /// The replicate, in a process that measures one
    #[arg(long, value_name = "N", hide = true, requires = "journal")]
    replicate: Option<u32>,
}

impl MeasureArgs {
    /// Whether any of them was given.
    pub(super) const fn is_asked(&self) -> bool {
        self.publish || self.budget.is_some() || self.margin.is_some()
    }

    /// Refuses what is wrong before anything is opened.
    pub(super) fn require_sound(&self) -> Result<()> {
        if let Some(budget) = self.budget.filter(|b| !(*b > 0.0 && *b <= 86_400.0)) {
            bail!("--budget {budget}: expected seconds, above 0 and up to 86400");
        }
        if let Some(margin) = self.margin.filter(|m| !(*m > 0.0 && *m < 100.0)) {
            bail!("--margin {margin}: expected percent, above 0 and below 100");
        }
        if let Some(margin) = self.margin.filter(|m| m * publish::SLOWED_MARGINS >= 100.0)
            && self.publish
        {
            bail!(
                "--margin {margin}: a published run slows an arm by {} margins; expected below \
                 {:.0}",
                publish::SLOWED_MARGINS,
                100.0 / publish::SLOWED_MARGINS
            );
        }
        if !(2..=1000).contains(&self.blocks) {
            bail!("--blocks {}: expected 2 to 1000", self.blocks);
        }
        Ok(())
    }

    /// The time of measuring, where a run that is not published takes `screening` seconds.
    pub(super) fn budget(&self, screening: f64) -> Duration {
        let default = if self.publish { PUBLISHED_S } else { screening };
        Duration::from_secs_f64(self.budget.unwrap_or(default))
    }

    /// The same of a run that goes on.
    pub(super) fn budget_of_resumed(&self) -> Duration {
        Duration::from_secs_f64(self.budget.unwrap_or(PUBLISHED_S))
    }

    /// The margin as a fraction of the time, where one is given.
    pub(super) fn margin(&self) -> Option<f64> {
        self.margin.map(|percent| percent / 100.0)
    }

    /// What a published run adds; `chosen_from` are the values among which its arm B was
    /// chosen. It measures the roof, and so comes before the model takes the memory; a
    /// replicate has it from the journal.
    pub(super) fn publishing(
        &self,
        gpu: &Gpu,
        chosen_from: Vec<Candidate>,
    ) -> Result<Option<publish::Publishing>> {
        Ok(match (&self.journal, self.replicate) {
            (None, _) => None,
            (Some(_), None) => Some(publish::Publishing {
                arguments: arguments(),
                blocks: self.blocks,
                roof: publish::measured_roof(gpu)?,
                chosen_from,
            }),
            (Some(journal), Some(_)) => Some(recorded(journal)?),
        })
    }

    /// The id of the run, where there is a journal already.
    pub(super) fn id(&self) -> Option<String> {
        let stem = self.journal.as_deref().and_then(Path::file_stem);
        stem.map(|id| id.to_string_lossy().into_owned())
    }

    /// This process's part of a published run; nothing where it is not of one.
    pub(super) fn part(
        &self,
        gpu: &Gpu,
        weights: &Checkpoint,
        request: &ab::Request<'_>,
        work: Work<'_>,
    ) -> Result<Option<u8>> {
        let Some(journal) = &self.journal else {
            return Ok(None);
        };
        let Some(index) = self.replicate else {
            let passed = publish::prepare(gpu, weights, request, work)?;
            return Ok(Some(u8::from(!passed)));
        };
        let done = publish::replicate(gpu, weights, request, work, journal, index)?;
        // Not done and not wrong: interrupted.
        Ok(Some(u8::from(!done && !interrupt::asked())))
    }
}

/// Seconds of a published run, where nobody says.
const PUBLISHED_S: f64 = 3600.0;

/// What a journal declares.
fn recorded(journal: &Path) -> Result<publish::Publishing> {
    let run = results::journal::AbRun::load(journal)?.run;
    let declared = run.publish.context("expected a published run")?;
    Ok(publish::Publishing {
        arguments: declared.arguments,
        blocks: declared.blocks,
        roof: declared.roof,
        chosen_from: declared.chosen_from,
    })
}

/// Begins a published run of this subject, with these words behind those of the command
/// line, and measures it.
pub(super) fn published(
    subject: &[String],
    mut words: Vec<String>,
    budget: Duration,
) -> Result<ab::Outcome> {
    interrupt::listen();
    let [data_dir, reports_dir] = ab::folders()?;
    let path = ab::next_journal(&data_dir, &reports_dir, subject)?;
    words.extend(["--journal".to_owned(), path.display().to_string()]);
    let status = again::code(again(arguments().iter().chain(&words))?);
    // A journal that ended has a report, of a failed check.
    if !path.exists() || status > 1 {
        bail!("nothing was measured (status {status}); the reason is above");
    }
    publish::orchestrate(&path, &reports_dir, budget)
}

/// Goes on with a published run.
pub(super) fn resumed(id: &str, budget: Duration) -> Result<ab::Outcome> {
    let [data_dir, reports_dir] = ab::folders()?;
    let path = data_dir.join(format!("{id}.jsonl"));
    if !path.exists() {
        bail!(
            "--resume {id}: there is no {}; `ls {}` lists runs",
            path.display(),
            data_dir.display()
        );
    }
    interrupt::listen();
    publish::orchestrate(&path, &reports_dir, budget)
}

/// The words after the program, without those of a process that measures a part.
pub(super) fn arguments() -> Vec<String> {
    let typed = std::env::args().skip(1);
    typed
        .take_while(|word| word != "--journal" && word != "--replicate")
        .collect()
}

/// The option that names the runs of a choice.
pub(super) const CHOSEN_FROM: &str = "--chosen-from";

/// The command as a user would type it again, which chooses again.
pub(super) fn command_line(arguments: &[String]) -> String {
    let typed = arguments.iter().take_while(|word| *word != CHOSEN_FROM);
    let words: Vec<&str> = typed.map(String::as_str).collect();
    format!("cargo xtask {}", words.join(" "))
}
