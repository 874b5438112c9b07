//! The adapter and the device: choosing, opening, and what they offer.

use anyhow::{Context as _, Result, bail};
use kernels::Features;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// An open device with its queue, and every error it raised outside a scope.
#[derive(Debug)]
pub struct Gpu {
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// Identity of the adapter.
    pub info: wgpu::AdapterInfo,
    /// What kernels are chosen by.
    pub features: Features,
    stray: Arc<Mutex<Vec<String>>>,
}

/// Only real GPU interfaces: no OpenGL, whose libraries print to the terminal.
fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    descriptor.flags = wgpu::InstanceFlags::empty();
    wgpu::Instance::new(descriptor)
}

/// Every adapter of this machine, best first: discrete, integrated, virtual, CPU.
pub fn adapters() -> Vec<wgpu::Adapter> {
    let mut found = pollster::block_on(instance().enumerate_adapters(wgpu::Backends::all()));
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Cpu => 3,
        wgpu::DeviceType::Other => 4,
    });
    found
}

/// What kernels are chosen by, as an adapter offers it.
pub fn features_of(adapter: &wgpu::Adapter) -> Features {
    features_within(adapter, &adapter.limits())
}

/// The same of a device with these limits.
fn features_within(adapter: &wgpu::Adapter, limits: &wgpu::Limits) -> Features {
    let (info, features) = (adapter.get_info(), adapter.features());
    Features {
        cpu: info.device_type == wgpu::DeviceType::Cpu,
        shader_f16: features.contains(wgpu::Features::SHADER_F16),
        subgroup_size: features
            .contains(wgpu::Features::SUBGROUP)
            .then_some((info.subgroup_min_size, info.subgroup_max_size)),
        max_workgroups_per_dimension: limits.max_compute_workgroups_per_dimension,
        max_storage_binding_bytes: limits.max_storage_buffer_binding_size,
        max_workgroup_storage_bytes: limits.max_compute_workgroup_storage_size,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_texture_dimension_2d: limits.max_texture_dimension_2d,
    }
}

/// The limits that matter to kernels, by their WebGPU names.
pub fn limits_of(limits: &wgpu::Limits) -> BTreeMap<String, u64> {
    BTreeMap::from(
        [
            ("maxBufferSize", limits.max_buffer_size),
            (
                "maxStorageBufferBindingSize",
                limits.max_storage_buffer_binding_size,
            ),
            (
                "maxStorageBuffersPerShaderStage",
                u64::from(limits.max_storage_buffers_per_shader_stage),
            ),
            (
                "maxComputeWorkgroupsPerDimension",
                u64::from(limits.max_compute_workgroups_per_dimension),
            ),
            (
                "maxComputeWorkgroupStorageSize",
                u64::from(limits.max_compute_workgroup_storage_size),
            ),
            (
                "maxComputeInvocationsPerWorkgroup",
                u64::from(limits.max_compute_invocations_per_workgroup),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    )
}

/// Picks the adapter whose name contains `wanted`, or the best one.
///
/// # Errors
/// Without any adapter, or without one of that name; lists what exists.
pub fn pick(wanted: Option<&str>) -> Result<wgpu::Adapter> {
    let mut found = adapters();
    if found.is_empty() {
        bail!(
            "no Vulkan, Metal or DX12 adapter found; on Debian install the software driver with \
             `sudo apt-get update && sudo apt-get install -y mesa-vulkan-drivers libvulkan1`"
        );
    }
    let Some(wanted) = wanted else {
        return Ok(found.remove(0));
    };
    let names: Vec<String> = found.iter().map(|a| a.get_info().name).collect();
    let at = names
        .iter()
        .position(|name| name.to_lowercase().contains(&wanted.to_lowercase()))
        .with_context(|| {
            format!(
                "no adapter named like `{wanted}`; this machine has: {}",
                names.join(", ")
            )
        })?;
    Ok(found.remove(at))
}

impl Gpu {
    /// Opens the best adapter, or the one named, with everything it offers that
    /// kernels use.
    ///
    /// # Errors
    /// Without an adapter, or when the device cannot be created.
    pub fn open(wanted: Option<&str>) -> Result<Self> {
        let adapter = pick(wanted)?;
        let limits = adapter.limits();
        Self::with_limits(&adapter, limits)
    }

    /// Opens the best adapter, or the one named, with no more than every WebGPU
    /// device offers: 65,535 workgroups per dimension, 128 MiB in a binding, eight
    /// storage buffers, 16 KiB of workgroup memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn with_default_limits(wanted: Option<&str>) -> Result<Self> {
        Self::with_limits(&pick(wanted)?, wgpu::Limits::default())
    }

    fn with_limits(adapter: &wgpu::Adapter, limits: wgpu::Limits) -> Result<Self> {
        let info = adapter.get_info();
        let features = features_within(adapter, &limits);
        let useful =
            wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY;
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("zerotvm"),
            required_features: adapter.features() & useful,
            required_limits: limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        }))
        .with_context(|| format!("cannot open the device of adapter {}", info.name))?;
        let stray = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&stray);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            if let Ok(mut errors) = sink.lock() {
                errors.push(error.to_string());
            }
        }));
        let sink = Arc::clone(&stray);
        device.set_device_lost_callback(move |reason, message| {
            if let (Ok(mut errors), wgpu::DeviceLostReason::Unknown) = (sink.lock(), reason) {
                errors.push(format!("device lost: {message}"));
            }
        });
        Ok(Self {
            device,
            queue,
            info,
            features,
            stray,
        })
    }

    /// Runs `work` inside error scopes; any validation, memory or internal error
    /// in it, or raised beside it, is an error here.
    ///
    /// # Errors
    /// What `work` returned, or what the device reported.
    pub fn guarded<T>(&self, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let scopes = [
            self.device.push_error_scope(wgpu::ErrorFilter::Internal),
            self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory),
            self.device.push_error_scope(wgpu::ErrorFilter::Validation),
        ];
        let result = work();
        // Every scope is popped, the innermost first, whatever they hold.
        let mut errors: Vec<String> = scopes
            .into_iter()
            .rev()
            .filter_map(|scope| pollster::block_on(scope.pop()))
            .map(|error| error.to_string())
            .collect();
        if let Ok(mut stray) = self.stray.lock() {
            errors.append(&mut stray);
        }
        if !errors.is_empty() {
            bail!("{what}: the device reported: {}", errors.join("; "));
        }
        result
    }

    /// Submits and waits until the work is done.
    ///
    /// # Errors
    /// When the device is lost or reports an error.
    pub fn run(&self, what: &str, encoder: wgpu::CommandEncoder) -> Result<()> {
        self.guarded(what, || self.finished(what, encoder.finish()))
    }

    /// Submits without waiting.
    ///
    /// # Errors
    /// When the device reports an error of the submit.
    pub fn begin(
        &self,
        what: &str,
        encoder: wgpu::CommandEncoder,
    ) -> Result<wgpu::SubmissionIndex> {
        self.guarded(what, || Ok(self.queue.submit([encoder.finish()])))
    }

    /// Waits until a submit is done.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn wait(&self, what: &str, submission: wgpu::SubmissionIndex) -> Result<()> {
        self.guarded(what, || {
            self.device
                .poll(wgpu::PollType::Wait {
                    submission_index: Some(submission),
                    timeout: None,
                })
                .with_context(|| format!("{what}: waiting for the device"))?;
            Ok(())
        })
    }

    /// The same of commands that are recorded already.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn submit(&self, what: &str, commands: wgpu::CommandBuffer) -> Result<()> {
        self.guarded(what, || self.finished(what, commands))
    }

    fn finished(&self, what: &str, commands: wgpu::CommandBuffer) -> Result<()> {
        self.queue.submit([commands]);
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .with_context(|| format!("{what}: waiting for the device"))?;
        Ok(())
    }

    /// Reads bytes back from a buffer.
    ///
    /// # Errors
    /// When the device reports an error.
    pub fn read(&self, buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("readback"),
            size: bytes,
            usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
            mapped_at_creation: false,
        });
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, Some(bytes));
        self.run("readback", encoder)?;
        let slice = staging.slice(..);
        let (send, receive) = std::sync::mpsc::channel();
        slice.map_async(wgpu::MapMode::Read, move |result| {
            let _ = send.send(result);
        });
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        receive.recv().context("the map callback was dropped")??;
        let bytes = slice.get_mapped_range()?.to_vec();
        Ok(bytes)
    }
}
