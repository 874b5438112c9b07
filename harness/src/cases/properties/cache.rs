//! Properties of what stores keys and values in their pages.

use super::*;
use half::f16;

pub(super) fn kv_append(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let tokens = || select(&[1_usize, 2, 17, 33][..]);
    let rest = || (max_groups(), any::<u64>());
    draw.judge(
        bench,
        variant,
        (heads(), tokens(), select(&[0_usize, 3][..]), rest()),
        |bench, variant, (spec, tokens, offset, (max_groups, seed))| {
            let mut values = Values(*seed);
            let held = spec.max_pages * PAGE_SIZE;
            let tokens = *tokens.min(&held);
            bench.max_groups = *max_groups;
            // From the start, and up to the last slot.
            for first in [0, held - tokens] {
                let positions = padded_positions(first, tokens, &mut values);
                let table = values.permutation(spec.max_pages);
                let mut cache = Cache::empty(spec, table, *offset);
                let old = values.activations(held * spec.kv_dim(), Kind::Ordinary, 1.0);
                cache.fill(spec, &old, &old);
                let mut new =
                    || values.activations(tokens * spec.kv_dim(), Kind::OutlierChannels, 1.0);
                let (k, v) = (new(), new());
                require(cases::kv_append(
                    bench,
                    variant,
                    spec,
                    &cache,
                    &positions,
                    [&k, &v],
                ))
                .with_context(|| format!("positions {positions:?}"))?;
            }
            Ok(())
        },
    )
}

/// Tokens of `spec` to quantise from position `first` on, into pages of old ones.
fn quantise(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    kind: Kind,
    [first, tokens, offset]: [usize; 3],
    values: &mut Values,
) -> Result<()> {
    let positions = padded_positions(first, tokens, values);
    let cache = Int8Cache::empty(spec, values.permutation(spec.max_pages), offset);
    let mut new = || {
        let rows = (0..tokens).flat_map(|_| values.activations(spec.kv_dim(), kind, 1.0));
        rows.collect::<Vec<f32>>()
    };
    let (k, v) = (new(), new());
    require(cases::kv_quantize_int8(
        bench,
        variant,
        spec,
        &cache,
        &positions,
        [&k, &v],
    ))
    .with_context(|| format!("positions {positions:?}"))
}

pub(super) fn kv_quantize_int8(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let tokens = || select(&[1_usize, 2, 17, 33][..]);
    let kinds = || select(&Kind::ALL[..]);
    let offsets = || select(&[0_usize, 3][..]);
    draw.judge(
        bench,
        variant,
        (heads(), tokens(), kinds(), offsets(), any::<u64>()),
        |bench, variant, (spec, tokens, kind, offset, seed)| {
            let mut values = Values(*seed);
            let held = last_slot(spec) + 1;
            let tokens = *tokens.min(&held);
            // From the start, and up to the last slot.
            [0, held - tokens].into_iter().try_for_each(|first| {
                let at = [first, tokens, *offset];
                quantise(bench, variant, spec, *kind, at, &mut values)
            })
        },
    )
}

/// Every word of a head is written, whatever its width.
pub(super) fn every_head_dim(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let mut values = Values(draw.seed);
    for head_dim in [32, 64, 96, 128, 160, 192, 224, 256] {
        let spec = ModelSpec {
            head_dim,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            rotary_dim: head_dim,
            ..model()
        };
        quantise(
            bench,
            variant,
            &spec,
            Kind::Ordinary,
            [15, 2, 3],
            &mut values,
        )
        .with_context(|| format!("a head of {head_dim}"))?;
    }
    Ok(())
}

/// Two heads of keys over four pages, and keys and values `[T, KV]` of a chunk that
/// crosses the edge of a page and has padding.
fn chunk(draw: Draw) -> (ModelSpec, Vec<u32>, Vec<i32>, [Vec<f32>; 2]) {
    let spec = ModelSpec {
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_pages: 4,
        ..model()
    };
    let mut values = Values(draw.seed);
    let tokens = 21;
    let positions = padded_positions(13, tokens, &mut values);
    let table = values.permutation(spec.max_pages);
    let mut new = || values.activations(tokens * spec.kv_dim(), Kind::OutlierChannels, 1.0);
    let rows = [new(), new()];
    (spec, table, positions, rows)
}

/// A chunk leaves the bits that its tokens leave one by one.
pub(super) fn append_as_steps(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (spec, table, positions, [k, v]) = chunk(draw);
    let empty = Cache::empty(&spec, table, 0);
    let at_once = cases::appended(bench, variant, &spec, &empty, &positions, [&k, &v])?;
    let mut steps = empty;
    let row = spec.kv_dim();
    let rows = k.chunks_exact(row).zip(v.chunks_exact(row));
    for (&position, (k, v)) in positions.iter().zip(rows) {
        steps.pages = cases::appended(bench, variant, &spec, &steps, &[position], [k, v])?;
    }
    let bits = |pages: &[f32]| pages.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    ensure!(
        bits(&at_once) == bits(&steps.pages),
        "a chunk leaves other bits than its tokens one by one"
    );
    Ok(())
}

/// The same of int8 pages.
pub(super) fn quantise_as_steps(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let (spec, table, positions, [k, v]) = chunk(draw);
    let empty = Int8Cache::empty(&spec, table, 3);
    let at_once = cases::quantised(bench, variant, &spec, &empty, &positions, [&k, &v])?;
    let mut steps = empty;
    let row = spec.kv_dim();
    let rows = k.chunks_exact(row).zip(v.chunks_exact(row));
    for (&position, (k, v)) in positions.iter().zip(rows) {
        steps.pages = cases::quantised(bench, variant, &spec, &steps, &[position], [k, v])?;
    }
    let bits = |scales: &[f16]| scales.iter().map(|x| x.to_bits()).collect::<Vec<u16>>();
    ensure!(
        at_once.codes == steps.pages.codes && bits(&at_once.scales) == bits(&steps.pages.scales),
        "a chunk leaves other bits than its tokens one by one"
    );
    Ok(())
}
