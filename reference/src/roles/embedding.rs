//! `embedding`: one row of the token embedding, dequantised in the arithmetic of
//! the activations.

use super::RoleError;
use crate::{Expected, Matrix, Numerics};
use kernels::Elem;

/// Row `token` of `w` (`[V, D]`), giving `[D]`.
///
/// [`Numerics::Faithful`] multiplies `(code - 7) * scale` in the type of the
/// activations as the kernel does: the exact product, rounded once.
///
/// # Errors
/// When the token id is beyond the vocabulary.
pub fn compute(w: Matrix<'_>, token: u32, numerics: Numerics) -> Result<Vec<f64>, RoleError> {
    let row = usize::try_from(token).unwrap_or(usize::MAX);
    if row >= w.rows {
        return Err(RoleError::Token {
            token,
            vocab: w.rows,
        });
    }
    let mut weights = vec![0.0; w.k];
    w.row_into(row, &mut weights);
    Ok(weights
        .into_iter()
        .map(|w| numerics.store(f64::from(w)))
        .collect())
}

/// The faithful row with a limit of zero: `code - 7` and the scale are values of
/// its type and one product is correctly rounded, so a kernel has no choice.
///
/// # Errors
/// As [`compute`].
pub fn expected(w: Matrix<'_>, token: u32, elem: Elem) -> Result<Expected, RoleError> {
    let value = compute(w, token, Numerics::Faithful(elem))?;
    let limit = vec![0.0; value.len()];
    Ok(Expected { value, limit })
}
