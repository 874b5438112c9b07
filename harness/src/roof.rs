//! The physical bounds of an adapter, measured: how fast it reads memory, and what a
//! dispatch costs that must wait for the one before.
//!
//! Both are slopes: the time of twice the work less that of the work, so that what a
//! submit costs falls out. Both count what they did on the GPU and are void where the
//! count is off.

use crate::{
    bench::WARM_UP,
    counted::{Chain, Counter, Kernel},
    device::Gpu,
};
use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use std::{fmt, time::Instant};

/// Bytes that are read in turn: four times the last-level cache of any GPU in sight.
const WORKING_SET: u64 = 1 << 30;
/// The same on a CPU adapter, whose loads are slower than its memory.
const CPU_WORKING_SET: u64 = 1 << 24;
/// Largest buffer of the set.
const BUFFER_BYTES: u64 = 1 << 28;
/// Invocations of a workgroup of the read kernel.
const THREADS: u64 = 256;
/// 16-byte loads of each invocation that are tried. The grid follows: every invocation
/// makes its loads and is done, without a loop that a compiler could bound or not unroll.
const LOADS: [u32; 5] = [4, 8, 16, 32, 64];
/// Words that are counted into in turn: dispatches between two that must wait.
const COUNTERS: usize = 64;
/// Forms that are measured again, of which the best is the roof: a bound is to be wrong
/// upwards.
const FINALISTS: usize = 3;
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
    /// 16-byte loads of each invocation, all in flight at once.
    pub loads: u32,
    /// How they lie to each other.
    pub order: Order,
    /// Workgroups of 256 invocations.
    pub workgroups: u32,
}

/// How the loads of one invocation lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// As far from each other as the whole grid reads at once.
    Strided,
    /// Side by side with those of its workgroup, which reads one piece of the buffer.
    Tiled,
}

/// Runs the read kernel once in every form that fits the adapter, and gives those: each
/// read every word of the set.
///
/// # Errors
/// A device error, or a count that is off.
pub fn verify(gpu: &Gpu) -> Result<Vec<ReadForm>> {
    let set = WorkingSet::new(gpu)?;
    let readers = verified(gpu, &set)?;
    Ok(readers.into_iter().map(|reader| reader.form).collect())
}

fn verified(gpu: &Gpu, set: &WorkingSet) -> Result<Vec<Reader>> {
    let mut readers = Vec::new();
    for form in set.forms() {
        let reader = Reader::new(gpu, set, form)?;
        timed(gpu, 1, |passes, pass| reader.record(passes, pass))?;
        set.require_sum(gpu, 1)
            .with_context(|| format!("{form:?}"))?;
        readers.push(reader);
    }
    Ok(readers)
}

/// Measures both bounds; `phase` is told what is going on.
///
/// # Errors
/// A device error, or a count that shows that the work was not done.
pub fn measure(gpu: &Gpu, mut phase: impl FnMut(&str)) -> Result<Roof> {
    phase("filling the buffers");
    let set = WorkingSet::new(gpu)?;
    phase("checking the kernels");
    let readers = verified(gpu, &set)?;
    phase("warming up");
    let begin = Instant::now();
    for reader in readers.iter().cycle() {
        if begin.elapsed() >= WARM_UP {
            break;
        }
        timed(gpu, 1, |passes, pass| reader.record(passes, pass))?;
        set.require_sum(gpu, 1)?;
    }
    let mut tried = Vec::new();
    for reader in &readers {
        phase(&format!("reading with {}", reader.form));
        tried.push((reader.slope(gpu, &set, TRIAL_PAIRS)?.ns(), reader));
    }
    tried.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    phase("reading with the best of these");
    let mut best: Option<(Slope, ReadForm)> = None;
    for (_, reader) in tried.into_iter().take(FINALISTS) {
        let slope = reader.slope(gpu, &set, PAIRS)?;
        if best
            .as_ref()
            .is_none_or(|(least, _)| slope.ns() < least.ns())
        {
            best = Some((slope, reader.form));
        }
    }
    let (read_slope, read) = best.context("no form of the read kernel fits the buffers")?;
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

/// The read kernel in one form.
struct Reader {
    form: ReadForm,
    kernel: Kernel,
    /// The buffers in turn, each with a word to count into of its own: a dispatch that
    /// writes what another wrote waits for it, and the memory would idle.
    groups: Vec<wgpu::BindGroup>,
    /// Dispatches of a pass over the set.
    buffers: usize,
}

impl Reader {
    fn new(gpu: &Gpu, set: &WorkingSet, form: ReadForm) -> Result<Self> {
        let kernel = Kernel::new(gpu, "read", &read_text(form))?;
        let buffers = set.buffers.iter().cycle();
        let groups = buffers
            .zip(&set.total.buffers)
            .map(|(buffer, word)| kernel.bind(gpu, &[buffer, word]));
        Ok(Self {
            form,
            groups: groups.collect(),
            kernel,
            buffers: set.buffers.len(),
        })
    }

    /// Passes over the whole set.
    fn record(&self, passes: u32, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.kernel.pipeline);
        let dispatches = passes as usize * self.buffers;
        for group in self.groups.iter().cycle().take(dispatches) {
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(self.form.workgroups, 1, 1);
        }
    }

    fn slope(&self, gpu: &Gpu, set: &WorkingSet, pairs: usize) -> Result<Slope> {
        let record = |passes: u32, pass: &mut wgpu::ComputePass<'_>| self.record(passes, pass);
        slope(gpu, 1, pairs, record, |passes| set.require_sum(gpu, passes))
    }
}

impl fmt::Display for ReadForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::Strided => "strided",
            Order::Tiled => "tiled",
        };
        let Self {
            loads, workgroups, ..
        } = self;
        write!(f, "{loads} {order} loads, {workgroups} workgroups")
    }
}

fn read_text(form: ReadForm) -> String {
    let [piece, step] = match form.order {
        Order::Strided => ["THREADS", "num_wg.x * THREADS"],
        Order::Tiled => ["THREADS * LOADS", "THREADS"],
    };
    let mut loads = format!("  let first = wg.x * {piece} + tid;\n  let step = {step};\n");
    for n in 0..form.loads {
        loads.push_str(&format!("  let w{n} = words[first + {n}u * step];\n"));
    }
    let words: Vec<String> = (0..form.loads).map(|n| format!("w{n}")).collect();
    loads.push_str(&format!("  let sum = {};", words.join(" + ")));
    let text = include_str!("counted/read.wgsl").replacen("  // LOADS", &loads, 1);
    let each = form.loads;
    format!("const THREADS = {THREADS}u;\nconst LOADS = {each}u;\n{text}")
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
    /// Most workgroups of a dispatch.
    most_workgroups: u32,
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
        let least = THREADS * 16 * u64::from(LOADS[LOADS.len() - 1]);
        if most < least {
            bail!("the adapter binds {most} bytes, reading takes buffers of {least}");
        }
        // The largest power of two that can be bound: every form divides it.
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
            buffer_bytes,
            most_workgroups: gpu.features.max_workgroups_per_dimension,
            sum,
            // Whole turns of the buffers.
            total: Counter::new(gpu, COUNTERS.next_multiple_of(buffers.len()))?,
            buffers,
        })
    }

    fn bytes(&self) -> u64 {
        self.buffer_bytes * self.buffers.len() as u64
    }

    /// The forms that read every byte of a buffer.
    fn forms(&self) -> Vec<ReadForm> {
        let form = |loads: u32, order: Order| {
            let workgroups = self.buffer_bytes / (16 * THREADS * u64::from(loads));
            Some(ReadForm {
                loads,
                order,
                workgroups: u32::try_from(workgroups).ok()?,
            })
            .filter(|form| form.workgroups <= self.most_workgroups)
        };
        LOADS
            .into_iter()
            .flat_map(|loads| [Order::Strided, Order::Tiled].map(|order| form(loads, order)))
            .flatten()
            .collect()
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
    fn every_form_names_each_of_its_loads_once() {
        for loads in LOADS {
            for order in [Order::Strided, Order::Tiled] {
                let workgroups = 1;
                let text = read_text(ReadForm {
                    loads,
                    order,
                    workgroups,
                });
                let count = text.matches("= words[first + ").count();
                assert_eq!(count, loads as usize, "{text}");
                assert!(!text.contains("for ("), "a loop may be bounded: {text}");
            }
        }
    }
}
