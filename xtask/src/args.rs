//! The command line: argv to what is to be done, once and without side effects.

use std::ffi::OsString;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::{self, HARNESS_COMMANDS, HarnessCommand};
use crate::process::{self, SET_UP};

/// The argument that turns set-up off; it may stand anywhere before a lone `--`.
pub const NO_SETUP: &str = "--no-setup";

/// What was typed, understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Cli {
    /// Whether missing system packages may be installed.
    pub setup: bool,
    /// What is to be done.
    pub action: Action,
    json: bool,
}

impl Cli {
    /// Whether standard output is kept for one JSON document of xtask's own.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Run the tests.
    Test(TestOptions),
    /// Run every check that a change must pass.
    Ci,
    /// Check the rules of the repository.
    Tidy,
    /// Run a command of the harness, name first.
    Harness(Vec<OsString>),
}

/// How the tests are run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestOptions {
    /// The slower sweeps too.
    pub all: bool,
    /// Further arguments of `cargo test`.
    pub cargo_args: Vec<OsString>,
}

/// Parsing ended with something to print: help, a version or an error.
#[derive(Debug)]
pub enum Stop {
    /// clap's help text or error.
    Clap(clap::Error),
    /// An error of ours.
    Usage(String),
}

impl Stop {
    /// Prints it where it belongs and gives the exit status: 0 for help, 2 for an error.
    #[must_use]
    pub fn show(&self) -> u8 {
        match self {
            Self::Clap(error) => {
                // A closed pipe is the only way to fail here, and no reason to complain.
                let _ = error.print();
                u8::try_from(error.exit_code()).unwrap_or(SET_UP)
            }
            Self::Usage(message) => {
                process::note(message);
                SET_UP
            }
        }
    }
}

/// The front door of the Zero-TVM workbench.
///
/// Commands that need a GPU look for an adapter first. Where there is none, on a
/// Linux with apt-get, the Mesa software Vulkan driver is installed if that may
/// be done without asking for a password; otherwise the line to run is printed.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    subcommand_value_name = "COMMAND"
)]
struct Typed {
    /// Install nothing; may stand anywhere on the command line
    #[arg(long, global = true)]
    no_setup: bool,
    #[command(subcommand)]
    command: TypedCommand,
}

#[derive(Debug, Subcommand)]
enum TypedCommand {
    /// Run every test, after fetching the default model
    Test(TypedTest),
    /// Run formatting, clippy, tidy and the tests; stop at the first failure
    Ci(Json),
    /// Check the rules of the repository that no compiler checks
    Tidy(Json),
    /// Print this help or that of a command
    Help {
        /// The command to explain
        command: Option<OsString>,
    },
    #[command(external_subcommand)]
    Harness(Vec<OsString>),
}

#[derive(Debug, Args)]
struct TypedTest {
    /// The slower sweeps too (sets ZEROTVM_TEST_ALL=1)
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    json: Json,
    /// Passed on to `cargo test`, e.g. a part of a test's name
    #[arg(last = true, value_name = "CARGO_TEST_ARGS")]
    cargo_args: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Json {
    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    json: bool,
}

/// Understands the arguments after `cargo xtask`.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Stop> {
    let (args, stripped) = strip_no_setup(args.into_iter().collect());
    let argv = std::iter::once(OsString::from("cargo xtask")).chain(args);
    let mut matches = Typed::command()
        .after_help(harness_help())
        .try_get_matches_from(argv)
        .map_err(Stop::Clap)?;
    let typed = Typed::from_arg_matches_mut(&mut matches).map_err(Stop::Clap)?;
    let (action, json) = match typed.command {
        TypedCommand::Test(test) => {
            let options = TestOptions {
                all: test.all,
                cargo_args: test.cargo_args,
            };
            (Action::Test(options), test.json.json)
        }
        TypedCommand::Ci(ci) => (Action::Ci, ci.json),
        TypedCommand::Tidy(tidy) => (Action::Tidy, tidy.json),
        TypedCommand::Help { command } => {
            // Asked again in the other spelling: `COMMAND --help`, or `--help` alone.
            let command = command.filter(|name| name != "help");
            return parse(command.into_iter().chain(["--help".into()]));
        }
        TypedCommand::Harness(args) => {
            let name = args.first().cloned().unwrap_or_default();
            if HarnessCommand::find(&name).is_none() {
                return Err(Stop::Usage(commands::unknown(&name)));
            }
            (Action::Harness(args), false)
        }
    };
    Ok(Cli {
        setup: !stripped,
        action,
        json,
    })
}

/// Takes every [`NO_SETUP`] before a lone `--` out: the harness does not know it.
fn strip_no_setup(args: Vec<OsString>) -> (Vec<OsString>, bool) {
    let end = commands::before_separator(&args).len();
    let mut stripped = false;
    let mut index = 0;
    let kept = args
        .into_iter()
        .filter(|arg| {
            let strip = index < end && arg == NO_SETUP;
            index += 1;
            stripped |= strip;
            !strip
        })
        .collect();
    (kept, stripped)
}

/// The part of the help text about the harness's commands.
fn harness_help() -> String {
    let width = HARNESS_COMMANDS.iter().map(|command| command.name.len());
    let width = width.max().unwrap_or(0);
    let mut text = String::from("Commands of the harness (each explains itself with --help):\n");
    for command in HARNESS_COMMANDS {
        text.push_str(&format!("  {:width$}  {}\n", command.name, command.about));
    }
    text.push_str(
        "\nExit status: 0 it ran, 1 a check failed, 2 usage or set-up, 3 a regression against a \
         baseline",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn parsed(line: &str) -> Cli {
        parse(words(line)).expect("a good command line")
    }

    fn stop(line: &str) -> Stop {
        parse(words(line)).expect_err("a command line that stops")
    }

    #[test]
    fn harness_arguments_pass_verbatim() {
        let line = "ab --flag splitk --json -- --all -x --no-setup";
        let cli = parsed(line);
        assert_eq!(cli.action, Action::Harness(words(line)));
        assert!(cli.setup);
        assert!(!cli.json(), "the harness prints that document");
        let line = "ab --help";
        assert_eq!(parsed(line).action, Action::Harness(words(line)));
    }

    #[test]
    fn no_setup_is_stripped_anywhere_before_the_separator() {
        for line in [
            "--no-setup check --json",
            "check --no-setup --json",
            "check --json --no-setup",
        ] {
            let cli = parsed(line);
            assert!(!cli.setup, "{line}");
            assert_eq!(cli.action, Action::Harness(words("check --json")));
        }
        for line in ["--no-setup ci", "ci --no-setup"] {
            assert!(!parsed(line).setup, "{line}");
        }
    }

    #[test]
    fn test_takes_all_json_and_cargo_arguments() {
        let cli = parsed("test --all --json -- splitk -- --nocapture");
        let options = TestOptions {
            all: true,
            cargo_args: words("splitk -- --nocapture"),
        };
        assert_eq!(cli.action, Action::Test(options));
        assert!(cli.json());
        assert_eq!(stop("test splitk").show(), 2);
    }

    #[test]
    fn help_names_every_command() {
        for line in ["--help", "-h", "help", "help help"] {
            let Stop::Clap(error) = stop(line) else {
                panic!("{line}: not clap's help");
            };
            assert_eq!(error.exit_code(), 0, "{line}");
            let text = error.to_string();
            for command in HARNESS_COMMANDS {
                assert!(text.contains(command.about), "{line}: {}", command.name);
            }
            for own in commands::OWN_COMMANDS {
                assert!(text.contains(&format!("\n  {own} ")), "{line}: {own}");
            }
            assert!(text.contains(NO_SETUP), "{line}");
        }
        assert_eq!(
            parsed("help ab").action,
            Action::Harness(words("ab --help"))
        );
        assert!(
            matches!(stop("help test"), Stop::Clap(error) if error.to_string().contains("--all"))
        );
    }

    #[test]
    fn nothing_and_nonsense_are_usage_errors() {
        assert!(matches!(stop(""), Stop::Clap(error) if error.exit_code() == 2));
        assert!(matches!(stop("tidy --fix"), Stop::Clap(error) if error.exit_code() == 2));
        assert!(matches!(stop("abb"), Stop::Usage(message) if message.contains("`ab`")));
        assert!(matches!(stop("help abb"), Stop::Usage(message) if message.contains("`ab`")));
    }
}
