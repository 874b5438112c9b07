//! The whole forward pass: embedding to logits, with its own KV cache.

mod delta_net;
mod experts;

use crate::numerics::{decode, int8_rounded};
use crate::roles::attention::AttentionShape;
use crate::roles::qk_norm_rope_append::{self, HeadNorm};
use crate::roles::qkv_fused::{self, Qkv, QkvShape};
use crate::roles::rope::Rope;
use crate::roles::{
    RoleError, add_norm, argmax, attention, attn_gate, embedding, gated_qkv_split,
    kv_quantize_int8, rms_norm, silu_mul,
};
use crate::{Matrix, Numerics};
use delta_net::LayerState;
use experts::Mixture;
pub use experts::{Choices, Routed};
use half::f16;
use kernels::models::Mixer;
use kernels::{ModelSpec, Tensor, kv::KvFormat};
use rayon::prelude::*;

/// Tokens that a prefill takes through the layers together; bounds its memory.
const CHUNK: usize = 64;

/// A model's weights, as a checkpoint or a generator holds them.
pub trait Weights: Sync {
    /// The model's constants.
    fn spec(&self) -> &ModelSpec;

    /// A quantised matrix of the shape that [`ModelSpec::shape`] gives.
    /// Called only for parameters that the model has.
    fn matrix(&self, layer: Option<usize>, tensor: Tensor) -> Matrix<'_>;

    /// An f16 vector, likewise.
    fn vector(&self, layer: Option<usize>, tensor: Tensor) -> &[f16];

    /// A vector that stays in f32, likewise.
    fn floats(&self, layer: Option<usize>, tensor: Tensor) -> &[f32];
}

/// Why a forward pass could not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The KV cache is full.
    #[error("{needed} positions are more than the {max} that the model's pages hold")]
    Context {
        /// Positions asked for.
        needed: usize,
        /// Positions that fit.
        max: usize,
    },
    /// A prompt without tokens.
    #[error("an empty prompt has no last position")]
    Empty,
    /// Nothing was fed since the last reset or truncation.
    #[error("no logits to continue from: feed a token first")]
    NoLogits,
    /// The logits contain NaN, so there is no greatest.
    #[error("the logits at position {position} contain NaN")]
    NotANumber {
        /// The position whose logits they are.
        position: usize,
    },
    /// A role's input is out of range.
    #[error(transparent)]
    Role(#[from] RoleError),
}

/// One step of a greedy continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greedy {
    /// The token with the greatest logit.
    pub token: u32,
    /// Its logit minus the next greatest.
    pub gap: f64,
}

/// Which positions of a prefill a [`Trace`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRows {
    /// The last position only.
    Last,
    /// Every position.
    All,
}

/// What a pass computed on the way, in the order of computation.
///
/// Stages are `embed`; per layer L `layers.L.` + `input_norm`, `q`, `k`, `v`
/// (rotated, as cached), `attention`, `mixer_out` (after the output
/// projection), `post_attn_residual`, `post_attn_norm`, `ffn_act` (silu(gate) *
/// up), `ffn_out` (after the down projection), `out` (the residual); then
/// `final_norm`. A layer of gated DeltaNet has `recurrent` (what its output projection
/// reads) in place of `q` to `attention`; one with experts also `router_logits` and
/// `shared_gate_logit`, and its `ffn_act` is that of all slots. With [`Numerics::Faithful`] they are as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    rows: TraceRows,
    stages: Vec<(String, Vec<Vec<f64>>)>,
}

impl Trace {
    /// An empty trace.
    pub fn new(rows: TraceRows) -> Self {
        Self {
            rows,
            stages: Vec::new(),
        }
    }

    /// Stage names with their kept rows, in the order of computation.
    pub fn stages(&self) -> impl Iterator<Item = (&str, &[Vec<f64>])> {
        self.stages
            .iter()
            .map(|(name, rows)| (name.as_str(), rows.as_slice()))
    }

    /// The kept rows of one stage, oldest position first.
    pub fn get(&self, name: &str) -> Option<&[Vec<f64>]> {
        let stage = self.stages.iter().find(|(known, _)| known == name);
        stage.map(|(_, rows)| rows.as_slice())
    }

    fn record(&mut self, name: String, rows: &[Vec<f64>]) {
        let index = match self.stages.iter().position(|(known, _)| *known == name) {
            Some(index) => index,
            None => {
                self.stages.push((name, Vec::new()));
                self.stages.len() - 1
            }
        };
        let kept = &mut self.stages[index].1;
        match self.rows {
            TraceRows::All => kept.extend_from_slice(rows),
            TraceRows::Last => *kept = rows.last().cloned().into_iter().collect(),
        }
    }
}

/// Keys and values of one layer, `[len, kv_heads, head_dim]` each.
#[derive(Clone, Debug, Default)]
struct LayerCache {
    k: Vec<f64>,
    v: Vec<f64>,
}

/// How much of a pass rounds the activations that matrices of four bits multiply to int8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8 {
    /// Nothing.
    Nothing,
    /// Tokens fed one by one, and the head.
    Steps,
    /// These and whole prompts.
    Everything,
}

/// A model with its weights, its KV cache and its numerics.
#[derive(Clone, Debug)]
pub struct Forward<'a, W: ?Sized> {
    weights: &'a W,
    numerics: Numerics,
    kv: KvFormat,
    /// What multiplies int8 activations with matrices of four bits.
    int8: Int8,
    /// Whether a step is being fed.
    steps: bool,
    rope: Rope,
    cache: Vec<LayerCache>,
    states: Vec<LayerState>,
    /// By layer and position; empty without experts.
    routed: Vec<Vec<Routed>>,
    /// Choices that are not the routers' own.
    followed: Choices,
    /// The tokens fed, of a model whose state cannot be cut back.
    fed: Vec<u32>,
    len: usize,
    logits: Option<Vec<f64>>,
}

impl<'a, W: Weights + ?Sized> Forward<'a, W> {
    /// A pass over `weights` with an empty cache.
    pub fn new(weights: &'a W, numerics: Numerics) -> Self {
        let spec = weights.spec();
        Self {
            weights,
            numerics,
            kv: KvFormat::Plain,
            int8: Int8::Nothing,
            steps: false,
            rope: Rope::of(spec),
            cache: vec![LayerCache::default(); spec.num_hidden_layers],
            states: vec![LayerState::new(spec); spec.num_hidden_layers],
            routed: vec![Vec::new(); spec.num_hidden_layers],
            followed: Choices::new(),
            fed: Vec::new(),
            len: 0,
            logits: None,
        }
    }

    /// The same pass, with keys and values cached in this format: an int8 cache
    /// holds what its readers take the codes for.
    #[must_use]
    pub fn cached_as(self, kv: KvFormat) -> Self {
        Self { kv, ..self }
    }

    /// The same pass, which rounds the activations that matrices of four bits multiply
    /// to int8 ([`int8_rounded`]) in so much of it.
    #[must_use]
    pub fn with_int8(self, int8: Int8) -> Self {
        Self { int8, ..self }
    }

    /// Cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Logits `[V]` of the last position fed, if any since the last
    /// [`Self::truncate`].
    pub fn logits(&self) -> Option<&[f64]> {
        self.logits.as_deref()
    }

    /// One layer's cached keys (rotated) and values, `[len, kv_heads,
    /// head_dim]` each.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn cached(&self, layer: usize) -> (&[f64], &[f64]) {
        let cache = &self.cache[layer];
        (&cache.k, &cache.v)
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.truncate(0);
    }

    /// Forgets all positions from `len` on, and the logits. A state cannot be cut back,
    /// so a model that has one feeds the positions before again.
    pub fn truncate(&mut self, len: usize) {
        let len = self.len.min(len);
        if self.weights.spec().delta_net.is_some() && len < self.len {
            let again: Vec<u32> = self.fed.drain(..).take(len).collect();
            self.cut(0);
            self.states.iter_mut().for_each(LayerState::forget);
            if !again.is_empty() {
                let fed = self.feed(&again, None, |_, _| ());
                fed.expect("these tokens were fed before");
            }
        }
        self.cut(len);
    }

    fn cut(&mut self, len: usize) {
        self.len = len;
        self.logits = None;
        let elements = len * self.weights.spec().kv_dim();
        for layer in &mut self.cache {
            layer.k.truncate(elements);
            layer.v.truncate(elements);
        }
        for layer in &mut self.routed {
            layer.truncate(len);
        }
    }

    /// Feeds one token; its logits, `[V]`.
    ///
    /// # Errors
    /// When the token is unknown or the cache is full; nothing was fed then.
    pub fn step(&mut self, token: u32) -> Result<Vec<f64>, ForwardError> {
        self.steps = true;
        let logits = self.prefill(&[token]);
        self.steps = false;
        logits
    }

    /// Feeds a prompt, causally, layer by layer over all its tokens; the
    /// logits of its last position, `[V]`. Bit-equal to feeding token by token.
    ///
    /// # Errors
    /// As [`Self::step`], and when the prompt is empty.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f64>, ForwardError> {
        self.last_logits(tokens, None)
    }

    /// [`Self::prefill`] that also fills `trace`.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub fn prefill_traced(
        &mut self,
        tokens: &[u32],
        trace: &mut Trace,
    ) -> Result<Vec<f64>, ForwardError> {
        self.last_logits(tokens, Some(trace))
    }

    /// [`Self::prefill`] that gives the logits of every position of the prompt,
    /// `[tokens][V]`.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub fn prefill_all(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f64>>, ForwardError> {
        let mut all = Vec::with_capacity(tokens.len());
        self.feed(tokens, None, |forward, normed| {
            all.extend(forward.head(normed));
        })?;
        self.logits = all.last().cloned();
        Ok(all)
    }

    /// Continues greedily by `n` tokens, feeding each; ties go to the lowest id.
    ///
    /// # Errors
    /// When nothing was fed yet, the logits contain NaN or the cache is full.
    pub fn greedy(&mut self, n: usize) -> Result<Vec<Greedy>, ForwardError> {
        let mut steps = Vec::with_capacity(n);
        for _ in 0..n {
            let logits = self.logits().ok_or(ForwardError::NoLogits)?;
            let not_a_number = ForwardError::NotANumber {
                position: self.len - 1,
            };
            let choice = argmax::compute(logits).and_then(|token| u32::try_from(token).ok());
            let token = choice.ok_or(not_a_number)?;
            let gap = argmax::top2_gap(logits).unwrap_or(f64::INFINITY);
            steps.push(Greedy { token, gap });
            self.step(token)?;
        }
        Ok(steps)
    }

    fn last_logits(
        &mut self,
        tokens: &[u32],
        trace: Option<&mut Trace>,
    ) -> Result<Vec<f64>, ForwardError> {
        let mut last = Vec::new();
        self.feed(tokens, trace, |_, mut normed| {
            last = normed.pop().into_iter().collect();
        })?;
        let logits = self.head(last).pop().ok_or(ForwardError::Empty)?;
        self.logits = Some(logits.clone());
        Ok(logits)
    }

    /// Takes `tokens` through all layers and hands each chunk's final norms
    /// (`[tokens][D]`) to `sink`.
    fn feed(
        &mut self,
        tokens: &[u32],
        mut trace: Option<&mut Trace>,
        mut sink: impl FnMut(&Self, Vec<Vec<f64>>),
    ) -> Result<(), ForwardError> {
        let spec = self.weights.spec();
        let needed = self.len.saturating_add(tokens.len());
        if tokens.is_empty() {
            return Err(ForwardError::Empty);
        }
        if needed > spec.max_context() {
            return Err(ForwardError::Context {
                needed,
                max: spec.max_context(),
            });
        }
        let table = self.weights.matrix(None, Tensor::Embedding);
        let embed = |&token| embedding::compute(table, token, self.numerics);
        let embedded: Vec<Vec<f64>> = tokens.iter().map(embed).collect::<Result<_, _>>()?;
        for chunk in embedded.chunks(CHUNK) {
            let normed = self.layers(chunk.to_vec(), &mut trace);
            sink(self, normed);
        }
        if spec.delta_net.is_some() {
            self.fed.extend_from_slice(tokens);
        }
        Ok(())
    }

    /// Logits of final norms, `[tokens][V]`.
    fn head(&self, normed: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let head = self.weights.spec().head_tensor();
        self.matmul(None, head, &normed)
    }

    /// A chunk's embeddings through all layers, `[tokens][D]` to `[tokens][D]`.
    fn layers(
        &mut self,
        mut residual: Vec<Vec<f64>>,
        trace: &mut Option<&mut Trace>,
    ) -> Vec<Vec<f64>> {
        let layers = self.weights.spec().num_hidden_layers;
        let count = residual.len();
        let mut record = |name: String, rows: &[Vec<f64>]| {
            if let Some(trace) = trace {
                trace.record(name, rows);
            }
        };
        record("embed".into(), &residual);
        let mut normed = self.rms_norm(first_norm(layers), &residual);
        for layer in 0..layers {
            let at = |tensor| (Some(layer), tensor);
            let mut record = |name: &str, rows: &[Vec<f64>]| {
                record(format!("layers.{layer}.{name}"), rows);
            };
            record("input_norm", &normed);

            let mixer_out = match self.weights.spec().mixer(layer) {
                Mixer::Attention => {
                    let (Qkv { q, k, v }, gates) = self.qkv(layer, &normed);
                    record("q", &q);
                    record("k", &k);
                    record("v", &v);
                    let mixed = self.attend(layer, &q, &k, &v);
                    let mixed = self.gated(mixed, &gates);
                    record("attention", &mixed);
                    self.matmul(Some(layer), Tensor::O, &mixed)
                }
                Mixer::DeltaNet => {
                    let mixed = self.delta_net(layer, &normed);
                    record("recurrent", &mixed);
                    self.matmul(Some(layer), Tensor::GdnOut, &mixed)
                }
            };
            record("mixer_out", &mixer_out);

            (residual, normed) = self.add_norm(at(Tensor::PostNorm), &mixer_out, &residual);
            record("post_attn_residual", &residual);
            record("post_attn_norm", &normed);

            let ffn_out = if let Some(experts) = self.weights.spec().experts {
                let Mixture {
                    routed,
                    activated,
                    out,
                } = self.experts(layer, &normed);
                let part = |range: std::ops::RangeFrom<usize>, len: usize| -> Vec<Vec<f64>> {
                    let rows = routed.iter();
                    let rows = rows.map(|row| row.logits[range.clone()][..len].to_vec());
                    rows.collect()
                };
                record("router_logits", &part(0.., experts.num_experts));
                if experts.shared_expert {
                    record("shared_gate_logit", &part(experts.num_experts.., 1));
                }
                record("ffn_act", &activated);
                self.routed[layer].extend(routed);
                out
            } else {
                let activated = self.ffn(layer, &normed);
                record("ffn_act", &activated);
                self.matmul(Some(layer), Tensor::Down, &activated)
            };
            record("ffn_out", &ffn_out);

            let next = if layer + 1 < layers {
                (Some(layer + 1), Tensor::InputNorm)
            } else {
                (None, Tensor::FinalNorm)
            };
            (residual, normed) = self.add_norm(next, &ffn_out, &residual);
            record("out", &residual);
        }
        record("final_norm".into(), &normed);
        self.len += count;
        normed
    }

    /// Rotated queries and keys, and values, as stored; `[tokens][..]` each. With them
    /// the gates of the output, where the model has any.
    ///
    /// Without QK-norm this is the fused kernel: one store, after the
    /// rotation. With it, the projection is stored first and norm and rotation
    /// follow in one kernel (`qk_norm_rope_append`).
    fn qkv(&self, layer: usize, normed: &[Vec<f64>]) -> (Qkv<Vec<Vec<f64>>>, Vec<Vec<f64>>) {
        let spec = self.weights.spec();
        let shape = QkvShape::of(spec);
        let eps = spec.rms_norm_eps;
        let gammas = spec.qk_norm().then(|| {
            [Tensor::QNorm, Tensor::KNorm].map(|t| decode(self.weights.vector(Some(layer), t)))
        });
        let projected = self.products(Some(layer), Tensor::Qkv, normed);
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let mut gates = Vec::new();
        for (i, mut qkv) in projected.into_iter().enumerate() {
            let position = self.len + i;
            if spec.attn_output_gate {
                let split = gated_qkv_split::compute(&self.numerics.store_all(qkv), spec);
                qkv = split.qkv;
                gates.push(split.gate);
            }
            let rotated = match &gammas {
                Some([q_gamma, k_gamma]) => {
                    let norm = HeadNorm {
                        q_gamma,
                        k_gamma,
                        eps,
                    };
                    let stored = self.numerics.store_all(qkv);
                    qk_norm_rope_append::compute(&stored, shape, norm, &self.rope, position)
                }
                None => qkv_fused::rotate(&qkv, shape, &self.rope, position),
            };
            q.push(self.numerics.store_all(rotated.q));
            k.push(self.numerics.store_all(rotated.k));
            v.push(self.numerics.store_all(rotated.v));
        }
        (Qkv { q, k, v }, gates)
    }

    /// Attention's outputs times their gates; as they are where there are none.
    fn gated(&self, mixed: Vec<Vec<f64>>, gates: &[Vec<f64>]) -> Vec<Vec<f64>> {
        if gates.is_empty() {
            return mixed;
        }
        let rows = mixed.iter().zip(gates);
        rows.map(|(x, gate)| self.numerics.store_all(attn_gate::compute(x, gate)))
            .collect()
    }

    /// Caches `k` and `v` and attends to everything up to each token's own
    /// position.
    fn attend(
        &mut self,
        layer: usize,
        q: &[Vec<f64>],
        k: &[Vec<f64>],
        v: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let shape = AttentionShape::of(self.weights.spec());
        let (kv, numerics) = (self.kv, self.numerics);
        let store = |to: &mut Vec<f64>, rows: &[Vec<f64>]| {
            for row in rows {
                match kv {
                    KvFormat::Plain => to.extend_from_slice(row),
                    KvFormat::Int8 => {
                        let codes = kv_quantize_int8::compute(row, shape.head_dim, numerics);
                        to.extend(codes.decode());
                    }
                }
            }
        };
        let cache = &mut self.cache[layer];
        store(&mut cache.k, k);
        store(&mut cache.v, v);
        let attend = |(i, q): (usize, &Vec<f64>)| {
            let visible = (self.len + i + 1) * shape.kv_dim();
            let out = attention::compute(q, &cache.k[..visible], &cache.v[..visible], shape);
            self.numerics.store_all(out)
        };
        q.par_iter().enumerate().map(attend).collect()
    }

    fn ffn(&self, layer: usize, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let gate_up = self.products(Some(layer), Tensor::GateUp, normed);
        let activated = gate_up.iter().map(|gate_up| silu_mul::compute(gate_up));
        activated.map(|y| self.numerics.store_all(y)).collect()
    }

    fn matmul(&self, layer: Option<usize>, tensor: Tensor, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let products = self.products(layer, tensor, xs).into_iter();
        products.map(|y| self.numerics.store_all(y)).collect()
    }

    /// Products before they are stored.
    fn products(&self, layer: Option<usize>, tensor: Tensor, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let matrix = self.weights.matrix(layer, tensor);
        // A prompt's head is that of a step.
        let head = tensor == self.weights.spec().head_tensor();
        let rounds = match self.int8 {
            Int8::Nothing => false,
            Int8::Steps => self.steps || head,
            Int8::Everything => true,
        };
        if rounds && matrix.format.bits() == 4 {
            let rounded: Vec<Vec<f64>> = xs.iter().map(|x| int8_rounded(x)).collect();
            return matrix.matmul(&borrow(&rounded));
        }
        matrix.matmul(&borrow(xs))
    }

    fn rms_norm(&self, (layer, tensor): (Option<usize>, Tensor), xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let gamma = decode(self.weights.vector(layer, tensor));
        let eps = self.weights.spec().rms_norm_eps;
        xs.iter()
            .map(|x| self.numerics.store_all(rms_norm::compute(x, &gamma, eps)))
            .collect()
    }

    /// New residuals and their norms.
    fn add_norm(
        &self,
        (layer, tensor): (Option<usize>, Tensor),
        deltas: &[Vec<f64>],
        residuals: &[Vec<f64>],
    ) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let gamma = decode(self.weights.vector(layer, tensor));
        let eps = self.weights.spec().rms_norm_eps;
        let pairs = deltas.iter().zip(residuals);
        pairs
            .map(|(delta, residual)| {
                let out = add_norm::compute(delta, residual, &gamma, eps, self.numerics);
                (out.residual, self.numerics.store_all(out.normed))
            })
            .unzip()
    }
}

/// The norm that reads the embedding.
fn first_norm(layers: usize) -> (Option<usize>, Tensor) {
    match layers {
        0 => (None, Tensor::FinalNorm),
        _ => (Some(0), Tensor::InputNorm),
    }
}

fn borrow(xs: &[Vec<f64>]) -> Vec<&[f64]> {
    xs.iter().map(Vec::as_slice).collect()
}
