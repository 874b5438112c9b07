//! What is planted must be found, and what is not there must not: a whole token slowed by
//! three margins of counted work, and a kernel whose text changes and whose work does not,
//! each through the A/B as a user runs it, from the checks to the report.
//!
//! Each is measured for [`BUDGET`], and again where the machine was too restless for an
//! answer, at most [`ATTEMPTS`] times. A verdict that is wrong fails at once.

mod support;

use harness::{
    ab::{self, ArmSettings, Request, Subject},
    device::Gpu,
    engine::{Own, Texts},
    model,
};
use kernels::{Phase, Plan, Role, Settings, flag::Choices, flag::Metric, models};
use reference::synth;
use results::stats::Verdict;
use std::{rc::Rc, time::Duration};

/// Measuring of one attempt; with its checks it takes about twice as long on two cores.
const BUDGET: Duration = Duration::from_secs(60);
/// Attempts before a test says that the machine gives no answer.
const ATTEMPTS: usize = 3;
/// The smallest change that matters. A software driver shares its cores with the system,
/// so it is wider than the 2 % of a GPU.
const MARGIN: f64 = 0.05;
const SEED: u64 = 5;
/// Layers of the model: enough that the head is not all of a token.
const LAYERS: usize = 6;

/// Measures A against what `change` makes of it until the verdict is `expected`.
fn require(test: &str, expected: Verdict, change: impl Fn(&Gpu, &ArmSettings) -> ArmSettings) {
    if !support::all() {
        support::unrun(test, "only `cargo xtask test --all` runs it, for minutes");
        return;
    }
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let spec = models::find(models::DEFAULT_MODEL).expect("registered");
    let weights =
        synth::checkpoint(&spec.truncated(LAYERS).expect("fewer than it has"), SEED).expect("made");
    let baseline = ArmSettings {
        name: "baseline".to_owned(),
        settings: Settings::resolve(&gpu.features, &Choices::new()).expect("defaults"),
        slowed: 0.0,
        texts: Texts::Build,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut unanswered = Vec::new();
    for attempt in 0..ATTEMPTS {
        let request = Request {
            subject: Subject {
                names: vec!["planted".to_owned()],
                metric: Metric::Decode,
                excluded: vec![],
            },
            arms: vec![baseline.clone(), change(&gpu, &baseline)],
            prompt: model::prompt(weights.spec(), Some(8), SEED).expect("a prompt"),
            tokens: 16,
            budget: BUDGET,
            margin: Some(MARGIN),
            seed: SEED + attempt as u64,
            command: test.to_owned(),
            passage: None,
            publish: None,
            id: None,
            data_dir: &folder.path().join("data"),
            reports_dir: &folder.path().join("reports"),
        };
        let found = ab::run(&gpu, &weights, &request).expect("measured");
        assert!(found.correct, "{:?}", found.summary.checks);
        let summary = found.summary;
        let told = format!(
            "{}: {:?} % {:?}, control {:?} %, {} blocks",
            summary.reason,
            summary.effect_pct,
            summary.ci_pct,
            summary.control.effect_pct,
            summary.blocks
        );
        eprintln!("attempt {}, seed {}: {told}", attempt + 1, request.seed);
        match summary.verdict {
            Some(verdict) if verdict == expected => return,
            Some(Verdict::Inconclusive | Verdict::Invalid) | None => unanswered.push(told),
            Some(wrong @ (Verdict::Faster | Verdict::Slower | Verdict::Equivalent)) => {
                panic!("expected {expected}, found {wrong}: {told}")
            }
        }
    }
    let reasons = unanswered.join("; ");
    support::undecided(
        test,
        &format!(
            "no answer in {ATTEMPTS} attempts of {} s: {reasons}",
            BUDGET.as_secs()
        ),
    );
}

#[test]
fn a_planted_slowdown_of_three_margins_is_found() {
    let test = "a_planted_slowdown_of_three_margins_is_found";
    require(test, Verdict::Slower, |gpu, baseline| {
        let share = 3.0 * MARGIN;
        let spec = models::find(models::DEFAULT_MODEL).expect("registered");
        let (spec, settings) = (
            spec.truncated(LAYERS).expect("fewer than it has"),
            &baseline.settings,
        );
        let plan = Plan::build(&spec, settings, &gpu.features, Phase::Decode).expect("a plan");
        let [less, more] = [plan.totals(), plan.slowed(share).totals()];
        let grown = more.bytes_per_token as f64 / less.bytes_per_token as f64 - 1.0;
        assert!(grown >= share, "counted: {grown} of {share}");
        ArmSettings {
            name: "planted slowdown".to_owned(),
            slowed: share,
            ..baseline.clone()
        }
    });
}

#[test]
fn a_planted_change_of_nothing_is_found_equal() {
    let test = "a_planted_change_of_nothing_is_found_equal";
    require(test, Verdict::Equivalent, |gpu, baseline| {
        let spec = models::find(models::DEFAULT_MODEL).expect("registered");
        let (spec, settings) = (
            spec.truncated(LAYERS).expect("fewer than it has"),
            &baseline.settings,
        );
        let plan = Plan::build(&spec, settings, &gpu.features, Phase::Decode).expect("a plan");
        let of_ffn = |variant: &kernels::Variant| variant.role == Role::FusedFfn;
        let variant = plan
            .variants()
            .into_iter()
            .find(of_ffn)
            .expect("a layer has one");
        let text = generators::render(variant, &spec).expect("shipped").wgsl;
        ArmSettings {
            name: "planted no-op".to_owned(),
            texts: Texts::Own(Rc::new(Own {
                name: "planted.wgsl".to_owned(),
                variant,
                wgsl: format!("{text}// The same work by another text.\n"),
                outputs_per_workgroup: None,
            })),
            ..baseline.clone()
        }
    });
}
