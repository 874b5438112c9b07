//! What a case runs on: a runner, the dispatch that the plan makes of a variant,
//! and the judgement of an output. An edit of the rendered text stands here too,
//! so that a mutant goes through exactly the cases that its variant does.

use crate::{
    device::Gpu,
    engine::Own,
    kernel::{Case, Operand, Outputs, Runner},
};
use anyhow::{Context as _, Result, ensure};
use generators::Shader;
use kernels::{
    Dispatch, Features, ModelSpec, Phase, Plan, Role, Settings, Tensor, Value, Variant,
    flag::{Choices, choices_for},
    models::{self, TensorFormat},
    plan::{Work, fold},
    sampling::{Draw, Sampling},
    variants::WIDE_THREADS,
};
use reference::Expected;
use std::{path::PathBuf, rc::Rc};

/// A model of one small layer; a case overrides what matters to it.
pub fn model() -> ModelSpec {
    ModelSpec {
        id: "case".into(),
        title: "Case".into(),
        aliases: vec![],
        hidden_size: 64,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: 32,
        intermediate_size: 64,
        vocab_size: 40,
        rotary_dim: 32,
        max_pages: 8,
        ..models::find("smollm2-135m").expect("registered")
    }
}

/// One output of a kernel, and what it may be.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) name: &'static str,
    pub(crate) found: Vec<f64>,
    pub(crate) expected: Expected,
}

impl Judged {
    pub(crate) fn new(name: &'static str, found: Vec<f64>, expected: Expected) -> Self {
        Self {
            name,
            found,
            expected,
        }
    }

    pub(crate) fn exact(name: &'static str, found: Vec<f64>, value: Vec<f64>) -> Self {
        let limit = vec![0.0; value.len()];
        Self::new(name, found, Expected { value, limit })
    }

    /// Every element within its limit, which must say something.
    pub(crate) fn require(&self) -> Result<()> {
        let Expected { value, limit } = &self.expected;
        for (i, (value, limit)) in value.iter().zip(limit).enumerate() {
            ensure!(
                value.is_finite() && limit.is_finite(),
                "{}[{i}]: the case has no finite answer: {value} within {limit}",
                self.name
            );
        }
        let worst = self.expected.worst(&self.found);
        if let Some(worst) = worst.filter(|worst| worst.used.is_nan() || worst.used > 1.0) {
            anyhow::bail!(
                "{}[{}]: expected {} within {}, found {}",
                self.name,
                worst.index,
                worst.value,
                worst.limit,
                worst.found
            );
        }
        Ok(())
    }
}

/// A change of one variant's rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The variant whose text it changes.
    pub variant: Variant,
    /// What is replaced; it stands in the text exactly once.
    pub find: &'static str,
    /// What stands there instead.
    pub replace: &'static str,
}

impl Edit {
    /// The changed text of the variant for a model.
    ///
    /// # Errors
    /// When the text has the place not exactly once, or naga refuses the change.
    pub fn apply(&self, spec: &ModelSpec) -> Result<Shader> {
        let text = generators::render(self.variant, spec)?.wgsl;
        let places = text.matches(self.find).count();
        ensure!(
            places == 1,
            "{}: expected `{}` once in the rendered text, found it {places} times",
            self.variant,
            self.find
        );
        let text = text.replace(self.find, self.replace);
        generators::shader(self.variant, text).context("after the edit")
    }
}

/// What stands in place of the rendered text of a variant.
#[derive(Debug)]
enum Instead {
    Edit(Edit),
    Own(Rc<Own>),
}

/// A runner with the dispatch limit that grids are folded for.
#[derive(Debug)]
pub struct Bench<'g> {
    runner: Runner<'g>,
    /// The driver's name.
    pub(crate) driver: &'g str,
    /// Workgroups in one dimension: small ones make small cases fold into z.
    pub(crate) max_groups: u32,
    /// The folder of golden data, where there is one.
    pub(crate) golden: Option<PathBuf>,
    instead: Option<Instead>,
    /// Why the edit could not be applied, where it could not.
    refused: Option<String>,
}

pub(crate) type Operands<'a> = Vec<(&'static str, Operand<'a>)>;

impl<'g> Bench<'g> {
    /// A bench for the text as it is rendered.
    pub const fn new(gpu: &'g Gpu, golden: Option<PathBuf>) -> Self {
        Self {
            runner: Runner::new(gpu),
            driver: gpu.info.driver.as_str(),
            max_groups: 65_535,
            golden,
            instead: None,
            refused: None,
        }
    }

    /// The same with a variant's text changed.
    pub fn edited(gpu: &'g Gpu, golden: Option<PathBuf>, edit: Edit) -> Self {
        Self {
            instead: Some(Instead::Edit(edit)),
            ..Self::new(gpu, golden)
        }
    }

    /// The same with another text in a variant's place.
    pub fn own(gpu: &'g Gpu, golden: Option<PathBuf>, own: Rc<Own>) -> Self {
        Self {
            instead: Some(Instead::Own(own)),
            ..Self::new(gpu, golden)
        }
    }

    /// Why the edit could not be applied in a case that ran, where it could not:
    /// that case says nothing of the edit.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The dispatch of `variant` in the plan of `spec`: the head's for
    /// `int4_matmul`.
    ///
    /// # Panics
    /// When no flag selects it.
    pub(crate) fn dispatch(&self, variant: Variant, spec: &ModelSpec, parts: u32) -> Dispatch {
        spec.validate().expect("a possible model");
        let features = Features {
            max_workgroups_per_dimension: self.max_groups,
            ..Features::PUBLISHED
        };
        match selection(variant, spec, &features, parts) {
            Some((_, dispatch)) => dispatch,
            None => panic!("no flag selects {variant} for {spec:?}"),
        }
    }

    fn shader(&mut self, variant: Variant, spec: &ModelSpec) -> Result<Shader> {
        match &self.instead {
            Some(Instead::Edit(edit)) if edit.variant == variant => {
                edit.apply(spec).inspect_err(|error| {
                    self.refused = Some(format!("{error:#}"));
                })
            }
            Some(Instead::Own(own)) if own.variant == variant => own.render(spec),
            Some(_) | None => Ok(generators::render(variant, spec)?),
        }
    }

    pub(crate) fn run(
        &mut self,
        variant: Variant,
        spec: &ModelSpec,
        mut dispatch: Dispatch,
        operands: Operands<'_>,
    ) -> Result<Outputs> {
        if let Some(Instead::Own(own)) = &self.instead {
            own.adapt(&mut dispatch, self.max_groups);
        }
        let case = Case {
            operands,
            uniform: dispatch.uniform,
            grid: dispatch.grid,
        };
        let shader = self.shader(variant, spec)?;
        if matches!(self.instead, Some(Instead::Edit(_))) {
            self.runner.scrub()?;
        }
        self.runner.run_shader(&shader, &case)
    }

    /// The plan's dispatch of one token, made one of `tokens` tokens of
    /// `elements` invocations each.
    pub(crate) fn tokens(&self, dispatch: &mut Dispatch, tokens: usize, elements: usize) {
        let groups = (tokens * elements).div_ceil(WIDE_THREADS);
        self.groups(dispatch, groups);
        for name in ["seq_len", "ntoken"] {
            if has(dispatch, name) {
                set(dispatch, name, tokens as u32);
            }
        }
    }

    /// The grid of a matrix variant for `outputs` outputs of `tokens` tokens.
    pub(crate) fn tiles(&self, dispatch: &mut Dispatch, outputs: usize, tokens: usize) {
        let variant = dispatch.variant;
        let groups = outputs.div_ceil(variant.outputs_per_workgroup());
        dispatch.grid = fold(groups, self.max_groups);
        if has(dispatch, "M_ROWS") {
            set(dispatch, "M_ROWS", tokens as u32);
        }
        if variant.is_batched() {
            dispatch.grid[1] = tokens.div_ceil(variant.tokens_per_workgroup()) as u32;
        }
    }

    pub(crate) fn groups(&self, dispatch: &mut Dispatch, groups: usize) {
        set(dispatch, "packGridDimX", groups as u32);
        dispatch.grid = fold(groups, self.max_groups);
    }
}

/// Tokens of the prompts that are looked at: one, a whole tile, and more.
const SELECTED_TOKENS: [usize; 3] = [1, 4, 5];

/// The fewest flags that select `variant` for `spec`, every other one off, and
/// the variant's first dispatch in that plan, for `int4_matmul` of one vector the
/// head's. None where the model has no dispatch of it.
pub fn selection(
    variant: Variant,
    spec: &ModelSpec,
    features: &Features,
    parts: u32,
) -> Option<(Choices, Dispatch)> {
    let one_of_many = variant.role == Role::Int4Matmul && !variant.is_batched();
    planned(variant, spec, features, parts, |d| {
        !one_of_many || d.label == "lm_head"
    })
}

/// Whether any flags make a plan of the model dispatch a variant, in its formats.
pub fn is_dispatched(variant: Variant, spec: &ModelSpec) -> bool {
    planned(variant, spec, &Features::PUBLISHED, 2, |_| true).is_some()
}

/// The first dispatch of a variant that `is` one to take, and the flags that select it.
fn planned(
    variant: Variant,
    spec: &ModelSpec,
    features: &Features,
    parts: u32,
    is: impl Fn(&Dispatch) -> bool,
) -> Option<(Choices, Dispatch)> {
    let spec = &reading(variant, spec);
    let mut choices = choices_for(&variant);
    if let Some(value @ Value::Count(_)) = choices.get_mut("splitk") {
        *value = Value::Count(parts.max(2));
    }
    let settings = Settings::resolve(features, &choices).ok()?;
    let settings = if matches!(variant.role, Role::SampleReduce | Role::SampleSelect) {
        settings.with_sampling(Sampling::Drawn(Draw::PLAIN))
    } else {
        settings
    };
    let prompt = SELECTED_TOKENS.map(|tokens| Phase::Prefill { tokens, head: true });
    for phase in std::iter::once(Phase::Decode).chain(prompt) {
        // A flag that can select nothing here is refused.
        let Ok(plan) = Plan::build(spec, &settings, features, phase) else {
            continue;
        };
        let mut dispatches = plan.dispatches.iter();
        if let Some(dispatch) = dispatches.find(|d| d.variant == variant && is(d)) {
            return Some((choices, dispatch.clone()));
        }
    }
    None
}

/// The model with its matrices of the variant's role in the variant's format.
pub fn reading(variant: Variant, spec: &ModelSpec) -> ModelSpec {
    let mut spec = spec.clone();
    let Some(format) = variant.format else {
        return spec;
    };
    let tensor = match variant.role {
        Role::Embedding => Tensor::Embedding,
        Role::QkvFused | Role::QkvFusedScratch | Role::QkvFusedNorm => Tensor::Qkv,
        // The head is multiplied with one vector.
        Role::Int4Matmul if variant.is_batched() => Tensor::Qkv,
        Role::Int4Matmul => spec.head_tensor(),
        Role::FusedFfn | Role::FusedFfnPrologue | Role::FusedFfnNorm => Tensor::GateUp,
        Role::Int4MatmulAdd => Tensor::Down,
        Role::MoeRouterLogits => Tensor::Router,
        Role::RmsNorm
        | Role::Attention
        | Role::AttentionSplitk
        | Role::AttentionCombine
        | Role::AttentionInt8
        | Role::AttentionPrefill
        | Role::AttentionPrefillInt8
        | Role::Int4MatmulMoe
        | Role::MoeRouterTopk
        | Role::MoeCombine
        | Role::GatedQkvSplit
        | Role::AttnGate
        | Role::GdnConv
        | Role::GdnConvSeq
        | Role::GdnConvCommit
        | Role::GdnGates
        | Role::GdnRecur
        | Role::GdnNormOut
        | Role::SiluMul
        | Role::AddNorm
        | Role::Add3Norm
        | Role::KvAppend
        | Role::KvQuantizeInt8
        | Role::Rope
        | Role::QkNorm
        | Role::QkNormRopeAppend
        | Role::Argmax
        | Role::SampleReduce
        | Role::SampleSelect => return spec,
    };
    let all = spec.tensors().into_iter();
    spec.other_formats = all
        .filter(|(_, other)| *other == tensor)
        .map(|(layer, tensor)| TensorFormat {
            layer,
            tensor,
            format,
        })
        .collect();
    spec
}

/// A dispatch of a variant outside any plan: a uniform of zeros, one workgroup.
pub(crate) fn unplanned(variant: Variant) -> Dispatch {
    Dispatch {
        label: variant.id(),
        variant,
        buffers: vec![],
        uniform: vec![0; variant.uniform().len()],
        grid: [1, 1, 1],
        work: Work::NONE,
    }
}

fn field(dispatch: &Dispatch, name: &str) -> Option<usize> {
    let fields = dispatch.variant.uniform();
    fields.iter().position(|field| field.name == name)
}

fn has(dispatch: &Dispatch, name: &str) -> bool {
    field(dispatch, name).is_some()
}

/// Sets a uniform field by name.
pub(crate) fn set(dispatch: &mut Dispatch, name: &str, value: u32) {
    let at = field(dispatch, name).expect("a field of the uniform");
    dispatch.uniform[at] = value;
}
