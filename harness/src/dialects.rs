//! Every text that may run, checked by the compiler that takes its dialect.

use crate::tint::{Text, Tint};
use anyhow::Result;
use generators::{Dialect, RenderError, Sources};
use kernels::{Features, ModelSpec, Phase, Plan, Settings, Variant, models, variants::VARIANTS};
use serde::Serialize;

/// A text that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// The dialect.
    pub dialect: &'static str,
    /// The variant's id.
    pub variant: String,
    /// The model's id.
    pub model: String,
    /// Line of the text, from 1, where the compiler names one.
    pub line: Option<u32>,
    /// The compiler's message.
    pub message: String,
}

/// The models that have a dispatch plan.
///
/// # Errors
/// When the default settings do not resolve.
pub fn planned_models() -> Result<Vec<ModelSpec>> {
    let features = Features::PUBLISHED;
    let settings = Settings::resolve(&features, &Default::default())?;
    let mut specs = models::registry();
    specs.retain(|spec| Plan::build(spec, &settings, &features, Phase::Decode).is_ok());
    Ok(specs)
}

/// WebGPU's default limit of storage buffers in a shader. Adapters mostly offer more,
/// and a page must ask for them.
pub const DEFAULT_STORAGE_BUFFERS: usize = 8;

/// WebGPU's default limit of workgroup memory in bytes.
pub const DEFAULT_WORKGROUP_BYTES: usize = 16 * 1024;

/// Whether a variant keeps to WebGPU's default limits for a model; a page that uses
/// another must ask for more.
pub fn within_default_limits(variant: Variant, spec: &ModelSpec) -> bool {
    variant.storage_buffers() <= DEFAULT_STORAGE_BUFFERS
        && variant.shared_bytes(variant.held_row(spec)) <= DEFAULT_WORKGROUP_BYTES
}

/// Every variant for each of these models.
fn pairs(specs: &[ModelSpec]) -> impl Iterator<Item = (Variant, &ModelSpec)> {
    specs
        .iter()
        .flat_map(|spec| VARIANTS.iter().map(move |&variant| (variant, spec)))
}

/// Checks every variant for each model with naga and against the binding table.
pub fn check_native(specs: &[ModelSpec]) -> Vec<Refused> {
    let refused = |(variant, spec): (Variant, &ModelSpec)| {
        let error = generators::render(variant, spec).err()?;
        let line = match &error {
            RenderError::Naga { line, .. } => *line,
            RenderError::Source { .. } | RenderError::Reflection { .. } => None,
        };
        Some(of(Dialect::Native, variant, spec, line, error.to_string()))
    };
    pairs(specs).filter_map(refused).collect()
}

/// Checks every variant for each model with Tint.
///
/// # Errors
/// When a text cannot be rendered, or Tint does not run.
pub fn check_browser(specs: &[ModelSpec], tint: &Tint) -> Result<Vec<Refused>> {
    let text = |(variant, spec)| generators::text(Sources::embedded(), variant, spec);
    let texts: Vec<Text> = pairs(specs)
        .map(|pair| {
            Ok(Text {
                wgsl: Dialect::Browser.of_native(&text(pair)?),
                within_limits: within_default_limits(pair.0, pair.1),
            })
        })
        .collect::<Result<_, RenderError>>()?;
    let mut refused = Vec::new();
    for ((variant, spec), faults) in pairs(specs).zip(tint.compile(&texts)?) {
        refused.extend(faults.into_iter().map(|fault| {
            let line = Some(fault.line).filter(|&line| line > 0);
            of(Dialect::Browser, variant, spec, line, fault.message)
        }));
    }
    Ok(refused)
}

fn of(
    dialect: Dialect,
    variant: Variant,
    spec: &ModelSpec,
    line: Option<u32>,
    message: String,
) -> Refused {
    Refused {
        dialect: dialect.name(),
        variant: variant.id(),
        model: spec.id.clone(),
        line,
        message,
    }
}
