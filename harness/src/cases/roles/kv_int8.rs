//! Keys and values that are quantised into their pages.

use super::{behind, held};
use crate::{
    cases::bench::{Bench, Judged, set},
    kernel::Operand,
};
use anyhow::Result;
use half::f16;
use kernels::{ModelSpec, Variant, kv::Side};
use reference::{
    Expected,
    numerics::widen,
    roles::kv_quantize_int8::{self, Pages},
};

/// Int8 pages with a table, as [`super::Cache`].
#[derive(Clone, Debug)]
pub(crate) struct Int8Cache {
    pub(crate) pages: Pages,
    pub(crate) table: Vec<u32>,
    /// Entries that stand in front of codes, scales and positions, not to be read.
    pub(crate) offset: usize,
}

/// What stands in slots that hold nothing, and in front of all.
const EMPTY_WORD: u32 = 0x5a5a_5a5a;
const EMPTY_SCALE: f16 = f16::NAN;

impl Int8Cache {
    /// All of `spec`'s pages, with nothing in any slot.
    pub(crate) fn empty(spec: &ModelSpec, table: Vec<u32>, offset: usize) -> Self {
        let layout = spec.kv_layout().int8();
        Self {
            pages: Pages::filled(layout, spec.max_pages, EMPTY_WORD, EMPTY_SCALE),
            table,
            offset,
        }
    }
}

/// The pages after `kv_quantize_int8`; `k` and `v` `[T, KV]`, a negative position is
/// padding.
pub(crate) fn quantised(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    cache: &Int8Cache,
    positions: &[i32],
    [k, v]: [&[f32]; 2],
) -> Result<Pages> {
    let mut dispatch = bench.dispatch(variant, spec, 0);
    for name in [
        "position_map_elem_offset",
        "pages_elem_offset",
        "scales_elem_offset",
    ] {
        set(&mut dispatch, name, cache.offset as u32);
    }
    // A workgroup past the last head has nothing to do.
    dispatch.grid = [dispatch.grid[0] + 1, positions.len() as u32, 1];
    let position_map = behind(cache.offset, i32::MAX, positions);
    let codes = behind(cache.offset, EMPTY_WORD, &cache.pages.codes);
    let scales = behind(cache.offset, EMPTY_SCALE, &cache.pages.scales);
    let operands = vec![
        ("k", Operand::Floats(k)),
        ("v", Operand::Floats(v)),
        ("kv_pages", Operand::data(&codes)),
        ("kv_scales", Operand::data(&scales)),
        ("position_map", Operand::data(&position_map)),
        ("page_values", Operand::data(&cache.table)),
    ];
    let found = bench.run(variant, spec, dispatch, operands)?;
    let mut codes: Vec<u32> = bytemuck::pod_collect_to_vec(found.bytes("kv_pages"));
    let mut scales: Vec<f16> = bytemuck::pod_collect_to_vec(found.bytes("kv_scales"));
    let front = codes
        .iter()
        .take(cache.offset)
        .all(|&word| word == EMPTY_WORD)
        && scales.iter().take(cache.offset).all(|scale| scale.is_nan());
    anyhow::ensure!(front, "what stands in front of the pages is written");
    codes.drain(..cache.offset);
    scales.drain(..cache.offset);
    Ok(Pages { codes, scales })
}

/// Codes and scales of the tokens, and that every other slot stays as it is.
pub(crate) fn kv_quantize_int8(
    bench: &mut Bench<'_>,
    variant: Variant,
    spec: &ModelSpec,
    cache: &Int8Cache,
    positions: &[i32],
    [k, v]: [&[f32]; 2],
) -> Result<Vec<Judged>> {
    let [k, v] = &[k, v].map(|x| held(variant, x));
    let after = quantised(bench, variant, spec, cache, positions, [k, v])?;
    let layout = spec.kv_layout().int8();
    let row = spec.kv_dim();
    let mut replaced = cache.pages.clone();
    let (mut codes, mut scales) = (vec![], vec![]);
    let (mut codes_within, mut scales_within) = (vec![], vec![]);
    let rows = k.chunks_exact(row).zip(v.chunks_exact(row));
    for (&position, (k, v)) in positions.iter().zip(rows) {
        let Ok(at) = usize::try_from(position) else {
            continue;
        };
        let read = |side| after.read(layout, &cache.table, at, side);
        let stored = [read(Side::K)?, read(Side::V)?];
        replaced.write(layout, &cache.table, position, stored.each_ref())?;
        for (stored, x) in stored.iter().zip([k, v]) {
            let expected = kv_quantize_int8::expected(&widen(x), spec.head_dim);
            codes.extend(stored.codes.iter().map(|&code| f64::from(code)));
            scales.extend_from_slice(&stored.scales);
            codes_within.extend(pairs(expected.codes));
            scales_within.extend(pairs(expected.scales));
        }
    }
    let words = |pages: &Pages| pages.codes.iter().map(|&w| f64::from(w)).collect();
    let bits = |scales: &[f16]| scales.iter().map(|s| f64::from(s.to_bits())).collect();
    Ok(vec![
        Judged::new("scales", scales, Expected::from_pairs(scales_within)),
        Judged::new("codes", codes, Expected::from_pairs(codes_within)),
        Judged::exact("other codes", words(&after), words(&replaced)),
        Judged::exact("other scales", bits(&after.scales), bits(&replaced.scales)),
    ])
}

fn pairs(expected: Expected) -> impl Iterator<Item = (f64, f64)> {
    expected.value.into_iter().zip(expected.limit)
}
