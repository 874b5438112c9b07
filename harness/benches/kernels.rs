//! `cargo bench`: the kernels of the default model, as `cargo xtask bench --kernels`
//! times them; arguments are those of that command.

use harness::cli::Cli;
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    // Cargo adds this to what it is given.
    let given = std::env::args_os().skip(1).filter(|arg| arg != "--bench");
    let command = ["zerotvm", "bench", "--kernels"].map(OsString::from);
    ExitCode::from(Cli::read(command.into_iter().chain(given)).run())
}
