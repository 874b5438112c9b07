//! `bench --kernels`: single kernels through criterion.
//!
//! Criterion prints on standard output what this command may not, so it runs in a
//! process of its own, this binary again, whose standard output goes to standard error
//! and whose answer comes back in a file.

use super::{
    super::{ab::kernel::Shape, choices},
    BenchArgs,
};
use crate::{
    again::again,
    bench::kernels::{self, Filter, Measuring, Mode, TimedSite},
    check,
    device::Gpu,
    engine::Engine,
    env,
    progress::{phase, spinner},
    roof,
    timer::Timer,
};
use ::kernels::{Phase, Plan, Settings, plan::chunks};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use results::{shard::Shard, sheet};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// Status of a command that found a regression.
const REGRESSION: u8 = 3;
/// Smallest slowdown that is a regression, as a ratio less 1: the margin of an A/B.
const MARGIN: f64 = 0.02;

#[derive(Debug, Args)]
pub(in crate::cli) struct KernelArgs {
    /// Time the kernels of a decoded token one by one, through criterion
    #[arg(long, group = "single", conflicts_with_all = ["tokens", "repetitions"])]
    kernels: bool,
    /// A kernel of your own, body or whole module, in the place of a shipped one: every
    /// case, then an A/B of the dispatch with a report. FILE with the ending .toml may name
    /// role, variant, site, shape, outputs_per_workgroup and bindings
    #[arg(
        long,
        value_name = "FILE",
        group = "single",
        conflicts_with_all = ["tokens", "repetitions", "kernels"]
    )]
    pub(super) wgsl: Option<PathBuf>,
    /// With --kernels: of this role alone; with --wgsl: its role
    #[arg(long, value_name = "ROLE", requires = "single")]
    pub(super) role: Option<String>,
    /// With --kernels: this variant alone; with --wgsl: the one whose place it takes, with
    /// the same bindings and uniform
    #[arg(long, value_name = "VARIANT", requires = "single")]
    pub(super) variant: Option<String>,
    /// With --kernels: sites whose name contains this, `qkv` or `ffn` for instance; with
    /// --wgsl: the site
    #[arg(long, value_name = "NAME", requires = "single")]
    pub(super) site: Option<String>,
    /// With --kernels: matrices of this shape, `9216x3072`; with --wgsl: one of this shape
    /// instead of a model's
    #[arg(long, value_name = "ROWSxK", requires = "single")]
    pub(super) shape: Option<Shape>,
    /// With --kernels: the part I of N of the sites, as 1/4; `results merge` joins the CSV
    #[arg(long, value_name = "I/N", requires = "kernels")]
    shard: Option<Shard>,
    /// With --kernels: those of the prompt's last chunk instead
    #[arg(
        long,
        requires = "kernels",
        conflicts_with_all = ["csv", "save_baseline", "baseline"]
    )]
    chunk: bool,
    /// With --kernels: also with the same weights again and again, which caches hold
    #[arg(long, requires = "kernels")]
    warm: bool,
    /// With --kernels: seconds of measuring for each benchmark
    #[arg(long, value_name = "S", default_value_t = 1.0, requires = "kernels")]
    seconds: f64,
    /// With --kernels: keep the times under this name, by adapter
    #[arg(
        long,
        value_name = "NAME",
        requires = "kernels",
        conflicts_with = "baseline"
    )]
    save_baseline: Option<String>,
    /// With --kernels: compare with the times kept under this name; status 3 where a
    /// kernel is slower
    #[arg(long, value_name = "NAME", requires = "kernels")]
    baseline: Option<String>,
    /// With --kernels: write every sample as CSV to this file
    #[arg(long, value_name = "FILE", requires = "kernels")]
    csv: Option<PathBuf>,
    /// The answer's file, in the process that runs criterion
    #[arg(long, value_name = "FILE", hide = true, requires = "kernels")]
    answer: Option<PathBuf>,
}

impl KernelArgs {
    pub(super) const fn is_asked(&self) -> bool {
        self.kernels
    }

    fn filter(&self) -> Result<Filter> {
        Ok(Filter {
            role: self.role.as_deref().map(str::parse).transpose()?,
            variant: self.variant.as_deref().map(str::parse).transpose()?,
            site: self.site.clone(),
            shape: self.shape.map(|shape| shape.to_string()),
        })
    }

    fn modes(&self) -> Vec<Mode> {
        let warm = self.warm.then_some(Mode::Warm);
        [Mode::Cold, Mode::ColdDependent]
            .into_iter()
            .chain(warm)
            .collect()
    }
}

pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    let KernelArgs { seconds, csv, .. } = &args.kernels;
    if !(0.1..=600.0).contains(seconds) {
        bail!("--seconds {seconds}: expected 0.1 to 600");
    }
    for name in [&args.kernels.save_baseline, &args.kernels.baseline]
        .into_iter()
        .flatten()
    {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            bail!("baseline `{name}`: expected letters, digits, `-`, `_` and `.`");
        }
        if ["new", "base", "change", "report"].contains(&name.as_str()) {
            bail!("baseline `{name}`: criterion uses that name itself; take another");
        }
    }
    if let Some(csv) = csv {
        sheet::require_writable(csv).context("--csv")?;
    }
    // Refused before a process is started.
    args.kernels.filter()?;
    if let Some(file) = &args.kernels.answer {
        let answer = measured(args)?;
        fs::write(file, serde_json::to_vec(&answer)?)
            .with_context(|| file.display().to_string())?;
        return Ok(0);
    }
    let answer = from_child()?;
    let passed = answer["checks"]["failed"]
        .as_array()
        .is_some_and(Vec::is_empty);
    super::answer(args.model.json, &answer, &text(&answer))?;
    let slower = answer["slower"]
        .as_array()
        .is_some_and(|slower| !slower.is_empty());
    Ok(match (passed, slower) {
        (false, _) => 1,
        (true, true) => REGRESSION,
        (true, false) => 0,
    })
}

/// Runs this command again in a process whose standard output is our standard error.
fn from_child() -> Result<Value> {
    let folder = env::cache_dir().join("criterion");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("answer-{}.json", std::process::id()));
    let arguments = std::env::args_os().skip(1);
    let status = again(arguments.chain(["--answer".into(), file.clone().into()]))?;
    let answer = fs::read(&file);
    // It may not be there.
    let _ = fs::remove_file(&file);
    if !status.success() {
        bail!("nothing was measured ({status}); the reason is above");
    }
    let answer = answer.with_context(|| file.display().to_string())?;
    Ok(serde_json::from_slice(&answer)?)
}

fn measured(args: &BenchArgs) -> Result<Value> {
    let choices = choices(&args.flags)?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, &choices)?;
    let (source, prompt) = args.model.source(check::STEPS)?;
    Plan::require(&source.spec, &settings, &gpu.features)?;
    let chunk = args
        .kernels
        .chunk
        .then(|| chunks(0..prompt.ids.len(), settings.most_of_chunk()).last());
    let chunk = chunk.flatten();
    let phase_of = match &chunk {
        None => Phase::Decode,
        Some(chunk) => Phase::Prefill {
            tokens: chunk.len(),
            head: true,
        },
    };
    let plan = Plan::build(&source.spec, &settings, &gpu.features, phase_of)?;
    let all = kernels::sites(&source.spec, &plan, &args.kernels.filter()?)?;
    let (shard, count) = (args.kernels.shard.unwrap_or(Shard::WHOLE), all.len());
    let sites = shard.take(all);
    if sites.is_empty() {
        bail!("--shard {shard}: there are {count} sites, and this part has none; use fewer parts");
    }
    let weights = args.model.read(&source)?;
    let bar = spinner();
    let roof = roof::measure(&gpu, |what| phase(&bar, what))?;
    phase(&bar, "testing the timestamps");
    let timer = Timer::new(&gpu)?;
    phase(&bar, "making the buffers");
    let context = prompt.ids.len() + check::STEPS + 1;
    let mut engine = Engine::new(&gpu, &weights, context, None)?;
    let arm = engine.arm(&settings)?;
    let in_chunk;
    let program = match &chunk {
        Some(chunk) => {
            in_chunk = engine.prefill_program(&arm.prefill, chunk.len(), true)?;
            &*in_chunk
        }
        None => &arm.decode,
    };
    ensure!(
        program.plan == plan,
        "the weights have another plan than their headers"
    );
    phase(&bar, "comparing with the reference");
    let checks = check::model(&engine, &arm, &prompt.ids, check::STEPS)?;
    bar.finish_and_clear();
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    // A CPU has no one roof: its loads cost arithmetic.
    let roof_gb_s = (!gpu.features.cpu).then_some(roof.read_gb_s);
    let timed = if failed.is_empty() {
        if let Some(chunk) = &chunk {
            engine.reach(&arm.prefill, &prompt.ids[..chunk.start])?;
            engine.set_tokens(&prompt.ids[chunk.clone()]);
            engine.run(program, chunk.start)?;
        }
        let measuring = Measuring {
            seconds: args.kernels.seconds,
            folder: baseline_folder(&gpu, &weights.spec().id),
            modes: args.kernels.modes(),
            save: args.kernels.save_baseline.clone(),
            baseline: args.kernels.baseline.clone(),
            roof_gb_s,
        };
        kernels::time(&engine, &arm, program, &timer, &sites, &measuring)?
    } else {
        vec![]
    };
    if let Some(csv) = &args.kernels.csv {
        kernels::write_csv(csv, &engine, &timer, &timed, roof_gb_s)?;
    }
    let slower: Vec<String> = timed.iter().filter_map(slower).collect();
    Ok(json!({
        "model": weights.spec().id,
        "title": weights.provenance().title,
        "adapter": gpu.info.name,
        "cpu": gpu.features.cpu,
        "driver": gpu.info.driver,
        "driver_info": gpu.info.driver_info,
        "settings": settings.values(),
        "tokens": program.plan.phase.tokens(),
        "position": chunk.map_or(prompt.ids.len() + check::STEPS, |chunk| chunk.start),
        "checks": { "passed": checks.len() - failed.len(), "failed": failed },
        "roof": roof,
        "timer": timer.grade,
        "shard": shard.to_string(),
        "sites": timed,
        "slower": slower,
    }))
}

/// Where criterion keeps the times of an adapter and a model.
fn baseline_folder(gpu: &Gpu, model: &str) -> PathBuf {
    let plain = |name: &str| -> String {
        let keep = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        name.chars().map(keep).collect()
    };
    let adapter = format!("{} {}", gpu.info.name, gpu.info.driver_info);
    let folder = env::cache_dir().join("criterion");
    folder.join(plain(&adapter)).join(plain(model))
}

/// What is slower than the baseline by more than the margin, beyond its interval.
fn slower(timed: &TimedSite) -> Option<String> {
    let change = timed.change.filter(|change| change.low > MARGIN)?;
    Some(format!(
        "{} ({}, {}): {:+.1} % [{:+.1}, {:+.1}]",
        timed.site.site,
        timed.site.variant,
        timed.mode.name(),
        100.0 * change.estimate,
        100.0 * change.low,
        100.0 * change.high
    ))
}

fn text(answer: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let failed = answer["checks"]["failed"].as_array().map_or(0, Vec::len);
    if failed > 0 {
        return format!("CHECK FAILED, times withheld: {failed} checks; see --json");
    }
    let roof = answer["roof"]["read_gb_s"].as_f64();
    let roof = roof.filter(|_| answer["cpu"] == false);
    let clock = if answer["timer"]["timestamps"] == true {
        "GPU timestamps"
    } else {
        "wall time"
    };
    let mut text = format!(
        "{} on {}: one dispatch by {clock}, criterion's mean and 95 % interval{}\n",
        word(&answer["title"]),
        word(&answer["adapter"]),
        roof.map_or_else(String::new, |roof| format!("; roof {roof:.1} GB/s"))
    );
    for site in answer["sites"].as_array().into_iter().flatten() {
        if let Some(void) = site["void"].as_str() {
            let (mode, name) = (word(&site["mode"]), word(&site["site"]));
            text.push_str(&format!("{mode:<14} {name:<20} {void}\n"));
            continue;
        }
        let us = &site["us"];
        let share = match number(&site["weight_bytes"]) {
            bytes if bytes > 0.0 => {
                let gb_s = number(&site["weight_gb_s"]);
                let of_roof = roof.map_or_else(String::new, |roof| {
                    format!(", {:.1} % of the roof", 100.0 * gb_s / roof)
                });
                let gflop_s = number(&site["weight_gflop_s"]);
                format!(", {gb_s:.1} GB/s{of_roof}, {gflop_s:.1} GFLOP/s")
            }
            _ => String::new(),
        };
        let change = match site["change"].is_null() {
            true => String::new(),
            false => format!(
                ", {:+.1} % on the baseline",
                100.0 * number(&site["change"]["estimate"])
            ),
        };
        text.push_str(&format!(
            "{:<14} {:<20} {:<34} {:<14} {:>9.2} us [{:.2}, {:.2}]{share}{change}\n",
            word(&site["mode"]),
            word(&site["site"]),
            word(&site["variant"]),
            word(&site["shape"]),
            number(&us["estimate"]),
            number(&us["low"]),
            number(&us["high"]),
        ));
    }
    for slower in answer["slower"].as_array().into_iter().flatten() {
        text.push_str(&format!("SLOWER {}\n", word(slower)));
    }
    text
}
