//! The report of an A/B run: one page and its pictures.

mod correctness;
mod readme;
mod sections;

use std::path::{Path, PathBuf};

use results::journal::AbRun;
use results::summary::{AbSummary, Analysis};

use crate::plot::{context, distribution, ratio};
use crate::{Pages, Result};

/// The picture of each contrast: of one flag the first, of two the main effects and
/// the interaction.
const RATIOS: [&str; 3] = ["ratio.svg", "ratio-2.svg", "interaction.svg"];

/// The files of a run's report by name: `README.md` and, where there are times to show,
/// `distribution.svg`, one of [`RATIOS`] for each contrast and `context.svg`. The same
/// journal gives the same bytes.
///
/// # Errors
/// The run may not be summarised ([`Analysis::of`]), or a plot cannot be drawn.
pub fn files(run: &AbRun) -> Result<Vec<(&'static str, String)>> {
    let analysis = Analysis::of(run)?;
    let summary = AbSummary::of(run, Path::new(""))?;
    let mut pictures = vec![("distribution.svg", distribution::draw(run, &analysis)?)];
    for (&file, contrast) in RATIOS.iter().zip(&analysis.contrasts) {
        pictures.push((file, ratio::draw(run, &analysis, contrast)?));
    }
    pictures.push(("context.svg", context::draw(run, &analysis)?));
    let mut files = Vec::new();
    for (name, picture) in pictures {
        files.extend(picture.map(|svg| (name, svg)));
    }
    let drawn: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    files.insert(0, ("README.md", readme::page(run, &summary, &drawn)));
    Ok(files)
}

/// Writes a run's report into `dir`, removes pictures of an earlier one, and returns the
/// paths.
///
/// # Errors
/// As [`files`], or the file system refuses.
pub fn write(run: &AbRun, dir: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Pages::default();
    let folder = dir.file_name().unwrap_or_default();
    for (name, text) in files(run)? {
        pages.add(Path::new(folder).join(name), text);
    }
    pages.write(dir.parent().unwrap_or(Path::new("")))
}
