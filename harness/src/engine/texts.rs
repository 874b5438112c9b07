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
        // What `kernels show` prints has its blank lines elsewhere and is the same text.
        let shipped = generators::render(self.variant, spec)?;
        if lines(&text).eq(lines(&shipped.wgsl)) {
            return Ok(shipped);
        }
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

/// The lines that are not blank, without the spaces at their ends.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{Role, models};

    #[test]
    fn a_printed_text_is_the_shipped_one_and_a_changed_one_is_not() {
        let spec = models::find(models::DEFAULT_MODEL).expect("registered");
        let variant = Variant::base(Role::Rope);
        let shipped = generators::render(variant, &spec).expect("shipped");
        let prelude = generators::prelude(variant, &spec);
        let body = shipped.wgsl.strip_prefix(&prelude).expect("in front");
        let own = |wgsl: String| Own {
            name: "own.wgsl".to_owned(),
            variant,
            wgsl,
            outputs_per_workgroup: None,
        };
        for text in [
            shipped.wgsl.trim_end().to_owned() + "\n",
            format!("\n{body}\n"),
            body.replace('\n', "\r\n"),
        ] {
            let found = own(text).render(&spec).expect("valid");
            assert_eq!(found.sha256, shipped.sha256);
        }
        let found = own(format!("{body}// another\n")).render(&spec);
        assert_ne!(found.expect("valid").sha256, shipped.sha256);
    }
}
