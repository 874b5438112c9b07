//! `ab --kernel`, and what `ab --base` and `bench --wgsl` share with it: one dispatch
//! against another.

use super::{
    AbArgs, choices,
    measure::{self, MeasureArgs, arguments, command_line},
    told, told_with_kernels,
};
use crate::{
    ab::{
        self, ArmSettings, Subject,
        kernel::{self, Site},
        publish::{Publishing, Work},
    },
    cases,
    cli::ModelArgs,
    device::Gpu,
    engine::Texts,
    interrupt, model,
};
use ::kernels::{
    Features, ModelSpec, Phase, Plan, Role, Settings, Value, Variant,
    flag::{Choices, FLAGS, Metric, choices_for},
    models,
    variants::VARIANTS,
};
use anyhow::{Result, bail, ensure};
use reference::{Checkpoint, synth};
use std::{path::Path, time::Duration};

/// Seconds of measuring of one dispatch, where nobody says.
pub(in crate::cli) const BUDGET_S: f64 = 20.0;

/// Rows and columns of a matrix, `9216x3072`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Shape {
    rows: usize,
    k: usize,
}

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.trim().parse::<usize>().ok().filter(|&n| n > 0);
        let parts = text.split_once('x');
        match parts.and_then(|(rows, k)| Some((number(rows)?, number(k)?))) {
            Some((rows, k)) if rows <= 1 << 20 && k <= 1 << 16 && k % 32 == 0 => {
                Ok(Self { rows, k })
            }
            _ => Err(
                "expected ROWSxK, e.g. 9216x3072, rows up to 1048576, K a multiple of 32 up to \
                 65536"
                    .to_owned(),
            ),
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.rows, self.k)
    }
}

impl Shape {
    /// Where in a token the matrix is multiplied.
    pub(in crate::cli) const SITE: &str = "lm_head";

    /// A model of one small layer whose head has this shape.
    pub(in crate::cli) fn model(self, variant: Variant) -> Result<ModelSpec> {
        ensure!(
            variant.role == Role::Int4Matmul,
            "--shape: only int4_matmul has a shape of its own, not {}; name a --model",
            variant.role
        );
        let spec = ModelSpec {
            id: format!("{}x{}", self.rows, self.k),
            title: format!("a matrix of {} x {}", self.rows, self.k),
            hidden_size: self.k,
            vocab_size: self.rows,
            ..cases::model()
        };
        let spec = cases::reading(variant, &spec);
        spec.validate().map_err(anyhow::Error::msg)?;
        Ok(spec)
    }
}

/// The choice of flags that dispatches a variant somewhere in a token of `spec`.
pub(in crate::cli) fn choices_of(
    variant: Variant,
    spec: &ModelSpec,
    features: &Features,
) -> Result<Choices> {
    variant
        .check(features, variant.k_step())
        .map_err(|reason| anyhow::anyhow!("{variant}: {reason}"))?;
    let own = choices_for(&variant);
    let mut others_off = own.clone();
    for flag in FLAGS {
        if (flag.default)(features) == Value::On {
            others_off.entry(flag.name).or_insert(Value::Off);
        }
    }
    // As much as can be is left as it is by default.
    for choices in [own, others_off] {
        let plan = Settings::resolve(features, &choices)
            .ok()
            .and_then(|settings| Plan::build(spec, &settings, features, Phase::Decode).ok());
        if plan.is_some_and(|plan| plan.variants().contains(&variant)) {
            return Ok(choices);
        }
    }
    bail!(
        "{variant}: no flag selects it in a decoded token of {}; `cargo xtask kernels list` shows \
         what it needs",
        spec.id
    )
}

/// The weights and prompt of a kernel's A/B: a model's, or of one matrix.
pub(in crate::cli) fn weights(
    args: &super::ModelArgs,
    shape: Option<ModelSpec>,
) -> Result<(Checkpoint, model::Prompt)> {
    match shape {
        None => {
            let (source, prompt) = args.source(1)?;
            Ok((args.read(&source)?, prompt))
        }
        Some(spec) => {
            let prompt = model::prompt(&spec, Some(4), args.seed)?;
            Ok((synth::checkpoint(&spec, args.seed)?, prompt))
        }
    }
}

/// The one site at which the arms differ, or the one that is named.
pub(in crate::cli) fn one(
    sites: Vec<Site>,
    named: Option<&str>,
    nothing: impl FnOnce() -> String,
) -> Result<Site> {
    let names: Vec<String> = sites.iter().map(|site| site.name.clone()).collect();
    let mut left = sites;
    if let Some(name) = named {
        left.retain(|site| site.name == name);
    }
    match (&left[..], names.is_empty()) {
        ([_], _) => Ok(left.swap_remove(0)),
        (_, true) => bail!("{}", nothing()),
        ([], _) => bail!(
            "--site {}: the arms differ at {}",
            named.unwrap_or_default(),
            names.join(", ")
        ),
        _ => bail!(
            "the arms differ at {}; name one with --site",
            names.join(", ")
        ),
    }
}

/// Refuses what is wrong before anything is opened.
pub(super) fn require_sound(args: &AbArgs, role: &str) -> Result<()> {
    named_variants(args, role.parse()?).map(drop)
}

pub(super) fn run(args: &AbArgs, role: &str) -> Result<u8> {
    let role: Role = role.parse()?;
    let variants = named_variants(args, role)?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let publish = args.measure.publishing(&gpu, vec![])?;
    let with = choices(&args.with)?;
    let shape = args
        .shape
        .map(|shape| shape.model(variants[0]))
        .transpose()?;
    let (weights, prompt) = weights(&args.model, shape)?;
    let spec = weights.spec();
    let arms: Vec<ArmSettings> = variants
        .iter()
        .map(|&variant| {
            let mut all = choices_of(variant, spec, &gpu.features)?;
            all.extend(with.clone());
            Ok(ArmSettings {
                name: variant.id(),
                settings: ab::settings(&gpu.features, &all)?,
                slowed: 0.0,
                texts: Texts::Build,
            })
        })
        .collect::<Result<_>>()?;
    let mut sites = kernel::differing(spec, &gpu.features, &arms, Some(role))?;
    sites.retain(|site| site.variants[..] == variants[..]);
    let [a, b] = [variants[0], variants[1]];
    let named = args.site.as_deref().or(args.shape.map(|_| Shape::SITE));
    let site = one(sites, named, || {
        format!(
            "{} has no place at which one arm dispatches {a} and the other {b}",
            spec.id
        )
    })?;
    let names = [role.name().to_owned(), site.name.clone()];
    let one = OneDispatch {
        gpu: &gpu,
        weights: &weights,
        prompt,
        arms,
        site,
        names: names.to_vec(),
        publish,
    };
    one.measured(&args.measure, &args.model)
}

/// Two kernels at one place, and where they are compared.
pub(in crate::cli) struct OneDispatch<'d> {
    pub(in crate::cli) gpu: &'d Gpu,
    pub(in crate::cli) weights: &'d Checkpoint,
    pub(in crate::cli) prompt: model::Prompt,
    pub(in crate::cli) arms: Vec<ArmSettings>,
    pub(in crate::cli) site: Site,
    /// What the run is named after.
    pub(in crate::cli) names: Vec<String>,
    /// What a published run adds.
    pub(in crate::cli) publish: Option<Publishing>,
}

impl OneDispatch<'_> {
    /// Measures them, or this process's part of it, and says what was found.
    pub(in crate::cli) fn measured(self, measure: &MeasureArgs, model: &ModelArgs) -> Result<u8> {
        let Self {
            gpu,
            weights,
            mut arms,
            site,
            ..
        } = self;
        if measure.publish {
            // What it does more are dispatches, of the same kernel.
            arms.push(ArmSettings {
                name: format!("{} with more dispatches", arms[0].name),
                ..arms[0].clone()
            });
        }
        interrupt::listen();
        let [data_dir, reports_dir] = ab::folders()?;
        let folders = [&*data_dir, &*reports_dir];
        let request = ab::Request {
            publish: self.publish,
            id: measure.id(),
            budget: measure.budget(BUDGET_S),
            margin: measure.margin(),
            ..request(self.names, arms, self.prompt, model.seed, folders)
        };
        let part = measure.part(gpu, weights, &request, Work::Dispatch(&site))?;
        if let Some(status) = part {
            return Ok(status);
        }
        told(model.json, &kernel::run(gpu, weights, &request, &site)?)
    }
}

/// A kernel's A/B with the budget of one and the margin that its control says; `folders`
/// are those of journals and reports.
fn request<'a>(
    names: Vec<String>,
    arms: Vec<ArmSettings>,
    prompt: model::Prompt,
    seed: u64,
    [data_dir, reports_dir]: [&'a Path; 2],
) -> ab::Request<'a> {
    ab::Request {
        subject: Subject {
            names,
            metric: Metric::Decode,
            excluded: vec![],
        },
        arms,
        prompt,
        tokens: 1,
        budget: Duration::from_secs_f64(BUDGET_S),
        margin: None,
        seed,
        command: command_line(&arguments()),
        passage: None,
        publish: None,
        id: None,
        data_dir,
        reports_dir,
    }
}

/// The two variants named, of the role.
fn named_variants(args: &AbArgs, role: Role) -> Result<Vec<Variant>> {
    let variants: Vec<Variant> = args
        .variant
        .iter()
        .map(|id| Ok(id.parse()?))
        .collect::<Result<_>>()?;
    if let Some(other) = variants.iter().find(|variant| variant.role != role) {
        bail!(
            "--variant {other}: it is a form of {}, not of {role}",
            other.role
        );
    }
    let [a, b] = variants[..] else {
        let format = models::find(args.model.id())?.format;
        let own = VARIANTS
            .iter()
            .filter(|v| v.role == role && v.format.is_none_or(|f| f == format));
        let ids: Vec<String> = own.map(Variant::id).collect();
        bail!(
            "--kernel {role}: expected --variant twice, the baseline first, found {}; the forms \
             for {} are {}",
            variants.len(),
            format.name(),
            ids.join(", ")
        );
    };
    ensure!(
        a != b,
        "{a} and {b} are the same variant: identical text, nothing to time"
    );
    Ok(variants)
}

/// The dispatches of a token whose kernels' texts differ between a revision and this
/// build. Another form at the place is another plan, which the tokens tell.
fn sites_of_base(spec: &ModelSpec, gpu: &Gpu, arms: &[ArmSettings]) -> Result<Vec<Site>> {
    let mut sites = kernel::differing(spec, &gpu.features, arms, None)?;
    sites.retain(|site| site.variants[0] == site.variants[1]);
    Ok(sites)
}

/// What a run of a dispatch of `ab --base` is named after.
fn names_of_base(site: &Site) -> Vec<String> {
    vec!["base".to_owned(), site.name.clone()]
}

/// Each dispatch that differs from a revision's, compared on its own.
pub(super) fn of_base(
    gpu: &Gpu,
    weights: &Checkpoint,
    request: &ab::Request<'_>,
) -> Result<Vec<ab::Outcome>> {
    let mut outcomes = Vec::new();
    for site in sites_of_base(weights.spec(), gpu, &request.arms)? {
        if interrupt::asked() {
            break;
        }
        let (arms, prompt) = (request.arms.clone(), request.prompt.clone());
        let folders = [request.data_dir, request.reports_dir];
        let names = names_of_base(&site);
        let of_kernel = self::request(names, arms, prompt, request.seed, folders);
        let request = ab::Request {
            budget: request.budget.min(of_kernel.budget),
            margin: request.margin,
            ..of_kernel
        };
        outcomes.push(kernel::run(gpu, weights, &request, &site)?);
    }
    Ok(outcomes)
}

/// `ab --base REV --site NAME`: the dispatch at one place, or a part of its published run.
pub(super) fn run_of_base(
    args: &AbArgs,
    gpu: &Gpu,
    arms: Vec<ArmSettings>,
    name: &str,
) -> Result<u8> {
    let publish = args.measure.publishing(gpu, vec![])?;
    let (source, prompt) = args.model.source(1)?;
    let weights = args.model.read(&source)?;
    let spec = weights.spec();
    let site = one(sites_of_base(spec, gpu, &arms)?, Some(name), || {
        format!(
            "the kernels of a token of {} are identical, text for text: nothing to time",
            spec.id
        )
    })?;
    let names = names_of_base(&site);
    let one = OneDispatch {
        gpu,
        weights: &weights,
        prompt,
        arms,
        site,
        names,
        publish,
    };
    one.measured(&args.measure, &args.model)
}

/// `ab --base REV --publish`: whole tokens, and each dispatch that differs in a run of its
/// own. They share the budget.
pub(super) fn published_base(args: &AbArgs) -> Result<u8> {
    let sites = {
        // Given back before a process measures.
        let gpu = Gpu::open(args.model.adapter.as_deref())?;
        let (_, arms) = args.compared(&gpu)?;
        let (source, _) = args.model.source(args.tokens)?;
        ab::require_difference(&source.spec, &gpu.features, &arms)?;
        sites_of_base(&source.spec, &gpu, &arms)?
    };
    let budget = args.budget().div_f64((1 + sites.len()) as f64);
    let tokens = measure::published(&["base".to_owned()], vec![], budget)?;
    let mut kernels: Vec<ab::Outcome> = Vec::new();
    for site in sites {
        if interrupt::asked() || !tokens.correct {
            break;
        }
        let words = vec!["--site".to_owned(), site.name.clone()];
        kernels.push(measure::published(&names_of_base(&site), words, budget)?);
    }
    told_with_kernels(args, &tokens, &kernels)
}
