//! `embedding`: one row of the token embedding, dequantised in the arithmetic of
//! activations.

use super::RoleError;
use crate::bounds::{F16_FLOOR, Store, U_F16};
use crate::{Expected, Matrix, Numerics};
use kernels::Elem;

/// Row `token` of `w` (`[V, D]`), giving `[D]`.
///
/// [`Numerics::Faithful`] rounds as the kernel does. `(code - zero point) * scale`
/// is one f16 product: exact, rounded once. An affine weight is a product and a
/// sum in f16, each rounded. Scales in f32 give one f32 product, which is stored
/// in f16.
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
    let affine = w.format.is_affine();
    let wide = w.format.scale_type() == Elem::F32;
    let weight = |(product, bias): (f64, f64)| match numerics {
        Numerics::Formula => product + bias,
        Numerics::Faithful if affine => numerics.store(numerics.store(product) + bias),
        Numerics::Faithful if wide => numerics.store(f64::from(product as f32)),
        Numerics::Faithful => numerics.store(product),
    };
    Ok(w.row_terms(row).into_iter().map(weight).collect())
}

/// A row with limits. A symmetric one has a limit of zero around the faithful
/// value: `code - zero point` and the scale are values of the arithmetic and one
/// product is correctly rounded, so a kernel has no choice. Of an affine weight
/// the product may be rounded before the bias is added or, where a device fuses
/// the two, not; so the limit is one rounding of the product and that of the store.
///
/// # Errors
/// As [`compute`].
pub fn expected(w: Matrix<'_>, token: u32) -> Result<Expected, RoleError> {
    if !w.format.is_affine() {
        let value = compute(w, token, Numerics::Faithful)?;
        let limit = vec![0.0; value.len()];
        return Ok(Expected { value, limit });
    }
    let value = compute(w, token, Numerics::Formula)?;
    let products = w.row_terms(token as usize).into_iter();
    let errors: Vec<f64> = products
        .map(|(product, _)| U_F16 * product.abs() + F16_FLOOR)
        .collect();
    Ok(Store::F16.expected(value, &errors))
}
