//! A plan with its pipelines and bind groups, ready to be recorded.

use super::{memory::Memory, texts::Texts};
use crate::device::Gpu;
use anyhow::Result;
use generators::Shader;
use kernels::{
    Dispatch, Elem, ModelSpec, Plan, Variant,
    plan::Buffer,
    role::{Access, Binding, Element},
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, btree_map::Entry},
    rc::Rc,
};

/// Distance of uniforms in their buffer.
const UNIFORM_STRIDE: u64 = 256;

/// Compiled shaders by variant; one model's.
#[derive(Debug, Default)]
pub(super) struct Pipelines {
    texts: Texts,
    made: BTreeMap<Variant, Pipeline>,
    compiled: Compiled,
}

/// What was compiled, by variant and SHA-256 of the text: arms of other texts share the
/// kernels that are alike.
pub(super) type Compiled = Rc<RefCell<BTreeMap<(Variant, String), Pipeline>>>;

/// A compiled shader.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// SHA-256 of its text.
    pub(crate) sha256: String,
    /// Layout of its one bind group.
    pub(crate) layout: wgpu::BindGroupLayout,
    /// The pipeline.
    pub(crate) pipeline: wgpu::ComputePipeline,
}

impl Pipelines {
    pub(super) const fn of(texts: Texts, compiled: Compiled) -> Self {
        Self {
            texts,
            made: BTreeMap::new(),
            compiled,
        }
    }

    pub(super) fn sha256(&self, variant: Variant) -> Option<&str> {
        self.made.get(&variant).map(|p| p.sha256.as_str())
    }

    pub(super) fn get(
        &mut self,
        gpu: &Gpu,
        variant: Variant,
        spec: &ModelSpec,
    ) -> Result<&Pipeline> {
        match self.made.entry(variant) {
            Entry::Occupied(made) => Ok(made.into_mut()),
            Entry::Vacant(place) => {
                let shader = self.texts.render(variant, spec)?;
                let key = (variant, shader.sha256.clone());
                let pipeline = match self.compiled.borrow_mut().entry(key) {
                    Entry::Occupied(made) => made.get().clone(),
                    Entry::Vacant(place) => {
                        place.insert(compile(gpu, &shader, Loops::Trusted)?).clone()
                    }
                };
                Ok(place.insert(pipeline))
            }
        }
    }
}

/// Whether a kernel's loops are taken to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loops {
    /// They are counted, and left after a very long time: texts with planted faults.
    Bounded,
    /// They are not: kernels that are timed. Counting costs two additions and a
    /// comparison in every iteration and keeps drivers from unrolling.
    Trusted,
}

/// Compiles a rendered kernel. Bounds of buffers and arrays are checked in any case.
pub(crate) fn compile(gpu: &Gpu, shader: &Shader, loops: Loops) -> Result<Pipeline> {
    let label = shader.variant.id();
    gpu.guarded(&format!("compiling {label}"), || {
        let layout = bind_group_layout(gpu, shader.variant);
        let text = wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(shader.wgsl.as_str().into()),
        };
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: loops == Loops::Bounded,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        #[expect(
            unsafe_code,
            reason = "every check but that of endless loops is on, and every loop of a kernel \
                      counts up to a bound that its dispatch fixes"
        )]
        // SAFETY: as the reason says, no kernel of a plan has an endless loop.
        let module = unsafe { gpu.device.create_shader_module_trusted(text, checks) };
        let pipeline_layout = gpu
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(&label),
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
        let pipeline = gpu
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&label),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[],
                    // Every kernel writes workgroup memory before it reads it.
                    zero_initialize_workgroup_memory: false,
                },
                cache: None,
            });
        Ok(Pipeline {
            sha256: shader.sha256.clone(),
            layout,
            pipeline,
        })
    })
}

fn bind_group_layout(gpu: &Gpu, variant: Variant) -> wgpu::BindGroupLayout {
    let entries: Vec<wgpu::BindGroupLayoutEntry> = variant
        .bindings()
        .enumerate()
        .map(|(number, binding)| wgpu::BindGroupLayoutEntry {
            binding: number as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: if variant.in_texture(binding) {
                wgpu::BindingType::Texture {
                    sample_type: wgpu::TextureSampleType::Uint,
                    view_dimension: wgpu::TextureViewDimension::D2,
                    multisampled: false,
                }
            } else {
                wgpu::BindingType::Buffer {
                    ty: match binding.access {
                        Access::Uniform => wgpu::BufferBindingType::Uniform,
                        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
                        Access::ReadWrite => wgpu::BufferBindingType::Storage { read_only: false },
                    },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                }
            },
            count: None,
        })
        .collect();
    gpu.device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(variant.role.name()),
            entries: &entries,
        })
}

/// Bytes of a product in front of the rows that a dispatch makes.
fn skipped(dispatch: &Dispatch, binding: &Binding) -> u64 {
    if binding.element != Some(Element::Output) {
        return 0;
    }
    let elem = dispatch.variant.float_type(binding);
    (dispatch.first_output() * elem.map_or(0, Elem::bytes)) as u64
}

/// The bind group of a dispatch; `instead` gives other resources than the memory's.
pub(super) fn bind<'b>(
    gpu: &Gpu,
    memory: &'b Memory,
    pipeline: &Pipeline,
    plan: &Plan,
    dispatch: &Dispatch,
    uniform: wgpu::BufferBinding<'b>,
    instead: impl Fn(&Binding, Buffer) -> Option<wgpu::BindingResource<'b>>,
) -> Result<wgpu::BindGroup> {
    let mut buffers = dispatch.buffers.iter();
    let entries: Vec<wgpu::BindGroupEntry<'_>> = dispatch
        .variant
        .bindings()
        .enumerate()
        .map(|(number, binding)| wgpu::BindGroupEntry {
            binding: number as u32,
            resource: match binding.access {
                Access::Uniform => wgpu::BindingResource::Buffer(uniform.clone()),
                Access::Read | Access::ReadWrite => {
                    let name = *buffers.next().expect("the plan binds what the role lists");
                    if let Some(other) = instead(binding, name) {
                        other
                    } else if dispatch.variant.in_texture(binding) {
                        wgpu::BindingResource::TextureView(memory.texture(name))
                    } else {
                        let skipped = skipped(dispatch, binding);
                        let bound = memory.binding(name, plan.elem, skipped);
                        wgpu::BindingResource::Buffer(bound)
                    }
                }
            },
        })
        .collect();
    gpu.guarded(&dispatch.label, || {
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&dispatch.label),
            layout: &pipeline.layout,
            entries: &entries,
        }))
    })
}

/// A plan that can be recorded.
#[derive(Debug)]
pub struct Program {
    /// The plan.
    pub plan: Plan,
    steps: Vec<(wgpu::ComputePipeline, wgpu::BindGroup)>,
}

impl Program {
    pub(super) fn new(
        gpu: &Gpu,
        memory: &Memory,
        pipelines: &mut Pipelines,
        spec: &ModelSpec,
        plan: Plan,
    ) -> Result<Self> {
        let uniforms = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("uniforms"),
            size: UNIFORM_STRIDE * plan.dispatches.len() as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut steps = Vec::with_capacity(plan.dispatches.len());
        for (i, dispatch) in plan.dispatches.iter().enumerate() {
            let offset = i as u64 * UNIFORM_STRIDE;
            let words: &[u8] = bytemuck::cast_slice(&dispatch.uniform);
            gpu.queue.write_buffer(&uniforms, offset, words);
            let pipeline = pipelines.get(gpu, dispatch.variant, spec)?;
            let uniform = wgpu::BufferBinding {
                buffer: &uniforms,
                offset,
                size: std::num::NonZeroU64::new(words.len() as u64),
            };
            let group = bind(gpu, memory, pipeline, &plan, dispatch, uniform, |_, _| None)?;
            steps.push((pipeline.pipeline.clone(), group));
        }
        Ok(Self { plan, steps })
    }

    /// Records all dispatches, or one, in a pass of their own and returns how
    /// many were recorded.
    pub(super) fn record(&self, encoder: &mut wgpu::CommandEncoder, only: Option<usize>) -> u64 {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let mut recorded = 0;
        for (i, (dispatch, (pipeline, group))) in
            self.plan.dispatches.iter().zip(&self.steps).enumerate()
        {
            if only.is_some_and(|only| only != i) {
                continue;
            }
            let [x, y, z] = dispatch.grid;
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(x, y, z);
            recorded += 1;
        }
        recorded
    }
}
