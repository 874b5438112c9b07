//! Limits of the form that takes the tokens of a block at once.

use super::{Errors, Recurred, Token, compute, gathered, inverse_length, token};
use crate::bounds::{self, Accumulation, F32_FLOOR, U};
use kernels::{models::GatedDeltaNet, variants::SCAN_BLOCK};
use rayon::prelude::*;

/// [`super::expected`] of that form, whose products over the key's width one invocation
/// adds.
///
/// A block is the tokens one after the other, written otherwise; so an error of the
/// state before it reaches outputs and state as there, no longer than it was. What the
/// block adds itself: products with the state and of keys are off by `gamma(key dim +
/// 2)` of their magnitudes; every term of a sum has, beside the errors of the updates in
/// it, the roundings of its decays (one for each token of the block), two lengths and
/// their errors, its products and its additions. They are taken together as `round`,
/// which is applied to the magnitude of the sum.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    net: &GatedDeltaNet,
    conv: &[Vec<f64>],
    gates: &[Vec<f64>],
    state: &[f64],
) -> Recurred {
    let (dk, dv) = (net.linear_key_head_dim, net.linear_value_head_dim);
    let sum = bounds::gamma(Accumulation::serial(dk).roundings() + 2);
    let length = (1.0 - sum).powf(-0.5) * (1.0 + bounds::INVERSE_SQRT) - 1.0;
    let mut values = state.to_vec();
    let out = compute(net, conv, gates, &mut values);
    let heads: Vec<(Vec<Vec<f64>>, Vec<f64>)> = state
        .par_chunks_exact(dk * dv)
        .enumerate()
        .map(|(head, state)| {
            let mut state = state.to_vec();
            let mut errors = Errors::none(dk, dv);
            let mut of_out = Vec::new();
            for at in (0..conv.len()).step_by(SCAN_BLOCK) {
                let end = (at + SCAN_BLOCK).min(conv.len());
                let rows = conv[at..end].iter().zip(&gates[at..end]);
                let tokens: Vec<Token<'_>> = rows
                    .map(|(conv, gates)| token(net, conv, gates, head))
                    .collect();
                of_out.extend(block(&tokens, &mut state, &mut errors, length));
            }
            (of_out, errors.elements)
        })
        .collect();
    gathered(out, values, &heads)
}

fn dot(a: &[f64], b: &[f64]) -> [f64; 2] {
    let terms = a.iter().zip(b).map(|(a, b)| a * b);
    terms.fold([0.0; 2], |[sum, magnitude], x| {
        [sum + x, magnitude + x.abs()]
    })
}

/// Advances state and errors by a block; the errors of what its tokens read.
fn block(
    tokens: &[Token<'_>],
    state: &mut [f64],
    errors: &mut Errors,
    length: f64,
) -> Vec<Vec<f64>> {
    let (dk, dv) = (tokens[0].k.len(), tokens[0].v.len());
    let sum_gamma = bounds::gamma(dk + 2);
    let flushed = F32_FLOOR * (dk + SCAN_BLOCK) as f64;
    let round = (1.0 + length).powi(2) * (1.0 + bounds::gamma(3 * SCAN_BLOCK + 8)) - 1.0;
    let lengths: Vec<f64> = tokens.iter().map(|t| inverse_length(t.k)).collect();
    let mut of_out = vec![vec![0.0; dv]; tokens.len()];
    let mut own = vec![0.0; dv];
    let mut after = vec![(0.0, 0.0); dk * dv];
    let mut grown = 1.0;
    let mut grown_to = Vec::new();
    for token in tokens {
        grown *= token.decay.abs() * (1.0 - token.rate).abs().max(1.0);
        grown_to.push(grown);
    }
    for column in 0..dv {
        let at = |i: usize| i * dv + column;
        // Of each token so far its update over its key's length, and its error.
        let mut updates: Vec<[f64; 2]> = Vec::new();
        let mut decayed = 1.0;
        for (t, token) in tokens.iter().enumerate() {
            decayed *= token.decay;
            for update in &mut updates {
                *update = update.map(|x| x * token.decay);
            }
            // The sum with a key or query: value, error, magnitude.
            let read = |x: &[f64]| {
                let (mut sum, mut size) = (0.0, 0.0);
                for (i, x) in x.iter().enumerate() {
                    sum += state[at(i)] * x;
                    size += (state[at(i)].abs() + errors.elements[at(i)]) * x.abs();
                }
                let (mut sum, mut size) = (sum * decayed, size * decayed.abs());
                let mut error = sum_gamma * size + flushed;
                for (&[update, off], earlier) in updates.iter().zip(tokens) {
                    let [product, magnitude] = dot(earlier.k, x);
                    sum += update * product;
                    size += (update.abs() + off.abs()) * product.abs();
                    error += off.abs() * product.abs()
                        + (update.abs() + off.abs()) * sum_gamma * magnitude;
                }
                [sum, error, size + error]
            };
            let [sum, error, size] = read(token.k);
            let l = lengths[t];
            let difference = token.v[column] - sum * l;
            let size = token.v[column].abs() + size * l;
            let update = token.rate * difference * l;
            let factor = token.rate.abs() * l;
            let off = (error * l * (1.0 + round) + size * round) * factor * (1.0 + round)
                + size * factor * round
                + F32_FLOOR;
            let [_, mut error, mut size] = read(token.q);
            let [product, magnitude] = dot(token.k, token.q);
            error += off * product.abs() + (update.abs() + off) * sum_gamma * magnitude;
            size += (update.abs() + off) * magnitude;
            let q_norm = token.q.iter().map(|q| q * q).sum::<f64>().sqrt();
            let scale = inverse_length(token.q) / (dk as f64).sqrt();
            let carried = errors.columns[column] * grown_to[t] * q_norm;
            of_out[t][column] = (carried + error) * scale * (1.0 + round) + size * scale * round;
            updates.push([update, off]);
        }
        for i in 0..dk {
            let (mut sum, mut size) = (state[at(i)] * decayed, 0.0);
            size += (state[at(i)].abs() + errors.elements[at(i)]) * decayed.abs();
            let mut error = flushed;
            for (&[update, off], token) in updates.iter().zip(tokens) {
                sum += update * token.k[i];
                size += (update.abs() + off.abs()) * token.k[i].abs();
                error += off.abs() * token.k[i].abs();
            }
            let error = error + size * round + U * sum.abs();
            own[column] += error * error;
            after[at(i)] = (sum, error);
        }
    }
    for (i, (sum, error)) in after.into_iter().enumerate() {
        state[i] = sum;
        errors.elements[i] = errors.columns[i % dv] * grown + error;
    }
    for (column, own) in errors.columns.iter_mut().zip(own) {
        *column = *column * grown + own.sqrt();
    }
    of_out
}
