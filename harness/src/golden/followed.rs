//! What the reference says of a prompt with the experts that a pass on the GPU chose.
//!
//! Where rounding chose another expert than the golden outputs have, these are not what is
//! to be expected: what the reference says that the experts change is added to them.

use super::{Prompt, errors, stage_rows};
use crate::check::{Check, Router, judge_choices};
use anyhow::{Context as _, Result};
use kernels::Elem;
use reference::{
    Checkpoint, Forward, Numerics,
    forward::{Choices, Routed, Trace, TraceRows},
};
use std::collections::BTreeMap;

/// Rows by stage, `logits` among them.
type Rows = BTreeMap<String, Vec<Vec<f64>>>;

/// What is expected of the first tokens of a prompt with the experts of a GPU.
#[derive(Debug)]
pub(super) struct Followed {
    /// The tokens' experts.
    choices: Choices,
    /// The formula with the experts that it chooses.
    own: Rows,
    /// The same with those of the GPU, and the rounding-faithful reference with them.
    exact: Rows,
    rounded: Rows,
    /// Whether the GPU might choose them.
    pub(super) check: Check,
}

impl Followed {
    pub(super) fn new(
        weights: &Checkpoint,
        prompt: &Prompt,
        choices: &Choices,
        elem: Elem,
    ) -> Result<Self> {
        let experts = weights.spec().experts.context("the model has no experts")?;
        let tokens = choices.first().map_or(0, Vec::len);
        let run = |numerics, choices: &Choices| -> Result<(Rows, Vec<Vec<Routed>>)> {
            let ids = &prompt.ids[..tokens];
            let mut trace = Trace::new(TraceRows::All);
            let mut traced = Forward::new(weights, numerics).following(choices.clone());
            traced.prefill_traced(ids, &mut trace)?;
            let mut rows = Rows::new();
            for stage in &prompt.stages {
                rows.insert(stage.name.clone(), stage_rows(&trace, &stage.name)?);
            }
            let mut forward = Forward::new(weights, numerics).following(choices.clone());
            rows.insert(LOGITS.into(), forward.prefill_all(ids)?);
            let layers = 0..choices.len();
            Ok((
                rows,
                layers.map(|layer| forward.routed(layer).to_vec()).collect(),
            ))
        };
        let (own, _) = run(Numerics::Formula, &vec![vec![]; choices.len()])?;
        let (exact, formula) = run(Numerics::Formula, choices)?;
        let (rounded, faithful) = run(Numerics::Faithful(elem), choices)?;
        let routers = faithful.iter().zip(&formula).map(|(rows, exact)| {
            let rows = rows.iter().zip(exact);
            rows.map(|(row, exact)| Router::new(row, exact, elem))
                .collect()
        });
        let routers: Vec<Vec<Router>> = routers.collect();
        Ok(Self {
            choices: choices.clone(),
            own,
            exact,
            rounded,
            check: judge_choices(&routers, &experts),
        })
    }

    /// Whether it is of these choices, as far as they go.
    pub(super) fn is_of(&self, choices: &Choices) -> bool {
        let layers = self.choices.iter().zip(choices);
        layers.into_iter().all(|(a, b)| a.starts_with(b))
    }

    /// What is expected of a row in the place of the golden one.
    pub(super) fn expected(&self, stage: &str, at: usize, golden: &[f64]) -> Vec<f64> {
        let [own, exact] = [&self.own, &self.exact].map(|rows| &rows[stage][at]);
        let rows = golden.iter().zip(own.iter().zip(exact));
        rows.map(|(golden, (own, exact))| golden + (exact - own))
            .collect()
    }

    /// The limit of a row: as of every row, and twice what rounding alone makes in this one
    /// (as [`crate::check::Expectation`] has it), which a router amplifies.
    pub(super) fn limit(&self, stage: &str, at: usize, of_rows: f64) -> f64 {
        let [rounded, exact] = [&self.rounded, &self.exact].map(|rows| &rows[stage][at]);
        of_rows.max(2.0 * errors(rounded, exact, 0.0).rel_rms)
    }
}

/// The stage of the logits.
pub(super) const LOGITS: &str = "logits";
