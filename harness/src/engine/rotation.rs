//! One kind of dispatch of a plan, over and over: with the weights of one layer after
//! the other, so that a cache does not hold them, and an output of its own for each, so
//! that no dispatch waits for another.

use super::{
    Arm, Engine, part_of,
    program::{Pipeline, Program, bind},
    texture, with_guard,
};
use anyhow::{Result, ensure};
use kernels::{
    Dispatch, Role,
    plan::{Buffer, activation_len},
    role::{Access, Binding},
};
use std::collections::BTreeMap;

/// Fewest dispatches that are recorded together, each with an output of its own where
/// they do not wait for each other. A command buffer of its own for each would cost more
/// than a small kernel.
const OUTPUTS: usize = 64;

/// The dispatches, bound and ready.
#[derive(Debug)]
pub struct Rotation {
    pipeline: wgpu::ComputePipeline,
    grid: [u32; 3],
    groups: Vec<wgpu::BindGroup>,
    /// The first output of each group.
    outputs: Vec<wgpu::Buffer>,
    /// Sets of weights in turn, copies among them.
    pub weights: usize,
}

/// The dispatch of a set of weights: the plan's own, then copies of the first.
fn site_of(sites: &[usize], set: usize) -> usize {
    *sites.get(set).unwrap_or(&sites[0])
}

/// A copy of a parameter.
#[derive(Debug)]
enum Copied {
    Buffer(wgpu::Buffer),
    Texture(wgpu::TextureView),
}

impl Copied {
    fn binding(&self) -> wgpu::BindingResource<'_> {
        match self {
            Self::Buffer(buffer) => buffer.as_entire_binding(),
            Self::Texture(view) => wgpu::BindingResource::TextureView(view),
        }
    }
}

/// How a rotation is bound.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Weights in turn take at least this many bytes; 0 is the first set alone.
    pub weight_bytes: u64,
    /// Whether every dispatch writes the same output, and so waits for the one before.
    pub one_output: bool,
}

impl Engine<'_> {
    /// Binds the dispatches of `sites`, indices of one kind in the plan of a program of
    /// `arm`, in turn. What they read beside weights is what the memory holds.
    ///
    /// # Errors
    /// A device error.
    pub fn rotation(
        &self,
        arm: &Arm,
        program: &Program,
        sites: &[usize],
        turn: Turn,
    ) -> Result<Rotation> {
        let plan = &program.plan;
        ensure!(!sites.is_empty(), "no dispatch to repeat");
        let first = &plan.dispatches[sites[0]];
        let bytes = first.work.bytes.max(1);
        let wanted = match first.work.bytes {
            0 => 1,
            _ => usize::try_from(turn.weight_bytes.div_ceil(bytes))?.max(1),
        };
        let weights = match (turn.weight_bytes, first.work.bytes) {
            (0, _) | (_, 0) => 1,
            _ => wanted.max(sites.len()),
        };
        let own = |binding: &&Binding| binding.access == Access::ReadWrite && binding.in_place;
        // Pages belong to their layer: no more in flight than there are layers.
        let outputs = if !turn.one_output && first.variant.bindings().any(|b| own(&b)) {
            weights
        } else {
            OUTPUTS.next_multiple_of(weights)
        };
        let mut pipelines = arm.prefill.pipelines().borrow_mut();
        let pipeline = pipelines.get(self.gpu, first.variant, self.weights.spec())?;
        let words: &[u8] = bytemuck::cast_slice(&first.uniform);
        let uniform = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("uniform"),
            size: (words.len() as u64).max(4),
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.gpu.queue.write_buffer(&uniform, 0, words);
        let shared = turn.one_output.then(|| self.outputs_of(plan.elem, first));
        let copies = self.copies(plan, sites, weights)?;
        let mut rotation = Rotation {
            pipeline: pipeline.pipeline.clone(),
            grid: first.grid,
            groups: vec![],
            outputs: vec![],
            weights,
        };
        for i in 0..outputs {
            let set = i % weights;
            let dispatch = &plan.dispatches[site_of(sites, set)];
            let made = match &shared {
                Some(shared) => shared.clone(),
                None => self.outputs_of(plan.elem, dispatch),
            };
            let group = self.bound(pipeline, plan, dispatch, &uniform, &made, copies.get(&set))?;
            rotation.groups.push(group);
            let first = made.first().map(|(_, buffer)| buffer.clone());
            rotation.outputs.extend(first);
        }
        Ok(rotation)
    }

    fn bound(
        &self,
        pipeline: &Pipeline,
        plan: &kernels::Plan,
        dispatch: &Dispatch,
        uniform: &wgpu::Buffer,
        outputs: &[(&'static str, wgpu::Buffer)],
        weights: Option<&BTreeMap<Buffer, Copied>>,
    ) -> Result<wgpu::BindGroup> {
        let uniform = wgpu::BufferBinding {
            buffer: uniform,
            offset: 0,
            size: None,
        };
        bind(
            self.gpu,
            &self.memory,
            pipeline,
            plan,
            dispatch,
            uniform,
            |binding, name| {
                let output = outputs.iter().find(|(name, _)| *name == binding.name);
                let output = output.map(|(_, buffer)| buffer.as_entire_binding());
                output.or_else(|| weights?.get(&name).map(Copied::binding))
            },
        )
    }

    /// New buffers for what a dispatch writes whole, in binding order.
    fn outputs_of(
        &self,
        elem: kernels::Elem,
        dispatch: &Dispatch,
    ) -> Vec<(&'static str, wgpu::Buffer)> {
        let bound = dispatch.variant.storage_bindings().zip(&dispatch.buffers);
        let written = bound.filter(|(b, _)| b.access == Access::ReadWrite && !b.in_place);
        written
            .map(|(binding, &name)| {
                let bytes = self.memory.bytes(name, elem);
                (binding.name, with_guard(self.gpu, binding.name, bytes))
            })
            .collect()
    }

    /// Copies of the first dispatch's weights for the sets that the plan does not have.
    fn copies(
        &self,
        plan: &kernels::Plan,
        sites: &[usize],
        weights: usize,
    ) -> Result<BTreeMap<usize, BTreeMap<Buffer, Copied>>> {
        let mut copies = BTreeMap::new();
        let first = &plan.dispatches[sites[0]];
        for set in sites.len()..weights {
            let mut made = BTreeMap::new();
            let mut encoder = self.encoder();
            for (binding, &name) in first.variant.storage_bindings().zip(&first.buffers) {
                let Buffer::Param { layer, tensor, .. } = name else {
                    continue;
                };
                let copy = if first.variant.in_texture(binding) {
                    let w = part_of(self.weights.matrix(layer, tensor), first.rows());
                    Copied::Texture(texture(self.gpu, w.words)?)
                } else {
                    let bytes = self.memory.bytes(name, plan.elem);
                    let copy = with_guard(self.gpu, "copy", bytes);
                    let from = self.memory.buffer(name, plan.elem);
                    encoder.copy_buffer_to_buffer(from, 0, &copy, 0, Some(bytes));
                    Copied::Buffer(copy)
                };
                made.insert(name, copy);
            }
            self.gpu.run("copying weights", encoder)?;
            copies.insert(set, made);
        }
        Ok(copies)
    }

    /// Runs a rotation once and compares what it wrote first and last with what the
    /// program's own dispatches write from the same operands, bit by bit. Nothing to
    /// compare where a dispatch writes no activation.
    ///
    /// # Errors
    /// When they differ, or a device error.
    pub fn require_same(
        &self,
        program: &Program,
        sites: &[usize],
        rotation: &Rotation,
    ) -> Result<()> {
        let plan = &program.plan;
        // A state is another after every run, so the program's own begins where this did.
        let advances = (plan.dispatches[sites[0]].buffers.iter()).any(|b| b.is_recurrent());
        if advances {
            self.memory.snapshot(self.gpu)?;
        }
        let mut encoder = self.encoder();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        rotation.record(rotation.count(), &mut pass);
        drop(pass);
        self.gpu.run("a rotation", encoder)?;
        if advances {
            self.memory.restore(self.gpu)?;
        }
        let last = rotation.outputs.len().saturating_sub(1);
        // One output for all holds what the last of them wrote.
        let shared = rotation.outputs.first() == rotation.outputs.last();
        let compared = if shared { vec![last] } else { vec![0, last] };
        for i in compared {
            self.require_output(program, sites, rotation, i)?;
        }
        Ok(())
    }

    /// Compares what the last run of a rotation, of one dispatch at least, left in its first
    /// output with what the program's own dispatch writes, bit by bit. Nothing to compare
    /// where all dispatches write one output, where one writes no activation, or where a
    /// state is another after every run.
    ///
    /// # Errors
    /// When they differ, or a device error.
    pub fn require_left(
        &self,
        program: &Program,
        sites: &[usize],
        rotation: &Rotation,
    ) -> Result<()> {
        let first = &program.plan.dispatches[sites[0]];
        let advances = first.buffers.iter().any(|buffer| buffer.is_recurrent());
        let shared = rotation.outputs.len() > 1 && rotation.outputs[0] == rotation.outputs[1];
        if advances || shared {
            return Ok(());
        }
        self.require_output(program, sites, rotation, 0)
    }

    /// Compares an output of a rotation with what the program's own dispatch writes.
    fn require_output(
        &self,
        program: &Program,
        sites: &[usize],
        rotation: &Rotation,
        i: usize,
    ) -> Result<()> {
        let plan = &program.plan;
        let Some(output) = rotation.outputs.get(i) else {
            return Ok(());
        };
        let site = site_of(sites, i % rotation.weights);
        let dispatch = &plan.dispatches[site];
        let bound = dispatch.variant.storage_bindings().zip(&dispatch.buffers);
        let mut written = bound.filter(|(b, _)| b.access == Access::ReadWrite && !b.in_place);
        let Some((_, &Buffer::Activation(activation))) = written.next() else {
            return Ok(());
        };
        let mut encoder = self.encoder();
        program.record(&mut encoder, Some(site));
        self.gpu.run(&dispatch.label, encoder)?;
        let name = Buffer::Activation(activation);
        let len = activation_len(
            self.weights.spec(),
            activation,
            plan.splits,
            plan.phase.tokens(),
        );
        let element = activation.elem(plan.elem).bytes();
        // A part of a matrix makes a part of the output.
        let rows = dispatch.rows();
        if dispatch.variant.role == Role::Int4MatmulMoe {
            // Gate and up projections, and parts of experts, write a part of it each.
            let whole = dispatch.uniform[2] == dispatch.uniform[4] && rows.is_none();
            if !whole {
                return Ok(());
            }
        }
        let (first, count) = rows.map_or((0, len), |rows| (rows.first, rows.count));
        let [offset, bytes] = [first, count].map(|n| (n * element) as u64);
        let bytes = bytes.next_multiple_of(4);
        let whole = self.memory.buffer(name, plan.elem);
        let expected = self.gpu.read(whole, offset, bytes)?;
        let found = self.gpu.read(output, 0, bytes)?;
        ensure!(
            expected == found,
            "{}: the timed dispatches wrote something else than the checked one",
            dispatch.label
        );
        Ok(())
    }
}

impl Rotation {
    /// Dispatches that are recorded together before an output is written again.
    pub fn count(&self) -> usize {
        self.groups.len()
    }

    /// Records the first `count` of them.
    pub fn record(&self, count: usize, pass: &mut wgpu::ComputePass<'_>) {
        let [x, y, z] = self.grid;
        pass.set_pipeline(&self.pipeline);
        for group in self.groups.iter().take(count) {
            pass.set_bind_group(0, group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}
