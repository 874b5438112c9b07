//! An int8 cache: the codes and scales that a kernel may give, where they lie, and
//! what attention and a whole pass make of them.

use half::f16;
use kernels::{
    Elem, ModelSpec,
    kv::{KvFormat, KvLayout, PAGE_SIZE, Side},
    models,
};
use proptest::prelude::*;
use reference::{
    Forward, Numerics,
    bounds::{Accumulation, Store},
    numerics::round_to_f16,
    roles::{
        RoleError,
        attention::{self, AttentionForm, AttentionShape},
        kv_quantize_int8::{self, FLOOR, Pages, compute, expected},
    },
    synth,
};

const FAITHFUL: Numerics = Numerics::Faithful(Elem::F16);

/// f16 values of the given magnitude.
fn row(n: usize, magnitude: f64) -> impl Strategy<Value = Vec<f64>> {
    let value = (-1.0..1.0).prop_map(move |x: f64| round_to_f16(x * magnitude));
    prop::collection::vec(value, n)
}

fn magnitudes() -> impl Strategy<Value = f64> {
    prop::sample::select(&[1e-7, 1e-6, 1e-3, 1.0, 30.0, 30_000.0][..])
}

/// Codes and scale of a head as a kernel forms them in f32; `round` makes a code
/// of a quotient.
fn kernel(x: &[f64], round: fn(f32) -> f32) -> (Vec<f64>, Vec<f64>) {
    let most = x.iter().fold(0_f32, |most, x| most.max(x.abs() as f32));
    let scale = (most / 127.0).max(1e-8);
    let code = |x: &f64| f64::from(round(*x as f32 / scale).clamp(-127.0, 127.0));
    let codes = x.iter().map(code).collect();
    (codes, vec![round_to_f16(f64::from(scale))])
}

proptest! {
    #[test]
    fn a_value_is_off_by_half_a_step_and_the_largest_has_the_largest_code(
        (x, magnitude) in magnitudes().prop_flat_map(|m| (row(64, m), Just(m)))
    ) {
        let found = compute(&x, 64, Numerics::Formula);
        let scale = found.scales[0];
        for (x, y) in x.iter().zip(found.decode()) {
            prop_assert!((x - y).abs() <= 0.5 * scale * (1.0 + 1e-12), "{x} is {y} at {scale}");
        }
        let most = found.codes.iter().map(|code| code.unsigned_abs()).max();
        if magnitude > 1e-5 {
            prop_assert_eq!(most, Some(127), "a code of the largest magnitude");
        }
        let stored = compute(&x, 64, FAITHFUL);
        prop_assert_eq!(&stored.codes, &found.codes, "codes are of the scale before its store");
        prop_assert_eq!(stored.scales[0], round_to_f16(scale), "the scale is stored as f16");
    }

    #[test]
    fn a_kernel_in_f32_is_within_its_limits(x in magnitudes().prop_flat_map(|m| row(96, m))) {
        let (codes, scales) = kernel(&x, f32::round_ties_even);
        let within = expected(&x, 96);
        prop_assert!(within.codes.accepts(&codes), "{:?}", within.codes.worst(&codes));
        prop_assert!(within.scales.accepts(&scales), "{:?}", within.scales.worst(&scales));
        // Only a tie leaves a choice.
        for (limit, value) in within.codes.limit.iter().zip(&within.codes.value) {
            prop_assert!([0.0, 0.5].contains(limit), "{value} within {limit}");
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_changes(
        head_dim in prop::sample::select(&[32_usize, 64, 96, 128, 192, 256][..]),
        kv_heads in 1_usize..4,
        position in 0_usize..48,
        seed in any::<u64>(),
    ) {
        let layout = KvLayout { kv_heads, head_dim }.int8();
        let table = [2, 0, 1];
        let mut state = seed;
        let mut values = || {
            let mut value = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f64 / 16_777_216.0 - 0.5
            };
            let x: Vec<f64> = (0..kv_heads * head_dim).map(&mut value).collect();
            compute(&x, head_dim, FAITHFUL)
        };
        let (k, v) = (values(), values());
        let before = Pages::filled(layout, 3, 0x8080_8080, f16::NAN);
        let mut pages = before.clone();
        pages.write(layout, &table, position as i32, [&k, &v]).expect("it fits");
        prop_assert_eq!(&pages.read(layout, &table, position, Side::K).expect("it fits"), &k);
        prop_assert_eq!(&pages.read(layout, &table, position, Side::V).expect("it fits"), &v);
        // No code is -128, so every word of the slot is another.
        let changed = pages.codes.iter().zip(&before.codes).filter(|(a, b)| a != b);
        prop_assert_eq!(changed.count(), 2 * kv_heads * head_dim / 4, "words");
        let scales = pages.scales.iter().filter(|scale| !scale.is_nan());
        prop_assert_eq!(scales.count(), 2 * kv_heads, "scales");
        let (page, slot) = (table[position / PAGE_SIZE] as usize, position % PAGE_SIZE);
        let at = layout.scale_index(page, kv_heads - 1, slot, Side::V);
        prop_assert_eq!(pages.scales[at].to_f64(), v.scales[kv_heads - 1], "its place");
    }
}

#[test]
fn wrong_kernels_are_caught() {
    let x: Vec<f64> = (0..64)
        .map(|i| round_to_f16(f64::from(i) * 0.37 - 9.1))
        .collect();
    let within = expected(&x, 64);
    let (right, scales) = kernel(&x, f32::round_ties_even);
    assert!(within.codes.accepts(&right), "the right one");
    assert!(within.scales.accepts(&scales), "the right one");
    for (name, round) in [
        ("truncated", f32::trunc as fn(f32) -> f32),
        ("rounded down", f32::floor),
        ("rounded up", f32::ceil),
    ] {
        let (codes, _) = kernel(&x, round);
        assert!(!within.codes.accepts(&codes), "{name}");
    }
    let mut half_written = right;
    half_written[32..].fill(0.0);
    assert!(!within.codes.accepts(&half_written), "half of the words");
    let other = vec![scales[0] * 127.0 / 128.0];
    assert!(
        !within.scales.accepts(&other),
        "a scale for codes up to 128"
    );
}

#[test]
fn a_head_of_zeros_has_the_least_scale_and_padding_is_skipped() {
    let zeros = compute(&[0.0; 64], 32, Numerics::Formula);
    assert_eq!(zeros.codes, vec![0; 64], "codes");
    assert_eq!(zeros.scales, vec![FLOOR; 2], "two heads");
    let stored = compute(&[0.0; 64], 32, FAITHFUL);
    assert_eq!(stored.scales, vec![0.0; 2], "below the least f16");
    let layout = KvLayout {
        kv_heads: 2,
        head_dim: 32,
    }
    .int8();
    let empty = Pages::filled(layout, 1, 7, f16::ONE);
    let mut pages = empty.clone();
    pages
        .write(layout, &[0], -1, [&stored, &stored])
        .expect("padding");
    assert_eq!(pages, empty, "nothing is written");
    let error = pages
        .write(layout, &[0], 16, [&stored, &stored])
        .expect_err("no page");
    let needed = RoleError::Position {
        position: 16,
        needed: 1,
        listed: 1,
    };
    assert_eq!(error, needed, "the table lists one page");
    let error = pages
        .read(layout, &[3], 0, Side::K)
        .expect_err("no such page");
    assert_eq!(error, RoleError::Page { page: 3, pages: 1 }, "of one");
}

/// Attention over codes in f32, scales multiplied in last, against the limits of
/// the values that the codes stand for.
#[test]
fn attention_over_codes_is_within_its_limits() {
    let shape = AttentionShape {
        heads: 2,
        kv_heads: 2,
        head_dim: 64,
        scale: 0.125,
    };
    let len = 90;
    let wave = |i: usize, a: f64| round_to_f16((i as f64 * a).sin() * 3.0);
    let q: Vec<f64> = (0..128).map(|i| wave(i, 0.7)).collect();
    let side = |a| -> Vec<kv_quantize_int8::Quantised> {
        let rows = (0..len).map(|t| (0..128).map(|i| wave(t * 128 + i, a)).collect::<Vec<f64>>());
        rows.map(|x| compute(&x, 64, FAITHFUL)).collect()
    };
    let (k, v) = (side(0.31), side(0.77));
    let all = |side: &[kv_quantize_int8::Quantised]| side.iter().flat_map(|x| x.decode()).collect();
    let (keys, values): (Vec<f64>, Vec<f64>) = (all(&k), all(&v));
    let mut found = Vec::new();
    for head in 0..2 {
        let codes = |x: &kv_quantize_int8::Quantised, i: usize| f32::from(x.codes[head * 64 + i]);
        let scores: Vec<f32> = k
            .iter()
            .map(|k| {
                let terms = (0..64).map(|i| q[head * 64 + i] as f32 * 0.125 * codes(k, i));
                terms.fold(0_f32, |sum, x| sum + x) * k.scales[head] as f32
            })
            .collect();
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum = weights.iter().fold(0_f32, |sum, w| sum + w);
        found.extend((0..64).map(|i| {
            let terms = weights.iter().zip(&v);
            let terms = terms.map(|(w, v)| w * v.scales[head] as f32 * codes(v, i));
            round_to_f16(f64::from(terms.fold(0_f32, |sum, x| sum + x) / sum))
        }));
    }
    let form = AttentionForm {
        score: Accumulation::serial(64),
        merges: 0,
        kv: KvFormat::Int8,
        store: Store::F16,
    };
    let within = attention::expected(&q, &keys, &values, shape, form);
    assert!(within.accepts(&found), "{:?}", within.worst(&found));
    let unscaled: Vec<f64> = found.iter().map(|y| y * 1.01).collect();
    assert!(!within.accepts(&unscaled), "a percent off");
}

/// A pass with an int8 cache: the same token by token as in one prompt, and close
/// to one with a plain cache without being it.
#[test]
fn a_pass_over_an_int8_cache() {
    let spec = ModelSpec {
        num_hidden_layers: 2,
        vocab_size: 200,
        max_pages: 8,
        ..models::find("smollm2-135m").expect("registered")
    };
    let weights = synth::checkpoint(&spec, 3).expect("synthetic weights");
    let tokens: Vec<u32> = (0..70).map(|i| i * 37 % 200).collect();
    let pass = |kv| Forward::new(&weights, FAITHFUL).cached_as(kv);
    let mut whole = pass(KvFormat::Int8);
    let logits = whole.prefill(&tokens).expect("it fits");
    let mut steps = pass(KvFormat::Int8);
    let mut last = Vec::new();
    for &token in &tokens {
        last = steps.step(token).expect("it fits");
    }
    assert_eq!(logits, last, "a prompt and its tokens one by one");
    assert_eq!(whole.cached(1), steps.cached(1), "what they cache");
    let plain = pass(KvFormat::Plain).prefill(&tokens).expect("it fits");
    let square = |x: f64| x * x;
    let error: f64 = logits.iter().zip(&plain).map(|(a, b)| square(a - b)).sum();
    let size: f64 = plain.iter().map(|x| square(*x)).sum();
    let relative = (error / size).sqrt();
    // The published cost is an attention error of 1.2 %.
    assert!(
        (1e-5..0.05).contains(&relative),
        "relative rms {relative:.2e}"
    );
    let (keys, _) = whole.cached(0);
    let quantised = compute(&keys[..spec.kv_dim()], spec.head_dim, FAITHFUL).decode();
    let close = keys
        .iter()
        .zip(&quantised)
        .all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs());
    assert!(close, "what is cached is what codes stand for");
}
