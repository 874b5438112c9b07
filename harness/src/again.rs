//! This program again, in a process of its own: what it prints goes to standard error, so
//! that standard output keeps the answer alone.

use anyhow::{Context as _, Result};
use std::{
    ffi::OsStr,
    io,
    process::{Command, ExitStatus, Stdio},
};

/// Runs it with these arguments and waits.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn again(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<ExitStatus> {
    let this = std::env::current_exe().context("the path of this binary")?;
    let mut command = Command::new(this);
    command.args(arguments).stdout(Stdio::from(io::stderr()));
    command
        .status()
        .context("starting the process that measures")
}

/// Its exit status; that of an interrupt where a signal ended it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or(130)
}
