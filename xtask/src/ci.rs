//! `cargo xtask ci`: every check that a change must pass, in the order in which
//! they are quick, each under a heading with its time.

use std::time::Instant;

use crate::args::TestOptions;
use crate::process::{self, CHECK_FAILED, Failure, Screen};
use crate::{Outcome, json, test, tidy};

/// A part of rustup's toolchain that a step calls through cargo.
struct Component {
    name: &'static str,
    cargo_args: &'static [&'static str],
}

const FORMATTING: Component = Component {
    name: "rustfmt",
    cargo_args: &["fmt", "--all", "--check"],
};

const CLIPPY: Component = Component {
    name: "clippy",
    cargo_args: &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
};

type Step<'a> = (&'static str, Box<dyn Fn() -> Result<u8, Failure> + 'a>);

/// Runs the steps and stops at the first that fails, with its exit status.
pub fn run(may_set_up: bool, screen: &Screen) -> Result<Outcome, Failure> {
    let steps: [Step<'_>; 4] = [
        ("formatting", Box::new(|| FORMATTING.run(screen))),
        ("tidy", Box::new(|| Ok(tidy::run(screen)?.status))),
        ("clippy", Box::new(|| CLIPPY.run(screen))),
        (
            "test",
            Box::new(|| Ok(test::run(&TestOptions::default(), may_set_up, screen)?.status)),
        ),
    ];
    let mut status = 0;
    let mut done = Vec::new();
    for (name, step) in &steps {
        screen.line(&format!("== {name}"));
        let start = Instant::now();
        status = step().unwrap_or_else(|failure| failure.show());
        let seconds = start.elapsed().as_secs_f64();
        let verdict = if status == 0 { "passed" } else { "FAILED" };
        screen.line(&format!("== {name}: {verdict} in {seconds:.1} s"));
        done.push(json::object(&[
            ("name", json::string(name)),
            ("status", status.to_string()),
            ("seconds", format!("{seconds:.3}")),
        ]));
        if status != 0 {
            break;
        }
    }
    Ok(Outcome {
        status,
        json: vec![("steps", json::array(done))],
    })
}

impl Component {
    /// Runs the check: 0 it passed, 1 it failed.
    fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        let Self { name, cargo_args } = self;
        if !process::succeeds(process::cargo().args([cargo_args[0], "--version"])) {
            return Err(Failure::set_up(format!(
                "expected the component {name} in this Rust toolchain, found none; run: rustup \
                 component add {name}"
            )));
        }
        let mut command = process::cargo();
        let status = process::status(command.args(*cargo_args).stdout(screen.stdio()))?;
        Ok(if status == 0 { 0 } else { CHECK_FAILED })
    }
}
