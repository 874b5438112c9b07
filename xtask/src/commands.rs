//! The harness's commands: one table for the help text, the check of a typed
//! name, and what each needs from the system before it starts.
//!
//! `tests/harness_commands.rs` holds it equal to what the harness itself lists.

use std::ffi::{OsStr, OsString};

/// The model a command uses when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// xtask's own commands.
pub const OWN_COMMANDS: &[&str] = &["test", "ci", "tidy", "help"];

/// Arguments that make any command print something and stop: nothing is set up for them.
const ASKS_ONLY: &[&str] = &["-h", "--help", "-V", "--version", "--list", "--probe"];

/// When a command needs an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// It opens no device.
    Never,
    /// Only with this argument.
    With(&'static str),
    /// It is better with one and runs without.
    Better,
    /// It cannot run without one.
    Always,
}

/// Where a command's model is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// It reads no weights.
    None,
    /// `--model ID`, or the default, unless `--weights` names other weights than
    /// the model's own file.
    Option,
    /// Its first argument, or the default.
    Argument,
}

/// One command of the harness.
#[derive(Debug, Clone, Copy)]
pub struct HarnessCommand {
    /// The name that is typed.
    pub name: &'static str,
    /// One line for the help text.
    pub about: &'static str,
    /// When it needs an adapter.
    pub device: Device,
    /// Whose weights it reads.
    pub model: Model,
    /// Its subcommand that asks Tint about texts in the browser's dialect.
    pub tint: Option<&'static str>,
}

/// Every command of the harness.
pub const HARNESS_COMMANDS: &[HarnessCommand] = &[
    HarnessCommand {
        name: "ab",
        about: "Compare the arms of one flag, or of two, on a whole token, and write the report",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "bench",
        about: "Time whole tokens: to the first, and of those that follow",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "roof",
        about: "Measure the adapter's bounds: memory read, and a dispatch that waits",
        device: Device::Always,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "check",
        about: "Compare every kernel's output and the logits with the CPU reference",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "generate",
        about: "Write the text that follows a prompt",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "chat",
        about: "Talk with a model at the terminal",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "ppl",
        about: "Compare the perplexity of two settings over a text",
        device: Device::Always,
        model: Model::Option,
        tint: None,
    },
    HarnessCommand {
        name: "mutants",
        about: "Break every kernel in many ways; some case must fail on each",
        device: Device::Always,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "kernels",
        about: "List, print, check or compare the WGSL of the variants; opens no device",
        device: Device::Never,
        model: Model::None,
        tint: Some("check"),
    },
    HarnessCommand {
        name: "plan",
        about: "Print the dispatches of one token, by role; opens no device",
        device: Device::With("--adapter"),
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "results",
        about: "Ask, merge and compare what was recorded",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "import",
        about: "Read another tool's result file into records",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "report",
        about: "Make every report again from the records, or check those that lie there",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "doctor",
        about: "Print the adapters and what the workbench can do on this machine",
        device: Device::Better,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "fetch",
        about: "Fetch a model's weights into the cache and verify them",
        device: Device::Never,
        model: Model::Argument,
        tint: None,
    },
    HarnessCommand {
        name: "synth",
        about: "Write seeded synthetic weights of a model as a checkpoint folder",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "inspect",
        about: "Say what a checkpoint is, and what it lacks to be a registered model",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
    HarnessCommand {
        name: "convert",
        about: "Quantise a GGUF file, or a Hugging Face folder, to a checkpoint folder",
        device: Device::Never,
        model: Model::None,
        tint: None,
    },
];

/// What must be there before a command starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Whether an adapter is needed: `None` no, `Some(false)` better with one, `Some(true)` yes.
    pub adapter: Option<bool>,
    /// The model whose source may need something from the system.
    pub model: Option<OsString>,
    /// Whether Tint is needed, as `adapter`.
    pub tint: Option<bool>,
}

impl HarnessCommand {
    /// The command called `name`.
    #[must_use]
    pub fn find(name: &OsStr) -> Option<&'static Self> {
        HARNESS_COMMANDS.iter().find(|command| name == command.name)
    }

    /// What this command needs when it is called with `args` (its name not among them).
    #[must_use]
    pub fn needs(&self, args: &[OsString]) -> Needs {
        let args = before_separator(args);
        let given = |name: &str| args.iter().any(|arg| option_value(arg, name).is_some());
        if ASKS_ONLY.iter().any(|name| given(name)) {
            return Needs {
                adapter: None,
                model: None,
                tint: None,
            };
        }
        let adapter = match self.device {
            Device::Never => None,
            Device::With(argument) => given(argument).then_some(true),
            Device::Better => Some(false),
            Device::Always => Some(true),
        };
        let model = || value_of(args, "--model").unwrap_or_else(|| DEFAULT_MODEL.into());
        let model = match self.model {
            Model::None => None,
            // A golden folder holds its own checkpoint, a case draws its operands.
            Model::Option if ["--golden", "--case", "--variant"].into_iter().any(given) => None,
            Model::Option if value_of(args, "--only").is_some_and(|half| half == "kernels") => None,
            Model::Option => match value_of(args, "--weights") {
                None => Some(model()),
                Some(weights) if weights == "gguf" => Some(model()),
                Some(_) => None,
            },
            Model::Argument => Some(
                args.iter()
                    .find(|arg| !starts_with_dash(arg))
                    .cloned()
                    .unwrap_or_else(|| DEFAULT_MODEL.into()),
            ),
        };
        let native = || value_of(args, "--dialect").is_some_and(|value| value == "native");
        let asks_tint = args.first().zip(self.tint).is_some_and(|(a, b)| a == b) && !native();
        Needs {
            adapter,
            model,
            tint: asks_tint.then_some(true),
        }
    }
}

/// The value that follows the option `name`, or stands behind its `=`.
fn value_of(args: &[OsString], name: &str) -> Option<OsString> {
    let (index, value) = args
        .iter()
        .enumerate()
        .find_map(|(index, arg)| Some((index, option_value(arg, name)?)))?;
    match value {
        "" => args.get(index + 1).cloned(),
        value => Some(value.into()),
    }
}

/// `Some("")` if `arg` is `name`, `Some("x")` if it is `name=x`.
fn option_value<'a>(arg: &'a OsStr, name: &str) -> Option<&'a str> {
    let rest = arg.to_str()?.strip_prefix(name)?;
    if rest.is_empty() {
        Some("")
    } else {
        rest.strip_prefix('=')
    }
}

fn starts_with_dash(arg: &OsStr) -> bool {
    arg.as_encoded_bytes().starts_with(b"-")
}

/// The arguments up to a lone `--`.
#[must_use]
pub fn before_separator(args: &[OsString]) -> &[OsString] {
    let end = args.iter().position(|arg| arg == "--");
    &args[..end.unwrap_or(args.len())]
}

/// The error for a command that neither xtask nor the harness has.
#[must_use]
pub fn unknown(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    let all = || {
        let own = OWN_COMMANDS.iter().copied();
        own.chain(HARNESS_COMMANDS.iter().map(|command| command.name))
    };
    let nearest = all()
        .map(|known| (distance(&name, known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len().div_ceil(2));
    let hint = nearest.map_or_else(String::new, |(_, known)| {
        format!("; did you mean `{known}`?")
    });
    let list: Vec<&str> = all().collect();
    format!(
        "expected one of the commands {}; found `{name}`{hint}",
        list.join(", ")
    )
}

/// How many characters must be added, removed or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, in_a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, in_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(in_a != *in_b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(line: &str) -> Needs {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let command = HarnessCommand::find(&words[0]).expect("a harness command");
        command.needs(&words[1..])
    }

    fn need(adapter: Option<bool>, model: Option<&str>) -> Needs {
        Needs {
            adapter,
            model: model.map(OsString::from),
            tint: None,
        }
    }

    #[test]
    fn names_are_unique_and_none_is_xtasks_own() {
        for (index, command) in HARNESS_COMMANDS.iter().enumerate() {
            let later = &HARNESS_COMMANDS[index + 1..];
            assert!(later.iter().all(|other| other.name != command.name));
            assert!(!OWN_COMMANDS.contains(&command.name));
            assert!(!command.about.is_empty());
        }
    }

    #[test]
    fn device_commands_need_an_adapter_and_the_default_model() {
        for name in ["ab --flag splitk", "check"] {
            assert_eq!(needs(name), need(Some(true), Some(DEFAULT_MODEL)), "{name}");
        }
    }

    #[test]
    fn text_commands_need_nothing() {
        for line in [
            "plan --model phi3-mini",
            "kernels list",
            "kernels check --dialect native",
            "kernels diff HEAD",
            "report --check",
            "results query SELECT",
            "import llama-bench file.json --model phi3-mini",
            "convert a.gguf out",
        ] {
            assert_eq!(needs(line), need(None, None), "{line}");
        }
    }

    #[test]
    fn arguments_change_the_needs() {
        assert_eq!(needs("plan --adapter"), need(Some(true), None));
        assert_eq!(needs("plan --adapter=0"), need(Some(true), None));
        assert_eq!(needs("doctor"), need(Some(false), None));
        assert_eq!(needs("fetch"), need(None, Some(DEFAULT_MODEL)));
        assert_eq!(needs("fetch --json qwen3-4b"), need(None, Some("qwen3-4b")));
        assert_eq!(
            needs("check --model phi3-mini"),
            need(Some(true), Some("phi3-mini"))
        );
        assert_eq!(
            needs("check --model=phi3-mini"),
            need(Some(true), Some("phi3-mini"))
        );
        for weights in ["synthetic", "folder"] {
            let line = format!("ab --flag splitk --weights {weights}");
            assert_eq!(needs(&line), need(Some(true), None), "{line}");
        }
        assert_eq!(
            needs("ab --weights=gguf"),
            need(Some(true), Some(DEFAULT_MODEL))
        );
        assert_eq!(needs("check --golden DIR"), need(Some(true), None));
        assert_eq!(
            needs("check --case rope/rope/drawn --seed 1"),
            need(Some(true), None)
        );
        assert_eq!(
            needs("check -- --model phi3-mini"),
            need(Some(true), Some(DEFAULT_MODEL))
        );
    }

    #[test]
    fn only_the_check_of_the_browsers_dialect_needs_tint() {
        for line in [
            "kernels check",
            "kernels check --json --dialect browser",
            "kernels check --dialect=browser",
        ] {
            let expected = Needs {
                tint: Some(true),
                ..need(None, None)
            };
            assert_eq!(needs(line), expected, "{line}");
        }
    }

    #[test]
    fn a_question_sets_nothing_up() {
        for line in [
            "ab --help",
            "check --list",
            "doctor --probe",
            "fetch --probe smollm2-135m",
            "ab -h",
            "kernels check --probe",
            "kernels check --help",
        ] {
            assert_eq!(needs(line), need(None, None), "{line}");
        }
        // Behind the separator they are somebody else's arguments.
        assert_eq!(needs("ab -- --help").adapter, Some(true));
    }

    #[test]
    fn an_unknown_command_lists_what_exists_and_the_nearest() {
        let message = unknown(OsStr::new("chekc"));
        assert!(message.contains("did you mean `check`?"), "{message}");
        assert!(
            message.contains("ab, bench, roof, check, generate"),
            "{message}"
        );
        assert!(message.contains("test, ci, tidy"), "{message}");
        assert!(!unknown(OsStr::new("frobnicate")).contains("did you mean"));
        assert!(unknown(OsStr::new("tset")).contains("`test`"));
    }
}
