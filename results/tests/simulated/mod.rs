//! Simulated runs for tests: a seeded generator stands for the machine. Nothing
//! here was measured, and nothing made by it belongs under `results/data/`.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod published;
pub(crate) mod two_flags;

use std::collections::BTreeMap;

use results::draw::split_mix;
use results::record::{
    Adapter, Arm, ArmPlan, Bench, Check, Context, End, Environment, Line, Metric, Mode, Model,
    Prefill, Prompt, Roof, Run, SCHEMA, Sample, Span, Status, Weights,
};

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Uniform, above 0 and below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Standard normal, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Student's t with 3 degrees of freedom, scaled to a standard deviation of 1.
    pub(crate) fn heavy(&mut self) -> f64 {
        let squares: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / squares.sqrt()
    }
}

/// A world to sample from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World {
    /// Seed of coin and noise.
    pub(crate) seed: u64,
    /// Complete blocks.
    pub(crate) blocks: u32,
    /// True log ratio of B against A.
    pub(crate) effect: f64,
    /// Log ratio of A' against A; 0 unless the machine is broken.
    pub(crate) control: f64,
    /// Standard deviation of an element's log time.
    pub(crate) noise: f64,
    /// Whether the noise has heavy tails.
    pub(crate) heavy: bool,
    /// Drift of the log time from the first element to the last.
    pub(crate) drift: f64,
}

impl World {
    /// Twelve quiet blocks.
    pub(crate) fn new(seed: u64, effect: f64) -> Self {
        Self {
            seed,
            blocks: 12,
            effect,
            control: 0.0,
            noise: 0.01,
            heavy: false,
            drift: 0.0,
        }
    }

    /// Its samples, as the harness would write them for [`run`].
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let run = run();
        let mut random = Random(self.seed);
        let mut samples = Vec::new();
        let elements = 6.0 * f64::from(self.blocks);
        for block in 0..self.blocks {
            let mut order = [Arm::A, Arm::Control, Arm::B, Arm::B, Arm::Control, Arm::A];
            if random.bits() & 1 == 1 {
                order = order.map(|arm| match arm {
                    Arm::A => Arm::B,
                    Arm::B => Arm::A,
                    Arm::Control | Arm::C | Arm::D | Arm::Slowed => arm,
                });
            }
            for (position, arm) in (0u8..).zip(order) {
                let shift = match arm {
                    Arm::A => 0.0,
                    Arm::Control => self.control,
                    Arm::B | Arm::C | Arm::D | Arm::Slowed => self.effect,
                };
                let noise = if self.heavy {
                    random.heavy()
                } else {
                    random.normal()
                };
                let time = f64::from(block * 6 + u32::from(position)) / elements;
                let log = shift + self.noise * noise + self.drift * time;
                samples.push(sample(&run, block, position, arm, log));
            }
        }
        samples
    }
}

pub(crate) fn sample(run: &Run, block: u32, position: u8, arm: Arm, log: f64) -> Sample {
    let plan = run.plan(arm);
    let spans: Vec<Span> = (0..run.decode_tokens / 4)
        .map(|part| {
            let context = run.prompt.tokens + 4 * part;
            Span {
                context,
                tokens: 4,
                wall_ns: token_ns(context, log) * 4,
            }
        })
        .collect();
    Sample {
        block,
        position,
        arm,
        tokens: run.decode_tokens,
        dispatches: u64::from(plan.dispatches_per_token) * u64::from(run.decode_tokens),
        wall_ns: spans.iter().map(|span| span.wall_ns).sum(),
        spans,
    }
}

fn token_ns(context: u32, log: f64) -> u64 {
    (150e6 * (1.0 + f64::from(context) / 2000.0) * log.exp()) as u64
}

fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn counts(pairs: &[(&str, u32)]) -> BTreeMap<String, u32> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), *value))
        .collect()
}

/// A made-up SHA-256.
pub(crate) fn hash(of: &str) -> String {
    let mut random = Random(
        of.bytes()
            .fold(7, |sum, byte| sum.rotate_left(7) ^ u64::from(byte)),
    );
    (0..4).map(|_| format!("{:016x}", random.bits())).collect()
}

/// The `run` line of a simulated A/B of split-K.
pub(crate) fn run() -> Run {
    let shared = [
        ("add_norm", 60),
        ("argmax", 1),
        ("attention", 30),
        ("embedding", 1),
        ("fused_ffn", 30),
        ("int4_matmul", 61),
        ("qkv_fused", 30),
        ("rms_norm", 1),
    ];
    let mut split: Vec<(&str, u32)> = shared
        .into_iter()
        .filter(|(role, _)| *role != "attention")
        .collect();
    split.extend([("attention_splitk", 30), ("attention_combine", 30)]);
    let names = |roles: &[(&str, u32)]| {
        roles
            .iter()
            .map(|(role, _)| (format!("{role}_scalar_f16"), hash(role)))
            .collect()
    };
    Run {
        schema: SCHEMA,
        id: "2026-11-30-splitk".to_owned(),
        started_utc: "2026-11-30T04:05:06Z".to_owned(),
        command: "cargo xtask ab --flag splitk --seed 7".to_owned(),
        flag: "splitk".to_owned(),
        mode: Mode::Screening,
        model: Model {
            id: "smollm2-135m".to_owned(),
            name: "SmolLM2-135M-Instruct".to_owned(),
            title: "SmolLM2 (requantised)".to_owned(),
            weights: Weights::Gguf,
            weights_sha256: hash("weights"),
            parameters: 134_515_008,
            bytes_per_token: 75_800_000,
            flops_per_token: Some(268_960_000),
        },
        adapter: Adapter {
            name: "Simulated adapter".to_owned(),
            vendor: "none".to_owned(),
            device_type: "cpu".to_owned(),
            backend: "vulkan".to_owned(),
            driver: "simulation".to_owned(),
            driver_info: "seeded generator, nothing measured".to_owned(),
            features: vec!["shader-f16".to_owned(), "subgroup".to_owned()],
            limits: [("max_storage_buffers_per_shader_stage".to_owned(), 8)].into(),
            timestamp_query: true,
        },
        environment: Environment {
            os: "Debian GNU/Linux 12".to_owned(),
            cpu: "Simulated processor".to_owned(),
            cores: 2,
            memory_bytes: 8_000_000_000,
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            dirty: true,
            toolchain: "rustc 1.95.0".to_owned(),
            runtime_checks: "bounds checks off, loop bounding off".to_owned(),
            governor: None,
            power: None,
            container: None,
            load: None,
        },
        seed: 7,
        prompt: Prompt {
            name: "chat_sky".to_owned(),
            tokens: 41,
        },
        second_turn_tokens: None,
        decode_tokens: 16,
        budget_s: 90.0,
        metric: Metric::Decode,
        margin: 0.02,
        margin_from: None,
        arms: vec![
            ArmPlan {
                name: "splitk=0".to_owned(),
                settings: text(&[("splitk", "0"), ("elem", "f16")]),
                dispatches_per_token: 214,
                by_role: counts(&shared),
                prefill_dispatches: None,
                second_turn_dispatches: None,
                element_dispatches: None,
                shaders: names(&shared),
            },
            ArmPlan {
                name: "splitk=8".to_owned(),
                settings: text(&[("splitk", "8"), ("elem", "f16")]),
                dispatches_per_token: 244,
                by_role: counts(&split),
                prefill_dispatches: None,
                second_turn_dispatches: None,
                element_dispatches: None,
                shaders: names(&split),
            },
        ],
        excluded: vec!["int8kv".to_owned()],
        publish: None,
        bench: None,
        timer: None,
        notes: vec!["a simulation: a seeded generator made these times".to_owned()],
    }
}

/// A check that passed.
pub(crate) fn check(arm: Arm, stage: &str, role: &str, ratio: f64) -> Check {
    Check {
        arm,
        stage: stage.to_owned(),
        role: role.to_owned(),
        elements: 576,
        worst_abs: 1e-3 * ratio,
        worst_rel: 2e-3 * ratio,
        bound: 1e-3,
        worst_ratio: ratio,
        passed: ratio <= 1.0,
        note: None,
    }
}

/// All checks of a run, passed.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let run = run();
    for (arm, plan) in [Arm::A, Arm::B].into_iter().zip(&run.arms) {
        for role in plan.by_role.keys() {
            for layer in 0..3u8 {
                let stage = format!("layers.{layer}.{role}");
                checks.push(check(arm, &stage, role, 0.2 + 0.1 * f64::from(layer)));
            }
        }
        checks.push(check(arm, "logits", "int4_matmul", 0.41));
        checks.push(check(arm, "greedy", "argmax", 0.0));
    }
    checks.push(check(Arm::B, "arm against arm", "int4_matmul", 0.37));
    checks
}

/// Every line of a complete journal of this world.
pub(crate) fn lines(run: Run, world: &World) -> Vec<Line> {
    let mut random = Random(world.seed ^ 0xabc);
    let mut lines = vec![Line::Run(Box::new(run))];
    lines.extend(checks().into_iter().map(Line::Check));
    for index in 0..3 {
        for (arm, shift) in [(Arm::A, 0.0), (Arm::B, world.effect)] {
            let log = shift + world.noise * random.normal();
            lines.push(Line::Prefill(Prefill {
                arm,
                index,
                tokens: 41,
                wall_ns: 41 * token_ns(20, log),
            }));
        }
    }
    lines.extend(world.samples().into_iter().map(Line::Sample));
    for context in [64, 128, 256, 512, 1024] {
        for _ in 0..3 {
            for (arm, shift) in [(Arm::A, 0.0), (Arm::B, world.effect)] {
                let log = shift + world.noise * random.normal();
                lines.push(Line::Context(Context {
                    arm,
                    context,
                    tokens: 4,
                    wall_ns: 4 * token_ns(context, log),
                }));
            }
        }
    }
    lines.push(Line::End(End {
        status: Status::Complete,
        reason: None,
    }));
    lines
}

/// The lines as the text of a journal.
pub(crate) fn journal_text(lines: &[Line]) -> String {
    lines
        .iter()
        .map(|line| serde_json::to_string(line).expect("a line is always JSON") + "\n")
        .collect()
}

/// The lines of a timing of whole tokens of this id, one repetition for each pair of times:
/// to the first token, and of the tokens after it.
pub(crate) fn bench_lines(id: &str, times: &[[u64; 2]]) -> Vec<Line> {
    let mut run = run();
    run.id = id.to_owned();
    run.command = "cargo xtask bench --tokens 16".to_owned();
    run.flag = String::new();
    run.arms.truncate(1);
    (run.margin, run.budget_s) = (0.0, 0.0);
    run.adapter.device_type = "discrete_gpu".to_owned();
    run.model.bytes_per_token = 4_000_000;
    run.bench = Some(Bench {
        roof: Roof {
            read_gb_s: 4.0,
            dispatch_us: 2.0,
        },
        kv_bytes_per_token: 100_000,
        kv_flops_per_token: Some(200_000),
    });
    let (prompt, tokens) = (run.prompt.tokens, run.decode_tokens);
    let dispatches = u64::from(run.arms[0].dispatches_per_token) * u64::from(tokens);
    let mut lines = vec![Line::Run(Box::new(run))];
    lines.push(Line::Check(check(Arm::A, "logits", "int4_matmul", 0.41)));
    for (index, &[first, rest]) in (0..).zip(times) {
        lines.push(Line::Prefill(Prefill {
            arm: Arm::A,
            index,
            tokens: prompt,
            wall_ns: first,
        }));
        lines.push(Line::Sample(Sample {
            block: index,
            position: 0,
            arm: Arm::A,
            tokens,
            dispatches,
            wall_ns: rest,
            spans: vec![],
        }));
    }
    lines.push(Line::End(End {
        status: Status::Complete,
        reason: None,
    }));
    lines
}
