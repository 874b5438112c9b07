//! The A/B of one dispatch: two kernels at the same place of a token, each over cold
//! weights with an output of its own for every dispatch, in paired blocks.

use super::{
    ArmSettings, Compared, Outcome, Request,
    blocks::{Until, blocks},
    element::{Element, Timed},
    ended,
    gate::append_checks,
    start::{Run, start},
};
use crate::{
    bench::kernels::{Filter, cold_bytes, repeat, sites},
    check,
    device::Gpu,
    engine::{Arm, Engine, Rotation, Turn},
    progress::phase,
    timer::Timer,
};
use anyhow::{Context as _, Result, bail, ensure};
use indicatif::ProgressBar;
use kernels::{Features, ModelSpec, Phase, Role, Variant};
use reference::Checkpoint;
use results::{journal::JournalWriter, record};
use std::{collections::BTreeSet, time::Duration};

/// What an element lasts at least.
const LEAST: Duration = Duration::from_millis(2);
/// The same on a CPU adapter.
const CPU_LEAST: Duration = Duration::from_millis(40);
/// Most dispatches of an element.
const MOST: usize = 1 << 14;

/// The place of a token whose dispatches are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The last part of the dispatches' labels, `qkv` for instance.
    pub name: String,
    /// The kernel of each arm there.
    pub variants: [Variant; 2],
}

/// The sites of a decoded token at which the arms dispatch kernels of `role`, or of any,
/// that differ in variant or text.
///
/// # Errors
/// When an arm has no plan, or its texts cannot be made.
pub fn differing(
    spec: &ModelSpec,
    features: &Features,
    arms: &[ArmSettings],
    role: Option<Role>,
) -> Result<Vec<Site>> {
    let [a, b] = arms else {
        bail!("expected two arms, found {}", arms.len());
    };
    let plan = |arm: &ArmSettings| arm.making().plan(spec, features, Phase::Decode);
    let (plan_a, plan_b) = (plan(a)?, plan(b)?);
    let mut found = BTreeSet::new();
    for dispatch in &plan_a.dispatches {
        let same_place = |other: &&kernels::Dispatch| other.label == dispatch.label;
        let Some(other) = plan_b.dispatches.iter().find(same_place) else {
            continue;
        };
        let (x, y) = (dispatch.variant, other.variant);
        if role.is_some_and(|role| role != x.role || role != y.role) || x.role != y.role {
            continue;
        }
        let differs = x != y || a.texts.render(x, spec)?.sha256 != b.texts.render(y, spec)?.sha256;
        if differs {
            let name = dispatch.label.rsplit('.').next().unwrap_or_default();
            found.insert(Site {
                name: name.to_owned(),
                variants: [x, y],
            });
        }
    }
    Ok(found.into_iter().collect())
}

/// Compares the arms' dispatches at a site and writes journal and report.
///
/// # Errors
/// When a device fails, or a file cannot be written.
pub fn run(gpu: &Gpu, weights: &Checkpoint, request: &Request<'_>, site: &Site) -> Result<Outcome> {
    let positions = request.prompt.ids.len() + 1;
    let mut engine = Engine::new(gpu, weights, positions, None)?;
    let compared = Compared::new(&mut engine, request)?;
    let timer = Timer::new(gpu)?;
    let bar = ProgressBar::new(request.budget.as_secs());
    let placed = Placed::new(&engine, &compared, &timer, site)?;
    let mut journal = start(
        gpu,
        &engine,
        request,
        &compared.arms,
        &placed.described(site),
    )?;
    let result = placed.measure(request, &bar, &mut journal);
    bar.finish_and_clear();
    ended(journal, result, request.reports_dir)
}

/// The arms' dispatches at a site, bound in turn.
struct Placed<'p> {
    engine: &'p Engine<'p>,
    compared: &'p Compared,
    timer: &'p Timer<'p>,
    /// Of A, B and the control.
    bound: Vec<(Vec<usize>, Rotation)>,
    shape: String,
    weight_bytes: u64,
    /// Dispatches of an element.
    count: usize,
}

impl<'p> Placed<'p> {
    fn new(
        engine: &'p Engine<'p>,
        compared: &'p Compared,
        timer: &'p Timer<'p>,
        site: &Site,
    ) -> Result<Self> {
        let turn = Turn {
            weight_bytes: cold_bytes(engine.gpu),
            one_output: false,
        };
        let [a, b] = site.variants;
        let arms = compared.arms.iter().chain([&compared.control]);
        let mut bound = Vec::new();
        let mut place = None;
        for (arm, variant) in arms.zip([a, b, a]) {
            let filter = Filter {
                variant: Some(variant),
                site: Some(site.name.clone()),
                ..Filter::default()
            };
            let found = sites(engine, &arm.decode.plan, &filter)?;
            let of_name = found.into_iter().find(|found| found.site == site.name);
            let found = of_name.with_context(|| format!("no dispatch at {}", site.name))?;
            let rotation = engine.rotation(arm, &arm.decode, found.indices(), turn)?;
            bound.push((found.indices().to_vec(), rotation));
            place.get_or_insert((found.shape.clone(), found.weight_bytes));
        }
        let (shape, weight_bytes) = place.context("the arms have dispatches")?;
        let mut placed = Self {
            engine,
            compared,
            timer,
            bound,
            shape,
            weight_bytes,
            count: 1,
        };
        placed.count = placed.enough()?;
        Ok(placed)
    }

    /// Dispatches that last long enough, of the arm that takes less time.
    fn enough(&self) -> Result<usize> {
        let cpu = self.engine.gpu.features.cpu;
        let least = if cpu { CPU_LEAST } else { LEAST };
        let mut count = 1;
        loop {
            let mut shortest = Duration::MAX;
            for (_, rotation) in &self.bound {
                // The first of a kernel is long.
                let times = [(); 2].map(|()| repeat(self.timer, rotation, count));
                for time in times {
                    shortest = shortest.min(time?);
                }
            }
            if shortest >= least || count >= MOST {
                return Ok(count);
            }
            count *= 2;
        }
    }

    fn described(&self, site: &Site) -> Run {
        Run::Dispatch {
            site: format!("{} {}", site.name, self.shape).trim().to_owned(),
            variants: site.variants,
            weight_bytes: self.weight_bytes,
            count: self.count,
        }
    }

    fn arms(&self) -> impl Iterator<Item = (record::Arm, &Arm, &(Vec<usize>, Rotation))> {
        let arms = self.compared.arms.iter().chain([&self.compared.control]);
        let kinds = [record::Arm::A, record::Arm::B, record::Arm::Control];
        kinds
            .into_iter()
            .zip(arms)
            .zip(&self.bound)
            .map(|((kind, arm), bound)| (kind, arm, bound))
    }

    /// Checks, measures, checks again; false where a check failed.
    fn measure(
        &self,
        request: &Request<'_>,
        bar: &ProgressBar,
        journal: &mut JournalWriter,
    ) -> Result<bool> {
        phase(bar, "comparing with the reference");
        if !self.checked("before", request, journal)? {
            return Ok(false);
        }
        let until = Until::Budget;
        blocks(self, request, until, bar, journal)?;
        phase(bar, "comparing with the reference again");
        self.checked("after", request, journal)
    }

    /// The site's dispatches against the reference, and those that are timed against
    /// them, bit by bit.
    fn checked(
        &self,
        when: &str,
        request: &Request<'_>,
        journal: &mut JournalWriter,
    ) -> Result<bool> {
        let prompt = &request.prompt.ids;
        let last = prompt.len() - 1;
        let mut passed = true;
        for (kind, arm, (indices, rotation)) in self.arms() {
            self.engine.prefill_whole(&arm.prefill, prompt)?;
            self.engine.set_token(prompt[last]);
            let labels: BTreeSet<&str> = (indices.iter())
                .map(|&index| arm.decode.plan.dispatches[index].label.as_str())
                .collect();
            let mut checks = check::roles(self.engine, &arm.decode, last, |dispatch| {
                labels.contains(dispatch.label.as_str())
            })?;
            ensure!(!checks.is_empty(), "no dispatch of the site was checked");
            for check in &mut checks {
                check.stage = format!("{when}.{}", check.stage);
            }
            let right = checks.iter().all(|check| check.passed);
            append_checks(journal, kind, checks)?;
            if right {
                self.engine.require_same(&arm.decode, indices, rotation)?;
            }
            passed &= right;
        }
        Ok(passed)
    }
}

impl Timed for Placed<'_> {
    fn kinds(&self) -> Vec<record::Arm> {
        self.arms().map(|(kind, ..)| kind).collect()
    }

    fn element(&self, kind: record::Arm) -> Result<Element> {
        let mut arms = self.arms();
        let found = arms.find(|(other, ..)| *other == kind);
        let (_, _, (_, rotation)) = found.context("an arm of this A/B")?;
        let taken = repeat(self.timer, rotation, self.count)?;
        Ok(Element {
            tokens: self.count,
            dispatches: self.count as u64,
            wall_ns: u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX),
            spans: vec![],
            made: vec![],
        })
    }

    fn gpu(&self) -> &Gpu {
        self.engine.gpu
    }
}
