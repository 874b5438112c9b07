//! `ppl`: what a setting costs in quality, over a text.

use super::{answer, choices, text::TextModelArgs};
use crate::{device::Gpu, engine::Engine, interrupt, ppl};
use ::kernels::{Phase, Plan, Settings, flag::Choices};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;

/// The text that is read where none is named, and its name.
pub(super) const TEXT: &str = include_str!("../../data/alice.txt");
pub(super) const TEXT_NAME: &str = "Alice's Adventures in Wonderland, Lewis Carroll, 1865";

#[derive(Debug, Args)]
pub(super) struct PplArgs {
    /// A text file; by default Alice's Adventures in Wonderland
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of the text that are read, from its beginning
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    /// Tokens of a window, which is read from an empty cache
    #[arg(long, value_name = "N", default_value_t = 256)]
    window: usize,
    #[command(flatten)]
    model: TextModelArgs,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PplArgs) -> Result<u8> {
    let choices = choices(&args.model.flags)?;
    let (name, text) = match &args.text {
        None => (TEXT_NAME.to_owned(), TEXT.to_owned()),
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let name = file.file_name().unwrap_or(file.as_os_str());
            let read = read.with_context(|| file.display().to_string())?;
            (name.to_string_lossy().into_owned(), read)
        }
    };
    let (weights, tokenizer) = args.model.load()?;
    let spec = weights.spec();
    if args.window < 2 || args.window > spec.max_context() {
        let most = spec.max_context();
        bail!(
            "--window {}: expected 2 to {most}, what {} holds",
            args.window,
            spec.id
        );
    }
    let all = tokenizer.encode(&text, false)?;
    tokenizer.require_within(&all, spec.vocab_size)?;
    let tokens = &all[..all.len().min(args.tokens)];
    if tokens.len() < args.window {
        bail!(
            "{} tokens are no window of {}; the text has {}: choose more --tokens or a smaller \
             --window",
            tokens.len(),
            args.window,
            all.len()
        );
    }
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let mut settings = vec![Settings::resolve(&gpu.features, &Choices::new())?];
    if !choices.is_empty() {
        let with = Settings::resolve(&gpu.features, &choices)?;
        let plan = |s: &Settings| Plan::build(spec, s, &gpu.features, Phase::Decode);
        if plan(&settings[0])? == plan(&with)? {
            bail!(
                "both settings decode with the same kernels; name a flag that changes a decoded \
                 token"
            );
        }
        settings.push(with);
    }
    let mut engine = Engine::new(&gpu, &weights, args.window, None)?;
    let arms = settings.iter().map(|settings| engine.arm(settings));
    let arms = arms.collect::<Result<Vec<_>>>()?;
    interrupt::listen();
    let bar = ProgressBar::new(tokens.len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{pos}/{len} tokens {bar:30} {eta}",
    )?);
    bar.tick();
    let measured = ppl::measure(&engine, &arms, tokens, args.window, |done| {
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let title = &weights.provenance().title;
    let document = json!({
        "model": spec.id,
        "title": title,
        "adapter": gpu.info.name,
        "text": name,
        "text_tokens": all.len(),
        "settings": settings.iter().map(Settings::values).collect::<Vec<_>>(),
        "measured": measured,
    });
    let mut lines = format!(
        "{title} on {}\n{name}: {} of {} tokens, {} windows of {}{}\n",
        gpu.info.name,
        measured.windows * measured.window,
        all.len(),
        measured.windows,
        measured.window,
        if measured.interrupted {
            ", stopped by Ctrl-C"
        } else {
            ""
        }
    );
    let names = ["default".to_owned(), args.model.flags.join(" ")];
    for (name, found) in names.iter().zip(&measured.settings) {
        lines.push_str(&format!(
            "{name:<20} perplexity {:.4}, {:.5} nats a token\n",
            found.perplexity, found.nll
        ));
    }
    if let Some(difference) = &measured.difference {
        let interval = difference.ci95.map_or_else(
            || "no interval of one window".to_owned(),
            |[low, high]| format!("95 % {low:+.5} to {high:+.5}"),
        );
        lines.push_str(&format!(
            "difference           {:+.5} nats a token ({interval}), worst token {:.3}; perplexity \
             {:+.3} %\n",
            difference.nll,
            difference.worst,
            100.0 * difference.nll.exp_m1()
        ));
    }
    answer(args.json, &document, &lines)?;
    Ok(0)
}
