//! Running other programs: their exit status, where their output goes, and how
//! a failure of our own is told.

#![allow(
    clippy::disallowed_methods,
    reason = "xtask is a command line: it reads its own environment, here alone"
)]

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, ExitStatus, Stdio};

/// A check failed.
pub const CHECK_FAILED: u8 = 1;
/// Wrong usage, or something that must be set up first.
pub const SET_UP: u8 = 2;

/// Why xtask stops, and with which exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub status: u8,
    /// What was expected, what was found, what to do. Empty if it was printed already.
    pub message: String,
}

impl Failure {
    /// Something to set up or to call differently: exit status 2.
    #[must_use]
    pub fn set_up(message: impl Into<String>) -> Self {
        Self {
            status: SET_UP,
            message: message.into(),
        }
    }

    /// Prints the message on standard error and gives the exit status.
    #[must_use]
    pub fn show(&self) -> u8 {
        if !self.message.is_empty() {
            note(&self.message);
        }
        self.status
    }
}

/// Where an own command's text goes: standard output, or standard error when
/// standard output is kept for one JSON document.
#[derive(Debug)]
pub struct Screen {
    json: bool,
}

impl Screen {
    /// A screen for a command called with or without `--json`.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Prints a line.
    pub fn line(&self, text: &str) {
        if self.json {
            print_error(text);
        } else {
            print(text);
        }
    }

    /// Writes bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) {
        // A closed pipe on our output is no reason to stop a check half-way.
        let _ = if self.json {
            io::stderr().write_all(bytes)
        } else {
            io::stdout().write_all(bytes)
        };
    }

    /// The standard output of a child.
    #[must_use]
    pub fn stdio(&self) -> Stdio {
        if self.json {
            Stdio::from(io::stderr())
        } else {
            Stdio::inherit()
        }
    }
}

/// Prints a line on standard output; a closed pipe is not an error.
pub fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints a line on standard error; a closed pipe is not an error.
pub fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Tells something on standard error, in xtask's name.
pub fn note(text: &str) {
    print_error(&format!("xtask: {text}"));
}

/// An environment variable, if it is set and not empty.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The cargo that runs xtask, in the environment that it would have from a shell.
///
/// What cargo told xtask of xtask's own package is taken out: build scripts watch
/// some of these variables, so that everything behind them would be built again
/// whenever `cargo xtask` and cargo itself are called in turn.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(variable("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether `cargo run` sets this variable for the package that it runs.
fn is_of_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_")
        || name.starts_with("CARGO_MANIFEST_")
        || ["CARGO_BIN_NAME", "CARGO_CRATE_NAME", "OUT_DIR"].contains(&name)
}

/// Runs `command` to its end and gives its exit status as a shell would.
pub fn status(command: &mut Command) -> Result<u8, Failure> {
    match command.status() {
        Ok(status) => Ok(code(status)),
        Err(error) => Err(cannot_start(command, &error)),
    }
}

/// Whether `command` can be started and succeeds, without a word from it.
#[must_use]
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Becomes `command`: on Unix the process is replaced, so that an interrupt from
/// the terminal is the command's alone to handle. Elsewhere waits for it.
pub fn become_command(command: &mut Command) -> Result<u8, Failure> {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        let error = command.exec();
        Err(cannot_start(command, &error))
    }
    #[cfg(not(unix))]
    status(command)
}

/// The failure of a program that could not be started.
#[must_use]
pub fn cannot_start(command: &Command, error: &io::Error) -> Failure {
    let program = command.get_program().to_string_lossy().into_owned();
    Failure::set_up(format!(
        "expected to start `{program}`, found: {error}; check that it is installed and may be run"
    ))
}

/// An exit status as a shell gives it: the code, or 128 + n after signal n.
#[must_use]
pub fn code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return u8::try_from(128 + signal).unwrap_or(u8::MAX);
    }
    status
        .code()
        .map_or(u8::MAX, |code| u8::try_from(code).unwrap_or(u8::MAX))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn cargo_does_not_hear_of_the_package_that_calls_it() {
        // Cargo sets these for this very test.
        assert!(variable("CARGO_PKG_NAME").is_some(), "a variable to remove");
        let cargo = cargo();
        let kept: Vec<_> = cargo
            .get_envs()
            .filter(|(_, value)| value.is_some())
            .collect();
        assert_eq!(kept, [], "variables are only removed");
        let removed = |name: &str| cargo.get_envs().any(|(removed, _)| removed == name);
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(removed(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_BUILD_JOBS", "CARGO_TARGET_DIR", "PATH"] {
            assert!(!removed(name) && !is_of_package(name), "{name}");
        }
    }

    #[test]
    fn exit_codes_pass_unchanged() {
        for expected in [0, 1, 2, 3, 101, 255] {
            assert_eq!(
                i32::from(code(ExitStatus::from_raw(expected << 8))),
                expected
            );
        }
    }

    #[test]
    fn a_signal_gives_128_and_its_number() {
        assert_eq!(code(ExitStatus::from_raw(2)), 130);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        // 0x80: a core was dumped; it is no part of the number.
        assert_eq!(code(ExitStatus::from_raw(0x80 | 11)), 139);
    }

    #[test]
    fn a_missing_program_is_a_set_up_failure() {
        let failure = status(&mut Command::new("./no-such-program")).expect_err("cannot start");
        assert_eq!(failure.status, SET_UP);
        assert!(failure.message.contains("no-such-program"), "{failure:?}");
    }
}
