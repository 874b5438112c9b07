//! What a command needs from the system, and how it gets there.
//!
//! A fresh Debian has neither a Vulkan driver nor pip nor Node.js. Where the user may install
//! packages without being asked for a password, xtask does it and says so;
//! everywhere else it says what to do. Nothing is installed by any other route.

use std::process::{Command, Stdio};

use crate::commands::Needs;
use crate::harness::{Harness, Tint};
use crate::process::{self, Failure, note};

/// Packages that are installed together, and why.
#[derive(Debug)]
struct Packages {
    names: &'static [&'static str],
    what: &'static str,
    missing: &'static str,
    /// What to do without apt on an operating system.
    without_apt: fn(&str) -> &'static str,
}

const VULKAN: Packages = Packages {
    names: &["mesa-vulkan-drivers", "libvulkan1"],
    what: "the Mesa software Vulkan driver and the Vulkan loader",
    missing: "no GPU adapter was found",
    without_apt: |os| match os {
        "macos" => "a Mac with Metal is needed",
        "windows" => "a DirectX 12 or Vulkan driver is needed: update the graphics driver",
        _ => {
            "a Vulkan driver and loader are needed: install them with this system's package \
             manager (often called mesa-vulkan-drivers or vulkan-swrast, and vulkan-loader)"
        }
    },
};

const PIP: Packages = Packages {
    names: &["python3-pip"],
    what: "Python's pip, the last source of the model's weights",
    missing: "the model is not in the cache and pip is not installed",
    without_apt: |_| "install Python's pip",
};

const NODE: Packages = Packages {
    names: &["nodejs", "npm", "ca-certificates"],
    what: "Node.js and npm, which bring Tint, the WGSL compiler of a browser",
    missing: "Node.js 18 or later with npm was not found",
    without_apt: |_| "install Node.js 18 or later, which brings npm: https://nodejs.org",
};

/// What bears on whether packages can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// The operating system, as `std::env::consts::OS` names it.
    pub os: &'static str,
    /// Whether `apt-get` is there.
    pub has_apt: bool,
    /// Whether this user is root.
    pub is_root: bool,
    /// Whether sudo works without a password.
    pub sudo_works: bool,
}

/// What can be done about a missing package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Install it as the user that we are, root.
    Install,
    /// Install it through sudo.
    InstallWithSudo,
    /// Tell the line to run.
    Tell,
    /// Tell what is needed; there is no apt here.
    Describe,
}

/// Decides what can be done on `machine`.
#[must_use]
pub fn remedy(machine: Machine) -> Remedy {
    if machine.os != "linux" || !machine.has_apt {
        Remedy::Describe
    } else if machine.is_root {
        Remedy::Install
    } else if machine.sudo_works {
        Remedy::InstallWithSudo
    } else {
        Remedy::Tell
    }
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn look() -> Self {
        let os = std::env::consts::OS;
        let has_apt = os == "linux" && process::succeeds(Command::new("apt-get").arg("--version"));
        let is_root = has_apt && is_root();
        let sudo_works =
            has_apt && !is_root && process::succeeds(Command::new("sudo").args(["-n", "true"]));
        Self {
            os,
            has_apt,
            is_root,
            sudo_works,
        }
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").stdin(Stdio::null()).output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Provides what a command needs, or fails with what is to be done.
pub fn provide(harness: &Harness, needs: &Needs) -> Result<(), Failure> {
    if let Some(required) = needs.adapter
        && !harness.has_adapter()?
        && let Err(failure) = install_adapter(harness)
    {
        if required {
            return Err(failure);
        }
        note(&failure.message);
    }
    if let Some(model) = &needs.model
        && harness.needs_pip(model)?
        && let Err(failure) = install(&PIP)
    {
        // The harness has a way without: it runs on synthetic weights and says so.
        note(&failure.message);
    }
    if let Some(required) = needs.tint
        && let Err(failure) = install_tint(harness)
    {
        if required {
            return Err(failure);
        }
        note(&failure.message);
    }
    Ok(())
}

/// Installs Node.js where it is missing, then Tint through npm.
fn install_tint(harness: &Harness) -> Result<(), Failure> {
    let mut missing = harness.tint()?;
    if missing == Tint::Node {
        install(&NODE)?;
        missing = harness.tint()?;
    }
    match missing {
        Tint::Ready => Ok(()),
        Tint::Package => {
            note(
                "installing Tint (the npm package webgpu) in the cache; --no-setup turns this off",
            );
            harness.install_tint()
        }
        Tint::Node => Err(Failure::set_up(format!(
            "expected Node.js 18 or later after installing {}, found an older one, or none; \
             install one from https://nodejs.org",
            NODE.names.join(" ")
        ))),
    }
}

fn install_adapter(harness: &Harness) -> Result<(), Failure> {
    install(&VULKAN)?;
    if harness.has_adapter()? {
        return Ok(());
    }
    Err(Failure::set_up(format!(
        "expected an adapter after installing {}, found none; `cargo xtask doctor` tells what \
         this machine has",
        VULKAN.names.join(" ")
    )))
}

fn install(packages: &Packages) -> Result<(), Failure> {
    let machine = Machine::look();
    let sudo = match remedy(machine) {
        Remedy::Install => false,
        Remedy::InstallWithSudo => true,
        Remedy::Tell | Remedy::Describe => {
            return Err(Failure::set_up(advice(packages, machine)));
        }
    };
    let names = packages.names.join(", ");
    note(&format!(
        "{}: installing {names} ({}); --no-setup turns this off",
        packages.missing, packages.what
    ));
    // Known packages install at once. Otherwise the package lists are missing or
    // out of date, and the second attempt shows what is wrong, if anything still is.
    if process::succeeds(&mut apt_get(sudo, install_args(packages))) {
        return Ok(());
    }
    note("the package lists are missing or out of date: running apt-get update");
    let update = run_apt_get(sudo, vec!["update"])?;
    if update != 0 {
        note(&format!("apt-get update exited with {update}"));
    }
    match run_apt_get(sudo, install_args(packages))? {
        0 => Ok(()),
        status => Err(Failure::set_up(format!(
            "expected apt-get to install {names}, found exit status {status} (its message is \
             above); put that right, then run: {}",
            line_to_run(packages)
        ))),
    }
}

fn install_args(packages: &Packages) -> Vec<&'static str> {
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(packages.names);
    args
}

/// `apt-get`, quiet, asking nothing, and patient if another one is running.
fn apt_get(sudo: bool, args: Vec<&str>) -> Command {
    let mut words = vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"];
    words.extend(["-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Use-Pty=0"]);
    words.extend(args);
    if sudo {
        words.splice(0..0, ["sudo", "-n"]);
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

fn run_apt_get(sudo: bool, args: Vec<&str>) -> Result<u8, Failure> {
    let mut command = apt_get(sudo, args);
    process::status(command.stdout(Stdio::from(std::io::stderr())))
}

fn line_to_run(packages: &Packages) -> String {
    format!(
        "sudo apt-get update && sudo apt-get install -y {}",
        packages.names.join(" ")
    )
}

/// What the user is told to do where xtask can do nothing.
fn advice(packages: &Packages, machine: Machine) -> String {
    let Packages { what, missing, .. } = packages;
    match remedy(machine) {
        Remedy::Describe => format!("{missing}; {}", (packages.without_apt)(machine.os)),
        Remedy::Tell | Remedy::Install | Remedy::InstallWithSudo => format!(
            "{missing}; expected to install {what}, found that this user may not; run: {}",
            line_to_run(packages)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Machine = Machine {
        os: "linux",
        has_apt: true,
        is_root: false,
        sudo_works: false,
    };

    #[test]
    fn the_whole_decision_table() {
        for os in ["linux", "macos", "windows", "freebsd"] {
            for bits in 0..8 {
                let machine = Machine {
                    os,
                    has_apt: bits & 1 != 0,
                    is_root: bits & 2 != 0,
                    sudo_works: bits & 4 != 0,
                };
                let expected = match (os, bits) {
                    ("linux", 1) => Remedy::Tell,
                    ("linux", 3 | 7) => Remedy::Install,
                    ("linux", 5) => Remedy::InstallWithSudo,
                    _ => Remedy::Describe,
                };
                assert_eq!(remedy(machine), expected, "{machine:?}");
            }
        }
    }

    #[test]
    fn without_rights_the_line_to_run_is_told() {
        assert!(advice(&VULKAN, USER).ends_with(
            "run: sudo apt-get update && sudo apt-get install -y mesa-vulkan-drivers libvulkan1"
        ));
        assert!(advice(&PIP, USER).ends_with("sudo apt-get install -y python3-pip"));
        assert!(advice(&NODE, USER).ends_with("install -y nodejs npm ca-certificates"));
    }

    #[test]
    fn without_apt_no_apt_line_is_told() {
        for os in ["linux", "macos", "windows", "freebsd"] {
            let machine = Machine {
                os,
                has_apt: false,
                ..USER
            };
            for packages in [&VULKAN, &PIP, &NODE] {
                let told = advice(packages, machine);
                assert!(told.starts_with(packages.missing), "{told}");
                assert!(!told.contains("apt-get"), "{told}");
            }
        }
    }

    #[test]
    fn apt_get_asks_nothing_and_waits_for_the_lock() {
        for (sudo, program) in [(false, "env"), (true, "sudo")] {
            let command = apt_get(sudo, install_args(&VULKAN));
            assert_eq!(command.get_program(), program);
            let args: Vec<_> = command.get_args().filter_map(|arg| arg.to_str()).collect();
            let line = args.join(" ");
            assert!(
                line.contains("DEBIAN_FRONTEND=noninteractive apt-get"),
                "{line}"
            );
            assert!(line.contains("-o DPkg::Lock::Timeout=120"), "{line}");
            assert!(
                line.ends_with("install -y --no-install-recommends mesa-vulkan-drivers libvulkan1")
            );
            assert_eq!(sudo, line.starts_with("-n "), "{line}");
        }
    }
}
