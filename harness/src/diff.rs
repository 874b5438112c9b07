//! What a change did to the generated texts: every variant rendered from the source
//! files of a git revision and from those of this build, with the tables of this
//! build, and compared line by line.

use anyhow::{Context as _, Result, bail};
use generators::Sources;
use kernels::{ModelSpec, Variant};
use serde::Serialize;
use similar::TextDiff;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    process::{Command, Output},
};

/// The source files of a revision.
#[derive(Debug)]
pub struct Revision {
    /// As it was named.
    pub name: String,
    /// Its commit.
    pub commit: String,
    /// Its files.
    pub sources: Sources,
}

impl Revision {
    /// Reads a revision of the checkout that `folder` lies in, by git.
    ///
    /// # Errors
    /// Without git or a checkout, for a name that is no commit, and for a commit
    /// without kernels or with a template that does not parse.
    pub fn read(folder: &Path, name: &str) -> Result<Self> {
        git(folder, &["rev-parse", "--show-toplevel"])?.with_context(|| {
            format!(
                "expected a git checkout of the workbench, found none at {}; run this inside one",
                folder.display()
            )
        })?;
        let commit = format!("{name}^{{commit}}");
        let verify = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
        let verify = [verify.as_slice(), &[&commit]].concat();
        let commit = git(folder, &verify)?.with_context(|| {
            format!(
                "unknown revision `{name}`: expected a commit, branch or tag of this repository; \
                 `git log --oneline` lists commits"
            )
        })?;
        let commit = commit.trim().to_owned();
        let list = ["ls-tree", "-r", "-z", "--name-only", "--full-tree", &commit];
        let list = [list.as_slice(), &["--"], &Sources::FOLDERS].concat();
        let paths = git(folder, &list)?.context("listing the files of the revision")?;
        let mut files = BTreeMap::new();
        for path in paths.split('\0').filter(|path| !path.is_empty()) {
            let text = git(folder, &["show", &format!("{commit}:{path}")])?
                .with_context(|| format!("reading {path} of {name}"))?;
            files.insert(path.to_owned(), text);
        }
        if files.is_empty() {
            bail!(
                "{name} has no file in {}: expected a revision of the workbench",
                Sources::FOLDERS.join(" or ")
            );
        }
        let sources = Sources::new(files)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("the templates of {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            commit,
            sources,
        })
    }
}

/// What git prints; `None` where it refuses.
fn git(folder: &Path, args: &[&str]) -> Result<Option<String>> {
    let output = Command::new("git").args(args).current_dir(folder).output();
    let Output { status, stdout, .. } = output.map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            anyhow::anyhow!("git is not installed, and is needed here")
        } else {
            anyhow::Error::new(error).context("starting git")
        }
    })?;
    if !status.success() {
        return Ok(None);
    }
    let text = String::from_utf8(stdout).context("expected UTF-8 from git")?;
    Ok(Some(text))
}

/// What became of a variant's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Text {
    /// The variant's id.
    pub variant: String,
    /// What became of it.
    #[serde(flatten)]
    pub change: Change,
}

/// A difference between the texts of two source trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// None.
    Unchanged,
    /// Another text.
    Changed {
        /// Unified diff.
        diff: String,
    },
    /// The older sources make no such text, for this reason.
    Added {
        /// A file that is missing, or the template's refusal.
        reason: String,
    },
}

/// All that differs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Every text, in the order of the variants.
    pub texts: Vec<Text>,
    /// Source files of the revision that are gone, and with them what was made of
    /// them alone.
    pub removed: Vec<String>,
}

impl Report {
    /// How many texts are changed, added and unchanged.
    pub fn counts(&self) -> [usize; 3] {
        let count = |is: fn(&Change) -> bool| {
            let texts = self.texts.iter();
            texts.filter(|text| is(&text.change)).count()
        };
        [
            count(|change| matches!(change, Change::Changed { .. })),
            count(|change| matches!(change, Change::Added { .. })),
            count(|change| *change == Change::Unchanged),
        ]
    }
}

/// Compares the texts of these variants for a model.
///
/// # Errors
/// When the newer sources do not render.
pub fn compare(
    old: &Revision,
    new: &Sources,
    variants: &[Variant],
    spec: &ModelSpec,
) -> Result<Report> {
    let kept: BTreeSet<&str> = new.paths().collect();
    let gone = old.sources.paths().filter(|path| !kept.contains(path));
    let mut report = Report {
        removed: gone.map(str::to_owned).collect(),
        ..Report::default()
    };
    for &variant in variants {
        let after = generators::text(new, variant, spec)?;
        let change = match generators::text(&old.sources, variant, spec) {
            Err(error) => Change::Added {
                reason: error.to_string(),
            },
            Ok(before) if before == after => Change::Unchanged,
            Ok(before) => Change::Changed {
                diff: unified(&before, &after, &old.name, &variant.id()),
            },
        };
        report.texts.push(Text {
            variant: variant.id(),
            change,
        });
    }
    Ok(report)
}

fn unified(before: &str, after: &str, revision: &str, variant: &str) -> String {
    TextDiff::from_lines(before, after)
        .unified_diff()
        .header(
            &format!("{revision}/{variant}.wgsl"),
            &format!("{variant}.wgsl"),
        )
        .to_string()
}
