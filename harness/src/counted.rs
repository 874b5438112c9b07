//! Kernels outside the variant table whose work is known: they count on the GPU what
//! they did, so that a time can be held against it.

use crate::device::Gpu;
use anyhow::{Result, ensure};

/// A kernel, its bindings those that its text names.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) pipeline: wgpu::ComputePipeline,
}

impl Kernel {
    pub(crate) fn new(gpu: &Gpu, label: &str, text: &str) -> Result<Self> {
        gpu.guarded(label, || {
            let module = gpu
                .device
                .create_shader_module(wgpu::ShaderModuleDescriptor {
                    label: Some(label),
                    source: wgpu::ShaderSource::Wgsl(text.into()),
                });
            let pipeline = gpu
                .device
                .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(label),
                    layout: None,
                    module: &module,
                    entry_point: Some("main"),
                    compilation_options: wgpu::PipelineCompilationOptions::default(),
                    cache: None,
                });
            Ok(Self { pipeline })
        })
    }

    pub(crate) fn bind(&self, gpu: &Gpu, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(at, buffer)| wgpu::BindGroupEntry {
                binding: at as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

/// Where kernels count: words in buffers of their own, since a dispatch waits for the one
/// before that wrote the same buffer.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) buffers: Vec<wgpu::Buffer>,
    /// All words beside each other.
    gathered: wgpu::Buffer,
}

impl Counter {
    /// A counter of this many words.
    pub(crate) fn new(gpu: &Gpu, words: usize) -> Result<Self> {
        let buffer = |words: usize| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("counter"),
                size: 4 * words as u64,
                usage: wgpu::BufferUsages::STORAGE
                    | wgpu::BufferUsages::COPY_SRC
                    | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        gpu.guarded("a counter", || {
            Ok(Self {
                buffers: (0..words).map(|_| buffer(1)).collect(),
                gathered: buffer(words),
            })
        })
    }

    /// Requires that the words add up to this, modulo 2^32, and starts again from zero.
    pub(crate) fn require(&self, gpu: &Gpu, expected: u32) -> Result<()> {
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for (at, buffer) in self.buffers.iter().enumerate() {
            encoder.copy_buffer_to_buffer(buffer, 0, &self.gathered, 4 * at as u64, 4);
            encoder.clear_buffer(buffer, 0, None);
        }
        gpu.run("a counter", encoder)?;
        let bytes = gpu.read(&self.gathered, 0, self.gathered.size())?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let found = words
            .iter()
            .fold(0_u32, |sum, word| sum.wrapping_add(*word));
        ensure!(
            found == expected,
            "void: the kernels counted {found}, expected {expected}"
        );
        Ok(())
    }
}

/// A kernel that leaves other words in workgroup memory: a kernel with a fault may else
/// find there what the one without it left.
#[derive(Debug)]
pub(crate) struct Scrub {
    kernel: Kernel,
    group: wgpu::BindGroup,
}

impl Scrub {
    /// Workgroups: more than a device runs at once where this matters.
    const GROUPS: u32 = 64;
    /// Invocations of one.
    const THREADS: u64 = 64;

    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let kernel = Kernel::new(gpu, "scrub", include_str!("counted/scrub.wgsl"))?;
        let out = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("scrub"),
            size: 4 * u64::from(Self::GROUPS) * Self::THREADS,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        });
        let group = kernel.bind(gpu, &[&out]);
        Ok(Self { kernel, group })
    }

    pub(crate) fn record(&self, encoder: &mut wgpu::CommandEncoder) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&self.kernel.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(Self::GROUPS, 1, 1);
    }
}

/// A chain of dispatches, each of which needs the one before.
#[derive(Debug)]
pub(crate) struct Chain {
    kernel: Kernel,
    group: wgpu::BindGroup,
    /// Its dispatches.
    pub(crate) counter: Counter,
}

impl Chain {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let kernel = Kernel::new(gpu, "chain", include_str!("counted/step.wgsl"))?;
        let counter = Counter::new(gpu, 1)?;
        let buffers: Vec<&wgpu::Buffer> = counter.buffers.iter().collect();
        let group = kernel.bind(gpu, &buffers);
        Ok(Self {
            kernel,
            group,
            counter,
        })
    }

    pub(crate) fn record(&self, count: u32, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.kernel.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        for _ in 0..count {
            pass.dispatch_workgroups(1, 1, 1);
        }
    }
}
