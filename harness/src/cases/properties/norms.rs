//! Properties of the norms, of the rotation, and of both together.

use super::super::{
    bench::{Bench, model},
    data::{Kind, Values},
    roles::{self as cases, Cache},
};
use super::{Draw, heads, max_groups, require, widths};
use anyhow::{Context as _, Result};
use kernels::{ModelSpec, Variant, kv::PAGE_SIZE};
use proptest::{prelude::*, sample::select};

/// Rows to normalise.
#[derive(Clone, Debug)]
struct Rows {
    d: usize,
    tokens: usize,
    eps: f64,
    kinds: [Kind; 2],
    max_groups: u32,
    seed: u64,
}

fn rows() -> impl Strategy<Value = Rows> {
    let kinds = [select(&Kind::ALL[..]), select(&Kind::ALL[..])];
    let eps = select(&[1e-5, 1e-6][..]);
    let tokens = select(&[1_usize, 2, 9][..]);
    (widths(), tokens, eps, kinds, max_groups(), any::<u64>()).prop_map(
        |(d, tokens, eps, kinds, max_groups, seed)| Rows {
            d,
            tokens,
            eps,
            kinds,
            max_groups,
            seed,
        },
    )
}

impl Rows {
    fn spec(&self) -> ModelSpec {
        ModelSpec {
            hidden_size: self.d,
            rms_norm_eps: self.eps,
            ..model()
        }
    }

    /// Two operands `[T, D]` of their kinds, and gammas.
    fn operands(&self) -> ([Vec<f32>; 2], Vec<f32>) {
        let mut values = Values(self.seed);
        let x = self.kinds.map(|kind| {
            let rows = (0..self.tokens).flat_map(|_| values.activations(self.d, kind, 1.0));
            rows.collect()
        });
        (x, values.activations(self.d, Kind::Ordinary, 1.0))
    }
}

pub(super) fn rms_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(bench, variant, rows(), |bench, variant, case| {
        let ([x, _], gamma) = case.operands();
        bench.max_groups = case.max_groups;
        require(cases::rms_norm(bench, variant, &case.spec(), &x, &gamma))
    })
}

pub(super) fn add_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(bench, variant, rows(), |bench, variant, case| {
        let ([a, b], gamma) = case.operands();
        bench.max_groups = case.max_groups;
        require(cases::add_norm(
            bench,
            variant,
            &case.spec(),
            &a,
            &b,
            &gamma,
        ))
    })
}

pub(super) fn add3_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let third = select(&Kind::ALL[..]);
    draw.judge(
        bench,
        variant,
        (rows(), third),
        |bench, variant, (case, third)| {
            let ([a, b], gamma) = case.operands();
            let mut values = Values(case.seed.wrapping_add(1));
            let rows = (0..case.tokens).flat_map(|_| values.activations(case.d, *third, 1.0));
            let c: Vec<f32> = rows.collect();
            bench.max_groups = case.max_groups;
            let addends = [&a[..], &b, &c];
            require(cases::add3_norm(
                bench,
                variant,
                &case.spec(),
                addends,
                &gamma,
            ))
        },
    )
}

/// Rows of the fused projection of `tokens` tokens, and the gammas of its heads.
fn projections(
    spec: &ModelSpec,
    tokens: usize,
    kind: Kind,
    values: &mut Values,
) -> (Vec<f32>, [Vec<f32>; 2]) {
    let rows = (0..tokens).flat_map(|_| values.activations(spec.qkv_dim(), kind, 1.0));
    let rows = rows.collect();
    let mut gamma = || values.activations(spec.head_dim, Kind::Ordinary, 1.0);
    (rows, [gamma(), gamma()])
}

pub(super) fn qk_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let tokens = || select(&[1_usize, 2, 9][..]);
    let kinds = || select(&Kind::ALL[..]);
    let rest = || (max_groups(), any::<u64>());
    draw.judge(
        bench,
        variant,
        (heads(), tokens(), kinds(), rest()),
        |bench, variant, (spec, tokens, kind, (max_groups, seed))| {
            let mut values = Values(*seed);
            let (qkv, [q, k]) = projections(spec, *tokens, *kind, &mut values);
            bench.max_groups = *max_groups;
            require(cases::qk_norm(bench, variant, spec, &qkv, [&q, &k]))
        },
    )
}

// ---- rotation and cache ----

pub(super) fn rope(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let positions = || {
        let position = select(&[0, 1, 15, 16, 17, 511, 4095, 8191, 131_071][..]);
        prop::collection::vec(position, 1..6)
    };
    let kinds = || select(&Kind::ALL[..]);
    let rest = || (max_groups(), any::<u64>());
    draw.judge(
        bench,
        variant,
        (
            heads(),
            positions(),
            kinds(),
            select(&[0_usize, 3][..]),
            rest(),
        ),
        |bench, variant, (spec, positions, kind, offset, (max_groups, seed))| {
            let mut values = Values(*seed);
            let rows = positions.iter();
            let qkv: Vec<f32> = rows
                .flat_map(|_| values.activations(spec.qkv_dim(), *kind, 1.0))
                .collect();
            bench.max_groups = *max_groups;
            [true, false].into_iter().try_for_each(|rotate| {
                require(cases::rope(
                    bench, variant, spec, &qkv, positions, *offset, rotate,
                ))
                .with_context(|| format!("apply_rope {rotate}"))
            })
        },
    )
}

/// Positions from `first` on, one of them padding where there are enough.
pub(super) fn padded_positions(first: usize, tokens: usize, values: &mut Values) -> Vec<i32> {
    let mut positions: Vec<i32> = (first..first + tokens).map(|p| p as i32).collect();
    if tokens > 2 {
        let padding = values.below(tokens);
        positions[padding] = -1;
    }
    positions
}

pub(super) fn qk_norm_rope_append(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
) -> Result<()> {
    let tokens = || select(&[1_usize, 2, 17, 33][..]);
    let kinds = || select(&Kind::ALL[..]);
    let rest = || (max_groups(), any::<u64>());
    draw.judge(
        bench,
        variant,
        (heads(), tokens(), kinds(), rest()),
        |bench, variant, (spec, tokens, kind, (max_groups, seed))| {
            let mut values = Values(*seed);
            let held = spec.max_pages * PAGE_SIZE;
            let tokens = *tokens.min(&held);
            bench.max_groups = *max_groups;
            // From the start, and up to the last slot.
            for first in [0, held - tokens] {
                let positions = padded_positions(first, tokens, &mut values);
                let (qkv, [q, k]) = projections(spec, tokens, *kind, &mut values);
                let mut cache = Cache::empty(spec, values.permutation(spec.max_pages), 0);
                let old = values.activations(held * spec.kv_dim(), Kind::Ordinary, 1.0);
                cache.fill(spec, &old, &old);
                require(cases::qk_norm_rope_append(
                    bench,
                    variant,
                    spec,
                    &qkv,
                    [&q, &k],
                    &cache,
                    &positions,
                ))
                .with_context(|| format!("positions {positions:?}"))?;
            }
            Ok(())
        },
    )
}
