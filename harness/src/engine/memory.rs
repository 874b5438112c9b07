//! Every buffer of a model on the GPU, by its name in the plan.

use super::buffers::{
    GUARD_BYTES, bytes_of, empty, floats, padded, part_of, texture, upload, with_guard,
};
use super::kept::Kept;
use super::states::States;
use crate::device::Gpu;
use anyhow::{Result, bail};
use half::f16;
use kernels::{
    Elem,
    kv::{PAGE_SIZE, Side, pages_for},
    models::{ModelSpec, Shape},
    plan::{Activation, Buffer, MAX_CHUNK, Part, State, activation_len},
};
use reference::{
    Checkpoint, Numerics,
    numerics::widen,
    roles::{
        kv_append,
        kv_quantize_int8::{self, Pages},
    },
};
use std::{cell::RefCell, collections::BTreeMap, ops::Range};

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
        Buffer::Activation(_)
        | Buffer::KvPages { .. }
        | Buffer::GdnRing { .. }
        | Buffer::GdnState { .. } => true,
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
    /// What the states of a hybrid hold.
    pub(super) states: RefCell<States>,
    /// Page table: page of the sequence to page of the cache.
    pub page_table: Vec<u32>,
    spec: ModelSpec,
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
                states: RefCell::default(),
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
            let bytes = match self.spec.shape(tensor) {
                Shape::Matrix { .. } => continue,
                Shape::Vector { .. } => {
                    let values = weights.vector(layer, tensor).iter();
                    bytes_of(&values.map(|x| x.to_f32()).collect::<Vec<_>>(), elem)
                }
                Shape::Floats { .. } => bytes_of(weights.floats(layer, tensor), Elem::F32),
            };
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

    /// Makes the KV buffers and states that `plan` binds and that are not yet: a model
    /// has those of the formats that are in use.
    fn caches(&mut self, gpu: &Gpu, plan: &kernels::Plan) -> Result<()> {
        let pages = pages_for(self.context);
        let plain = self.spec.kv_layout();
        let int8 = plain.int8();
        let net = self.spec.delta_net;
        for &name in plan.dispatches.iter().flat_map(|d| &d.buffers) {
            let bytes = match name {
                Buffer::KvPages { .. } => pages * plain.page_stride() * plan.elem.bytes(),
                Buffer::KvCodes { .. } => pages * int8.page_words() * 4,
                Buffer::KvScales { .. } => pages * int8.page_scales() * 2,
                Buffer::GdnRing { .. } => {
                    net.map_or(0, |net| net.ring_len() * net.conv_dim()) * plan.elem.bytes()
                }
                Buffer::GdnState { .. } => 4 * net.map_or(0, |net| net.state_len()),
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
        for &activation in Activation::ALL {
            let element = activation.elem(elem).bytes() as u64;
            let elements = activation_len(&self.spec, activation, MAX_SPLITS, MAX_CHUNK) as u64;
            if elements == 0 {
                continue;
            }
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
            | Buffer::GdnRing { .. }
            | Buffer::GdnState { .. }
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
                    | Buffer::GdnRing { .. }
                    | Buffer::GdnState { .. }
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

    /// Remembers the KV cache and the states as they are now.
    ///
    /// # Errors
    /// A device error.
    pub fn snapshot(&self, gpu: &Gpu) -> Result<()> {
        self.states.borrow_mut().snapshot();
        self.copy_kv(gpu, |kv, snapshot| (kv, snapshot))
    }

    /// Restores both to the last snapshot, by a GPU copy; no prompt reuses it.
    ///
    /// # Errors
    /// A device error.
    pub fn restore(&self, gpu: &Gpu) -> Result<()> {
        self.forget();
        self.states.borrow_mut().restore();
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
    /// reuses them. States stay as they are, and are taken for those of any position.
    ///
    /// # Errors
    /// When there are not as many.
    pub fn fill_kv(&self, gpu: &Gpu, values: &[f32]) -> Result<()> {
        self.forget();
        self.states.borrow_mut().stand_anywhere();
        let int8 = self.quantised(values)?;
        for key in self
            .snapshot
            .keys()
            .filter(|(name, _)| !name.is_recurrent())
        {
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

    /// Reads what one layer remembers: its ring and its state.
    ///
    /// # Errors
    /// A device error.
    pub fn read_recurrent(&self, gpu: &Gpu, layer: usize, elem: Elem) -> Result<[Vec<f32>; 2]> {
        let ring = self.read_cache(gpu, key(Buffer::GdnRing { layer }, elem))?;
        let state = self.read_cache(gpu, key(Buffer::GdnState { layer }, elem))?;
        Ok([floats(&ring, elem), floats(&state, Elem::F32)])
    }

    /// Buffers of what the layers of a hybrid remember, with their bytes.
    pub(super) fn recurrent(
        &self,
        elem: Elem,
    ) -> impl Iterator<Item = (Buffer, &wgpu::Buffer, u64)> {
        let of = move |key: &&Key| key.0.is_recurrent() && key.1 == Some(elem);
        let keys = self.snapshot.keys().filter(of);
        keys.map(|key| {
            let (buffer, bytes) = &self.buffers[key];
            (key.0, buffer, *bytes)
        })
    }

    /// The model.
    pub(super) const fn spec(&self) -> &ModelSpec {
        &self.spec
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
