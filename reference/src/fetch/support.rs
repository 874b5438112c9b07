//! The stamp of a verified file, and small helpers.

use super::*;

/// A remembered verification.
#[derive(PartialEq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) modified_ns: u64,
    sha256: String,
}

impl Stamp {
    pub(super) fn of(path: &Path, sha256: &str) -> io::Result<Self> {
        let info = fs::metadata(path)?;
        let since_epoch = info
            .modified()?
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Self {
            path: path.to_string_lossy().into_owned(),
            bytes: info.len(),
            modified_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
            sha256: sha256.to_owned(),
        })
    }
}

pub(super) fn pip(command: &[String], arguments: &[&str]) -> Option<Command> {
    let (program, first) = command.split_first()?;
    let mut pip = Command::new(program);
    pip.args(first).args(arguments).stdin(Stdio::null());
    Some(pip)
}

pub(super) fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The last three lines that say something, in one.
pub(super) fn last_lines(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" / ");
    last.chars().take(500).collect()
}
