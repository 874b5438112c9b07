//! The report of an A/B run: one page and its pictures.

mod correctness;
mod readme;
mod sections;

use std::fs;
use std::path::{Path, PathBuf};

use results::journal::AbRun;
use results::summary::{AbSummary, Analysis};

use crate::plot::{context, distribution, ratio};
use crate::{ReportError, Result};

/// The picture of each contrast: of one flag the first, of two the main effects and
/// the interaction.
const RATIOS: [&str; 3] = ["ratio.svg", "ratio-2.svg", "interaction.svg"];

/// Writes `README.md` and, where there are times to show, `distribution.svg`,
/// one of [`RATIOS`] for each contrast and `context.svg` into `dir`, and returns their paths. The same
/// journal gives the same bytes.
///
/// # Errors
/// The run may not be summarised ([`Analysis::of`]), a plot cannot be drawn, or
/// the file system refuses.
pub fn write(run: &AbRun, dir: &Path) -> Result<Vec<PathBuf>> {
    let analysis = Analysis::of(run)?;
    let summary = AbSummary::of(run, dir)?;
    let mut pictures = vec![("distribution.svg", distribution::draw(run, &analysis)?)];
    for (at, &file) in RATIOS.iter().enumerate() {
        let picture = match analysis.contrasts.get(at) {
            Some(contrast) => ratio::draw(run, &analysis, contrast, file)?,
            None => None,
        };
        pictures.push((file, picture));
    }
    pictures.push(("context.svg", context::draw(run, &analysis)?));
    let drawn: Vec<&str> = pictures
        .iter()
        .filter(|(_, picture)| picture.is_some())
        .map(|(file, _)| *file)
        .collect();
    let page = readme::page(run, &summary, &drawn);

    fs::create_dir_all(dir).map_err(|cause| ReportError::Io {
        path: dir.to_owned(),
        action: "creating the report's folder",
        cause,
    })?;
    let mut written = vec![write_file(dir.join("README.md"), &page)?];
    for (name, picture) in pictures {
        let path = dir.join(name);
        match picture {
            Some(svg) => written.push(write_file(path, &svg)?),
            None => remove_stale(path)?,
        }
    }
    Ok(written)
}

fn write_file(path: PathBuf, text: &str) -> Result<PathBuf> {
    match fs::write(&path, text) {
        Ok(()) => Ok(path),
        Err(cause) => Err(ReportError::Io {
            path,
            action: "writing the report",
            cause,
        }),
    }
}

/// A picture of an earlier version of the report must not outlive its numbers.
fn remove_stale(path: PathBuf) -> Result<()> {
    match fs::remove_file(&path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(ReportError::Io {
            path,
            action: "removing an outdated picture",
            cause,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}
