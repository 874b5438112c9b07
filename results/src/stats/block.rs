//! Blocks of six elements and their statistic.

use std::collections::BTreeMap;

use super::StatsError;
use crate::record::{Arm, Sample};

/// The two orders of a block. Each arm's mean position is the block's middle,
/// so a linear drift cancels for every pair of arms.
const ORDERS: [[Arm; 6]; 2] = [
    [Arm::A, Arm::Control, Arm::B, Arm::B, Arm::Control, Arm::A],
    [Arm::B, Arm::Control, Arm::A, Arm::A, Arm::Control, Arm::B],
];

/// A complete block: two elements of each arm, milliseconds per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Number of the block.
    pub index: u32,
    /// Arm A, in the order timed.
    pub a: [f64; 2],
    /// The control A', in the order timed.
    pub control: [f64; 2],
    /// Arm B, in the order timed.
    pub b: [f64; 2],
    /// Wall time of its six elements, seconds.
    pub seconds: f64,
}

impl Block {
    /// `ln(B/A)`: `1/2 (ln B1 + ln B2 - ln A1 - ln A2)`.
    pub fn log_ratio(&self) -> f64 {
        half_log_ratio(self.b, self.a)
    }

    /// `ln(A'/A)` in the same way: what the method reads where nothing differs.
    pub fn control_log_ratio(&self) -> f64 {
        half_log_ratio(self.control, self.a)
    }

    /// Both times of an arm, milliseconds per token.
    pub fn times(&self, arm: Arm) -> [f64; 2] {
        match arm {
            Arm::A => self.a,
            Arm::Control => self.control,
            Arm::B => self.b,
        }
    }
}

fn half_log_ratio(over: [f64; 2], under: [f64; 2]) -> f64 {
    0.5 * (over[0].ln() + over[1].ln() - under[0].ln() - under[1].ln())
}

/// The complete blocks of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// Complete blocks by number.
    pub complete: Vec<Block>,
    /// Says that an incomplete last block was dropped.
    pub dropped: Option<String>,
}

/// Groups timed elements into blocks and drops an incomplete last one.
///
/// # Errors
/// A time that is not above 0, a block in neither order, or an incomplete block
/// before the last.
pub fn blocks(samples: &[Sample]) -> Result<Blocks, StatsError> {
    let mut by_block: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        by_block.entry(sample.block).or_default().push(sample);
    }
    let mut complete = Vec::with_capacity(by_block.len());
    let mut dropped = None;
    let last = by_block.keys().next_back().copied();
    for (index, mut elements) in by_block {
        elements.sort_by_key(|sample| sample.position);
        let order = order_of(index, &elements)?;
        let times = elements
            .iter()
            .map(|sample| ms_per_token(sample))
            .collect::<Result<Vec<f64>, StatsError>>()?;
        let Ok(times) = <[f64; 6]>::try_from(times) else {
            if Some(index) != last {
                return Err(StatsError::Gap {
                    block: index,
                    found: elements.len(),
                });
            }
            dropped = Some(format!(
                "the last block had {} of 6 elements and is left out of the statistics",
                elements.len()
            ));
            continue;
        };
        let (outer, inner) = ([times[0], times[5]], [times[2], times[3]]);
        let (a, b) = if order[0] == Arm::A {
            (outer, inner)
        } else {
            (inner, outer)
        };
        complete.push(Block {
            index,
            a,
            control: [times[1], times[4]],
            b,
            seconds: elements.iter().map(|s| s.wall_ns as f64 * 1e-9).sum(),
        });
    }
    Ok(Blocks { complete, dropped })
}

/// The order that the elements begin.
fn order_of(block: u32, elements: &[&Sample]) -> Result<[Arm; 6], StatsError> {
    ORDERS
        .into_iter()
        .find(|order| {
            elements.len() <= order.len()
                && elements
                    .iter()
                    .enumerate()
                    .all(|(at, s)| usize::from(s.position) == at && s.arm == order[at])
        })
        .ok_or_else(|| StatsError::Order {
            block,
            found: elements
                .iter()
                .map(|s| format!("{}:{}", s.position, s.arm))
                .collect::<Vec<_>>()
                .join(" "),
        })
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
