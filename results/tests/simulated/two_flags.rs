//! A simulated A/B of two flags.

use std::collections::BTreeMap;

use results::record::{
    Arm, Check, Context, End, Line, Prefill, Replicate, ReplicateEnd, Run, Sample, Sentinel, Status,
};

use super::published::published_run;
use super::{Random, World, check, hash, run, sample, token_ns};

/// A world in which each change multiplies the time, and both together multiply it
/// once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwoFlags {
    /// Seed, blocks, noise and drift; its effect is the first flag's.
    pub(crate) world: World,
    /// True log ratio of the second flag's change.
    pub(crate) second: f64,
    /// True log ratio of the interaction.
    pub(crate) interaction: f64,
}

impl TwoFlags {
    /// Twelve quiet blocks.
    pub(crate) fn new(seed: u64, first: f64, second: f64, interaction: f64) -> Self {
        Self {
            world: World::new(seed, first),
            second,
            interaction,
        }
    }

    fn shift(&self, arm: Arm) -> f64 {
        match arm {
            Arm::A => 0.0,
            Arm::Control => self.world.control,
            Arm::B => self.world.effect,
            Arm::C => self.second,
            Arm::D => self.world.effect + self.second + self.interaction,
            Arm::Slowed => 0.0,
        }
    }

    /// Its samples: every arm in a drawn order, and the same backwards.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let run = two_flags_run();
        let mut random = Random(self.world.seed);
        let elements = 10.0 * f64::from(self.world.blocks);
        let mut samples = Vec::new();
        for block in 0..self.world.blocks {
            let mut half = Arm::OF_TWO_FLAGS.to_vec();
            for last in (1..half.len()).rev() {
                half.swap(last, (random.bits() % (last as u64 + 1)) as usize);
            }
            let order = half.iter().chain(half.iter().rev());
            for (position, &arm) in (0u8..).zip(order) {
                let time = f64::from(block * 10 + u32::from(position)) / elements;
                let noise = self.world.noise * random.normal();
                let log = self.shift(arm) + noise + self.world.drift * time;
                samples.push(sample(&run, block, position, arm, log));
            }
        }
        samples
    }

    /// The elements of a published run's replicate. In each of them every change has a shift
    /// of its own, of a standard deviation of 0.4 %.
    pub(crate) fn replicate(&self, index: u32) -> Vec<Sample> {
        let run = published_two_flags_run();
        let mut random = Random(self.world.seed ^ (u64::from(index + 1) << 32));
        let mut own: BTreeMap<Arm, f64> = BTreeMap::new();
        for arm in [Arm::B, Arm::C, Arm::D] {
            own.insert(arm, 0.004 * random.normal());
        }
        let count = self.world.blocks;
        let mut samples = Vec::new();
        for block in index * count..(index + 1) * count {
            let mut half = run.timed().to_vec();
            for last in (1..half.len()).rev() {
                half.swap(last, (random.bits() % (last as u64 + 1)) as usize);
            }
            let order = half.iter().chain(half.iter().rev());
            for (position, &arm) in (0u8..).zip(order) {
                let slowed = if arm == Arm::Slowed { 0.06 } else { 0.0 };
                let shift = self.shift(arm) + slowed + own.get(&arm).unwrap_or(&0.0);
                let log = shift + self.world.noise * random.heavy();
                samples.push(sample(&run, block, position, arm, log));
            }
        }
        samples
    }

    /// The lines of a published run of as many replicates.
    pub(crate) fn published_lines(&self, replicates: u32) -> Vec<Line> {
        let run = published_two_flags_run();
        let mut lines: Vec<Line> = checks(&run).into_iter().map(Line::Check).collect();
        for index in 0..replicates {
            lines.push(Line::Replicate(Replicate {
                index,
                seed: 1,
                made: run.timed().to_vec(),
                load: None,
            }));
            let mut last = None;
            for sample in self.replicate(index) {
                if last.is_some_and(|block| block != sample.block) {
                    lines.push(sentinel(sample.block - 1));
                }
                last = Some(sample.block);
                lines.push(Line::Sample(sample));
            }
            lines.extend(last.map(sentinel));
            lines.push(Line::ReplicateEnd(ReplicateEnd {
                index,
                tokens_sha256: BTreeMap::new(),
            }));
        }
        lines.insert(0, Line::Run(Box::new(run)));
        lines
    }

    /// Every line of a complete journal.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let run = two_flags_run();
        let mut lines: Vec<Line> = checks(&run).into_iter().map(Line::Check).collect();
        let arms: Vec<Arm> = run.plans().map(|(arm, _)| arm).collect();
        for &arm in &arms {
            lines.push(Line::Prefill(Prefill {
                arm,
                index: 0,
                tokens: 41,
                wall_ns: 41 * token_ns(20, self.shift(arm)),
            }));
        }
        lines.extend(self.samples().into_iter().map(Line::Sample));
        for context in [64, 128, 256] {
            lines.extend(arms.iter().map(|&arm| {
                Line::Context(Context {
                    arm,
                    context,
                    tokens: 4,
                    wall_ns: 4 * token_ns(context, self.shift(arm)),
                })
            }));
        }
        lines.push(Line::End(End {
            status: Status::Complete,
            reason: None,
        }));
        lines.insert(0, Line::Run(Box::new(run)));
        lines
    }
}

fn sentinel(block: u32) -> Line {
    Line::Sentinel(Sentinel {
        block,
        wall_ns: 20_000_000,
    })
}

/// The `run` line of the same for publication.
pub(crate) fn published_two_flags_run() -> Run {
    let of_one = published_run();
    let mut run = two_flags_run();
    run.command = "cargo xtask ab --flags splitk,fuseqk --publish".to_owned();
    run.mode = of_one.mode;
    run.adapter = of_one.adapter;
    run.publish = of_one.publish;
    run.arms.extend(of_one.arms.last().cloned());
    run
}

fn checks(run: &Run) -> Vec<Check> {
    let arms = run.plans();
    arms.map(|(arm, _)| check(arm, "logits.0", "logits", 0.4))
        .collect()
}

/// The `run` line of a simulated A/B of split-K and of a fusion.
pub(crate) fn two_flags_run() -> Run {
    let mut of_one = run();
    let [off, split] = of_one.arms.clone().try_into().expect("two arms");
    of_one.id = "2026-11-30-splitk-fuseqk".to_owned();
    of_one.flag = "splitk,fuseqk".to_owned();
    of_one.command = "cargo xtask ab --flags splitk,fuseqk".to_owned();
    of_one.arms = [(&off, false), (&split, false), (&off, true), (&split, true)]
        .map(|(plan, fused)| {
            let mut plan = plan.clone();
            plan.name = format!("{} fuseqk={}", plan.name, u8::from(fused));
            if fused {
                plan.shaders.insert("fused".to_owned(), hash("fused"));
            }
            plan
        })
        .to_vec();
    of_one
}
