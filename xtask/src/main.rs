//! `cargo xtask`: builds the harness and runs its commands, and does the
//! project's chores. See the library for the parts.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(xtask::run(std::env::args_os().skip(1)))
}
