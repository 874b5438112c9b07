//! The first line of an A/B's journal: what is measured, on what, and how.

use super::{
    ArmSettings, MARGIN, Request,
    element::Turns,
    publish::{ALPHA, LOOKS, sentinel_limit, slowed_share},
};
use crate::{
    device,
    engine::{Arm, Engine},
    env,
};
use anyhow::{Context as _, Result};
use kernels::{Settings, Variant, flag::Metric, plan::Work};
use reference::{Checkpoint, checkpoint::Container};
use results::{
    journal::{JournalWriter, next_run_id},
    record,
    stats::{LAG_LIMIT, MODES_LIMIT},
};
use std::{collections::BTreeMap, path::Path, time::SystemTime};

/// The first free id of a run of today.
pub(crate) fn next_id(data: &Path, reports: &Path, names: &[String]) -> Result<String> {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    Ok(next_run_id(&[data, reports], &now[..10], &names.join("-"))?)
}

/// What the elements of a run are.
#[derive(Clone, Debug)]
pub(super) enum Run {
    /// Tokens, a prompt, or the prompt of a second turn.
    Tokens,
    /// Dispatches of one kind.
    Dispatch {
        /// Where in a token, and the shape of its matrix.
        site: String,
        /// The kernel of each arm.
        variants: [Variant; 2],
        /// What a dispatch does with weights.
        work: Work,
        /// Dispatches of an element.
        count: usize,
        /// What an element of the slowed arm has more.
        extra: usize,
        /// The margin, and the control that it was found of, if it was.
        margin: (f64, Option<record::Spread>),
        /// What timed them.
        timer: record::TimerGrade,
    },
}

/// Writes the first line of a new journal.
pub(super) fn start(
    gpu: &device::Gpu,
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    run: &Run,
) -> Result<JournalWriter> {
    let weights = engine.weights;
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    for dir in [request.data_dir, request.reports_dir] {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let id = match &request.id {
        Some(id) => id.clone(),
        None => next_id(
            request.data_dir,
            request.reports_dir,
            &request.subject.names,
        )?,
    };
    let prompt_tokens = request.prompt.ids.len();
    let arm_plan = |i: usize| match run {
        Run::Tokens => of_tokens(engine, request, arms, i),
        Run::Dispatch {
            variants,
            count,
            extra,
            ..
        } => {
            let kind = request.kinds()[i];
            let variant = variants[usize::from(kind == record::Arm::B)];
            let plan = of_dispatch(engine, request, &arms[i], i, variant);
            let element = (count + extra) as u64;
            Ok(record::ArmPlan {
                element_dispatches: (kind == record::Arm::Slowed).then_some(element),
                ..plan
            })
        }
    };
    let provenance = weights.provenance();
    let mut notes = provenance.notes.clone();
    let kv_format = |arm: &ArmSettings| arm.settings.kv_format();
    if (request.arms.iter()).any(|arm| kv_format(arm) != kv_format(&request.arms[0])) {
        notes.push(
            "the arms cache keys and values in different formats: each is checked against the CPU \
             reference with a cache of its own format, and their logits are not compared with each \
             other"
                .to_owned(),
        );
    }
    let (margin, margin_from) = match run {
        Run::Tokens => (request.margin.unwrap_or(MARGIN), None),
        Run::Dispatch { margin, .. } => *margin,
    };
    let line = record::Run {
        schema: record::SCHEMA,
        id: id.clone(),
        started_utc: now,
        command: request.command.clone(),
        flag: request.subject.names.join(","),
        mode: match request.publish {
            Some(_) => record::Mode::Published,
            None => record::Mode::Screening,
        },
        model: model_record(
            weights,
            match run {
                Run::Tokens => arms[0].decode.plan.totals().work(),
                Run::Dispatch { work, .. } => *work,
            },
        ),
        adapter: adapter_record(gpu),
        environment: env::environment(),
        seed: request.seed,
        prompt: match run {
            Run::Tokens => record::Prompt {
                name: request.prompt.name.clone(),
                tokens: prompt_tokens as u32,
            },
            Run::Dispatch { site, .. } => record::Prompt {
                name: site.clone(),
                tokens: 1,
            },
        },
        second_turn_tokens: match request.subject.metric {
            Metric::Decode | Metric::Prefill => None,
            Metric::SecondTurn => Some(Turns::of(request).tokens() as u32),
        },
        decode_tokens: match run {
            Run::Tokens => request.tokens as u32,
            Run::Dispatch { count, .. } => *count as u32,
        },
        budget_s: request.budget.as_secs_f64(),
        metric: match request.subject.metric {
            _ if matches!(run, Run::Dispatch { .. }) => record::Metric::Dispatch,
            Metric::Decode => record::Metric::Decode,
            Metric::Prefill => record::Metric::Prefill,
            Metric::SecondTurn => record::Metric::SecondTurn,
        },
        margin,
        margin_from,
        arms: (0..arms.len()).map(arm_plan).collect::<Result<_>>()?,
        excluded: request.subject.excluded.clone(),
        notes,
        publish: request.publish.as_ref().map(|publish| record::Publish {
            arguments: publish.arguments.clone(),
            blocks: publish.blocks,
            looks: LOOKS.to_vec(),
            alpha: ALPHA,
            sentinel_limit: sentinel_limit(gpu),
            modes_limit: Some(MODES_LIMIT),
            lag_limit: Some(LAG_LIMIT),
            slowed_share: match run {
                Run::Tokens => slowed_share(arms),
                Run::Dispatch { count, extra, .. } => *extra as f64 / *count as f64,
            },
            roof: publish.roof,
            chosen_from: publish.chosen_from.clone(),
        }),
        bench: None,
        timer: match run {
            Run::Tokens => None,
            Run::Dispatch { timer, .. } => Some(timer.clone()),
        },
    };
    let path = request.data_dir.join(format!("{id}.jsonl"));
    Ok(JournalWriter::create(&path, &line)?)
}
/// What an arm runs of whole tokens.
fn of_tokens(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arms: &[Arm],
    i: usize,
) -> Result<record::ArmPlan> {
    let prompt_tokens = request.prompt.ids.len();
    let totals = arms[i].decode.plan.totals();
    let prompt = engine.prefill_programs(&arms[i].prefill, 0..prompt_tokens)?;
    let prefill: usize = prompt.iter().map(|p| p.plan.dispatches.len()).sum();
    let turn = match request.subject.metric {
        Metric::Decode | Metric::Prefill => None,
        Metric::SecondTurn => {
            let turns = Turns::of(request);
            let fed = turns.reused(&arms[i])..turns.tokens();
            let programs = engine.prefill_programs(&arms[i].prefill, fed)?;
            let dispatches = programs.iter().map(|p| p.plan.dispatches.len() as u64);
            Some(dispatches.sum())
        }
    };
    let mut programs = vec![&arms[i].decode];
    programs.extend(prompt.iter().map(|program| &**program));
    Ok(record::ArmPlan {
        name: request.arms[i].name.clone(),
        settings: settings(request, i),
        dispatches_per_token: totals.dispatches_per_token,
        by_role: totals
            .by_role
            .iter()
            .map(|(role, count)| ((*role).to_owned(), *count))
            .collect(),
        prefill_dispatches: Some(prefill as u64),
        second_turn_dispatches: turn,
        element_dispatches: None,
        shaders: engine.shader_hashes(&arms[i], &programs),
    })
}

/// What an arm runs of one dispatch.
fn of_dispatch(
    engine: &Engine<'_>,
    request: &Request<'_>,
    arm: &Arm,
    i: usize,
    variant: Variant,
) -> record::ArmPlan {
    let id = variant.id();
    let mut shaders = engine.shader_hashes(arm, &[&arm.decode]);
    shaders.retain(|name, _| *name == id);
    record::ArmPlan {
        name: request.arms[i].name.clone(),
        settings: settings(request, i),
        dispatches_per_token: 1,
        by_role: [(variant.role.name().to_owned(), 1)].into(),
        prefill_dispatches: None,
        second_turn_dispatches: None,
        element_dispatches: None,
        shaders,
    }
}

fn settings(request: &Request<'_>, i: usize) -> BTreeMap<String, String> {
    settings_record(&request.arms[i].settings)
}

/// Every flag's value by name.
pub(crate) fn settings_record(settings: &Settings) -> BTreeMap<String, String> {
    let values = settings.values();
    let named = values.iter();
    named
        .map(|(name, value)| ((*name).to_owned(), value.to_string()))
        .collect()
}

/// The model and its weights, with which a token or a dispatch does this.
pub(crate) fn model_record(weights: &Checkpoint, work: Work) -> record::Model {
    let (spec, provenance) = (weights.spec(), weights.provenance());
    record::Model {
        id: spec.id.clone(),
        name: spec.title.clone(),
        title: provenance.title.clone(),
        weights: match provenance.weights {
            Container::Mlc => record::Weights::Mlc,
            Container::Mlx => record::Weights::Mlx,
            Container::Gguf => record::Weights::Gguf,
            Container::Synthetic => record::Weights::Synthetic,
        },
        weights_sha256: provenance.sha256.clone(),
        parameters: spec.parameters(),
        bytes_per_token: work.bytes,
        flops_per_token: Some(work.flops),
    }
}

pub(crate) fn adapter_record(gpu: &device::Gpu) -> record::Adapter {
    let features = gpu.device.features();
    record::Adapter {
        name: gpu.info.name.clone(),
        vendor: format!("{:#06x}", gpu.info.vendor),
        device_type: format!("{:?}", gpu.info.device_type),
        backend: gpu.info.backend.to_string(),
        driver: gpu.info.driver.clone(),
        driver_info: gpu.info.driver_info.clone(),
        features: features
            .iter_names()
            .map(|(name, _)| name.to_owned())
            .collect(),
        limits: device::limits_of(&gpu.device.limits()),
        timestamp_query: features.contains(wgpu::Features::TIMESTAMP_QUERY),
    }
}
