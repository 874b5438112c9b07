//! `bench` and `roof`: times of whole tokens or of single kernels, and the bounds of
//! the adapter.

mod kernels;
mod wgsl;

use super::{
    ModelArgs, answer, choices, counted,
    measure::{MeasureArgs, arguments, command_line},
};
use crate::{
    ab,
    bench::{
        self,
        journal::{self, Planned},
    },
    check,
    device::{self, Gpu},
    engine::Engine,
    progress::{phase, spinner},
    roof::{self, Roof},
};
use ::kernels::{Plan, Settings};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use results::{journal::AbRun, record::Status, tokens::TokenTimes};
use serde_json::json;

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// A flag's value; FLAG alone takes its first value that is not off; repeatable
    #[arg(long = "flag", value_name = "FLAG=VALUE")]
    flags: Vec<String>,
    /// Tokens decoded after the first one in each repetition
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Repetitions, each of the whole prompt and all tokens
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    #[command(flatten)]
    kernels: kernels::KernelArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct RoofArgs {
    /// Adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn run_roof(args: &RoofArgs) -> Result<u8> {
    let gpu = Gpu::open(args.adapter.as_deref())?;
    let bar = spinner();
    let roof = roof::measure(&gpu, |what| phase(&bar, what))?;
    bar.finish_and_clear();
    let document = json!({
        "adapter": gpu.info.name,
        "driver": gpu.info.driver,
        "driver_info": gpu.info.driver_info,
        "roof": roof,
    });
    answer(args.json, &document, &roof_text(&gpu, &roof))?;
    Ok(0)
}

fn roof_text(gpu: &Gpu, roof: &Roof) -> String {
    format!(
        "{}: reads {:.1} GB/s ({}, {} MiB in turn); a dispatch that waits for the one before \
         takes {:.2} us",
        gpu.info.name,
        roof.read_gb_s,
        roof.read,
        roof.working_set_bytes >> 20,
        roof.dispatch_us
    )
}

pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    if let Some(file) = &args.kernels.wgsl {
        return wgsl::run(args, file);
    }
    if args.measure.is_asked() {
        bail!("--publish, --budget and --margin are of an A/B: expected --wgsl FILE with them");
    }
    if args.kernels.is_asked() {
        return kernels::run(args);
    }
    let choices = choices(&args.flags)?;
    let [data_dir, reports_dir] = ab::folders()?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, &choices)?;
    let tokens = args.tokens as usize;
    let (source, prompt) = args.model.source(tokens.max(check::STEPS))?;
    Plan::require(&source.spec, &settings, &gpu.features)?;
    let weights = args.model.read(&source)?;
    let bar = spinner();
    // Before the model takes the memory.
    let roof = roof::measure(&gpu, |what| phase(&bar, what))?;
    phase(&bar, "making the buffers");
    let context = prompt.ids.len() + tokens.max(check::STEPS) + 1;
    let mut engine = Engine::new(&gpu, &weights, context, None)?;
    let arm = engine.arm(&settings)?;
    phase(&bar, "comparing with the reference");
    let checks = check::model(&engine, &arm, &prompt.ids, check::STEPS)?;
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    let title = &weights.provenance().title;
    let mut document = json!({
        "model": weights.spec().id,
        "title": title,
        "adapter": gpu.info.name,
        "driver": gpu.info.driver,
        "driver_info": gpu.info.driver_info,
        "limits": device::limits_of(&gpu.device.limits()),
        "settings": settings.values(),
        "prompt": prompt.name,
        "prompt_tokens": prompt.ids.len(),
        "tokens": tokens,
        "checks": { "passed": checks.len() - failed.len(), "failed": failed },
        "roof": roof,
    });
    let planned = Planned {
        prompt: &prompt,
        tokens,
        seed: args.model.seed,
        command: command_line(&arguments()),
        roof: &roof,
    };
    let folders = [&*data_dir, &*reports_dir];
    let mut journal = journal::begin(&engine, &arm, &planned, &checks, folders)?;
    if let Some(check) = failed.first() {
        let reason = Some(ab::CHECK_FAILED.to_owned());
        journal::end(&mut journal, Status::Void, reason)?;
        let note = check.note.as_deref().unwrap_or("out of bounds");
        let text = format!(
            "CHECK FAILED, times withheld: {} of {} checks of {title}; the first: {}: {note}",
            failed.len(),
            checks.len(),
            check.stage
        );
        answer(args.model.json, &document, &text)?;
        return Ok(1);
    }
    phase(&bar, "warming up");
    let count = args.repetitions as usize;
    let dispatches = arm.decode.plan.dispatches_per_token();
    let timed = bench::tokens(
        &engine,
        &arm,
        &prompt.ids,
        tokens,
        count,
        |index, repetition| {
            phase(&bar, &format!("repetition {} of {count}", index + 1));
            journal::append(&mut journal, &planned, dispatches, index, repetition)
        },
    );
    let (status, reason) = match &timed {
        Ok(_) => (Status::Complete, None),
        Err(error) => (Status::Void, Some(format!("{error:#}"))),
    };
    journal::end(&mut journal, status, reason)?;
    let timed = timed?;
    bar.finish_and_clear();
    // From the record alone, as everything that shows it later.
    let times = TokenTimes::of(&AbRun::load(journal.path())?)?.context("no repetition")?;
    let file = journal.path().display().to_string();
    let measured = serde_json::to_value(&times)?;
    let rest = json!({
        "dispatches_per_token": timed.dispatches_per_token,
        "timed": timed,
        "journal": file,
    });
    if let Some(all) = document.as_object_mut() {
        for part in [measured, rest] {
            all.extend(part.as_object().cloned().unwrap_or_default());
        }
    }
    let mut read = match times.pct_of_roof {
        Some(share) => format!(
            "{:.1} of {:.1} GB/s read, {share:.1} % of the roof",
            times.read_gb_s, times.roof_gb_s
        ),
        None => format!("{:.1} GB/s read", times.read_gb_s),
    };
    if let Some(gflop_s) = times.gflop_s {
        read.push_str(&format!(", {gflop_s:.1} GFLOP/s"));
    }
    let mut text = format!(
        "{title} on {}: {:.1} tok/s decoding {}, {:.2} ms to the first after {} of {}\n{} \
         dispatches per token; {read}; {} checks passed; medians of {count}\n",
        gpu.info.name,
        times.decode_tok_s,
        counted(tokens, "token"),
        times.ttft_ms,
        prompt.ids.len(),
        prompt.name,
        timed.dispatches_per_token,
        checks.len(),
    );
    text.push_str(&format!("record: {file}\n"));
    for note in times.void.iter().chain(&times.suspicious) {
        text.push_str(&format!("{note}\n"));
    }
    answer(args.model.json, &document, &text)?;
    Ok(0)
}
