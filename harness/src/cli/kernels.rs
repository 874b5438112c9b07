//! `kernels`: the variants as data and as generated text.

use super::{answer, print};
use crate::{
    cases::{is_dispatched, selection},
    dialects, diff, env, model,
    tint::{Missing, Tint},
};
use ::kernels::{
    Features, Variant,
    features::SUBGROUP_SIZES,
    models::{self, DEFAULT_MODEL},
    variants::VARIANTS,
};
use anyhow::Result;
use clap::{Args, Subcommand};
use generators::{Dialect, Sources};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

#[derive(Debug, Args)]
pub(super) struct KernelsArgs {
    #[command(subcommand)]
    command: KernelsCommand,
}

#[derive(Debug, Subcommand)]
enum KernelsCommand {
    /// List every variant with its role, what it needs and the flags that select it
    List {
        /// Print one JSON document on standard output
        #[arg(long)]
        json: bool,
    },
    /// Print the generated WGSL of a variant
    Show {
        /// The variant's id, as `list` gives it
        variant: String,
        /// The model whose constants stand in it: an id, a published name, or a folder
        /// with its configuration
        #[arg(long, default_value = DEFAULT_MODEL)]
        model: String,
        /// native, or browser for the text that a browser takes
        #[arg(long, default_value_t = Dialect::Native)]
        dialect: Dialect,
        /// Print one JSON document on standard output
        #[arg(long)]
        json: bool,
    },
    /// Compile every variant for every model that has a plan: with naga in the native
    /// dialect, with Tint in that of browsers
    Check {
        /// native or browser; both without it
        #[arg(long)]
        dialect: Option<Dialect>,
        /// Print one JSON document on standard output
        #[arg(long)]
        json: bool,
        /// Print nothing; exit 0 with Tint, 6 where npm must install it, 7 without Node.js
        #[arg(long, hide = true)]
        probe: bool,
        /// Install Tint in the cache and check nothing
        #[arg(long, hide = true, conflicts_with = "probe")]
        install: bool,
    },
    /// Compare the generated text of every variant with that of a git revision
    ///
    /// Templates and hand-written bodies are those of the revision and those of this
    /// build; the tables are those of this build for both.
    Diff {
        /// A commit, branch or tag
        #[arg(value_name = "REV")]
        revision: String,
        /// The model whose constants stand in the texts: an id or published name
        #[arg(long, default_value = DEFAULT_MODEL)]
        model: String,
        /// One variant
        #[arg(long, value_name = "ID")]
        variant: Option<String>,
        /// Print one JSON document on standard output
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &KernelsArgs) -> Result<u8> {
    match &args.command {
        KernelsCommand::List { json } => list(*json),
        KernelsCommand::Show {
            variant,
            model,
            dialect,
            json,
        } => show(variant, model, *dialect, *json),
        KernelsCommand::Check { probe: true, .. } => Ok(match Tint::find(&env::cache_dir()) {
            Ok(_) => 0,
            Err(Missing::Package) => 6,
            Err(Missing::Node(_)) => 7,
        }),
        KernelsCommand::Check { install: true, .. } => {
            Tint::install(&env::cache_dir())?;
            Ok(0)
        }
        KernelsCommand::Check { dialect, json, .. } => check(*dialect, *json),
        KernelsCommand::Diff {
            revision,
            model,
            variant,
            json,
        } => compare(revision, model, variant.as_deref(), *json),
    }
}

/// The subgroup sizes that the software driver offers, each of which the tests run.
const TESTED_SIZES: [u32; 3] = [4, 8, 16];

/// A row of `list`.
#[derive(Debug, Serialize)]
struct Row {
    variant: String,
    role: &'static str,
    threads: usize,
    /// What an adapter and a model must have.
    needs: Vec<String>,
    /// The flags that select it where every other one is off; empty where none
    /// need be on.
    flags: Vec<String>,
}

/// The model that is used to find the flags: its widths are multiples of what
/// every variant needs.
const WIDE_MODEL: &str = "phi3-mini";

fn row(variant: Variant) -> Result<Row> {
    let without = [
        Features {
            shader_f16: false,
            ..Features::PUBLISHED
        },
        Features {
            subgroup_size: None,
            ..Features::PUBLISHED
        },
    ];
    let step = variant.k_step();
    let mut needs: Vec<String> = without
        .iter()
        .filter_map(|features| variant.check(features, step).err())
        .map(|why| {
            why.trim_start_matches("needs the adapter feature ")
                .to_owned()
        })
        .collect();
    // Rows of a matrix are whole groups in any case.
    if variant.check(&Features::PUBLISHED, 32).is_err() {
        needs.push(format!("K % {step} == 0"));
    }
    let spec = models::find(WIDE_MODEL)?;
    let flags = match selection(variant, &spec, &Features::PUBLISHED, 2) {
        Some((choices, _)) => choices
            .iter()
            .filter(|(_, value)| value.is_on())
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        None => vec![],
    };
    Ok(Row {
        variant: variant.id(),
        role: variant.role.name(),
        threads: variant.threads(),
        needs,
        flags,
    })
}

fn list(json: bool) -> Result<u8> {
    let rows: Vec<Row> = VARIANTS.iter().map(|&v| row(v)).collect::<Result<_>>()?;
    let mut text = format!(
        "{:<28} {:<18} {:>7}  {:<36} flags\n",
        "variant", "role", "threads", "needs"
    );
    for row in &rows {
        text.push_str(&format!(
            "{:<28} {:<18} {:>7}  {:<36} {}\n",
            row.variant,
            row.role,
            row.threads,
            row.needs.join(", "),
            if row.flags.is_empty() {
                "none".into()
            } else {
                row.flags.join(" ")
            }
        ));
    }
    let [run, unrun] = [true, false].map(|run| {
        let sizes = SUBGROUP_SIZES.into_iter();
        sizes
            .filter(|size| TESTED_SIZES.contains(size) == run)
            .collect::<Vec<_>>()
    });
    text.push_str(&format!(
        "subgroup sizes of the tests with the software driver: {run:?}; unrun there: {unrun:?}"
    ));
    let document = json!({
        "variants": rows,
        "subgroup_sizes": { "run": run, "unrun": unrun },
    });
    answer(json, &document, &text)?;
    Ok(0)
}

fn show(variant: &str, model: &str, dialect: Dialect, json: bool) -> Result<u8> {
    let variant: Variant = variant.parse()?;
    let spec = model::described(model)?;
    let shader = generators::render(variant, &spec)?;
    let wgsl = dialect.of_native(&shader.wgsl);
    if !is_dispatched(variant, &spec) {
        eprintln!(
            "note: no plan of {} dispatches {variant}, whatever its flags; `kernels list` says \
             what it needs",
            spec.id,
        );
    }
    if !json {
        print(&wgsl)?;
        return Ok(0);
    }
    let document = json!({
        "variant": variant.id(),
        "model": spec.id,
        "dialect": dialect.name(),
        "sha256": generators::sha256(&wgsl),
        "wgsl": wgsl,
    });
    answer(json, &document, "")?;
    Ok(0)
}

fn check(dialect: Option<Dialect>, json: bool) -> Result<u8> {
    let dialects = dialect.map_or(Dialect::ALL.to_vec(), |dialect| vec![dialect]);
    let specs = dialects::planned_models()?;
    let mut refused = Vec::new();
    for dialect in &dialects {
        refused.extend(match dialect {
            Dialect::Native => dialects::check_native(&specs),
            Dialect::Browser => dialects::check_browser(&specs, &Tint::find(&env::cache_dir())?)?,
        });
    }
    let dialects: Vec<&str> = dialects.iter().map(|dialect| dialect.name()).collect();
    let models: Vec<&str> = specs.iter().map(|spec| spec.id.as_str()).collect();
    let texts = dialects.len() * specs.len() * VARIANTS.len();
    let mut failed: Vec<_> = refused
        .iter()
        .map(|r| (r.dialect, &r.variant, &r.model))
        .collect();
    failed.dedup();
    let failed = failed.len();
    let mut text = String::new();
    for r in &refused {
        let line = r
            .line
            .map_or(String::new(), |line| format!(" line {line}:"));
        text.push_str(&format!(
            "FAIL {} for {}, {}:{line} {}\n",
            r.variant, r.model, r.dialect, r.message
        ));
    }
    let above: Vec<_> = specs
        .iter()
        .flat_map(|spec| VARIANTS.iter().map(move |&variant| (variant, spec)))
        .filter(|&(variant, spec)| !dialects::within_default_limits(variant, spec))
        .map(|(variant, spec)| {
            json!({
                "variant": variant.id(),
                "model": spec.id,
                "storage_buffers": variant.storage_buffers(),
                "workgroup_bytes": variant.shared_bytes(variant.held_row(spec)),
            })
        })
        .collect();
    if !above.is_empty() {
        text.push_str(&format!(
            "{} texts bind more than {} storage buffers or share more than {} bytes in a \
             workgroup, WebGPU's default limits: a page must ask for higher ones\n",
            above.len(),
            dialects::DEFAULT_STORAGE_BUFFERS,
            dialects::DEFAULT_WORKGROUP_BYTES
        ));
    }
    text.push_str(&format!(
        "{} passed, {failed} failed: {} variants for {}, {}",
        texts - failed,
        VARIANTS.len(),
        models.join(", "),
        dialects.join(" and ")
    ));
    let document = json!({
        "dialects": dialects,
        "models": models,
        "variants": VARIANTS.len(),
        "texts": texts,
        "passed": texts - failed,
        "failed": failed,
        "refused": refused,
        "above_default_limits": above,
    });
    answer(json, &document, &text)?;
    Ok(u8::from(failed > 0))
}

fn compare(revision: &str, model: &str, variant: Option<&str>, json: bool) -> Result<u8> {
    let variants = match variant {
        Some(id) => vec![id.parse()?],
        None => VARIANTS.to_vec(),
    };
    let spec = models::find(model)?;
    let old = diff::Revision::read(Path::new("."), revision)?;
    let report = diff::compare(&old, Sources::embedded(), &variants, &spec)?;
    let [changed, added, unchanged] = report.counts();
    let mut text = String::new();
    for diff::Text { variant, change } in &report.texts {
        match change {
            diff::Change::Unchanged => {}
            diff::Change::Changed { diff } => text.push_str(diff),
            diff::Change::Added { reason } => {
                text.push_str(&format!(
                    "added {variant}; {revision} does not make it: {reason}\n"
                ));
            }
        }
    }
    for path in &report.removed {
        text.push_str(&format!("removed {path}, and what was made of it alone\n"));
    }
    let removed = report.removed.len();
    text.push_str(&format!(
        "{changed} changed, {added} added, {removed} source files removed, {unchanged} unchanged, \
         for {}",
        spec.id
    ));
    let document = json!({
        "revision": old.name,
        "commit": old.commit,
        "model": spec.id,
        "changed": changed,
        "added": added,
        "unchanged": unchanged,
        "removed": report.removed,
        "texts": report.texts,
    });
    answer(json, &document, &text)?;
    Ok(0)
}
