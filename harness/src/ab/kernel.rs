//! The A/B of one dispatch: two kernels at the same place of a token, each over cold
//! weights with an output of its own for every dispatch, in paired blocks.

use super::{
    ArmSettings, Compared, MARGIN, Outcome, Request,
    blocks::{Until, blocks},
    element::{Element, Timed},
    ended,
    gate::append_checks,
    publish::SLOWED_MARGINS,
    start::{Run, start},
};
use crate::{
    bench::{
        WARM_UP,
        kernels::{Filter, cold_bytes, repeat, sites},
    },
    check,
    device::Gpu,
    engine::{Arm, Engine, Rotation, Turn},
    progress::phase,
    timer::Timer,
};
use anyhow::{Context as _, Result, bail, ensure};
use indicatif::ProgressBar;
use kernels::{Features, ModelSpec, Phase, Role, Variant, plan::Work};
use reference::Checkpoint;
use results::{draw::split_mix, journal::JournalWriter, record, stats::spread};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// What an element lasts at least.
const LEAST: Duration = Duration::from_millis(2);
/// The same on a CPU adapter.
const CPU_LEAST: Duration = Duration::from_millis(40);
/// Most dispatches of an element.
const MOST: usize = 1 << 14;
/// Blocks of the baseline and the control alone, from which a margin is found.
const CONTROL_BLOCKS: usize = 20;

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
    let mut engine = Engine::new(gpu, weights, context(request), None)?;
    let compared = Compared::new(&mut engine, request)?;
    let timer = Timer::new(gpu)?;
    let bar = ProgressBar::new(request.budget.as_secs());
    let placed = Placed::new(&engine, request, &compared, &timer, site, None)?;
    let mut journal = start(
        gpu,
        &engine,
        request,
        &compared.arms,
        &placed.described(site),
    )?;
    let result = placed.measure(&bar, &mut journal);
    bar.finish_and_clear();
    ended(journal, result, request.reports_dir)
}

/// Positions that it needs.
pub(super) fn context(request: &Request<'_>) -> usize {
    request.prompt.ids.len() + 1
}

/// The arms' dispatches at a site, bound in turn.
pub(super) struct Placed<'p> {
    engine: &'p Engine<'p>,
    request: &'p Request<'p>,
    compared: &'p Compared,
    timer: &'p Timer<'p>,
    /// Of every arm, the control last.
    bound: Vec<(Vec<usize>, Rotation)>,
    shape: String,
    work: Work,
    /// Dispatches of an element.
    count: usize,
    /// What an element of the slowed arm has more.
    extra: usize,
    margin: (f64, Option<record::Spread>),
}

/// Every arm with its kind, the control last.
fn arms<'c>(
    request: &'c Request<'_>,
    compared: &'c Compared,
) -> impl Iterator<Item = (record::Arm, &'c Arm)> {
    let kinds = request.kinds().into_iter();
    let control = (record::Arm::Control, &compared.control);
    kinds.zip(&compared.arms).chain([control])
}

/// Dispatches of an element, `least` of them or more, and what a slowed one has beyond: as
/// near to this share as whole dispatches are, and not less.
fn slowed(least: usize, share: f64) -> [usize; 2] {
    let mut extra = (least as f64 * share).ceil().max(1.0);
    // What rounding takes from a whole number is given back.
    let count = |extra: f64| (extra / share + 1e-9).floor();
    // A share below the whole has fewer dispatches more than there are.
    while share < 1.0 && count(extra) <= extra {
        extra += 1.0;
    }
    [count(extra) as usize, extra as usize]
}

impl<'p> Placed<'p> {
    pub(super) fn new(
        engine: &'p Engine<'p>,
        request: &'p Request<'p>,
        compared: &'p Compared,
        timer: &'p Timer<'p>,
        site: &Site,
        begun: Option<&record::Run>,
    ) -> Result<Self> {
        let turn = Turn {
            weight_bytes: cold_bytes(engine.gpu),
            one_output: false,
        };
        let [a, b] = site.variants;
        let mut bound = Vec::new();
        let mut place = None;
        for (kind, arm) in arms(request, compared) {
            let variant = if kind == record::Arm::B { b } else { a };
            let filter = Filter {
                variant: Some(variant),
                site: Some(site.name.clone()),
                ..Filter::default()
            };
            let found = sites(engine.weights.spec(), &arm.decode.plan, &filter)?;
            let of_name = found.into_iter().find(|found| found.site == site.name);
            let found = of_name.with_context(|| format!("no dispatch at {}", site.name))?;
            let rotation = engine.rotation(arm, &arm.decode, found.indices(), turn)?;
            bound.push((found.indices().to_vec(), rotation));
            place.get_or_insert((found.shape.clone(), found.work()));
        }
        let (shape, work) = place.context("the arms have dispatches")?;
        let mut placed = Self {
            engine,
            request,
            compared,
            timer,
            bound,
            shape,
            work,
            count: 1,
            extra: 0,
            margin: (MARGIN, None),
        };
        match begun {
            Some(run) => placed.take(run)?,
            None => placed.declare()?,
        }
        Ok(placed)
    }

    /// Finds the dispatches of an element, and the margin where none is given.
    fn declare(&mut self) -> Result<()> {
        self.count = self.enough()?;
        self.margin = match self.request.margin {
            Some(margin) => (margin, None),
            None => {
                let spread = self.control()?;
                (spread.margin(), Some(spread))
            }
        };
        if self.request.publish.is_some() {
            let (margin, _) = self.margin;
            let share = SLOWED_MARGINS * margin;
            ensure!(
                share < 1.0,
                "A and A' differ by up to {:.0} % in a block, so the margin would be {:.0} %; \
                 quieten the machine, or name one with --margin",
                50.0 * margin,
                100.0 * margin
            );
            [self.count, self.extra] = slowed(self.count, share);
        }
        Ok(())
    }

    /// Takes what a run that was begun declared.
    fn take(&mut self, run: &record::Run) -> Result<()> {
        self.margin = (run.margin, run.margin_from);
        self.count = run.decode_tokens as usize;
        let slowed = run.plan(record::Arm::Slowed).element_dispatches;
        let slowed = slowed.context("a slowed arm without its dispatches")?;
        let extra = usize::try_from(slowed)?.checked_sub(self.count);
        self.extra = extra.context("a slowed arm of fewer dispatches")?;
        Ok(())
    }

    /// What blocks of the baseline and the control alone read.
    fn control(&self) -> Result<record::Spread> {
        use record::Arm::{A, Control};
        let begin = Instant::now();
        while begin.elapsed() < WARM_UP {
            self.element(A)?;
            self.element(Control)?;
        }
        let mut coin = self.request.seed;
        let mut values = Vec::with_capacity(CONTROL_BLOCKS);
        for _ in 0..CONTROL_BLOCKS {
            let half = match split_mix(&mut coin) & 1 == 0 {
                true => [A, Control],
                false => [Control, A],
            };
            let mut logs = [0.0; 2];
            for &kind in half.iter().chain(half.iter().rev()) {
                let ns = self.element(kind)?.wall_ns.max(1);
                logs[usize::from(kind == Control)] += 0.5 * (ns as f64).ln();
            }
            values.push(logs[1] - logs[0]);
        }
        Ok(spread(&values)?)
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

    pub(super) fn described(&self, site: &Site) -> Run {
        Run::Dispatch {
            site: format!("{} {}", site.name, self.shape).trim().to_owned(),
            variants: site.variants,
            work: self.work,
            count: self.count,
            extra: self.extra,
            margin: self.margin,
            timer: self.timer.grade.clone(),
        }
    }

    fn arms(&self) -> impl Iterator<Item = (record::Arm, &Arm, &(Vec<usize>, Rotation))> {
        arms(self.request, self.compared)
            .zip(&self.bound)
            .map(|((kind, arm), bound)| (kind, arm, bound))
    }

    /// Checks, measures, checks again; false where a check failed.
    fn measure(&self, bar: &ProgressBar, journal: &mut JournalWriter) -> Result<bool> {
        phase(bar, "comparing with the reference");
        if !self.checked("before", journal)? {
            return Ok(false);
        }
        let until = Until::Budget;
        blocks(self, self.request, until, bar, journal)?;
        phase(bar, "comparing with the reference again");
        self.checked("after", journal)
    }

    /// The site's dispatches against the reference, and those that are timed against
    /// them, bit by bit.
    pub(super) fn checked(&self, when: &str, journal: &mut JournalWriter) -> Result<bool> {
        let prompt = &self.request.prompt.ids;
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
        let slowed = kind == record::Arm::Slowed;
        let dispatches = self.count + if slowed { self.extra } else { 0 };
        let taken = repeat(self.timer, rotation, dispatches)?;
        Ok(Element {
            tokens: self.count,
            dispatches: dispatches as u64,
            wall_ns: u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX),
            spans: vec![],
            made: vec![],
        })
    }

    fn require_right(&self, kind: record::Arm) -> Result<()> {
        let mut arms = self.arms();
        let found = arms.find(|(other, ..)| *other == kind);
        let (_, arm, (indices, rotation)) = found.context("an arm of this A/B")?;
        self.engine.require_left(&arm.decode, indices, rotation)
    }

    fn gpu(&self) -> &Gpu {
        self.engine.gpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowed_element_has_its_share_of_dispatches_more() {
        for share in [0.03, 0.06, 0.15, 0.9] {
            for least in [1, 2, 5, 16, 17, 100, MOST] {
                let [count, extra] = slowed(least, share);
                let found = extra as f64 / count as f64;
                assert!(count >= least, "{least}: {count}");
                // One dispatch fewer to share among is what rounding may cost.
                let within = share * (1.0 - 1e-9)..=(share / (1.0 - share)).min(0.99);
                assert!(
                    within.contains(&found),
                    "{share} of {least}: {extra} of {count}"
                );
            }
        }
    }
}
