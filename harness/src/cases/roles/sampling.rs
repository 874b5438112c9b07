//! The next token: the greatest logit, or a draw.

use super::held;
use crate::{
    cases::bench::{Bench, Judged, model, set},
    check::part_sum,
    kernel::Operand,
};
use anyhow::Result;
use kernels::{Elem, ModelSpec, Variant, sampling::Draw};
use reference::{
    numerics::widen,
    roles::{argmax, sample_reduce, sample_select},
};

/// Logits as the variant reads them.
fn read(variant: Variant, logits: &[f32]) -> Vec<f32> {
    match variant.out {
        Elem::F16 => held(variant, logits),
        Elem::F32 => logits.to_vec(),
    }
}

fn of_vocabulary(vocab_size: usize) -> ModelSpec {
    ModelSpec {
        vocab_size,
        ..model()
    }
}

/// The index of the greatest of `logits` `[V]`.
pub(crate) fn argmax(
    bench: &mut Bench<'_>,
    variant: Variant,
    logits: &[f32],
) -> Result<Vec<Judged>> {
    let logits = &read(variant, logits);
    let spec = of_vocabulary(logits.len());
    let dispatch = bench.dispatch(variant, &spec, 0);
    let operands = vec![
        ("logits", Operand::Floats(logits)),
        ("token", Operand::output::<i32>(1)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?.i32("token");
    let expected = argmax::compute(&widen(logits)).expect("logits without NaN");
    let found = found.into_iter().map(f64::from).collect();
    Ok(vec![Judged::exact("token", found, vec![expected as f64])])
}

/// The maxima and sums of the parts of `logits` `[V]`.
pub(crate) fn sample_reduce(
    bench: &mut Bench<'_>,
    variant: Variant,
    logits: &[f32],
    temperature: f32,
) -> Result<Vec<Judged>> {
    let logits = &read(variant, logits);
    let spec = of_vocabulary(logits.len());
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "temperature", temperature.to_bits());
    let logits_in = widen(logits);
    let expected =
        sample_reduce::expected(&logits_in, temperature, part_sum(variant, logits.len()));
    let operands = vec![
        ("logits", Operand::Floats(logits)),
        ("partials", Operand::FloatOutput(expected.value.len())),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?;
    Ok(vec![Judged::new(
        "partials",
        found.values("partials"),
        expected,
    )])
}

/// The token drawn from `logits` `[V]` at a position.
pub(crate) fn sample_select(
    bench: &mut Bench<'_>,
    variant: Variant,
    logits: &[f32],
    draw: &Draw,
    position: u32,
) -> Result<Vec<Judged>> {
    let logits = &read(variant, logits);
    let spec = of_vocabulary(logits.len());
    let mut dispatch = bench.dispatch(variant, &spec, 0);
    set(&mut dispatch, "temperature", draw.temperature.to_bits());
    set(&mut dispatch, "top_p", draw.top_p.to_bits());
    set(&mut dispatch, "min_p", draw.min_p.to_bits());
    set(&mut dispatch, "top_k", draw.top_k);
    set(&mut dispatch, "seed", draw.seed);
    let wide = widen(logits);
    let partials = sample_reduce::compute(&wide, draw.temperature);
    let partials: Vec<f32> = partials.iter().map(|&x| x as f32).collect();
    let positions = [position];
    let operands = vec![
        ("logits", Operand::Floats(logits)),
        ("partials", Operand::Floats(&partials)),
        ("token", Operand::output::<i32>(1)),
        ("position_map", Operand::data(&positions)),
    ];
    let found = bench.run(variant, &spec, dispatch, operands)?.i32("token")[0];
    let expected = sample_select::compute(&wide, draw, position).expect("finite logits");
    let drawn = usize::try_from(found).ok();
    let allowed = drawn.filter(|&token| sample_select::may_draw(&wide, draw, position, token));
    let expected = allowed.unwrap_or(expected) as f64;
    Ok(vec![Judged::exact(
        "token",
        vec![f64::from(found)],
        vec![expected],
    )])
}
