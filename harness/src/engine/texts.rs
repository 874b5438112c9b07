//! Where the texts of an arm's kernels come from: this build, another revision's source
//! files, or a file of the user's in one variant's place.

use anyhow::{Context as _, Result};
use generators::{Shader, Sources};
use kernels::{Dispatch, Features, ModelSpec, Plan, Variant, plan::fold};
use std::rc::Rc;

/// Where the texts of an arm's kernels come from.
#[derive(Clone, Debug, Default)]
pub enum Texts {
    /// The source files that this was built with.
    #[default]
    Build,
    /// Those of a git revision, and its name.
    Revision(String, Rc<Sources>),
    /// Those of this build but for one variant's.
    Own(Rc<Own>),
}

/// A text in a variant's place: its bindings and uniform are that variant's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    /// What it is called, the file's name.
    pub name: String,
    /// The variant whose place it takes.
    pub variant: Variant,
    /// The text; without bindings, a body that the model's prelude goes in front of.
    pub wgsl: String,
    /// Outputs of one workgroup, where that is not the variant's number.
    pub outputs_per_workgroup: Option<usize>,
}

impl Own {
    /// Whether the text has bindings of its own, and so the constants of one model.
    pub fn is_whole(&self) -> bool {
        self.wgsl.contains("@binding")
    }

    /// The complete text for a model, validated.
    ///
    /// # Errors
    /// When naga or the variant's interface objects.
    pub fn render(&self, spec: &ModelSpec) -> Result<Shader> {
        let text = if self.is_whole() {
            self.wgsl.clone()
        } else {
            generators::prelude(self.variant, spec) + &self.wgsl
        };
        generators::shader(self.variant, text).with_context(|| self.name.clone())
    }

    /// Gives a dispatch of the variant the grid that this text needs.
    pub(crate) fn adapt(&self, dispatch: &mut Dispatch, max_groups: u32) {
        let (Some(own), true) = (self.outputs_per_workgroup, dispatch.variant == self.variant)
        else {
            return;
        };
        let fields = self.variant.uniform();
        let Some(at) = fields.iter().position(|field| field.name == "packGridDimX") else {
            return;
        };
        // The grid says only how many workgroups there are, so the outputs are those of
        // the matrix.
        let outputs = match dispatch.rows() {
            Some(rows) => rows.count,
            None => dispatch.uniform[at] as usize * self.variant.outputs_per_workgroup(),
        };
        let groups = outputs.div_ceil(own);
        dispatch.uniform[at] = groups as u32;
        let [x, _, z] = fold(groups, max_groups);
        dispatch.grid = [x, dispatch.grid[1], z];
    }
}

impl Texts {
    /// The kernel of a variant for a model.
    ///
    /// # Errors
    /// When the text cannot be made, or is refused.
    pub fn render(&self, variant: Variant, spec: &ModelSpec) -> Result<Shader> {
        match self {
            Self::Build => Ok(generators::render(variant, spec)?),
            Self::Revision(name, sources) => {
                let text = generators::text(sources, variant, spec)
                    .and_then(|text| generators::shader(variant, text));
                text.with_context(|| {
                    format!("{name} has no text of {variant} that fits the tables of this build")
                })
            }
            Self::Own(own) if own.variant == variant => own.render(spec),
            Self::Own(_) => Ok(generators::render(variant, spec)?),
        }
    }

    /// Whether these are the texts of this build.
    pub const fn are_of_build(&self) -> bool {
        matches!(self, Self::Build)
    }

    /// Gives the plan's dispatches the grids that these texts need.
    pub(super) fn adapt(&self, plan: &mut Plan, features: &Features) {
        if let Self::Own(own) = self {
            for dispatch in &mut plan.dispatches {
                own.adapt(dispatch, features.max_workgroups_per_dimension);
            }
        }
    }
}
