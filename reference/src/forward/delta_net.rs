//! Gated DeltaNet in the forward pass: a state in place of a cache.

use super::{Forward, Weights};
use crate::numerics::{decode, widen};
use crate::roles::gdn_gates::Rates;
use crate::roles::{gdn_conv, gdn_gates, gdn_norm_out, gdn_recur};
use kernels::{ModelSpec, Tensor};

/// What one layer remembers of the tokens before.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerState {
    /// Raw tokens of the convolution, `[taps - 1, channels]`.
    ring: Vec<f64>,
    /// `[value heads, key dim, value dim]`.
    state: Vec<f64>,
}

impl LayerState {
    /// Nothing remembered; empty where the model has no such layers.
    pub(super) fn new(spec: &ModelSpec) -> Self {
        spec.delta_net.map_or_else(Self::default, |net| Self {
            ring: vec![0.0; net.ring_len() * net.conv_dim()],
            state: vec![0.0; net.state_len()],
        })
    }

    pub(super) fn forget(&mut self) {
        self.ring.fill(0.0);
        self.state.fill(0.0);
    }
}

impl<W: Weights + ?Sized> Forward<'_, W> {
    /// One layer's raw tokens of the convolution, `[taps - 1, channels]` by slot, and
    /// its state, `[value heads, key dim, value dim]`.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn remembered(&self, layer: usize) -> (&[f64], &[f64]) {
        let layer = &self.states[layer];
        (&layer.ring, &layer.state)
    }

    /// Norms `[T][D]` to what the output projection reads, `[T][values]`.
    pub(super) fn delta_net(&mut self, layer: usize, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let spec = self.weights.spec();
        let net = spec.delta_net.expect("the layer has a state");
        let numerics = self.numerics;
        let projected = self.matmul(Some(layer), Tensor::GdnProj, normed);
        let (channels, values) = (net.conv_dim(), net.value_dim());
        let heads = net.linear_num_value_heads;
        let raw: Vec<Vec<f64>> = projected.iter().map(|p| p[..channels].to_vec()).collect();
        let taps = decode(self.weights.vector(Some(layer), Tensor::GdnConv));
        let a_log = widen(self.weights.floats(Some(layer), Tensor::GdnALog));
        let dt_bias = widen(self.weights.floats(Some(layer), Tensor::GdnDtBias));
        let gamma = decode(self.weights.vector(Some(layer), Tensor::GdnNorm));
        let rates = Rates {
            a_log: &a_log,
            dt_bias: &dt_bias,
        };
        let gates = projected.iter().map(|p| {
            let (a, b) = p[channels + values..].split_at(heads);
            gdn_gates::compute(a, b, rates)
        });
        let gates: Vec<Vec<f64>> = gates.collect();
        let remembered = &mut self.states[layer];
        let mixed = gdn_conv::compute(&raw, &remembered.ring, &taps, self.len);
        let mixed: Vec<Vec<f64>> = mixed.into_iter().map(|x| numerics.store_all(x)).collect();
        gdn_conv::commit(&raw, &mut remembered.ring, self.len);
        let read = gdn_recur::compute(&net, &mixed, &gates, &mut remembered.state);
        let rows = read.iter().zip(&projected);
        rows.map(|(read, p)| {
            let z = &p[channels..channels + values];
            let out = gdn_norm_out::compute(read, z, &gamma, spec.rms_norm_eps);
            numerics.store_all(out)
        })
        .collect()
    }
}
