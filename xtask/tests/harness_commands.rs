//! xtask's table of the harness's commands is what the harness itself lists.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use xtask::commands::HARNESS_COMMANDS;
use xtask::harness::Harness;

/// The names under `Commands:` in a help text of clap.
fn listed(help: &str) -> BTreeSet<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        // A longer explanation goes on further to the right.
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}

/// `cargo xtask test` has built the harness already; otherwise this builds it.
#[test]
fn the_table_and_the_harness_list_the_same_commands() {
    let harness = Harness::build().expect("it builds");
    let help = run(&mut harness.command(["--help"])).stdout;
    let help = String::from_utf8(help).expect("UTF-8");
    if cfg!(unix) {
        let usage = "Usage: cargo xtask <COMMAND>";
        assert!(help.contains(usage), "as it was typed: {help}");
    }
    let ours: BTreeSet<&str> = HARNESS_COMMANDS
        .iter()
        .map(|command| command.name)
        .collect();
    assert_eq!(
        ours,
        listed(&help),
        "left: HARNESS_COMMANDS in xtask/src/commands.rs; right: `--help` of the harness"
    );
}

#[test]
fn names_are_read_from_a_help_text() {
    let help = "About.\n\nUsage: zerotvm <COMMAND>\n\nCommands:\n  ab     Compare\n         \
                more\n  check  Compare\n  help   Print\n\nOptions:\n  -h, --help\n";
    assert_eq!(listed(help), BTreeSet::from(["ab", "check"]));
    assert_eq!(listed(""), BTreeSet::new());
}
