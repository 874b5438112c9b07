//! Tint, the WGSL compiler of Chromium's Dawn, asked whether a browser takes a
//! text. It refuses what naga lets through: barriers and subgroup operations in
//! flow that may differ between invocations, more bindings or workgroup memory
//! than WebGPU's default limits.
//!
//! It comes with the npm package `webgpu`, Dawn for Node, pinned with everything it
//! depends on by the lock file here, in the workbench's cache folder. Dawn's null
//! backend compiles without a GPU.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Version of the npm package.
pub const VERSION: &str = "0.6.2";
/// The oldest Node.js that runs it.
const OLDEST_NODE: u32 = 18;

const PACKAGE: &str = include_str!("package.json");
const LOCK: &str = include_str!("package-lock.json");
const SCRIPT: &str = include_str!("check.mjs");

/// Tint, ready to compile.
#[derive(Debug)]
pub struct Tint {
    folder: PathBuf,
}

/// What keeps Tint from compiling.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// Node.js or npm is not there, or too old: what was found.
    Node(String),
    /// The package is not in the cache.
    Package,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(found) => write!(
                f,
                "Tint needs Node.js {OLDEST_NODE} or later with npm, found {found}; on Debian: \
                 sudo apt-get update && sudo apt-get install -y nodejs npm ca-certificates; \
                 elsewhere: https://nodejs.org"
            ),
            Self::Package => write!(
                f,
                "the npm package webgpu {VERSION}, which holds Tint, is not in the cache; `cargo \
                 xtask kernels check --dialect browser` without --no-setup installs it there"
            ),
        }
    }
}

impl std::error::Error for Missing {}

/// A text in the browser's dialect.
#[derive(Clone, Debug, Serialize)]
pub struct Text {
    /// The text.
    pub wgsl: String,
    /// Whether it is to keep to WebGPU's default limits; otherwise it is compiled, and
    /// no pipeline is made of it.
    pub within_limits: bool,
}

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Fault {
    /// Line of the text, from 1; 0 where none is named.
    pub line: u32,
    /// Tint's message, then the notes that tell its cause.
    pub message: String,
}

impl Tint {
    /// Tint in the workbench's cache folder.
    ///
    /// # Errors
    /// What is missing.
    pub fn find(cache: &Path) -> Result<Self, Missing> {
        node()?;
        let folder = folder(cache);
        if is_installed(&folder) {
            Ok(Self { folder })
        } else {
            Err(Missing::Package)
        }
    }

    /// Tint in the workbench's cache folder, installed by npm where it is not there.
    ///
    /// # Errors
    /// When Node.js or npm is missing, npm fails, or a file cannot be written.
    pub fn install(cache: &Path) -> Result<Self> {
        node()?;
        let folder = folder(cache);
        if is_installed(&folder) {
            return Ok(Self { folder });
        }
        // Made beside its place and moved there whole, so that what is cut is never used.
        let unfinished = folder.with_extension(format!("unfinished-{}", std::process::id()));
        let made = make(&unfinished).and_then(|()| {
            // Another run may have been quicker; then its folder is as good.
            match fs::rename(&unfinished, &folder) {
                Err(error) if !is_installed(&folder) => {
                    Err(error).with_context(|| format!("writing {}", folder.display()))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        });
        // Not there where it was moved.
        let _ = fs::remove_dir_all(&unfinished);
        made?;
        Ok(Self { folder })
    }

    /// Compiles texts; for each the reasons to refuse it,
    /// none where it is taken.
    ///
    /// # Errors
    /// When Node.js cannot run the script.
    pub fn compile(&self, texts: &[Text]) -> Result<Vec<Vec<Fault>>> {
        let input = serde_json::to_vec(texts)?;
        let mut output = self.run(&input)?;
        // Dawn's own threads crash now and then on a busy machine, which says nothing of
        // the texts; a text that crashes it does so again.
        if output.status.code().is_none() {
            output = self.run(&input)?;
        }
        let faults = answer(&output)?;
        if faults.len() != texts.len() {
            bail!(
                "expected Tint's answer to {} texts, found {}",
                texts.len(),
                faults.len()
            );
        }
        Ok(faults)
    }

    fn run(&self, input: &[u8]) -> Result<Output> {
        let mut child = Command::new("node")
            .args(["--input-type=module", "--eval", SCRIPT])
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting node")?;
        if let Some(mut stdin) = child.stdin.take() {
            // If it ended early, its status and its errors say why.
            let _ = stdin.write_all(input);
        }
        child.wait_with_output().context("running node")
    }
}

fn answer(output: &Output) -> Result<Vec<Vec<Fault>>> {
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("Tint did not run ({}): {}", output.status, errors.trim());
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("expected Tint's answer; it also said: {}", errors.trim()))
}

fn folder(cache: &Path) -> PathBuf {
    cache.join(format!("tint-webgpu-{VERSION}"))
}

/// Whether npm finished here: it writes this list last.
fn is_installed(folder: &Path) -> bool {
    folder.join("node_modules/.package-lock.json").is_file()
}

/// A folder with the packages of the lock file, verified by their SHA-512.
fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, text) in [("package.json", PACKAGE), ("package-lock.json", LOCK)] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    let output = Command::new(npm())
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .context("starting npm")?;
    if !output.status.success() {
        bail!(
            "npm could not install webgpu {VERSION} ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

const fn npm() -> &'static str {
    if cfg!(windows) { "npm.cmd" } else { "npm" }
}

/// Whether Node.js and npm are here, and new enough.
fn node() -> Result<(), Missing> {
    let version = |program: &str| {
        let output = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(node) = version("node") else {
        return Err(Missing::Node("no node".into()));
    };
    if major(&node).is_none_or(|major| major < OLDEST_NODE) {
        return Err(Missing::Node(format!("node {node}")));
    }
    if version(npm()).is_none() {
        return Err(Missing::Node(format!("node {node} without npm")));
    }
    Ok(())
}

/// The first number of `v18.20.4`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_pins_the_version() {
        for text in [PACKAGE, LOCK] {
            let document: serde_json::Value = serde_json::from_str(text).expect("JSON");
            let of_package = document["dependencies"]["webgpu"].as_str();
            let of_lock = document["packages"]["node_modules/webgpu"]["version"].as_str();
            assert_eq!(of_package.or(of_lock), Some(VERSION), "{text}");
        }
        let lock: serde_json::Value = serde_json::from_str(LOCK).expect("JSON");
        for (name, package) in lock["packages"].as_object().expect("packages") {
            let integrity = package["integrity"].as_str();
            let verified = integrity.is_some_and(|hash| hash.starts_with("sha512-"));
            assert!(name.is_empty() || verified, "{name} is verified");
        }
    }

    #[test]
    fn versions_of_node_are_read() {
        assert_eq!(major("v18.20.4"), Some(18), "Debian 12");
        assert_eq!(major("v9.0.0"), Some(9), "one digit");
        assert_eq!(major("node"), None, "something else");
    }

    #[test]
    fn an_empty_cache_has_no_tint() {
        let cache = tempfile::tempdir().expect("a folder");
        let missing = Tint::find(cache.path()).expect_err("an empty folder");
        let text = missing.to_string();
        assert!(
            text.contains("nodejs npm") || text.contains("is not in the cache"),
            "{text}"
        );
    }
}
