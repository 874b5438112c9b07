//! `gdn_gates`: how much of its state a head keeps, and how far it moves it.

use crate::Expected;
use crate::bounds::{self, Store, U, sigmoid};

/// Above it softplus is the identity.
const IDENTITY_ABOVE: f64 = 20.0;

/// A layer's parameters, `[heads]` each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates<'p> {
    /// Logarithm of the decay rate.
    pub a_log: &'p [f64],
    /// What is added to a.
    pub dt_bias: &'p [f64],
}

/// Decays `exp(-e^A_log softplus(a + dt_bias))`, then update rates `sigmoid(b)`, of
/// `a` and `b` `[heads]`; `[2, heads]`.
///
/// # Panics
/// When the lengths differ.
pub fn compute(a: &[f64], b: &[f64], rates: Rates<'_>) -> Vec<f64> {
    let decays = exponents(a, rates).map(|exponent| (-exponent.value).exp());
    decays.chain(b.iter().map(|&b| sigmoid(b))).collect()
}

/// [`compute`] with limits: the exponent's error carried through `exp`, and
/// [`bounds::sigmoid_error`]; both are stored in f32.
///
/// # Panics
/// As [`compute`].
pub fn expected(a: &[f64], b: &[f64], rates: Rates<'_>) -> Expected {
    let decays = exponents(a, rates).map(|Exponent { value, error }| {
        let decay = (-value).exp();
        decay * (error.exp_m1() + error.exp() * bounds::exp_relative(value + error))
    });
    let errors = decays.chain(b.iter().map(|&b| bounds::sigmoid_error(b)));
    let errors: Vec<f64> = errors.collect();
    Store::F32.expected(compute(a, b, rates), &errors)
}

/// `e^A_log softplus(a + dt_bias)`, and its error in f32.
struct Exponent {
    value: f64,
    error: f64,
}

fn exponents<'a>(a: &'a [f64], rates: Rates<'a>) -> impl Iterator<Item = Exponent> + 'a {
    assert!(
        a.len() == rates.a_log.len() && a.len() == rates.dt_bias.len(),
        "gdn_gates: one rate per head"
    );
    let heads = a.iter().zip(rates.a_log).zip(rates.dt_bias);
    heads.map(|((a, &a_log), dt_bias)| {
        let (soft, soft_error) = softplus(a + dt_bias);
        let rate = a_log.exp();
        let grown = (1.0 + bounds::exp_relative(a_log)) * (1.0 + U);
        let value = rate * soft;
        Exponent {
            value,
            error: rate * (soft + soft_error) * grown - value,
        }
    })
}

/// `ln(1 + e^x)`, or x above 20, and its error in f32 where x is a rounded sum.
///
/// The argument of the logarithm is off relatively by that of `e^x`, weighted with its
/// share, and by one addition, which moves a logarithm by as much; the logarithm itself
/// is off by 2^-21 up to 2 and by 3 ULP beyond. The slope is at most 1. Near 20 a kernel
/// may take the other branch, which differs by `e^-x`.
fn softplus(x: f64) -> (f64, f64) {
    let rounded = U * x.abs();
    let other_branch = if x > 19.9 { (-x).exp() } else { 0.0 };
    if x > IDENTITY_ABOVE {
        return (x, rounded + other_branch);
    }
    let argument = 1.0 + x.exp();
    let relative = bounds::exp_relative(x) * x.exp() / argument + U;
    let value = argument.ln();
    let logarithm = if argument <= 2.0 + 1e-5 {
        1.0 / f64::from(1 << 21)
    } else {
        6.0 * U * value
    };
    let error = rounded + relative / (1.0 - relative) + logarithm + other_branch;
    (value, error)
}
