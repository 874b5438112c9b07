//! `int4_matmul_moe`: `y = W x` with the matrix of one expert of a stack.

use super::{RoleError, int4_matmul};
use crate::bounds::{Accumulation, Store};
use crate::{Expected, Matrix};

/// `w` `[E, N, K]` as its rows, `rows` of each expert, and `x` `[K]`, giving `[N]`.
///
/// # Errors
/// When there is no such expert.
///
/// # Panics
/// When `x` is not `[K]`, or `rows` does not divide the stack.
pub fn compute(w: Matrix<'_>, rows: usize, expert: u32, x: &[f64]) -> Result<Vec<f64>, RoleError> {
    Ok(int4_matmul::compute(matrix_of(w, rows, expert)?, x))
}

/// [`compute`] with the limits of [`int4_matmul`].
///
/// # Errors
/// As [`compute`].
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    rows: usize,
    expert: u32,
    x: &[f64],
    sum: Accumulation,
    store: Store,
) -> Result<Expected, RoleError> {
    let w = matrix_of(w, rows, expert)?;
    Ok(int4_matmul::expected(w, x, sum, store))
}

fn matrix_of(w: Matrix<'_>, rows: usize, expert: u32) -> Result<Matrix<'_>, RoleError> {
    assert!(
        rows > 0 && w.rows.is_multiple_of(rows),
        "int4_matmul_moe: {} rows in matrices of {rows}",
        w.rows
    );
    let (experts, at) = (w.rows / rows, expert as usize);
    if at >= experts {
        return Err(RoleError::Expert { expert, experts });
    }
    Ok(w.slice(at * rows, rows))
}
