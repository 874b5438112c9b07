//! Two figures beside each other: like for like, labelled, or refused.

use std::collections::BTreeSet;
use std::fmt;

use kernels::{Variant, models};
use serde::Serialize;

use super::{External, Kind};
use crate::history::Standing;
use crate::journal::AbRun;
use crate::record::{Arm, ArmPlan, Mode, Model};
use crate::stats::{StatsError, Verdict};
use crate::summary::{AbSummary, SummaryError};
use crate::tokens::TokenTimes;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Tokens per second of the whole time.
    Total,
    /// Tokens per second after the first.
    Decode,
    /// Prompt tokens per second.
    Prefill,
    /// Time to the first token, milliseconds.
    Ttft,
}

impl Figure {
    /// Every figure.
    pub const ALL: [Self; 4] = [Self::Total, Self::Decode, Self::Prefill, Self::Ttft];

    /// The same of a record.
    pub const fn of(self, record: &External) -> Option<f64> {
        match self {
            Self::Total => record.total_tok_s,
            Self::Decode => record.decode_tok_s,
            Self::Prefill => record.prefill_tok_s,
            Self::Ttft => record.ttft_ms,
        }
    }

    /// Its unit.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Total | Self::Decode | Self::Prefill => "tok/s",
            Self::Ttft => "ms",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Total => "total",
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Ttft => "time to first token",
        })
    }
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// Its record: an id, or `RUN:ARM`.
    pub record: String,
    /// The engine with its version.
    pub engine: String,
    /// Day of the measurement.
    pub date: String,
    /// How it came here: `published`, `imported`, the mode of a run, or `timed alone`.
    pub kind: String,
    /// Why it may not be compared, if it may not.
    pub unfit: Option<String>,
    /// The device that computed.
    pub hardware: String,
    /// The model.
    pub model: String,
    /// The weights' format.
    pub quantisation: Option<String>,
    /// Bytes of a weight with its share of scales.
    pub bytes_per_weight: Option<f64>,
    /// What the prompt was.
    pub prompt: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens decoded.
    pub decode_tokens: Option<u32>,
    /// Figures that were taken beside each other have the same name here.
    pub pair: Option<String>,
    /// The figures, in the order of [`Figure::ALL`].
    pub figures: [Option<f64>; 4],
}

impl Side {
    /// A figure of this side.
    pub const fn figure(&self, figure: Figure) -> Option<f64> {
        self.figures[figure as usize]
    }

    /// A record of another engine as a side.
    pub fn external(record: &External) -> Self {
        let version = record.engine_version.as_deref();
        let unfit = match record.standing {
            Standing::Current => None,
            Standing::Superseded | Standing::Withdrawn => Some(format!(
                "{} is {}: {}",
                record.id,
                record.standing,
                record.why.as_deref().unwrap_or("no reason is recorded")
            )),
        };
        Self {
            record: record.id.clone(),
            engine: version.map_or_else(
                || record.engine.clone(),
                |version| format!("{} {version}", record.engine),
            ),
            date: record.date.clone(),
            kind: match record.kind {
                Kind::Published | Kind::Imported => record.kind.name().to_owned(),
            },
            unfit,
            hardware: record.hardware.clone(),
            model: record.model.clone(),
            quantisation: record.quantisation.clone(),
            bytes_per_weight: record.bytes_per_weight,
            prompt: record.prompt.clone(),
            prompt_tokens: record.prompt_tokens,
            decode_tokens: record.decode_tokens,
            pair: record.pair.clone(),
            figures: Figure::ALL.map(|figure| figure.of(record)),
        }
    }

    /// An arm of a run as a side; none where the run has not that arm.
    ///
    /// # Errors
    /// The run may not be summarised.
    pub fn arm(run: &AbRun, arm: Arm, standing: Standing) -> Result<Option<Self>, SummaryError> {
        let summary = AbSummary::of(run, &run.journal)?;
        let Some(at) = run.run.plans().position(|(of, _)| of == arm) else {
            return Ok(None);
        };
        let of_arm = &summary.arms[at];
        let unfit = match (standing, of_arm.decode_ms_per_token.or(of_arm.prefill_ms)) {
            (Standing::Superseded | Standing::Withdrawn, _) => {
                Some(format!("{} is {standing}", run.run.id))
            }
            (Standing::Current, _) if summary.is_invalid() => {
                let reason = match summary.contrasts.first() {
                    Some(contrast) => &contrast.reason,
                    None => &summary.reason,
                };
                Some(format!("{} is {}: {reason}", run.run.id, Verdict::Invalid))
            }
            (Standing::Current, None) => Some(summary.reason.clone()),
            (Standing::Current, Some(_)) => None,
        };
        let per_second = |ms: f64| 1000.0 / ms;
        let prompt_tokens = f64::from(run.run.prompt.tokens);
        let prefill = of_arm.prefill_ms.map(|ms| per_second(ms) * prompt_tokens);
        let figures = [
            None,
            of_arm.decode_ms_per_token.map(per_second),
            prefill,
            of_arm.prefill_ms,
        ];
        Ok(Some(Self {
            record: format!("{}:{arm}", run.run.id),
            kind: run.run.mode.to_string(),
            unfit,
            figures,
            ..Self::of(run, arm)
        }))
    }

    /// A timing of whole tokens as a side.
    ///
    /// # Errors
    /// Times that are no times.
    pub fn bench(run: &AbRun, standing: Standing) -> Result<Self, StatsError> {
        let times = TokenTimes::of(run)?;
        let void = match &times {
            Some(times) => times.void.clone(),
            None => Some("without a repetition of programs that were found right".to_owned()),
        };
        let unfit = match standing {
            Standing::Superseded | Standing::Withdrawn => Some(standing.to_string()),
            Standing::Current => void,
        };
        let prompt_tokens = f64::from(run.run.prompt.tokens);
        let figures = times.map_or([None; 4], |times| {
            let first = times.ttft_ms;
            let prefill = 1000.0 * prompt_tokens / first;
            [None, Some(times.decode_tok_s), Some(prefill), Some(first)]
        });
        Ok(Self {
            kind: BENCH.to_owned(),
            unfit: unfit.map(|why| format!("{} is {why}", run.run.id)),
            figures,
            ..Self::of(run, Arm::A)
        })
    }

    /// What a record of this workbench says beside its figures.
    fn of(run: &AbRun, arm: Arm) -> Self {
        let (run, plan) = (&run.run, run.run.plan(arm));
        Self {
            record: run.id.clone(),
            engine: format!("this workbench, {}", plan.name),
            date: run.started_utc.chars().take(10).collect(),
            kind: String::new(),
            unfit: None,
            hardware: run.adapter.name.clone(),
            model: run.model.id.clone(),
            quantisation: formats(plan),
            bytes_per_weight: bytes_per_weight(&run.model),
            prompt: Some(run.prompt.name.clone()),
            prompt_tokens: Some(run.prompt.tokens),
            decode_tokens: Some(run.decode_tokens),
            pair: Some(run.id.clone()),
            figures: [None; 4],
        }
    }
}

/// What a timing of whole tokens is, which compares nothing.
const BENCH: &str = "timed alone";

/// The formats of the weights that an arm's kernels read, by the kernels' names.
fn formats(plan: &ArmPlan) -> Option<String> {
    let variants = plan
        .shaders
        .keys()
        .filter_map(|name| name.parse::<Variant>().ok());
    let formats: BTreeSet<&str> = variants
        .filter_map(|variant| Some(variant.format?.name()))
        .collect();
    let formats: Vec<&str> = formats.into_iter().collect();
    (!formats.is_empty()).then(|| formats.join(" and "))
}

/// Bytes that a token reads over the weights that it reads: all but an embedding of
/// its own, of which a token reads one row.
fn bytes_per_weight(model: &Model) -> Option<f64> {
    let spec = models::find(&model.id).ok()?;
    let embedding = (spec.vocab_size * spec.hidden_size) as f64;
    let unread = if spec.tie_word_embeddings {
        0.0
    } else {
        embedding
    };
    let bytes = model.bytes_per_token as f64 / (model.parameters as f64 - unread);
    (bytes.is_finite() && bytes > 0.0).then_some(bytes)
}

/// What may be said of two sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The first side's record.
    pub a: String,
    /// The second side's record.
    pub b: String,
    /// What is compared.
    pub figure: Figure,
    /// B over A: of rates above 1 where B is faster, of times below; `None` where the
    /// comparison is refused.
    pub ratio: Option<f64>,
    /// Why it is refused; empty where it is not.
    pub refused: Vec<String>,
    /// In what the sides are not alike, or not known to be; empty where the comparison
    /// is like for like.
    pub labels: Vec<String>,
}

impl Comparison {
    /// In a word: `like for like`, `not like for like`, or `refused`.
    pub fn word(&self) -> &'static str {
        match (self.refused.is_empty(), self.labels.is_empty()) {
            (false, _) => "refused",
            (true, true) => "like for like",
            (true, false) => "not like for like",
        }
    }
}

/// Largest difference in bytes per weight that is none.
const SAME_BYTES: f64 = 0.01;

/// Compares two sides. Another model or device, a side that is withdrawn, superseded
/// or unproven, and a figure that a side has not, refuse a ratio; everything else that
/// differs or is not known becomes a label.
pub fn compare(a: &Side, b: &Side, figure: Figure) -> Comparison {
    let mut refused: Vec<String> = [a, b]
        .iter()
        .filter_map(|side| side.unfit.clone())
        .collect();
    if model_of(&a.model) != model_of(&b.model) {
        refused.push(format!("other models: {} and {}", a.model, b.model));
    }
    if !same_text(&a.hardware, &b.hardware) {
        refused.push(format!("other devices: {} and {}", a.hardware, b.hardware));
    }
    for side in [a, b] {
        if side.figure(figure).is_none() {
            refused.push(format!("{} has no {figure} figure", side.record));
        }
    }
    let mut labels = Vec::new();
    let mut alike = |what: &str, a: Option<String>, b: Option<String>, same: bool| match (a, b) {
        (Some(_), Some(_)) if same => {}
        (Some(a), Some(b)) => labels.push(format!("{what}: {a} and {b}")),
        (None, None) => labels.push(format!("{what}: not known")),
        (a, b) => labels.push(format!(
            "{what}: {} and {}",
            a.unwrap_or_else(|| "not known".into()),
            b.unwrap_or_else(|| "not known".into())
        )),
    };
    let texts = |a: &Option<String>, b: &Option<String>| {
        a.as_deref()
            .zip(b.as_deref())
            .is_some_and(|(a, b)| same_text(a, b))
    };
    let quant = texts(&a.quantisation, &b.quantisation);
    alike(
        "weights",
        a.quantisation.clone(),
        b.quantisation.clone(),
        quant,
    );
    let shown = |bytes: Option<f64>| bytes.map(|bytes| format!("{bytes:.3} bytes"));
    let bytes = (a.bytes_per_weight.zip(b.bytes_per_weight))
        .is_some_and(|(a, b)| (a / b - 1.0).abs() <= SAME_BYTES);
    alike(
        "bytes per weight",
        shown(a.bytes_per_weight),
        shown(b.bytes_per_weight),
        bytes,
    );
    let prompt = texts(&a.prompt, &b.prompt);
    alike("prompt", a.prompt.clone(), b.prompt.clone(), prompt);
    let count = |tokens: Option<u32>| tokens.map(|tokens| format!("{tokens} tokens"));
    alike(
        "prompt tokens",
        count(a.prompt_tokens),
        count(b.prompt_tokens),
        a.prompt_tokens == b.prompt_tokens,
    );
    // Nothing is decoded before the first token.
    if matches!(figure, Figure::Total | Figure::Decode) {
        alike(
            "decoded tokens",
            count(a.decode_tokens),
            count(b.decode_tokens),
            a.decode_tokens == b.decode_tokens,
        );
    }
    if a.pair.is_none() || a.pair != b.pair {
        labels.push(format!(
            "not measured side by side: {} and {}",
            a.date, b.date
        ));
    }
    let values = a.figure(figure).zip(b.figure(figure));
    for side in [a, b] {
        let screening = Mode::Screening.to_string();
        for (kind, named) in [
            (screening.as_str(), "a screening run"),
            (BENCH, "a timing in one process"),
        ] {
            if side.kind == kind {
                let record = &side.record;
                labels.push(format!("{record} is {named}, which makes no claim"));
            }
        }
    }
    let ratio = values.map(|(a, b)| b / a).filter(|_| refused.is_empty());
    Comparison {
        a: a.record.clone(),
        b: b.record.clone(),
        figure,
        ratio,
        refused,
        labels,
    }
}

/// The id of a registered model, or the name as it is.
fn model_of(name: &str) -> String {
    models::find(name).map_or_else(|_| name.to_lowercase(), |spec| spec.id)
}

fn same_text(a: &str, b: &str) -> bool {
    let words = |text: &str| {
        let lower = text.to_lowercase();
        lower
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    words(a) == words(b)
}
