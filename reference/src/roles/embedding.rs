//! `embedding`: one row of the token embedding, dequantised in the arithmetic of
//! activations.

use super::RoleError;
use crate::bounds::{F16_FLOOR, F32_FLOOR, U, U_F16};
use crate::{Expected, Matrix, Numerics};
use kernels::Elem;

/// Row `token` of `w` (`[V, D]`), giving `[D]`.
///
/// [`Numerics::Faithful`] rounds as the kernel does, in the type of the activations.
/// `(code - zero point) * scale` is one product: exact, rounded once. An affine
/// weight is a product and a sum, each rounded. Scales in f32 give one f32 product,
/// which is stored.
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
        Numerics::Faithful(_) if affine => numerics.store(numerics.store(product) + bias),
        Numerics::Faithful(_) if wide => numerics.store(f64::from(product as f32)),
        Numerics::Faithful(_) => numerics.store(product),
    };
    Ok(w.row_terms(row).into_iter().map(weight).collect())
}

/// A row with limits. A symmetric one has a limit of zero around the faithful
/// value: `code - zero point` and the scale are values of the arithmetic and one
/// product is correctly rounded, so a kernel has no choice. Of an affine weight
/// the product may be rounded before the bias is added or, where a device fuses
/// the two, not; so the limit is one rounding of the product and one of the sum.
///
/// # Errors
/// As [`compute`].
pub fn expected(w: Matrix<'_>, token: u32, elem: Elem) -> Result<Expected, RoleError> {
    if !w.format.is_affine() {
        let value = compute(w, token, Numerics::Faithful(elem))?;
        let limit = vec![0.0; value.len()];
        return Ok(Expected { value, limit });
    }
    let (unit, floor) = match elem {
        Elem::F16 => (U_F16, F16_FLOOR),
        Elem::F32 => (U, F32_FLOOR),
    };
    let value = compute(w, token, Numerics::Formula)?;
    let terms = w.row_terms(token as usize).into_iter().zip(&value);
    let limit = terms
        .map(|((product, _), value)| {
            let product_error = unit * product.abs() + floor;
            product_error + unit * (value.abs() + product_error) + floor
        })
        .collect();
    Ok(Expected { value, limit })
}
