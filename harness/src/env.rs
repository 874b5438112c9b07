//! The environment of the command line: where caches lie, what the user set,
//! what this machine is. The one place that reads environment variables.
#![allow(
    clippy::disallowed_methods,
    reason = "the command line is where the environment is read"
)]

use reference::fetch::Sources;
use results::record::Environment;
use std::{path::PathBuf, process::Command};

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// Starts this program again, once, with a Wayland display that is named but not
/// there; returns where that is not needed or cannot be done.
///
/// wgpu always asks Vulkan for Wayland surfaces. Mesa's device-select layer then
/// connects to the display whenever adapters are listed, and where XDG_RUNTIME_DIR
/// is not set libwayland prints an error to the terminal, which no option of wgpu
/// prevents. An absolute path in WAYLAND_DISPLAY needs no XDG_RUNTIME_DIR and fails
/// in silence. Changing a process's own environment is unsafe, a child's is not.
#[cfg(target_os = "linux")]
pub fn silence_wayland() {
    use std::os::unix::process::CommandExt as _;
    let is_absolute = |name| var(name).is_some_and(|path| path.starts_with('/'));
    if is_absolute("WAYLAND_DISPLAY") || is_absolute("XDG_RUNTIME_DIR") {
        return;
    }
    let mut words = std::env::args_os();
    if let (Ok(program), Some(name)) = (std::env::current_exe(), words.next()) {
        // Replaces the process; if it returns, a stray line is the lesser evil.
        let _ = Command::new(program)
            .arg0(name)
            .args(words)
            .env("WAYLAND_DISPLAY", "/nonexistent")
            .exec();
    }
}

/// The workbench's cache folder: `ZEROTVM_CACHE`, or the system's.
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = var("ZEROTVM_CACHE") {
        return dir.into();
    }
    let base = match std::env::consts::OS {
        "windows" => var("LOCALAPPDATA").map(PathBuf::from),
        "macos" => home().map(|h| h.join("Library/Caches")),
        _ => dot_cache(),
    };
    base.unwrap_or_else(std::env::temp_dir).join("zerotvm")
}

fn home() -> Option<PathBuf> {
    var("HOME")
        .or_else(|| var("USERPROFILE"))
        .map(PathBuf::from)
}

/// Where Python programs have their caches, on every system.
fn dot_cache() -> Option<PathBuf> {
    let named = var("XDG_CACHE_HOME").map(PathBuf::from);
    named.or_else(|| home().map(|h| h.join(".cache")))
}

/// The folder of golden data, where `ZEROTVM_GOLDEN` names one.
pub fn golden_dir() -> Option<PathBuf> {
    var("ZEROTVM_GOLDEN").map(PathBuf::from)
}

/// Where model files may come from.
pub fn sources() -> Sources {
    let hub = var("HF_HUB_CACHE").map(PathBuf::from).or_else(|| {
        let home = var("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| dot_cache().map(|c| c.join("huggingface")));
        home.map(|h| h.join("hub"))
    });
    let mlc = var("MLC_LLM_HOME").map(PathBuf::from).or_else(|| {
        let base = match std::env::consts::OS {
            "windows" => var("LOCALAPPDATA").map(PathBuf::from),
            _ => dot_cache(),
        };
        base.map(|b| b.join("mlc_llm"))
    });
    let mlc = mlc.map(|home| home.join("model_weights/hf"));
    Sources {
        hub_cache_dirs: hub.into_iter().collect(),
        mlc_cache_dirs: mlc.into_iter().collect(),
        hub_endpoint: var("HF_ENDPOINT"),
        token: var("HF_TOKEN"),
        offline: var("HF_HUB_OFFLINE").is_some_and(|v| v != "0"),
        ..Sources::new(cache_dir())
    }
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// What a record says of this machine: no user name, no path, no secret.
pub fn environment() -> Environment {
    let memory_kib = field("/proc/meminfo", "MemTotal")
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    Environment {
        os: field("/etc/os-release", "PRETTY_NAME")
            .or_else(|| {
                let text = std::fs::read_to_string("/etc/os-release").ok()?;
                let line = text.lines().find(|l| l.starts_with("PRETTY_NAME="))?;
                Some(
                    line.trim_start_matches("PRETTY_NAME=")
                        .trim_matches('"')
                        .to_owned(),
                )
            })
            .unwrap_or_else(|| std::env::consts::OS.to_owned()),
        cpu: field("/proc/cpuinfo", "model name")
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: memory_kib * 1024,
        commit: output("git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into()),
        dirty: output("git", &["status", "--porcelain", "--untracked-files=no"])
            .is_none_or(|s| !s.is_empty()),
        toolchain: format!("rust {}", env!("CARGO_PKG_RUST_VERSION")),
        runtime_checks: "bounds checks on, loop bounding off; workgroup memory not \
                         zeroed"
            .into(),
        governor: first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        power: power(),
        container: container(),
        load: load(),
    }
}

/// Average number of processes that ran in the last minute, where the system tells.
pub fn load() -> Option<f64> {
    first_line("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn first_line(file: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// `battery` where the machine runs on one, `mains` where a supply says that it does not.
fn power() -> Option<String> {
    let mut mains = false;
    for supply in std::fs::read_dir("/sys/class/power_supply").ok()?.flatten() {
        let read = |name: &str| first_line(supply.path().join(name).to_str()?);
        match (read("type").as_deref(), read("status").as_deref()) {
            (Some("Battery"), Some("Discharging")) => return Some("battery".into()),
            (Some("Mains"), _) | (Some("Battery"), Some("Charging" | "Full")) => mains = true,
            _ => {}
        }
    }
    mains.then(|| "mains".into())
}

/// The kind of container that this process runs in, where it shows.
fn container() -> Option<String> {
    if std::path::Path::new("/.dockerenv").exists() {
        return Some("docker".into());
    }
    if let Some(kind) = var("container").or_else(|| first_line("/run/systemd/container")) {
        return Some(kind);
    }
    let groups = std::fs::read_to_string("/proc/1/cgroup").ok()?;
    let known = ["kubepods", "docker", "lxc", "containerd"];
    let kind = known.into_iter().find(|kind| groups.contains(kind))?;
    Some(kind.into())
}
