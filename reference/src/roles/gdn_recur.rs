//! `gdn_recur`: the gated delta rule. A value head has a state `S` `[key dim, value
//! dim]`; with `q` and `k` of length 1 and `q / sqrt(key dim)`, a token makes it
//! `decay S`, then `S + k (x) rate (v - S^T k)`, and reads `S^T q`.

pub mod scan;

use crate::Expected;
use crate::bounds::{self, Accumulation, F32_FLOOR, Store, U};
use kernels::models::GatedDeltaNet;
use rayon::prelude::*;

/// Added to the squared length of queries and keys.
const LENGTH_EPS: f64 = 1e-6;

/// A token of one head.
struct Token<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    decay: f64,
    rate: f64,
}

/// The token of a value head in its layer's convolved row and gates.
fn token<'a>(net: &GatedDeltaNet, conv: &'a [f64], gates: &'a [f64], head: usize) -> Token<'a> {
    let (dk, dv) = (net.linear_key_head_dim, net.linear_value_head_dim);
    let heads = net.linear_num_value_heads;
    assert!(
        conv.len() == net.conv_dim() && gates.len() == 2 * heads,
        "gdn_recur: queries, keys and values, and two gates per head"
    );
    // Consecutive value heads share a key head.
    let key_head = head / (heads / net.linear_num_key_heads);
    let value = 2 * net.key_dim() + head * dv;
    Token {
        q: &conv[key_head * dk..][..dk],
        k: &conv[net.key_dim() + key_head * dk..][..dk],
        v: &conv[value..][..dv],
        decay: gates[head],
        rate: gates[heads + head],
    }
}

/// `1 / |x|`.
fn inverse_length(x: &[f64]) -> f64 {
    let squares: f64 = x.iter().map(|x| x * x).sum();
    1.0 / (squares + LENGTH_EPS).sqrt()
}

/// Advances `state` `[heads, key dim, value dim]` by tokens in order, whose `conv`
/// `[T][channels]` and `gates` `[T][2 heads]` these are; what each reads, `[T][values]`.
///
/// # Panics
/// When the shapes contradict each other.
pub fn compute(
    net: &GatedDeltaNet,
    conv: &[Vec<f64>],
    gates: &[Vec<f64>],
    state: &mut [f64],
) -> Vec<Vec<f64>> {
    let (dk, dv) = (net.linear_key_head_dim, net.linear_value_head_dim);
    assert_eq!(state.len(), net.state_len(), "gdn_recur: a state per head");
    let heads = state.par_chunks_exact_mut(dk * dv).enumerate();
    let by_head: Vec<Vec<Vec<f64>>> = heads
        .map(|(head, state)| {
            let steps = conv.iter().zip(gates);
            steps
                .map(|(conv, gates)| step(&token(net, conv, gates, head), state))
                .collect()
        })
        .collect();
    (0..conv.len())
        .map(|t| {
            by_head
                .iter()
                .flat_map(|head| head[t].iter().copied())
                .collect()
        })
        .collect()
}

fn step(token: &Token<'_>, state: &mut [f64]) -> Vec<f64> {
    let dv = token.v.len();
    let (q_length, k_length) = (inverse_length(token.q), inverse_length(token.k));
    let mut read = vec![0.0; dv];
    for (row, k) in state.chunks_exact_mut(dv).zip(token.k) {
        for (s, read) in row.iter_mut().zip(&mut read) {
            *s *= token.decay;
            *read += *s * k * k_length;
        }
    }
    let values = token.v.iter().zip(&read);
    let update: Vec<f64> = values.map(|(v, read)| token.rate * (v - read)).collect();
    let mut out = vec![0.0; dv];
    let scale = q_length / (token.q.len() as f64).sqrt();
    let rows = state.chunks_exact_mut(dv).zip(token.k.iter().zip(token.q));
    for (row, (k, q)) in rows {
        for ((s, update), out) in row.iter_mut().zip(&update).zip(&mut out) {
            *s += k * k_length * update;
            *out += *s * q * scale;
        }
    }
    out
}

/// Outputs and the state after them, with their limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurred {
    /// What each token reads, `[T][values]`.
    pub out: Vec<Expected>,
    /// The state, `[heads, key dim, value dim]`.
    pub state: Expected,
}

/// [`compute`] with limits; `squares` is how a kernel adds those of a query or key.
///
/// A token multiplies the state by `decay (1 - rate k k^T)`, which lengthens no column by
/// more than `decay max(1, |1 - rate|)`, since k is no longer than 1. So the length `E`
/// of a column's error grows by that factor, and by what the token itself adds to it:
///
/// * `sum S k` is off by `gamma(key dim + 2) sum |S k|`; it is then multiplied by decay
///   and length, of which the length's error (as of a norm) and two roundings come on top;
/// * the difference to `v` rounds once, the update twice, with the length's error;
/// * `decay S + k update` carries the update's error and rounds twice.
///
/// What a token reads is off by `E |q|`, by its own sum as that with `k`, and by one
/// product more for `1 / sqrt(key dim)`. Magnitudes are those of a state that is off by
/// as much. A product too small for a normal f32 may be flushed, which costs
/// [`F32_FLOOR`] each.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    net: &GatedDeltaNet,
    conv: &[Vec<f64>],
    gates: &[Vec<f64>],
    state: &[f64],
    squares: Accumulation,
) -> Recurred {
    let (dk, dv) = (net.linear_key_head_dim, net.linear_value_head_dim);
    let sum = bounds::gamma(squares.roundings() + 2);
    let length = (1.0 - sum).powf(-0.5) * (1.0 + bounds::INVERSE_SQRT) - 1.0;
    let mut values = state.to_vec();
    let out = compute(net, conv, gates, &mut values);
    let heads: Vec<(Vec<Vec<f64>>, Vec<f64>)> = state
        .par_chunks_exact(dk * dv)
        .enumerate()
        .map(|(head, state)| {
            let mut state = state.to_vec();
            let mut errors = Errors::none(dk, dv);
            let steps = conv.iter().zip(gates);
            let errors_of_out = steps
                .map(|(conv, gates)| {
                    let token = token(net, conv, gates, head);
                    step_errors(&token, &mut state, &mut errors, length)
                })
                .collect();
            (errors_of_out, errors.elements)
        })
        .collect();
    gathered(out, values, &heads)
}

/// Outputs and state with the errors of each head: those of its outputs by token, and
/// those of its state.
fn gathered(out: Vec<Vec<f64>>, state: Vec<f64>, heads: &[(Vec<Vec<f64>>, Vec<f64>)]) -> Recurred {
    let out = out.into_iter().enumerate().map(|(t, row)| {
        let errors = heads.iter().flat_map(|(out, _)| out[t].iter().copied());
        let errors: Vec<f64> = errors.collect();
        Store::F32.expected(row, &errors)
    });
    let errors: Vec<f64> = heads.iter().flat_map(|(_, state)| state).copied().collect();
    Recurred {
        out: out.collect(),
        state: Store::F32.expected(state, &errors),
    }
}

/// How far a state may be off.
struct Errors {
    /// Each element, `[key dim, value dim]`.
    elements: Vec<f64>,
    /// The length of each column's error, `[value dim]`.
    columns: Vec<f64>,
}

impl Errors {
    fn none(key_dim: usize, value_dim: usize) -> Self {
        Self {
            elements: vec![0.0; key_dim * value_dim],
            columns: vec![0.0; value_dim],
        }
    }
}

/// Advances the state and its errors; those of what the token reads.
fn step_errors(token: &Token<'_>, state: &mut [f64], errors: &mut Errors, length: f64) -> Vec<f64> {
    let (dk, dv) = (token.k.len(), token.v.len());
    let (decay, rate) = (token.decay.abs(), token.rate);
    let grown = decay * (1.0 - rate).abs().max(1.0);
    let k_length = inverse_length(token.k);
    let scale = inverse_length(token.q) / (dk as f64).sqrt();
    let q_norm = token.q.iter().map(|q| q * q).sum::<f64>().sqrt();
    let sum_gamma = bounds::gamma(dk + 2);
    let flushed = F32_FLOOR * (dk + 1) as f64;
    let with = |roundings: i32| (1.0 + length) * (1.0 + U).powi(roundings) - 1.0;
    let (two, three) = (with(2), with(3));
    // Of S^T k: value and magnitude of its terms.
    let mut read = vec![[0.0; 2]; dv];
    let rows = state.chunks_exact(dv).zip(errors.elements.chunks_exact(dv));
    for ((row, errors), k) in rows.zip(token.k) {
        for ((s, e), read) in row.iter().zip(errors).zip(&mut read) {
            read[0] += s * k;
            read[1] += (s.abs() + e) * k.abs();
        }
    }
    // The update, and what it is off by beside what the state's error gives it.
    let updates: Vec<[f64; 2]> = token
        .v
        .iter()
        .zip(&read)
        .map(|(v, &[sum, magnitude])| {
            let factor = decay * k_length;
            let read = sum * token.decay * k_length;
            let size = magnitude * factor;
            let error = (sum_gamma * magnitude + flushed) * factor * (1.0 + two) + size * two;
            let difference = v - read;
            let error = error + U * (v.abs() + size);
            let factor = rate.abs() * k_length;
            let size = (v.abs() + size) * factor;
            let update = rate * difference * k_length;
            [
                update,
                error * factor * (1.0 + two) + size * two + F32_FLOOR,
            ]
        })
        .collect();
    let mut own = vec![0.0; dv];
    let mut out = vec![[0.0; 2]; dv];
    let rows = state.chunks_exact_mut(dv);
    let rows = rows.zip(errors.elements.chunks_exact_mut(dv));
    for ((row, elements), (k, q)) in rows.zip(token.k.iter().zip(token.q)) {
        let columns = row.iter_mut().zip(elements);
        let columns = columns.zip(updates.iter().zip(own.iter_mut().zip(&mut out)));
        for (j, ((s, e), (&[update, update_error], (own, out)))) in columns.enumerate() {
            let added = k.abs() * (update.abs() + update_error);
            let rounded = bounds::gamma(2) * ((s.abs() + *e) * decay + added);
            let error = k.abs() * update_error + rounded + 2.0 * F32_FLOOR;
            *own += error * error;
            *e = errors.columns[j] * grown + error;
            *s = *s * token.decay + k * update;
            out[0] += *s * q;
            out[1] += (s.abs() + *e) * q.abs();
        }
    }
    for (column, own) in errors.columns.iter_mut().zip(own) {
        *column = *column * grown + own.sqrt();
    }
    out.into_iter()
        .zip(&errors.columns)
        .map(|([sum, magnitude], column)| {
            let error = column * q_norm + sum_gamma * magnitude + flushed;
            error * scale * (1.0 + three) + (sum * scale).abs() * three
        })
        .collect()
}
