//! What can be wrong with a flag.

use super::Value;

/// What can be wrong with a flag on a command line.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FlagError {
    /// No such flag.
    #[error("unknown flag `{name}`; {known}")]
    Unknown {
        /// As typed.
        name: String,
        /// What exists.
        known: String,
    },
    /// A setting where a flag was expected.
    #[error("`{0}` is a setting, not a flag: it sets up a run and selects no kernel")]
    Setting(String),
    /// A value that the flag does not take.
    #[error("flag {name}: `{found}` is not one of its values; expected {expected}")]
    Value {
        /// The flag.
        name: &'static str,
        /// As typed.
        found: String,
        /// What it takes.
        expected: String,
    },
    /// Two values for one flag.
    #[error("flag {name} is given twice: {first} and {second}")]
    Twice {
        /// The flag.
        name: &'static str,
        /// Its first value.
        first: Value,
        /// Its second value.
        second: Value,
    },
    /// Two explicit choices that cannot be on together.
    #[error("flags {first} and {second} exclude each other; choose one")]
    Excluded {
        /// One flag.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// An explicit choice without what it needs.
    #[error(
        "flag {flag} does nothing while {need} is off; it needs {}",
        choose.join(" and ")
    )]
    Needs {
        /// The flag.
        flag: &'static str,
        /// What it needs.
        need: &'static str,
        /// The choices that give it what it needs, as `sg=1`.
        choose: Vec<String>,
    },
}
