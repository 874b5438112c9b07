//! The forward pass against golden data of another implementation, and against
//! itself where it must be bit-equal.

mod support;

use half::f16;
use kernels::models::Shape;
use kernels::{Elem, ModelSpec, Tensor};
use reference::checkpoint::{Key, Stored};
use reference::forward::{ForwardError, Trace, TraceRows};
use reference::matrix::{Packed, ScaleValues};
use reference::{Checkpoint, Forward, Numerics, folder};
use std::collections::BTreeMap;
use support::{Array, golden, max_difference, safetensors};

/// How far logits may be from golden ones.
#[derive(Clone, Copy)]
struct Limits {
    /// README of the golden data, "other f32 code": the oracle is f32, so this is mostly
    /// its own error (measured of dense models: 3.3e-6 and 4.0e-5).
    oracle_rms: f64,
    oracle_max: f64,
    /// The same, "f16 activations, f32 sums".
    f16_rms: f64,
}

const DENSE: Limits = Limits {
    oracle_rms: 1e-5,
    oracle_max: 7e-5,
    f16_rms: 0.005,
};
const HYBRID: Limits = Limits {
    oracle_rms: 6e-5,
    oracle_max: 8e-5,
    f16_rms: 0.006,
};
const EXPERTS: Limits = Limits {
    oracle_rms: 6e-5,
    oracle_max: 2e-4,
    f16_rms: 0.01,
};
/// Below it rounding may choose another expert.
const ROUTER_MARGIN: f64 = 0.02;
const PROMPTS: [&str; 3] = ["p0", "p1", "p2"];

/// Weights as the library reads them; what is expected of them was computed by
/// the oracle from its own decoding of the same folder.
struct Case {
    weights: Checkpoint,
    expected: BTreeMap<String, Array>,
}

impl Case {
    fn load(name: &str) -> Option<Self> {
        let dir = golden(name)?;
        Some(Self {
            weights: folder::read(&dir, &|_, _| ()).expect("golden checkpoint is whole"),
            expected: safetensors(&dir.join("expected.safetensors")),
        })
    }

    fn prompt(&self, prompt: &str) -> Vec<u32> {
        self.expected[&format!("{prompt}.input_ids")].ids()
    }

    fn forward(&self, numerics: Numerics) -> Forward<'_, Checkpoint> {
        Forward::new(&self.weights, numerics)
    }

    /// Relative rms of the logits of p2 against the golden ones.
    fn p2_error(&self, weights: &Checkpoint, numerics: Numerics) -> f64 {
        let mut forward = Forward::new(weights, numerics);
        let logits = forward.prefill_all(&self.prompt("p2")).expect("runs");
        let expected = self.expected["p2.logits"].rows();
        let margins = self.expected.get("p2.router_margin");
        let clear = |at: usize| {
            let row = margins.and_then(|m| m.rows().nth(at));
            row.is_none_or(|row| row.iter().all(|&margin| margin >= ROUTER_MARGIN))
        };
        let rows = logits.iter().zip(expected).enumerate();
        let rows = rows.filter(|&(at, _)| clear(at)).map(|(_, row)| row);
        let (found, expected): (Vec<_>, Vec<_>) =
            rows.map(|(f, e)| (f.clone(), e.to_vec())).unzip();
        relative_rms(&found.concat(), &expected.concat())
    }
}

fn matches_golden(name: &str, limits: Limits) {
    let Some(case) = Case::load(name) else { return };
    for prompt in PROMPTS {
        let ids = case.prompt(prompt);
        let mut forward = case.forward(Numerics::Formula);
        let logits = forward.prefill_all(&ids).expect("runs");
        let expected = &case.expected[&format!("{prompt}.logits")].data;
        let rms = relative_rms(&logits.concat(), expected);
        let max = max_difference(&logits.concat(), expected);
        eprintln!("{name} {prompt}: relative rms {rms:.2e}, max {max:.2e}");
        assert!(
            rms < limits.oracle_rms && max < limits.oracle_max,
            "{name} {prompt}: {rms:.2e}, {max:.2e}"
        );

        let greedy = forward.greedy(12).expect("runs");
        let tokens: Vec<u32> = greedy.iter().map(|step| step.token).collect();
        assert_eq!(
            tokens,
            case.expected[&format!("{prompt}.greedy")].ids(),
            "{name} {prompt}: greedy tokens"
        );
        let gaps: Vec<f64> = greedy.iter().map(|step| step.gap).collect();
        let gap = max_difference(&gaps, &case.expected[&format!("{prompt}.greedy_gap")].data);
        assert!(
            gap < 2.0 * limits.oracle_max,
            "{name} {prompt}: gaps differ by {gap:.2e}"
        );

        if prompt == "p2" {
            let nll = mean_nll(&logits, &ids);
            let expected = case.expected["p2.mean_nll"].data[0];
            assert!(
                (nll - expected).abs() < 1e-5,
                "{name}: mean nll {nll} for {expected}"
            );
        }
    }
    intermediates_match(name, &case, limits);
    cached_equals_full(name, &case);
    let faithful = case.p2_error(&case.weights, Numerics::Faithful(Elem::F16));
    eprintln!("{name} p2, faithful: relative rms {faithful:.2e}");
    assert!(
        (1e-4..limits.f16_rms).contains(&faithful),
        "{name}: faithful logits are off by {faithful:.2e}"
    );
}

/// Root mean square of the difference, relative to that of `expected`.
fn relative_rms(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "equal lengths");
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let difference = squares(&mut found.iter().zip(expected).map(|(f, e)| f - e));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}

fn mean_nll(logits: &[Vec<f64>], ids: &[u32]) -> f64 {
    let nll = |(logits, &next): (&Vec<f64>, &u32)| {
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        sum.ln() - logits[next as usize]
    };
    let predicted = logits.iter().zip(&ids[1..]);
    predicted.map(nll).sum::<f64>() / (ids.len() - 1) as f64
}

fn intermediates_match(name: &str, case: &Case, limits: Limits) {
    for (prompt, prefix, rows) in [
        ("p1", "p1.", TraceRows::All),
        ("p2", "p2.last.", TraceRows::Last),
    ] {
        let mut trace = Trace::new(rows);
        let mut forward = case.forward(Numerics::Formula);
        let ids = case.prompt(prompt);
        forward.prefill_traced(&ids, &mut trace).expect("runs");
        let mut compared = 0;
        for (stage, found) in trace.stages() {
            let Some(expected) = case.expected.get(&format!("{prefix}{stage}")) else {
                continue;
            };
            let error = relative_rms(&found.concat(), &expected.data);
            assert!(
                error < limits.oracle_rms,
                "{name} {prefix}{stage}: {error:.2e}"
            );
            compared += 1;
        }
        let spec = case.weights.spec();
        let layers = spec.num_hidden_layers;
        // Of experts the router's logits and the shared one's gate too.
        let of_layer = if spec.experts.is_some() { 8 } else { 6 };
        assert_eq!(
            compared,
            2 + of_layer * layers,
            "{name}: every golden stage"
        );
    }
}

fn cached_equals_full(name: &str, case: &Case) {
    for numerics in [Numerics::Formula, Numerics::Faithful(Elem::F16)] {
        for prompt in PROMPTS {
            let ids = case.prompt(prompt);
            let full = case.forward(numerics).prefill_all(&ids).expect("runs");
            let mut forward = case.forward(numerics);
            let step = |&id: &u32| forward.step(id).expect("runs");
            let cached: Vec<Vec<f64>> = ids.iter().map(step).collect();
            assert_eq!(cached, full, "{name} {prompt} {numerics:?}: cached = full");
        }
    }
    // p1 alone has the oracle's own cached logits of every position.
    let mut forward = case.forward(Numerics::Formula);
    let expected = case.expected["p1.logits_cached"].rows();
    for (id, expected) in case.prompt("p1").into_iter().zip(expected) {
        let logits = forward.step(id).expect("runs");
        let max = max_difference(&logits, expected);
        assert!(
            max < DENSE.oracle_max,
            "{name}: step by step, off by {max:.2e}"
        );
    }
}

#[test]
fn llama_tiny() {
    matches_golden("llama-tiny", DENSE);
}

#[test]
fn phi3_tiny() {
    matches_golden("phi3-tiny", DENSE);
}

#[test]
fn qwen3_tiny() {
    matches_golden("qwen3-tiny", DENSE);
}

#[test]
fn qwen3_mlx_tiny() {
    matches_golden("qwen3-mlx-tiny", DENSE);
}

#[test]
fn qwen35_tiny() {
    matches_golden("qwen35-tiny", HYBRID);
}

#[test]
fn qwen36_moe_tiny() {
    matches_golden("qwen36-moe-tiny", EXPERTS);
}

#[test]
fn qwen36_moe_q3_tiny() {
    matches_golden("qwen36-moe-q3-tiny", EXPERTS);
}

/// The same weights after a change of the model and of each parameter.
fn changed(
    weights: &Checkpoint,
    change_spec: impl Fn(&mut ModelSpec),
    change: impl Fn(&ModelSpec, Key, &mut Stored),
) -> Checkpoint {
    let mut spec = weights.spec().clone();
    let mut tensors = Vec::new();
    for key @ (layer, tensor) in spec.tensors() {
        let mut stored = match spec.shape(tensor) {
            Shape::Matrix { .. } => Stored::Matrix(weights.matrix(layer, tensor).to_packed()),
            Shape::Vector { .. } => Stored::Vector(weights.vector(layer, tensor).to_vec()),
            Shape::Floats { .. } => Stored::Floats(weights.floats(layer, tensor).to_vec()),
        };
        change(&spec, key, &mut stored);
        tensors.push((key, stored));
    }
    change_spec(&mut spec);
    Checkpoint::new(spec, weights.provenance().clone(), tensors).expect("of the same shape")
}

/// What is wrong, and how to make it so.
type Mistake = (&'static str, fn(&Checkpoint) -> Checkpoint);

/// Mistakes of weights or layout that the limits above must not let pass.
#[test]
fn mistakes_exceed_the_limits() {
    for name in ["llama-tiny", "phi3-tiny", "qwen3-tiny", "qwen3-mlx-tiny"] {
        let Some(case) = Case::load(name) else {
            continue;
        };
        let mistakes: [Mistake; 4] = [
            ("+1 on gammas", plus_one_on_gammas),
            ("gate and up swapped", swap_gate_up),
            ("interleaved RoPE", interleave_rope),
            ("theta 1.5 times too large", |weights| {
                changed(weights, |spec| spec.rope_theta *= 1.5, |_, _, _| ())
            }),
        ];
        for (mistake, make) in mistakes {
            let wrong = make(&case.weights);
            for (numerics, limit) in [
                (Numerics::Formula, DENSE.oracle_rms),
                (Numerics::Faithful(Elem::F16), DENSE.f16_rms),
            ] {
                let error = case.p2_error(&wrong, numerics);
                assert!(
                    error > 2.0 * limit,
                    "{name}: {mistake} passes as {numerics:?} with {error:.2e}"
                );
            }
        }
    }
}

fn plus_one_on_gammas(weights: &Checkpoint) -> Checkpoint {
    changed(
        weights,
        |_| (),
        |_, _, stored| {
            // Every vector is a norm's.
            if let Stored::Vector(gammas) = stored {
                for gamma in gammas {
                    *gamma = f16::from_f32(gamma.to_f32() + 1.0);
                }
            }
        },
    )
}

fn f16_scales(w: &mut Packed) -> &mut [f16] {
    match &mut w.scales {
        ScaleValues::F16(scales) => scales,
        ScaleValues::F32(_) => panic!("{} has scales in f32", w.format),
    }
}

fn swap_gate_up(weights: &Checkpoint) -> Checkpoint {
    fn swap<T>(values: &mut [T]) {
        let half = values.len() / 2;
        values.rotate_left(half);
    }
    changed(
        weights,
        |_| (),
        |_, (_, tensor), stored| {
            if let (Tensor::GateUp, Stored::Matrix(w)) = (tensor, stored) {
                swap(&mut w.words);
                swap(f16_scales(w));
                swap(&mut w.biases);
            }
        },
    )
}

/// Rows of Q and K in the order that makes half-split RoPE rotate the pairs
/// `(2i, 2i + 1)`. The order within a head does not matter to attention itself,
/// but with QK-norm the gammas would have to move too.
fn interleave_rope(weights: &Checkpoint) -> Checkpoint {
    changed(
        weights,
        |_| (),
        |spec, (_, tensor), stored| {
            if let (Tensor::Qkv, Stored::Matrix(w)) = (tensor, stored) {
                let rows = spec.q_dim() + spec.kv_dim();
                permute_heads(&mut w.words, rows, spec.qkv_dim(), spec.head_dim);
                permute_heads(f16_scales(w), rows, spec.qkv_dim(), spec.head_dim);
                permute_heads(&mut w.biases, rows, spec.qkv_dim(), spec.head_dim);
            }
        },
    )
}

fn permute_heads<T: Copy>(values: &mut [T], rows: usize, all_rows: usize, head_dim: usize) {
    let width = values.len() / all_rows;
    let source = values.to_vec();
    for row in 0..rows {
        let (head, dim) = (row / head_dim, row % head_dim);
        let from = if dim < head_dim / 2 {
            2 * dim
        } else {
            2 * (dim - head_dim / 2) + 1
        };
        let from = (head * head_dim + from) * width;
        values[row * width..][..width].copy_from_slice(&source[from..from + width]);
    }
}

#[test]
fn a_prompt_longer_than_a_chunk_equals_single_steps() {
    let Some(case) = Case::load("llama-tiny") else {
        return;
    };
    let ids: Vec<u32> = case.prompt("p2").into_iter().cycle().take(101).collect();
    let mut whole = case.forward(Numerics::Faithful(Elem::F16));
    let mut trace = Trace::new(TraceRows::Last);
    let logits = whole.prefill_traced(&ids, &mut trace).expect("runs");
    let mut steps = case.forward(Numerics::Faithful(Elem::F16));
    let mut last = Vec::new();
    for &id in &ids {
        last = steps.step(id).expect("runs");
    }
    assert_eq!(logits, last, "prefill = steps");
    assert_eq!(whole.cached(1), steps.cached(1), "the cache too");
    let k = &trace.get("layers.1.k").expect("traced")[0];
    assert!(
        whole.cached(1).0.ends_with(k),
        "the trace's last row is the last position"
    );
}

#[test]
fn truncation_forgets_exactly_the_tail() {
    truncates("llama-tiny");
}

/// A state cannot be cut back, so it is made again.
#[test]
fn truncation_of_a_hybrid_forgets_exactly_the_tail() {
    truncates("qwen35-tiny");
}

fn truncates(name: &str) {
    let Some(case) = Case::load(name) else {
        return;
    };
    let ids = case.prompt("p2");
    let mut forward = case.forward(Numerics::Formula);
    let first = forward.prefill(&ids).expect("runs");
    forward.greedy(3).expect("runs");
    forward.truncate(ids.len() - 5);
    assert_eq!(
        forward.greedy(1),
        Err(ForwardError::NoLogits),
        "logits are gone"
    );
    assert_eq!(
        forward.prefill(&ids[ids.len() - 5..]),
        Ok(first.clone()),
        "refed"
    );
    forward.reset();
    assert!(forward.is_empty() && forward.logits().is_none(), "reset");
    assert_eq!(forward.prefill(&ids), Ok(first), "from the start");
}

#[test]
fn bad_input_is_an_error_and_changes_nothing() {
    let Some(case) = Case::load("llama-tiny") else {
        return;
    };
    let small = changed(&case.weights, |spec| spec.max_pages = 8, |_, _, _| ());
    let mut forward = Forward::new(&small, Numerics::Formula);
    let error = forward
        .prefill(&[1, 1003])
        .expect_err("beyond the vocabulary");
    assert_eq!(
        error.to_string(),
        "token id 1003 is beyond the vocabulary of 1003",
        "message"
    );
    assert_eq!(forward.prefill(&[]), Err(ForwardError::Empty), "no tokens");
    assert_eq!(
        forward.greedy(1),
        Err(ForwardError::NoLogits),
        "nothing fed"
    );
    let error = forward
        .prefill(&[1; 129])
        .expect_err("8 pages hold 128 positions");
    assert_eq!(
        error,
        ForwardError::Context {
            needed: 129,
            max: 128
        },
        "full"
    );
    assert!(forward.is_empty(), "nothing was fed");
    forward.prefill(&[1; 128]).expect("exactly full");
}
