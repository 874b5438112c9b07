//! What is asked of the blocks: the change of one flag, or, of two flags, the main
//! effect of each and their interaction.

use serde::Serialize;

use super::{Block, Estimate, Judgement, StatsError, Verdict, judge, percent};
use crate::record::{Arm, Run};

/// What a contrast compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// B against A.
    Change,
    /// A flag on against off, averaged over both values of the other flag.
    MainEffect,
    /// Both changes together against the product of each alone.
    Interaction,
}

/// A question, what each complete block answers, and the judgement.
#[derive(Clone, Debug, PartialEq)]
pub struct Contrast {
    /// What is compared.
    pub kind: Kind,
    /// The flag, or both as `splitk × fuseqk`.
    pub of: String,
    /// Log ratio of each block.
    pub values: Vec<f64>,
    /// What they say, against the margin and the A/A control.
    pub judgement: Judgement,
}

impl Contrast {
    /// The verdict in a word. Of an interaction: REINFORCING where both changes
    /// together take less time than the product of each alone says, INTERFERING
    /// where they take more, INDEPENDENT where neither matters.
    pub const fn word(&self) -> &'static str {
        match (self.kind, self.judgement.verdict) {
            (Kind::Interaction, Verdict::Faster) => "REINFORCING",
            (Kind::Interaction, Verdict::Slower) => "INTERFERING",
            (Kind::Interaction, Verdict::Equivalent) => "INDEPENDENT",
            (Kind::Change | Kind::MainEffect | Kind::Interaction, verdict) => verdict.word(),
        }
    }

    /// The estimate; absent without a complete block.
    pub const fn effect(&self) -> Option<Estimate> {
        self.judgement.effect
    }

    /// The estimate as a percentage of time.
    pub fn effect_pct(&self) -> Option<f64> {
        self.effect().map(|effect| percent(effect.centre))
    }
}

/// A contrast of one block, given the mean log time of each arm.
type Value = fn(LogTimes<'_>) -> f64;
type LogTimes<'t> = &'t dyn Fn(Arm) -> f64;

/// What is asked of every block.
#[derive(Clone, Debug)]
pub struct Question {
    /// What is compared.
    pub kind: Kind,
    /// The flag, or both as `splitk × fuseqk`.
    pub of: String,
    value: Value,
}

impl Question {
    /// What a block answers, a log ratio.
    pub fn of_block(&self, block: &Block) -> f64 {
        (self.value)(&|arm| block.log_time(arm))
    }
}

/// The questions of a run: one of one flag, three of two.
///
/// With L the mean log time of an arm in a block, a main effect is
/// `1/2 ((L_B - L_A) + (L_D - L_C))` and the interaction
/// `L_D - L_B - L_C + L_A`.
pub fn questions(run: &Run) -> Vec<Question> {
    use Arm::{A, B, C, D};
    let question = |kind, of: String, value: Value| Question { kind, of, value };
    let Some([first, second]) = run.flags() else {
        let change: Value = |l| l(B) - l(A);
        return vec![question(Kind::Change, run.flag.clone(), change)];
    };
    let both = format!("{first} \u{d7} {second}");
    let of_first: Value = |l| 0.5 * ((l(B) - l(A)) + (l(D) - l(C)));
    let of_second: Value = |l| 0.5 * ((l(C) - l(A)) + (l(D) - l(B)));
    vec![
        question(Kind::MainEffect, first.to_owned(), of_first),
        question(Kind::MainEffect, second.to_owned(), of_second),
        question(Kind::Interaction, both, |l| (l(D) - l(B)) - (l(C) - l(A))),
    ]
}

/// What the blocks answer to each question of a run.
///
/// # Errors
/// As [`judge`].
pub fn contrasts(run: &Run, blocks: &[Block]) -> Result<Vec<Contrast>, StatsError> {
    let control: Vec<f64> = blocks.iter().map(Block::control_log_ratio).collect();
    let questions = questions(run).into_iter();
    let answered = questions.map(|question| {
        let values: Vec<f64> = blocks.iter().map(|b| question.of_block(b)).collect();
        let judgement = judge(&values, &control, run.margin)?;
        Ok(Contrast {
            kind: question.kind,
            of: question.of,
            values,
            judgement,
        })
    });
    answered.collect()
}
