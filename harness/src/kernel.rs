//! One kernel on its own: given bytes in, checked bytes out.
//!
//! Every operand lies in a buffer of its own with guard words behind it, and the
//! guard is part of what is bound, since a write outside a binding is dropped: a
//! kernel that writes past an output changes it, and one that reads past an input
//! reads NaN. Outputs hold NaN before the dispatch, so an element that is not
//! written cannot pass for a result.

use crate::{
    counted::Scrub,
    device::Gpu,
    engine::{
        GUARD_BYTES, Loops, POISON, Pipeline, bytes_of, compile, floats, padded, read_guarded,
        texture, with_guard,
    },
};
use anyhow::{Context as _, Result, bail};
use bytemuck::NoUninit;
use generators::Shader;
use kernels::{
    Elem, ModelSpec, Variant,
    role::{Access, Binding},
};
use reference::numerics::widen;
use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
};

/// What a storage binding holds before the dispatch.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'a> {
    /// These bytes. A binding that the kernel also writes keeps what it does
    /// not write.
    Data(&'a [u8]),
    /// This many bytes of NaN: an output.
    Output(usize),
    /// These values, in the floating-point type that the variant gives the binding.
    Floats(&'a [f32]),
    /// This many NaNs of that type: an output.
    FloatOutput(usize),
}

impl<'a> Operand<'a> {
    /// The bytes of `values`.
    pub fn data<T: NoUninit>(values: &'a [T]) -> Self {
        Self::Data(bytemuck::cast_slice(values))
    }

    /// An output of `elements` values of type `T`.
    pub const fn output<T>(elements: usize) -> Self {
        Self::Output(elements * size_of::<T>())
    }

    /// What the binding holds before the dispatch.
    fn bytes(self, float: Option<Elem>) -> Cow<'a, [u8]> {
        match (self, float.unwrap_or(Elem::F32)) {
            (Self::Data(bytes), _) => Cow::Borrowed(bytes),
            (Self::Output(bytes), _) => Cow::Owned(vec![POISON; bytes]),
            (Self::FloatOutput(elements), elem) => {
                Cow::Owned(vec![POISON; elements * elem.bytes()])
            }
            (Self::Floats(values), elem) => Cow::Owned(bytes_of(values, elem)),
        }
    }
}

/// One dispatch: its operands by the names of the binding table, the words of
/// its uniform and its workgroups.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    /// Every storage binding of the role, in any order.
    pub operands: Vec<(&'static str, Operand<'a>)>,
    /// Words of the uniform struct, in field order.
    pub uniform: Vec<u32>,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
}

/// Bytes of every binding that the kernel may write, by name, and their
/// floating-point type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs(BTreeMap<&'static str, (Option<Elem>, Vec<u8>)>);

impl Outputs {
    /// Bytes of one output.
    ///
    /// # Panics
    /// When the role writes no binding of that name.
    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.output(name).1
    }

    fn output(&self, name: &str) -> &(Option<Elem>, Vec<u8>) {
        let output = self.0.get(name);
        output.unwrap_or_else(|| panic!("the role writes no binding `{name}`"))
    }

    /// An output of floating-point values, of whatever type.
    ///
    /// # Panics
    /// As [`Self::bytes`], and where it holds integers.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let &(elem, ref bytes) = self.output(name);
        let elem = elem.unwrap_or_else(|| panic!("`{name}` holds integers"));
        floats(bytes, elem)
    }

    /// The same as f64.
    ///
    /// # Panics
    /// As [`Self::floats`].
    pub fn values(&self, name: &str) -> Vec<f64> {
        widen(&self.floats(name))
    }

    /// An output of i32 values.
    ///
    /// # Panics
    /// As [`Self::bytes`].
    pub fn i32(&self, name: &str) -> Vec<i32> {
        bytemuck::pod_collect_to_vec(self.bytes(name))
    }
}

/// Runs kernels one at a time and keeps what it compiled.
#[derive(Debug)]
pub struct Runner<'g> {
    gpu: &'g Gpu,
    /// By variant and SHA-256 of the text, which holds the model's constants.
    pipelines: BTreeMap<(Variant, String), Pipeline>,
    scrub: Option<Scrub>,
}

impl<'g> Runner<'g> {
    /// A runner without any pipeline.
    pub const fn new(gpu: &'g Gpu) -> Self {
        Self {
            gpu,
            pipelines: BTreeMap::new(),
            scrub: None,
        }
    }

    /// Leaves nothing of an earlier kernel in workgroup memory.
    ///
    /// # Errors
    /// A device error.
    pub fn scrub(&mut self) -> Result<()> {
        let scrub = match self.scrub.take() {
            Some(made) => made,
            None => Scrub::new(self.gpu)?,
        };
        let mut encoder = self
            .gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.scrub.insert(scrub).record(&mut encoder);
        self.gpu.run("scrub", encoder)
    }

    /// Renders a variant for a model, and [`Self::run_shader`].
    ///
    /// # Errors
    /// When the text is refused, and as [`Self::run_shader`].
    pub fn run(&mut self, variant: Variant, spec: &ModelSpec, case: &Case<'_>) -> Result<Outputs> {
        self.run_shader(&generators::render(variant, spec)?, case)
    }

    /// Runs one dispatch of a rendered kernel and returns what it wrote.
    ///
    /// # Errors
    /// When operands, uniform or grid do not fit the role or the device's
    /// limits, when the device reports an error, or when the guard behind an
    /// output is changed.
    pub fn run_shader(&mut self, shader: &Shader, case: &Case<'_>) -> Result<Outputs> {
        let id = shader.variant.id();
        let operands = by_binding(shader.variant, case).with_context(|| id.clone())?;
        let limits = self.gpu.device.limits();
        within_limits(&limits, shader.variant, &operands, case).with_context(|| id.clone())?;
        let gpu = self.gpu;
        let pipeline = match self
            .pipelines
            .entry((shader.variant, shader.sha256.clone()))
        {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => place.insert(compile(gpu, shader, Loops::Bounded)?),
        };
        let (resources, encoder) = gpu.guarded(&id, || {
            let resources = operands
                .iter()
                .map(|(binding, bytes)| {
                    if shader.variant.in_texture(binding) {
                        texture(gpu, &bytemuck::pod_collect_to_vec(bytes)).map(Resource::Texture)
                    } else {
                        Ok(Resource::Buffer(upload(gpu, binding.name, bytes)))
                    }
                })
                .collect::<Result<Vec<Resource>>>()?;
            let encoder = encode(gpu, pipeline, shader.variant, &resources, case);
            Ok((resources, encoder))
        })?;
        gpu.run(&id, encoder)?;
        let mut outputs = BTreeMap::new();
        for ((binding, before), resource) in operands.iter().zip(&resources) {
            let Resource::Buffer(buffer) = resource else {
                continue;
            };
            let what = format!("{id}: {}", binding.name);
            let bytes = read_guarded(gpu, &what, buffer, before.len() as u64)?;
            if binding.access == Access::ReadWrite {
                let elem = shader.variant.float_type(binding);
                outputs.insert(binding.name, (elem, bytes));
            }
        }
        Ok(Outputs(outputs))
    }
}

/// What a storage binding is bound to.
enum Resource {
    Buffer(wgpu::Buffer),
    Texture(wgpu::TextureView),
}

impl Resource {
    fn binding(&self) -> wgpu::BindingResource<'_> {
        match self {
            Self::Buffer(buffer) => buffer.as_entire_binding(),
            Self::Texture(view) => wgpu::BindingResource::TextureView(view),
        }
    }
}

/// A storage binding and what it holds before the dispatch.
type Bound<'a> = (&'static Binding, Cow<'a, [u8]>);

/// The operands in binding order: every storage binding once, nothing else.
fn by_binding<'a>(variant: Variant, case: &Case<'a>) -> Result<Vec<Bound<'a>>> {
    let fields = variant.uniform().len();
    if case.uniform.len() != fields {
        bail!(
            "the uniform has {fields} words, found {}",
            case.uniform.len()
        );
    }
    let unknown = |name: &str| {
        variant
            .storage_bindings()
            .all(|binding| binding.name != name)
    };
    if let Some((name, _)) = case.operands.iter().find(|(name, _)| unknown(name)) {
        bail!("the role has no storage binding `{name}`");
    }
    let mut operands = Vec::new();
    for binding in variant.storage_bindings() {
        let mut given = case.operands.iter().filter(|(n, _)| *n == binding.name);
        let (Some(&(name, operand)), None) = (given.next(), given.next()) else {
            bail!("expected the operand `{}` once", binding.name);
        };
        let output = matches!(operand, Operand::Output(_) | Operand::FloatOutput(_));
        if output && binding.access == Access::Read {
            bail!("operand `{name}` is read, so it needs data");
        }
        let bytes = operand.bytes(variant.float_type(binding));
        if bytes.is_empty() {
            bail!("operand `{name}` is empty");
        }
        operands.push((binding, bytes));
    }
    Ok(operands)
}

/// Bytes that are bound: the operand in whole words and its guard.
const fn bound_bytes(operand: &[u8]) -> u64 {
    padded(operand.len() as u64) + GUARD_BYTES
}

/// `variant` says which of the operands are textures, not buffers.
fn within_limits(
    limits: &wgpu::Limits,
    variant: Variant,
    operands: &[Bound<'_>],
    case: &Case<'_>,
) -> Result<()> {
    let groups = limits.max_compute_workgroups_per_dimension;
    if case.grid.iter().any(|&n| n == 0 || n > groups) {
        bail!(
            "a grid of {:?} workgroups; this device takes 1 to {groups} in each dimension",
            case.grid
        );
    }
    let stage = limits.max_storage_buffers_per_shader_stage;
    let in_buffer = |(binding, _): &&Bound<'_>| !variant.in_texture(binding);
    let buffers = operands.iter().filter(in_buffer).count();
    if buffers > stage as usize {
        bail!("{buffers} storage bindings; this device takes {stage}");
    }
    let most = limits
        .max_storage_buffer_binding_size
        .min(limits.max_buffer_size);
    for (binding, operand) in operands {
        let bytes = bound_bytes(operand);
        if bytes > most {
            bail!(
                "binding `{}` has {bytes} bytes; this device takes {most}",
                binding.name
            );
        }
    }
    Ok(())
}

/// A guarded buffer; the rest of its last word is poison too.
fn upload(gpu: &Gpu, label: &str, bytes: &[u8]) -> wgpu::Buffer {
    let mut bytes = bytes.to_vec();
    let buffer = with_guard(gpu, label, bytes.len() as u64);
    bytes.resize(padded(bytes.len() as u64) as usize, POISON);
    gpu.queue.write_buffer(&buffer, 0, &bytes);
    buffer
}

/// Records the dispatch; `resources` are the storage bindings in order.
fn encode(
    gpu: &Gpu,
    pipeline: &Pipeline,
    variant: Variant,
    resources: &[Resource],
    case: &Case<'_>,
) -> wgpu::CommandEncoder {
    let words: &[u8] = bytemuck::cast_slice(&case.uniform);
    let uniform = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("uniform"),
        size: words.len().max(4) as u64,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    gpu.queue.write_buffer(&uniform, 0, words);
    let mut storage = resources.iter();
    let entries: Vec<wgpu::BindGroupEntry<'_>> = variant
        .bindings()
        .enumerate()
        .map(|(number, binding)| wgpu::BindGroupEntry {
            binding: number as u32,
            resource: match binding.access {
                Access::Uniform => uniform.as_entire_binding(),
                Access::Read | Access::ReadWrite => storage
                    .next()
                    .expect("one resource per storage binding")
                    .binding(),
            },
        })
        .collect();
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(variant.role.name()),
        layout: &pipeline.layout,
        entries: &entries,
    });
    let mut encoder = gpu
        .device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let [x, y, z] = case.grid;
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    pass.set_pipeline(&pipeline.pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(x, y, z);
    drop(pass);
    encoder
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Role;

    fn argmax(operands: Vec<(&'static str, Operand<'static>)>) -> Case<'static> {
        Case {
            operands,
            uniform: vec![],
            grid: [1, 1, 1],
        }
    }

    const LOGITS: (&str, Operand<'static>) = ("logits", Operand::Data(&[0; 6]));
    const TOKEN: (&str, Operand<'static>) = ("token", Operand::Output(4));

    #[test]
    fn operands_are_matched_by_name_and_each_is_needed_once() {
        let case = argmax(vec![TOKEN, LOGITS]);
        let operands = by_binding(Variant::base(Role::Argmax), &case).expect("complete");
        let names: Vec<&str> = operands.iter().map(|(b, _)| b.name).collect();
        assert_eq!(names, ["logits", "token"], "binding order");
        for (operands, part) in [
            (vec![LOGITS], "the operand `token` once"),
            (vec![LOGITS, TOKEN, TOKEN], "the operand `token` once"),
            (
                vec![LOGITS, TOKEN, ("x", TOKEN.1)],
                "no storage binding `x`",
            ),
            (vec![("logits", Operand::Output(6)), TOKEN], "needs data"),
            (vec![("logits", Operand::Data(&[])), TOKEN], "is empty"),
        ] {
            let error = by_binding(Variant::base(Role::Argmax), &argmax(operands)).expect_err(part);
            assert!(error.to_string().contains(part), "{error}");
        }
        let mut case = argmax(vec![LOGITS, TOKEN]);
        case.uniform = vec![1];
        let error = by_binding(Variant::base(Role::Argmax), &case).expect_err("no uniform");
        assert!(error.to_string().contains("0 words, found 1"), "{error}");
    }

    #[test]
    fn limits_are_checked_before_anything_is_encoded() {
        let limits = wgpu::Limits {
            max_compute_workgroups_per_dimension: 7,
            max_storage_buffer_binding_size: 8 + GUARD_BYTES,
            ..wgpu::Limits::default()
        };
        let refused = |limits: &wgpu::Limits, case: &Case<'_>| {
            let operands = by_binding(Variant::base(Role::Argmax), case).expect("complete");
            within_limits(limits, Variant::base(Role::Argmax), &operands, case)
                .map_err(|error| error.to_string())
        };
        let mut case = argmax(vec![LOGITS, TOKEN]);
        case.grid = [7, 1, 7];
        assert_eq!(refused(&limits, &case), Ok(()), "on the limit");
        case.grid = [1, 8, 1];
        let error = refused(&limits, &case).expect_err("8 of 7");
        assert!(error.contains("1 to 7 in each dimension"), "{error}");
        case.grid = [1, 0, 1];
        refused(&limits, &case).expect_err("nothing would run");
        let case = argmax(vec![("logits", Operand::Data(&[0; 10])), TOKEN]);
        let error = refused(&limits, &case).expect_err("76 of 72");
        assert!(error.contains("`logits` has 76 bytes"), "{error}");
        let limits = wgpu::Limits {
            max_storage_buffers_per_shader_stage: 1,
            ..wgpu::Limits::default()
        };
        let error = refused(&limits, &argmax(vec![LOGITS, TOKEN])).expect_err("2 of 1");
        assert!(error.contains("2 storage bindings"), "{error}");
    }
}
