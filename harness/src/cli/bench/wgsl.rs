//! `bench --wgsl`: a kernel of the user's own in the place of a shipped one, through the
//! same checks, the same A/B and the same report.

use super::{
    super::{
        ab::{kernel as dispatch, told},
        cases::golden_folder,
        choices, measure,
    },
    BenchArgs,
};
use crate::{
    ab::{self, ArmSettings, kernel},
    cases::{self, Bench},
    device::Gpu,
    engine::{Own, Texts},
};
use ::kernels::{Phase, Plan, Role, Settings, Variant, flag::Choices};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

/// What the file beside a kernel may say of it: `own.toml` beside `own.wgsl`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Sidecar {
    /// The role.
    role: Option<String>,
    /// The shipped variant whose bindings and uniform it has.
    variant: Option<String>,
    /// The place in a token.
    site: Option<String>,
    /// Rows and K of a matrix of its own.
    shape: Option<[usize; 2]>,
    /// Outputs of one workgroup, where that is not the variant's number.
    outputs_per_workgroup: Option<usize>,
    /// The kernel's names of bindings by the role's: `weights = "w"`.
    bindings: BTreeMap<String, String>,
}

impl Sidecar {
    fn read(file: &Path) -> Result<Self> {
        let path = file.with_extension("toml");
        match fs::read_to_string(&path) {
            Ok(text) => {
                eprintln!(
                    "note: {} is read with {}; what is said on the line goes before it",
                    path.display(),
                    file.display()
                );
                toml::from_str(&text).with_context(|| path.display().to_string())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// The text with the role's names.
    fn renamed(&self, wgsl: &str, variant: Variant) -> Result<String> {
        let mut text = wgsl.to_owned();
        for (ours, theirs) in &self.bindings {
            if variant.bindings().all(|binding| binding.name != ours) {
                let known: Vec<&str> = variant.bindings().map(|b| b.name).collect();
                bail!(
                    "bindings: {variant} has no binding `{ours}`; it has {}",
                    known.join(", ")
                );
            }
            text = replace_word(&text, theirs, ours);
        }
        Ok(text)
    }
}

/// Replaces an identifier wherever it stands as a whole word.
fn replace_word(text: &str, from: &str, to: &str) -> String {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(from).filter(|_| !from.is_empty()) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let whole = !before.ends_with(part) && !after.starts_with(part);
        out.push_str(before);
        out.push_str(if whole { to } else { from });
        rest = after;
    }
    out + rest
}

pub(super) fn run(args: &BenchArgs, file: &PathBuf) -> Result<u8> {
    args.measure.require_sound()?;
    // Something else in their place is said before anything is opened.
    ab::folders()?;
    let sidecar = Sidecar::read(file)?;
    let text = fs::read_to_string(file)
        .with_context(|| format!("{}: expected a WGSL file", file.display()))?;
    let role = args.kernels.role.as_ref().or(sidecar.role.as_ref());
    let role: Role = role
        .with_context(|| {
            "--wgsl: expected --role ROLE, or `role` in the TOML file beside it".to_owned()
        })?
        .parse()?;
    let gpu = Gpu::open(args.model.adapter.as_deref())?;
    let with = choices(&args.flags)?;
    let named = args.kernels.variant.as_ref().or(sidecar.variant.as_ref());
    let variant = match named {
        Some(id) => id.parse()?,
        None => default_variant(args, &gpu, role, &with)?,
    };
    ensure!(
        variant.role == role,
        "--variant {variant}: it is a form of {}, not of {role}",
        variant.role
    );
    if sidecar.outputs_per_workgroup == Some(0) {
        bail!("outputs_per_workgroup: expected 1 or more, found 0");
    }
    let own = Rc::new(Own {
        name: file.file_name().map_or_else(
            || "own.wgsl".into(),
            |name| name.to_string_lossy().into_owned(),
        ),
        variant,
        wgsl: sidecar.renamed(&text, variant)?,
        outputs_per_workgroup: sidecar.outputs_per_workgroup,
    });
    let shape = match (args.kernels.shape, sidecar.shape) {
        (Some(shape), _) => Some(shape),
        (None, Some([rows, k])) => Some(
            format!("{rows}x{k}")
                .parse()
                .map_err(|error| anyhow::anyhow!("shape: {error}"))?,
        ),
        (None, None) => None,
    };
    let shaped = shape.is_some();
    let publish = args.measure.publishing(&gpu, vec![])?;
    let shape = shape
        .map(|shape: dispatch::Shape| shape.model(variant))
        .transpose()?;
    let (weights, prompt) = dispatch::weights(&args.model, shape)?;
    let spec = weights.spec();
    // A text that cannot be compiled is refused before anything runs.
    own.render(spec)?;
    // Of a published run once, by the process that starts the others.
    let judged = match args.measure.journal {
        Some(_) => None,
        None => judged_on_cases(&gpu, &own)?,
    };
    if let Some(failed) = judged {
        super::answer(
            args.model.json,
            &serde_json::json!({ "wgsl": own.name, "variant": variant.id(), "failed": failed }),
            &format!("CHECK FAILED, times withheld: {failed}"),
        )?;
        return Ok(1);
    }
    if args.measure.publish && args.measure.journal.is_none() {
        // What measures is another process.
        drop((gpu, weights));
        let subject = ["wgsl", role.name()].map(str::to_owned);
        let budget = args.measure.budget(dispatch::BUDGET_S);
        let outcome = measure::published(&subject, vec![], budget)?;
        return told(args.model.json, &outcome);
    }
    let mut choices = dispatch::choices_of(variant, spec, &gpu.features)?;
    choices.extend(with);
    let arm = |name: String, texts| {
        Ok(ArmSettings {
            name,
            settings: Settings::resolve(&gpu.features, &choices)?,
            slowed: 0.0,
            texts,
        })
    };
    let arms: Vec<ArmSettings> = [
        arm(variant.id(), Texts::Build),
        arm(own.name.clone(), Texts::Own(own.clone())),
    ]
    .into_iter()
    .collect::<Result<_>>()?;
    let named = args.kernels.site.as_ref().or(sidecar.site.as_ref());
    let of_shape = shaped.then_some(dispatch::Shape::SITE);
    let named = named.map(String::as_str).or(of_shape);
    let sites = kernel::differing(spec, &gpu.features, &arms, Some(role))?;
    let site = dispatch::one(sites, named, || {
        format!(
            "{} is {variant}, text for text, or {} dispatches no {variant}: nothing to time",
            own.name, spec.id
        )
    })?;
    let names = ["wgsl", role.name(), &site.name].map(str::to_owned);
    let one = dispatch::OneDispatch {
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

/// The form of a role that a token of the model dispatches.
fn default_variant(args: &BenchArgs, gpu: &Gpu, role: Role, with: &Choices) -> Result<Variant> {
    let spec = ::kernels::models::find(args.model.id())?;
    let settings = Settings::resolve(&gpu.features, with)?;
    let plan = Plan::build(&spec, &settings, &gpu.features, Phase::Decode)?;
    let mut own = plan.variants().into_iter().filter(|v| v.role == role);
    match (own.next(), own.next()) {
        (Some(variant), None) => Ok(variant),
        (None, _) => bail!("{} dispatches no {role} in a decoded token", spec.id),
        (Some(first), Some(second)) => bail!(
            "{} dispatches {first}, {second} and perhaps more; name one with --variant",
            spec.id
        ),
    }
}

/// Runs every case of the variant on a text without constants of its own; what failed.
fn judged_on_cases(gpu: &Gpu, own: &Rc<Own>) -> Result<Option<String>> {
    if own.is_whole() {
        eprintln!(
            "{} has bindings, and so the constants of one model: it is compared with the \
             reference there alone; leave the prelude out to run every case of {}",
            own.name, own.variant
        );
        return Ok(None);
    }
    let golden = golden_folder();
    let mut bench = Bench::own(gpu, golden.clone(), own.clone());
    let mut count = 0;
    for case in cases::of(own.variant).filter(|case| case.can_run(golden.as_deref())) {
        for seed in case.seeds(cases::SEED, cases::DRAWN) {
            count += 1;
            if let Err(error) = case.run(&mut bench, seed) {
                return Ok(Some(format!("{error:#}")));
            }
        }
    }
    eprintln!("{}: {count} cases of {} passed", own.name, own.variant);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_as_whole_words() {
        assert_eq!(replace_word("w[i] + wx + x.w", "w", "q"), "q[i] + wx + x.q");
        assert_eq!(replace_word("w", "", "q"), "w");
    }

    #[test]
    fn an_unknown_key_of_the_sidecar_is_refused() {
        let error = toml::from_str::<Sidecar>("workgroups = 3").expect_err("unknown");
        assert!(error.to_string().contains("workgroups"), "{error}");
    }

    #[test]
    fn the_sidecar_of_the_readme_names_what_there_is() {
        let readme = include_str!("../../../../README.md");
        let (_, after) = readme.split_once("```toml\n").expect("a block");
        let (text, _) = after.split_once("```").expect("its end");
        let sidecar: Sidecar = toml::from_str(text).expect("a sidecar");
        let variant: Variant = sidecar.variant.expect("said").parse().expect("a variant");
        assert_eq!(sidecar.role.as_deref(), Some(variant.role.name()));
        sidecar.bindings.keys().for_each(|ours| {
            assert!(variant.bindings().any(|b| b.name == ours), "{ours}");
        });
    }
}
