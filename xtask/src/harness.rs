//! The harness binary `zerotvm`: building it, asking it what is missing, and
//! handing the command over to it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::commands::{self, HarnessCommand};
use crate::process::{self, Failure, note};
use crate::{json, setup};

/// What a user types in front of a command. On Unix the harness is called by this name, so
/// that its help and its errors have it.
#[cfg(unix)]
const TYPED: &str = "cargo xtask";

/// The name of the harness's executable.
pub const EXECUTABLE: &str = "zerotvm";

/// The cargo arguments that build it, in the profile every command shares.
pub const BUILD: &[&str] = &["build", "--package", "harness", "--bin", EXECUTABLE];

/// Exit status of `zerotvm doctor --probe`: there is no usable adapter.
const NO_ADAPTER: u8 = 4;
/// Exit status of `zerotvm fetch --probe MODEL`: the model needs Python's pip.
const NEEDS_PIP: u8 = 5;
/// Exit statuses of `zerotvm kernels check --probe`: npm must install Tint, or
/// Node.js is missing.
const NEEDS_TINT: u8 = 6;
const NEEDS_NODE: u8 = 7;

/// What is missing for Tint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tint {
    /// Nothing.
    Ready,
    /// The npm package.
    Package,
    /// Node.js with npm.
    Node,
}

/// The harness, built.
#[derive(Debug)]
pub struct Harness {
    executable: PathBuf,
}

impl Harness {
    /// Builds the harness; cargo's progress and messages go to standard error.
    pub fn build() -> Result<Self, Failure> {
        let mut build = process::cargo();
        build
            .args(BUILD)
            .arg("--message-format=json-render-diagnostics")
            .stdout(Stdio::piped());
        let mut child = build
            .spawn()
            .map_err(|error| process::cannot_start(&build, &error))?;
        let mut executable = None;
        if let Some(messages) = child.stdout.take() {
            for line in BufReader::new(messages).lines().map_while(Result::ok) {
                executable = executable_of(&line).or(executable);
            }
        }
        let status = child
            .wait()
            .map_err(|error| process::cannot_start(&build, &error))?;
        if !status.success() {
            return Err(Failure::set_up(format!(
                "expected the harness to build, found the error above; `cargo {}` shows it again",
                BUILD.join(" ")
            )));
        }
        match executable {
            Some(executable) => Ok(Self { executable }),
            None => Err(Failure::set_up(format!(
                "expected `cargo {}` to name the executable `{EXECUTABLE}`, found no such \
                 message; check [[bin]] in harness/Cargo.toml",
                BUILD.join(" ")
            ))),
        }
    }

    /// The harness called with `args`.
    #[must_use]
    pub fn command(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(&self.executable);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::arg0(&mut command, TYPED);
        command.args(args);
        command
    }

    /// Whether the harness finds an adapter it can use.
    pub fn has_adapter(&self) -> Result<bool, Failure> {
        match self.probe(&["doctor".as_ref(), "--probe".as_ref()])? {
            0 => Ok(true),
            NO_ADAPTER => Ok(false),
            other => {
                note(&format!(
                    "expected `{EXECUTABLE} doctor --probe` to exit with 0 or {NO_ADAPTER}, found \
                     {other}; going on without set-up"
                ));
                Ok(true)
            }
        }
    }

    /// Whether fetching `model` needs Python's pip, which is not there.
    ///
    /// Any other answer is left to the command itself, which explains it better.
    pub fn needs_pip(&self, model: &OsStr) -> Result<bool, Failure> {
        let status = self.probe(&["fetch".as_ref(), "--probe".as_ref(), model])?;
        Ok(status == NEEDS_PIP)
    }

    /// What is missing for Tint. Any other answer is left to the command itself.
    pub fn tint(&self) -> Result<Tint, Failure> {
        let status = self.probe(&["kernels".as_ref(), "check".as_ref(), "--probe".as_ref()])?;
        Ok(match status {
            NEEDS_TINT => Tint::Package,
            NEEDS_NODE => Tint::Node,
            _ => Tint::Ready,
        })
    }

    /// Has npm install Tint in the workbench's cache.
    pub fn install_tint(&self) -> Result<(), Failure> {
        let mut command = self.command(["kernels", "check", "--install"]);
        command.stdout(Stdio::from(std::io::stderr()));
        match process::status(&mut command)? {
            0 => Ok(()),
            status => Err(Failure::set_up(format!(
                "expected npm to install Tint, found exit status {status} (its message is above); \
                 put that right, then run the command again"
            ))),
        }
    }

    fn probe(&self, args: &[&OsStr]) -> Result<u8, Failure> {
        let mut command = self.command(args);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        process::status(&mut command)
    }
}

/// The harness's executable, if this message of cargo names it.
fn executable_of(message: &str) -> Option<PathBuf> {
    let path = PathBuf::from(json::string_member(message, "executable")?);
    let is_ours = Path::new(&path).file_stem() == Some(OsStr::new(EXECUTABLE));
    is_ours.then_some(path)
}

/// Builds the harness, sets up what the command needs and becomes the command.
pub fn pass_through(args: &[OsString], may_set_up: bool) -> Result<u8, Failure> {
    let harness = Harness::build()?;
    if let [name, rest @ ..] = args
        && may_set_up
    {
        let command =
            HarnessCommand::find(name).ok_or_else(|| Failure::set_up(commands::unknown(name)))?;
        setup::provide(&harness, &command.needs(rest))?;
    }
    process::become_command(&mut harness.command(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_harness_is_taken_for_the_harness() {
        let message = |path: &str| format!(r#"{{"executable":"{path}","fresh":true}}"#);
        let path = "/t/debug/zerotvm";
        assert_eq!(executable_of(&message(path)), Some(path.into()));
        assert_eq!(executable_of(&message("/t/debug/xtask")), None);
        assert_eq!(executable_of(r#"{"executable":null}"#), None);
        assert_eq!(executable_of("not a message"), None);
    }
}
