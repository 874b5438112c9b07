//! The kernels on golden module vectors. Their inputs are f32, so they are
//! rounded to f16 first: a kernel is judged tightly against the reference on the
//! rounded inputs, and against the golden result within the bound that the
//! golden data's README gives an f16 engine. The reference itself holds the
//! unrounded vectors in `reference/tests/roles.rs`.

use crate::{
    cases::{self, Attended, Bench, Cache, Judged, model},
    data::{Packed, Values},
    support,
};
use half::f16;
use kernels::{Features, ModelSpec, Role, Variant, kv::pages_for, variants::VARIANTS};
use reference::golden::Golden;
use std::path::PathBuf;

/// README of the golden data: relative rms of a dense f16 engine.
const F16_REL_RMS: f64 = 0.005;

fn variants(role: Role) -> impl Iterator<Item = Variant> {
    VARIANTS.iter().copied().filter(move |v| v.role == role)
}

fn f16s(values: &[f32]) -> Vec<f16> {
    values.iter().map(|&x| f16::from_f32(x)).collect()
}

/// Requires every output within its limit, and `out` near the golden result.
fn require(case: &str, judged: &[Judged], out: &str, golden: &[f32]) {
    for judged in judged {
        judged.require().unwrap_or_else(|e| panic!("{case}: {e:#}"));
    }
    let judged = judged.iter().find(|judged| judged.name == out);
    near(case, &judged.expect("an output").found, golden);
}

fn near(case: &str, found: &[f64], golden: &[f32]) {
    assert_eq!(found.len(), golden.len(), "{case}: elements");
    let square = |x: f64| x * x;
    let differences = found.iter().zip(golden).map(|(f, g)| f - f64::from(*g));
    let error: f64 = differences.map(square).sum();
    let size: f64 = golden.iter().map(|g| square(f64::from(*g))).sum();
    let relative = (error / size).sqrt();
    assert!(
        relative <= F16_REL_RMS,
        "{case}: relative rms {relative:.2e} from the golden result"
    );
}

/// The file of golden data with the name of every result in it that `wanted`
/// takes; none where it is not there.
fn results(test: &str, file: &str, wanted: &str, result: &str) -> Option<(Golden, Vec<String>)> {
    let path: PathBuf = support::golden(test, file)?;
    let golden = Golden::open(path).expect("golden data are readable");
    let names = golden.names().expect("golden data have names");
    let names: Vec<String> = names
        .iter()
        .filter(|name| name.starts_with(wanted))
        .filter_map(|name| name.strip_suffix(result))
        .map(str::to_owned)
        .collect();
    assert!(!names.is_empty(), "no {wanted}*{result} in {file}");
    Some((golden, names))
}

/// The number in a dotted name after `key`: `hd64` gives 64.
fn number(name: &str, key: &str) -> f64 {
    let mut values = name.split('.').filter_map(|part| part.strip_prefix(key));
    values
        .find_map(|value| value.parse().ok())
        .expect("a number in the name")
}

const DENSE: &str = "modules/dense.safetensors";

#[test]
fn golden_norms() {
    let test = "golden::golden_norms";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let Some((golden, names)) = results(test, DENSE, "rms.", ".y") else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    for name in names {
        let (base, eps) = name.split_once(".eps").expect("an epsilon in the name");
        let x = golden.f32(&format!("{base}.x")).expect("x");
        let gamma = f16s(&golden.f32(&format!("{base}.gamma")).expect("gamma").data);
        let y = golden.f32(&format!("{name}.y")).expect("y").data;
        let spec = ModelSpec {
            hidden_size: x.shape[1],
            rms_norm_eps: eps.parse().expect("a number"),
            ..model()
        };
        let x = f16s(&x.data);
        for variant in variants(Role::RmsNorm) {
            let judged = cases::rms_norm(&mut bench, variant, &spec, &x, &gamma).expect("it runs");
            require(&format!("{variant} {name}"), &judged, "out", &y);
        }
        // A delta of zero leaves the residual as it is.
        let zero = vec![f16::ZERO; x.len()];
        for variant in variants(Role::AddNorm) {
            let judged =
                cases::add_norm(&mut bench, variant, &spec, &zero, &x, &gamma).expect("it runs");
            require(&format!("{variant} {name}"), &judged, "normed", &y);
        }
        let head = spec.hidden_size;
        if head > 256 {
            continue;
        }
        // The same head as query, as key and as value.
        let spec = ModelSpec {
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: head,
            rotary_dim: head,
            hidden_size: 64,
            ..spec
        };
        let heads = x.chunks_exact(head);
        let qkv: Vec<f16> = heads.flat_map(|x| [x, x, x].concat()).collect();
        for variant in variants(Role::QkNorm) {
            let gammas = [&gamma[..], &gamma];
            let judged = cases::qk_norm(&mut bench, variant, &spec, &qkv, gammas).expect("it runs");
            for out in ["q", "k"] {
                require(&format!("{variant} {name}"), &judged, out, &y);
            }
        }
    }
}

#[test]
fn golden_rope() {
    let test = "golden::golden_rope";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let Some((golden, names)) = results(test, DENSE, "rope.", ".y") else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    for name in names {
        let x = golden.f32(&format!("{name}.x")).expect("x");
        let y = golden.f32(&format!("{name}.y")).expect("y").data;
        let positions = golden.i32(&format!("{name}.pos")).expect("pos").data;
        assert!(positions.contains(&4095), "{name}: {positions:?}");
        let heads = x.shape[1];
        let spec = ModelSpec {
            num_attention_heads: heads,
            num_key_value_heads: heads,
            head_dim: x.shape[2],
            rotary_dim: number(&name, "rot") as usize,
            rope_theta: number(&name, "theta"),
            ..model()
        };
        // The same heads as queries, as keys and as values.
        let row = heads * spec.head_dim;
        let x = f16s(&x.data);
        let qkv: Vec<f16> = x
            .chunks_exact(row)
            .flat_map(|x| [x, x, x].concat())
            .collect();
        for variant in variants(Role::Rope) {
            let case = format!("{variant} {name}");
            let judged =
                cases::rope(&mut bench, variant, &spec, &qkv, &positions, 0).expect("it runs");
            require(&case, &judged, "q", &y);
            require(&case, &judged, "k", &y);
        }
        // A rotation is linear: of normalised heads it is the golden result over
        // each head's root mean square.
        let ones = vec![f16::ONE; spec.head_dim];
        let heads = x.chunks_exact(spec.head_dim);
        let normed: Vec<f32> = heads
            .zip(y.chunks_exact(spec.head_dim))
            .flat_map(|(x, y)| {
                let squares: f64 = x.iter().map(|x| x.to_f64().powi(2)).sum();
                let scale = (squares / spec.head_dim as f64 + spec.rms_norm_eps).sqrt();
                y.iter().map(move |&y| (f64::from(y) / scale) as f32)
            })
            .collect();
        let spec = ModelSpec {
            max_pages: 256,
            ..spec
        };
        for variant in variants(Role::QkNormRopeAppend) {
            let cache = Cache::empty(&spec, Values(2).permutation(spec.max_pages), 0);
            let case = format!("{variant} {name}");
            let judged = cases::qk_norm_rope_append(
                &mut bench,
                variant,
                &spec,
                &qkv,
                [&ones, &ones],
                &cache,
                &positions,
            );
            let judged = judged.expect("it runs");
            require(&case, &judged, "q", &normed);
            require(&case, &judged, "k", &normed);
        }
    }
}

#[test]
fn golden_attention_whole_and_in_parts_over_shuffled_pages() {
    let test = "golden::golden_attention_whole_and_in_parts_over_shuffled_pages";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let Some((golden, names)) = results(test, DENSE, "attn.decode.", ".out") else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    let mut values = Values(1);
    for name in names {
        let tensor = |part: &str| golden.f32(&format!("{name}.{part}")).expect(part);
        let (q, k) = (tensor("q"), tensor("k"));
        let spec = ModelSpec {
            num_attention_heads: q.shape[1],
            num_key_value_heads: k.shape[1],
            head_dim: q.shape[2],
            max_pages: 16,
            rotary_dim: q.shape[2],
            ..model()
        };
        assert!(pages_for(k.shape[0]) < spec.max_pages, "{name}: pages");
        let attended = Attended {
            q: f16s(&q.data),
            k: f16s(&k.data),
            v: f16s(&tensor("v").data),
            table: values.permutation(spec.max_pages),
            first_page: 0,
            offset: 0,
        };
        let out = tensor("out").data;
        for variant in variants(Role::Attention) {
            let judged = cases::attention(&mut bench, variant, &spec, &attended).expect("it runs");
            require(&format!("{variant} {name}"), &judged, "out", &out);
        }
        for splitk in variants(Role::AttentionSplitk) {
            for parts in [2, 3, 8, 16] {
                let case = format!("{splitk} {name} in {parts} parts");
                let judged = cases::attention_splitk(&mut bench, splitk, &spec, &attended, parts)
                    .expect("it runs");
                judged[0]
                    .require()
                    .unwrap_or_else(|e| panic!("{case}: {e:#}"));
                let partials: Vec<f32> = judged[0].found.iter().map(|&x| x as f32).collect();
                for combine in variants(Role::AttentionCombine) {
                    let judged =
                        cases::attention_combine(&mut bench, combine, &spec, &partials, parts)
                            .expect("it runs");
                    require(&format!("{case}, {combine}"), &judged, "out", &out);
                    let whole = Judged {
                        name: "out",
                        found: judged[0].found.clone(),
                        expected: cases::whole(&spec, &attended, 1),
                    };
                    whole.require().unwrap_or_else(|e| panic!("{case}: {e:#}"));
                }
            }
        }
    }
}

/// `fused_ffn` takes gate and up from its own projection. A weight row with one
/// code 8 at K = 0 and the gate as its scale, and x = (1, 0, ...), make the
/// projection exactly the gate.
#[test]
fn golden_swiglu_through_fused_ffn() {
    let test = "golden::golden_swiglu_through_fused_ffn";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let Some((golden, _)) = results(test, DENSE, "swiglu", ".y") else {
        return;
    };
    let [gate, up, y] = ["gate", "up", "y"].map(|part| {
        let tensor = golden.f32(&format!("swiglu.{part}")).expect(part);
        (tensor.shape[1], tensor.data)
    });
    let (units, k) = (y.0, 64);
    let mut x = vec![f16::ZERO; k];
    x[0] = f16::ONE;
    let mut bench = Bench::new(&gpu);
    for ((gate, up), y) in gate
        .1
        .chunks_exact(units)
        .zip(up.1.chunks_exact(units))
        .zip(y.1.chunks_exact(units))
    {
        let rows = gate.iter().chain(up);
        let w = Packed {
            rows: 2 * units,
            k,
            words: [0x7777_7778, 0x7777_7777, 0x7777_7777, 0x7777_7777].repeat(k / 32 * 2 * units),
            scales: rows.flat_map(|&g| [f16::from_f32(g), f16::ONE]).collect(),
        };
        for variant in variants(Role::FusedFfn) {
            let judged = cases::fused_ffn(&mut bench, variant, &w, &x, units).expect("it runs");
            require(&format!("{variant} swiglu"), &judged, "out", y);
        }
    }
}

#[test]
fn golden_int4_matmul_and_embedding() {
    let test = "golden::golden_int4_matmul_and_embedding";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let file = "quant/q4f16_1.safetensors";
    let Some((golden, names)) = results(test, file, "q4f16_1.", ".dequant") else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    let mut run = 0;
    for name in names {
        let dequant = golden.f32(&format!("{name}.dequant")).expect("dequant");
        let w = Packed {
            rows: dequant.shape[0],
            k: dequant.shape[1],
            words: golden.u32(&format!("{name}.q_weight")).expect("words").data,
            scales: golden.f16(&format!("{name}.q_scale")).expect("scales").data,
        };
        let ids: Vec<u32> = (0..w.rows as u32).collect();
        for variant in variants(Role::Embedding) {
            let case = format!("{variant} {name}");
            let judged = cases::embedding(&mut bench, variant, &w, &ids).expect("it runs");
            require(&case, &judged, "out", &dequant.data);
            let rounded = dequant.data.iter().map(|&w| f16::from_f32(w).to_f64());
            let rounded: Vec<f64> = rounded.collect();
            assert_eq!(judged[0].found, rounded, "{case}: one f16 rounding");
        }
        let Ok(x) = golden.f32(&format!("{name}.x")) else {
            assert!(name.ends_with("allcodes"), "{name}: no activations");
            continue;
        };
        let y = golden.f32(&format!("{name}.y")).expect("y").data;
        for variant in variants(Role::Int4Matmul) {
            if variant.check(&Features::PUBLISHED, w.k).is_err() {
                continue;
            }
            let rows = x.data.chunks_exact(w.k).zip(y.chunks_exact(w.rows));
            for (i, (x, y)) in rows.enumerate() {
                let judged =
                    cases::int4_matmul(&mut bench, variant, &w, &f16s(x)).expect("it runs");
                require(&format!("{variant} {name} x {i}"), &judged, "out", y);
                run += 1;
            }
        }
    }
    // Six shapes of three activations: the tree of words and the row form take
    // all of them, the wide trees K = 2048 alone.
    assert!(run >= 3 * (6 + 6 + 1 + 1), "only {run} products compared");
}
