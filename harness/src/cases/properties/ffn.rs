//! Properties of the feed-forward layer's kernels.

use super::super::{
    bench::{Bench, Judged, model},
    data::{Kind, Values, WeightKind},
    roles as cases,
};
use super::{
    Draw, FOLDS, LONG_ROW, WHOLE, fitted, format_of, max_groups, products, require, vectors_for,
    widths,
};
use anyhow::{Result, ensure};
use kernels::{Elem, Variant};
use proptest::{prelude::*, sample::select};
use reference::{Packed, numerics::widen, roles::rms_norm};

pub(super) fn fused_ffn(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let widths_f = || select(&[32_usize, 64, 96][..]);
    let short = || select(&[0_usize, 1, 15, 17][..]);
    draw.judge(
        bench,
        variant,
        {
            let products = products(variant, widths_f().prop_map(|f| 2 * f));
            (products, short(), vectors_for(variant))
        },
        |bench, variant, (case, short, vectors)| {
            // Gate and up of at most 200 have a product that f16 holds.
            let (w, x) = case.operands_of(variant, *vectors, 200.0);
            bench.max_groups = case.max_groups;
            let units = case.rows / 2 - short;
            require(cases::fused_ffn(bench, variant, &w, &x, units))
        },
    )
}

/// More units than one layer of a small grid and one row of a texture hold.
pub(super) fn folded_ffn(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (units, k) = (1024, 96);
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), 2 * units, k, WeightKind::Ordinary);
    let vectors = if variant.is_batched() { 7 } else { 1 };
    let x = values.activations(vectors * k, Kind::Ordinary, 0.7);
    bench.max_groups = FOLDS;
    require(cases::fused_ffn(bench, variant, &w, &x, units - 15))
}

/// Residual, what is added to it, and gammas that leave no product above 200.
fn normed_operands(w: &Packed, kinds: [Kind; 2], values: &mut Values) -> [Vec<f32>; 3] {
    let [residual, delta] = kinds.map(|kind| values.activations(w.k, kind, 1.0));
    let sum = residual.iter().zip(&delta).map(|(a, b)| a + b);
    let sum: Vec<f32> = sum.map(|x| half::f16::from_f32(x).to_f32()).collect();
    let gamma = gamma_for(w, &sum, 200.0, values);
    [delta, residual, gamma]
}

/// Gammas of a norm of `sum` that leave no product above `most`.
pub(super) fn gamma_for(w: &Packed, sum: &[f32], most: f64, values: &mut Values) -> Vec<f32> {
    let gamma = values.activations(w.k, Kind::Ordinary, 0.7);
    let normed = |gamma: &[f32]| {
        let eps = model().rms_norm_eps;
        let normed = rms_norm::compute(&widen(sum), &widen(gamma), eps);
        normed.iter().map(|&y| y as f32).collect::<Vec<f32>>()
    };
    let before = normed(&gamma);
    let after = fitted(w, before.clone(), most);
    let factor = before
        .iter()
        .zip(&after)
        .find(|(before, _)| **before != 0.0);
    let factor = factor.map_or(1.0, |(before, after)| after / before);
    gamma.iter().map(|g| g * factor).collect()
}

pub(super) fn fused_ffn_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let widths_f = || select(&[32_usize, 64, 96][..]);
    let short = || select(&[0_usize, 1, 15, 17][..]);
    draw.judge(
        bench,
        variant,
        {
            let products = products(variant, widths_f().prop_map(|f| 2 * f));
            (products, short(), select(&Kind::ALL[..]))
        },
        |bench, variant, (case, short, kind)| {
            let mut values = Values(case.seed);
            let w = values.packed(format_of(variant), case.rows, case.k, case.weights);
            let x = values.activations(w.k, *kind, 1.0);
            let gamma = gamma_for(&w, &x, 200.0, &mut values);
            bench.max_groups = case.max_groups;
            let units = case.rows / 2 - short;
            require(cases::fused_ffn_norm(
                bench,
                variant,
                &w,
                [&x, &gamma],
                units,
            ))
        },
    )
}

/// A row of more groups than a workgroup has invocations.
pub(super) fn long_ffn_norm(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), 2 * 32, LONG_ROW, WeightKind::Ordinary);
    let x = values.activations(w.k, Kind::Ordinary, 1.0);
    let gamma = gamma_for(&w, &x, 200.0, &mut values);
    require(cases::fused_ffn_norm(bench, variant, &w, [&x, &gamma], 32))
}

pub(super) fn fused_ffn_prologue(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
) -> Result<()> {
    let widths_f = || select(&[32_usize, 64, 96][..]);
    let short = || select(&[0_usize, 1, 15, 17][..]);
    let kinds = || [select(&Kind::ALL[..]), select(&Kind::ALL[..])];
    draw.judge(
        bench,
        variant,
        {
            let products = products(variant, widths_f().prop_map(|f| 2 * f));
            (products, short(), kinds())
        },
        |bench, variant, (case, short, kinds)| {
            let mut values = Values(case.seed);
            let w = values.packed(format_of(variant), case.rows, case.k, case.weights);
            let x = normed_operands(&w, *kinds, &mut values);
            bench.max_groups = case.max_groups;
            let units = case.rows / 2 - short;
            let x = x.each_ref().map(|x| &x[..]);
            require(cases::fused_ffn_prologue(bench, variant, &w, x, units))
        },
    )
}

/// As [`folded_ffn`].
pub(super) fn folded_prologue(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (units, k) = (1024, 96);
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), 2 * units, k, WeightKind::Ordinary);
    let x = normed_operands(&w, [Kind::Ordinary; 2], &mut values);
    bench.max_groups = FOLDS;
    let x = x.each_ref().map(|x| &x[..]);
    require(cases::fused_ffn_prologue(bench, variant, &w, x, units - 15))
}

/// Gates down to -120, where exp(-gate) is beyond f32 and silu is 0, not NaN.
pub(super) fn silu_saturates(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (units, k) = (96, variant.k_step().max(96));
    let mut values = Values(draw.seed);
    let w = values.packed(format_of(variant), 2 * units, k, WeightKind::Ordinary);
    let mut x = values.activations(k, Kind::Ordinary, 0.7);
    let lowest = |x: &[f32]| {
        let y = w
            .matrix()
            .matvec(&x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
        y[..units].iter().copied().fold(f64::INFINITY, f64::min)
    };
    let factor = -120.0 / lowest(&x);
    for x in &mut x {
        *x = (f64::from(*x) * factor) as f32;
    }
    ensure!(lowest(&x) < -100.0, "a gate beyond -100");
    require(cases::fused_ffn(bench, variant, &w, &x, units))
}

pub(super) fn silu_mul(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let tokens = select(&[1_usize, 2, 9][..]);
    let kinds = [select(&Kind::ALL[..]), select(&Kind::ALL[..])];
    let rest = (max_groups(), any::<u64>());
    draw.judge(
        bench,
        variant,
        (widths(), tokens, kinds, rest),
        |bench, variant, (f, tokens, kinds, (max_groups, seed))| {
            let mut values = Values(*seed);
            // |silu(g)| is at most |g|: no product is beyond f16.
            let mut row = || {
                let gate = values.activations(*f, kinds[0], 3.0);
                let up = values.activations(*f, kinds[1], 1.0);
                let up = gate.iter().zip(up).map(|(gate, up)| {
                    let most = 60_000.0 / gate.abs().max(1.0);
                    up.clamp(-most, most)
                });
                let up: Vec<f32> = up.collect();
                [gate, up].concat()
            };
            let gate_up: Vec<f32> = (0..*tokens).flat_map(|_| row()).collect();
            bench.max_groups = *max_groups;
            require(cases::silu_mul(bench, variant, *f, &gate_up))
        },
    )
}

/// 1024 tokens of 17,408 units: 69,632 workgroups, more than a grid has in x. Rows
/// repeat, so three are judged and the others compared with them.
pub(super) fn silu_mul_folds(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    const KINDS: usize = 3;
    // 69,632 workgroups; in f32 half as many at half the limit, since 128 MiB is all
    // that some devices bind.
    let f = 17_408;
    let (tokens, most) = match variant.elem {
        Elem::F16 => (1024, WHOLE),
        Elem::F32 => (512, WHOLE / 2),
    };
    let mut values = Values(draw.seed);
    let rows = cases::held(
        variant,
        &values.activations(KINDS * 2 * f, Kind::Ordinary, 2.0),
    );
    let gate_up: Vec<f32> = rows.iter().copied().cycle().take(tokens * 2 * f).collect();
    bench.max_groups = most;
    let found = cases::activated(bench, variant, f, &gate_up)?;
    let few = cases::silu_mul(bench, variant, f, &rows)?;
    few.iter().try_for_each(Judged::require)?;
    let expected = few[0].found.iter().cycle();
    let wrong = found
        .iter()
        .zip(expected)
        .position(|(&found, expected)| f64::from(found).to_bits() != expected.to_bits());
    ensure!(
        wrong.is_none(),
        "element {wrong:?} is not what it is in a grid of one dimension"
    );
    Ok(())
}
