//! Why no plan can be made.

use crate::role::Role;

/// Why no plan can be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlanError {
    /// A flag was chosen that can select nothing.
    #[error("flag {flag} cannot be used with {model}: {reasons}")]
    Impossible {
        /// The flag.
        flag: &'static str,
        /// The model's id.
        model: String,
        /// Constraint by site.
        reasons: String,
    },
    /// A chunk of a size that the settings do not allow.
    #[error("a chunk of {tokens} tokens; expected 1 to {most}, as the flag chunk says")]
    Chunk {
        /// Tokens asked.
        tokens: usize,
        /// Most tokens.
        most: usize,
    },
    /// No variant of a role runs on the adapter.
    #[error("{site}: no variant of {role} runs here: {reasons}")]
    NoVariant {
        /// Label of the dispatch.
        site: String,
        /// The role.
        role: Role,
        /// Constraint of each candidate.
        reasons: String,
    },
}
