//! The lines after the first: checks, timed work, and the end.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::float;

/// One of the things that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Arm {
    /// The baseline.
    #[serde(rename = "A")]
    A,
    /// The control: the baseline a second time, from pipelines of its own.
    #[serde(rename = "A'")]
    Control,
    /// The change; of two flags, the first one's.
    #[serde(rename = "B")]
    B,
    /// The second flag's change.
    #[serde(rename = "C")]
    C,
    /// Both flags' changes.
    #[serde(rename = "D")]
    D,
    /// The baseline with more work, by count: what a published run must be able to see.
    #[serde(rename = "S")]
    Slowed,
}

impl Arm {
    /// The arms of an A/B of one flag, in the order of tables and plots.
    pub const OF_ONE_FLAG: &[Self] = &[Self::A, Self::Control, Self::B];
    /// The arms of an A/B of two flags.
    pub const OF_TWO_FLAGS: &[Self] = &[Self::A, Self::Control, Self::B, Self::C, Self::D];
    /// The arms of a published A/B.
    pub const OF_PUBLISHED: &[Self] = &[Self::A, Self::Control, Self::B, Self::Slowed];
    /// The arms of a published A/B of two flags.
    pub const OF_TWO_PUBLISHED: &[Self] = &[
        Self::A,
        Self::Control,
        Self::B,
        Self::C,
        Self::D,
        Self::Slowed,
    ];

    /// The arms of an A/B that has this many plans, each arm but the control one.
    pub const fn of(plans: usize, published: bool) -> &'static [Self] {
        match (plans, published) {
            (0..4, false) => Self::OF_ONE_FLAG,
            (_, false) => Self::OF_TWO_FLAGS,
            (0..5, true) => Self::OF_PUBLISHED,
            (_, true) => Self::OF_TWO_PUBLISHED,
        }
    }

    /// Place of its plan among those of `arms`; the control runs the first.
    pub fn plan(self, arms: &[Self]) -> Option<usize> {
        let mut plans = arms.iter().filter(|&&arm| arm != Self::Control);
        match self {
            Self::Control => Some(0),
            Self::A | Self::B | Self::C | Self::D | Self::Slowed => {
                plans.position(|&arm| arm == self)
            }
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::Control => "A'",
            Self::B => "B",
            Self::C => "C",
            Self::D => "D",
            Self::Slowed => "S",
        })
    }
}

/// One comparison of computed values with those expected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The arm whose values these are.
    pub arm: Arm,
    /// Where in the model: `layers.3.int4_matmul.o`, or one of
    /// [`Check::WHOLE_MODEL`].
    pub stage: String,
    /// Kernel role that made the values.
    pub role: String,
    /// Number of values compared.
    pub elements: u64,
    /// Largest absolute error, in the values' own unit.
    #[serde(with = "float")]
    pub worst_abs: f64,
    /// Largest relative error.
    #[serde(with = "float")]
    pub worst_rel: f64,
    /// The limit on the error that decided `worst_ratio`.
    #[serde(with = "float")]
    pub bound: f64,
    /// Largest error over its limit; passes only at or below 1.
    #[serde(with = "float")]
    pub worst_ratio: f64,
    /// Whether the check passed.
    pub passed: bool,
    /// Why it failed, or what was excused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Check {
    /// Stages that judge the whole model rather than one kernel.
    pub const WHOLE_MODEL: [&'static str; 3] = ["logits", "greedy", "arm against arm"];

    /// Whether the stage judges the whole model rather than one kernel.
    pub fn is_whole_model(&self) -> bool {
        Self::WHOLE_MODEL
            .iter()
            .any(|stage| self.stage.starts_with(stage))
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        // `<=` is false for NaN, which must never pass.
        let within = self.worst_ratio <= 1.0;
        if self.passed && !within {
            return Err(format!(
                "check {} of arm {}: passed with worst_ratio {}; a pass needs 1 or less",
                self.stage, self.arm, self.worst_ratio
            ));
        }
        if self.passed && self.elements == 0 {
            return Err(format!(
                "check {} of arm {}: passed over 0 elements; nothing compared proves nothing",
                self.stage, self.arm
            ));
        }
        Ok(())
    }
}

/// One timed prefill of the prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefill {
    /// The arm that ran.
    pub arm: Arm,
    /// Number of this prefill in its arm, from 0.
    pub index: u32,
    /// Tokens processed.
    pub tokens: u32,
    /// Wall time from submit to completion, nanoseconds.
    pub wall_ns: u64,
}

/// One timed element: one of a block's, two for each arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Number of the block, from 0.
    pub block: u32,
    /// Place in the block, from 0.
    pub position: u8,
    /// The arm that ran.
    pub arm: Arm,
    /// Tokens processed.
    pub tokens: u32,
    /// Dispatches recorded, counted by the engine's recorder.
    pub dispatches: u64,
    /// Wall time of the element, nanoseconds.
    pub wall_ns: u64,
    /// The element's parts, where they were timed one by one.
    pub spans: Vec<Span>,
}

/// A timed part of an element.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Position of the first token: the tokens already in the context.
    pub context: u32,
    /// Tokens processed.
    pub tokens: u32,
    /// Wall time, nanoseconds.
    pub wall_ns: u64,
}

/// One point of the sweep of time per token against context length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// The arm that ran; never the control.
    pub arm: Arm,
    /// Position of the first token: the tokens already in the context.
    pub context: u32,
    /// Tokens processed.
    pub tokens: u32,
    /// Wall time, nanoseconds.
    pub wall_ns: u64,
}

/// The begin of a replicate of a published run: a fresh process with a device and
/// pipelines of its own. A replicate without its end, of a process that was killed,
/// counts for nothing; the next line of the same index is made in its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replicate {
    /// Its number, from 0. It measures the blocks `index * blocks` and on.
    pub index: u32,
    /// Seed of the order in which its arms were made and of its blocks.
    pub seed: u64,
    /// The order in which its arms were made.
    pub made: Vec<Arm>,
    /// Load of the machine before it: the average number of processes that ran in the
    /// last minute; absent where the system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

/// The end of a replicate that measured all its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicateEnd {
    /// Its number.
    pub index: u32,
    /// SHA-256 of the tokens that every element of an arm made; the same in every
    /// replicate.
    pub tokens_sha256: BTreeMap<Arm, String>,
}

/// One timing of the sentinel, a fixed kernel that no flag changes, after a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// The block.
    pub block: u32,
    /// Wall time, nanoseconds.
    pub wall_ns: u64,
}

/// How well an arm predicts one window of a text, read from an empty cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// The arm.
    pub arm: Arm,
    /// What the text is.
    pub text: String,
    /// Number of the window, from 0.
    pub window: u32,
    /// Tokens predicted.
    pub tokens: u32,
    /// Mean negative log likelihood of these, nats.
    pub nll: f64,
}

/// How the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// How the run ended.
    pub status: Status,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Everything planned was done.
    Complete,
    /// The user or the system stopped it; what is recorded stands.
    Interrupted,
    /// A validity gate failed; its times mean nothing.
    Void,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
            Self::Void => "void",
        })
    }
}
