//! Properties of a mixture of experts.

use super::super::{
    bench::{Bench, model},
    data::{Kind, Values},
    roles::{self as cases, Slots},
};
use super::{Draw, Product, products, require, widths};
use anyhow::Result;
use kernels::{ModelSpec, Variant, models::Experts};
use proptest::{prelude::*, sample::select};

/// Experts that are named more than once, the last among them, by several tokens.
pub(super) fn int4_matmul_moe(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let rows = || select(&[1_usize, 3, 16, 17, 66][..]);
    let counts = (1_usize..6, 1_usize..4, 1_usize..4);
    let gaps = select(&[0_usize, 32][..]);
    draw.judge(
        bench,
        variant,
        (products(variant, rows()), counts, gaps, any::<bool>()),
        |bench, variant, (case, (experts, tokens, slots), gap, own_x)| {
            let stack = Product {
                rows: case.rows * experts,
                ..case.clone()
            };
            // Activations of the other slots and tokens are smaller.
            let (w, x) = stack.operands(variant, 60_000.0);
            let mut values = Values(case.seed);
            let slot = |i: usize| x.iter().map(move |x| x * 0.9_f32.powi(i as i32));
            let all: Vec<f32> = (0..tokens * slots).flat_map(slot).collect();
            let mut ids: Vec<Vec<u32>> = (0..*tokens)
                .map(|_| (0..*slots).map(|_| values.below(*experts) as u32).collect())
                .collect();
            ids[0][0] = *experts as u32 - 1;
            *ids[tokens - 1].last_mut().expect("a slot") = *experts as u32 - 1;
            let mut slots = Slots {
                rows: case.rows,
                ids,
                own_x: *own_x,
                gap: *gap,
                bound: 0..*experts,
            };
            require(cases::int4_matmul_moe(bench, variant, &w, &all, &slots))?;
            // As where one binding cannot hold the stack.
            slots.bound = experts / 2..*experts;
            require(cases::int4_matmul_moe(bench, variant, &w, &all, &slots))
        },
    )
}

pub(super) fn moe_router_logits(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let experts = || select(&[1_usize, 3, 16, 17, 66][..]);
    let tokens = select(&[1_usize, 2, 5][..]);
    let strategy = (products(variant, experts()), tokens, any::<bool>());
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (case, tokens, shared_expert) = case;
        let experts = Experts {
            num_experts: case.rows,
            num_experts_per_tok: 1,
            norm_topk_prob: true,
            shared_expert: *shared_expert,
        };
        let spec = ModelSpec {
            hidden_size: case.k,
            experts: Some(experts),
            ..model()
        };
        let stack = Product {
            rows: experts.stack(),
            ..case.clone()
        };
        let (w, x) = stack.operands_of(variant, *tokens, f64::from(f32::MAX));
        require(cases::moe_router_logits(bench, variant, &spec, &w, &x))
    })
}

/// What router logits are like.
#[derive(Clone, Copy, Debug)]
enum Logits {
    /// About normal.
    Ordinary,
    /// Of few values, so that many tie.
    Ties,
    /// So far apart that all weights but one vanish.
    Saturated,
}

impl Logits {
    fn of(self, values: &mut Values, n: usize) -> Vec<f32> {
        match self {
            Self::Ordinary => values.activations(n, Kind::Ordinary, 1.0),
            Self::Ties => (0..n).map(|_| values.below(3) as f32 - 1.0).collect(),
            Self::Saturated => (0..n)
                .map(|_| (values.below(9) as f32 - 4.0) * 500.0)
                .collect(),
        }
    }
}

pub(super) fn moe_router_topk(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let experts = select(&[1_usize, 2, 16, 31, 60, 128, 255, 256][..]);
    let chosen = select(&[1_usize, 2, 4, 8, 31, 32][..]);
    let tokens = select(&[1_usize, 2, 5][..]);
    let logits = select(&[Logits::Ordinary, Logits::Ties, Logits::Saturated][..]);
    let strategy = (
        (experts, chosen, any::<bool>(), any::<bool>()),
        tokens,
        logits,
        any::<u64>(),
    );
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let ((num_experts, chosen, norm_topk_prob, shared_expert), tokens, logits, seed) = case;
        let experts = Experts {
            num_experts: *num_experts,
            num_experts_per_tok: *chosen.min(num_experts),
            norm_topk_prob: *norm_topk_prob,
            shared_expert: *shared_expert,
        };
        let mut values = Values(*seed);
        let rows = (0..*tokens).flat_map(|_| logits.of(&mut values, experts.stack()));
        let logits: Vec<f32> = rows.collect();
        require(cases::moe_router_topk(bench, variant, &experts, &logits))
    })
}

pub(super) fn moe_combine(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let slots = select(&[1_usize, 2, 5, 9, 33][..]);
    let tokens = select(&[1_usize, 2, 5][..]);
    let kind = select(
        &[
            Kind::Ordinary,
            Kind::OutlierChannels,
            Kind::Subnormal,
            Kind::Zero,
        ][..],
    );
    let strategy = (widths(), slots, tokens, kind, any::<u64>());
    draw.judge(bench, variant, strategy, |bench, variant, case| {
        let (n, slots, tokens, kind, seed) = case;
        let mut values = Values(*seed);
        let rows = (0..tokens * slots).flat_map(|_| values.activations(*n, *kind, 1.0));
        let x: Vec<f32> = rows.collect();
        let score: Vec<f32> = (0..tokens * slots)
            .map(|_| values.uniform() as f32)
            .collect();
        require(cases::moe_combine(bench, variant, *tokens, &x, &score))
    })
}
