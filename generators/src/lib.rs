//! Variant and model constants in, validated WGSL text out.
//!
//! [`render`] is the one way to obtain a kernel's text: hand-written bodies and
//! Tera templates alike get the prelude made from the tables of `kernels`, are
//! parsed and validated by naga, and are checked by reflection against the one
//! binding table.

mod check;
mod consts;
mod dialect;
mod prelude;
mod sources;
mod templates;

pub use dialect::Dialect;
pub use sources::Sources;

use kernels::{ModelSpec, Variant};
use sha2::{Digest, Sha256};

/// A rendered kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shader {
    /// The variant.
    pub variant: Variant,
    /// Complete WGSL text.
    pub wgsl: String,
    /// SHA-256 of the text, in hexadecimal.
    pub sha256: String,
}

/// Why a kernel could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A source file is not there, or the template engine refused it.
    #[error("{variant}: template: {message}")]
    Source {
        /// The variant's id.
        variant: String,
        /// The file, or the engine's message with its causes.
        message: String,
    },
    /// naga refused the text; the message carries the source span.
    #[error("{variant}: {message}")]
    Naga {
        /// The variant's id.
        variant: String,
        /// Line of the text, from 1, where naga names one.
        line: Option<u32>,
        /// naga's rendered diagnostic.
        message: String,
    },
    /// The text and the binding table disagree.
    #[error("{variant}: {message}")]
    Reflection {
        /// The variant's id.
        variant: String,
        /// What the table says and what the text says.
        message: String,
    },
}

/// Renders, validates and reflects one variant for one model.
///
/// # Errors
/// When the template, naga or the binding table objects.
pub fn render(variant: Variant, spec: &ModelSpec) -> Result<Shader, RenderError> {
    shader(variant, text(Sources::embedded(), variant, spec)?)
}

/// What stands in front of a kernel's body: the model's constants, the uniform and the
/// bindings.
pub fn prelude(variant: Variant, spec: &ModelSpec) -> String {
    prelude::render(variant, spec)
}

/// The text of one variant for one model, rendered from these sources and not
/// validated.
///
/// # Errors
/// When a source file is not there, or the template objects.
pub fn text(sources: &Sources, variant: Variant, spec: &ModelSpec) -> Result<String, RenderError> {
    let mut wgsl = prelude::render(variant, spec);
    wgsl.push_str(&templates::body(sources, variant)?);
    if let Some(library) = kernels::wgsl::library(variant.role) {
        let library = sources.written(library);
        wgsl.push_str(library.map_err(|message| RenderError::Source {
            variant: variant.id(),
            message,
        })?);
    }
    Ok(wgsl)
}

/// A kernel of this text, validated and reflected.
///
/// # Errors
/// When naga or the binding table objects.
pub fn shader(variant: Variant, wgsl: String) -> Result<Shader, RenderError> {
    validate(variant, &wgsl)?;
    Ok(Shader {
        variant,
        sha256: sha256(&wgsl),
        wgsl,
    })
}

/// SHA-256 of a text, in hexadecimal.
pub fn sha256(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses and validates a kernel's text and compares it with the binding table.
///
/// # Errors
/// When naga or the binding table objects.
pub fn validate(variant: Variant, wgsl: &str) -> Result<(), RenderError> {
    let id = variant.id();
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| RenderError::Naga {
        variant: id.clone(),
        line: error.location(wgsl).map(|at| at.line_number),
        message: error.emit_to_string_with_path(wgsl, &id),
    })?;
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::SHADER_FLOAT16
            | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32
            | naga::valid::Capabilities::SUBGROUP,
    )
    .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
    .subgroup_operations(naga::valid::SubgroupOperationSet::all())
    .validate(&module)
    .map_err(|error| RenderError::Naga {
        variant: id.clone(),
        line: error.location(wgsl).map(|at| at.line_number),
        message: error.emit_to_string_with_path(wgsl, &id),
    })?;
    check::interface(variant, &module).map_err(|message| RenderError::Reflection {
        variant: id,
        message,
    })
}
