//! The physical bounds of an adapter, measured: how fast it reads memory, and what a
//! dispatch costs that must wait for the one before.
//!
//! Both are slopes: the time of twice the work less that of the work, so that what a
//! submit costs falls out. Both count what they did on the GPU and are void where the
//! count is off.

use crate::{
    counted::{Chain, Counter, Kernel},
    device::Gpu,
};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use std::time::Instant;

/// Bytes that are read in turn: four times the last-level cache of any GPU in sight.
const WORKING_SET: u64 = 1 << 30;
/// The same on a CPU adapter, whose loads are slower than its memory.
const CPU_WORKING_SET: u64 = 1 << 26;
/// Largest buffer of the set.
const BUFFER_BYTES: u64 = 1 << 28;
/// Invocations of a workgroup of the read kernel.
const THREADS: u64 = 256;
/// 16-byte loads in flight for each invocation, and workgroups of a dispatch, that are
/// tried; the best is the roof.
const LOADS: [u32; 3] = [2, 4, 8];
const GROUPS: [u32; 3] = [1024, 4096, 16_384];
/// Shortest time of the smaller amount of work, in nanoseconds.
const LEAST_NS: u64 = 5_000_000;
/// Pairs of an amount of work and of twice as much.
const PAIRS: usize = 9;
/// The same while forms are compared.
const TRIAL_PAIRS: usize = 3;

/// What an adapter can do at best.
#[derive(Clone, Debug, Serialize)]
pub struct Roof {
    /// Bytes per second that a kernel reads from memory, in GB (10^9).
    pub read_gb_s: f64,
    /// The kernel and grid that read fastest.
    pub read: ReadForm,
    /// Bytes that were read in turn.
    pub working_set_bytes: u64,
    /// Microseconds of one dispatch of a chain in which each needs the one before.
    pub dispatch_us: f64,
    /// Nanoseconds of each pair of the best form: of the work, and of twice the work.
    pub read_pairs_ns: Vec<[u64; 2]>,
    /// Passes over the working set in the first of a pair.
    pub read_passes: u32,
    /// The same of the chain of dispatches.
    pub dispatch_pairs_ns: Vec<[u64; 2]>,
    /// Dispatches in the first of a pair.
    pub dispatches: u32,
}

/// How the read kernel was written and dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReadForm {
    /// 16-byte loads in flight for each invocation.
    pub loads: u32,
    /// Workgroups of 256 invocations.
    pub workgroups: u32,
}

/// Runs the read kernel once in every form that fits the adapter, and gives those: each
/// read every word of the set.
///
/// # Errors
/// A device error, or a count that is off.
pub fn verify(gpu: &Gpu) -> Result<Vec<ReadForm>> {
    verified(gpu, &WorkingSet::new(gpu)?)
}

fn verified(gpu: &Gpu, set: &WorkingSet) -> Result<Vec<ReadForm>> {
    let mut forms = Vec::new();
    for loads in LOADS {
        let reader = Reader::new(gpu, set, loads)?;
        for workgroups in GROUPS {
            let form = ReadForm { loads, workgroups };
            if set.divides(form) {
                timed(gpu, 1, |passes, pass| {
                    reader.record(passes, workgroups, pass)
                })?;
                set.require_sum(gpu, 1)
                    .with_context(|| format!("{form:?}"))?;
                forms.push(form);
            }
        }
    }
    Ok(forms)
}

/// Measures both bounds; `phase` is told what is going on.
///
/// # Errors
/// A device error, or a count that shows that the work was not done.
pub fn measure(gpu: &Gpu, mut phase: impl FnMut(&str)) -> Result<Roof> {
    phase("filling the buffers");
    let set = WorkingSet::new(gpu)?;
    phase("checking the kernels");
    let forms = verified(gpu, &set)?;
    let mut best: Option<(ReadForm, f64)> = None;
    for form in forms {
        let ReadForm { loads, workgroups } = form;
        phase(&format!(
            "reading with {loads} loads, {workgroups} workgroups"
        ));
        let reader = Reader::new(gpu, &set, loads)?;
        let ns = reader.slope(gpu, &set, workgroups, TRIAL_PAIRS)?.ns();
        if best.is_none_or(|(_, least)| ns < least) {
            best = Some((form, ns));
        }
    }
    let (read, _) = best.context("no form of the read kernel fits the buffers")?;
    // The winner again: what chose it was partly luck.
    phase("reading with the best of these");
    let reader = Reader::new(gpu, &set, read.loads)?;
    let read_slope = reader.slope(gpu, &set, read.workgroups, PAIRS)?;
    phase("chaining dispatches");
    let steps = Chain::new(gpu)?;
    let record = |count: u32, pass: &mut wgpu::ComputePass<'_>| steps.record(count, pass);
    let chain = slope(gpu, 256, PAIRS, record, |count| {
        steps.counter.require(gpu, count)
    })?;
    Ok(Roof {
        read_gb_s: set.bytes() as f64 / read_slope.ns(),
        read,
        working_set_bytes: set.bytes(),
        dispatch_us: chain.ns() / 1e3,
        read_pairs_ns: read_slope.pairs,
        read_passes: read_slope.amount,
        dispatch_pairs_ns: chain.pairs,
        dispatches: chain.amount,
    })
}

/// The read kernel, bound to every buffer of the set.
struct Reader {
    kernel: Kernel,
    groups: Vec<wgpu::BindGroup>,
}

impl Reader {
    fn new(gpu: &Gpu, set: &WorkingSet, loads: u32) -> Result<Self> {
        let kernel = Kernel::new(gpu, "read", &read_text(loads))?;
        let bound = set.buffers.iter();
        let groups = bound.map(|buffer| kernel.bind(gpu, &[buffer, &set.total.buffer]));
        Ok(Self {
            groups: groups.collect(),
            kernel,
        })
    }

    /// Passes over the whole set.
    fn record(&self, passes: u32, workgroups: u32, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.kernel.pipeline);
        for group in (0..passes).flat_map(|_| &self.groups) {
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(workgroups, 1, 1);
        }
    }

    fn slope(&self, gpu: &Gpu, set: &WorkingSet, workgroups: u32, pairs: usize) -> Result<Slope> {
        let record =
            |passes: u32, pass: &mut wgpu::ComputePass<'_>| self.record(passes, workgroups, pass);
        slope(gpu, 1, pairs, record, |passes| set.require_sum(gpu, passes))
    }
}

fn read_text(loads: u32) -> String {
    format!(
        "const LOADS = {loads}u;\n{}",
        include_str!("counted/read.wgsl")
    )
}

/// Times of an amount of work and of twice as much.
#[derive(Debug)]
struct Slope {
    amount: u32,
    pairs: Vec<[u64; 2]>,
}

impl Slope {
    /// Nanoseconds of one unit: the median of the differences.
    fn ns(&self) -> f64 {
        let difference = |[once, twice]: &[u64; 2]| *twice as f64 - *once as f64;
        let mut all: Vec<f64> = self.pairs.iter().map(difference).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2] / f64::from(self.amount)
    }
}

/// Nanoseconds of a submit of this amount of work.
fn timed(gpu: &Gpu, amount: u32, record: impl Fn(u32, &mut wgpu::ComputePass<'_>)) -> Result<u64> {
    let mut encoder = gpu
        .device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    record(amount, &mut pass);
    drop(pass);
    let start = Instant::now();
    gpu.run("roof", encoder)?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// `count` pairs of `record`, of as many units of work as last a moment; `require` checks
/// after each run that all of them were done.
fn slope(
    gpu: &Gpu,
    mut amount: u32,
    count: usize,
    record: impl Fn(u32, &mut wgpu::ComputePass<'_>),
    require: impl Fn(u32) -> Result<()>,
) -> Result<Slope> {
    let timed = |amount: u32| -> Result<u64> {
        let ns = timed(gpu, amount, &record)?;
        require(amount)?;
        Ok(ns)
    };
    // Finds the amount: the shorter of two times, since the first of a kernel is long.
    while timed(amount)?.min(timed(amount)?) < LEAST_NS {
        amount = amount.checked_mul(2).context("work that takes no time")?;
    }
    let mut pairs = Vec::new();
    for i in 0..count {
        // A drift of the clock speeds up one of both: by turns.
        let pair = if i % 2 == 0 {
            let once = timed(amount)?;
            [once, timed(2 * amount)?]
        } else {
            let twice = timed(2 * amount)?;
            [timed(amount)?, twice]
        };
        pairs.push(pair);
    }
    let slope = Slope { amount, pairs };
    ensure!(
        slope.ns() > 0.0,
        "twice the work took no longer: {:?}",
        slope.pairs
    );
    Ok(slope)
}

/// Buffers of seeded words, together larger than the last-level cache.
struct WorkingSet {
    buffers: Vec<wgpu::Buffer>,
    buffer_bytes: u64,
    /// The sum of a buffer's words.
    sum: u32,
    /// Where kernels count.
    total: Counter,
}

impl WorkingSet {
    fn new(gpu: &Gpu) -> Result<Self> {
        let set = if gpu.features.cpu {
            CPU_WORKING_SET
        } else {
            WORKING_SET
        };
        let most = gpu
            .features
            .max_storage_binding_bytes
            .min(BUFFER_BYTES.min(set));
        let least = THREADS * 16 * u64::from(LOADS[0] * GROUPS[0]);
        if most < least {
            bail!("the adapter binds {most} bytes, reading takes buffers of {least}");
        }
        // The largest power of two that can be bound: every grid divides it.
        let buffer_bytes = 1 << most.ilog2();
        let mut state = 1_u32;
        let words: Vec<u32> = (0..buffer_bytes / 4)
            .map(|_| {
                // A full-period generator of 32 bits (Numerical Recipes).
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state
            })
            .collect();
        let sum = words
            .iter()
            .fold(0_u32, |sum, word| sum.wrapping_add(*word));
        let words_buffer = |_| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("words"),
                size: buffer_bytes,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let buffers: Vec<wgpu::Buffer> = gpu.guarded("buffers to read", || {
            Ok((0..set / buffer_bytes).map(words_buffer).collect())
        })?;
        for buffer in &buffers {
            gpu.guarded("filling a buffer", || {
                gpu.queue
                    .write_buffer(buffer, 0, bytemuck::cast_slice(&words));
                gpu.queue.submit([]);
                gpu.device.poll(wgpu::PollType::wait_indefinitely())?;
                Ok(())
            })?;
        }
        Ok(Self {
            buffers,
            buffer_bytes,
            sum,
            total: Counter::new(gpu)?,
        })
    }

    fn bytes(&self) -> u64 {
        self.buffer_bytes * self.buffers.len() as u64
    }

    /// Whether the form reads every byte of a buffer.
    fn divides(&self, form: ReadForm) -> bool {
        let step = 16 * THREADS * u64::from(form.loads) * u64::from(form.workgroups);
        self.buffer_bytes.is_multiple_of(step)
    }

    /// Requires that the words of all buffers were added `passes` times.
    fn require_sum(&self, gpu: &Gpu, passes: u32) -> Result<()> {
        let all = self.sum.wrapping_mul(self.buffers.len() as u32);
        ensure!(all != 0, "void: a sum of zero shows nothing");
        self.total.require(gpu, all.wrapping_mul(passes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_the_median_difference_of_a_unit() {
        let slope = Slope {
            amount: 10,
            pairs: vec![[150, 250], [100, 900], [150, 270]],
        };
        assert!((slope.ns() - 12.0).abs() < 1e-12, "{}", slope.ns());
    }

    #[test]
    fn every_number_of_loads_has_a_grid_that_divides_the_largest_buffer() {
        for loads in LOADS {
            let fits = |workgroups: &u32| {
                let step = 16 * THREADS * u64::from(loads) * u64::from(*workgroups);
                BUFFER_BYTES.is_multiple_of(step)
            };
            assert!(GROUPS.iter().any(fits), "{loads} loads");
        }
    }
}
