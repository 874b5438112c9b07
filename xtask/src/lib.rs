//! The front door of the workbench: `cargo xtask COMMAND`.
//!
//! xtask depends on clap alone, so that it builds in seconds. Its own commands
//! are `test`, `ci` and `tidy`; every other one belongs to the harness binary
//! `zerotvm`, which xtask builds and then becomes. What a command needs from
//! the system is set up on the way (see [`setup`]).
//!
//! Invariants: standard output carries only what the command itself prints,
//! everything about building and set-up goes to standard error; the exit status
//! of the harness is passed on unchanged.

pub mod args;
pub mod ci;
pub mod commands;
pub mod harness;
pub mod json;
pub mod process;
pub mod setup;
pub mod test;
pub mod tidy;

use std::ffi::OsString;
use std::path::PathBuf;

use args::{Action, Cli};
use process::{Failure, Screen};

/// Runs `cargo xtask ARGS` and gives its exit status.
///
/// 0: it ran; 1: a check failed; 2: usage or set-up; 3: a regression, from the
/// harness; 128 + n: a child was killed by signal n.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match args::parse(args) {
        Ok(cli) => cli,
        Err(stop) => return stop.show(),
    };
    let screen = Screen::new(cli.json());
    let (name, outcome) = match &cli.action {
        Action::Harness(args) => {
            return match harness::pass_through(args, cli.setup) {
                Ok(status) => status,
                Err(failure) => failure.show(),
            };
        }
        Action::Test(options) => ("test", test::run(options, cli.setup, &screen)),
        Action::Ci => ("ci", ci::run(cli.setup, &screen)),
        Action::Tidy => ("tidy", tidy::run(&screen)),
    };
    finish(name, outcome, &cli)
}

/// What one of xtask's own commands came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The exit status.
    pub status: u8,
    /// The members of its JSON document beside `command` and `status`.
    pub json: Vec<(&'static str, String)>,
}

/// Prints the JSON document, if asked for, and gives the exit status.
fn finish(name: &str, outcome: Result<Outcome, Failure>, cli: &Cli) -> u8 {
    let (status, mut members) = match outcome {
        Ok(outcome) => (outcome.status, outcome.json),
        Err(failure) => {
            let error = json::string(&failure.message);
            (failure.show(), vec![("error", error)])
        }
    };
    if cli.json() {
        members.insert(0, ("status", status.to_string()));
        members.insert(0, ("command", json::string(name)));
        process::print(&json::object(&members));
    }
    status
}

/// The top of the checkout.
///
/// Cargo names the package it runs in `CARGO_MANIFEST_DIR`; the folder xtask was
/// built in stands in when the executable is started by hand.
#[must_use]
pub fn root() -> PathBuf {
    let package = process::variable("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    package.parent().map_or(package.clone(), PathBuf::from)
}
