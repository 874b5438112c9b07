//! `silu_mul`: `silu(gate) * up` of a projection that is there already.

use crate::Expected;
use crate::bounds::{self, Store, silu};

/// `silu(g) * u` of `[gate | up]`, `[2 F]`, giving `[F]`.
///
/// # Panics
/// When the length is odd.
pub fn compute(gate_up: &[f64]) -> Vec<f64> {
    let (gate, up) = halves(gate_up);
    gate.iter().zip(up).map(|(&g, u)| silu(g) * u).collect()
}

/// [`compute`] with limits, for a projection that is itself off by `errors`, `[2 F]`
/// (all zero when it is read from a buffer): [`bounds::silu_mul_error`], then the
/// store.
///
/// # Panics
/// As [`compute`].
pub fn expected(gate_up: &[f64], errors: &[f64], store: Store) -> Expected {
    let (gate, up) = halves(gate_up);
    let (gate_error, up_error) = halves(errors);
    let errors: Vec<f64> = (0..gate.len())
        .map(|i| bounds::silu_mul_error(gate[i], gate_error[i], up[i], up_error[i]))
        .collect();
    store.expected(compute(gate_up), &errors)
}

fn halves(gate_up: &[f64]) -> (&[f64], &[f64]) {
    assert!(
        gate_up.len().is_multiple_of(2),
        "silu_mul: as many gates as ups"
    );
    gate_up.split_at(gate_up.len() / 2)
}
