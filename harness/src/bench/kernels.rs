//! Times of single kernels at the shapes of a plan, through criterion.
//!
//! A site is what the plan dispatches with one variant, uniform and grid: a matrix of
//! every layer, for instance. It is timed from cold weights, layer after layer, with an
//! output of its own for each dispatch (throughput), and with one output for all, so
//! that each waits for the one before (latency).

use crate::{
    device::Gpu,
    engine::{Arm, Engine, Program, Rotation, Turn},
    timer::Timer,
};
use anyhow::{Context as _, Result, bail, ensure};
use criterion::{Criterion, SamplingMode};
use kernels::{
    ModelSpec, Plan, Role, Variant,
    models::Shape,
    plan::{Buffer, Part, Work},
};
use results::{
    roof,
    sheet::{self, KernelTime},
};
use serde::{Deserialize, Serialize};
use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Weights that are read in turn, four times the last-level cache of any GPU in sight.
const COLD_BYTES: u64 = 1 << 28;
/// The same on a CPU adapter.
const CPU_COLD_BYTES: u64 = 1 << 26;

/// What of a plan is timed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// One role.
    pub role: Option<Role>,
    /// One variant.
    pub variant: Option<Variant>,
    /// Sites whose name contains this.
    pub site: Option<String>,
    /// Sites of a matrix of this shape, `9216 x 3072`.
    pub shape: Option<String>,
}

/// Dispatches of a plan that differ in their weights alone.
#[derive(Clone, Debug, Serialize)]
pub struct Site {
    /// The last part of their labels, `qkv` for instance.
    pub site: String,
    /// The kernel's id.
    pub variant: String,
    /// Rows and columns of the matrix, or nothing.
    pub shape: String,
    /// How often a token dispatches it.
    pub dispatches_per_token: usize,
    /// Bytes of weights that one dispatch reads.
    pub weight_bytes: u64,
    /// Operations of one dispatch with these.
    pub weight_flops: u64,
    /// Indices in the plan.
    #[serde(skip)]
    indices: Vec<usize>,
}

impl Site {
    /// Its dispatches, as indices in the plan.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// What one dispatch does with weights.
    pub const fn work(&self) -> Work {
        Work {
            bytes: self.weight_bytes,
            flops: self.weight_flops,
        }
    }
}

/// How the dispatches of a site follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Cold weights, an output of its own for each: throughput.
    Cold,
    /// Cold weights, one output: each waits for the one before.
    ColdDependent,
    /// The same weights again and again, which a cache may hold.
    Warm,
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::ColdDependent => "cold_dependent",
            Self::Warm => "warm",
        }
    }
}

/// What criterion is to do.
#[derive(Clone, Debug)]
pub struct Measuring {
    /// Seconds of measuring for each benchmark.
    pub seconds: f64,
    /// Where criterion keeps its results.
    pub folder: PathBuf,
    /// The modes of each site.
    pub modes: Vec<Mode>,
    /// The baseline that is written.
    pub save: Option<String>,
    /// The baseline that is compared with.
    pub baseline: Option<String>,
    /// What the adapter reads at most, GB/s; none of a CPU, which has no one roof.
    pub roof_gb_s: Option<f64>,
}

/// One sample: this many dispatches took so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Dispatches.
    pub dispatches: u64,
    /// Nanoseconds of all of them.
    pub ns: u64,
}

/// Times of a site.
#[derive(Clone, Debug, Serialize)]
pub struct TimedSite {
    /// Which.
    #[serde(flatten)]
    pub site: Site,
    /// How its dispatches follow each other.
    pub mode: Mode,
    /// Microseconds of one dispatch with criterion's 95 % interval.
    pub us: Interval,
    /// Bytes of weights per second, in GB (10^9).
    pub weight_gb_s: f64,
    /// Operations with weights per second, in GFLOP (10^9).
    pub weight_gflop_s: f64,
    /// Change of the time against the baseline as a ratio less 1, with its interval.
    pub change: Option<Interval>,
    /// Why the time means nothing, where it does not.
    pub void: Option<String>,
    /// Sets of weights in turn.
    pub weight_sets: usize,
    /// Every sample that was measured, those of criterion's warm-up left out.
    pub samples: Vec<Sample>,
}

/// An estimate and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The sites of a plan that the filter takes, in order.
///
/// # Errors
/// When it takes none: lists what there is.
pub fn sites(spec: &ModelSpec, plan: &Plan, filter: &Filter) -> Result<Vec<Site>> {
    let mut sites: Vec<Site> = Vec::new();
    for (index, dispatch) in plan.dispatches.iter().enumerate() {
        let same = |site: &&mut Site| {
            let first = &plan.dispatches[site.indices[0]];
            (first.variant, &first.uniform, first.grid)
                == (dispatch.variant, &dispatch.uniform, dispatch.grid)
                && site.site == name(&dispatch.label)
        };
        if let Some(site) = sites.iter_mut().find(same) {
            site.indices.push(index);
            site.dispatches_per_token += 1;
            continue;
        }
        let matrix = dispatch.buffers.iter().find_map(|&buffer| match buffer {
            Buffer::Param {
                tensor,
                part: Part::Words,
                rows,
                ..
            } => match spec.shape(tensor) {
                Shape::Matrix { rows: all, k } => Some((rows.map_or(all, |rows| rows.count), k)),
                Shape::Vector { .. } | Shape::Floats { .. } => None,
            },
            Buffer::Param { .. }
            | Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::KvCodes { .. }
            | Buffer::KvScales { .. }
            | Buffer::GdnRing { .. }
            | Buffer::GdnState { .. }
            | Buffer::State(_) => None,
        });
        sites.push(Site {
            site: name(&dispatch.label).to_owned(),
            variant: dispatch.variant.id(),
            shape: matrix.map_or_else(String::new, |(rows, k)| format!("{rows} x {k}")),
            dispatches_per_token: 1,
            weight_bytes: dispatch.work.bytes,
            weight_flops: dispatch.work.flops,
            indices: vec![index],
        });
    }
    let all: Vec<String> = sites
        .iter()
        .map(|s| format!("{} ({}, {})", s.site, s.variant, s.shape).replace(", )", ")"))
        .collect();
    sites.retain(|site| {
        let variant = plan.dispatches[site.indices[0]].variant;
        filter.role.is_none_or(|role| role == variant.role)
            && filter.variant.is_none_or(|wanted| wanted == variant)
            && filter
                .site
                .as_ref()
                .is_none_or(|part| site.site.contains(part))
            && (filter.shape.as_ref()).is_none_or(|shape| *shape == site.shape)
    });
    if sites.is_empty() {
        bail!("nothing to time: the sites are {}", all.join(", "));
    }
    Ok(sites)
}

fn name(label: &str) -> &str {
    label.rsplit('.').next().unwrap_or(label)
}

/// Times sites, which the caller has compared with the reference
/// ([`crate::check::model`]): criterion decides how many dispatches a sample takes,
/// `timer` how long they took. After each, what they wrote is compared with what the
/// checked programs write.
///
/// # Errors
/// A baseline that is not there, an output that differs, or a device error.
pub fn time(
    engine: &Engine<'_>,
    arm: &Arm,
    program: &Program,
    timer: &Timer<'_>,
    sites: &[Site],
    measuring: &Measuring,
) -> Result<Vec<TimedSite>> {
    let mut criterion = Criterion::default()
        .without_plots()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs_f64(measuring.seconds))
        .output_directory(&measuring.folder);
    if let Some(name) = &measuring.save {
        criterion = criterion.save_baseline(name.clone());
    }
    if let Some(name) = &measuring.baseline {
        criterion = criterion.retain_baseline(name.clone(), false);
    }
    let cold = cold_bytes(engine.gpu);
    let mut all = Vec::new();
    for &mode in &measuring.modes {
        for site in sites {
            // Without weights there is nothing that could be warm.
            if mode == Mode::Warm && site.weight_bytes == 0 {
                continue;
            }
            let turn = Turn {
                weight_bytes: if mode == Mode::Warm { 0 } else { cold },
                one_output: mode == Mode::ColdDependent,
            };
            let rotation = engine.rotation(arm, program, &site.indices, turn)?;
            let id = format!("{}_{}", site.site, site.variant);
            let folder = measuring.folder.join(mode.name()).join(&id);
            if let Some(baseline) = &measuring.baseline {
                let found = folder.join(baseline);
                ensure!(
                    found.is_dir(),
                    "no baseline `{baseline}` of {id}, {} (expected {}); measure it with \
                     --save-baseline {baseline}",
                    mode.name(),
                    found.display()
                );
            }
            // What is timed is right before, and still is right after.
            engine.require_same(program, &site.indices, &rotation)?;
            let samples = measured(&mut criterion, mode.name(), &id, |dispatches| {
                let count = usize::try_from(dispatches)?;
                repeat(timer, &rotation, count)
            })?;
            engine.require_same(program, &site.indices, &rotation)?;
            let written = measuring.save.as_deref().unwrap_or("new");
            let us = estimate(&folder.join(written).join("estimates.json"), 1e-3)?;
            let change = match measuring.baseline {
                Some(_) => Some(estimate(&folder.join("change/estimates.json"), 1.0)?),
                None => None,
            };
            let weight_gb_s = site.weight_bytes as f64 / us.estimate / 1e3;
            all.push(TimedSite {
                site: site.clone(),
                mode,
                us,
                weight_gb_s,
                weight_gflop_s: site.weight_flops as f64 / us.estimate / 1e3,
                void: past(mode, weight_gb_s, measuring.roof_gb_s),
                change,
                weight_sets: rotation.weights,
                samples,
            });
        }
    }
    Ok(all)
}

/// Why a rate is void: nothing reads cold weights faster than the adapter reads.
fn past(mode: Mode, gb_s: f64, roof_gb_s: Option<f64>) -> Option<String> {
    let of_cold = roof_gb_s.filter(|_| mode != Mode::Warm);
    of_cold.and_then(|roof_gb_s| roof::past(gb_s, roof_gb_s))
}

/// Bytes of weights that are read in turn, so that no cache holds them.
pub(crate) const fn cold_bytes(gpu: &Gpu) -> u64 {
    if gpu.features.cpu {
        CPU_COLD_BYTES
    } else {
        COLD_BYTES
    }
}

/// Time of `count` dispatches of a rotation.
pub(crate) fn repeat(timer: &Timer<'_>, rotation: &Rotation, count: usize) -> Result<Duration> {
    let whole = |pass: &mut wgpu::ComputePass<'_>| rotation.record(rotation.count(), pass);
    let rest = count % rotation.count();
    let part = |pass: &mut wgpu::ComputePass<'_>| rotation.record(rest, pass);
    let mut passes: Vec<&dyn Fn(&mut wgpu::ComputePass<'_>)> =
        vec![&whole; count / rotation.count()];
    if rest > 0 {
        passes.push(&part);
    }
    timer.time(&passes)
}

/// One benchmark of criterion; the samples that it measured.
fn measured(
    criterion: &mut Criterion,
    group: &str,
    id: &str,
    time: impl Fn(u64) -> Result<Duration>,
) -> Result<Vec<Sample>> {
    let samples = RefCell::new(Vec::new());
    let failed = RefCell::new(None);
    let mut group = criterion.benchmark_group(group);
    group.sampling_mode(SamplingMode::Flat);
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|dispatches| match time(dispatches) {
            Ok(taken) => {
                let ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
                samples.borrow_mut().push(Sample { dispatches, ns });
                taken
            }
            Err(error) => {
                failed.borrow_mut().get_or_insert(error);
                // Criterion has no way to stop: the rest is thrown away.
                Duration::from_secs(1)
            }
        });
    });
    group.finish();
    if let Some(error) = failed.into_inner() {
        return Err(error.context(id.to_owned()));
    }
    let mut samples = samples.into_inner();
    // Warming up doubles from one dispatch; the samples are the last, all alike.
    let last = samples
        .last()
        .context("criterion measured nothing")?
        .dispatches;
    let measured = samples
        .iter()
        .rev()
        .take_while(|s| s.dispatches == last)
        .count();
    Ok(samples.split_off(samples.len() - measured))
}

#[derive(Deserialize)]
struct Estimates {
    mean: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
    confidence_interval: Bounds,
}

#[derive(Deserialize)]
struct Bounds {
    lower_bound: f64,
    upper_bound: f64,
}

/// The mean that criterion wrote, times `unit`.
fn estimate(file: &Path, unit: f64) -> Result<Interval> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("criterion's result in {}", file.display()))?;
    let Estimates { mean } = serde_json::from_str(&text)
        .with_context(|| format!("criterion's result in {}", file.display()))?;
    Ok(Interval {
        estimate: mean.point_estimate * unit,
        low: mean.confidence_interval.lower_bound * unit,
        high: mean.confidence_interval.upper_bound * unit,
    })
}

/// Writes every sample as CSV, a row each, with the roof of [`Measuring`].
///
/// # Errors
/// When the file exists or cannot be written.
pub fn write_csv(
    file: &Path,
    engine: &Engine<'_>,
    timer: &Timer<'_>,
    timed: &[TimedSite],
    roof_gb_s: Option<f64>,
) -> Result<()> {
    let rows = timed.iter().flat_map(|timed| {
        let samples = timed.samples.iter().enumerate();
        samples.map(|(sample, &Sample { dispatches, ns })| KernelTime {
            model: engine.weights.spec().id.clone(),
            adapter: engine.gpu.info.name.clone(),
            driver: engine.gpu.info.driver_info.clone(),
            timestamps: timer.grade.timestamps,
            site: timed.site.site.clone(),
            variant: timed.site.variant.clone(),
            shape: timed.site.shape.clone(),
            mode: timed.mode.name().to_owned(),
            dispatches_per_token: timed.site.dispatches_per_token as u64,
            weight_bytes: timed.site.weight_bytes,
            weight_sets: timed.weight_sets as u64,
            sample: sample as u64,
            dispatches,
            ns,
            weight_flops: Some(timed.site.weight_flops),
            roof_gb_s,
        })
    });
    Ok(sheet::write(file, &rows.collect::<Vec<_>>())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cold_rate_past_the_roof_is_void_and_a_warm_one_is_warm() {
        assert_eq!(past(Mode::Cold, 99.0, Some(100.0)), None);
        let void = past(Mode::ColdDependent, 101.0, Some(100.0)).expect("past it");
        assert!(void.contains("101.0 GB/s"), "{void}");
        assert_eq!(past(Mode::Warm, 101.0, Some(100.0)), None, "of a cache");
        assert_eq!(past(Mode::Cold, 101.0, None), None, "no roof");
    }
}
