//! Every buffer of a model on the GPU, by its name in the plan.

use super::kept::Kept;
use crate::device::Gpu;
use anyhow::{Result, bail};
use half::f16;
use kernels::{
    Elem,
    kv::{PAGE_SIZE, Side, pages_for},
    models::{ModelSpec, Shape},
    plan::{Activation, Buffer, MAX_CHUNK, Part, Rows, State, activation_len},
    variants::TEXTURE_WIDTH,
};
use reference::{
    Checkpoint, Matrix, Numerics,
    numerics::widen,
    roles::{
        kv_append,
        kv_quantize_int8::{self, Pages},
    },
};
use std::{cell::RefCell, collections::BTreeMap, ops::Range};

/// Bytes behind every activation that no kernel may touch.
pub const GUARD_BYTES: u64 = 64;
/// What the guard holds, and what outputs hold before a checked dispatch: NaN in
/// f16 and in f32.
pub(crate) const POISON: u8 = 0xFF;
/// Distance of the fields of the per-token state: the largest alignment that
/// WebGPU allows an adapter to ask for.
const FIELD: u64 = 256;
/// Bytes of one position's entry in the step table: positions from it on, pages,
/// length.
const STEP: u64 = 3 * FIELD;
/// Most parts of split-K attention that partials are allocated for.
const MAX_SPLITS: usize = 16;

/// A buffer, and its type where a plan's type of activations decides it.
type Key = (Buffer, Option<Elem>);

fn key(name: Buffer, elem: Elem) -> Key {
    let typed = match name {
        Buffer::Param { part, .. } => part == Part::Vector,
        Buffer::Activation(_) | Buffer::KvPages { .. } => true,
        Buffer::KvCodes { .. } | Buffer::KvScales { .. } | Buffer::State(_) => false,
    };
    (name, typed.then_some(elem))
}

/// The buffers.
#[derive(Debug)]
pub struct Memory {
    /// With their bytes, as a kernel sees them.
    buffers: BTreeMap<Key, (wgpu::Buffer, u64)>,
    /// Matrices that a plan takes as textures.
    textures: BTreeMap<Buffer, wgpu::TextureView>,
    /// Position, page count and length of the current token.
    state: wgpu::Buffer,
    /// The same for every position.
    steps: wgpu::Buffer,
    prompt: wgpu::Buffer,
    generated: wgpu::Buffer,
    /// The KV buffers as they were at the last snapshot.
    snapshot: BTreeMap<Key, wgpu::Buffer>,
    context: usize,
    /// What the KV cache holds.
    pub(super) kept: RefCell<Kept>,
    /// Page table: page of the sequence to page of the cache.
    pub page_table: Vec<u32>,
    spec: ModelSpec,
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
                buffers: BTreeMap::new(),
                textures: BTreeMap::new(),
                state: empty(gpu, "state", STEP),
                steps: upload(gpu, "steps", &step_table(context)),
                prompt: empty(gpu, "prompt", 4 * context as u64),
                generated: empty(gpu, "generated", 4 * context as u64),
                snapshot: BTreeMap::new(),
                context,
                kept: RefCell::default(),
                page_table,
                spec: spec.clone(),
            };
            memory.static_state(gpu);
            Ok(memory)
        })
    }

    /// Uploads the parts of matrices that `plan` binds as buffers.
    fn matrices(&mut self, gpu: &Gpu, weights: &Checkpoint, plan: &kernels::Plan) -> Result<()> {
        let limit = gpu.features.max_storage_binding_bytes;
        for dispatch in &plan.dispatches {
            let storage = dispatch.variant.storage_bindings();
            for (binding, &name) in storage.zip(&dispatch.buffers) {
                if dispatch.variant.in_texture(binding) || self.buffers.contains_key(&(name, None))
                {
                    continue;
                }
                let Buffer::Param {
                    layer,
                    tensor,
                    part,
                    rows,
                } = name
                else {
                    continue;
                };
                let matrix = || part_of(weights.matrix(layer, tensor), rows);
                let bytes: &[u8] = match part {
                    Part::Words => bytemuck::cast_slice(matrix().words),
                    Part::Scales => matrix().scales.bytes(),
                    Part::Biases => bytemuck::cast_slice(matrix().biases),
                    Part::Vector => continue,
                };
                let size = padded(bytes.len() as u64);
                if size > limit {
                    bail!(
                        "{}: {size} bytes in one binding, this adapter allows {limit}",
                        self.spec.param_name(layer, tensor),
                    );
                }
                let buffer = gpu.guarded("uploading weights", || Ok(upload(gpu, "weights", bytes)));
                self.buffers.insert((name, None), (buffer?, size));
            }
        }
        Ok(())
    }

    /// Makes what `plan` binds and is not there yet: vectors and activations of its
    /// type, textures, KV buffers.
    pub(super) fn prepare(
        &mut self,
        gpu: &Gpu,
        weights: &Checkpoint,
        plan: &kernels::Plan,
    ) -> Result<()> {
        let made = key(Buffer::Activation(Activation::Normed), plan.elem);
        if !self.buffers.contains_key(&made) {
            gpu.guarded("allocating activations", || {
                self.vectors(gpu, weights, plan.elem);
                self.activations(gpu, plan.elem);
                Ok(())
            })?;
        }
        self.matrices(gpu, weights, plan)?;
        self.textures(gpu, weights, plan)?;
        self.caches(gpu, plan)
    }

    fn vectors(&mut self, gpu: &Gpu, weights: &Checkpoint, elem: Elem) {
        for (layer, tensor) in self.spec.tensors() {
            if let Shape::Matrix { .. } = self.spec.shape(tensor) {
                continue;
            }
            let values: Vec<f32> = weights
                .vector(layer, tensor)
                .iter()
                .map(|x| x.to_f32())
                .collect();
            let bytes = bytes_of(&values, elem);
            let size = padded(bytes.len() as u64);
            let name = Buffer::Param {
                layer,
                tensor,
                part: Part::Vector,
                rows: None,
            };
            self.buffers
                .insert(key(name, elem), (upload(gpu, "weights", &bytes), size));
        }
    }

    /// Uploads the matrices that `plan` takes as textures and that are not yet.
    fn textures(&mut self, gpu: &Gpu, weights: &Checkpoint, plan: &kernels::Plan) -> Result<()> {
        for dispatch in &plan.dispatches {
            let storage = dispatch.variant.storage_bindings();
            for (binding, &name) in storage.zip(&dispatch.buffers) {
                if !dispatch.variant.in_texture(binding) || self.textures.contains_key(&name) {
                    continue;
                }
                let Buffer::Param {
                    layer,
                    tensor,
                    rows,
                    ..
                } = name
                else {
                    bail!("{}: {} is no parameter", dispatch.label, binding.name);
                };
                let words = part_of(weights.matrix(layer, tensor), rows).words;
                let view = gpu.guarded(&dispatch.label, || texture(gpu, words))?;
                self.textures.insert(name, view);
            }
        }
        Ok(())
    }

    /// Makes the KV buffers that `plan` binds and that are not yet: a model has
    /// those of the formats that are in use.
    fn caches(&mut self, gpu: &Gpu, plan: &kernels::Plan) -> Result<()> {
        let pages = pages_for(self.context);
        let plain = self.spec.kv_layout();
        let int8 = plain.int8();
        for &name in plan.dispatches.iter().flat_map(|d| &d.buffers) {
            let bytes = match name {
                Buffer::KvPages { .. } => pages * plain.page_stride() * plan.elem.bytes(),
                Buffer::KvCodes { .. } => pages * int8.page_words() * 4,
                Buffer::KvScales { .. } => pages * int8.page_scales() * 2,
                Buffer::Param { .. } | Buffer::Activation(_) | Buffer::State(_) => continue,
            } as u64;
            let key = key(name, plan.elem);
            if self.buffers.contains_key(&key) {
                continue;
            }
            let [buffer, snapshot] = gpu.guarded("allocating the KV cache", || {
                Ok([
                    with_guard(gpu, "kv", bytes),
                    empty(gpu, "kv snapshot", bytes),
                ])
            })?;
            self.buffers.insert(key, (buffer, bytes));
            self.snapshot.insert(key, snapshot);
        }
        Ok(())
    }

    /// The texture of a matrix.
    pub(super) fn texture(&self, name: Buffer) -> &wgpu::TextureView {
        &self.textures[&name]
    }

    fn activations(&mut self, gpu: &Gpu, elem: Elem) {
        use Activation::{
            Attention, Delta, Ffn, FfnDelta, GateUp, K, Logits, Normed, Partials, Q, Qkv, Residual,
            SampleParts, V, WideLogits,
        };
        for activation in [
            Normed,
            Residual(0),
            Residual(1),
            Delta,
            FfnDelta,
            Qkv,
            Q,
            K,
            V,
            Attention,
            Partials,
            GateUp,
            Ffn,
            Logits,
            WideLogits,
            SampleParts,
        ] {
            let element = activation.elem(elem).bytes() as u64;
            let elements = activation_len(&self.spec, activation, MAX_SPLITS, MAX_CHUNK) as u64;
            let bytes = padded(elements * element);
            let buffer = with_guard(gpu, "activation", bytes);
            self.buffers
                .insert(key(Buffer::Activation(activation), elem), (buffer, bytes));
        }
    }

    fn static_state(&mut self, gpu: &Gpu) {
        let inv_freq: Vec<f32> = self.spec.inv_freq().iter().map(|&f| f as f32).collect();
        let table = bytemuck::cast_slice(&self.page_table);
        let mut add = |state, buffer, bytes| {
            self.buffers
                .insert((Buffer::State(state), None), (buffer, bytes));
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
        let ids = 4 * MAX_CHUNK as u64;
        add(State::Token, empty(gpu, "token", ids), ids);
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

    /// The buffer of a name that is not part of the per-token state block, in a plan
    /// of this type, which was prepared.
    pub(super) fn buffer(&self, name: Buffer, elem: Elem) -> &wgpu::Buffer {
        &self.buffers[&key(name, elem)].0
    }

    /// The current tokens.
    pub(super) fn tokens(&self) -> &wgpu::Buffer {
        &self.buffers[&(Buffer::State(State::Token), None)].0
    }

    /// Bytes that a kernel sees of a buffer.
    pub(super) fn bytes(&self, name: Buffer, elem: Elem) -> u64 {
        let held = self.buffers.get(&key(name, elem));
        held.map_or(FIELD, |&(_, bytes)| bytes)
    }

    /// What a binding of `name` is bound to: an activation with its guard, since
    /// a write outside a binding is dropped and would never touch it. `skipped` bytes
    /// of it belong to others.
    pub(super) fn binding(
        &self,
        name: Buffer,
        elem: Elem,
        skipped: u64,
    ) -> wgpu::BufferBinding<'_> {
        let field = match name {
            Buffer::State(State::PositionMap) => Some((0, 4 * MAX_CHUNK as u64)),
            Buffer::State(State::PageIndptr) => Some((1, 8)),
            Buffer::State(State::LengthInfo) => Some((2, 12)),
            Buffer::Param { .. }
            | Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::KvCodes { .. }
            | Buffer::KvScales { .. }
            | Buffer::State(State::Token | State::PageValues | State::InvFreq) => None,
        };
        let (buffer, offset, size) = match field {
            Some((field, size)) => (&self.state, field * FIELD, size),
            None => {
                let (buffer, bytes) = &self.buffers[&key(name, elem)];
                let guard = match name {
                    Buffer::Activation(_) => GUARD_BYTES,
                    Buffer::Param { .. }
                    | Buffer::KvPages { .. }
                    | Buffer::KvCodes { .. }
                    | Buffer::KvScales { .. }
                    | Buffer::State(_) => 0,
                };
                (buffer, skipped, *bytes + guard - skipped)
            }
        };
        wgpu::BufferBinding {
            buffer,
            offset,
            size: std::num::NonZeroU64::new(size),
        }
    }

    /// Makes `tokens` tokens from `position` on the current ones: pages and length are
    /// those of the last, whose row is the first.
    pub(super) fn advance(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        position: usize,
        tokens: usize,
    ) {
        let last = (position + tokens - 1) as u64;
        let mut copy = |from: u64, to: u64, bytes: u64| {
            encoder.copy_buffer_to_buffer(&self.steps, from, &self.state, to, Some(bytes));
        };
        copy(last * STEP, 0, STEP);
        if tokens > 1 {
            copy(position as u64 * STEP, 4, 4 * (tokens as u64 - 1));
        }
    }

    pub(super) fn write_prompt(&self, gpu: &Gpu, prompt: &[u32]) {
        gpu.queue
            .write_buffer(&self.prompt, 0, bytemuck::cast_slice(prompt));
    }

    /// Makes the prompt's ids at `positions` the current tokens, the last in the first
    /// row.
    pub(super) fn feed_prompt(&self, encoder: &mut wgpu::CommandEncoder, positions: Range<usize>) {
        let token = self.tokens();
        let (start, last) = (4 * positions.start as u64, 4 * (positions.end as u64 - 1));
        encoder.copy_buffer_to_buffer(&self.prompt, last, token, 0, Some(4));
        if last > start {
            encoder.copy_buffer_to_buffer(&self.prompt, start, token, 4, Some(last - start));
        }
    }

    pub(super) fn log_token(&self, encoder: &mut wgpu::CommandEncoder, position: usize) {
        let token = self.tokens();
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

    /// Remembers the KV cache as it is now.
    ///
    /// # Errors
    /// A device error.
    pub fn snapshot(&self, gpu: &Gpu) -> Result<()> {
        self.copy_kv(gpu, |kv, snapshot| (kv, snapshot))
    }

    /// Restores the KV cache to the last snapshot, by a GPU copy; no prompt reuses it.
    ///
    /// # Errors
    /// A device error.
    pub fn restore(&self, gpu: &Gpu) -> Result<()> {
        self.forget();
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
        for (key, snapshot) in &self.snapshot {
            let (kv, bytes) = &self.buffers[key];
            let (from, to) = ends(kv, snapshot);
            encoder.copy_buffer_to_buffer(from, 0, to, 0, Some(padded(*bytes)));
        }
        gpu.run("copying the KV cache", encoder)
    }

    /// Overwrites every layer's pages with the same keys and values, [`Self::layer_elements`]
    /// in the order of plain pages, quantised where the cache is int8. No prompt
    /// reuses them.
    ///
    /// # Errors
    /// When there are not as many.
    pub fn fill_kv(&self, gpu: &Gpu, values: &[f32]) -> Result<()> {
        self.forget();
        let int8 = self.quantised(values)?;
        for key in self.snapshot.keys() {
            let bytes = match *key {
                (Buffer::KvCodes { .. }, _) => bytemuck::cast_slice(&int8.codes).to_vec(),
                (Buffer::KvScales { .. }, _) => bytemuck::cast_slice(&int8.scales).to_vec(),
                (_, elem) => bytes_of(values, elem.unwrap_or(Elem::F32)),
            };
            gpu.queue.write_buffer(&self.buffers[key].0, 0, &bytes);
        }
        Ok(())
    }

    /// Lets no prompt reuse what the KV cache holds.
    pub fn forget(&self) {
        self.kept.borrow_mut().forget();
    }

    /// The tokens whose keys and values the cache holds, from position 0 on.
    ///
    /// # Errors
    /// A device error.
    pub fn kept(&self, gpu: &Gpu) -> Result<Vec<u32>> {
        let kept = self.kept.borrow();
        let tokens = kept.tokens();
        let logged = match tokens.iter().position(Option::is_none) {
            // The id of a position is logged at the one before.
            Some(first) => self.generated(gpu, first - 1, tokens.len() - first)?,
            None => vec![],
        };
        let first = tokens.len() - logged.len();
        let known = tokens.iter().enumerate();
        Ok(known
            .map(|(at, token)| token.unwrap_or_else(|| logged[at - first]))
            .collect())
    }

    /// Plain pages as int8 pages of the same order.
    fn quantised(&self, values: &[f32]) -> Result<Pages> {
        if values.len() != self.layer_elements() {
            bail!(
                "expected {} elements of KV cache, found {}",
                self.layer_elements(),
                values.len()
            );
        }
        let pages = pages_for(self.context);
        let layout = self.spec.kv_layout();
        let identity: Vec<u32> = (0..pages as u32).collect();
        let positions = pages * PAGE_SIZE;
        let gather = |side| kv_append::gather(values, layout, &identity, side, positions);
        let (k, v) = (widen(&gather(Side::K)?), widen(&gather(Side::V)?));
        let row = self.spec.kv_dim();
        let mut int8 = Pages::filled(layout.int8(), pages, 0, f16::ZERO);
        for (position, (k, v)) in k.chunks_exact(row).zip(v.chunks_exact(row)).enumerate() {
            let [k, v] = [k, v].map(|x| {
                kv_quantize_int8::compute(x, layout.head_dim, Numerics::Faithful(Elem::F16))
            });
            int8.write(layout.int8(), &identity, position as i32, [&k, &v])?;
        }
        Ok(int8)
    }

    /// Elements of one layer's plain pages.
    pub fn layer_elements(&self) -> usize {
        pages_for(self.context) * self.spec.kv_layout().page_stride()
    }

    /// Reads one layer's plain pages as they lie.
    ///
    /// # Errors
    /// A device error.
    pub fn read_kv(&self, gpu: &Gpu, layer: usize, elem: Elem) -> Result<Vec<f32>> {
        let bytes = self.read_cache(gpu, key(Buffer::KvPages { layer }, elem))?;
        Ok(floats(&bytes, elem))
    }

    /// Reads one layer's int8 pages as they lie.
    ///
    /// # Errors
    /// As [`Self::read_kv`].
    pub fn read_kv_int8(&self, gpu: &Gpu, layer: usize) -> Result<Pages> {
        let codes = self.read_cache(gpu, (Buffer::KvCodes { layer }, None))?;
        let scales = self.read_cache(gpu, (Buffer::KvScales { layer }, None))?;
        Ok(Pages {
            codes: bytemuck::pod_collect_to_vec(&codes),
            scales: bytemuck::pod_collect_to_vec(&scales),
        })
    }

    fn read_cache(&self, gpu: &Gpu, key: Key) -> Result<Vec<u8>> {
        let (buffer, bytes) = &self.buffers[&key];
        gpu.read(buffer, 0, *bytes)
    }
}

/// The rows of a matrix that a dispatch takes.
pub(crate) fn part_of(matrix: Matrix<'_>, rows: Option<Rows>) -> Matrix<'_> {
    rows.map_or(matrix, |rows| matrix.part(rows.first, rows.count))
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

/// Values as a buffer of a type holds them.
pub(crate) fn bytes_of(values: &[f32], elem: Elem) -> Vec<u8> {
    match elem {
        Elem::F16 => {
            let halves: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
            bytemuck::cast_slice(&halves).to_vec()
        }
        Elem::F32 => bytemuck::cast_slice(values).to_vec(),
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

const _: () = assert!(
    4 * MAX_CHUNK as u64 <= FIELD,
    "the positions of a chunk fit their field"
);

/// The positions from every position on, its page count and length, at their offsets.
fn step_table(context: usize) -> Vec<u8> {
    let mut table = vec![0_u8; context * STEP as usize];
    for (position, entry) in table.chunks_exact_mut(STEP as usize).enumerate() {
        let pages = (position / PAGE_SIZE + 1) as i32;
        let mut put = |at: usize, value: i32| {
            entry[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        for row in 0..MAX_CHUNK {
            put(4 * row, (position + row) as i32);
        }
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
