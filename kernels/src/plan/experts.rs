//! The part of a plan that is a mixture of experts, in seven dispatches: the index of
//! a token's expert is z of the grid, its token y.

use super::{Activation, Builder, Dispatch, PlanError, Row, Work, act};
use crate::{
    models::{Experts, Tensor},
    role::Role,
    variants::WIDE_THREADS,
};

/// Elements from one run of a product's operands to the next.
struct Strides {
    in_slot: usize,
    out_slot: usize,
    in_token: usize,
    out_token: usize,
    /// The first output of a slot.
    out_first: usize,
}

/// The sites of an expert's matrices.
const SITES: [(Tensor, &str); 3] = [
    (Tensor::ExpertGate, "expert_gate"),
    (Tensor::ExpertUp, "expert_up"),
    (Tensor::ExpertDown, "expert_down"),
];

impl Builder<'_> {
    /// From the norm to the sum of the experts' outputs.
    pub(super) fn experts(&mut self, layer: usize) -> Result<(), PlanError> {
        let experts = self.spec.experts.expect("the layer has experts");
        let (d, f, slots) = (
            self.spec.hidden_size,
            self.spec.intermediate_size,
            experts.slots(),
        );
        self.router_logits(layer)?;
        self.router_topk(layer, &experts)?;
        let [gate, up, down] = SITES;
        for (site, out_first) in [(gate, 0), (up, f)] {
            let strides = Strides {
                in_slot: 0,
                out_slot: 2 * f,
                in_token: d,
                out_token: slots * 2 * f,
                out_first,
            };
            let (input, output) = (Activation::Normed, Activation::ExpertGateUp);
            self.matmul_moe(layer, site, [input, output], &strides)?;
        }
        let (output, input) = (Activation::ExpertFfn, Activation::ExpertGateUp);
        self.silu_mul(layer, [output, input], self.tokens * slots)?;
        let strides = Strides {
            in_slot: f,
            out_slot: d,
            in_token: slots * f,
            out_token: slots * d,
            out_first: 0,
        };
        let (input, output) = (Activation::ExpertFfn, Activation::ExpertDelta);
        self.matmul_moe(layer, down, [input, output], &strides)?;
        self.moe_combine(layer, slots)
    }

    fn router_logits(&mut self, layer: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.router");
        let w = self.matrix(Some(layer), Tensor::Router);
        let variant = self.choose(Role::MoeRouterLogits, Row::of(&w), &label)?;
        let groups = w.rows.div_ceil(variant.outputs_per_workgroup());
        let buffers = [Activation::RouterLogits, Activation::Normed].map(act);
        self.dispatches.push(Dispatch {
            label,
            variant,
            uniform: vec![
                w.format.words_per_row(w.k) as u32,
                w.format.scales_per_row(w.k) as u32,
                w.rows as u32,
            ],
            work: w.work(self.tokens),
            buffers: w.bound([&buffers[..], &[w.scales, w.words]].concat()),
            grid: [groups as u32, self.tokens as u32, 1],
        });
        Ok(())
    }

    fn router_topk(&mut self, layer: usize, experts: &Experts) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.topk");
        let variant = self.base(Role::MoeRouterTopk, &label)?;
        let buffers = [
            Activation::ExpertIds,
            Activation::ExpertScores,
            Activation::RouterLogits,
        ];
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: buffers.map(act).to_vec(),
            uniform: vec![
                experts.num_experts as u32,
                experts.num_experts_per_tok as u32,
                u32::from(experts.norm_topk_prob),
                u32::from(experts.shared_expert),
            ],
            grid: [self.tokens as u32, 1, 1],
            work: Work::NONE,
        });
        Ok(())
    }

    /// The product of each slot with its expert's matrix, in a dispatch for as many
    /// experts as a binding holds.
    fn matmul_moe(
        &mut self,
        layer: usize,
        (tensor, site): (Tensor, &str),
        [input, output]: [Activation; 2],
        strides: &Strides,
    ) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.{site}");
        let experts = self.spec.experts.expect("the layer has experts");
        let (slots, stack) = (experts.slots(), experts.stack());
        let w = self.matrix(Some(layer), tensor);
        let variant = self.choose(Role::Int4MatmulMoe, Row::of(&w), &label)?;
        let rows = w.rows / stack;
        let groups = rows.div_ceil(variant.outputs_per_workgroup());
        for w in w.bindable_experts(rows, self.features.max_storage_binding_bytes) {
            let (first, count) = (w.first / rows, w.rows / rows);
            self.dispatches.push(Dispatch {
                label: w.label(&label),
                variant,
                uniform: vec![
                    w.format.words_per_row(w.k) as u32,
                    w.format.scales_per_row(w.k) as u32,
                    rows as u32,
                    strides.in_slot as u32,
                    strides.out_slot as u32,
                    strides.in_token as u32,
                    strides.out_token as u32,
                    slots as u32,
                    strides.out_first as u32,
                    first as u32,
                    count as u32,
                ],
                work: w.expert_work(stack, self.tokens * slots),
                buffers: {
                    let mut bound = w.bound(vec![act(output), act(input), w.scales, w.words]);
                    bound.push(act(Activation::ExpertIds));
                    bound
                },
                grid: [groups as u32, self.tokens as u32, slots as u32],
            });
        }
        Ok(())
    }

    fn moe_combine(&mut self, layer: usize, slots: usize) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.combine_experts");
        let variant = self.base(Role::MoeCombine, &label)?;
        let d = self.spec.hidden_size;
        let buffers = [
            Activation::Delta,
            Activation::ExpertDelta,
            Activation::ExpertScores,
        ];
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: buffers.map(act).to_vec(),
            uniform: vec![d as u32, slots as u32],
            grid: [d.div_ceil(WIDE_THREADS) as u32, self.tokens as u32, 1],
            work: Work::NONE,
        });
        Ok(())
    }

    /// `silu(gate) * up` of `rows` rows.
    pub(super) fn silu_mul(
        &mut self,
        layer: usize,
        [output, input]: [Activation; 2],
        rows: usize,
    ) -> Result<(), PlanError> {
        let label = format!("layers.{layer}.silu_mul");
        let variant = self.base(Role::SiluMul, &label)?;
        let groups = (rows * self.spec.intermediate_size).div_ceil(WIDE_THREADS);
        self.dispatches.push(Dispatch {
            label,
            variant,
            buffers: [output, input].map(act).to_vec(),
            uniform: vec![rows as u32, groups as u32],
            grid: self.fold(groups),
            work: Work::NONE,
        });
        Ok(())
    }
}
