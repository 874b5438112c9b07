//! The commands on checkpoints as files: `convert`, `synth` and `inspect`.

use super::{LayersArg, answer};
use crate::{model, text};
use ::kernels::models;
use anyhow::{Context as _, Result};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use reference::{
    convert::{self, Beside, Target, text_files},
    gguf::Gguf,
    inspect::{self, Inspection},
    synth,
};
use serde_json::json;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Names of tensors that a line of a difference shows.
const SHOWN: usize = 3;

#[derive(Debug, Args)]
pub(super) struct ConvertArgs {
    /// The GGUF file, or the folder of a Hugging Face model in f16, bf16 or f32
    input: PathBuf,
    /// The folder to write; it must not exist or be empty
    output: PathBuf,
    /// What to make: MLC's folder in q4f16_1 or q4f32_1, or MLX's in 4 bits
    #[arg(long, default_value = Target::Q4f16_1.name(), value_parser = target())]
    format: Target,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct SynthArgs {
    /// The model's id or published name, or a folder whose config.json or
    /// mlc-chat-config.json describes it
    #[arg(long, default_value = models::DEFAULT_MODEL)]
    model: String,
    #[command(flatten)]
    layers: LayersArg,
    /// The folder to write; it must not exist or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of the weights: the same bytes for the same seed on every machine
    #[arg(long, default_value_t = model::DEFAULT_SEED)]
    seed: u64,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// A GGUF file, or the folder of an MLC, MLX or Hugging Face checkpoint or of its
    /// configuration alone
    path: PathBuf,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// The values of `--format`.
fn target() -> impl TypedValueParser<Value = Target> {
    PossibleValuesParser::new(Target::ALL.map(Target::name)).map(|name| {
        let mut all = Target::ALL.into_iter();
        all.find(|t| t.name() == name).unwrap_or(Target::Q4f16_1)
    })
}

pub(super) fn run_convert(args: &ConvertArgs) -> Result<u8> {
    convert::require_writable(&args.output)?;
    let bar = model::counting("quantising");
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let checkpoint = convert::read(&args.input, args.format, &progress)?;
    let (beside, note) = text_of(&args.input);
    bar.reset();
    bar.set_message("writing");
    convert::write_with(&checkpoint, &args.output, &beside, &progress)?;
    bar.finish_and_clear();
    let title = &checkpoint.provenance().title;
    let (shown, bytes) = (
        args.output.display().to_string(),
        checkpoint.payload_bytes(),
    );
    let names: Vec<&str> = beside.iter().map(|file| file.name.as_str()).collect();
    let mut lines = format!("{title}: {bytes} bytes in {shown}");
    if !names.is_empty() {
        let _ = write!(lines, ", with {}", names.join(", "));
    }
    if let Some(note) = &note {
        let _ = write!(lines, "\nnote: {note}");
    }
    answer(
        args.json,
        &json!({
            "title": title,
            "output": shown,
            "bytes": bytes,
            "text_files": names,
            "notes": note.iter().collect::<Vec<_>>(),
        }),
        &lines,
    )?;
    Ok(0)
}

/// What goes along with the weights of a file or folder so that text can be read and
/// written, and a note where that is not enough.
fn text_of(input: &Path) -> (Vec<Beside>, Option<String>) {
    let without = "`generate`, `chat` and `ppl` need a tokenizer.json beside the weights";
    if input.is_dir() {
        let files = text_files(input);
        let lacks = files.iter().all(|file| file.name != "tokenizer.json");
        let note = || format!("{} has no tokenizer.json; {without}", input.display());
        let note = lacks.then(note);
        return (files, note);
    }
    let described = Gguf::open(input).map_err(anyhow::Error::from);
    match described.and_then(|gguf| text::files_of_gguf(&gguf, input)) {
        Ok(files) => (files, None),
        Err(error) => {
            let note = format!("no tokenizer was written: {error:#}; {without}");
            (vec![], Some(note))
        }
    }
}

pub(super) fn run_synth(args: &SynthArgs) -> Result<u8> {
    let spec = model::first_layers(model::described(&args.model)?, args.layers.layers)?;
    convert::require_writable(&args.out)?;
    let checkpoint = synth::checkpoint(&spec, args.seed)
        .with_context(|| format!("synthetic weights of {}", spec.id))?;
    let bar = model::counting("writing");
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    convert::write(&checkpoint, &args.out, &progress)?;
    bar.finish_and_clear();
    let provenance = checkpoint.provenance();
    let (shown, bytes) = (args.out.display().to_string(), checkpoint.payload_bytes());
    answer(
        args.json,
        &json!({
            "model": spec.id,
            "title": provenance.title,
            "seed": args.seed,
            "output": shown,
            "bytes": bytes,
            "sha256": provenance.sha256,
        }),
        &format!(
            "{}, seed {}: {bytes} bytes in {shown}, sha256 of the weights {}",
            provenance.title, args.seed, provenance.sha256
        ),
    )?;
    Ok(0)
}

pub(super) fn run_inspect(args: &InspectArgs) -> Result<u8> {
    let found = inspect::inspect(&args.path)?;
    answer(args.json, &json!(found), &text(&found))?;
    Ok(0)
}

fn text(found: &Inspection) -> String {
    let mut text = format!("kind: {}\n", found.kind.name());
    match (&found.model, &found.problem) {
        (Some(model), problem) => {
            let parameters = found.parameters.unwrap_or_default();
            let _ = writeln!(text, "model: {model}, {parameters} parameters");
            if let Some(problem) = problem {
                let _ = writeln!(text, "no checkpoint: {problem}");
            }
        }
        (None, problem) => {
            let problem = problem.as_deref().unwrap_or("no configuration");
            let _ = writeln!(text, "model: none: {problem}");
        }
    }
    let _ = writeln!(
        text,
        "{} tensors, {} bytes",
        found.tensors.len(),
        found.bytes
    );
    for tensor in &found.tensors {
        let shape = format!("{:?}", tensor.shape);
        let _ = writeln!(
            text,
            "  {:<48} {shape:<16} {:<16} {} bytes",
            tensor.name, tensor.dtype, tensor.bytes
        );
    }
    for difference in &found.differences {
        if difference.count() == 0 {
            let _ = writeln!(text, "as {}: nothing is missing", difference.model);
            continue;
        }
        let _ = writeln!(text, "as {}:", difference.model);
        for (what, names) in [
            ("missing", &difference.missing),
            ("unknown", &difference.unknown),
            ("of another shape", &difference.other_shape),
        ] {
            if !names.is_empty() {
                let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>();
                let more = if names.len() > SHOWN { ", ..." } else { "" };
                let _ = writeln!(text, "  {} {what}: {}{more}", names.len(), shown.join(", "));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_tokenizer_is_said() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let write = |name: &str| std::fs::write(dir.path().join(name), "{}").expect("written");
        write("generation_config.json");
        let (files, note) = text_of(dir.path());
        assert_eq!(files.len(), 1, "{files:?}");
        let note = note.expect("no tokenizer");
        assert!(note.contains("has no tokenizer.json; `generate`"), "{note}");
        write("tokenizer.json");
        let (files, note) = text_of(dir.path());
        assert_eq!((files.len(), note), (2, None), "both");
        let (files, note) = text_of(&dir.path().join("tokenizer.json"));
        assert_eq!(files, [], "no GGUF");
        let note = note.expect("no tokenizer");
        assert!(note.contains("no tokenizer was written: "), "{note}");
    }
}
