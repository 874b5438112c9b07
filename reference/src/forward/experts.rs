//! A mixture of experts in the forward pass.

use super::{Forward, Weights};
use crate::roles::moe_router_topk::{self, Chosen};
use crate::roles::{int4_matmul_moe, moe_combine, silu_mul};
use kernels::Tensor;
use rayon::prelude::*;

/// What the experts of a chunk's tokens gave.
pub(super) struct Mixture {
    /// Router logits, the shared expert's behind them, `[T][E + 1]`.
    pub(super) logits: Vec<Vec<f64>>,
    /// Activations of each slot, one after the other, `[T][S F]`.
    pub(super) activated: Vec<Vec<f64>>,
    /// Their sum, `[T][D]`.
    pub(super) out: Vec<Vec<f64>>,
}

impl<W: Weights + ?Sized> Forward<'_, W> {
    /// Norms `[T][D]` through the experts that the router names.
    pub(super) fn experts(&self, layer: usize, normed: &[Vec<f64>]) -> Mixture {
        let router = self.weights.matrix(Some(layer), Tensor::Router);
        // In f32, which is as good as unrounded here.
        let borrowed: Vec<&[f64]> = normed.iter().map(Vec::as_slice).collect();
        let logits = router.matmul(&borrowed);
        let tokens = normed.par_iter().zip(&logits);
        let (activated, out) = tokens
            .map(|(x, logits)| self.of_token(layer, x, logits))
            .unzip();
        Mixture {
            logits,
            activated,
            out,
        }
    }

    /// A token's activations, slot after slot, and their sum.
    fn of_token(&self, layer: usize, x: &[f64], logits: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let spec = self.weights.spec();
        let experts = spec.experts.expect("the layer has experts");
        let (d, f) = (spec.hidden_size, spec.intermediate_size);
        let product = |tensor, rows, expert, x: &[f64]| {
            let w = self.weights.matrix(Some(layer), tensor);
            let y = int4_matmul_moe::compute(w, rows, expert, x);
            self.numerics
                .store_all(y.expect("the router names experts of the stack"))
        };
        let Chosen { ids, weights } = moe_router_topk::compute(logits, &experts);
        let (mut activated, mut slots) = (Vec::new(), Vec::new());
        for id in ids {
            let mut gate_up = product(Tensor::ExpertGate, f, id, x);
            gate_up.extend(product(Tensor::ExpertUp, f, id, x));
            let slot = self.numerics.store_all(silu_mul::compute(&gate_up));
            slots.extend(product(Tensor::ExpertDown, d, id, &slot));
            activated.extend(slot);
        }
        let out = self
            .numerics
            .store_all(moe_combine::compute(&slots, &weights));
        (activated, out)
    }
}
