//! The sentinel: a fixed chain of dispatches that no flag changes, timed after each
//! block. It follows the machine, not the code.

use crate::{counted::Chain, device::Gpu};
use anyhow::{Context as _, Result};
use std::time::{Duration, Instant};

/// What the sentinel lasts at least: long against what a submit costs.
const LEAST: Duration = Duration::from_millis(16);
/// The same on a CPU adapter, whose cores it shares with the system.
const CPU_LEAST: Duration = Duration::from_millis(60);

/// Runs of which the median counts.
const RUNS: usize = 5;

/// A chain of dispatches of a fixed length.
#[derive(Debug)]
pub(super) struct Sentinel {
    chain: Chain,
    count: u32,
}

impl Sentinel {
    /// Finds the length that lasts long enough here.
    ///
    /// # Errors
    /// A device error.
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let least = if gpu.features.cpu { CPU_LEAST } else { LEAST };
        let chain = Chain::new(gpu)?;
        let mut sentinel = Self { chain, count: 256 };
        // The shorter of two times, since the first of a kernel is long.
        while u128::from(sentinel.once(gpu)?.min(sentinel.once(gpu)?)) < least.as_nanos() {
            let twice = sentinel.count.checked_mul(2);
            sentinel.count = twice.context("work that takes no time")?;
        }
        Ok(sentinel)
    }

    /// Median wall time of a few runs of the chain, nanoseconds.
    ///
    /// # Errors
    /// A device error, or a count that is off.
    pub(super) fn time(&self, gpu: &Gpu) -> Result<u64> {
        let mut times = [0; RUNS];
        for time in &mut times {
            *time = self.once(gpu)?;
        }
        times.sort_unstable();
        Ok(times[RUNS / 2])
    }

    /// Wall time of the chain, whose dispatches are counted.
    fn once(&self, gpu: &Gpu) -> Result<u64> {
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        self.chain.record(self.count, &mut pass);
        drop(pass);
        // Recorded before the clock starts: the device is followed, not the encoder.
        let commands = encoder.finish();
        let start = Instant::now();
        gpu.submit("sentinel", commands)?;
        let taken = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.chain.counter.require(gpu, self.count)?;
        Ok(taken)
    }
}
