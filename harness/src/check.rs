//! Correctness: every dispatch of a token against its role's reference, and the
//! whole model against the reference forward pass.
//!
//! A role is judged from the operands it really had, so that an error of one
//! kernel does not hide behind those before it; the whole model is judged by its
//! logits and by its greedy tokens.

mod choices;
mod experts;
mod logits;
mod recurrent;

pub(crate) use choices::{Fed, Router, choices, judge_choices, layer_of, note, routes};
pub(crate) use logits::{EXCUSED_SHARE, logit_worst, logits_rel_rms};
pub use logits::{Expectation, Greedy, Noise, STEPS, greedy, logits};
pub(crate) use recurrent::recurred;

use crate::engine::{Arm, Captured, Engine, every, part_of};
use anyhow::{Context as _, Result, bail};
use kernels::{
    Dispatch, Elem, ModelSpec, QuantFormat, Role, Tensor, Variant,
    kv::{KvFormat, Side},
    models::{Experts, GatedDeltaNet},
    plan::{Activation, Buffer, Part, chunk_positions},
    sampling::{Draw, SAMPLE_PARTS},
    variants::{DP4A_GEMM_SHARES, DP4A_LANES, INT8_GROUP, Load, Reduce},
};
use reference::{
    Checkpoint, Expected, Matrix,
    bounds::{Accumulation, Store, Trig},
    numerics::{decode, widen},
    roles::{
        add_norm, add3_norm, argmax, attention, attention_combine, attention_splitk, embedding,
        fused_ffn, fused_ffn_norm, fused_ffn_prologue, int4_matmul, int4_matmul_add, kv_append,
        kv_quantize_int8, qk_norm,
        qk_norm_rope_append::{self, HeadNorm},
        qkv_fused::{self, Qkv},
        qkv_fused_norm::{self, Normed},
        rms_norm, rope, sample_reduce, sample_select, silu_mul,
    },
};
use results::record;

/// Outcome of one comparison.
pub type Check = record::Check;

/// Compares `found` with `expected`, element by element; NaN, infinities and a
/// wrong length never pass.
pub fn compare(stage: &str, role: &str, found: &[f64], expected: &Expected) -> Check {
    let worst = expected.worst(found);
    let used = worst.map_or(f64::INFINITY, |w| w.used);
    let error = worst.map_or(f64::INFINITY, |w| (w.found - w.value).abs());
    let relative = worst.map_or(f64::INFINITY, |w| {
        error / w.value.abs().max(f64::MIN_POSITIVE)
    });
    let passed = used <= 1.0;
    Check {
        arm: record::Arm::A,
        stage: stage.to_owned(),
        role: role.to_owned(),
        elements: expected.value.len() as u64,
        worst_abs: error,
        worst_rel: if error == 0.0 { 0.0 } else { relative },
        bound: 1.0,
        worst_ratio: used,
        passed,
        note: worst.filter(|_| !passed).map(|w| {
            format!(
                "element {}: expected {} within {}, found {}",
                w.index, w.value, w.limit, w.found
            )
        }),
    }
}

/// Checks the dispatches of a program that `select` takes, in order; its first token
/// is at `position`.
///
/// # Errors
/// A device error; a failed comparison is a [`Check`] that did not pass.
pub fn roles(
    engine: &Engine<'_>,
    program: &crate::engine::Program,
    position: usize,
    select: impl Fn(&Dispatch) -> bool,
) -> Result<Vec<Check>> {
    let count = program.plan.phase.tokens();
    let rows = Rows {
        tokens: engine.rows(count)?,
        positions: chunk_positions(position, count).collect(),
    };
    let mut checks = Vec::new();
    engine.run_captured(program, position, select, |captured| {
        let stage = captured.dispatch.label.clone();
        let role = captured.dispatch.variant.role;
        for (name, found, expected) in judge(engine, &captured, &rows)? {
            let stage = if name.is_empty() {
                stage.clone()
            } else {
                format!("{stage}.{name}")
            };
            checks.push(compare(&stage, role.name(), &found, &expected));
        }
        Ok(())
    })?;
    Ok(checks)
}

/// Checks an arm on a prompt: its last chunk again, dispatch by dispatch, and its last
/// token on the chain of decoded ones; then logits and `tokens` greedy tokens.
///
/// # Errors
/// As [`roles`].
pub fn model(engine: &Engine<'_>, arm: &Arm, prompt: &[u32], tokens: usize) -> Result<Vec<Check>> {
    let within = |chain: &str, mut checks: Vec<Check>| {
        for check in &mut checks {
            check.stage = format!("{chain}.{}", check.stage);
        }
        checks
    };
    engine.prefill_whole(&arm.prefill, prompt)?;
    let chunk = arm.prefill.last_chunk(prompt.len());
    engine.reach(&arm.prefill, &prompt[..chunk.start])?;
    engine.set_tokens(&prompt[chunk.clone()]);
    let program = engine.prefill_program(&arm.prefill, chunk.len(), true)?;
    let mut checks = within("prefill", roles(engine, &program, chunk.start, every)?);
    let last = prompt.len() - 1;
    engine.reach(&arm.prefill, &prompt[..last])?;
    engine.set_token(prompt[last]);
    checks.extend(within("decode", roles(engine, &arm.decode, last, every)?));
    let expected = Expectation::new(engine.weights, prompt, tokens, arm.prefill.settings())?;
    checks.extend(greedy(engine, arm, &expected)?.checks);
    Ok(checks)
}

type Judged = Vec<(&'static str, Vec<f64>, Expected)>;

/// How a matrix variant adds its products over K.
pub fn sum_form(variant: Variant, k: usize) -> Accumulation {
    let form = match variant.reduce {
        Reduce::Gemm if variant.load == Load::Dp4a => {
            Accumulation::any_order(k, DP4A_GEMM_SHARES, INT8_GROUP).of_int8()
        }
        Reduce::Row | Reduce::Gemm => Accumulation::serial(k),
        Reduce::Tree | Reduce::Elementwise => {
            Accumulation::strided(k, variant.threads(), 8 * variant.eights_per_load())
        }
        Reduce::Subgroup if variant.load == Load::Dp4a => {
            Accumulation::any_order(k, DP4A_LANES, 8 * variant.eights_per_load()).of_int8()
        }
        Reduce::Subgroup => {
            Accumulation::any_order(k, variant.threads(), 8 * variant.eights_per_load())
        }
    };
    if variant.format.is_some_and(QuantFormat::is_affine) {
        form.with_bias()
    } else {
        form
    }
}

/// How a variant stores activations.
pub fn store(variant: Variant) -> Store {
    match variant.elem {
        Elem::F16 => Store::F16,
        Elem::F32 => Store::F32,
    }
}

/// How a variant stores a product or a logit.
pub fn output_store(variant: Variant) -> Store {
    match variant.out {
        Elem::F16 => store(variant),
        Elem::F32 => Store::F32,
    }
}

/// How a norm adds the squares of a row of `d` elements.
pub fn norm_form(variant: Variant, d: usize) -> Accumulation {
    if variant.load == Load::Dp4a {
        return Accumulation::any_order(d, variant.threads(), INT8_GROUP);
    }
    Accumulation::strided(d, variant.threads(), 1)
}

/// How the weights of one part of a vocabulary are added.
pub fn part_sum(variant: Variant, vocab: usize) -> Accumulation {
    Accumulation::strided(vocab.div_ceil(SAMPLE_PARTS), variant.threads(), 1)
}

/// How a norm of heads adds the squares of a head: the fused form in pairs.
pub fn head_form(variant: Variant, head_dim: usize) -> Accumulation {
    let width = if variant.role == Role::QkNormRopeAppend {
        2
    } else {
        1
    };
    match variant.reduce {
        Reduce::Subgroup => Accumulation::any_order(head_dim, variant.threads(), width),
        Reduce::Tree | Reduce::Elementwise | Reduce::Row | Reduce::Gemm => {
            Accumulation::strided(head_dim, variant.threads(), width)
        }
    }
}

/// How the recurrence adds the squares of a query or key.
pub fn state_form(variant: Variant, net: &GatedDeltaNet) -> Accumulation {
    head_form(variant, net.linear_key_head_dim)
}

/// How a router adds the divisor of its weights.
pub fn topk_form(variant: Variant, experts: &Experts) -> Accumulation {
    head_form(variant, experts.num_experts)
}

/// How the fused projection computes its outputs.
pub fn qkv_form(variant: Variant, k: usize) -> qkv_fused::QkvForm {
    qkv_fused::QkvForm {
        sum: sum_form(variant, k),
        trig: Trig::CONFORMANT,
        store: store(variant),
    }
}

/// How attention adds the products of one score.
pub fn score_form(variant: Variant, head_dim: usize) -> Accumulation {
    match variant.reduce {
        Reduce::Row | Reduce::Tree | Reduce::Elementwise | Reduce::Gemm => {
            Accumulation::serial(head_dim)
        }
        Reduce::Subgroup => Accumulation::any_order(head_dim, variant.threads(), 1),
    }
}

fn exact(values: Vec<f64>) -> Expected {
    Expected {
        limit: vec![0.0; values.len()],
        value: values,
    }
}

/// The tokens of a dispatch, row by row.
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<usize>,
}

impl Rows {
    /// The limits of a row of `width` inputs, row by row.
    fn expected(&self, x: &[f64], width: usize, row: impl Fn(&[f64]) -> Expected) -> Expected {
        let rows = x.chunks_exact(width).take(self.positions.len());
        concat(rows.map(row))
    }
}

/// The rows one after the other.
fn concat(rows: impl Iterator<Item = Expected>) -> Expected {
    Expected::from_pairs(rows.flat_map(|row| row.value.into_iter().zip(row.limit)))
}

fn judge(engine: &Engine<'_>, captured: &Captured<'_>, rows: &Rows) -> Result<Judged> {
    // What only single tokens have.
    let position = rows.positions[0];
    let weights = engine.weights;
    let spec = weights.spec();
    let dispatch = captured.dispatch;
    let variant = dispatch.variant;
    let act = |a: Activation| captured.activations[&a].as_slice();
    let bound = |i: usize| match dispatch.buffers[i] {
        Buffer::Activation(a) => a,
        Buffer::Param { .. }
        | Buffer::KvPages { .. }
        | Buffer::KvCodes { .. }
        | Buffer::KvScales { .. }
        | Buffer::GdnRing { .. }
        | Buffer::GdnState { .. }
        | Buffer::State(_) => {
            panic!("{}: binding {i} is no activation", dispatch.label)
        }
    };
    let matrix = || param_matrix(weights, dispatch);
    let eps = spec.rms_norm_eps;
    let wide = norm_form(variant, spec.hidden_size);
    let shape = attention::AttentionShape::of(spec);
    Ok(match variant.role {
        Role::Embedding => {
            let (layer, tensor) = param(dispatch, false);
            let w = weights.matrix(layer, tensor);
            // The last part of the rows completes the output.
            if dispatch
                .rows()
                .is_some_and(|rows| rows.first + rows.count < w.rows)
            {
                return Ok(vec![]);
            }
            let tokens = rows.tokens.iter();
            let expected = tokens.map(|&token| embedding::expected(w, token, variant.elem));
            let expected: Vec<Expected> = expected.collect::<Result<_, _>>()?;
            let found = act(bound(0)).to_vec();
            vec![("", found, concat(expected.into_iter()))]
        }
        Role::RmsNorm => {
            let gamma = param_vector(weights, dispatch);
            let expected = rows.expected(act(bound(1)), spec.hidden_size, |x| {
                rms_norm::expected(x, &gamma, eps, wide, store(variant))
            });
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::AddNorm => {
            let gamma = param_vector(weights, dispatch);
            let a = act(bound(0)).chunks_exact(spec.hidden_size);
            let b = act(bound(1)).chunks_exact(spec.hidden_size);
            let expected = a
                .zip(b)
                .map(|(a, b)| add_norm::expected(a, b, &gamma, eps, wide, store(variant)));
            let (residual, normed): (Vec<_>, Vec<_>) =
                expected.map(|row| (row.residual, row.normed)).unzip();
            let residual = concat(residual.into_iter());
            let normed = concat(normed.into_iter());
            vec![
                ("residual", act(bound(4)).to_vec(), residual),
                ("normed", act(bound(3)).to_vec(), normed),
            ]
        }
        Role::Add3Norm => {
            let gamma = param_vector(weights, dispatch);
            let addends = [0, 1, 2].map(|i| act(bound(i)));
            let out = add3_norm::expected(addends, &gamma, eps, wide, store(variant));
            vec![
                ("residual", act(bound(5)).to_vec(), out.residual),
                ("normed", act(bound(4)).to_vec(), out.normed),
            ]
        }
        Role::FusedFfnPrologue => {
            let w = matrix();
            let gamma = param_vector(weights, dispatch);
            let sum = fused_ffn_prologue::Sum {
                residual: act(bound(1)),
                delta: act(bound(2)),
                gamma: &gamma,
                eps,
            };
            let products = sum_form(variant, w.k);
            let expected = fused_ffn_prologue::expected(w, sum, wide, products, store(variant));
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::Int4MatmulAdd => {
            let w = matrix();
            let (residual, x) = (act(bound(1)), act(bound(2)));
            let sum = sum_form(variant, w.k);
            let expected = int4_matmul_add::expected(w, x, residual, sum, store(variant));
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::FusedFfnNorm => {
            let w = matrix();
            let gamma = param_vector(weights, dispatch);
            let normed = Normed {
                x: act(bound(1)),
                gamma: &gamma,
                eps,
            };
            let products = sum_form(variant, w.k);
            let expected = fused_ffn_norm::expected(w, normed, wide, products, store(variant));
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::QkvFusedNorm => {
            let w = matrix();
            let gamma = param_vector(weights, dispatch);
            let normed = Normed {
                x: act(bound(2)),
                gamma: &gamma,
                eps,
            };
            let expected = qkv_fused_norm::expected(
                w,
                normed,
                qkv_fused::QkvShape::of(spec),
                &rope::Rope::of(spec),
                position,
                wide,
                qkv_form(variant, w.k),
            );
            projected(engine, captured, act(bound(0)).to_vec(), expected, position)?
        }
        Role::Int4Matmul | Role::FusedFfn => {
            let w = matrix();
            let sum = sum_form(variant, w.k);
            // The head takes the first row alone.
            let count = match variant.is_batched() {
                true => rows.positions.len(),
                false => 1,
            };
            let x = act(bound(1)).chunks_exact(w.k).take(count);
            let expected = x.map(|x| {
                if variant.role == Role::FusedFfn {
                    fused_ffn::expected(w, x, sum, store(variant))
                } else {
                    int4_matmul::expected(w, x, sum, output_store(variant))
                }
            });
            let mut found = act(bound(0)).to_vec();
            if let Some(rows) = dispatch.rows() {
                found = found[rows.first..][..rows.count].to_vec();
            }
            vec![("", found, concat(expected))]
        }
        Role::GatedQkvSplit
        | Role::AttnGate
        | Role::GdnConv
        | Role::GdnConvSeq
        | Role::GdnConvCommit
        | Role::GdnGates
        | Role::GdnRecur
        | Role::GdnNormOut => recurrent::judge(engine, captured, rows, bound)?,
        Role::Int4MatmulMoe | Role::MoeRouterLogits | Role::MoeRouterTopk | Role::MoeCombine => {
            experts::judge(engine, captured, rows, bound)?
        }
        Role::QkvFusedScratch => {
            let w = matrix();
            let form = qkv_form(variant, w.k);
            let table = rope::Rope::of(spec);
            let shape = qkv_fused::QkvShape::of(spec);
            let expected = qkv_fused::expected(w, act(bound(3)), shape, &table, position, form);
            vec![
                ("q", act(bound(0)).to_vec(), expected.q),
                ("k", act(bound(1)).to_vec(), expected.k),
                ("v", act(bound(2)).to_vec(), expected.v),
            ]
        }
        Role::QkvFused => {
            let w = matrix();
            let form = qkv_form(variant, w.k);
            let expected = qkv_fused::expected(
                w,
                act(bound(2)),
                qkv_fused::QkvShape::of(spec),
                &rope::Rope::of(spec),
                position,
                form,
            );
            projected(engine, captured, act(bound(0)).to_vec(), expected, position)?
        }
        Role::QkNorm => {
            let shape = qkv_fused::QkvShape::of(spec);
            let [q_gamma, k_gamma] = head_gammas(weights, dispatch);
            let split = |qkv: &[f64]| {
                let all: Vec<_> = qkv
                    .chunks_exact(spec.qkv_dim())
                    .map(|row| shape.split(row))
                    .collect();
                [
                    all.iter().map(|row| row.q).collect::<Vec<_>>().concat(),
                    all.iter().map(|row| row.k).collect::<Vec<_>>().concat(),
                    all.iter().map(|row| row.v).collect::<Vec<_>>().concat(),
                ]
            };
            let [q, k, v] = split(&captured.replaced[&bound(0)]);
            let [q_found, k_found, v_found] = split(act(bound(0)));
            let normed = |x: &[f64], gamma: &[f64]| {
                let form = head_form(variant, spec.head_dim);
                qk_norm::expected(x, gamma, eps, form, store(variant))
            };
            vec![
                ("q", q_found, normed(&q, &q_gamma)),
                ("k", k_found, normed(&k, &k_gamma)),
                ("v", v_found, exact(v)),
            ]
        }
        Role::QkNormRopeAppend => {
            let [q_gamma, k_gamma] = head_gammas(weights, dispatch);
            let form = qkv_fused::QkvForm {
                sum: head_form(variant, spec.head_dim),
                trig: Trig::CONFORMANT,
                store: store(variant),
            };
            let expected = qk_norm_rope_append::expected(
                act(bound(2)),
                qkv_fused::QkvShape::of(spec),
                HeadNorm {
                    q_gamma: &q_gamma,
                    k_gamma: &k_gamma,
                    eps,
                },
                &rope::Rope::of(spec),
                position,
                form,
            );
            projected(engine, captured, act(bound(0)).to_vec(), expected, position)?
        }
        Role::Rope => {
            let shape = qkv_fused::QkvShape::of(spec);
            let table = rope::Rope::of(spec);
            let rotated = |x: &[f64], position| {
                let zero = vec![0.0; x.len()];
                rope::expected(&table, x, &zero, position, Trig::CONFORMANT, store(variant))
            };
            let (mut q, mut k, mut v) = (vec![], vec![], vec![]);
            let projections = act(bound(3)).chunks_exact(spec.qkv_dim());
            for (row, &position) in projections.zip(&rows.positions) {
                let row = shape.split(row);
                q.push(rotated(row.q, position));
                k.push(rotated(row.k, position));
                v.extend_from_slice(row.v);
            }
            vec![
                ("q", act(bound(0)).to_vec(), concat(q.into_iter())),
                ("k", act(bound(1)).to_vec(), concat(k.into_iter())),
                ("v", act(bound(2)).to_vec(), exact(v)),
            ]
        }
        Role::KvQuantizeInt8 => {
            let [before, after] = captured
                .kv_int8
                .as_ref()
                .with_context(|| format!("{}: no int8 pages are bound", dispatch.label))?;
            let layout = spec.kv_layout().int8();
            let table = &engine.memory.page_table;
            let mut replaced = before.clone();
            let mut all = Vec::new();
            let row = spec.kv_dim();
            let k = act(bound(0)).chunks_exact(row);
            let v = act(bound(1)).chunks_exact(row);
            for ((k, v), &position) in k.zip(v).zip(&rows.positions) {
                let read = |side| after.read(layout, table, position, side);
                let stored = [read(Side::K)?, read(Side::V)?];
                replaced.write(layout, table, position as i32, stored.each_ref())?;
                for (names, stored, x) in [
                    (["k codes", "k scales"], &stored[0], k),
                    (["v codes", "v scales"], &stored[1], v),
                ] {
                    let expected = kv_quantize_int8::expected(x, spec.head_dim);
                    let codes = stored.codes.iter().map(|&code| f64::from(code)).collect();
                    all.push((names[0], codes, expected.codes));
                    all.push((names[1], stored.scales.clone(), expected.scales));
                }
            }
            let bits = |pages: &kv_quantize_int8::Pages| {
                let codes = pages.codes.iter().map(|&word| f64::from(word));
                let scales = pages.scales.iter().map(|s| f64::from(s.to_bits()));
                codes.chain(scales).collect::<Vec<f64>>()
            };
            all.push(("pages", bits(after), exact(bits(&replaced))));
            all
        }
        Role::SiluMul => {
            // Of experts as many rows as slots.
            let rows = act(bound(1)).chunks_exact(2 * spec.intermediate_size);
            let rows = rows.flat_map(|row| {
                let row = silu_mul::expected(row, &vec![0.0; row.len()], store(variant));
                row.value.into_iter().zip(row.limit)
            });
            let expected = Expected::from_pairs(rows);
            vec![("", act(bound(0)).to_vec(), expected)]
        }
        Role::KvAppend => {
            let [before, after] = pages(captured)?;
            let mut expected = before.clone();
            let held = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
            let (k, v) = (held(act(bound(0))), held(act(bound(1))));
            let stored = k
                .chunks_exact(spec.kv_dim())
                .zip(v.chunks_exact(spec.kv_dim()));
            for ((k, v), &position) in stored.zip(&rows.positions) {
                kv_append::compute(
                    &mut expected,
                    spec.kv_layout(),
                    &engine.memory.page_table,
                    position as i32,
                    k,
                    v,
                )?;
            }
            vec![("", widen(after), exact(widen(&expected)))]
        }
        Role::AttentionInt8 => {
            let [k, v] = cached(engine, captured, position + 1)?;
            let form = attention_form(variant, spec.head_dim);
            let expected = attention::expected(act(bound(0)), &k, &v, shape, form);
            vec![("", act(bound(6)).to_vec(), expected)]
        }
        Role::Attention | Role::AttentionSplitk => {
            let [k, v] = cached(engine, captured, position + 1)?;
            let found = act(bound(5)).to_vec();
            let expected = if variant.role == Role::Attention {
                let form = attention_form(variant, spec.head_dim);
                attention::expected(act(bound(0)), &k, &v, shape, form)
            } else {
                let parts = dispatch.grid[0] as usize;
                let score = score_form(variant, spec.head_dim);
                let merges = merges(variant);
                attention_splitk::expected(act(bound(0)), &k, &v, shape, parts, score, merges)
            };
            vec![("", found, expected)]
        }
        Role::AttentionPrefill | Role::AttentionPrefillInt8 => {
            let out = match variant.role.kv_format() {
                Some(KvFormat::Int8) => 4,
                Some(KvFormat::Plain) | None => 3,
            };
            let queries = act(bound(0)).chunks_exact(spec.q_dim());
            // The first row is the last token, which attends to all others.
            let [k, v] = cached(engine, captured, position + 1)?;
            let form = attention_form(variant, spec.head_dim);
            let expected = queries.zip(&rows.positions).map(|(q, &position)| {
                let seen = (position + 1) * spec.kv_dim();
                attention::expected(q, &k[..seen], &v[..seen], shape, form)
            });
            let expected = concat(expected);
            vec![("", act(bound(out)).to_vec(), expected)]
        }
        Role::AttentionCombine => {
            let parts = dispatch.uniform[0] as usize;
            let expected =
                attention_combine::expected(act(bound(0)), spec.head_dim, parts, store(variant));
            vec![("", act(bound(1)).to_vec(), expected)]
        }
        Role::Argmax => {
            let best = argmax::compute(act(bound(0))).context("the logits hold NaN")?;
            vec![(
                "",
                vec![f64::from(engine.token()?)],
                exact(vec![best as f64]),
            )]
        }
        Role::SampleReduce => {
            let temperature = f32::from_bits(dispatch.uniform[0]);
            let logits = act(bound(0));
            let sum = part_sum(variant, logits.len());
            let expected = sample_reduce::expected(logits, temperature, sum);
            vec![("", act(bound(1)).to_vec(), expected)]
        }
        Role::SampleSelect => {
            let [temperature, top_p, min_p, top_k, seed] = dispatch.uniform[..] else {
                panic!("{}: five words", dispatch.label);
            };
            let [temperature, top_p, min_p] = [temperature, top_p, min_p].map(f32::from_bits);
            let draw = Draw {
                temperature,
                top_p,
                min_p,
                top_k,
                seed,
            };
            let (logits, position) = (act(bound(0)), position as u32);
            let found = engine.token()?;
            let drawn = sample_select::compute(logits, &draw, position);
            let drawn = drawn.context("the logits hold NaN")?;
            let may = sample_select::may_draw(logits, &draw, position, found as usize);
            let expected = if may { found as usize } else { drawn };
            vec![("", vec![f64::from(found)], exact(vec![expected as f64]))]
        }
    })
}

/// Keys and values of the first `len` positions, `[len, KV]` each.
fn cached(engine: &Engine<'_>, captured: &Captured<'_>, len: usize) -> Result<[Vec<f64>; 2]> {
    let layout = engine.weights.spec().kv_layout();
    let table = &engine.memory.page_table;
    let gather = |side| -> Result<Vec<f64>> {
        if let Some([_, after]) = &captured.kv_int8 {
            return Ok(after.gather(layout.int8(), table, side, len)?);
        }
        let [_, after] = pages(captured)?;
        Ok(widen(&kv_append::gather(after, layout, table, side, len)?))
    };
    Ok([gather(Side::K)?, gather(Side::V)?])
}

fn pages<'c>(captured: &'c Captured<'_>) -> Result<&'c [Vec<f32>; 2]> {
    captured
        .kv
        .as_ref()
        .with_context(|| format!("{}: no pages are bound", captured.dispatch.label))
}

/// Queries, and keys and values in their pages, of a role that stores all three.
fn projected(
    engine: &Engine<'_>,
    captured: &Captured<'_>,
    q: Vec<f64>,
    expected: Qkv<Expected>,
    position: usize,
) -> Result<Judged> {
    let [before, after] = pages(captured)?;
    let (k, v) = stored_at(engine, after, position)?;
    // Every other slot keeps what it held: put this position's new values into
    // the old pages and the two must be the same.
    let mut replaced = before.clone();
    let held = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    kv_append::compute(
        &mut replaced,
        engine.weights.spec().kv_layout(),
        &engine.memory.page_table,
        position as i32,
        &held(&k),
        &held(&v),
    )?;
    Ok(vec![
        ("q", q, expected.q),
        ("k", k, expected.k),
        ("v", v, expected.v),
        ("pages", widen(after), exact(widen(&replaced))),
    ])
}

/// Keys and values of one position, `[KV]` each.
fn stored_at(engine: &Engine<'_>, pages: &[f32], position: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let spec = engine.weights.spec();
    let side = |side| -> Result<Vec<f64>> {
        let all = kv_append::gather(
            pages,
            spec.kv_layout(),
            &engine.memory.page_table,
            side,
            position + 1,
        )?;
        Ok(widen(&all[position * spec.kv_dim()..]))
    };
    Ok((side(Side::K)?, side(Side::V)?))
}

/// The first parameter that a dispatch binds, as a vector or as a matrix.
fn param(dispatch: &Dispatch, vector: bool) -> (Option<usize>, Tensor) {
    dispatch
        .buffers
        .iter()
        .find_map(|&buffer| match buffer {
            Buffer::Param {
                layer,
                tensor,
                part,
                ..
            } => (vector == (part == Part::Vector)).then_some((layer, tensor)),
            Buffer::Activation(_)
            | Buffer::KvPages { .. }
            | Buffer::KvCodes { .. }
            | Buffer::KvScales { .. }
            | Buffer::GdnRing { .. }
            | Buffer::GdnState { .. }
            | Buffer::State(_) => None,
        })
        .expect("a role with weights binds a parameter")
}

fn param_matrix<'w>(weights: &'w Checkpoint, dispatch: &Dispatch) -> Matrix<'w> {
    let (layer, tensor) = param(dispatch, false);
    part_of(weights.matrix(layer, tensor), dispatch.rows())
}

fn param_vector(weights: &Checkpoint, dispatch: &Dispatch) -> Vec<f64> {
    let (layer, tensor) = param(dispatch, true);
    decode(weights.vector(layer, tensor))
}

/// Gammas of the query and key heads that a dispatch binds.
fn head_gammas(weights: &Checkpoint, dispatch: &kernels::Dispatch) -> [Vec<f64>; 2] {
    let (layer, _) = param(dispatch, true);
    [Tensor::QNorm, Tensor::KNorm].map(|tensor| decode(weights.vector(layer, tensor)))
}

/// How an attention kernel that gives its output whole computes it.
pub fn attention_form(variant: Variant, head_dim: usize) -> attention::AttentionForm {
    attention::AttentionForm {
        score: score_form(variant, head_dim),
        merges: merges(variant),
        kv: variant.role.kv_format().unwrap_or(KvFormat::Plain),
        store: store(variant),
    }
}

/// Times that an attention kernel merges separate results inside a workgroup: the
/// row form once, what its invocations hold.
pub fn merges(variant: Variant) -> usize {
    match variant.reduce {
        Reduce::Row => 1,
        Reduce::Tree | Reduce::Elementwise | Reduce::Subgroup | Reduce::Gemm => 0,
    }
}

/// Refuses a model that the reference cannot run.
///
/// # Errors
/// When a check failed: lists the first three.
pub fn require_passed(checks: &[Check], spec: &ModelSpec) -> Result<()> {
    let failed: Vec<String> = checks
        .iter()
        .filter(|c| !c.passed)
        .take(3)
        .map(|c| format!("{}: {}", c.stage, c.note.as_deref().unwrap_or("failed")))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{}: {}", spec.id, failed.join("; "))
}
