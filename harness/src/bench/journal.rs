//! The journal of a timing of whole tokens.

use super::{Repetition, kv_work};
use crate::{
    ab::start::{adapter_record, model_record, next_id, settings_record},
    engine::{Arm, Engine},
    env,
    model::Prompt,
    roof::Roof,
};
use anyhow::Result;
use results::{
    journal::JournalWriter,
    record::{self, Line},
};
use std::{path::Path, time::SystemTime};

/// What is timed.
#[derive(Debug)]
pub struct Planned<'p> {
    /// The prompt.
    pub prompt: &'p Prompt,
    /// Tokens decoded after its first one.
    pub tokens: usize,
    /// Seed of the prompt and of synthetic weights.
    pub seed: u64,
    /// The command line, for the record.
    pub command: String,
    /// The adapter's bounds.
    pub roof: &'p Roof,
}

/// Begins the journal with what is timed, on what, and the checks that came first.
///
/// # Errors
/// When it cannot be written.
pub fn begin(
    engine: &Engine<'_>,
    arm: &Arm,
    planned: &Planned<'_>,
    checks: &[record::Check],
    [data, reports]: [&Path; 2],
) -> Result<JournalWriter> {
    let spec = engine.weights.spec();
    let ids = &planned.prompt.ids;
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let model: String = spec.id.chars().map(plain).collect();
    let topic = ["bench".to_owned(), model.to_lowercase()];
    let id = next_id(data, reports, &topic)?;
    let totals = arm.decode.plan.totals();
    let work = totals.work();
    let kv = kv_work(engine, arm, ids.len(), planned.tokens);
    let by_role = totals.by_role.iter();
    let programs = engine.prefill_programs(&arm.prefill, 0..ids.len())?;
    let prefill: usize = programs.iter().map(|p| p.plan.dispatches.len()).sum();
    let mut all = vec![&arm.decode];
    all.extend(programs.iter().map(|program| &**program));
    let line = record::Run {
        schema: record::SCHEMA,
        id: id.clone(),
        started_utc: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: planned.command.clone(),
        flag: String::new(),
        mode: record::Mode::Screening,
        model: model_record(engine.weights, work),
        adapter: adapter_record(engine.gpu),
        environment: env::environment(),
        seed: planned.seed,
        prompt: record::Prompt {
            name: planned.prompt.name.clone(),
            tokens: ids.len() as u32,
        },
        second_turn_tokens: None,
        decode_tokens: planned.tokens as u32,
        budget_s: 0.0,
        metric: record::Metric::Decode,
        margin: 0.0,
        margin_from: None,
        arms: vec![record::ArmPlan {
            name: "bench".to_owned(),
            settings: settings_record(arm.prefill.settings()),
            dispatches_per_token: totals.dispatches_per_token,
            by_role: by_role
                .map(|(role, count)| ((*role).to_owned(), *count))
                .collect(),
            prefill_dispatches: Some(prefill as u64),
            second_turn_dispatches: None,
            element_dispatches: None,
            shaders: engine.shader_hashes(arm, &all),
        }],
        publish: None,
        bench: Some(record::Bench {
            roof: record::Roof {
                read_gb_s: planned.roof.read_gb_s,
                dispatch_us: planned.roof.dispatch_us,
            },
            kv_bytes_per_token: kv.bytes,
            kv_flops_per_token: Some(kv.flops),
        }),
        timer: None,
        excluded: vec![],
        notes: engine.weights.provenance().notes.clone(),
    };
    let mut journal = JournalWriter::create(&data.join(format!("{id}.jsonl")), &line)?;
    for check in checks {
        journal.append(&Line::Check(check.clone()))?;
    }
    Ok(journal)
}

/// Appends one repetition.
///
/// # Errors
/// When it cannot be written.
pub fn append(
    journal: &mut JournalWriter,
    planned: &Planned<'_>,
    dispatches_per_token: u32,
    index: usize,
    repetition: Repetition,
) -> Result<()> {
    let (arm, index) = (record::Arm::A, u32::try_from(index)?);
    journal.append(&Line::Prefill(record::Prefill {
        arm,
        index,
        tokens: planned.prompt.ids.len() as u32,
        wall_ns: repetition.first_token_ns,
    }))?;
    Ok(journal.append(&Line::Sample(record::Sample {
        block: index,
        position: 0,
        arm,
        tokens: planned.tokens as u32,
        dispatches: u64::from(dispatches_per_token) * planned.tokens as u64,
        wall_ns: repetition.decode_ns,
        spans: vec![],
    }))?)
}

/// Ends the journal.
///
/// # Errors
/// When it cannot be written.
pub fn end(
    journal: &mut JournalWriter,
    status: record::Status,
    reason: Option<String>,
) -> Result<()> {
    Ok(journal.append(&Line::End(record::End { status, reason }))?)
}
