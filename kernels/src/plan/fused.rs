//! The token of five dispatches a layer: norms inside the projections behind them,
//! additions to the residual inside those before.

use super::{
    Builder, PlanError, Row, act,
    dispatch::{Activation, Buffer, Dispatch, State},
    state,
};
use crate::{
    models::{Mixer, Tensor},
    role::Role,
};

impl Builder<'_> {
    /// Whether the flag `fusenorm` is on and the model allows it.
    pub(super) fn fuses_norms(&mut self) -> bool {
        if !self.settings.get("fusenorm").is_on() {
            return false;
        }
        let spec = self.spec;
        let layers = 0..spec.num_hidden_layers;
        let tensors = [Tensor::Qkv, Tensor::O, Tensor::GateUp, Tensor::Down];
        let reason = if spec.qk_norm() || spec.attn_output_gate {
            "a norm or a gate of heads stands between projection and attention"
        } else if spec.experts.is_some() {
            "experts have no fused feed-forward layer"
        } else if layers
            .clone()
            .any(|layer| spec.mixer(layer) != Mixer::Attention)
        {
            "its layers of gated DeltaNet have no such form"
        } else if layers.into_iter().any(|layer| {
            let wide = |&tensor: &Tensor| self.matrix(Some(layer), tensor).format.bits() != 4;
            tensors.iter().any(wide)
        }) {
            "it is written for weights of four bits"
        } else {
            return true;
        };
        self.refuse("fusenorm", reason);
        false
    }

    pub(super) fn forward_in_five(&mut self, splits: usize) -> Result<(), PlanError> {
        for layer in 0..self.spec.num_hidden_layers {
            self.qkv_fused_norm(layer)?;
            self.attention(layer, splits)?;
            let residual = |i| Activation::Residual(i);
            self.matmul_add(
                layer,
                Tensor::O,
                Activation::Attention,
                [residual(0), residual(1)],
            )?;
            self.fused_ffn_norm(layer)?;
            self.matmul_add(
                layer,
                Tensor::Down,
                Activation::Ffn,
                [residual(1), residual(0)],
            )?;
        }
        self.rms_norm("final_norm", (None, Tensor::FinalNorm), 0)?;
        self.lm_head()?;
        self.next_token()
    }

    fn qkv_fused_norm(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.qkv");
        let w = self.matrix(Some(layer), Tensor::Qkv);
        let variant = self.choose(Role::QkvFusedNorm, Row::of(&w), &label)?;
        let pairs = w.rows / 2;
        let buffers = vec![
            act(Activation::Q),
            Buffer::KvPages { layer },
            act(Activation::Residual(0)),
            Self::vector(Some(layer), Tensor::InputNorm),
            w.scales,
            w.words,
            state(State::PositionMap),
            state(State::PageValues),
            state(State::InvFreq),
        ];
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: w.bound(buffers),
            uniform: vec![0, 0, pairs as u32],
            grid: self.matrix_grid(variant, pairs),
            work: w.work(self.tokens),
        });
        Ok(())
    }

    fn fused_ffn_norm(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.ffn");
        let w = self.matrix(Some(layer), Tensor::GateUp);
        let variant = self.choose(Role::FusedFfnNorm, Row::of(&w), &label)?;
        let units = w.rows / 2;
        let buffers = vec![
            act(Activation::Ffn),
            act(Activation::Residual(1)),
            Self::vector(Some(layer), Tensor::PostNorm),
            w.scales,
            w.words,
        ];
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: w.bound(buffers),
            uniform: vec![units as u32],
            grid: self.matrix_grid(variant, units),
            work: w.work(self.tokens),
        });
        Ok(())
    }

    fn matmul_add(
        &mut self,
        layer: usize,
        tensor: Tensor,
        input: Activation,
        [from, to]: [Activation; 2],
    ) -> Result<(), PlanError> {
        let site = if tensor == Tensor::O { "o" } else { "down" };
        let label = format!("layers.{layer}.{site}");
        let w = self.matrix(Some(layer), tensor);
        let variant = self.choose(Role::Int4MatmulAdd, Row::of(&w), &label)?;
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: w.bound(vec![act(to), act(from), act(input), w.scales, w.words]),
            uniform: vec![
                w.format.words_per_row(w.k) as u32,
                w.format.scales_per_row(w.k) as u32,
                w.rows as u32,
            ],
            grid: self.matrix_grid(variant, w.rows),
            work: w.work(self.tokens),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{features::Features, plan::tests::plan};

    /// Five dispatches a layer, and who cannot have them.
    #[test]
    fn norms_are_fused_where_nothing_stands_between() {
        let choices = ["dp4a=1", "fusenorm=1", "splitk=0"];
        let found = plan("phi3-mini", &choices, &Features::PUBLISHED).expect("a plan");
        let totals = found.totals();
        assert_eq!(totals.dispatches_per_token, 5 * 32 + 4, "five a layer");
        let of = |role: &str| totals.by_role.get(role).copied().unwrap_or(0);
        assert_eq!(of("int4_matmul_add"), 64, "o and down");
        assert_eq!(of("add_norm"), 0, "no norm of its own");
        for (model, why) in [
            ("qwen3-4b", "a norm or a gate of heads"),
            ("qwen36-35b-a3b", "a norm or a gate of heads"),
        ] {
            let error = plan(model, &choices, &Features::PUBLISHED).expect_err("refused");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
