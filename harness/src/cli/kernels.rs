//! `kernels`: the variants as data and as generated text.

use super::{answer, print};
use crate::cases::selection;
use ::kernels::{
    Features, Variant,
    features::SUBGROUP_SIZES,
    models::{self, DEFAULT_MODEL},
    variants::VARIANTS,
};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

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
        /// The model whose constants stand in it: an id or published name
        #[arg(long, default_value = DEFAULT_MODEL)]
        model: String,
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
            json,
        } => show(variant, model, *json),
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

fn show(variant: &str, model: &str, json: bool) -> Result<u8> {
    let variant: Variant = variant.parse()?;
    let spec = models::find(model)?;
    let shader = generators::render(variant, &spec)?;
    if !json {
        print(&shader.wgsl)?;
        return Ok(0);
    }
    let document = json!({
        "variant": variant.id(),
        "model": spec.id,
        "sha256": shader.sha256,
        "wgsl": shader.wgsl,
    });
    answer(json, &document, "")?;
    Ok(0)
}
