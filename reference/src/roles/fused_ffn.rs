//! `fused_ffn`: gate and up projections, then `silu(gate) * up`.

use crate::bounds::{self, Accumulation, Store, silu};
use crate::{Expected, Matrix};

/// `w` `[2 F, D]` (gate rows, then up rows) and `x` `[D]`, giving `[F]`.
///
/// # Panics
/// When `x` is not `[D]` or `w` has an odd number of rows.
pub fn compute(w: Matrix<'_>, x: &[f64]) -> Vec<f64> {
    silu_mul(&w.matvec(x))
}

/// `silu(g) * u` of `[gate | up]`, `[2 F]`, giving `[F]`.
///
/// # Panics
/// When the length is odd.
pub fn silu_mul(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = halves(gate_up);
    gate.iter().zip(up).map(|(&g, u)| silu(g) * u).collect()
}

/// [`compute`] with limits: both dot products' errors
/// ([`bounds::dot_errors`]) through [`bounds::silu_mul_error`], then the store.
/// Everything before the store is f32.
///
/// # Panics
/// As [`compute`].
pub fn expected(w: Matrix<'_>, x: &[f64], sum: Accumulation, store: Store) -> Expected {
    let gate_up = w.matvec(x);
    let dot_errors = bounds::dot_errors(&w.matvec_abs(x), sum);
    let (gate, up) = halves(&gate_up);
    let (gate_error, up_error) = halves(&dot_errors);
    let errors: Vec<f64> = (0..gate.len())
        .map(|i| bounds::silu_mul_error(gate[i], gate_error[i], up[i], up_error[i]))
        .collect();
    store.expected(silu_mul(&gate_up), &errors)
}

fn halves(gate_up: &[f64]) -> (&[f64], &[f64]) {
    assert!(
        gate_up.len().is_multiple_of(2),
        "fused_ffn: as many gate rows as up rows"
    );
    gate_up.split_at(gate_up.len() / 2)
}
