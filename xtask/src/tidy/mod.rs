//! `cargo xtask tidy`: the habits of this repository as checks.
//!
//! Each finding names its rule. A rule is a pure function in [`rules`] with a
//! test in which it fires; this module finds the files and prints.

pub mod rules;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::Command;

use crate::process::{CHECK_FAILED, Failure, Screen, note};
use crate::{Outcome, json};
use rules::{Finding, RULES, SourceFile};

/// Checks every file that git knows or would take: 0 tidy, 1 not.
pub fn run(screen: &Screen) -> Result<Outcome, Failure> {
    let root = crate::root();
    let paths = list(&root)?;
    if paths.is_empty() {
        return Err(Failure::set_up(format!(
            "expected files to check in {}, found none; run it in a checkout",
            root.display()
        )));
    }
    let mut findings = rules::top_level(&paths);
    findings.extend(rules::stale_exemptions(&paths));
    for path in &paths {
        let bytes = std::fs::read(root.join(path))
            .map_err(|error| Failure::set_up(format!("expected to read {path}, found: {error}")))?;
        // What is no text has no lines to check.
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        let file = SourceFile { path, text: &text };
        for rule in RULES {
            findings.extend((rule.check)(file));
        }
        findings.extend(rules::links(file, &|target| root.join(target).exists()));
    }
    for finding in &findings {
        screen.line(&finding.to_string());
    }
    let verdict = match findings.len() {
        0 => "all tidy".to_owned(),
        1 => "1 finding".to_owned(),
        n => format!("{n} findings"),
    };
    screen.line(&format!("tidy: {} files, {verdict}", paths.len()));
    Ok(Outcome {
        status: if findings.is_empty() { 0 } else { CHECK_FAILED },
        json: vec![
            ("files", paths.len().to_string()),
            ("findings", json::array(findings.iter().map(Finding::json))),
        ],
    })
}

/// The files of the checkout, from its top, sorted, with `/` between the parts.
fn list(root: &Path) -> Result<Vec<String>, Failure> {
    let mut git = Command::new("git");
    // The checkout may belong to another user, as in a container.
    git.args(["-c", "safe.directory=*", "-C"])
        .arg(root)
        .args(["ls-files", "-z", "--cached", "--others"])
        .arg("--exclude-standard");
    let mut paths = match git.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
        Ok(_) | Err(_) => {
            note("git cannot list the files here: checking all but target/");
            let mut paths = Vec::new();
            walk(root, "", &mut paths).map_err(|error| {
                Failure::set_up(format!(
                    "expected to list {}, found: {error}; install git or put the permissions right",
                    root.display()
                ))
            })?;
            paths
        }
    };
    // A file that is deleted but not yet committed is still listed.
    paths.retain(|path| root.join(path).is_file());
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Collects the files under `folder`, but not what git and cargo keep.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            if path != "target" && path != ".git" {
                walk(root, &format!("{path}/"), paths)?;
            }
        } else if path != ".git" {
            paths.push(path);
        }
    }
    Ok(())
}
