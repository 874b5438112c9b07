//! The first line of a journal: what was measured, on what, and how.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Arm, SCHEMA};

/// The first line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of the line types, [`SCHEMA`] when written by this build.
    pub schema: u32,
    /// Name of the report's folder and of the journal, `2026-11-30-splitk`.
    pub id: String,
    /// Start of the run, UTC, RFC 3339, as given by the caller.
    pub started_utc: String,
    /// The command line, as the user can type it again.
    pub command: String,
    /// The flag under test, `splitk`; two flags as `splitk,fuseqk`.
    pub flag: String,
    /// How much evidence the run gathers.
    pub mode: Mode,
    /// The model and its weights.
    pub model: Model,
    /// The adapter that ran the kernels.
    pub adapter: Adapter,
    /// The machine and the build.
    pub environment: Environment,
    /// Seed of the coin, of the prompt's ids and of synthetic weights.
    pub seed: u64,
    /// The prompt that both arms saw.
    pub prompt: Prompt,
    /// Tokens of the second turn's prompt, where that turn is the metric: the first
    /// prompt, the reply to it and what is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_turn_tokens: Option<u32>,
    /// Tokens decoded in each timed element.
    pub decode_tokens: u32,
    /// Time that measuring may take, seconds; 0 of a timing of whole tokens.
    pub budget_s: f64,
    /// The quantity that the verdict is about.
    pub metric: Metric,
    /// Half-width of "no difference that matters", as a log ratio: 0.02 is 2 %; 0 of a
    /// timing of whole tokens, which judges nothing.
    pub margin: f64,
    /// What the margin was found of before the run, where nobody gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin_from: Option<Spread>,
    /// What the arms run: A, the baseline, and B; of two flags A, B, C and D, the
    /// baseline, each change alone, and both; of a published run also S, the baseline
    /// slowed.
    pub arms: Vec<ArmPlan>,
    /// What a published run declares before it measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publish>,
    /// What a timing of whole tokens adds, which has one arm and compares nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<Bench>,
    /// What timed single dispatches; absent of whole tokens, whose clock is the wall's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer: Option<TimerGrade>,
    /// Flags that the flag under test excludes; they are off in both arms.
    pub excluded: Vec<String>,
    /// Anything that a reader of the result must know.
    pub notes: Vec<String>,
}

/// How much evidence a run gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One process, blocks of six elements: good for choosing what to measure
    /// properly, not for publication.
    Screening,
    /// Replicates in fresh processes, with a slowed arm and a sentinel; it stops at looks
    /// that were declared beforehand.
    Published,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Screening => "screening",
            Self::Published => "published",
        })
    }
}

/// What a published run declares before it measures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publish {
    /// The words of the command line after the program, with which a stopped run goes on.
    pub arguments: Vec<String>,
    /// Blocks of each replicate.
    pub blocks: u32,
    /// Numbers of replicates at which the record is judged, ascending.
    pub looks: Vec<u32>,
    /// Error rate of each look, two-sided.
    pub alpha: f64,
    /// A block counts only where the sentinel after it is within this of the median of
    /// its replicate, a log ratio.
    pub sentinel_limit: f64,
    /// A replicate counts only where the baseline's times are not of two groups farther
    /// apart than this many standard deviations within them; absent of a run that did not
    /// declare it, where it is reported and not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes_limit: Option<f64>,
    /// A replicate counts only where the control's neighbouring blocks do not go together
    /// more than this, an autocorrelation; absent likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_limit: Option<f64>,
    /// Weight bytes that the slowed arm reads more than the baseline, as a share of the
    /// baseline's; of one dispatch, the dispatches that it makes more.
    pub slowed_share: f64,
    /// The adapter's bounds as measured before the first replicate.
    pub roof: Roof,
    /// The values among which arm B was chosen, as screening runs read them; none where it
    /// was not chosen by its time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chosen_from: Vec<Candidate>,
}

/// What a test of known work found of the adapter's timestamps, before they were used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimerGrade {
    /// Whether times are taken from timestamps; else from the wall clock.
    pub timestamps: bool,
    /// Why not, or nothing.
    pub reasons: Vec<String>,
    /// Nanoseconds of a tick.
    pub tick_ns: f64,
    /// GPU and wall time of the known work once, twice and four times, in nanoseconds.
    pub known_work_ns: [[u64; 2]; 3],
}

impl TimerGrade {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self.timestamps {
            true => "GPU timestamps",
            false => "wall time",
        }
    }
}

/// What a run of one dispatch reads where nothing differs, in blocks of A and A' alone
/// before its first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Blocks.
    pub blocks: u32,
    /// 95th percentile of the absolute log ratio of A' and A in them.
    pub p95: f64,
}

impl Spread {
    /// The least margin, 1 %.
    pub const LEAST: f64 = 0.01;

    /// The margin that it asks for: twice as much as control blocks differ by, and no less
    /// than [`Self::LEAST`].
    pub const fn margin(&self) -> f64 {
        Self::LEAST.max(2.0 * self.p95)
    }
}

/// A timing of whole tokens: arm A alone. A prefill and the sample of its number are one
/// repetition: the prompt up to its first token, and the tokens after it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    /// The adapter's bounds as measured before.
    pub roof: Roof,
    /// Bytes of keys and values that a decoded token reads, the mean of those timed.
    pub kv_bytes_per_token: u64,
    /// Operations with these, two for each multiply-add; absent of records that are older
    /// than the count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_flops_per_token: Option<u64>,
}

/// A value of the flag as the run that chose among several read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The arm's name, `splitk=4`.
    pub name: String,
    /// The screening run against arm A.
    pub run: String,
    /// Its effect there, a log ratio.
    pub effect: f64,
}

impl Candidate {
    /// The one that took the least time; of equals the first. That it looked best is partly
    /// luck, so its effect flatters it: it is measured again on blocks that did not choose.
    pub fn best(all: &[Self]) -> Option<&Self> {
        all.iter().min_by(|a, b| a.effect.total_cmp(&b.effect))
    }
}

/// What an adapter can do at most, as measured there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roof {
    /// Bytes that it reads, GB/s (10^9).
    pub read_gb_s: f64,
    /// A dispatch that waits for the one before, microseconds.
    pub dispatch_us: f64,
}

/// The quantity that the verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time per decoded token.
    Decode,
    /// Time per prompt token.
    Prefill,
    /// Time to the first token of a second turn, per token of its prompt.
    SecondTurn,
    /// Time of one dispatch. The prompt names the site, `decode_tokens` are the dispatches
    /// of an element, and a plan is of one dispatch.
    Dispatch,
}

impl Metric {
    /// What a time is for: a token, or a dispatch.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Decode | Self::Prefill | Self::SecondTurn => "token",
            Self::Dispatch => "dispatch",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::SecondTurn => "second turn",
            Self::Dispatch => "dispatch",
        })
    }
}

/// The model and its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Id on the command line, `smollm2-135m`.
    pub id: String,
    /// Published name, `SmolLM2-135M-Instruct`.
    pub name: String,
    /// Name in titles; says what was done to the weights: `SmolLM2 (requantised)`.
    pub title: String,
    /// Where the weights come from.
    pub weights: Weights,
    /// SHA-256 of the weights, 64 hexadecimal digits.
    pub weights_sha256: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Bytes of weights and scales that the matmuls read for each token; of an A/B of one
    /// dispatch, that it reads.
    pub bytes_per_token: u64,
    /// Operations with these weights, two for each multiply-add, likewise; absent of records
    /// that are older than the count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops_per_token: Option<u64>,
}

impl Model {
    /// The title, which always owns up to synthetic weights.
    pub fn honest_title(&self) -> String {
        let owns_up = self.title.to_lowercase().contains("synthetic");
        match self.weights {
            Weights::Synthetic if !owns_up => format!("{} (synthetic weights)", self.title),
            Weights::Synthetic | Weights::Gguf | Weights::Mlc | Weights::Mlx => self.title.clone(),
        }
    }
}

/// Where a model's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weights {
    /// A GGUF file.
    Gguf,
    /// Seeded random values of the model's shapes.
    Synthetic,
    /// An MLC checkpoint.
    Mlc,
    /// An MLX checkpoint.
    Mlx,
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gguf => "gguf",
            Self::Synthetic => "synthetic",
            Self::Mlc => "mlc",
            Self::Mlx => "mlx",
        })
    }
}

/// The adapter that ran the kernels, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adapter {
    /// Name of the device.
    pub name: String,
    /// Vendor, a name or a PCI id.
    pub vendor: String,
    /// `cpu`, `integrated_gpu`, `discrete_gpu`, ...
    pub device_type: String,
    /// `vulkan`, `metal`, `dx12`.
    pub backend: String,
    /// Name of the driver.
    pub driver: String,
    /// Version and build of the driver.
    pub driver_info: String,
    /// Features in force, in the order given by the caller.
    pub features: Vec<String>,
    /// Limits in force by name.
    pub limits: BTreeMap<String, u64>,
    /// Whether the adapter has timestamp queries.
    pub timestamp_query: bool,
}

impl Adapter {
    /// Whether kernels run on the processor. A load costs arithmetic there, more of it in
    /// some forms than in others, so that there is no one read roof.
    pub fn is_cpu(&self) -> bool {
        self.device_type.eq_ignore_ascii_case("cpu")
    }
}

/// The machine and the build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Operating system and release.
    pub os: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Logical cores that the process may use.
    pub cores: u32,
    /// Main memory, bytes.
    pub memory_bytes: u64,
    /// Commit of the workbench.
    pub commit: String,
    /// Whether the working tree had changes that the commit lacks.
    pub dirty: bool,
    /// Compiler version.
    pub toolchain: String,
    /// Which run-time checks the shader compiler put into the kernels.
    pub runtime_checks: String,
    /// Policy of the processor's clock, `performance` for instance, where readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// `mains` or `battery`, where readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<String>,
    /// Kind of container that the process runs in, where it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Average number of processes that ran in the minute before the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
}

/// The prompt that both arms saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Name of the prompt, `chat_sky` or `seeded`.
    pub name: String,
    /// Length, tokens.
    pub tokens: u32,
}

/// What one arm runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmPlan {
    /// The value of the flag, or of both, in this arm: `splitk=0`.
    pub name: String,
    /// Every flag's resolved value by flag name.
    pub settings: BTreeMap<String, String>,
    /// Dispatches of one decoded token.
    pub dispatches_per_token: u32,
    /// The same by kernel role; sums to `dispatches_per_token`.
    pub by_role: BTreeMap<String, u32>,
    /// Dispatches of one prefill of the prompt; needed where prefill is the
    /// metric and is not the decode plan once per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_dispatches: Option<u64>,
    /// Dispatches of a second turn's prompt, where that turn is the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_turn_dispatches: Option<u64>,
    /// Dispatches of an element of an A/B of one dispatch, where they are not the run's
    /// `decode_tokens`: those of a slowed arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element_dispatches: Option<u64>,
    /// SHA-256 of every shader's text by variant id.
    pub shaders: BTreeMap<String, String>,
}

impl Run {
    /// Says what is wrong with the line, if anything: the limits that the types
    /// cannot express.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn validate(&self) -> Result<(), String> {
        if self.schema != SCHEMA {
            return Err(format!(
                "schema {} is not the version {SCHEMA} of this build",
                self.schema
            ));
        }
        validate_id(&self.id)?;
        if self.bench.is_some() {
            return self.validate_bench();
        }
        if !(self.margin.is_finite() && self.margin > 0.0 && self.margin < 1.0) {
            return Err(format!(
                "margin: expected a log ratio between 0 and 1 (0.02 is 2 %), found {}",
                self.margin
            ));
        }
        if let Some(spread) = &self.margin_from
            && (spread.margin() - self.margin).abs() > 1e-12
        {
            return Err(format!(
                "margin: expected {} of the control's {}, found {}",
                spread.margin(),
                spread.p95,
                self.margin
            ));
        }
        if !(self.budget_s.is_finite() && self.budget_s > 0.0) {
            return Err(format!(
                "budget_s: expected seconds above 0, found {}",
                self.budget_s
            ));
        }
        if self.tokens_are_none() {
            return Err(format!(
                "expected at least one token, found a prompt of {} and {} to decode",
                self.prompt.tokens, self.decode_tokens
            ));
        }
        let expected = match (&self.publish, self.mode) {
            (Some(publish), Mode::Published) => {
                publish.validate()?;
                self.validate_choice(publish)?;
                let fits = self.arms.len() == 3 || self.flags().is_some();
                (!fits).then_some("three arms of a published run, or five of two flags")
            }
            (None, Mode::Screening) if self.arms.len() == 2 || self.flags().is_some() => None,
            (None, Mode::Screening) => Some("two arms, or four of two flags"),
            (Some(_), Mode::Screening) | (None, Mode::Published) => {
                return Err(format!(
                    "mode {}: expected `publish` in a published run and in no other",
                    self.mode
                ));
            }
        };
        if let Some(expected) = expected {
            return Err(format!(
                "expected {expected}, found {} of {}",
                self.arms.len(),
                self.flag
            ));
        }
        let turn = self.metric == Metric::SecondTurn;
        let planned = self.second_turn_tokens.is_some_and(|tokens| tokens > 0)
            && self
                .arms
                .iter()
                .all(|arm| arm.second_turn_dispatches.is_some());
        if turn && !planned {
            return Err(
                "metric second_turn: expected second_turn_tokens above 0 and \
                        second_turn_dispatches of both arms"
                    .to_owned(),
            );
        }
        self.arms.iter().try_for_each(ArmPlan::validate)
    }

    const fn tokens_are_none(&self) -> bool {
        self.decode_tokens == 0 || self.prompt.tokens == 0
    }

    fn validate_bench(&self) -> Result<(), String> {
        let one = self.arms.len() == 1 && self.publish.is_none();
        if !one || self.metric != Metric::Decode || self.tokens_are_none() {
            return Err(format!(
                "bench: expected one arm that decodes tokens, found {} arms, metric {}, a prompt \
                 of {} and {} to decode",
                self.arms.len(),
                self.metric,
                self.prompt.tokens,
                self.decode_tokens
            ));
        }
        if let Some(bench) = &self.bench {
            bench.roof.validate("bench")?;
        }
        self.arms.iter().try_for_each(ArmPlan::validate)
    }

    /// What was chosen is what is measured.
    fn validate_choice(&self, publish: &Publish) -> Result<(), String> {
        let Some(best) = Candidate::best(&publish.chosen_from) else {
            return Ok(());
        };
        let measured = self.arms.get(1).map_or("", |arm| arm.name.as_str());
        if best.name == measured && best.effect.is_finite() {
            return Ok(());
        }
        Err(format!(
            "publish.chosen_from: expected arm B to be the one that took the least time, {} \
             ({}), found {measured}",
            best.name, best.effect
        ))
    }

    /// Both flags of an A/B of two.
    pub fn flags(&self) -> Option<[&str; 2]> {
        let (first, second) = self.flag.split_once(',')?;
        let plans = 4 + usize::from(self.publish.is_some());
        (self.arms.len() == plans).then_some([first, second])
    }

    /// What is timed, in the order of tables and plots.
    pub fn timed(&self) -> &'static [Arm] {
        if self.bench.is_some() {
            return &[Arm::A];
        }
        Arm::of(self.arms.len(), self.mode == Mode::Published)
    }

    /// Every arm but the control, with its plan.
    pub fn plans(&self) -> impl Iterator<Item = (Arm, &ArmPlan)> {
        let arms = self.timed().iter().filter(|&&arm| arm != Arm::Control);
        arms.copied().zip(&self.arms)
    }

    /// What an arm runs.
    ///
    /// # Panics
    /// For an arm that the run has not; the reader admits no line of one.
    pub fn plan(&self, arm: Arm) -> &ArmPlan {
        let place = arm.plan(self.timed());
        &self.arms[place.expect("the reader admits no arm that the run has not")]
    }
}

impl Publish {
    fn validate(&self) -> Result<(), String> {
        let ascending = self.looks.windows(2).all(|pair| pair[0] < pair[1]);
        let fewest = self.looks.first().copied().unwrap_or(0);
        if self.blocks == 0 || fewest < 2 || !ascending {
            return Err(format!(
                "publish: expected at least 1 block, and looks from 2 replicates on, ascending; \
                 found {} blocks and looks at {:?}",
                self.blocks, self.looks
            ));
        }
        let share = |what: &str, value: f64| {
            if value > 0.0 && value < 1.0 {
                Ok(())
            } else {
                Err(format!(
                    "publish.{what}: expected a value above 0 and below 1, found {value}"
                ))
            }
        };
        share("alpha", self.alpha)?;
        share("sentinel_limit", self.sentinel_limit)?;
        share("slowed_share", self.slowed_share)?;
        if let Some(lag) = self.lag_limit {
            share("lag_limit", lag)?;
        }
        let positive = |limit: f64| limit.is_finite() && limit > 0.0;
        if let Some(modes) = self.modes_limit.filter(|&modes| !positive(modes)) {
            return Err(format!(
                "publish.modes_limit: expected a value above 0, found {modes}"
            ));
        }
        self.roof.validate("publish")
    }
}

impl Roof {
    fn validate(&self, of: &str) -> Result<(), String> {
        let Self {
            read_gb_s,
            dispatch_us,
        } = self;
        if *read_gb_s > 0.0 && *dispatch_us > 0.0 {
            return Ok(());
        }
        Err(format!(
            "{of}.roof: expected bounds above 0, found {read_gb_s} GB/s and {dispatch_us} us"
        ))
    }
}

impl ArmPlan {
    fn validate(&self) -> Result<(), String> {
        let sum: u64 = self.by_role.values().map(|&count| u64::from(count)).sum();
        if sum != u64::from(self.dispatches_per_token) {
            return Err(format!(
                "arm {}: by_role sums to {sum} dispatches, dispatches_per_token says {}",
                self.name, self.dispatches_per_token
            ));
        }
        if sum == 0 || self.shaders.is_empty() {
            return Err(format!(
                "arm {}: expected dispatches and shader hashes, found {sum} dispatches and {} shaders",
                self.name,
                self.shaders.len()
            ));
        }
        Ok(())
    }
}

/// An id is a folder's name, so it may not reach outside its parent folder.
fn validate_id(id: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if id.is_empty() || id.starts_with('.') || !id.chars().all(allowed) {
        return Err(format!(
            "id: expected letters, digits, '-', '_' and '.', not starting with '.', found {id:?}"
        ));
    }
    Ok(())
}
