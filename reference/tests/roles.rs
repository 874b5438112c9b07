//! Every role against golden module data, its invariants, and its limits: an
//! f32 kernel written out here must stay within them, a wrong one must not.

mod support;

use half::f16;
use kernels::kv::{KvFormat, KvLayout, PAGE_SIZE, Side, pages_for};
use proptest::prelude::*;
use reference::bounds::{Accumulation, Store, Trig};
use reference::matrix::Scales;
use reference::numerics::round_to_f16;
use reference::roles::attention::{AttentionForm, AttentionShape};
use reference::roles::rope::Rope;
use reference::roles::*;
use reference::{Expected, Matrix, Numerics};
use support::{Array, golden, max_difference, safetensors};

/// The golden values are f64 results stored as f32; this is relative to the
/// largest of a tensor (at least 1).
const GOLDEN: f64 = 2e-7;

fn assert_golden(name: &str, found: &[f64], expected: &Array) {
    let largest = expected
        .data
        .iter()
        .fold(1.0, |max: f64, v| max.max(v.abs()));
    let error = max_difference(found, &expected.data) / largest;
    assert!(error < GOLDEN, "{name}: {error:.2e}");
}

/// The numbers in a dotted name after each of `keys`: `hd64` gives 64.
fn numbers<const N: usize>(name: &str, keys: [&str; N]) -> [f64; N] {
    keys.map(|key| {
        let mut values = name.split('.').filter_map(|part| part.strip_prefix(key));
        values
            .find_map(|value| value.parse().ok())
            .expect("a number in the name")
    })
}

#[test]
fn golden_norms_rotations_and_activations() {
    let Some(path) = golden("modules/dense.safetensors") else {
        return;
    };
    let all = safetensors(&path);
    let mut compared = 0;
    for (name, expected) in &all {
        let parts: Vec<&str> = name.split('.').collect();
        match parts.as_slice() {
            ["rms", width, eps, "y"] => {
                let eps: f64 = eps.trim_start_matches("eps").parse().expect("an epsilon");
                let gamma = &all[&format!("rms.{width}.gamma")].data;
                let x = &all[&format!("rms.{width}.x")];
                let found: Vec<f64> = x
                    .rows()
                    .flat_map(|x| rms_norm::compute(x, gamma, eps))
                    .collect();
                assert_golden(name, &found, expected);
            }
            ["rope", .., "y"] => {
                let base = name.trim_end_matches(".y");
                let [head_dim, rotary, theta] = numbers(base, ["hd", "rot", "theta"]);
                let rope = rope(head_dim as usize, rotary as usize, theta);
                let x = &all[&format!("{base}.x")];
                let positions = all[&format!("{base}.pos")].ids();
                let rows = x.rows().zip(&positions);
                let found: Vec<f64> = rows
                    .flat_map(|(x, &p)| rope::compute(&rope, x, p as usize))
                    .collect();
                assert_golden(name, &found, expected);
            }
            ["swiglu", "y"] => {
                let rows = all["swiglu.gate"].rows().zip(all["swiglu.up"].rows());
                let found: Vec<f64> = rows
                    .flat_map(|(g, u)| silu_mul::compute(&[g, u].concat()))
                    .collect();
                assert_golden(name, &found, expected);
            }
            ["attn", kind, .., "out"] => {
                let base = name.trim_end_matches(".out");
                let [head_dim, heads, kv_heads] = numbers(base, ["hd", "h", "kv"]);
                let shape = attention_shape(heads as usize, kv_heads as usize, head_dim as usize);
                let [q, k, v] = ["q", "k", "v"].map(|t| &all[&format!("{base}.{t}")]);
                // A chunk's query sees what is cached and itself.
                let before = k.shape[0] - q.shape[0];
                assert!(*kind == "chunk" || q.shape[0] == 1, "{name}: one query");
                let mut split = vec![Vec::new(); 3];
                let mut found = Vec::new();
                for (i, q) in q.rows().enumerate() {
                    let visible = (before + i + 1) * shape.kv_dim();
                    let (k, v) = (&k.data[..visible], &v.data[..visible]);
                    found.extend(attention::compute(q, k, v, shape));
                    for (split, parts) in split.iter_mut().zip([1, 3, 8]) {
                        let partials = attention_splitk::compute(q, k, v, shape, parts);
                        let d = shape.head_dim;
                        split.extend(attention_combine::compute(&partials, d, parts));
                    }
                }
                assert_golden(name, &found, expected);
                split
                    .iter()
                    .for_each(|found| assert_golden(name, found, expected));
            }
            _ => continue,
        }
        compared += 1;
    }
    assert!(compared >= 38, "only {compared} golden results compared");
}

#[test]
fn golden_int4_matmul() {
    let Some(path) = golden("quant/q4f16_1.safetensors") else {
        return;
    };
    let all = safetensors(&path);
    for shape in [
        "5x64", "8x256", "6x576", "4x768", "4x1408", "3x2048", "allcodes",
    ] {
        let tensor = |part: &str| &all[&format!("q4f16_1.{shape}.{part}")];
        let words = tensor("q_weight").ids();
        let scales: Vec<f16> = tensor("q_scale")
            .data
            .iter()
            .map(|&s| f16::from_f64(s))
            .collect();
        let [rows, k] = [0, 1].map(|axis| tensor("dequant").shape[axis]);
        let w = Matrix::new(rows, k, &words, &scales).expect("golden data fit");
        for (row, expected) in tensor("dequant").rows().enumerate() {
            let mut found = vec![0.0; k];
            w.row_into(row, &mut found);
            let found: Vec<f64> = found.into_iter().map(f64::from).collect();
            assert_eq!(found, expected, "{shape}: row {row} is exact");
        }
        if shape == "allcodes" {
            continue;
        }
        for (x, expected) in tensor("x").rows().zip(tensor("y").rows()) {
            let found = int4_matmul::compute(w, x);
            let magnitude = w.matvec_abs(x);
            for ((found, expected), sum) in found.iter().zip(expected).zip(magnitude) {
                assert!(
                    (found - expected).abs() < 1e-6 * sum,
                    "{shape}: {found} {expected}"
                );
            }
        }
    }
}

// ---- data ----

/// A seeded stream of values (xorshift), so that failures repeat.
struct Values(u64);

impl Values {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// f16 values about normal with the given spread, one in 50 ten times that.
    fn f16s(&mut self, n: usize, spread: f64) -> Vec<f64> {
        let mut value = || {
            let normal = (0..6).map(|_| self.uniform()).sum::<f64>() - 3.0;
            let outlier = if self.uniform() < 0.02 { 10.0 } else { 1.0 };
            round_to_f16(normal * spread * outlier)
        };
        (0..n).map(|_| value()).collect()
    }

    fn weights(&mut self, rows: usize, k: usize) -> (Vec<u32>, Vec<f16>) {
        let words = (0..rows * k / 8).map(|_| self.bits() as u32).collect();
        let scales = (0..rows * k / 32).map(|_| f16::from_f64(0.002 + 0.02 * self.uniform()));
        (words, scales.collect())
    }
}

fn rope(head_dim: usize, rotary: usize, theta: f64) -> Rope {
    let freq = |i| theta.powf(-2.0 * f64::from(i as u32) / rotary as f64);
    Rope {
        head_dim,
        inv_freq: (0..rotary / 2).map(freq).collect(),
        attention_factor: 1.0,
    }
}

fn attention_shape(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f64).sqrt(),
    }
}

// ---- kernels in f32, as WGSL would compute them ----

fn store(y: f32) -> f64 {
    f16::from_f32(y).to_f64()
}

fn narrow(xs: &[f64]) -> Vec<f32> {
    xs.iter().map(|&x| x as f32).collect()
}

fn tree(mut sums: Vec<f32>) -> f32 {
    while sums.len() > 1 {
        let half = sums.len() / 2;
        sums = (0..half).map(|i| sums[i] + sums[i + half]).collect();
    }
    sums[0]
}

/// One row: `threads` invocations take words in turn, then a tree.
/// `zero` is the zero point and `shift` moves the scale index, for mistakes.
fn int4_row(w: Matrix<'_>, row: usize, x: &[f32], threads: usize, zero: i32, shift: usize) -> f32 {
    let words = &w.words[row * w.k / 8..][..w.k / 8];
    let Scales::F16(scales) = w.scales else {
        panic!("q4f16_1");
    };
    let scales = &scales[row * w.k / 32..][..w.k / 32];
    let thread = |t| {
        let mut sum = 0f32;
        for i in (t..words.len()).step_by(threads) {
            let mut part = 0f32;
            for j in 0..8 {
                let code = (words[i] >> (4 * j)) as i32 & 15;
                part += x[8 * i + j] * (code - zero) as f32;
            }
            sum += scales[(i / 4 + shift) % scales.len()].to_f32() * part;
        }
        sum
    };
    tree((0..threads).map(thread).collect())
}

fn rms_norm_f32(x: &[f64], gamma: &[f64], eps: f32, threads: usize) -> Vec<f64> {
    let thread = |t| {
        let own = x.iter().skip(t).step_by(threads);
        own.fold(0f32, |sum, &x| sum + x as f32 * x as f32)
    };
    let mean = tree((0..threads).map(thread).collect()) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    let elements = x.iter().zip(gamma);
    elements
        .map(|(&x, &g)| store(x as f32 * scale * g as f32))
        .collect()
}

/// Online softmax over the given keys of one head: maximum, denominator, sums.
fn online(q: &[f64], keys: &[(&[f64], &[f64])], scale: f32) -> (f32, f32, Vec<f32>) {
    let (mut m, mut d, mut o) = (-50_000f32, 0f32, vec![0f32; q.len()]);
    for (k, v) in keys {
        let products = q.iter().zip(*k).map(|(&q, &k)| q as f32 * k as f32);
        let score = products.fold(0f32, |sum, p| sum + p) * scale;
        let max = m.max(score);
        let (old, new) = ((m - max).exp(), (score - max).exp());
        d = d * old + new;
        o.iter_mut()
            .zip(*v)
            .for_each(|(o, &v)| *o = *o * old + new * v as f32);
        m = max;
    }
    (m, d, o)
}

/// Pairs of key and value rows that `kv_head` gives each query head.
fn keys_of<'a>(
    k: &'a [f64],
    v: &'a [f64],
    shape: AttentionShape,
    kv_head: usize,
) -> Vec<(&'a [f64], &'a [f64])> {
    let rows = k
        .chunks_exact(shape.kv_dim())
        .zip(v.chunks_exact(shape.kv_dim()));
    let range = kv_head * shape.head_dim..(kv_head + 1) * shape.head_dim;
    rows.map(|(k, v)| (&k[range.clone()], &v[range.clone()]))
        .collect()
}

/// The share of a limit that a right kernel uses; it must be at most all.
fn used(what: &str, expected: &Expected, found: &[f64]) -> f64 {
    let worst = expected.worst(found).expect("elements");
    assert!(worst.used <= 1.0, "{what}: {worst:?}");
    worst.used
}

fn assert_caught(mistake: &str, expected: &Expected, found: &[f64]) {
    let worst = expected.worst(found).expect("elements");
    assert!(worst.used > 2.0, "{mistake} passes: {worst:?}");
}

// ---- limits hold for f32 kernels, and catch mistakes ----

#[test]
fn int4_matmul_limits() {
    let mut values = Values(3);
    for k in [32, 576, 1408, 1536] {
        let (words, scales) = values.weights(37, k);
        let w = Matrix::new(37, k, &words, &scales).expect("fits");
        let x = values.f16s(k, 0.7);
        let x32 = narrow(&x);
        for (threads, sum) in [
            (1, Accumulation::serial(k)),
            (64, Accumulation::strided(k, 64, 8)),
        ] {
            let run = |zero, shift| -> Vec<f32> {
                (0..w.rows)
                    .map(|r| int4_row(w, r, &x32, threads, zero, shift))
                    .collect()
            };
            let f16s = |ys: Vec<f32>| -> Vec<f64> { ys.into_iter().map(store).collect() };
            let expected = int4_matmul::expected(w, &x, sum, Store::F16);
            let share = used("int4_matmul", &expected, &f16s(run(7, 0)));
            assert!(
                share > 0.1,
                "the limit is {:.0} times too wide",
                1.0 / share
            );
            assert_caught("zero point 8", &expected, &f16s(run(8, 0)));
            if k > 32 {
                assert_caught("scale of the next group", &expected, &f16s(run(7, 1)));
            }
            let unrounded: Vec<f64> = run(7, 0).into_iter().map(f64::from).collect();
            let expected = int4_matmul::expected(w, &x, sum, Store::F32);
            used("int4_matmul to f32", &expected, &unrounded);
        }
        let reversed: Vec<u32> = words
            .iter()
            .map(|w| (0..8).fold(0, |r, i| r << 4 | (w >> (4 * i)) & 15))
            .collect();
        let reversed = Matrix::new(37, k, &reversed, &scales).expect("fits");
        let expected = int4_matmul::expected(w, &x, Accumulation::serial(k), Store::F16);
        assert_caught("nibbles reversed", &expected, &reversed.matvec(&x));
    }
}

#[test]
fn an_f16_accumulator_is_caught() {
    // A large sum that cancels: f16 keeps it to multiples of 16 on the way.
    let words = [[0x8888_8888u32; 36], [0x6666_6666; 36]].concat();
    let scales = vec![f16::ONE; 18];
    let w = Matrix::new(1, 576, &words, &scales).expect("fits");
    let x: Vec<f64> = (0..576)
        .map(|i| 100.0 + f64::from(i % 7) * 0.0625)
        .collect();
    let sum = Accumulation::strided(576, 64, 8);
    let expected = int4_matmul::expected(w, &x, sum, Store::F16);
    let mut row = vec![0.0; 576];
    w.row_into(0, &mut row);
    let in_f16 = row
        .iter()
        .zip(&x)
        .fold(0.0, |sum, (&w, x)| round_to_f16(sum + f64::from(w) * x));
    used(
        "f32",
        &expected,
        &[store(int4_row(w, 0, &narrow(&x), 64, 7, 0))],
    );
    assert_caught("f16 accumulator", &expected, &[in_f16]);
}

#[test]
fn norm_limits() {
    let mut values = Values(5);
    for n in [64, 576, 3072] {
        let (a, b) = (values.f16s(n, 2.0), values.f16s(n, 5.0));
        let gamma = values.f16s(n, 0.4);
        let (eps, threads) = (1e-5, 256.min(n));
        let sum = Accumulation::strided(n, threads, 1);
        let expected = rms_norm::expected(&a, &gamma, eps, sum, Store::F16);
        let share = used(
            "rms_norm",
            &expected,
            &rms_norm_f32(&a, &gamma, 1e-5, threads),
        );
        assert!(share > 0.5, "half an f16 ULP is nearly used: {share}");
        let plus_one: Vec<f64> = gamma.iter().map(|g| g + 1.0).collect();
        assert_caught(
            "+1 on gammas",
            &expected,
            &rms_norm_f32(&a, &plus_one, 1e-5, threads),
        );

        let expected = add_norm::expected(&a, &b, &gamma, eps, sum, Store::F16);
        let residual: Vec<f64> = a
            .iter()
            .zip(&b)
            .map(|(&a, &b)| store(a as f32 + b as f32))
            .collect();
        used("residual", &expected.residual, &residual);
        used(
            "normed",
            &expected.normed,
            &rms_norm_f32(&residual, &gamma, 1e-5, threads),
        );
        let stale = rms_norm_f32(&b, &gamma, 1e-5, threads);
        assert_caught("residual read before the sum", &expected.normed, &stale);
    }
    // Without outliers eps matters.
    let x = vec![round_to_f16(0.01); 64];
    let gamma = vec![1.0; 64];
    let expected = rms_norm::expected(&x, &gamma, 1e-5, Accumulation::serial(64), Store::F16);
    assert_caught("eps 1e-6", &expected, &rms_norm_f32(&x, &gamma, 1e-6, 64));
}

#[test]
fn qkv_fused_and_rope_limits() {
    let mut values = Values(7);
    let shape = qkv_fused::QkvShape {
        q_dim: 3 * 64,
        kv_dim: 64,
    };
    let rope = rope(64, 64, 1e4);
    let (words, scales) = values.weights(320, 576);
    let w = Matrix::new(320, 576, &words, &scales).expect("fits");
    let x = values.f16s(576, 0.7);
    let x32 = narrow(&x);
    let y: Vec<f32> = (0..320).map(|r| int4_row(w, r, &x32, 64, 7, 0)).collect();
    for position in [0, 1, 37, 511, 4095] {
        // sin and cos in f32 are far better here than WGSL asks.
        let measured = Trig {
            function: 2f64.powi(-22),
            ..Trig::CONFORMANT
        };
        for trig in [Trig::CONFORMANT, measured] {
            let form = qkv_fused::QkvForm {
                sum: Accumulation::strided(576, 64, 8),
                trig,
                store: Store::F16,
            };
            let expected = qkv_fused::expected(w, &x, shape, &rope, position, form);
            let rotate =
                |interleaved, sign| rotate_f32(&y[..256], &rope, position, interleaved, sign);
            let right = rotate(false, 1.0);
            used("q", &expected.q, &right[..192]);
            used("k", &expected.k, &right[192..]);
            let v: Vec<f64> = y[256..].iter().map(|&v| store(v)).collect();
            used("v", &expected.v, &v);
            if position > 0 {
                assert_caught("interleaved pairs", &expected.q, &rotate(true, 1.0)[..192]);
                assert_caught("sign of the sine", &expected.k, &rotate(false, -1.0)[192..]);
            }
            let next = rotate_f32(&y[..256], &rope, position + 1, false, 1.0);
            assert_caught("position off by one", &expected.q, &next[..192]);
        }
    }
}

fn rotate_f32(y: &[f32], rope: &Rope, position: usize, interleaved: bool, sign: f32) -> Vec<f64> {
    let mut out = y.to_vec();
    let half = rope.inv_freq.len();
    for head in out.chunks_exact_mut(rope.head_dim) {
        for (i, &freq) in rope.inv_freq.iter().enumerate() {
            let (low, high) = if interleaved {
                (2 * i, 2 * i + 1)
            } else {
                (i, i + half)
            };
            let (sin, cos) = (position as f32 * freq as f32).sin_cos();
            let (a, b) = (head[low], head[high]);
            head[low] = cos * a - sign * sin * b;
            head[high] = cos * b + sign * sin * a;
        }
    }
    out.into_iter().map(store).collect()
}

#[test]
fn qk_norm_limits() {
    use qk_norm_rope_append::HeadNorm;
    let mut values = Values(8);
    let head_dim = 128;
    let shape = qkv_fused::QkvShape {
        q_dim: 3 * head_dim,
        kv_dim: head_dim,
    };
    let rope = rope(head_dim, head_dim, 1e6);
    let qkv = values.f16s(5 * head_dim, 0.05);
    let gamma = values.f16s(head_dim, 0.4);
    let k_gamma = values.f16s(head_dim, 0.4);
    let (eps, threads) = (1e-6, 32);
    let (queries, rest) = qkv.split_at(3 * head_dim);
    let (keys, v) = rest.split_at(head_dim);

    let sum = Accumulation::strided(head_dim, threads, 1);
    let expected = qk_norm::expected(queries, &gamma, eps, sum, Store::F16);
    let heads = |x: &[f64], gamma: &[f64], eps: f32| -> Vec<f64> {
        let heads = x.chunks_exact(head_dim);
        heads
            .flat_map(|x| rms_norm_f32(x, gamma, eps, threads))
            .collect()
    };
    let share = used("qk_norm", &expected, &heads(queries, &gamma, 1e-6));
    assert!(share > 0.5, "half an f16 ULP is nearly used: {share}");
    assert_caught(
        "one norm over all heads",
        &expected,
        &rms_norm_f32(queries, &gamma.repeat(3), 1e-6, threads),
    );
    assert_caught("eps 1e-5", &expected, &heads(queries, &gamma, 1e-5));

    // Tight sines, so that the norm's own errors are what is judged.
    let form = qkv_fused::QkvForm {
        sum: Accumulation::strided(head_dim, threads, 2),
        trig: Trig {
            function: 2f64.powi(-22),
            ..Trig::CONFORMANT
        },
        store: Store::F16,
    };
    let norm = HeadNorm {
        q_gamma: &gamma,
        k_gamma: &k_gamma,
        eps,
    };
    let normed = |x: &[f64], gamma: &[f64]| -> Vec<f32> {
        x.chunks_exact(head_dim)
            .flat_map(|x| {
                let x = narrow(x);
                let pairs = |t: usize| {
                    let own = (t..head_dim / 2).step_by(threads);
                    own.fold(0f32, |sum, p| {
                        sum + (x[p] * x[p] + x[p + head_dim / 2] * x[p + head_dim / 2])
                    })
                };
                let mean = tree((0..threads).map(pairs).collect()) / head_dim as f32;
                let scale = 1.0 / (mean + 1e-6).sqrt();
                let row = x.iter().zip(gamma).map(|(&x, &g)| x * scale * g as f32);
                row.collect::<Vec<f32>>()
            })
            .collect()
    };
    for position in [0, 1, 37, 4095] {
        let expected = qk_norm_rope_append::expected(&qkv, shape, norm, &rope, position, form);
        let rotated = |y: &[f32]| rotate_f32(y, &rope, position, false, 1.0);
        let q = rotated(&normed(queries, &gamma));
        used("q", &expected.q, &q);
        used("k", &expected.k, &rotated(&normed(keys, &k_gamma)));
        assert_eq!(expected.v.value, v, "values are copied");
        assert_caught(
            "gammas swapped",
            &expected.q,
            &rotated(&normed(queries, &k_gamma)),
        );
        assert_caught("no norm", &expected.k, &rotated(&narrow(keys)));
        if position > 0 {
            let late = qk_norm::compute(&rotated(&narrow(queries)), &gamma, eps);
            let late: Vec<f64> = late.into_iter().map(round_to_f16).collect();
            assert_caught("norm after the rotation", &expected.q, &late);
        }
    }
}

#[test]
fn fused_ffn_limits() {
    let mut values = Values(9);
    let (words, scales) = values.weights(128, 576);
    let w = Matrix::new(128, 576, &words, &scales).expect("fits");
    for spread in [0.05, 0.7, 20.0] {
        let x = values.f16s(576, spread);
        let x32 = narrow(&x);
        for (threads, sum) in [
            (1, Accumulation::serial(576)),
            (64, Accumulation::strided(576, 64, 8)),
        ] {
            let row = |r| int4_row(w, r, &x32, threads, 7, 0);
            let run = |gate: usize, up: usize| -> Vec<f64> {
                let element = |i| {
                    let (g, u): (f32, f32) = (row(gate + i), row(up + i));
                    store(g / (1.0 + (-g).exp()) * u)
                };
                (0..64).map(element).collect()
            };
            let expected = fused_ffn::expected(w, &x, sum, Store::F16);
            used("fused_ffn", &expected, &run(0, 64));
            assert_caught("gate and up swapped", &expected, &run(64, 0));
        }
    }
}

#[test]
fn attention_limits() {
    let mut values = Values(11);
    for (shape, len) in [
        (attention_shape(9, 3, 64), 129),
        (attention_shape(9, 3, 64), 5),
        (attention_shape(4, 4, 96), 40),
        (attention_shape(8, 2, 128), 300),
    ] {
        for spread in [0.3, 3.0] {
            let q = values.f16s(shape.heads * shape.head_dim, spread);
            let k = values.f16s(len * shape.kv_dim(), 1.0);
            let v = values.f16s(len * shape.kv_dim(), 1.0);
            let group = shape.heads / shape.kv_heads;
            let run = |kv_head: &dyn Fn(usize) -> usize, len: usize| -> Vec<f64> {
                let head = |(h, q)| {
                    let (_, d, o) = online(
                        q,
                        &keys_of(&k, &v, shape, kv_head(h))[..len],
                        shape.scale as f32,
                    );
                    o.into_iter().map(move |o| store(o / d))
                };
                q.chunks_exact(shape.head_dim)
                    .enumerate()
                    .flat_map(head)
                    .collect()
            };
            let score = Accumulation::serial(shape.head_dim);
            let form = |merges| AttentionForm {
                score,
                merges,
                kv: KvFormat::Plain,
                store: Store::F16,
            };
            let expected = attention::expected(&q, &k, &v, shape, form(0));
            used("attention", &expected, &run(&|h| h / group, len));
            assert_caught(
                "last position unseen",
                &expected,
                &run(&|h| h / group, len - 1),
            );
            if shape.kv_heads > 1 && group > 1 {
                assert_caught(
                    "GQA by modulo",
                    &expected,
                    &run(&|h| h % shape.kv_heads, len),
                );
            }

            let parts = 8;
            let mut partials = Vec::new();
            for (h, q) in q.chunks_exact(shape.head_dim).enumerate() {
                for part in 0..parts {
                    let range = attention_splitk::part_positions(len, parts, part);
                    let keys = &keys_of(&k, &v, shape, h / group)[range];
                    let (m, d, o) = online(q, keys, shape.scale as f32);
                    partials.extend([f64::from(m), f64::from(d)]);
                    partials.extend(o.into_iter().map(f64::from));
                }
            }
            let split = attention_splitk::expected(&q, &k, &v, shape, parts, score, 0);
            used("attention_splitk", &split, &partials);

            let combined = combine_f32(&partials, shape.head_dim, parts);
            let expected =
                attention_combine::expected(&partials, shape.head_dim, parts, Store::F16);
            used("attention_combine", &expected, &combined);
            let expected = attention::expected(&q, &k, &v, shape, form(1));
            used("split-K, whole", &expected, &combined);
        }
    }
}

fn combine_f32(partials: &[f64], head_dim: usize, parts: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for head in partials.chunks_exact(parts * (head_dim + 2)) {
        let parts = || {
            head.chunks_exact(head_dim + 2)
                .map(narrow)
                .filter(|p| p[1] > 0.0)
        };
        let max = parts().fold(f32::MIN, |max, p| max.max(p[0]));
        let sum = |i: usize| parts().fold(0f32, |sum, p| sum + p[i] * (p[0] - max).exp());
        out.extend((2..head_dim + 2).map(|i| store(sum(i) / sum(1))));
    }
    out
}

#[test]
fn an_empty_part_is_neutral() {
    let shape = attention_shape(1, 1, 32);
    let (q, kv) = (vec![1.0; 32], vec![0.5; 3 * 32]);
    let partials = attention_splitk::compute(&q, &kv, &kv, shape, 4);
    assert_eq!(
        &partials[34..37],
        &[-50_000.0, 0.0, 0.0],
        "m, d, o of part 1"
    );
    let none = attention::compute(&q, &[], &[], shape);
    assert_eq!(none, vec![0.0; 32], "no positions, no output");
}

#[test]
fn embedding_is_exact_and_checked() {
    let mut values = Values(13);
    let (words, scales) = values.weights(5, 64);
    let w = Matrix::new(5, 64, &words, &scales).expect("fits");
    let expected = embedding::expected(w, 4, kernels::Elem::F16).expect("in range");
    let found: Vec<f64> = (0..64)
        .map(|i| {
            let code = (words[4 * 8 + i / 8] >> (4 * (i % 8))) as i32 & 15;
            (f16::from_f32((code - 7) as f32) * scales[4 * 2 + i / 32]).to_f64()
        })
        .collect();
    used("embedding", &expected, &found);
    let off: Vec<f64> = found.iter().map(|v| v * (1.0 + 1e-3)).collect();
    assert_caught("one f16 step", &expected, &off);
    let error = embedding::compute(w, 5, Numerics::Formula).expect_err("row 5 of 5");
    assert_eq!(error, RoleError::Token { token: 5, vocab: 5 }, "error");
}

#[test]
fn argmax_ties_and_nan() {
    assert_eq!(
        argmax::compute(&[1.0, 3.0, 3.0, 2.0]),
        Some(1),
        "lowest of equals"
    );
    assert_eq!(
        argmax::compute(&[f64::NEG_INFINITY; 3]),
        Some(0),
        "all equal"
    );
    assert_eq!(argmax::compute(&[1.0, f64::NAN, 3.0]), None, "NaN");
    assert_eq!(argmax::compute(&[]), None, "no logits");
    assert_eq!(argmax::top2_gap(&[1.0, 3.0, 2.5]), Some(0.5), "gap");
    assert_eq!(argmax::top2_gap(&[3.0, 3.0]), Some(0.0), "a tie has no gap");
    assert_eq!(argmax::top2_gap(&[3.0]), None, "one logit");
}

#[test]
fn pages_that_are_not_there_are_errors() {
    let layout = KvLayout {
        kv_heads: 1,
        head_dim: 32,
    };
    let mut pages = vec![0.0; layout.page_stride() * 2];
    let row = [1.0; 32];
    let mut append = |table: &[u32], position| {
        kv_append::compute(&mut pages, layout, table, position, &row, &row)
    };
    assert!(append(&[0, 1], 31).is_ok(), "last slot");
    let beyond = append(&[0, 1], 32).expect_err("no third page");
    assert_eq!(
        beyond.to_string(),
        "position 32 needs page 2 of a page table with 2 entries",
        "message"
    );
    let page = append(&[0, 7], 16).expect_err("page 7 of 2");
    assert_eq!(page, RoleError::Page { page: 7, pages: 2 }, "error");
    assert!(append(&[], -1).is_ok(), "padding is skipped");
    assert_eq!(pages.iter().sum::<f64>(), 64.0, "one position was written");
}

// ---- invariants ----

proptest! {
    // A failure prints its input; no files beside the sources.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn softmax_sums_to_one(scores in prop::collection::vec(-1e4f64..1e4, 1..200)) {
        let weights = attention::softmax(&scores);
        let sum: f64 = weights.iter().sum();
        prop_assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        prop_assert!(weights.iter().all(|w| (0.0..=1.0).contains(w)));
    }

    #[test]
    fn rope_preserves_pair_norms(
        seed in 1u64..,
        position in 0usize..100_000,
        rotary in prop::sample::select(vec![16usize, 64, 128]),
    ) {
        let rope = rope(128, rotary, 1e4);
        let x = Values(seed).f16s(3 * 128, 1.0);
        let y = rope::compute(&rope, &x, position);
        for (x, y) in x.chunks_exact(128).zip(y.chunks_exact(128)) {
            for i in 0..rotary / 2 {
                let norm = |x: &[f64]| x[i].hypot(x[i + rotary / 2]);
                prop_assert!((norm(x) - norm(y)).abs() < 1e-13 * (1.0 + norm(x)));
            }
            prop_assert_eq!(&x[rotary..], &y[rotary..], "the rest is copied");
        }
    }

    #[test]
    fn split_k_equals_unsplit(seed in 1u64.., len in 1usize..150, parts in 1usize..=16) {
        let shape = attention_shape(6, 2, 32);
        let mut values = Values(seed);
        let q = values.f16s(6 * 32, 1.0);
        let k = values.f16s(len * 64, 1.0);
        let v = values.f16s(len * 64, 1.0);
        let partials = attention_splitk::compute(&q, &k, &v, shape, parts);
        let split = attention_combine::compute(&partials, 32, parts);
        let whole = attention::compute(&q, &k, &v, shape);
        prop_assert!(max_difference(&split, &whole) < 1e-12);
    }

    #[test]
    fn parts_cover_every_position_once(len in 0usize..2000, parts in 1usize..=16) {
        let ranges = (0..parts).map(|p| attention_splitk::part_positions(len, parts, p));
        let covered: Vec<usize> = ranges.flatten().collect();
        prop_assert_eq!(covered, (0..len).collect::<Vec<_>>());
    }

    #[test]
    fn page_placement_is_bijective(
        table in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(),
        len in 1usize..=96,
    ) {
        let layout = KvLayout { kv_heads: 2, head_dim: 32 };
        let mut pages = vec![u32::MAX; 6 * layout.page_stride()];
        let row = |side: u32, position: usize| -> Vec<u32> {
            (0..64).map(|i| side * 100_000 + position as u32 * 64 + i).collect()
        };
        for position in 0..len {
            let (k, v) = (row(0, position), row(1, position));
            kv_append::compute(&mut pages, layout, &table, position as i32, &k, &v).unwrap();
        }
        let written = pages.iter().filter(|&&p| p != u32::MAX).count();
        prop_assert_eq!(written, len * 128, "no slot is written twice");
        for (side, code) in [(Side::K, 0), (Side::V, 1)] {
            let expected: Vec<u32> = (0..len).flat_map(|p| row(code, p)).collect();
            let found = kv_append::gather(&pages, layout, &table, side, len).unwrap();
            prop_assert_eq!(found, expected);
        }
        for position in 0..pages_for(len) * PAGE_SIZE {
            let (page, slot) = kv_append::locate(&table, position).unwrap();
            prop_assert_eq!(page, table[position / 16]);
            prop_assert_eq!(slot, position % 16);
        }
    }

    #[test]
    fn argmax_is_the_first_greatest(logits in prop::collection::vec(-3i8..3, 1..100)) {
        let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
        let best = argmax::compute(&logits).expect("no NaN");
        prop_assert!(logits.iter().all(|l| *l <= logits[best]));
        prop_assert!(logits[..best].iter().all(|l| *l < logits[best]));
    }
}
