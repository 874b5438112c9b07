//! `check`: every kernel on its cases and a model against the reference, or one case,
//! or another implementation's outputs.

use super::{
    ModelArgs, answer,
    cases::{golden_folder, run_case},
    choices, counted,
};
use crate::{
    cases::{self, Reasoned, VariantCases},
    check::{self, Check},
    device::Gpu,
    engine::Engine,
    golden,
    progress::{phase, spinner},
};
use ::kernels::{Plan, Settings, Variant, flag::Choices, models, variants::VARIANTS};
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use results::{
    shard::Shard,
    sheet::{self, CheckedKernel},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// A flag's value; FLAG alone takes its first value that is not off; repeatable
    #[arg(long = "flag", value_name = "FLAG=VALUE")]
    flags: Vec<String>,
    /// Greedy tokens compared after the prompt
    #[arg(long, default_value_t = check::STEPS)]
    tokens: usize,
    /// One half alone: every kernel on its cases, or the model with its plan's kernels
    #[arg(long, value_enum)]
    only: Option<Half>,
    /// One kernel alone, on its cases
    #[arg(
        long,
        value_name = "VARIANT",
        conflicts_with_all = [
            "model", "weights", "verify", "prompt", "layers", "tokens", "flags", "only"
        ]
    )]
    variant: Option<String>,
    /// Compare reference and GPU with the outputs in this folder: an MLC or MLX
    /// checkpoint and `expected.safetensors`
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = [
            "model", "weights", "verify", "prompt", "layers", "seed", "tokens", "only", "variant"
        ]
    )]
    golden: Option<PathBuf>,
    /// Run one case of one kernel, ROLE/VARIANT/PROPERTY, drawn from --seed
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = [
            "model", "weights", "verify", "prompt", "layers", "tokens", "flags", "golden", "only",
            "variant"
        ]
    )]
    case: Option<String>,
    /// The part I of N of the kernels, as 1/4; the model is in the first
    #[arg(long, value_name = "I/N", conflicts_with_all = ["case", "golden", "variant"])]
    shard: Option<Shard>,
    /// Write what each kernel passed as CSV to this file; `results merge` joins those of
    /// shards
    #[arg(long, value_name = "FILE", conflicts_with_all = ["case", "golden"])]
    csv: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

/// What a check without a case and without golden outputs is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Half {
    /// Every kernel on its cases
    Kernels,
    /// The model, dispatch by dispatch and by its logits and tokens
    Model,
}

pub(super) fn run(args: &CheckArgs) -> Result<u8> {
    if args.tokens == 0 {
        bail!("--tokens 0: expected at least one");
    }
    if let Some(id) = &args.case {
        let ModelArgs { seed, adapter, .. } = &args.model;
        return run_case(id, *seed, adapter.as_deref(), args.model.json);
    }
    let choices = choices(&args.flags)?;
    if let Some(dir) = &args.golden {
        return run_golden(dir, &choices, &args.model);
    }
    let of_model = &args.model;
    let named = !args.flags.is_empty()
        || of_model.model.is_some()
        || of_model.weights.is_some()
        || of_model.prompt.is_some()
        || of_model.layers.layers.is_some();
    if args.only == Some(Half::Kernels) && named {
        bail!(
            "--only kernels takes every kernel on cases of its own: --model, --weights, --prompt, \
             --layers and --flag are of --only model; leave them out, or name a kernel with \
             --variant"
        );
    }
    if args.only == Some(Half::Model) && (args.shard.is_some() || args.csv.is_some()) {
        bail!("--only model: --shard and --csv are of the kernels; leave them out");
    }
    if let Some(csv) = &args.csv {
        sheet::require_writable(csv).context("--csv")?;
    }
    let shard = args.shard.unwrap_or(Shard::WHOLE);
    let one: Option<Variant> = args.variant.as_deref().map(str::parse).transpose()?;
    models::find(args.model.id())?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, &choices)?;
    let mut all = Answer::new(&gpu, args.model.seed);
    // The model first: what is wrong with its arguments is said at once.
    if args.only != Some(Half::Kernels) && one.is_none() && shard.is_first() {
        all.model(args, &settings)?;
    }
    if args.only != Some(Half::Model) {
        let variants = one.map_or_else(|| VARIANTS.clone(), |variant| vec![variant]);
        let (count, variants) = (variants.len(), shard.take(variants));
        if variants.is_empty() {
            bail!(
                "--shard {shard}: there are {count} kernels, and this part has none; use fewer parts"
            );
        }
        all.kernels(&variants);
    }
    if let Some(csv) = &args.csv {
        sheet::write(csv, &all.rows(shard))?;
    }
    answer(args.model.json, &all.document(), &all.text())?;
    Ok(u8::from(all.failed() > 0))
}

/// What was compared, and what came of it.
struct Answer<'g> {
    gpu: &'g Gpu,
    seed: u64,
    /// Of the model.
    checks: Vec<Check>,
    /// Its names and settings.
    header: Value,
    /// Its published name.
    title: String,
    /// Of the kernels.
    variants: Vec<VariantCases>,
    /// Whether a kernel that was run uses subgroups.
    subgroups: bool,
}

impl<'g> Answer<'g> {
    fn new(gpu: &'g Gpu, seed: u64) -> Self {
        Self {
            gpu,
            seed,
            checks: vec![],
            header: Value::Null,
            title: String::new(),
            variants: vec![],
            subgroups: false,
        }
    }

    fn model(&mut self, args: &CheckArgs, settings: &Settings) -> Result<()> {
        let (source, prompt) = args.model.source(args.tokens)?;
        Plan::require(&source.spec, settings, &self.gpu.features)?;
        let weights = args.model.read(&source)?;
        let context = prompt.ids.len() + args.tokens + 1;
        let mut engine = Engine::new(self.gpu, &weights, context, None)?;
        let arm = engine.arm(settings)?;
        self.subgroups |= arm
            .decode
            .plan
            .variants()
            .iter()
            .any(Variant::uses_subgroups);
        let bar = spinner();
        phase(&bar, "comparing the model with the reference");
        let checks = check::model(&engine, &arm, &prompt.ids, args.tokens)?;
        bar.finish_and_clear();
        self.title = weights.provenance().title.clone();
        self.header = json!({
            "model": weights.spec().id,
            "title": self.title,
            "settings": settings.values(),
        });
        self.checks = checks;
        Ok(())
    }

    fn kernels(&mut self, variants: &[Variant]) {
        let bar = ProgressBar::new(variants.len() as u64);
        if let Ok(style) = ProgressStyle::with_template("kernels {bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        let golden = golden_folder();
        self.subgroups |= variants.iter().any(Variant::uses_subgroups);
        self.variants = cases::sweep(
            self.gpu,
            variants,
            golden.as_deref(),
            self.seed,
            |outcome| {
                bar.inc(1);
                bar.set_message(outcome.variant.clone());
                let done = bar.position();
                if bar.is_hidden() && done.is_multiple_of(100) {
                    eprintln!("{done} of {} kernels", variants.len());
                }
            },
        );
        bar.finish_and_clear();
    }

    /// What each kernel passed.
    fn rows(&self, shard: Shard) -> Vec<CheckedKernel> {
        let row = |v: &VariantCases| CheckedKernel {
            adapter: self.gpu.info.name.clone(),
            driver: self.gpu.info.driver_info.clone(),
            seed: self.seed,
            shard: shard.to_string(),
            variant: v.variant.clone(),
            cases: v.cases as u64,
            passed: v.passed as u64,
            failed: v.failed.len() as u64,
            skipped: v.skipped.len() as u64,
            unrun: v.unrun.clone().unwrap_or_default(),
        };
        self.variants.iter().map(row).collect()
    }

    fn cases(&self) -> usize {
        let of_kernels: usize = self.variants.iter().map(|v| v.cases).sum();
        self.checks.len() + of_kernels
    }

    fn failed(&self) -> usize {
        let of_kernels: usize = self.variants.iter().map(|v| v.failed.len()).sum();
        self.checks.iter().filter(|c| !c.passed).count() + of_kernels
    }

    fn skipped(&self) -> impl Iterator<Item = &Reasoned> {
        self.variants.iter().flat_map(|v| &v.skipped)
    }

    /// Variants that this adapter cannot run, and subgroup sizes that it does not have.
    fn unrun(&self) -> Vec<Reasoned> {
        let variants = self.variants.iter().filter_map(|v| {
            v.unrun.as_ref().map(|reason| Reasoned {
                what: v.variant.clone(),
                reason: reason.clone(),
            })
        });
        let mut all: Vec<Reasoned> = variants.collect();
        // What these kernels do with subgroups of another size is not known from here.
        let sizes = self.gpu.features.other_subgroup_sizes().into_iter();
        all.extend(sizes.filter(|_| self.subgroups).map(|size| Reasoned {
            what: format!("subgroups of {size}"),
            reason: "this adapter has none of this size".into(),
        }));
        all
    }

    fn document(&self) -> Value {
        let failed = self.failed();
        let failures: Vec<_> = self.variants.iter().flat_map(|v| &v.failed).collect();
        let mut document = json!({
            "adapter": self.gpu.info.name,
            "seed": self.seed,
            "cases": self.cases(),
            "passed": self.cases() - failed,
            "failed": failed,
            "skipped": self.skipped().collect::<Vec<_>>(),
            "unrun": self.unrun(),
            "failures": failures,
            "variants": self.variants,
            "checks": self.checks,
        });
        if let (Some(all), Some(header)) = (document.as_object_mut(), self.header.as_object()) {
            all.extend(header.clone());
        }
        document
    }

    fn text(&self) -> String {
        let mut text = format!("on {}\n", self.gpu.info.name);
        if !self.checks.is_empty() {
            text.insert_str(0, &format!("{} ", self.title));
        }
        for c in &self.checks {
            text.push_str(&format!(
                "{} {:<38} {:<19} worst {:.3e}, {:.3} of its limit{}\n",
                if c.passed { "pass" } else { "FAIL" },
                c.stage,
                c.role,
                c.worst_abs,
                c.worst_ratio,
                c.note.as_ref().map_or(String::new(), |n| format!(": {n}"))
            ));
        }
        for v in &self.variants {
            let state = match (&v.unrun, v.failed.is_empty()) {
                (Some(reason), _) => format!("unrun {}: {reason}", v.variant),
                (None, true) => format!("pass {:<38} {} cases", v.variant, v.passed),
                (None, false) => {
                    format!(
                        "FAIL {:<38} {} of {} cases",
                        v.variant,
                        v.failed.len(),
                        v.cases
                    )
                }
            };
            text.push_str(&format!("{state}\n"));
            for failure in &v.failed {
                text.push_str(&format!("  {}\n", failure.why));
            }
            for known in &v.expected_failures {
                text.push_str(&format!(
                    "  fails as expected {}: {}\n",
                    known.what, known.reason
                ));
            }
        }
        for skipped in self.skipped() {
            text.push_str(&format!("skipped {}: {}\n", skipped.what, skipped.reason));
        }
        let unrun = self.unrun();
        let sizes = unrun
            .iter()
            .filter(|u| !self.variants.iter().any(|v| v.variant == u.what));
        for unrun in sizes {
            text.push_str(&format!("unrun {}: {}\n", unrun.what, unrun.reason));
        }
        let (cases, failed) = (self.cases(), self.failed());
        text.push_str(&format!(
            "{cases} cases, seed {}: {} passed, {failed} failed, {} skipped, {} unrun",
            self.seed,
            cases - failed,
            self.skipped().count(),
            unrun.len()
        ));
        text
    }
}

fn run_golden(dir: &Path, choices: &Choices, args: &ModelArgs) -> Result<u8> {
    let folder = golden::Folder::open(dir)?;
    let gpu = Gpu::open(args.adapter.as_deref())?;
    let settings = Settings::resolve(&gpu.features, choices)?;
    let checks = golden::check(&gpu, &folder, &settings)?;
    let failed = checks.iter().filter(|c| !c.passed).count();
    let title = &folder.weights.provenance().title;
    let mut ignored = folder.ignored.clone();
    ignored.extend(golden::not_formed(&folder, &settings));
    let document = json!({
        "model": folder.weights.spec().id,
        "title": title,
        "adapter": gpu.info.name,
        "settings": settings.values(),
        "cases": checks.len(),
        "passed": checks.len() - failed,
        "failed": failed,
        "ignored": ignored,
        "checks": checks,
    });
    let mut text = format!("{title} on {}\n", gpu.info.name);
    for check in &checks {
        text.push_str(&golden_line(check));
    }
    if !ignored.is_empty() {
        text.push_str(&format!("not compared: {}\n", ignored.join(", ")));
    }
    text.push_str(&format!(
        "{} passed, {failed} failed",
        checks.len() - failed
    ));
    answer(args.json, &document, &text)?;
    Ok(u8::from(failed > 0))
}

fn golden_line(check: &golden::Comparison) -> String {
    let row = check.row.map_or(String::new(), |row| format!("[{row}]"));
    let stage = format!("{} {}{row}", check.prompt, check.stage);
    let errors = match check.errors {
        Some(e) => format!(
            "worst {:.2e}, {:.2e} of the row's rms; relative rms {:.2e}, limit {:.0e}",
            e.worst_abs, e.worst_rel, e.rel_rms, e.bound
        ),
        None if check.stage == golden::EXPERTS => counted(check.elements, "choice"),
        None => counted(check.elements, "token"),
    };
    let argmax = check.argmax_agrees.map_or("", |agrees| {
        if agrees {
            "; argmax agrees"
        } else {
            "; argmax differs"
        }
    });
    let note = check
        .note
        .as_ref()
        .map_or(String::new(), |n| format!(": {n}"));
    format!(
        "{} {:<9} {stage:<32} {errors}{argmax}{note}\n",
        if check.passed { "pass" } else { "FAIL" },
        check.pass,
    )
}
