//! The Zero-TVM workbench: every command, in one self-contained binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    harness::env::silence_wayland();
    ExitCode::from(harness::cli::Cli::read(std::env::args_os()).run())
}
