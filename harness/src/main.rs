//! The Zero-TVM workbench: every command, in one self-contained binary.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(harness::cli::Cli::parse().run())
}
