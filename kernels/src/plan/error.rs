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

#[cfg(test)]
mod tests {
    use crate::{Features, Phase, Plan, Settings, flag, models};

    #[test]
    fn a_form_that_another_goes_before_says_so() {
        let spec = models::find("phi3-mini").expect("registered");
        let plan = |choices: &[&str]| {
            let mut chosen = flag::Choices::new();
            for choice in choices {
                flag::parse_choice(choice, &mut chosen).expect("a valid choice");
            }
            let features = Features::PUBLISHED;
            let settings = Settings::resolve(&features, &chosen).expect("no conflict");
            Plan::build(&spec, &settings, &features, Phase::Decode)
        };
        let error = plan(&["vec4h=1"]).expect_err("every row fits vec4");
        let reason = "int4_matmul_tiled_vec4 goes before int4_matmul_tiled_vec4h while vec4 is on";
        let reasons = ["o", "down", "lm_head"].map(|site| format!("{site}: {reason}"));
        assert_eq!(
            error.to_string(),
            format!(
                "flag vec4h cannot be used with phi3-mini: {}",
                reasons.join("; ")
            )
        );
        plan(&["vec4h=1", "vec4=0"]).expect("nothing goes before it");
    }
}
