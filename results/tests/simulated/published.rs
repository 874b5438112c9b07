//! Simulated published runs: worlds whose truth is known.

use std::collections::BTreeMap;

use results::record::{
    Arm, Check, End, Line, Mode, Publish, Replicate, ReplicateEnd, Roof, Run, Sample, Sentinel,
    Status,
};

use results::stats::{LAG_LIMIT, MODES_LIMIT};

use super::{Random, checks, run, sample};

/// A world to draw replicates from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyWorlds {
    /// Seed of everything.
    pub(crate) seed: u64,
    /// True log ratio of B against A.
    pub(crate) effect: f64,
    /// True log ratio of the slowed arm against A.
    pub(crate) slowed: f64,
    /// Standard deviation of what a replicate adds to B's log ratio.
    pub(crate) between: f64,
    /// Standard deviation of an element's log time.
    pub(crate) noise: f64,
    /// Whether the noise has heavy tails.
    pub(crate) heavy: bool,
    /// Drift of the log time over a replicate.
    pub(crate) drift: f64,
    /// Share of blocks whose sentinel is off.
    pub(crate) disturbed: f64,
    /// What a clock that jumps adds to the log times of every other block, on average.
    pub(crate) jump: f64,
    /// Share of the last block's excursion that the control's next one keeps, of a standard
    /// deviation of 10 %; 0 without excursions.
    pub(crate) kept: f64,
}

impl ManyWorlds {
    /// Heavy-tailed noise of 1 % and a spread of 0.4 % between replicates.
    pub(crate) fn new(seed: u64, effect: f64) -> Self {
        Self {
            seed,
            effect,
            slowed: 0.06,
            between: 0.004,
            noise: 0.01,
            heavy: true,
            drift: 0.0,
            disturbed: 0.0,
            jump: 0.0,
            kept: 0.0,
        }
    }

    /// The lines of one replicate: the same whenever it is drawn.
    pub(crate) fn replicate(&self, index: u32) -> Vec<Line> {
        let run = published_run();
        let publish = run.publish.as_ref().expect("a published run");
        let mut random = Random(self.seed ^ (u64::from(index + 1) << 32));
        let mut lines = vec![Line::Replicate(Replicate {
            index,
            seed: random.bits(),
            made: Arm::OF_PUBLISHED.to_vec(),
            load: Some(0.5),
        })];
        lines.extend(self.checks(index).into_iter().map(Line::Check));
        let own = self.between * random.normal();
        let mut excursion = 0.0;
        for block in index * publish.blocks..(index + 1) * publish.blocks {
            if self.kept > 0.0 {
                let fresh = (1.0 - self.kept.powi(2)).sqrt() * 0.1 * random.normal();
                excursion = self.kept * excursion + fresh;
            }
            let jump = if self.jump > 0.0 && random.unit() < 0.5 {
                self.jump
            } else {
                0.0
            };
            lines.extend(self.block(&run, block, [own, excursion, jump], &mut random));
            let off = if random.unit() < self.disturbed {
                0.2
            } else {
                0.0
            };
            let log = off + 0.001 * random.normal();
            lines.push(Line::Sentinel(Sentinel {
                block,
                wall_ns: (2e7 * log.exp()) as u64,
            }));
        }
        lines.push(Line::ReplicateEnd(ReplicateEnd {
            index,
            tokens_sha256: Arm::OF_PUBLISHED
                .iter()
                .map(|&arm| (arm, "a made-up hash".to_owned()))
                .collect::<BTreeMap<_, _>>(),
        }));
        lines
    }

    fn checks(&self, index: u32) -> Vec<Check> {
        let mut all: Vec<Check> = checks().into_iter().take(4).collect();
        for check in &mut all {
            check.stage = format!("replicate {index}.before.{}", check.stage);
        }
        all
    }

    /// A block whose B has a shift of its own, whose control has another, and all of whose
    /// times have one.
    fn block(
        &self,
        run: &Run,
        block: u32,
        [own, excursion, jump]: [f64; 3],
        random: &mut Random,
    ) -> Vec<Line> {
        use Arm::{A, B, Control, Slowed};
        let half = if random.bits() & 1 == 0 {
            [A, Control, Slowed, B]
        } else {
            [B, Slowed, Control, A]
        };
        let order: Vec<Arm> = half.iter().chain(half.iter().rev()).copied().collect();
        let blocks = run.publish.as_ref().expect("a published run").blocks;
        let place = |position: u8| {
            let elements = (block % blocks) * 8 + u32::from(position);
            f64::from(elements) / f64::from(8 * blocks)
        };
        (0u8..)
            .zip(order)
            .map(|(position, arm)| {
                let shift = match arm {
                    B => self.effect + own,
                    Slowed => self.slowed,
                    Control => excursion,
                    A | Arm::C | Arm::D => 0.0,
                };
                let noise = if self.heavy {
                    random.heavy()
                } else {
                    random.normal()
                };
                let log = jump + shift + self.noise * noise + self.drift * place(position);
                Line::Sample(sample(run, block, position, arm, log))
            })
            .collect()
    }
}

/// The `run` line of a simulated published A/B.
pub(crate) fn published_run() -> Run {
    let mut run = run();
    run.mode = Mode::Published;
    run.adapter.device_type = "discrete_gpu".to_owned();
    run.command = "cargo xtask ab --flag splitk --publish".to_owned();
    let mut slowed = run.arms[0].clone();
    slowed.name = "splitk=0 with 6.0 % more work".to_owned();
    *slowed.by_role.get_mut("int4_matmul").expect("a role") += 14;
    slowed.dispatches_per_token += 14;
    run.arms.push(slowed);
    run.publish = Some(Publish {
        arguments: ["ab", "--flag", "splitk", "--publish"]
            .map(str::to_owned)
            .to_vec(),
        blocks: 12,
        looks: vec![5, 8, 12],
        alpha: 0.05 / 3.0,
        sentinel_limit: 0.0198,
        modes_limit: Some(MODES_LIMIT),
        lag_limit: Some(LAG_LIMIT),
        slowed_share: 0.062,
        roof: Roof {
            read_gb_s: 20.0,
            dispatch_us: 30.0,
        },
        chosen_from: vec![],
    });
    run
}

/// The lines of a complete journal of this many replicates.
pub(crate) fn published_lines(world: &ManyWorlds, replicates: u32) -> Vec<Line> {
    let mut run = published_run();
    run.seed = world.seed;
    let mut lines = vec![Line::Run(Box::new(run.clone()))];
    lines.extend(checks().into_iter().map(Line::Check));
    let slowed = checks().into_iter().filter(|check| check.arm == Arm::A);
    lines.extend(slowed.map(|check| {
        Line::Check(Check {
            arm: Arm::Slowed,
            ..check
        })
    }));
    for index in 0..replicates {
        lines.extend(world.replicate(index));
    }
    lines.push(Line::End(End {
        status: Status::Complete,
        reason: None,
    }));
    lines
}

/// The timed elements among lines.
pub(crate) fn samples(lines: &[Line]) -> Vec<Sample> {
    let mut samples = Vec::new();
    for line in lines {
        if let Line::Sample(sample) = line {
            samples.push(sample.clone());
        }
    }
    samples
}
