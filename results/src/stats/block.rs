//! Blocks of timed elements and their statistics.

use std::collections::{BTreeMap, BTreeSet};

use super::StatsError;
use crate::record::{Arm, Sample};

/// A complete block: every arm once in some order, then once more in the opposite
/// order. Each arm's mean position is the block's middle, so a linear drift
/// cancels for every pair of arms.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Number of the block.
    pub index: u32,
    /// Both times of every arm, in the order timed, milliseconds per token.
    pub times: BTreeMap<Arm, [f64; 2]>,
    /// Wall time of its elements, seconds.
    pub seconds: f64,
}

impl Block {
    /// `ln(B/A)`: `1/2 (ln B1 + ln B2 - ln A1 - ln A2)`.
    pub fn log_ratio(&self) -> f64 {
        self.log_time(Arm::B) - self.log_time(Arm::A)
    }

    /// `ln(S/A)` in the same way: what the method reads of a known slowdown.
    pub fn slowed_log_ratio(&self) -> f64 {
        self.log_time(Arm::Slowed) - self.log_time(Arm::A)
    }

    /// `ln(A'/A)` in the same way: what the method reads where nothing differs.
    pub fn control_log_ratio(&self) -> f64 {
        self.log_time(Arm::Control) - self.log_time(Arm::A)
    }

    /// Mean of the logarithms of an arm's times; NaN where it was not timed.
    pub fn log_time(&self, arm: Arm) -> f64 {
        let times = self.times.get(&arm);
        times.map_or(f64::NAN, |[first, second]| 0.5 * (first.ln() + second.ln()))
    }
}

/// The complete blocks of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// Complete blocks by number.
    pub complete: Vec<Block>,
    /// Says that an incomplete last block was dropped.
    pub dropped: Option<String>,
}

/// Groups timed elements of `arms` into blocks and drops an incomplete last one.
///
/// # Errors
/// A time that is not above 0, a block in another order, or an incomplete block
/// before the last.
pub fn blocks(samples: &[Sample], arms: &[Arm]) -> Result<Blocks, StatsError> {
    let mut by_block: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_block.entry(sample.block).or_default().push(sample);
    }
    let mut complete = Vec::with_capacity(by_block.len());
    let mut dropped = None;
    let last = by_block.keys().next_back().copied();
    for (index, mut elements) in by_block {
        elements.sort_by_key(|sample| sample.position);
        if !is_ordered(&elements, arms) {
            return Err(StatsError::Order {
                block: index,
                arms: listed(arms.iter()),
                found: listed(elements.iter().map(|s| format!("{}:{}", s.position, s.arm))),
            });
        }
        let mut times: BTreeMap<Arm, Vec<f64>> = BTreeMap::new();
        for sample in &elements {
            let times = times.entry(sample.arm).or_default();
            times.push(ms_per_token(sample)?);
        }
        if elements.len() < 2 * arms.len() {
            let (found, expected) = (elements.len(), 2 * arms.len());
            if Some(index) != last {
                return Err(StatsError::Gap {
                    block: index,
                    found,
                    expected,
                });
            }
            dropped = Some(format!(
                "the last block had {found} of {expected} elements and is left out of the \
                 statistics"
            ));
            continue;
        }
        complete.push(Block {
            index,
            times: (times.into_iter())
                .filter_map(|(arm, times)| Some((arm, times.try_into().ok()?)))
                .collect(),
            seconds: elements.iter().map(|s| s.wall_ns as f64 * 1e-9).sum(),
        });
    }
    Ok(Blocks { complete, dropped })
}

/// Whether the elements begin, at positions from 0, with every arm once and then go
/// back through the same arms.
fn is_ordered(elements: &[&Sample], arms: &[Arm]) -> bool {
    let (half, whole) = (arms.len(), 2 * arms.len());
    let first: BTreeSet<Arm> = elements.iter().take(half).map(|s| s.arm).collect();
    elements.len() <= whole
        && first.len() == elements.len().min(half)
        && first.iter().all(|arm| arms.contains(arm))
        && elements.iter().enumerate().all(|(at, sample)| {
            usize::from(sample.position) == at
                && (at < half || sample.arm == elements[whole - 1 - at].arm)
        })
}

fn listed(items: impl Iterator<Item = impl ToString>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    items.join(" ")
}

fn ms_per_token(sample: &Sample) -> Result<f64, StatsError> {
    let ms = sample.wall_ns as f64 * 1e-6 / f64::from(sample.tokens);
    // Also false for 0 tokens: infinity and NaN are not times.
    if ms.is_finite() && ms > 0.0 {
        Ok(ms)
    } else {
        Err(StatsError::Time {
            block: sample.block,
            position: sample.position,
            arm: sample.arm.to_string(),
            found: ms,
        })
    }
}
