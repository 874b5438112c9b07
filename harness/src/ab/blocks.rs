//! Paired blocks of timed elements.

use super::{Request, element::Timed, sentinel::Sentinel};
use crate::{bench::WARM_UP, interrupt, progress::phase};
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use results::{
    draw::{shuffle, split_mix},
    journal::JournalWriter,
    record::{self, Line},
    stats::MIN_BLOCKS,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

/// How many blocks are measured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until<'s> {
    /// As many as the request's budget holds, and one at least.
    Budget,
    /// A replicate's, each followed by its sentinel.
    Count {
        /// Number of the replicate.
        replicate: u32,
        /// Blocks of each replicate.
        blocks: u32,
        /// Seed of the coin.
        seed: u64,
        /// What follows the machine.
        sentinel: &'s Sentinel,
    },
}

impl Until<'_> {
    const fn is_budget(&self) -> bool {
        matches!(self, Self::Budget)
    }

    const fn seed(&self, request: &Request<'_>) -> u64 {
        match self {
            Self::Budget => request.seed,
            Self::Count { seed, .. } => *seed,
        }
    }

    const fn numbers(&self) -> Range<u32> {
        match *self {
            Self::Budget => 0..u32::MAX,
            Self::Count {
                replicate, blocks, ..
            } => replicate * blocks..(replicate + 1) * blocks,
        }
    }

    /// The block, from the first, whose every element is compared after its time: drawn
    /// among all, or of a budget among as many as a verdict needs.
    fn drawn(&self, request: &Request<'_>) -> u32 {
        let mut state = !self.seed(request);
        let among = match *self {
            Self::Budget => MIN_BLOCKS as u64,
            Self::Count { blocks, .. } => u64::from(blocks),
        };
        (split_mix(&mut state) % among) as u32
    }

    fn tell(&self, bar: &ProgressBar, request: &Request<'_>, block: u32, spent: Duration) {
        match self {
            Self::Budget => {
                bar.set_position(spent.min(request.budget).as_secs());
                bar.set_message(format!(
                    "block {}, {} s of measuring left",
                    block + 1,
                    request.budget.saturating_sub(spent).as_secs()
                ));
            }
            Self::Count {
                replicate, blocks, ..
            } => bar.set_message(format!(
                "replicate {replicate}, block {} of {blocks}",
                block - replicate * blocks + 1
            )),
        }
    }
}

/// Measures; the tokens that each arm made, or nothing where it was interrupted. A block
/// is the arms once, in the order that [`half_block`] draws, and then the same backwards;
/// A' is arm A compiled a second time.
pub(super) fn blocks(
    timed: &dyn Timed,
    request: &Request<'_>,
    until: Until<'_>,
    bar: &ProgressBar,
    journal: &mut JournalWriter,
) -> Result<Option<BTreeMap<record::Arm, Vec<u32>>>> {
    phase(bar, "warming up");
    let begin = Instant::now();
    let mut warm = false;
    while !warm || begin.elapsed() < WARM_UP {
        for kind in timed.kinds() {
            timed.element(kind)?;
        }
        warm = true;
    }
    let mut coin = until.seed(request);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let mut tokens: BTreeMap<record::Arm, Vec<u32>> = BTreeMap::new();
    let numbers = until.numbers();
    let drawn = numbers.start + until.drawn(request);
    let mut block = numbers.start;
    while numbers.contains(&block) {
        let out_of_time = start.elapsed() + longest > request.budget;
        if until.is_budget() && out_of_time && block > numbers.start {
            break;
        }
        let block_start = Instant::now();
        let half = half_block(request, &mut coin);
        let order = half.iter().chain(half.iter().rev()).copied();
        for (position, kind) in order.enumerate() {
            if interrupt::asked() {
                return Ok(None);
            }
            until.tell(bar, request, block, start.elapsed());
            let done = timed.element(kind)?;
            if block == drawn {
                timed.require_right(kind)?;
            }
            // Every arm does the same work: the tokens of an arm never change.
            let known = tokens.entry(kind).or_insert_with(|| done.made.clone());
            if *known != done.made {
                bail!(
                    "block {block}: an arm made other tokens than before; the output is not stable"
                );
            }
            journal.append(&Line::Sample(record::Sample {
                block,
                position: position as u8,
                arm: kind,
                tokens: done.tokens as u32,
                dispatches: done.dispatches,
                wall_ns: done.wall_ns,
                spans: done.spans,
            }))?;
        }
        longest = longest.max(block_start.elapsed());
        if let Until::Count { sentinel, .. } = until {
            journal.append(&Line::Sentinel(record::Sentinel {
                block,
                wall_ns: sentinel.time(timed.gpu())?,
            }))?;
        }
        block += 1;
    }
    Ok(Some(tokens))
}
/// The order of a block's first half: of one flag A A' B or B A' A (published
/// A A' S B or B S A' A), by a seeded coin; of two any order of the arms, each as likely.
fn half_block(request: &Request<'_>, coin: &mut u64) -> Vec<record::Arm> {
    use record::Arm::{A, B, Control, Slowed};
    let two_flags = request.arms.len() >= 4;
    if !two_flags {
        let heads = split_mix(coin) & 1 == 0;
        return match (request.publish.is_some(), heads) {
            (false, true) => vec![A, Control, B],
            (false, false) => vec![B, Control, A],
            (true, true) => vec![A, Control, Slowed, B],
            (true, false) => vec![B, Slowed, Control, A],
        };
    }
    let mut half: Vec<record::Arm> = request.timed().to_vec();
    shuffle(&mut half, coin);
    half
}
