//! The command line: what is typed, what it means, and exit statuses.
//! 0: it ran, whatever the verdict; 1: a check failed; 2: usage or set-up.

mod ab;
mod bench;
mod cases;
mod check;
mod files;
mod kernels;
mod measure;
mod ppl;
mod records;
mod text;

use crate::{
    device, env,
    model::{self, Prompt, Source},
    tint::Tint,
};
use ::kernels::{
    Features, Flag, ModelSpec, Phase, Plan, Settings,
    flag::{Choices, Metric, parse_choice},
    models::{self, DEFAULT_MODEL},
};
use anyhow::{Context as _, Result, bail};
use clap::{
    Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use reference::{
    Checkpoint,
    fetch::{self, Download, Form, Probe},
    folder::Verify,
};
use serde::Serialize;
use serde_json::json;
use std::{
    error::Error as _,
    ffi::OsString,
    io::{self, Write as _},
    num::{IntErrorKind, ParseFloatError, ParseIntError},
};

/// Develop, prove and benchmark int4 WGSL kernels and the forward pass made of them.
#[derive(Debug, Parser)]
#[command(name = "zerotvm", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the arms of one flag, or of two, on a whole token, and write the report
    Ab(ab::AbArgs),
    /// Time whole tokens: to the first, and of those that follow
    Bench(bench::BenchArgs),
    /// Measure the adapter's bounds: memory read, and a dispatch that waits
    Roof(bench::RoofArgs),
    /// Compare every kernel's output and the logits with the CPU reference
    Check(check::CheckArgs),
    /// Write the text that follows a prompt
    Generate(text::GenerateArgs),
    /// Talk with a model at the terminal
    Chat(text::ChatArgs),
    /// Compare the perplexity of two settings over a text
    Ppl(ppl::PplArgs),
    /// Break every kernel in many ways; some case must fail on each
    Mutants(cases::MutantsArgs),
    /// List the variants of every kernel, or print the WGSL of one
    Kernels(kernels::KernelsArgs),
    /// Print the dispatches of one token and the bytes they read
    Plan(PlanArgs),
    /// Ask, merge and compare what was recorded
    Results(records::ResultsArgs),
    /// Read another tool's result file into records
    Import(records::ImportArgs),
    /// Make every report again from the records, or check those that lie there
    Report(records::ReportArgs),
    /// Print adapters, features and limits, and what can be done here
    Doctor(DoctorArgs),
    /// Fetch a model's published weights into the cache, verified; what was stopped goes on
    Fetch(FetchArgs),
    /// Quantise a GGUF file, or a Hugging Face folder, to a checkpoint folder with its
    /// tokenizer
    Convert(files::ConvertArgs),
    /// Write seeded synthetic weights of a model as a checkpoint folder
    Synth(files::SynthArgs),
    /// Say what a checkpoint is, and what it lacks to be a registered model
    Inspect(files::InspectArgs),
}

/// How much of a model a command takes.
#[derive(Clone, Copy, Debug, Args)]
struct LayersArg {
    /// The model's first N layers, with its head behind them
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
}

#[derive(Debug, Args)]
struct ModelArgs {
    /// The model's id or published name; by default that of the weights named, or
    /// smollm2-135m
    #[arg(long)]
    model: Option<String>,
    /// `gguf`, `synthetic`, a GGUF file or the folder of an MLC or MLX checkpoint;
    /// by default those that `fetch` has of the model, or synthetic weights
    #[arg(long)]
    weights: Option<String>,
    /// How often the shards of an MLC checkpoint are compared with their md5
    #[arg(long, value_name = "WHEN", default_value = Verify::Once.name(), value_parser = verify())]
    verify: Verify,
    /// Prompt of N seeded token ids instead of the embedded one
    #[arg(long, value_name = "N")]
    prompt: Option<usize>,
    #[command(flatten)]
    layers: LayersArg,
    /// Seed of synthetic weights, seeded prompts, the order of blocks and cases
    #[arg(long, default_value_t = model::DEFAULT_SEED)]
    seed: u64,
    /// Adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

impl ModelArgs {
    fn id(&self) -> &str {
        self.model.as_deref().unwrap_or(DEFAULT_MODEL)
    }

    /// Where the weights are, of the model named, and the prompt, with room for `tokens`
    /// after it. What is wrong with either is said before a weight is read.
    fn source(&self, tokens: usize) -> Result<(Source, Prompt)> {
        models::find(self.id())?;
        let (named, layers) = (self.weights.as_deref(), self.layers.layers);
        let source = Source::find(self.id(), named, layers)?;
        self.require_named(&source.spec)?;
        let prompt = model::prompt(&source.spec, self.prompt, self.seed)?;
        require_room(&source.spec, prompt.ids.len(), tokens)?;
        Ok((source, prompt))
    }

    /// The weights of a source.
    fn read(&self, source: &Source) -> Result<Checkpoint> {
        source.load(self.seed, self.verify)
    }

    /// Refuses weights of another model than the one named.
    fn require_named(&self, found: &ModelSpec) -> Result<()> {
        let Some(named) = &self.model else {
            return Ok(());
        };
        if models::find(named)?.id != found.id {
            bail!(
                "--model {named}: the weights of --weights {} are those of {}; leave --model \
                 out",
                self.weights.as_deref().unwrap_or("gguf"),
                found.id
            );
        }
        Ok(())
    }
}

/// The values of `--verify`.
fn verify() -> impl TypedValueParser<Value = Verify> {
    let names = Verify::ALL.map(Verify::name);
    PossibleValuesParser::new(names).map(|name| {
        let mut all = Verify::ALL.into_iter();
        all.find(|v| v.name() == name).unwrap_or_default()
    })
}

/// Refuses a prompt and tokens that the model's pages do not hold.
fn require_room(spec: &ModelSpec, prompt: usize, tokens: usize) -> Result<()> {
    // The last token is fed too, for its logits.
    let needed = prompt.saturating_add(tokens).saturating_add(1);
    if needed > spec.max_context() {
        bail!(
            "a prompt of {prompt} and --tokens {tokens} need {needed} positions, {} holds {}",
            spec.id,
            spec.max_context()
        );
    }
    Ok(())
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// The model's id or published name, or a folder whose config.json or
    /// mlc-chat-config.json describes it
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// A flag's value; FLAG alone takes its first value that is not off; repeatable
    #[arg(long = "flag", value_name = "FLAG=VALUE")]
    flags: Vec<String>,
    #[command(flatten)]
    layers: LayersArg,
    /// Resolve for this machine's adapter instead of the published feature set
    #[arg(long)]
    adapter: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// Print nothing; exit 0 with an adapter, 4 without
    #[arg(long, hide = true)]
    probe: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct FetchArgs {
    /// The model's id or published name
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
    /// Print nothing; exit 5 where python3-pip would be needed
    #[arg(long, hide = true)]
    probe: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

/// A value may begin with a minus: what is wrong with it is then said of the number.
fn with_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        arg.allow_negative_numbers(takes)
    });
    command.mut_subcommands(with_negative_values)
}

/// The same error with what was expected of a number that is none, of which the
/// standard library's reason says nothing.
fn of_numbers(error: clap::Error, command: &mut clap::Command) -> clap::Error {
    let Some(reason) = error.source() else {
        return error;
    };
    let whole = reason.downcast_ref().map(ParseIntError::kind);
    let expected = if whole == Some(&IntErrorKind::PosOverflow) {
        "the number is too large"
    } else if whole.is_some() {
        "expected a whole number, 0 or above"
    } else if reason.is::<ParseFloatError>() {
        "expected a number"
    } else {
        return error;
    };
    let part = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        Some(_) | None => "",
    };
    let (value, option) = (
        part(ContextKind::InvalidValue),
        part(ContextKind::InvalidArg),
    );
    let message = format!("invalid value '{value}' for '{option}': {expected}");
    command.error(ErrorKind::ValueValidation, message)
}

impl Cli {
    /// Reads the command line, the program's name first; what is wrong ends the process
    /// with its explanation.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Self {
        Self::try_read(line).unwrap_or_else(|error| error.exit())
    }

    fn try_read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = with_negative_values(Self::command());
        let matches = command
            .try_get_matches_from_mut(line)
            .map_err(|error| of_numbers(error, &mut command))?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// Runs the command and returns the exit status.
    pub fn run(self) -> u8 {
        let result = match self.command {
            Command::Ab(args) => ab::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Roof(args) => bench::run_roof(&args),
            Command::Check(args) => check::run(&args),
            Command::Generate(args) => text::run_generate(&args),
            Command::Chat(args) => text::run_chat(&args),
            Command::Ppl(args) => ppl::run(&args),
            Command::Mutants(args) => cases::run_mutants(&args),
            Command::Kernels(args) => kernels::run(&args),
            Command::Plan(args) => run_plan(&args),
            Command::Results(args) => records::run_results(&args),
            Command::Import(args) => records::run_import(&args),
            Command::Report(args) => records::run_report(&args),
            Command::Doctor(args) => run_doctor(&args),
            Command::Fetch(args) => run_fetch(&args),
            Command::Convert(args) => files::run_convert(&args),
            Command::Synth(args) => files::run_synth(&args),
            Command::Inspect(args) => files::run_inspect(&args),
        };
        result.unwrap_or_else(|error| {
            // A closed standard error is no reason for another exit status.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            2
        })
    }
}

/// Prints on standard output. A reader that has read enough and closed it, such as
/// `head`, is no error.
fn print(text: &str) -> Result<()> {
    match writeln!(io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints the document under `--json`, the text otherwise.
fn answer(json: bool, document: &impl Serialize, text: &str) -> Result<()> {
    if json {
        print(&serde_json::to_string_pretty(document)?)
    } else {
        print(text)
    }
}

/// So many of a thing.
fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

fn choices(flags: &[String]) -> Result<Choices> {
    let mut choices = Choices::new();
    for flag in flags {
        parse_choice(flag, &mut choices)?;
    }
    Ok(choices)
}

fn run_plan(args: &PlanArgs) -> Result<u8> {
    let spec = model::first_layers(model::described(&args.model)?, args.layers.layers)?;
    let features = if args.adapter {
        device::features_of(&device::pick(None)?)
    } else {
        Features::PUBLISHED
    };
    let choices = choices(&args.flags)?;
    let settings = Settings::resolve(&features, &choices)?;
    Plan::require(&spec, &settings, &features)?;
    let plan = Plan::build(&spec, &settings, &features, Phase::Decode)?;
    let totals = plan.totals();
    let mut notes = settings.notes.clone();
    notes.extend(choices.keys().filter_map(|name| {
        let of_prompts = Flag::find(name).ok()?.metric != Metric::Decode;
        of_prompts.then(|| format!("{name} changes prompts alone, and this is a decoded token"))
    }));
    let variants: Vec<String> = plan.variants().iter().map(|v| v.id()).collect();
    let document = json!({
        "model": spec.id,
        "layers": spec.num_hidden_layers,
        "settings": settings.values(),
        "dispatches_per_token": totals.dispatches_per_token,
        "by_role": totals.by_role,
        "bytes_per_token": totals.bytes_per_token,
        "flops_per_token": totals.flops_per_token,
        "variants": variants,
        "notes": notes,
    });
    let part = match args.layers.layers {
        Some(layers) => format!(", {layers} layers"),
        None => String::new(),
    };
    let mut text = format!(
        "{}{part}: {} dispatches per token, {} bytes of weights and scales, {} operations with \
         them\n",
        spec.id, totals.dispatches_per_token, totals.bytes_per_token, totals.flops_per_token
    );
    for (role, count) in &totals.by_role {
        text.push_str(&format!("  {role:<19} {count}\n"));
    }
    text.push_str(&format!("variants: {}\n", variants.join(", ")));
    for note in &notes {
        text.push_str(&format!("note: {note}\n"));
    }
    answer(args.json, &document, &text)?;
    Ok(0)
}

fn run_doctor(args: &DoctorArgs) -> Result<u8> {
    let adapters = device::adapters();
    if args.probe {
        return Ok(if adapters.is_empty() { 4 } else { 0 });
    }
    let mut text = String::new();
    let mut documents = Vec::new();
    for adapter in &adapters {
        let (info, features) = (adapter.get_info(), device::features_of(adapter));
        let timestamps = adapter.features().contains(wgpu::Features::TIMESTAMP_QUERY);
        let limits = device::limits_of(&adapter.limits());
        let can = if features.shader_f16 {
            "every variant of the table"
        } else {
            "nothing yet: the kernels need shader-f16"
        };
        text.push_str(&format!(
            "{}\n  {:?}, {}, driver {} {}\n  shader-f16 {}, subgroups {}, timestamp-query {}\n  runs {can}\n",
            info.name,
            info.device_type,
            info.backend,
            info.driver,
            info.driver_info,
            yes(features.shader_f16),
            features
                .subgroup_size
                .map_or("no".into(), |(low, high)| format!("{low} to {high}")),
            yes(timestamps),
        ));
        for (name, value) in &limits {
            text.push_str(&format!("  {name} {value}\n"));
        }
        documents.push(json!({
            "name": info.name,
            "device_type": format!("{:?}", info.device_type),
            "backend": info.backend.to_string(),
            "driver": info.driver,
            "driver_info": info.driver_info,
            "features": features,
            "timestamp_query": timestamps,
            "limits": limits,
        }));
    }
    if adapters.is_empty() {
        text.push_str(
            "no Vulkan, Metal or DX12 adapter: `plan`, `fetch`, `convert` and `report` work, `ab` \
             and `check` do not; on Debian: sudo apt-get update && sudo apt-get install -y \
             mesa-vulkan-drivers libvulkan1\n",
        );
    }
    let model = match fetch::probe(DEFAULT_MODEL, &env::sources())? {
        Probe::Ready(source) => match source {
            fetch::Source::Cache => "the cache",
            fetch::Source::Leftover => "another program's cache",
            fetch::Source::Hub => "the hub",
            fetch::Source::Pip => "pip",
        }
        .to_owned(),
        Probe::NeedsPip => "needs python3-pip".into(),
        Probe::Unavailable => "nowhere".into(),
    };
    text.push_str(&format!("{DEFAULT_MODEL}: from {model}\n"));
    let tint = match Tint::find(&env::cache_dir()) {
        Ok(_) => "ready".to_owned(),
        Err(missing) => missing.to_string(),
    };
    text.push_str(&format!("Tint, for the browser's dialect: {tint}\n"));
    answer(
        args.json,
        &json!({ "adapters": documents, "default_model": model, "tint": tint }),
        &text,
    )?;
    Ok(0)
}

const fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn run_fetch(args: &FetchArgs) -> Result<u8> {
    if args.probe {
        let needs_pip = |download: &Download| {
            // Of a folder no pip has anything, so nothing is asked.
            matches!(download.form, Form::File(_))
                && fetch::probe_download(download, &env::sources()) == Probe::NeedsPip
        };
        let needs_pip = fetch::download_of(&args.model).is_ok_and(needs_pip);
        return Ok(if needs_pip { 5 } else { 0 });
    }
    let spec = models::find(&args.model)?;
    let path = model::fetch(&spec.id)?;
    let shown = path.display().to_string();
    answer(
        args.json,
        &json!({ "model": spec.id, "path": shown }),
        &shown,
    )?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Cli, String> {
        let line = std::iter::once("zerotvm").chain(words.iter().copied());
        Cli::try_read(line.map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_minus_is_of_the_value() {
        for (words, part) in [
            (
                &["generate", "--prompt", "x", "--seed", "-1"][..],
                "invalid value '-1' for '--seed",
            ),
            (
                &["generate", "--prompt", "x", "--top-k", "-1"],
                "invalid value '-1' for '--top-k",
            ),
            (
                &["chat", "--context", "-3"],
                "invalid value '-3' for '--context",
            ),
            (
                &["ppl", "--tokens", "-1"],
                "invalid value '-1' for '--tokens",
            ),
        ] {
            let error = read(words).expect_err(part);
            assert!(error.contains(part), "{words:?}: {error}");
        }
        read(&["generate", "--prompt", "- item", "--seed", "1"]).expect("a list");
        read(&["generate", "--prompt", "--- x", "--chat", "--system", "-a"]).expect("a rule");
        read(&["ab", "--flag", "splitk", "--margin", "-1"]).expect("said later");
    }
}
