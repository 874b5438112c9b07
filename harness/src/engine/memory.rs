//! Every buffer of a model on the GPU, by its name in the plan.

use crate::device::Gpu;
use anyhow::{Result, bail};
use half::f16;
use kernels::{
    Elem,
    kv::{PAGE_SIZE, pages_for},
    models::{ModelSpec, Shape},
    plan::{Activation, Buffer, Part, State, activation_len},
    variants::TEXTURE_WIDTH,
};
use reference::Checkpoint;
use std::collections::BTreeMap;

/// Bytes behind every activation that no kernel may touch.
pub const GUARD_BYTES: u64 = 64;
/// What the guard holds, and what outputs hold before a checked dispatch: NaN in
/// f16 and in f32.
pub(crate) const POISON: u8 = 0xFF;
/// Distance of the fields of the per-token state: the largest alignment that
/// WebGPU allows an adapter to ask for.
const FIELD: u64 = 256;
/// Bytes of one position's entry in the step table: position, pages, length.
const STEP: u64 = 3 * FIELD;
/// Most parts of split-K attention that partials are allocated for.
const MAX_SPLITS: usize = 16;

/// The buffers.
#[derive(Debug)]
pub struct Memory {
    /// Matrices and state: with their bytes, as a kernel sees them.
    shared: BTreeMap<Buffer, (wgpu::Buffer, u64)>,
    /// What a plan's type of activations decides.
    typed: BTreeMap<Elem, Typed>,
    /// Matrices that a plan takes as textures.
    textures: BTreeMap<Buffer, wgpu::TextureView>,
    /// Position, page count and length of the current token.
    state: wgpu::Buffer,
    /// The same for every position.
    steps: wgpu::Buffer,
    prompt: wgpu::Buffer,
    generated: wgpu::Buffer,
    context: usize,
    /// Page table: page of the sequence to page of the cache.
    pub page_table: Vec<u32>,
    spec: ModelSpec,
}

/// Activations, vectors and the KV cache in one type.
#[derive(Debug)]
struct Typed {
    buffers: BTreeMap<Buffer, (wgpu::Buffer, u64)>,
    snapshot: Vec<wgpu::Buffer>,
    layer_bytes: u64,
}

/// Bytes of a buffer or a copy that holds `bytes`: WebGPU counts in words.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(4)
}

impl Memory {
    pub(super) fn new(
        gpu: &Gpu,
        weights: &Checkpoint,
        context: usize,
        page_table: Option<Vec<u32>>,
    ) -> Result<Self> {
        let spec = weights.spec().clone();
        if context > spec.max_context() {
            bail!(
                "{}: {context} positions asked, the model holds {}",
                spec.id,
                spec.max_context()
            );
        }
        let pages = pages_for(context);
        let page_table = page_table.unwrap_or_else(|| (0..pages as u32).collect());
        let mut sorted = page_table.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..pages as u32) {
            bail!("the page table is not a permutation of 0..{pages}");
        }
        gpu.guarded("allocating the model", || {
            let mut memory = Self {
                shared: BTreeMap::new(),
                typed: BTreeMap::new(),
                textures: BTreeMap::new(),
                state: empty(gpu, "state", STEP),
                steps: upload(gpu, "steps", &step_table(context)),
                prompt: empty(gpu, "prompt", 4 * context as u64),
                generated: empty(gpu, "generated", 4 * context as u64),
                context,
                page_table,
                spec: spec.clone(),
            };
            memory.matrices(gpu, weights)?;
            memory.static_state(gpu);
            Ok(memory)
        })
    }

    fn matrices(&mut self, gpu: &Gpu, weights: &Checkpoint) -> Result<()> {
        let limit = gpu.features.max_storage_binding_bytes;
        for (layer, tensor) in self.spec.tensors() {
            if let Shape::Vector { .. } = self.spec.shape(tensor) {
                continue;
            }
            let matrix = weights.matrix(layer, tensor);
            let parts: [(Part, &[u8]); 2] = [
                (Part::Words, bytemuck::cast_slice(matrix.words)),
                (Part::Scales, bytemuck::cast_slice(matrix.scales)),
            ];
            for (part, bytes) in parts {
                let size = padded(bytes.len() as u64);
                if size > limit {
                    bail!(
                        "{}: {} bytes in one binding, this adapter allows {limit}",
                        self.spec.param_name(layer, tensor),
                        size
                    );
                }
                let key = Buffer::Param {
                    layer,
                    tensor,
                    part,
                };
                self.shared
                    .insert(key, (upload(gpu, "weights", bytes), size));
            }
        }
        Ok(())
    }

    /// Makes what `plan` binds and is not there yet: textures, and buffers of its
    /// type.
    pub(super) fn prepare(
        &mut self,
        gpu: &Gpu,
        weights: &Checkpoint,
        plan: &kernels::Plan,
    ) -> Result<()> {
        if !self.typed.contains_key(&plan.elem) {
            let typed = gpu.guarded("allocating activations", || {
                Ok(self.of_type(gpu, weights, plan.elem))
            })?;
            self.typed.insert(plan.elem, typed);
        }
        self.textures(gpu, weights, plan)
    }

    fn of_type(&self, gpu: &Gpu, weights: &Checkpoint, elem: Elem) -> Typed {
        let element = elem.bytes() as u64;
        let layer_bytes = self.layer_elements() as u64 * element;
        let mut typed = Typed {
            buffers: BTreeMap::new(),
            snapshot: Vec::new(),
            layer_bytes,
        };
        for (layer, tensor) in self.spec.tensors() {
            if let Shape::Matrix { .. } = self.spec.shape(tensor) {
                continue;
            }
            let key = Buffer::Param {
                layer,
                tensor,
                part: Part::Vector,
            };
            let values = weights.vector(layer, tensor);
            let wide: Vec<f32>;
            let bytes: &[u8] = match elem {
                Elem::F16 => bytemuck::cast_slice(values),
                Elem::F32 => {
                    wide = values.iter().map(|x| x.to_f32()).collect();
                    bytemuck::cast_slice(&wide)
                }
            };
            let size = padded(bytes.len() as u64);
            typed
                .buffers
                .insert(key, (upload(gpu, "weights", bytes), size));
        }
        self.activations(gpu, elem, &mut typed);
        for layer in 0..self.spec.num_hidden_layers {
            let buffer = with_guard(gpu, "kv", layer_bytes);
            typed
                .buffers
                .insert(Buffer::KvPages { layer }, (buffer, layer_bytes));
            typed.snapshot.push(empty(gpu, "kv snapshot", layer_bytes));
        }
        typed
    }

    /// Uploads the matrices that `plan` takes as textures and that are not yet.
    fn textures(&mut self, gpu: &Gpu, weights: &Checkpoint, plan: &kernels::Plan) -> Result<()> {
        for dispatch in &plan.dispatches {
            let storage = dispatch.variant.storage_bindings();
            for (binding, &name) in storage.zip(&dispatch.buffers) {
                if !dispatch.variant.in_texture(binding) || self.textures.contains_key(&name) {
                    continue;
                }
                let Buffer::Param { layer, tensor, .. } = name else {
                    bail!("{}: {} is no parameter", dispatch.label, binding.name);
                };
                let words = weights.matrix(layer, tensor).words;
                let view = gpu.guarded(&dispatch.label, || texture(gpu, words))?;
                self.textures.insert(name, view);
            }
        }
        Ok(())
    }

    /// The texture of a matrix.
    pub(super) fn texture(&self, name: Buffer) -> &wgpu::TextureView {
        &self.textures[&name]
    }

    fn activations(&self, gpu: &Gpu, elem: Elem, typed: &mut Typed) {
        use Activation::{
            Attention, Delta, Ffn, K, Logits, Normed, Partials, Q, Qkv, Residual, V, WideLogits,
        };
        for activation in [
            Normed,
            Residual(0),
            Residual(1),
            Delta,
            Qkv,
            Q,
            K,
            V,
            Attention,
            Partials,
            Ffn,
            Logits,
            WideLogits,
        ] {
            let element = activation.elem(elem).bytes() as u64;
            let elements = activation_len(&self.spec, activation, MAX_SPLITS) as u64;
            let bytes = padded(elements * element);
            let buffer = with_guard(gpu, "activation", bytes);
            typed
                .buffers
                .insert(Buffer::Activation(activation), (buffer, bytes));
        }
    }

    fn static_state(&mut self, gpu: &Gpu) {
        let inv_freq: Vec<f32> = self.spec.inv_freq().iter().map(|&f| f as f32).collect();
        let table = bytemuck::cast_slice(&self.page_table);
        let mut add = |state, buffer, bytes| {
            self.shared.insert(Buffer::State(state), (buffer, bytes));
        };
        add(
            State::InvFreq,
            upload(gpu, "inv_freq", bytemuck::cast_slice(&inv_freq)),
            4 * inv_freq.len() as u64,
        );
        add(
            State::PageValues,
            upload(gpu, "page_values", table),
            table.len() as u64,
        );
        add(State::Token, empty(gpu, "token", 4), 4);
    }

    /// Positions that fit.
    pub const fn context(&self) -> usize {
        self.context
    }

    pub(super) fn require(&self, positions: usize) -> Result<()> {
        if positions > self.context {
            bail!(
                "{positions} positions asked, the KV cache holds {}",
                self.context
            );
        }
        Ok(())
    }

    fn held(&self, name: Buffer, elem: Elem) -> Option<&(wgpu::Buffer, u64)> {
        let shared = self.shared.get(&name);
        shared.or_else(|| self.typed.get(&elem)?.buffers.get(&name))
    }

    /// The buffer of a name that is not part of the per-token state block, in a
    /// plan of this type.
    pub(super) fn buffer(&self, name: Buffer, elem: Elem) -> &wgpu::Buffer {
        let held = self.held(name, elem);
        &held.expect("an arm of this type was made").0
    }

    /// The current token's buffer.
    pub(super) fn token(&self) -> &wgpu::Buffer {
        &self.shared[&Buffer::State(State::Token)].0
    }

    /// Bytes that a kernel sees of a buffer.
    pub(super) fn bytes(&self, name: Buffer, elem: Elem) -> u64 {
        self.held(name, elem).map_or(FIELD, |&(_, bytes)| bytes)
    }

    /// What a binding of `name` is bound to: an activation with its guard, since
    /// a write outside a binding is dropped and would never touch it.
    pub(super) fn binding(&self, name: Buffer, elem: Elem) -> wgpu::BufferBinding<'_> {
        let field = match name {
            Buffer::State(State::PositionMap) => Some((0, 4)),
            Buffer::State(State::PageIndptr) => Some((1, 8)),
            Buffer::State(State::LengthInfo) => Some((2, 12)),
            Buffer::Param { .. }
            | Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::State(State::Token | State::PageValues | State::InvFreq) => None,
        };
        let (buffer, offset, size) = match field {
            Some((field, size)) => (&self.state, field * FIELD, size),
            None => {
                let held = self.held(name, elem);
                let (buffer, bytes) = held.expect("an arm of this type was made");
                let guard = match name {
                    Buffer::Activation(_) => GUARD_BYTES,
                    Buffer::Param { .. } | Buffer::KvPages { .. } | Buffer::State(_) => 0,
                };
                (buffer, 0, *bytes + guard)
            }
        };
        wgpu::BufferBinding {
            buffer,
            offset,
            size: std::num::NonZeroU64::new(size),
        }
    }

    pub(super) fn advance(&self, encoder: &mut wgpu::CommandEncoder, position: usize) {
        encoder.copy_buffer_to_buffer(
            &self.steps,
            position as u64 * STEP,
            &self.state,
            0,
            Some(STEP),
        );
    }

    pub(super) fn write_prompt(&self, gpu: &Gpu, prompt: &[u32]) {
        gpu.queue
            .write_buffer(&self.prompt, 0, bytemuck::cast_slice(prompt));
    }

    pub(super) fn feed_prompt(&self, encoder: &mut wgpu::CommandEncoder, position: usize) {
        let token = self.token();
        encoder.copy_buffer_to_buffer(&self.prompt, 4 * position as u64, token, 0, Some(4));
    }

    pub(super) fn log_token(&self, encoder: &mut wgpu::CommandEncoder, position: usize) {
        let token = self.token();
        encoder.copy_buffer_to_buffer(token, 0, &self.generated, 4 * position as u64, Some(4));
    }

    pub(super) fn generated(&self, gpu: &Gpu, from: usize, count: usize) -> Result<Vec<u32>> {
        let bytes = gpu.read(&self.generated, 4 * from as u64, 4 * count as u64)?;
        let tokens: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        match tokens.iter().find(|&&t| t as usize >= self.spec.vocab_size) {
            Some(token) => bail!(
                "token {token} is outside the vocabulary of {}",
                self.spec.vocab_size
            ),
            None => Ok(tokens),
        }
    }

    /// Remembers the KV cache as it is now, that of every type.
    ///
    /// # Errors
    /// A device error.
    pub fn snapshot(&self, gpu: &Gpu) -> Result<()> {
        self.copy_kv(gpu, |kv, snapshot| (kv, snapshot))
    }

    /// Restores the KV cache to the last snapshot, by a GPU copy.
    ///
    /// # Errors
    /// A device error.
    pub fn restore(&self, gpu: &Gpu) -> Result<()> {
        self.copy_kv(gpu, |kv, snapshot| (snapshot, kv))
    }

    fn copy_kv<'s>(
        &'s self,
        gpu: &Gpu,
        ends: impl Fn(&'s wgpu::Buffer, &'s wgpu::Buffer) -> (&'s wgpu::Buffer, &'s wgpu::Buffer),
    ) -> Result<()> {
        let mut encoder = gpu
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for typed in self.typed.values() {
            for (layer, snapshot) in typed.snapshot.iter().enumerate() {
                let (kv, _) = &typed.buffers[&Buffer::KvPages { layer }];
                let (from, to) = ends(kv, snapshot);
                encoder.copy_buffer_to_buffer(from, 0, to, 0, Some(typed.layer_bytes));
            }
        }
        gpu.run("copying the KV cache", encoder)
    }

    /// Overwrites every layer's pages with the same values: in cache order, one
    /// layer's worth.
    pub fn fill_kv(&self, gpu: &Gpu, values: &[f32]) {
        for (elem, typed) in &self.typed {
            let halves: Vec<f16>;
            let bytes: &[u8] = match elem {
                Elem::F16 => {
                    halves = values.iter().map(|&x| f16::from_f32(x)).collect();
                    bytemuck::cast_slice(&halves)
                }
                Elem::F32 => bytemuck::cast_slice(values),
            };
            for layer in 0..self.spec.num_hidden_layers {
                let (buffer, _) = &typed.buffers[&Buffer::KvPages { layer }];
                gpu.queue
                    .write_buffer(buffer, 0, &bytes[..typed.layer_bytes as usize]);
            }
        }
    }

    /// Elements of one layer's pages.
    pub fn layer_elements(&self) -> usize {
        pages_for(self.context) * self.spec.kv_layout().page_stride()
    }

    /// Reads one layer's pages as they lie.
    ///
    /// # Errors
    /// A device error.
    pub fn read_kv(&self, gpu: &Gpu, layer: usize, elem: Elem) -> Result<Vec<f32>> {
        let name = Buffer::KvPages { layer };
        let bytes = gpu.read(self.buffer(name, elem), 0, self.bytes(name, elem))?;
        Ok(floats(&bytes, elem))
    }
}

/// Values of a type in a buffer.
pub(crate) fn floats(bytes: &[u8], elem: Elem) -> Vec<f32> {
    match elem {
        Elem::F16 => {
            let halves: Vec<f16> = bytemuck::pod_collect_to_vec(bytes);
            halves.into_iter().map(f16::to_f32).collect()
        }
        Elem::F32 => bytemuck::pod_collect_to_vec(bytes),
    }
}

/// A matrix in a texture of [`TEXTURE_WIDTH`] texels of four words.
pub(crate) fn texture(gpu: &Gpu, words: &[u32]) -> Result<wgpu::TextureView> {
    let row_words = TEXTURE_WIDTH * 4;
    let height = words.len().div_ceil(row_words);
    let limit = gpu.features.max_texture_dimension_2d as usize;
    if height > limit {
        bail!(
            "a matrix of {} bytes needs a texture of {height} rows, this adapter allows {limit}; \
             choose texture=0",
            words.len() * 4
        );
    }
    let size = |rows: usize, width: usize| wgpu::Extent3d {
        width: width as u32,
        height: rows as u32,
        depth_or_array_layers: 1,
    };
    let texture = gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: Some("weights"),
        size: size(height, TEXTURE_WIDTH),
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: wgpu::TextureFormat::Rgba32Uint,
        usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    });
    // Whole rows, then what is left in the last.
    let rows = words.len() / row_words;
    let (whole, rest) = words.split_at(rows * row_words);
    for (first, rows, words) in [(0, rows, whole), (rows, 1, rest)] {
        if words.is_empty() {
            continue;
        }
        gpu.queue.write_texture(
            wgpu::TexelCopyTextureInfo {
                origin: wgpu::Origin3d {
                    y: first as u32,
                    ..wgpu::Origin3d::ZERO
                },
                ..texture.as_image_copy()
            },
            bytemuck::cast_slice(words),
            wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(4 * row_words as u32),
                rows_per_image: None,
            },
            size(rows, words.len() / rows / 4),
        );
    }
    Ok(texture.create_view(&wgpu::TextureViewDescriptor::default()))
}

/// Position, page count and length of every position, at their offsets.
fn step_table(context: usize) -> Vec<u8> {
    let mut table = vec![0_u8; context * STEP as usize];
    for (position, entry) in table.chunks_exact_mut(STEP as usize).enumerate() {
        let pages = (position / PAGE_SIZE + 1) as i32;
        let mut put = |at: usize, value: i32| {
            entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(0, position as i32);
        put(FIELD as usize + 4, pages);
        put(2 * FIELD as usize, position as i32 + 1);
    }
    table
}

/// A buffer of `bytes` with the guard words behind them.
pub(crate) fn with_guard(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    let buffer = empty(gpu, label, padded(bytes) + GUARD_BYTES);
    let guard = [POISON; GUARD_BYTES as usize];
    gpu.queue.write_buffer(&buffer, padded(bytes), &guard);
    buffer
}

/// Reads `bytes` of a buffer made [`with_guard`]; what lies behind them must
/// still be poison.
pub(crate) fn read_guarded(
    gpu: &Gpu,
    what: &str,
    buffer: &wgpu::Buffer,
    bytes: u64,
) -> Result<Vec<u8>> {
    let mut data = gpu.read(buffer, 0, padded(bytes) + GUARD_BYTES)?;
    let guard = data.split_off(bytes as usize);
    if guard.iter().any(|&byte| byte != POISON) {
        bail!("{what}: written past its end: the guard words are changed");
    }
    Ok(data)
}

fn empty(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: padded(bytes.max(4)),
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

fn upload(gpu: &Gpu, label: &str, bytes: &[u8]) -> wgpu::Buffer {
    let buffer = empty(gpu, label, bytes.len() as u64);
    let whole = bytes.len() / 4 * 4;
    gpu.queue.write_buffer(&buffer, 0, &bytes[..whole]);
    if whole < bytes.len() {
        let mut last = [0; 4];
        last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        gpu.queue.write_buffer(&buffer, whole as u64, &last);
    }
    buffer
}
