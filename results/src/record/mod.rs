//! The lines of a journal.
//!
//! A journal is a text file of JSON documents, one a line, each with its
//! `kind`. The first line is [`Run`], the last [`End`]; between them the lines
//! stand in the order in which things happened. Times are whole nanoseconds,
//! sizes whole bytes, and the unit is part of the field's name.

mod float;
mod lines;
mod run;

pub use lines::{
    Arm, Check, Context, End, Prefill, Quality, Replicate, ReplicateEnd, Sample, Sentinel, Span,
    Status,
};
pub use run::{
    Adapter, ArmPlan, Bench, Candidate, Environment, Metric, Mode, Model, Prompt, Publish, Roof,
    Run, Spread, TimerGrade, Weights,
};

use serde::{Deserialize, Serialize};

/// Version of the line types in this module. It goes up when a field changes
/// its name, unit or meaning; a reader refuses a journal of another version.
pub const SCHEMA: u32 = 1;

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// What is measured, on what, and how: always the first line.
    Run(Box<Run>),
    /// A comparison of computed values with the reference.
    Check(Check),
    /// One timed prefill of the prompt.
    Prefill(Prefill),
    /// One timed element of a block.
    Sample(Sample),
    /// One point of the sweep of time per token against context length.
    Context(Context),
    /// How well an arm predicts a window of a text.
    Quality(Quality),
    /// The begin of a replicate of a published run.
    Replicate(Replicate),
    /// The sentinel after a block of a published run.
    Sentinel(Sentinel),
    /// The end of a replicate of a published run.
    ReplicateEnd(ReplicateEnd),
    /// How the run ended: always the last line; absent after a kill.
    End(End),
}

impl Line {
    /// The arm that it is about.
    pub const fn arm(&self) -> Option<Arm> {
        match self {
            Self::Run(_)
            | Self::End(_)
            | Self::Replicate(_)
            | Self::Sentinel(_)
            | Self::ReplicateEnd(_) => None,
            Self::Check(check) => Some(check.arm),
            Self::Prefill(prefill) => Some(prefill.arm),
            Self::Sample(sample) => Some(sample.arm),
            Self::Context(context) => Some(context.arm),
            Self::Quality(quality) => Some(quality.arm),
        }
    }
}
