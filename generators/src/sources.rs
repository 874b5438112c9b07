//! The source files that kernels are rendered from: those this was built with, or
//! others, such as those of another revision.

use crate::templates::TEMPLATES;
use kernels::{
    Role,
    wgsl::{self, Source},
};
use std::{collections::BTreeMap, sync::LazyLock};
use tera::{Context, Tera};

/// Source files by their path in the repository, templates parsed.
#[derive(Debug)]
pub struct Sources {
    files: BTreeMap<String, String>,
    templates: Tera,
}

/// Folder of the templates; a template's name is its path below it.
const TEMPLATE_FOLDER: &str = "generators/templates/";

static EMBEDDED: LazyLock<Sources> = LazyLock::new(|| {
    let templates = TEMPLATES
        .iter()
        .map(|(name, text)| (format!("{TEMPLATE_FOLDER}{name}"), (*text).to_owned()));
    let written = Role::ALL
        .iter()
        .flat_map(|&role| [wgsl::body(role), wgsl::library(role)])
        .flatten()
        .map(|source| (source.path.to_owned(), source.text.to_owned()));
    Sources::new(templates.chain(written).collect())
        .unwrap_or_else(|error| panic!("an embedded template does not parse: {error}"))
});

impl Sources {
    /// Folders of the repository that hold all source files.
    pub const FOLDERS: [&'static str; 2] = ["generators/templates", "kernels/wgsl"];

    /// The sources this was built with.
    pub fn embedded() -> &'static Self {
        &EMBEDDED
    }

    /// Sources by path in the repository.
    ///
    /// # Errors
    /// The template engine's message where a template does not parse.
    pub fn new(files: BTreeMap<String, String>) -> Result<Self, String> {
        let mut templates = Tera::new();
        let named = files.iter().filter_map(|(path, text)| {
            let name = path.strip_prefix(TEMPLATE_FOLDER)?;
            Some((name, text.as_str()))
        });
        templates
            .add_raw_templates(named)
            .map_err(|error| error.to_string())?;
        Ok(Self { files, templates })
    }

    /// Paths of the files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// The text of a hand-written file.
    pub(crate) fn written(&self, source: Source) -> Result<&str, String> {
        let text = self.files.get(source.path).map(String::as_str);
        text.ok_or_else(|| format!("there is no {}", source.path))
    }

    /// A template's text with these parameters.
    pub(crate) fn template(&self, name: &str, parameters: &Context) -> Result<String, String> {
        let path = format!("{TEMPLATE_FOLDER}{name}");
        if !self.files.contains_key(&path) {
            return Err(format!("there is no {path}"));
        }
        let rendered = self.templates.render(name, parameters);
        rendered.map_err(|error| error.to_string())
    }

    /// The names that a template reads.
    #[cfg(test)]
    pub(crate) fn variables(&self, name: &str) -> Vec<String> {
        let variables = self.templates.get_template_variables(name);
        let variables = variables.expect("a template");
        variables.into_iter().map(str::to_owned).collect()
    }
}
