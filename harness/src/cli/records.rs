//! `results`, `import` and `report`: what was recorded, asked, joined and shown.

use super::{answer, print};
use crate::ab::folders;
use ::reports::reports;
use anyhow::{Context as _, Result, bail};
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use results::{
    external::{self, Figure, Given, Side, Tool, compare},
    journal::AbRun,
    merge::merge,
    query::{Format, TABLES, describe, query},
    record::Arm,
    store::Store,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

#[derive(Debug, Args)]
pub(super) struct ResultsArgs {
    #[command(subcommand)]
    command: ResultsCommand,
}

#[derive(Debug, Subcommand)]
enum ResultsCommand {
    /// Ask the records a question in SQL, as "SELECT run, verdict, effect_pct FROM runs"
    #[command(after_long_help = tables_help())]
    Query(QueryArgs),
    /// List the tables and columns that a question may use
    Tables(TablesArgs),
    /// Join the files of shards: journals (*.jsonl) or sheets (*.csv) of one schema
    Merge(MergeArgs),
    /// Compare two figures: records of other engines, timings of whole tokens, or arms of runs
    /// as RUN:ARM
    Compare(CompareArgs),
}

fn tables_help() -> String {
    format!("Tables and their columns:\n\n{}", describe())
}

#[derive(Debug, Args)]
struct QueryArgs {
    /// One statement that reads
    sql: String,
    /// A folder of records, or one file
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// One JSON array of objects
    #[arg(long, group = "format")]
    json: bool,
    /// One JSON object a line
    #[arg(long, group = "format")]
    jsonl: bool,
    /// Comma-separated values
    #[arg(long, group = "format")]
    csv: bool,
    /// A Markdown table
    #[arg(long, group = "format")]
    md: bool,
}

#[derive(Debug, Args)]
struct TablesArgs {
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct MergeArgs {
    /// The files, in the order of the joined one
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The joined file, which may not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CompareArgs {
    /// The id of a record or of a timing of whole tokens, or RUN:ARM
    first: String,
    /// Another
    second: String,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The tool that wrote the file
    #[arg(value_parser = tool())]
    tool: Tool,
    /// Its result file
    file: PathBuf,
    /// The records' file in results/data/external, without its ending; by default the
    /// result file's name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The model as an id of this workbench, where the file calls it otherwise
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// The device that computed, where the file does not say
    #[arg(long, value_name = "NAME")]
    hardware: Option<String>,
    /// The API or library below the engine, where the file does not say
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The engine's version, where the file does not say
    #[arg(long, value_name = "V")]
    engine_version: Option<String>,
    /// The weights' format, where the file does not say
    #[arg(long, value_name = "FORMAT")]
    quantisation: Option<String>,
    /// Bytes of a weight with its share of scales, where the file does not say
    #[arg(long, value_name = "B")]
    bytes_per_weight: Option<f64>,
    /// Day of the measurement, YYYY-MM-DD, where the file does not say
    #[arg(long, value_name = "DAY")]
    date: Option<String>,
    /// What the prompt was, where the file does not say
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Print the records and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// One run, e.g. `2026-11-30-splitk`; without it all, and the pages over all
    id: Option<String>,
    /// Write nothing: status 1 where a report, a picture or a number in README.md is not
    /// what the records give
    #[arg(long, conflicts_with = "id")]
    check: bool,
    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

fn tool() -> impl TypedValueParser<Value = Tool> {
    PossibleValuesParser::new(Tool::ALL.map(Tool::name)).map(|name| {
        let mut all = Tool::ALL.into_iter();
        all.find(|tool| tool.name() == name)
            .unwrap_or(Tool::Generic)
    })
}

pub(super) fn run_results(args: &ResultsArgs) -> Result<u8> {
    match &args.command {
        ResultsCommand::Query(args) => run_query(args),
        ResultsCommand::Tables(args) => {
            let tables: Vec<Value> = TABLES.iter().map(table).collect();
            answer(args.json, &json!({ "tables": tables }), &describe())?;
            Ok(0)
        }
        ResultsCommand::Merge(args) => run_merge(args),
        ResultsCommand::Compare(args) => run_compare(args),
    }
}

fn table(table: &results::query::Table) -> Value {
    let columns = table
        .columns
        .iter()
        .map(|column| json!({ "name": column.name, "type": column.sql, "about": column.about }));
    json!({ "name": table.name, "about": table.about, "columns": columns.collect::<Vec<_>>() })
}

/// The records, with a word on standard error about each that cannot be read.
fn store(data: Option<&Path>) -> Result<Store> {
    let [folder, _] = folders()?;
    let path = data.unwrap_or(&folder);
    let store = Store::read(path).with_context(|| {
        format!(
            "{}: expected a folder of records, or a file",
            path.display()
        )
    })?;
    for (file, reason) in &store.refused {
        eprintln!("left out: {}", named(file, reason));
    }
    Ok(store)
}

fn named(file: &Path, reason: &str) -> String {
    let file = file.display().to_string();
    if reason.starts_with(&file) {
        reason.to_owned()
    } else {
        format!("{file}: {reason}")
    }
}

fn run_query(args: &QueryArgs) -> Result<u8> {
    let format = match (args.json, args.jsonl, args.csv, args.md) {
        (true, ..) => Format::Json,
        (_, true, ..) => Format::JsonLines,
        (_, _, true, _) => Format::Csv,
        (_, _, _, true) => Format::Markdown,
        (false, false, false, false) => Format::Text,
    };
    let answer = query(&store(args.data.as_deref())?, &args.sql)?;
    print(&answer.print(format))?;
    Ok(0)
}

fn run_merge(args: &MergeArgs) -> Result<u8> {
    let merged = merge(&args.files)?;
    write_new(&args.out, &merged.text)?;
    let out = args.out.display();
    let notes: String = merged
        .notes
        .iter()
        .map(|note| format!("\nnote: {note}"))
        .collect();
    let text = format!(
        "{out}: {} of {} files{notes}",
        merged.what,
        args.files.len()
    );
    answer(
        args.json,
        &json!({ "out": out.to_string(), "holds": merged.what, "notes": merged.notes }),
        &text,
    )?;
    Ok(0)
}

/// Writes a file that may not exist.
fn write_new(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| {
            let folder = folder.display();
            format!("{folder}: expected a folder, or a place where one can be made")
        })?;
    }
    let mut file = fs::File::create_new(path)
        .with_context(|| format!("{}: name a file that is not there", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| path.display().to_string())
}

fn run_compare(args: &CompareArgs) -> Result<u8> {
    let store = store(None)?;
    let (a, b) = (side(&store, &args.first)?, side(&store, &args.second)?);
    let found = Figure::ALL.map(|figure| compare(&a, &b, figure));
    let has = |figure: Figure| a.figure(figure).or(b.figure(figure)).is_some();
    let found: Vec<_> = found.into_iter().filter(|c| has(c.figure)).collect();
    let mut text = format!(
        "A: {} of {}\nB: {} of {}\n",
        a.engine, a.date, b.engine, b.date
    );
    for compared in &found {
        let ratio = compared
            .ratio
            .map_or(String::new(), |r| format!(" B/A {r:.3},"));
        text.push_str(&format!(
            "{}:{ratio} {}\n",
            compared.figure,
            compared.word()
        ));
        for reason in compared.refused.iter().chain(&compared.labels) {
            text.push_str(&format!("  {reason}\n"));
        }
    }
    answer(
        args.json,
        &json!({ "a": a, "b": b, "comparisons": found }),
        &text,
    )?;
    Ok(0)
}

/// A record by its id, or an arm of a run as RUN:ARM.
fn side(store: &Store, name: &str) -> Result<Side> {
    if let Some(record) = store.external.iter().find(|record| record.id == name) {
        return Ok(Side::external(record));
    }
    if let Some(run) = store.benches.iter().find(|run| run.run.id == name) {
        return Ok(Side::bench(run, store.standing(name))?);
    }
    let arms = [Arm::A, Arm::B, Arm::C, Arm::D];
    if let Some((id, arm)) = name.split_once(':')
        && let Some(run) = store.run(id)
        && let Some(arm) = arms.into_iter().find(|known| known.to_string() == arm)
        && let Some(side) = Side::arm(run, arm, store.standing(id))?
    {
        return Ok(side);
    }
    let ids = |runs: &[AbRun]| -> String {
        let ids: Vec<&str> = runs.iter().map(|run| run.run.id.as_str()).collect();
        ids.join(", ")
    };
    let others: Vec<&str> = store
        .external
        .iter()
        .map(|record| record.id.as_str())
        .collect();
    bail!(
        "`{name}`: expected a run and its arm, as RUN:A or RUN:B, of {}; a timing of whole tokens, \
         of {}; or a record of {}",
        ids(&store.runs),
        ids(&store.benches),
        others.join(", ")
    )
}

pub(super) fn run_import(args: &ImportArgs) -> Result<u8> {
    let shown = args.file.display().to_string();
    let text = fs::read_to_string(&args.file).with_context(|| {
        let tool = args.tool.name();
        format!("{shown}: expected a result file of {tool}, as text in UTF-8")
    })?;
    let file = args.file.file_name().unwrap_or_default().to_string_lossy();
    let given = Given {
        file: file.into_owned(),
        sha256: generators::sha256(&text),
        engine_version: args.engine_version.clone(),
        hardware: args.hardware.clone(),
        backend: args.backend.clone(),
        model: args.model.clone(),
        quantisation: args.quantisation.clone(),
        bytes_per_weight: args.bytes_per_weight,
        date: args.date.clone(),
        prompt: args.prompt.clone(),
    };
    let records = external::import(args.tool, &text, &given)?;
    let lines =
        external::text(&records).map_err(|problem| anyhow::anyhow!("{shown}: {problem}"))?;
    let known = store(None).unwrap_or_default();
    if let Some(again) = records
        .iter()
        .find(|record| known.external.iter().any(|other| other.id == record.id))
    {
        bail!(
            "{shown}: a record {} is there already; records are never overwritten",
            again.id
        );
    }
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy();
    let name = args.name.clone().unwrap_or_else(|| stem.into_owned());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        bail!("--name {name}: expected letters, digits, `-`, `_` and `.`");
    }
    let [data, _] = folders()?;
    let out = data.join(external::FOLDER).join(format!("{name}.jsonl"));
    if !args.dry_run {
        write_new(&out, &lines)?;
    }
    let mut said = if args.dry_run {
        "nothing was written\n".to_owned()
    } else {
        format!("{}: {} records\n", out.display(), records.len())
    };
    for record in &records {
        let figures = Figure::ALL.into_iter().filter_map(|figure| {
            let value = figure.of(record)?;
            Some(format!("{figure} {value:.2} {}", figure.unit()))
        });
        let figures: Vec<String> = figures.collect();
        said.push_str(&format!("{}: {}\n", record.id, figures.join(", ")));
    }
    let out = (!args.dry_run).then(|| out.display().to_string());
    answer(args.json, &json!({ "out": out, "records": records }), &said)?;
    Ok(0)
}

/// Texts whose numbers are references into the records.
const TEXTS: [&str; 1] = ["README.md"];

pub(super) fn run_report(args: &ReportArgs) -> Result<u8> {
    let [data, folder] = folders()?;
    let made = reports(&data, args.id.as_deref())?;
    let refused: Vec<String> = (made.refused.iter())
        .map(|(file, reason)| named(file, reason))
        .collect();
    if args.check {
        let mut texts = Vec::new();
        for name in TEXTS {
            texts.push((name, fs::read_to_string(name).context(name)?));
        }
        let texts: Vec<(&str, &str)> = texts.iter().map(|(n, text)| (*n, text.as_str())).collect();
        let found = made.check(&folder, &texts)?;
        let text = match found.len() {
            0 => format!("{} files are what the records give", made.pages.files.len()),
            _ => found.join("\n"),
        };
        let files = made.pages.files.len();
        answer(
            args.json,
            &json!({ "files": files, "problems": found }),
            &text,
        )?;
        return Ok(u8::from(!found.is_empty()));
    }
    let written: Vec<String> = (made.pages.write(&folder)?.iter())
        .map(|path| path.display().to_string())
        .collect();
    let skipped: Vec<String> = (made.skipped.iter())
        .map(|journal| format!("{}: stopped before anything was timed", journal.display()))
        .collect();
    let text = [written.as_slice(), &skipped, &refused].concat().join("\n");
    answer(
        args.json,
        &json!({ "written": written, "skipped": skipped, "refused": refused }),
        &text,
    )?;
    Ok(u8::from(!refused.is_empty()))
}
