//! A mixture of experts in the forward pass.

use super::{Forward, Weights};
use crate::roles::moe_router_topk::{self, Chosen};
use crate::roles::{int4_matmul_moe, moe_combine, silu_mul};
use kernels::Tensor;
use rayon::prelude::*;

/// The experts of tokens, without the shared one: `[layer][position][K]`.
pub type Choices = Vec<Vec<Vec<u32>>>;

/// What a token's router said in a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Logits `[E]`, that of the shared expert's gate behind them.
    pub logits: Vec<f64>,
    /// The experts, without the shared one.
    pub ids: Vec<u32>,
}

/// What the experts of a chunk's tokens gave.
pub(super) struct Mixture {
    /// By token.
    pub(super) routed: Vec<Routed>,
    /// Activations of each slot, one after the other, `[T][S F]`.
    pub(super) activated: Vec<Vec<f64>>,
    /// Their sum, `[T][D]`.
    pub(super) out: Vec<Vec<f64>>,
}

impl<W: Weights + ?Sized> Forward<'_, W> {
    /// The same pass, in which the tokens whose choices these are go to those experts,
    /// whatever their routers say; the others to those of the greatest logits.
    ///
    /// The experts must be those of the model.
    #[must_use]
    pub fn following(self, choices: Choices) -> Self {
        Self {
            followed: choices,
            ..self
        }
    }

    /// What the routers of a layer said, by position.
    ///
    /// # Panics
    /// When the model has no such layer.
    pub fn routed(&self, layer: usize) -> &[Routed] {
        &self.routed[layer]
    }

    /// The experts of every token fed.
    pub fn choices(&self) -> Choices {
        let ids = |layer: &Vec<Routed>| layer.iter().map(|routed| routed.ids.clone()).collect();
        self.routed.iter().map(ids).collect()
    }

    /// Norms `[T][D]` through the experts that the router names, or those followed.
    pub(super) fn experts(&self, layer: usize, normed: &[Vec<f64>]) -> Mixture {
        let router = self.weights.matrix(Some(layer), Tensor::Router);
        // In f32, which is as good as unrounded here.
        let borrowed: Vec<&[f64]> = normed.iter().map(Vec::as_slice).collect();
        let logits = router.matmul(&borrowed);
        let experts = self.weights.spec().experts.expect("the layer has experts");
        let followed = self.followed.get(layer).map_or(&[][..], Vec::as_slice);
        let rows = logits.into_iter().enumerate();
        let routed: Vec<Routed> = rows
            .map(|(i, logits)| Routed {
                ids: match followed.get(self.len + i) {
                    Some(ids) => ids.clone(),
                    None => moe_router_topk::choose(&logits, &experts),
                },
                logits,
            })
            .collect();
        let tokens = normed.par_iter().zip(&routed);
        let (activated, out) = tokens
            .map(|(x, routed)| self.of_token(layer, x, routed))
            .unzip();
        Mixture {
            routed,
            activated,
            out,
        }
    }

    /// A token's activations, slot after slot, and their sum.
    fn of_token(&self, layer: usize, x: &[f64], routed: &Routed) -> (Vec<f64>, Vec<f64>) {
        let spec = self.weights.spec();
        let experts = spec.experts.expect("the layer has experts");
        let (d, f) = (spec.hidden_size, spec.intermediate_size);
        let product = |tensor, rows, expert, x: &[f64]| {
            let w = self.weights.matrix(Some(layer), tensor);
            let y = int4_matmul_moe::compute(w, rows, expert, x);
            self.numerics
                .store_all(y.expect("the router names experts of the stack"))
        };
        let Chosen { ids, weights } =
            moe_router_topk::weigh(&routed.logits, routed.ids.clone(), &experts);
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
