//! `ppl`: what a setting costs in quality, over a text.

use super::{
    answer, choices, counted,
    text::{TextModelArgs, read},
};
use crate::{
    device::Gpu,
    engine::Engine,
    interrupt, ppl,
    progress::{advance, phase},
};
use ::kernels::{Phase, Plan, Settings, flag::Choices};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;

/// The text that is read where none is named, and its name.
pub(super) const TEXT: &str = include_str!("../../data/alice.txt");
pub(super) const TEXT_NAME: &str = "Alice's Adventures in Wonderland, Lewis Carroll, 1865";

/// Tokens that are read where none are named.
const TOKENS: usize = 2048;

#[derive(Debug, Args)]
pub(super) struct PplArgs {
    /// A text file; by default Alice's Adventures in Wonderland
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens of the text that are read, from its beginning; by default 2048, or all of
    /// a shorter text
    #[arg(long)]
    tokens: Option<usize>,
    /// Tokens of a window, which is read from an empty cache
    #[arg(long, value_name = "N", default_value_t = 256)]
    window: usize,
    #[command(flatten)]
    model: TextModelArgs,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// Tokens that are read of a text of `there`.
fn tokens_read(asked: Option<usize>, window: usize, there: usize) -> Result<usize> {
    if there == 0 {
        bail!("--text: the text is empty; name one of at least {window} tokens");
    }
    if there < window {
        bail!(
            "--window {window}: the text has {}; name a longer one with --text, or a smaller \
             --window",
            counted(there, "token")
        );
    }
    let tokens = match asked {
        Some(asked) if asked > there => bail!(
            "--tokens {asked}: the text has {there}; name fewer, or a longer text with --text"
        ),
        Some(asked) => asked,
        None => TOKENS.min(there),
    };
    if tokens < window {
        bail!(
            "--tokens {tokens}: no window of {window}; expected {window} to {there}, or a smaller \
             --window"
        );
    }
    Ok(tokens)
}

pub(super) fn run(args: &PplArgs) -> Result<u8> {
    let choices = choices(&args.model.flags)?;
    let (name, text) = match &args.text {
        None => (TEXT_NAME.to_owned(), TEXT.to_owned()),
        Some(file) => {
            let read = std::fs::read_to_string(file);
            let name = file.file_name().unwrap_or(file.as_os_str());
            let read = read.with_context(|| {
                format!("--text {}: expected a text file in UTF-8", file.display())
            })?;
            (name.to_string_lossy().into_owned(), read)
        }
    };
    let (source, tokenizer) = args.model.source()?;
    let spec = &source.spec;
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
    let tokens = &all[..tokens_read(args.tokens, args.window, all.len())?];
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
    settings
        .iter()
        .try_for_each(|settings| Plan::require(spec, settings, &gpu.features))?;
    let weights = read(&source)?;
    let mut engine = Engine::new(&gpu, &weights, args.window, None)?;
    let arms = settings.iter().map(|settings| engine.arm(settings));
    let arms = arms.collect::<Result<Vec<_>>>()?;
    interrupt::listen();
    let bar = ProgressBar::new(tokens.len() as u64);
    bar.set_style(ProgressStyle::with_template(
        "{pos}/{len} tokens {bar:30} {eta}",
    )?);
    phase(
        &bar,
        &format!(
            "reading {} tokens in windows of {}, once for each of the settings ({})",
            tokens.len(),
            args.window,
            arms.len()
        ),
    );
    let measured = ppl::measure(&engine, &arms, tokens, args.window, |done| {
        advance(&bar, done as u64, "tokens");
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
        "{title} on {}\n{name}: {} of {}, {} of {}{}\n",
        gpu.info.name,
        measured.windows * measured.window,
        counted(all.len(), "token"),
        counted(measured.windows, "window"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_tokens_are_read_than_there_are() {
        assert_eq!(tokens_read(None, 256, 40_000).ok(), Some(2048), "default");
        assert_eq!(tokens_read(None, 256, 300).ok(), Some(300), "a short text");
        assert_eq!(tokens_read(Some(300), 256, 300).ok(), Some(300), "all");
        let error = tokens_read(Some(99_999_999), 256, 300).expect_err("too many");
        let error = error.to_string();
        assert!(
            error.contains("--tokens 99999999: the text has 300"),
            "{error}"
        );
        for (asked, there, part) in [
            (
                Some(0),
                300,
                "--tokens 0: no window of 256; expected 256 to 300",
            ),
            (None, 0, "the text is empty"),
            (None, 1, "the text has 1 token; name a longer one"),
            (Some(255), 255, "the text has 255 tokens; name a longer one"),
        ] {
            let error = tokens_read(asked, 256, there).expect_err(part);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
