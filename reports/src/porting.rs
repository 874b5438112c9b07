//! The page on ports: what each registered model exercises, the arithmetic of its
//! dispatches and its constants, all from the registry and the plans.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use kernels::flag::{Choices, Flag};
use kernels::models::{ModelSpec, RopeScaling, registry};
use kernels::{Features, Phase, Plan, Settings};

use crate::text::{code, head, row};
use crate::{ReportError, Result};

/// Its name in the folder of reports.
pub const PAGE: &str = "porting.md";

/// Writes the page; its path.
///
/// # Errors
/// The file cannot be written.
pub fn write(reports_dir: &Path) -> Result<PathBuf> {
    let path = reports_dir.join(PAGE);
    fs::write(&path, page()).map_err(|cause| ReportError::Io {
        path: path.clone(),
        action: "writing",
        cause,
    })?;
    Ok(path)
}

/// The page.
pub fn page() -> String {
    let mut text = String::from(
        "# Ports\n\n\
         Made by `cargo xtask report` from the registry (`kernels::models`) and the plans of one\n\
         decoded token (`kernels::plan`), resolved for a GPU with f16 and subgroups. A model of\n\
         a family that is here is a function in its family's file and a line of the registry.\n\n",
    );
    text.push_str(&head(&["model", "exercises", "dispatches", "splitk=0"], 2));
    let models = registry();
    for spec in &models {
        text.push_str(&row(&[
            code(&spec.id),
            exercises(spec).join(", "),
            plan(spec, &[]).dispatches_per_token().to_string(),
            plan(spec, &["splitk=0"]).dispatches_per_token().to_string(),
        ]));
    }
    for spec in &models {
        let _ = write!(text, "\n## {}\n\n", spec.title);
        let _ = writeln!(text, "By default {}.\n", arithmetic(&plan(spec, &[])));
        text.push_str(&head(&["constant", "value"], 1));
        for (name, value) in constants(spec) {
            text.push_str(&row(&[name.to_owned(), value]));
        }
    }
    text
}

fn plan(spec: &ModelSpec, choices: &[&str]) -> Plan {
    let mut chosen = Choices::new();
    for choice in choices {
        let (name, value) = choice.split_once('=').expect("a flag and its value");
        let flag = Flag::find(name).expect("a flag");
        chosen.insert(flag.name, flag.parse(value).expect("its value"));
    }
    let features = Features::PUBLISHED;
    let settings = Settings::resolve(&features, &chosen).expect("no conflict");
    Plan::build(spec, &settings, &features, Phase::Decode).expect("a registered model has a plan")
}

/// What a port of it needs beside a plain dense transformer.
fn exercises(spec: &ModelSpec) -> Vec<String> {
    let mut all = Vec::new();
    let mut has = |is: bool, what: &str| all.extend(is.then(|| what.to_owned()));
    has(spec.tie_word_embeddings, "tied head");
    has(spec.gqa_group() > 1, "grouped queries");
    has(spec.qk_norm(), "QK-norm");
    has(spec.rotary_dim < spec.head_dim, "partial RoPE");
    has(spec.attn_output_gate, "gated attention");
    has(spec.delta_net.is_some(), "gated DeltaNet");
    has(spec.experts.is_some(), "experts");
    has(
        spec.experts.is_some_and(|experts| experts.shared_expert),
        "a shared expert",
    );
    match spec.rope_scaling {
        Some(RopeScaling::Llama3 { .. }) => all.push("llama3 RoPE".into()),
        Some(RopeScaling::Longrope { .. }) => all.push("LongRoPE".into()),
        None => (),
    }
    let mut formats = vec![spec.format];
    for other in &spec.other_formats {
        if !formats.contains(&other.format) {
            formats.push(other.format);
        }
    }
    all.extend(formats.into_iter().map(|format| code(format.name())));
    all
}

/// The dispatches of a token as a sum: those outside the layers, and of each kind of
/// layer how many there are.
fn arithmetic(plan: &Plan) -> String {
    let mut outside: Vec<&str> = Vec::new();
    let mut layers: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for dispatch in &plan.dispatches {
        let of_layer = dispatch.label.strip_prefix("layers.");
        let of_layer = of_layer.and_then(|l| l.split_once('.'));
        match of_layer.and_then(|(layer, site)| Some((layer.parse().ok()?, site))) {
            // The norm before the first layer is the only one that adds nothing.
            Some((layer, site)) if site != "input_norm" => {
                layers.entry(layer).or_default().push(site);
            }
            Some((_, site)) => outside.push(site),
            None => outside.push(&dispatch.label),
        }
    }
    let mut kinds: Vec<(Vec<&str>, usize)> = Vec::new();
    for sites in layers.into_values() {
        match kinds.iter_mut().find(|(known, _)| *known == sites) {
            Some((_, count)) => *count += 1,
            None => kinds.push((sites, 1)),
        }
    }
    let mut sum = format!("{} ({})", outside.len(), outside.join(", "));
    for (sites, count) in kinds {
        let _ = write!(sum, " + {count} × {} ({})", sites.len(), sites.join(", "));
    }
    format!("{sum} = **{}**", plan.dispatches_per_token())
}

fn constants(spec: &ModelSpec) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("hidden_size", spec.hidden_size.to_string()),
        ("num_hidden_layers", spec.num_hidden_layers.to_string()),
        ("num_attention_heads", spec.num_attention_heads.to_string()),
        ("num_key_value_heads", spec.num_key_value_heads.to_string()),
        ("head_dim", spec.head_dim.to_string()),
        ("rotary_dim", spec.rotary_dim.to_string()),
        ("intermediate_size", spec.intermediate_size.to_string()),
        ("vocab_size", spec.vocab_size.to_string()),
        ("rope_theta", spec.rope_theta.to_string()),
        ("rms_norm_eps", format!("{:e}", spec.rms_norm_eps)),
        ("max_pages", spec.max_pages.to_string()),
        ("stop_ids", format!("{:?}", spec.stop_ids)),
        ("parameters", spec.parameters().to_string()),
    ];
    if let Some(net) = &spec.delta_net {
        all.extend([
            ("linear_num_key_heads", net.linear_num_key_heads.to_string()),
            (
                "linear_num_value_heads",
                net.linear_num_value_heads.to_string(),
            ),
            ("linear_key_head_dim", net.linear_key_head_dim.to_string()),
            (
                "linear_value_head_dim",
                net.linear_value_head_dim.to_string(),
            ),
            (
                "linear_conv_kernel_dim",
                net.linear_conv_kernel_dim.to_string(),
            ),
            (
                "full_attention_interval",
                net.full_attention_interval.to_string(),
            ),
        ]);
    }
    if let Some(experts) = &spec.experts {
        all.extend([
            ("num_experts", experts.num_experts.to_string()),
            (
                "num_experts_per_tok",
                experts.num_experts_per_tok.to_string(),
            ),
            ("norm_topk_prob", experts.norm_topk_prob.to_string()),
        ]);
    }
    all
}
