//! The whole of xtask against stand-ins for cargo, the harness, apt-get, sudo
//! and id: what is called, in which order, and with which exit status it ends.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Every stand-in writes how it was called to `log`. Files in its folder set
/// the scene: `adapter`, `pip`, `node`, `tint`, `root`, `sudo-ok`, `stale` (package lists).
const STAND_INS: &[(&str, &str)] = &[
    (
        "cargo",
        r#"echo '{"reason":"compiler-artifact","executable":"'"$SCENE"'/zerotvm"}'
[ "$1 $2" = "test --workspace" ] || exit ${CARGO_STATUS:-0}
[ "$3" = --no-run ] && exit ${NO_RUN_STATUS:-0}
echo "sweep: no such device" > "$ZEROTVM_UNRUN"
echo "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
exit ${TEST_STATUS:-0}"#,
    ),
    (
        "zerotvm",
        r#"case "$1 $2" in
"doctor --probe") [ -e "$SCENE/adapter" ] || exit 4; exit 0 ;;
"fetch --probe") [ -e "$SCENE/pip" ] || exit 5; exit 0 ;;
esac
case "$*" in
"kernels check --probe")
    [ -e "$SCENE/node" ] || exit 7
    [ -e "$SCENE/tint" ] || exit 6
    exit 0 ;;
"kernels check --install")
    [ -z "$NPM_STATUS" ] || exit $NPM_STATUS
    echo "npm talks"
    : > "$SCENE/tint"
    exit 0 ;;
esac
[ "$1" = fetch ] && exit ${FETCH_STATUS:-0}
[ -n "$SIGNAL" ] && kill -$SIGNAL $$
echo "harness: $*"
exit ${STATUS:-0}"#,
    ),
    (
        "apt-get",
        r#"case "$*" in
--version) ;;
*update) : > "$SCENE/updated" ;;
*install*)
    [ -e "$SCENE/broken" ] && exit 100
    [ -e "$SCENE/stale" ] && ! [ -e "$SCENE/updated" ] && exit 100
    case "$*" in
    *mesa-vulkan-drivers*) : > "$SCENE/adapter" ;;
    *python3-pip*) : > "$SCENE/pip" ;;
    *nodejs*) [ -e "$SCENE/old-node" ] || : > "$SCENE/node" ;;
    esac
    echo "apt-get talks" ;;
esac"#,
    ),
    ("id", r#"[ -e "$SCENE/root" ] && echo 0 || echo 1000"#),
    (
        "sudo",
        r#"[ -e "$SCENE/sudo-ok" ] || exit 1
shift
exec "$@""#,
    ),
    ("env", r#"export "$1"; shift; exec "$@""#),
    ("true", ""),
];

struct Scene {
    folder: PathBuf,
}

struct Ended {
    status: i32,
    stdout: String,
    stderr: String,
    /// The programs called, each with its arguments, but those that only look.
    calls: Vec<String>,
}

impl Scene {
    fn new(name: &str, files: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // It is left over from an earlier run, or not there.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        for (name, script) in STAND_INS {
            let path = folder.join(name);
            let log = r#"echo "${0##*/} $*" >> "$SCENE/log""#;
            fs::write(&path, format!("#!/bin/sh\n{log}\n{script}\n")).expect("a stand-in");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        for file in files {
            fs::write(folder.join(file), "").expect("a scene");
        }
        Self { folder }
    }

    fn without(self, program: &str) -> Self {
        fs::remove_file(self.folder.join(program)).expect("a stand-in");
        self
    }

    fn run(&self, line: &str) -> Ended {
        self.run_with(line, &[])
    }

    fn run_with(&self, line: &str, variables: &[(&str, &str)]) -> Ended {
        // It is there if something ran before.
        let _ = fs::remove_file(self.folder.join("log"));
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(line.split_whitespace())
            .env_remove("CI")
            .env("CARGO", self.folder.join("cargo"))
            .env("PATH", &self.folder)
            .env("SCENE", &self.folder)
            .envs(variables.iter().copied())
            .output()
            .expect("xtask starts");
        self.ended(&output)
    }

    fn ended(&self, output: &Output) -> Ended {
        use std::os::unix::process::ExitStatusExt as _;
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let looks = ["apt-get --version", "id -u", "sudo -n true", "true "];
        let calls = log.lines().filter(|call| !looks.contains(call));
        let status = output.status;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended {
            status: status
                .code()
                .or(status.signal().map(|signal| 128 + signal))
                .expect("it ended"),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            calls: calls.map(str::to_owned).collect(),
        }
    }
}

impl Ended {
    fn called(&self, part: &str) -> usize {
        self.calls.iter().filter(|call| call.contains(part)).count()
    }
}

const BUILD: &str =
    "cargo build --package harness --bin zerotvm --message-format=json-render-diagnostics";

#[test]
fn a_ready_machine_runs_the_harness_and_installs_nothing() {
    let scene = Scene::new("ready", &["adapter", "pip"]);
    let ended = scene.run("ab --flag splitk --json");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout, "harness: ab --flag splitk --json\n");
    assert_eq!(ended.stderr, "");
    let expected = [
        BUILD,
        "zerotvm doctor --probe",
        "zerotvm fetch --probe smollm2-135m",
        "zerotvm ab --flag splitk --json",
    ];
    assert_eq!(ended.calls, expected);
}

#[test]
fn the_exit_status_of_the_harness_passes_unchanged() {
    let scene = Scene::new("status", &["adapter", "pip"]);
    for status in ["0", "1", "2", "3"] {
        let ended = scene.run_with("check", &[("STATUS", status)]);
        assert_eq!(ended.status.to_string(), status);
    }
    assert_eq!(scene.run_with("check", &[("SIGNAL", "KILL")]).status, 137);
}

#[test]
fn root_gets_driver_and_pip_installed() {
    let scene = Scene::new("root", &["root"]);
    let ended = scene.run("ab");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout, "harness: ab\n");
    assert!(
        ended
            .stderr
            .contains("installing mesa-vulkan-drivers, libvulkan1")
    );
    assert!(ended.stderr.contains("installing python3-pip"));
    assert_eq!(ended.called("apt-get -qq"), 4, "{:?}", ended.calls);
    assert_eq!(ended.called("update"), 0, "{:?}", ended.calls);
    assert_eq!(ended.called("sudo"), 0, "{:?}", ended.calls);
}

#[test]
fn stale_package_lists_are_updated_once() {
    let scene = Scene::new("stale", &["sudo-ok", "stale", "pip"]);
    let ended = scene.run("check");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout, "harness: check\n", "apt-get talks elsewhere");
    let apt: Vec<&String> = ended
        .calls
        .iter()
        .filter(|call| call.starts_with("apt-get"))
        .collect();
    let words: Vec<bool> = apt.iter().map(|call| call.ends_with("update")).collect();
    assert_eq!(words, [false, true, false], "{apt:?}");
    assert_eq!(
        ended.called("sudo -n env DEBIAN_FRONTEND=noninteractive"),
        3
    );
}

#[test]
fn a_failed_installation_says_what_to_do() {
    let scene = Scene::new("broken", &["root", "broken"]);
    let ended = scene.run("ab");
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("found exit status 100"),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.called("zerotvm ab"), 0);
}

#[test]
fn a_user_who_may_not_install_is_told_the_line() {
    let line =
        "run: sudo apt-get update && sudo apt-get install -y mesa-vulkan-drivers libvulkan1\n";
    let scene = Scene::new("user", &["pip"]);
    let ended = scene.run("ab --json");
    assert_eq!(ended.status, 2);
    assert!(ended.stderr.ends_with(line), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    assert_eq!(ended.called("zerotvm ab"), 0);

    let ended = scene.run("doctor");
    assert_eq!(ended.status, 0, "doctor runs all the same");
    assert_eq!(ended.stdout, "harness: doctor\n");
    assert!(ended.stderr.ends_with(line), "{}", ended.stderr);
}

#[test]
fn without_apt_it_says_what_is_needed() {
    let scene = Scene::new("no-apt", &["root"]).without("apt-get");
    let ended = scene.run("check");
    assert_eq!(ended.status, 2);
    assert!(
        ended
            .stderr
            .contains("a Vulkan driver and loader are needed")
    );
}

#[test]
fn missing_pip_is_a_note() {
    let scene = Scene::new("no-pip", &["adapter"]);
    for line in ["ab", "fetch smollm2-135m"] {
        let ended = scene.run(line);
        assert!(ended.stderr.contains("install -y python3-pip"), "{line}");
        assert_eq!(ended.status, 0, "{line}: the harness has the last word");
    }
}

#[test]
fn the_browsers_dialect_gets_node_and_tint_installed() {
    let scene = Scene::new("tint", &["root"]);
    let ended = scene.run("kernels check --dialect browser");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let told = &ended.stderr;
    assert!(
        told.contains("installing nodejs, npm, ca-certificates"),
        "{told}"
    );
    assert!(told.contains("installing Tint"), "{told}");
    assert_eq!(ended.stdout, "harness: kernels check --dialect browser\n");
    let again = scene.run("kernels check --dialect browser");
    let expected = [
        BUILD,
        "zerotvm kernels check --probe",
        "zerotvm kernels check --dialect browser",
    ];
    assert_eq!(again.calls, expected, "everything is there");

    let native = scene.run("kernels check --dialect native");
    assert_eq!(native.called("--probe"), 0, "naga is built in");
}

#[test]
fn without_tint_the_check_is_status_2_and_the_tests_are_unrun_but_in_ci() {
    let old = Scene::new("old-node", &["root", "old-node", "adapter", "pip"]);
    let ended = old.run("kernels check");
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("https://nodejs.org"),
        "{}",
        ended.stderr
    );
    let npm = Scene::new("npm", &["root", "node", "adapter", "pip"]);
    let ended = npm.run_with("kernels check", &[("NPM_STATUS", "2")]);
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("found exit status 2"),
        "{}",
        ended.stderr
    );
    for scene in [old, npm] {
        let variables = [("NPM_STATUS", "2")];
        assert_eq!(scene.run_with("test", &variables).status, 0, "unrun");
        let variables = [("NPM_STATUS", "2"), ("CI", "true")];
        assert_eq!(scene.run_with("test", &variables).status, 2, "CI");
    }
}

#[test]
fn no_setup_asks_nothing_and_is_not_passed_on() {
    let scene = Scene::new("no-setup", &["root"]);
    let ended = scene.run("ab --no-setup --flag splitk");
    assert_eq!(ended.calls, [BUILD, "zerotvm ab --flag splitk"]);
}

#[test]
fn commands_without_a_device_ask_nothing() {
    let scene = Scene::new("no-device", &["root"]);
    for line in ["plan --model phi3-mini", "report", "ab --help"] {
        let ended = scene.run(line);
        assert_eq!(ended.calls, [BUILD.to_owned(), format!("zerotvm {line}")]);
    }
}

#[test]
fn a_harness_that_does_not_build_is_status_2() {
    let scene = Scene::new("no-build", &["adapter"]);
    let ended = scene.run_with("ab", &[("CARGO_STATUS", "101")]);
    assert_eq!(ended.status, 2);
    assert!(ended.stderr.contains("expected the harness to build"));
}

#[test]
fn an_unknown_command_builds_nothing() {
    let scene = Scene::new("unknown", &[]);
    let ended = scene.run("abb");
    assert_eq!(ended.status, 2);
    assert!(
        ended.stderr.contains("did you mean `ab`?"),
        "{}",
        ended.stderr
    );
    assert!(ended.calls.is_empty());
}

#[test]
fn test_sets_up_fetches_builds_and_runs() {
    let scene = Scene::new("test", &["root"]);
    let ended = scene.run("test");
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("unrun: sweep: no such device\n"));
    assert!(
        ended
            .stdout
            .ends_with("tests: 2 passed, 0 failed, 1 unrun\n")
    );
    let tail = &ended.calls[ended.calls.len() - 3..];
    let expected = [
        "zerotvm fetch smollm2-135m",
        "cargo test --workspace --no-run",
        "cargo test --workspace --no-fail-fast",
    ];
    assert_eq!(tail, expected);
}

#[test]
fn test_tells_failing_tests_from_those_that_do_not_build() {
    let scene = Scene::new("test-status", &["adapter", "pip"]);
    let status = |variable| scene.run_with("test", &[(variable, "101")]).status;
    assert_eq!(status("TEST_STATUS"), 1);
    assert_eq!(status("NO_RUN_STATUS"), 2);
}

#[test]
fn a_missing_model_fails_only_in_ci() {
    let scene = Scene::new("test-model", &["adapter", "pip", "node", "tint"]);
    let ended = scene.run_with("test", &[("FETCH_STATUS", "2")]);
    assert_eq!(ended.status, 0);
    assert!(ended.stderr.contains("will be unrun"), "{}", ended.stderr);
    let ended = scene.run_with("test --json", &[("FETCH_STATUS", "2"), ("CI", "true")]);
    assert_eq!(ended.status, 2);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one document");
    assert_eq!(document["status"], 2);
    assert_eq!(document["command"], "test");
}

#[test]
fn test_json_is_one_document() {
    let scene = Scene::new("test-json", &["adapter", "pip"]);
    let ended = scene.run("test --json");
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one document");
    assert_eq!(document["passed"], 2);
    assert_eq!(document["unrun"][0]["test"], "sweep");
    assert_eq!(document["unrun"][0]["reason"], "no such device");
}

#[test]
fn ci_stops_at_the_first_failure() {
    let scene = Scene::new("ci", &["adapter", "pip"]);
    let ended = scene.run_with("ci --json", &[("CARGO_STATUS", "101")]);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one document");
    assert_eq!(ended.status, 2, "the stand-in has no component rustfmt");
    assert!(ended.stderr.contains("rustup component add rustfmt"));
    assert_eq!(document["steps"].as_array().map(Vec::len), Some(1));
}
