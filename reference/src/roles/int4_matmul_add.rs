//! `int4_matmul_add`: `y = residual + W x`, the product rounded before it is added.

use crate::bounds::{self, Accumulation, Store, U};
use crate::{Expected, Matrix, Numerics};

/// `w` `[N, K]`, `x` `[K]` and `residual` `[N]`, giving `[N]`. [`Numerics::Faithful`]
/// rounds the product.
///
/// # Panics
/// When the lengths contradict each other.
pub fn compute(w: Matrix<'_>, x: &[f64], residual: &[f64], numerics: Numerics) -> Vec<f64> {
    assert_eq!(
        residual.len(),
        w.rows,
        "int4_matmul_add: a residual for each row"
    );
    let products = numerics.store_all(w.matvec(x));
    products.iter().zip(residual).map(|(y, r)| y + r).collect()
}

/// The faithful outputs with limits: [`bounds::products`], rounded as the truth is or to a
/// neighbour ([`Store::stored`]); then one addition of what is stored.
///
/// # Panics
/// As [`compute`].
pub fn expected(
    w: Matrix<'_>,
    x: &[f64],
    residual: &[f64],
    sum: Accumulation,
    store: Store,
) -> Expected {
    let (products, errors) = bounds::products(w, &bounds::exactly(x), sum);
    let rows = products.iter().zip(errors).zip(residual);
    Expected::from_pairs(rows.map(|((&y, error), &residual)| {
        let (product, off) = store.stored(y, error);
        let value = product + residual;
        (value, store.limit(value, off + U * (value.abs() + off)))
    }))
}
