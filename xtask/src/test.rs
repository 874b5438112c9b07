//! `cargo xtask test`: set-up, the model, then every test of the workspace.
//!
//! A test that cannot run here must not pass for one that did. Rust's test
//! runner has no word for that, so a test that must give up appends a line
//! `NAME: REASON` to the file named by [`UNRUN`] and returns; such tests, and
//! ignored ones, are listed as unrun and not counted as passed.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::TestOptions;
use crate::commands::{DEFAULT_MODEL, Needs};
use crate::harness::Harness;
use crate::process::{self, CHECK_FAILED, Failure, Screen, note};
use crate::{Outcome, json, setup};

/// The variable that names the file where tests tell that they did not run.
pub const UNRUN: &str = "ZEROTVM_UNRUN";

/// The variable that turns the slower sweeps on.
pub const ALL: &str = "ZEROTVM_TEST_ALL";

/// Runs the tests: 0 they passed, 1 one failed, 2 they could not be built or set up.
pub fn run(options: &TestOptions, may_set_up: bool, screen: &Screen) -> Result<Outcome, Failure> {
    let harness = Harness::build()?;
    if may_set_up {
        let needs = Needs {
            adapter: Some(true),
            model: Some(DEFAULT_MODEL.into()),
            // Without it a few tests are unrun, and those say so.
            tint: Some(in_ci()),
        };
        setup::provide(&harness, &needs)?;
    }
    fetch_model(&harness)?;

    let mut build = cargo_test(options, &["--no-run"]);
    if process::status(build.stdout(screen.stdio()))? != 0 {
        return Err(Failure::set_up(
            "expected the tests to build, found the error above; put that right first",
        ));
    }

    // One file per run, so that two runs at once do not mix.
    let unrun_file = std::env::temp_dir().join(format!("zerotvm-unrun-{}", std::process::id()));
    let counted = run_tests(options, &unrun_file, screen);
    let told = std::fs::read_to_string(&unrun_file).unwrap_or_default();
    // It may never have been written.
    let _ = std::fs::remove_file(&unrun_file);
    let (mut tally, status) = counted?;
    tally.add_told(&told);
    report(&tally, status, screen)
}

/// Whether nobody reads the list of unrun tests.
fn in_ci() -> bool {
    process::variable("CI").is_some_and(|value| value == "true")
}

/// Fetches the default model. Tests that need it are unrun without it, except
/// where nobody reads the list: in CI its absence is a failure.
fn fetch_model(harness: &Harness) -> Result<(), Failure> {
    let mut fetch = harness.command(["fetch", DEFAULT_MODEL]);
    let status = process::status(fetch.stdout(Stdio::from(std::io::stderr())))?;
    if status == 0 {
        return Ok(());
    }
    let message = format!(
        "expected `cargo xtask fetch {DEFAULT_MODEL}` to provide the model, found exit status \
         {status}"
    );
    if in_ci() {
        return Err(Failure::set_up(format!(
            "{message}; with CI=true every test must run: put the file into the cache"
        )));
    }
    note(&format!("{message}; the tests that need it will be unrun"));
    Ok(())
}

fn cargo_test(options: &TestOptions, before: &[&str]) -> Command {
    let mut command = process::cargo();
    command.arg("test");
    if !names_packages(&options.cargo_args) {
        command.arg("--workspace");
    }
    command.args(before).args(&options.cargo_args);
    if options.all {
        command.env(ALL, "1");
    }
    command
}

/// Whether these arguments of cargo choose packages themselves.
fn names_packages(args: &[OsString]) -> bool {
    let args = crate::commands::before_separator(args);
    args.iter()
        .filter_map(|arg| arg.to_str())
        .any(|arg| arg.starts_with("-p") || arg == "--package" || arg.starts_with("--package="))
}

/// Runs the tests, shows what they print and counts.
fn run_tests(
    options: &TestOptions,
    unrun_file: &Path,
    screen: &Screen,
) -> Result<(Tally, u8), Failure> {
    let mut command = cargo_test(options, &["--no-fail-fast"]);
    command.env(UNRUN, unrun_file).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| process::cannot_start(&command, &error))?;
    let mut tally = Tally::default();
    if let Some(output) = child.stdout.take() {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            screen.bytes(&line);
            tally.add_line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
    }
    let status = child
        .wait()
        .map_err(|error| process::cannot_start(&command, &error))?;
    Ok((tally, process::code(status)))
}

fn report(tally: &Tally, status: u8, screen: &Screen) -> Result<Outcome, Failure> {
    for Unrun { test, reason } in &tally.unrun {
        screen.line(&format!("unrun: {test}: {reason}"));
    }
    screen.line(&format!(
        "tests: {} passed, {} failed, {} unrun",
        tally.passed,
        tally.failed,
        tally.unrun.len()
    ));
    if status == 0 && tally.passed + tally.unrun.len() == 0 {
        return Err(Failure::set_up(
            "expected at least one test, found none; the filter matches no test's name",
        ));
    }
    let unrun = tally.unrun.iter().map(|Unrun { test, reason }| {
        json::object(&[
            ("test", json::string(test)),
            ("reason", json::string(reason)),
        ])
    });
    Ok(Outcome {
        status: if status == 0 { 0 } else { CHECK_FAILED },
        json: vec![
            ("passed", tally.passed.to_string()),
            ("failed", tally.failed.to_string()),
            ("unrun", json::array(unrun)),
        ],
    })
}

/// A test that did not run.
#[derive(Debug, PartialEq, Eq)]
struct Unrun {
    test: String,
    reason: String,
}

/// What the test runners said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    unrun: Vec<Unrun>,
}

impl Tally {
    /// Counts one line of a test runner's output.
    fn add_line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.passed += count(result, " passed");
            self.failed += count(result, " failed");
        } else if let Some(rest) = line.strip_prefix("test ")
            && let Some((test, reason)) = rest.split_once(" ... ignored")
        {
            let reason = reason.trim_start_matches([',', ' ']);
            let reason = if reason.is_empty() { "ignored" } else { reason };
            self.unrun.push(Unrun {
                test: test.to_owned(),
                reason: reason.to_owned(),
            });
        }
    }

    /// Takes the tests that told they did not run out of those that passed.
    fn add_told(&mut self, told: &str) {
        for line in told.lines().filter(|line| !line.trim().is_empty()) {
            // Names contain `::`, never `: `.
            let (test, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
            let unrun = Unrun {
                test: test.trim().to_owned(),
                reason: reason.trim().to_owned(),
            };
            if !self.unrun.contains(&unrun) {
                self.unrun.push(unrun);
                self.passed = self.passed.saturating_sub(1);
            }
        }
    }
}

/// The number before `label` in `ok. 3 passed; 0 failed; ...`.
fn count(result: &str, label: &str) -> usize {
    let before = result.split(label).next().unwrap_or_default();
    let digits = before.rsplit([' ', ';']).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_runners_add_up() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test a::slow ... ignored, takes minutes",
            "test a::c ... ignored",
            "test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 12 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            tally.add_line(line);
        }
        assert_eq!((tally.passed, tally.failed), (15, 4));
        let unrun: Vec<_> = tally
            .unrun
            .iter()
            .map(|unrun| (unrun.test.as_str(), unrun.reason.as_str()))
            .collect();
        assert_eq!(unrun, [("a::slow", "takes minutes"), ("a::c", "ignored")]);
    }

    #[test]
    fn a_test_that_told_it_did_not_run_has_not_passed() {
        let mut tally = Tally {
            passed: 5,
            ..Tally::default()
        };
        tally.add_told("parity::smollm2: no model: not in the cache\n\nold\nold\n");
        assert_eq!(tally.passed, 3);
        assert_eq!(tally.unrun.len(), 2);
        assert_eq!(tally.unrun[0].test, "parity::smollm2");
        assert_eq!(tally.unrun[0].reason, "no model: not in the cache");
    }

    #[test]
    fn chosen_packages_replace_the_workspace() {
        let line = |args: &[&str]| {
            let options = TestOptions {
                all: false,
                cargo_args: args.iter().map(OsString::from).collect(),
            };
            let command = cargo_test(&options, &["--no-run"]);
            let args: Vec<_> = command.get_args().filter_map(|arg| arg.to_str()).collect();
            args.join(" ")
        };
        assert_eq!(line(&[]), "test --workspace --no-run");
        assert_eq!(line(&["splitk"]), "test --workspace --no-run splitk");
        assert_eq!(line(&["-p", "kernels"]), "test --no-run -p kernels");
        assert_eq!(line(&["--", "-p"]), "test --workspace --no-run -- -p");
    }

    #[test]
    fn an_empty_selection_is_no_pass() {
        let screen = Screen::new(true);
        let failure = report(&Tally::default(), 0, &screen).expect_err("nothing ran");
        assert_eq!(failure.status, 2);
        let failed = report(&Tally::default(), 101, &screen).expect("a status");
        assert_eq!(failed.status, CHECK_FAILED);
    }
}
