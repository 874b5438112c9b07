//! How long work takes on the GPU: by its own timestamps where they can be believed, by
//! the wall clock elsewhere.
//!
//! Timestamps are believed after a test of known work: they must be there, rise, lie
//! within the wall time, grow with the work, and not give a light pass the time of a
//! heavy one before it.

use crate::{counted::Chain, device::Gpu};
use anyhow::{Context as _, Result};
use results::record::TimerGrade;
use std::time::{Duration, Instant};

/// Dispatches of the known work, once.
const KNOWN: u32 = 2_000;
/// Repetitions of each amount of known work; the shortest time counts.
const TRIALS: usize = 5;
/// Largest relative error of the ratio of two amounts of work.
const LINEAR: f64 = 0.1;
/// Largest share that a light pass may take of the heavy one before it.
const LIGHT: f64 = 0.3;

/// Measures submits.
#[derive(Debug)]
pub struct Timer<'g> {
    gpu: &'g Gpu,
    stamps: Option<Stamps>,
    /// What the test found.
    pub grade: TimerGrade,
}

/// Times of one submit.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Ticks at the beginning and at the end, where there are timestamps.
    ticks: Option<[u64; 2]>,
    wall: Duration,
}

impl<'g> Timer<'g> {
    /// Tests the timestamps of a device.
    ///
    /// # Errors
    /// A device error.
    pub fn new(gpu: &'g Gpu) -> Result<Self> {
        let features = gpu.device.features();
        let has = features.contains(wgpu::Features::TIMESTAMP_QUERY);
        let mut timer = Self {
            gpu,
            stamps: has.then(|| Stamps::new(gpu)),
            grade: TimerGrade {
                timestamps: false,
                reasons: vec![],
                tick_ns: f64::from(gpu.queue.get_timestamp_period()),
                known_work_ns: [[0; 2]; 3],
            },
        };
        if !has {
            timer.grade.reasons.push("the adapter has none".into());
            return Ok(timer);
        }
        timer.test()?;
        if !timer.grade.timestamps {
            timer.stamps = None;
        }
        Ok(timer)
    }

    fn test(&mut self) -> Result<()> {
        let chain = &Chain::new(self.gpu)?;
        let record = |count: u32| move |pass: &mut wgpu::ComputePass<'_>| chain.record(count, pass);
        let mut reasons = Vec::new();
        // The first one warms up.
        self.submit(&[&record(KNOWN)])?;
        let mut work = [[0; 2]; 3];
        for (amount, times) in [1, 2, 4].into_iter().zip(&mut work) {
            let mut least = [u64::MAX; 2];
            for _ in 0..TRIALS {
                let taken = self.submit(&[&record(amount * KNOWN)])?;
                let [begin, end] = taken.ticks.unwrap_or_default();
                if begin == 0 || end <= begin {
                    reasons.push(format!("a pass from {begin} to {end}"));
                }
                let found = [self.nanoseconds(begin, end), nanos(taken.wall)];
                least = [least[0].min(found[0]), least[1].min(found[1])];
            }
            *times = least;
        }
        let [once, twice, four] = work.map(|[gpu, _]| gpu as f64);
        for ([gpu, wall], amount) in work.iter().zip([1, 2, 4]) {
            if gpu > wall {
                reasons.push(format!(
                    "{gpu} ns of GPU in {wall} ns of wall time, work {amount}"
                ));
            }
        }
        for (ratio, truth) in [(twice / once, 2.0), (four / once, 4.0)] {
            let error = (ratio - truth).abs();
            if error.is_nan() || error > LINEAR * truth {
                reasons.push(format!(
                    "{truth} times the work took {ratio:.2} times as long"
                ));
            }
        }
        let (heavy, light) = (record(4 * KNOWN), record(1));
        let [begin, end] = self.after(&heavy, &light)?;
        let light = self.nanoseconds(begin, end) as f64;
        if light > LIGHT * four {
            reasons.push(format!(
                "a light pass after a heavy one took {light} ns of its {four}"
            ));
        }
        self.grade.known_work_ns = work;
        self.grade.timestamps = reasons.is_empty();
        reasons.dedup();
        reasons.truncate(5);
        self.grade.reasons = reasons;
        Ok(())
    }

    fn nanoseconds(&self, begin: u64, end: u64) -> u64 {
        (end.saturating_sub(begin) as f64 * self.grade.tick_ns) as u64
    }

    /// Time of passes that are submitted together, each from a command buffer of its own.
    ///
    /// # Errors
    /// A device error.
    pub fn time(&self, passes: &[&dyn Fn(&mut wgpu::ComputePass<'_>)]) -> Result<Duration> {
        let times = self.submit(passes)?;
        Ok(match times.ticks {
            Some([begin, end]) => Duration::from_nanos(self.nanoseconds(begin, end)),
            None => times.wall,
        })
    }

    fn submit(&self, passes: &[&dyn Fn(&mut wgpu::ComputePass<'_>)]) -> Result<Times> {
        let last = passes.len().saturating_sub(1);
        let mut commands = Vec::with_capacity(passes.len() + 1);
        for (i, record) in passes.iter().enumerate() {
            let mut encoder = self.encoder();
            let edge = (i == 0 || i == last).then_some(&self.stamps);
            let writes =
                edge.and_then(Option::as_ref)
                    .map(|stamps| wgpu::ComputePassTimestampWrites {
                        query_set: &stamps.queries,
                        beginning_of_pass_write_index: (i == 0).then_some(0),
                        end_of_pass_write_index: (i == last).then_some(1),
                    });
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: writes,
            });
            record(&mut pass);
            drop(pass);
            commands.push(encoder.finish());
        }
        self.timed(commands)
    }

    /// Ticks of `light`, a pass after `heavy` in the same command buffer.
    fn after(
        &self,
        heavy: &dyn Fn(&mut wgpu::ComputePass<'_>),
        light: &dyn Fn(&mut wgpu::ComputePass<'_>),
    ) -> Result<[u64; 2]> {
        let mut encoder = self.encoder();
        for (record, stamped) in [(heavy, false), (light, true)] {
            let stamps = self.stamps.as_ref().filter(|_| stamped);
            let writes = stamps.map(|stamps| wgpu::ComputePassTimestampWrites {
                query_set: &stamps.queries,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            });
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: writes,
            });
            record(&mut pass);
        }
        let times = self.timed(vec![encoder.finish()])?;
        Ok(times.ticks.unwrap_or_default())
    }

    fn timed(&self, mut commands: Vec<wgpu::CommandBuffer>) -> Result<Times> {
        if let Some(stamps) = &self.stamps {
            let mut encoder = self.encoder();
            encoder.resolve_query_set(&stamps.queries, 0..2, &stamps.resolved, 0);
            commands.push(encoder.finish());
        }
        let start = Instant::now();
        self.gpu.guarded("timing", || {
            self.gpu.queue.submit(commands);
            self.gpu
                .device
                .poll(wgpu::PollType::wait_indefinitely())
                .context("waiting for the device")?;
            Ok(())
        })?;
        let wall = start.elapsed();
        let ticks = match &self.stamps {
            Some(stamps) => {
                let bytes = self.gpu.read(&stamps.resolved, 0, 16)?;
                let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&bytes);
                Some([ticks[0], ticks[1]])
            }
            None => None,
        };
        Ok(Times { ticks, wall })
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A pair of timestamps.
#[derive(Debug)]
struct Stamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl Stamps {
    fn new(gpu: &Gpu) -> Self {
        Self {
            queries: gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size: 256,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
        }
    }
}
