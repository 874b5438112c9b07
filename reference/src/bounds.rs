//! How far a correct kernel may be from the f64 truth, per element.
//!
//! # Assumptions
//! WGSL says that f32 `+`, `-` and `*` are correctly rounded but names no
//! rounding direction, and lets a conversion to f16 go either way. Every limit
//! here assumes round to nearest, which all drivers in use do for f32; a device
//! that rounds f16 stores otherwise is judged with [`Store::F16Either`]. Values
//! in f32 that are too small to be normal (below 2^-126) may be flushed; that is
//! covered by the absolute part of an f16 store and by [`F32_FLOOR`].
//!
//! # Method
//! One rounding multiplies by `1 + d`, `|d| <= u = 2^-24`. A value that went
//! through at most `c` roundings is off by a factor within `1 +- gamma(c)`,
//! `gamma(c) = c u / (1 - c u)` (Higham, *Accuracy and Stability*, section 3.1).
//! A sum of products is therefore off by at most `gamma(c) sum |w_i x_i|`,
//! whatever the order of its additions, if `c` counts the roundings on the
//! longest path from a term to the result: [`Accumulation::roundings`].
//! Built-in functions add what WGSL's accuracy table allows them.

use crate::Matrix;
use crate::numerics::{int8_code, int8_quotient, round_to_f16};
use approx::AbsDiffEq;
use kernels::{Elem, variants::INT8_GROUP};

/// Unit roundoff of f32, half a ULP relative to 1.
pub const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Unit roundoff of f16.
pub const U_F16: f64 = 1.0 / 2048.0;
/// Half the distance of f16 values below 2^-14.
pub const F16_FLOOR: f64 = 1.0 / (1u64 << 25) as f64;
/// Smallest normal f32: what a flush to zero can cost.
pub const F32_FLOOR: f64 = f32::MIN_POSITIVE as f64;
/// Relative error of a division: 2.5 ULP of at most `2 u` each.
pub const DIVISION: f64 = 5.0 * U;
/// Relative error of `inverseSqrt`: 2 ULP.
pub const INVERSE_SQRT: f64 = 4.0 * U;
/// Below it, `exp(-g)` may exceed f32, whose greatest value is `exp(88.72)`.
const EXP_OVERFLOWS: f64 = -88.0;
/// Steepest slope of `silu`, at 2.4 (1.09984).
const SILU_SLOPE: f64 = 1.1;

/// A role's true output and how far a correct kernel may be from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The truth, unrounded unless the role says otherwise.
    pub value: Vec<f64>,
    /// Largest allowed absolute difference of each element.
    pub limit: Vec<f64>,
}

/// The element of an output that uses most of its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Index of the element.
    pub index: usize,
    /// What the kernel gave.
    pub found: f64,
    /// The truth.
    pub value: f64,
    /// The limit.
    pub limit: f64,
    /// Difference over limit; above 1 (or infinite) is a failure.
    pub used: f64,
}

impl Expected {
    /// Values and limits from pairs.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let (value, limit) = pairs.into_iter().unzip();
        Self { value, limit }
    }

    /// The element of `found` that uses most of its limit; none when empty.
    /// A value that is not finite where the truth is, and any length that
    /// differs, uses infinitely much, so NaN never passes by comparison.
    pub fn worst(&self, found: &[f64]) -> Option<Worst> {
        if found.len() != self.value.len() {
            return Some(Worst {
                index: found.len().min(self.value.len()),
                found: f64::NAN,
                value: f64::NAN,
                limit: 0.0,
                used: f64::INFINITY,
            });
        }
        let all = self.value.iter().zip(&self.limit).zip(found).enumerate();
        all.map(|(index, ((&value, &limit), &found))| {
            let used = used(found, value, limit);
            Worst {
                index,
                found,
                value,
                limit,
                used,
            }
        })
        .max_by(|a, b| a.used.total_cmp(&b.used))
    }

    /// Whether every element of `found` is within its limit.
    pub fn accepts(&self, found: &[f64]) -> bool {
        self.worst(found).is_none_or(|worst| worst.used <= 1.0)
    }
}

/// How much of its limit a found value uses: at most 1 where it is within it. Every
/// comparison of a kernel's output with what is expected of it is decided here.
fn used(found: f64, value: f64, limit: f64) -> f64 {
    let difference = (found - value).abs();
    // Equal infinities have no difference. NaN is within no limit, and nothing is
    // within a limit that is NaN or negative.
    let within = limit >= 0.0 && (found == value || found.abs_diff_eq(&value, limit));
    if !within {
        // A quotient that rounds down to 1 is still too much.
        let over = difference / limit;
        let usable = over.is_finite() && over >= 1.0;
        return if usable {
            over.max(1.0 + f64::EPSILON)
        } else {
            f64::INFINITY
        };
    }
    if found == value {
        0.0
    } else {
        (difference / limit).min(1.0)
    }
}

/// `c u / (1 - c u)`: relative error after `c` f32 roundings.
pub fn gamma(roundings: usize) -> f64 {
    let cu = roundings as f64 * U;
    cu / (1.0 - cu)
}

/// How a kernel forms a sum of products in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulation {
    /// Terms that one invocation adds one after the other.
    pub serial: usize,
    /// Additions of the reduction across invocations on its longest path.
    pub depth: usize,
    /// What it multiplies.
    pub factors: Factors,
}

/// What a kernel multiplies with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// The activations.
    Activations,
    /// The activations rounded to int8 in groups of [`INT8_GROUP`], with the greatest of
    /// a group at 127.
    Int8,
}

impl Accumulation {
    /// One invocation adds all `k` terms.
    pub const fn serial(k: usize) -> Self {
        Self {
            serial: k,
            depth: 0,
            factors: Factors::Activations,
        }
    }

    /// `threads` invocations take steps of `width` terms in turn (8 for a word
    /// of int4 codes, 1 for an element), then a tree adds their sums.
    ///
    /// # Panics
    /// When `threads` or `width` is zero.
    pub const fn strided(k: usize, threads: usize, width: usize) -> Self {
        assert!(threads > 0 && width > 0, "a kernel has threads and a step");
        Self {
            serial: k.div_ceil(width).div_ceil(threads) * width,
            depth: threads.next_power_of_two().trailing_zeros() as usize,
            factors: Factors::Activations,
        }
    }

    /// The same where subgroups of any size add the invocations' sums in any order:
    /// at most one addition for each invocation after the first.
    ///
    /// # Panics
    /// As [`Self::strided`].
    pub const fn any_order(k: usize, threads: usize, width: usize) -> Self {
        Self {
            depth: threads - 1,
            ..Self::strided(k, threads, width)
        }
    }

    /// The same where a step adds the scaled sum of its codes and the bias's
    /// share, as in affine formats: one more addition.
    pub const fn with_bias(self) -> Self {
        Self {
            serial: self.serial + 1,
            ..self
        }
    }

    /// The same over int8 activations. Products of codes are exact within a group; what
    /// [`Self::strided`] counts for them covers the scales of activations, each off by a
    /// division.
    pub const fn of_int8(self) -> Self {
        Self {
            factors: Factors::Int8,
            ..self
        }
    }

    /// Roundings on the longest path from a term to the sum: its additions,
    /// plus two for the products with the activation and with the scale.
    pub const fn roundings(self) -> usize {
        self.serial + self.depth + 2
    }

    /// Relative error of the sum against the sum of the terms' magnitudes.
    pub fn gamma(self) -> f64 {
        gamma(self.roundings())
    }
}

/// How an output is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// As f32: exact.
    F32,
    /// As the nearest f16.
    F16,
    /// As one of the two f16 neighbours, as far as WGSL promises.
    F16Either,
}

impl Store {
    /// Limit of a stored value whose f32 value is within `error` of `y`.
    ///
    /// The store rounds what was computed, `|y| + error` at most: half a ULP
    /// (2^-11 relative, 2^-25 where f16 is subnormal), twice that when the
    /// direction is open.
    pub fn limit(self, y: f64, error: f64) -> f64 {
        let store = U_F16 * (y.abs() + error) + F16_FLOOR;
        match self {
            Self::F32 => error + F32_FLOOR,
            Self::F16 => error + store,
            Self::F16Either => error + 2.0 * store,
        }
    }

    /// The type that it stores.
    pub const fn elem(self) -> Elem {
        match self {
            Self::F32 => Elem::F32,
            Self::F16 | Self::F16Either => Elem::F16,
        }
    }

    /// What is stored of a value whose f32 value is within `error` of `y`, and how far
    /// from it a kernel's may be: nothing, where every value within `error` is stored
    /// as the same f16.
    pub fn stored(self, y: f64, error: f64) -> (f64, f64) {
        match self {
            Self::F32 => (y, self.limit(y, error)),
            Self::F16 => {
                let stored = round_to_f16(y);
                let ends = [y - error, y + error].map(|end| (round_to_f16(end) - stored).abs());
                (stored, ends[0].max(ends[1]))
            }
            Self::F16Either => {
                let stored = round_to_f16(y);
                (stored, self.limit(y, error) + U_F16 * y.abs() + F16_FLOOR)
            }
        }
    }

    /// Values with the limits after storing; `errors` are those in f32.
    pub fn expected(self, value: Vec<f64>, errors: &[f64]) -> Expected {
        let limit = value.iter().zip(errors);
        let limit = limit.map(|(&y, &error)| self.limit(y, error)).collect();
        Expected { value, limit }
    }
}

/// What a kernel multiplies for activations that are off by at most `x.limit`: themselves,
/// or what their int8 codes stand for.
///
/// A code is `127 x / most` rounded to the nearest, where `most` is the greatest magnitude
/// of the group. The kernel's quotient is off by a division and a product, and by what `x`
/// and `most` are off; rounding is monotonic, so its code lies between those of the ends.
/// Where no tie lies between them they are one code. The limit holds the codes' difference
/// and what the scale is off. A group below [`INT8_LEAST`] may count as zero.
///
/// # Panics
/// When rows are not whole groups.
pub fn factors(x: &Expected, form: Accumulation) -> Expected {
    if form.factors == Factors::Activations {
        return x.clone();
    }
    assert!(
        x.value.len().is_multiple_of(INT8_GROUP),
        "rows are whole groups"
    );
    let groups = x
        .value
        .chunks_exact(INT8_GROUP)
        .zip(x.limit.chunks_exact(INT8_GROUP));
    Expected::from_pairs(groups.flat_map(|(values, limits)| {
        let greatest = |at: fn(f64, f64) -> f64| {
            let all = values
                .iter()
                .zip(limits)
                .map(|(x, e)| at(x.abs(), *e).max(0.0));
            all.fold(0.0, f64::max)
        };
        let most = greatest(|x, _| x);
        let ends = [greatest(|x, e| x - e), greatest(|x, e| x + e)];
        let relative = DIVISION + 2.0 * U;
        let pairs = values.iter().zip(limits).map(move |(&x, &limit)| {
            if ends[1] < INT8_LEAST {
                return (x, x.abs() + limit);
            }
            let code = |x: f64, most: f64, sign: f64| {
                let quotient = int8_quotient(x, most);
                let off = sign * relative * quotient.abs();
                int8_code(quotient + off)
            };
            let scale = most / 127.0;
            let nominal = code(x, most, 0.0);
            let reached = ends.iter().flat_map(|&most| {
                let most = most.max(INT8_LEAST);
                [code(x - limit, most, -1.0), code(x + limit, most, 1.0)]
            });
            let off = reached
                .map(|code| (code - nominal).abs())
                .fold(0.0, f64::max);
            let scale_off = (ends[1] - most).max(most - ends[0]) / 127.0;
            (
                scale * nominal,
                scale * off + scale_off * (nominal.abs() + off),
            )
        });
        pairs.collect::<Vec<_>>()
    }))
}

/// The products of a matrix with activations that are off by at most `x.limit`, and how
/// far a kernel's are from them in f32.
///
/// # Panics
/// When `x` is no row of the matrix.
pub fn products(w: Matrix<'_>, x: &Expected, form: Accumulation) -> (Vec<f64>, Vec<f64>) {
    let x = factors(x, form);
    let values = w.matvec(&x.value);
    if x.limit.iter().all(|&limit| limit == 0.0) {
        return (values, dot_errors(&w.matvec_abs(&x.value), form));
    }
    let most = x.value.iter().zip(&x.limit).map(|(y, e)| y.abs() + e);
    let errors = dot_errors(&w.matvec_abs(&most.collect::<Vec<f64>>()), form);
    let carried = w.matvec_abs(&x.limit);
    (
        values,
        errors
            .iter()
            .zip(carried)
            .map(|(error, carried)| error + carried)
            .collect(),
    )
}

/// Activations that a kernel reads as they are.
pub fn exactly(x: &[f64]) -> Expected {
    Expected {
        value: x.to_vec(),
        limit: vec![0.0; x.len()],
    }
}

/// Least magnitude of a group's greatest activation that is not taken for zero.
pub const INT8_LEAST: f64 = 1e-30;

/// Error of each dot product before its store: `gamma(c) sum |w_i x_i|`.
/// `magnitudes` are those sums ([`crate::Matrix::matvec_abs`]).
pub fn dot_errors(magnitudes: &[f64], form: Accumulation) -> Vec<f64> {
    magnitudes.iter().map(|sum| form.gamma() * sum).collect()
}

/// Relative error of `x * inverseSqrt(sum x^2 / n + eps) * gamma`.
///
/// All terms of the sum are positive, so it is relatively off by
/// `gamma(c)`; then come one division (2.5 ULP; a product with a rounded
/// `1 / n` is within it), one addition, and eps as an f32. The inverse square
/// root halves a relative error to first order: `(1 - d)^(-1/2) - 1` is the
/// worse side. It adds its own 2 ULP, and two products follow.
pub fn rms_norm_relative(form: Accumulation) -> f64 {
    let sum = gamma(form.roundings() + 2) + DIVISION * (1.0 + gamma(form.roundings() + 2));
    (1.0 - sum).powf(-0.5) * (1.0 + INVERSE_SQRT) * (1.0 + U).powi(2) - 1.0
}

/// Accuracy of the sines and cosines of RoPE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trig {
    /// Absolute error of `sin` and `cos` for the angle they are given.
    pub function: f64,
    /// Error of that angle, relative to the unreduced angle.
    pub angle: f64,
}

impl Trig {
    /// What WGSL promises: 2^-11 absolute within [-pi, pi]. The angle is
    /// `position * inv_freq` in f32: half a ULP for the table's entry, half for
    /// the product, and two roundings to reduce it by `2 pi` in two parts.
    pub const CONFORMANT: Self = Self {
        function: 1.0 / 2048.0,
        angle: 4.0 * U,
    };

    /// Error of `sin` or `cos` of `angle` (radians, unreduced): the slope of
    /// either is at most 1.
    pub fn error(self, angle: f64) -> f64 {
        self.function + self.angle * angle.abs()
    }
}

/// Error of one half of a rotated pair, `c a - s b` or `c b + s a`, in f32.
///
/// `trig` is the absolute error of `c` and `s`, `error` the pair's own errors.
/// Two products and one addition follow, so each term sees two roundings.
/// `|c|` and `|s|` are at most `1 + trig`.
pub fn rotation_error(pair: [f64; 2], error: [f64; 2], trig: f64) -> f64 {
    let computed = pair[0].abs() + error[0] + pair[1].abs() + error[1];
    trig * computed + error[0] + error[1] + gamma(2) * (1.0 + trig) * computed
}

/// Relative error of `exp(x)`: WGSL allows `3 + 2 |x|` ULP, `2 u` each.
pub fn exp_relative(x: f64) -> f64 {
    (3.0 + 2.0 * x.abs()) * 2.0 * U
}

/// Error in f32 of `silu(g) u` for `g` and `u` that are off by the given errors.
///
/// silu is at most 1.1 steep, which carries the error of `g`. In
/// `g / (1 + exp(-g))` the exponential's relative error `e` moves the
/// denominator by `e exp(-g) / (1 + exp(-g))`; one addition, one division
/// and one product follow. Where `exp(-g)` may exceed f32 (`g < -88`), silu is
/// below 2^-120 and the division may return zero: all of it is error.
pub fn silu_mul_error(g: f64, g_error: f64, u: f64, u_error: f64) -> f64 {
    let silu = silu(g).abs();
    let denominator = exp_relative(g.abs() + g_error) / (1.0 + (g - g_error).exp()) + U;
    let relative = (1.0 + DIVISION) / (1.0 - denominator) - 1.0;
    let slope = SILU_SLOPE * g_error;
    let overflows = if g - g_error < EXP_OVERFLOWS {
        silu
    } else {
        0.0
    };
    let silu_error = slope + (silu + slope) * relative + overflows;
    let product = silu_error * (u.abs() + u_error) + silu * u_error;
    product + U * (silu * u.abs() + product)
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Error in f32 of `1 / (1 + exp(-x))` for an exact `x`, likewise: the exponential's
/// relative error weighted with its share of the denominator, one addition and one
/// division; all of it where `exp(-x)` may exceed f32.
pub fn sigmoid_error(x: f64) -> f64 {
    if x < EXP_OVERFLOWS {
        return sigmoid(x);
    }
    let denominator = exp_relative(x) / (1.0 + x.exp()) + U;
    sigmoid(x) * ((1.0 + DIVISION) / (1.0 - denominator) - 1.0)
}

/// `g / (1 + e^-g)`.
pub fn silu(g: f64) -> f64 {
    g / (1.0 + (-g).exp())
}

/// Error of the weights of an online softmax over f32 scores.
///
/// The weight of key `j`, `exp(s_j - m)`, is built as a product of
/// exponentials whenever the running maximum rises, and the exponents telescope
/// to `t_j = m - s_j` with `|x|` summing to `t_j`. Its relative error is
///
/// * `expm1(e_j)` for the score's own error `e_j` (the maximum's cancels: the
///   same computed value stands in numerator and denominator);
/// * `u t_j` for rounding the subtractions;
/// * `(3 n + 2 t_j)` ULP for `n` exponentials, and `n` roundings for their
///   products. `n` is bounded by [`longest_rise`], for any order-preserving
///   division of the keys among invocations or parts, plus `merges` where
///   their results are combined. `exp(0)` is taken as exactly 1.
///
/// `sum_roundings` counts the additions of a numerator or the denominator.
pub fn softmax_relative(
    scores: &[f64],
    errors: &[f64],
    sum_roundings: usize,
    merges: usize,
) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let max_error = errors.iter().copied().fold(0.0, f64::max);
    let exps = (longest_rise(scores, errors) + merges + 1) as f64;
    let sums = gamma(sum_roundings + 1);
    let scores = scores.iter().zip(errors);
    scores
        .map(|(&score, &error)| {
            let t = max + max_error - score + error;
            let exponentials = (3.0 * exps + 2.0 * t) * 2.0 * U + exps * U + U * t;
            // The factors 1 + d multiply to at most exp(sum |d|).
            (1.0 + sums) * (error + exponentials).exp() - 1.0
        })
        .collect()
}

/// Error of `sum w_j v_j / sum w_j` in f32, given the true normalised weights,
/// their relative errors, the values of one dimension and the true result.
///
/// With `N' = N + dN` and `D' = D (1 + d)`: `o' - o = (dN - o d D) / D'`, so
/// `|o' - o| <= (sum p_j r_j |v_j| + |o| R) / (1 - R)`, `R = sum p_j r_j`; the
/// division adds its own 2.5 ULP. A weight and its product that are too small for a
/// normal f32 may each be flushed, which costs [`F32_FLOOR`] times the value and once
/// more: D is at least 1, the weight of the largest score.
pub fn weighted_mean_error(
    weights: &[f64],
    relative: &[f64],
    values: impl Iterator<Item = f64>,
    result: f64,
) -> f64 {
    let (mut numerator, mut total) = (0.0, 0.0);
    for ((p, r), v) in weights.iter().zip(relative).zip(values) {
        numerator += p * r * v.abs() + F32_FLOOR * (v.abs() + 1.0);
        total += p * r + F32_FLOOR;
    }
    if total >= 1.0 {
        return f64::INFINITY;
    }
    let error = (numerator + result.abs() * total) / (1.0 - total);
    error + DIVISION * (result.abs() + error)
}

/// How often a running maximum can rise over any subsequence of `scores`, each
/// known to within its error: the longest chain in which each element may
/// exceed the one before.
pub fn longest_rise(scores: &[f64], errors: &[f64]) -> usize {
    // lowest[n]: the least lower end among chains of n + 1 elements.
    let mut lowest: Vec<f64> = Vec::new();
    for (score, error) in scores.iter().zip(errors) {
        let before = lowest.iter().rposition(|low| *low < score + error);
        let length = before.map_or(0, |n| n + 1);
        if length == lowest.len() {
            lowest.push(score - error);
        } else {
            lowest[length] = lowest[length].min(score - error);
        }
    }
    lowest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_of_the_two_matmul_forms() {
        assert_eq!(Accumulation::serial(576).roundings(), 578, "row form");
        let tree = Accumulation::strided(576, 64, 8);
        assert_eq!((tree.serial, tree.depth), (16, 6), "72 words, 64 threads");
        assert_eq!(Accumulation::strided(3072, 64, 8).serial, 48, "K / 64");
        let subgroups = Accumulation::any_order(576, 32, 8);
        assert_eq!((subgroups.serial, subgroups.depth), (24, 31), "one by one");
    }

    #[test]
    fn nothing_that_is_not_a_number_passes() {
        let expected = Expected::from_pairs([(1.0, 0.5), (2.0, 0.0)]);
        assert!(expected.accepts(&[1.5, 2.0]), "on the limit, and exact");
        assert!(!expected.accepts(&[1.6, 2.0]), "beyond the limit");
        assert!(!expected.accepts(&[1.0, 2.1]), "a limit of zero");
        assert!(!expected.accepts(&[f64::NAN, 2.0]), "NaN");
        assert!(!expected.accepts(&[f64::INFINITY, 2.0]), "infinity");
        assert!(!expected.accepts(&[1.0]), "an element is missing");
        let boundless = Expected::from_pairs([(1.0, f64::NAN), (1.0, -1.0)]);
        assert!(!boundless.accepts(&[1.5, 1.0]), "no limit is no pass");
        let infinite = Expected::from_pairs([(f64::INFINITY, 0.0)]);
        assert!(infinite.accepts(&[f64::INFINITY]), "as expected");
        assert!(!infinite.accepts(&[f64::MAX]), "finite where it is not");
    }

    #[test]
    fn a_stored_value_may_be_its_neighbour_only_where_the_error_reaches_it() {
        // Halfway between the f16 values 1 and 1 + 2^-10.
        let half = 1.0 + U_F16;
        assert_eq!(Store::F16.stored(half - 1e-5, 1e-6), (1.0, 0.0), "clear");
        let (value, error) = Store::F16.stored(half - 1e-7, 1e-6);
        assert_eq!((value, error), (1.0, 2.0 * U_F16), "either");
    }

    #[test]
    fn rises_are_counted_over_subsequences() {
        let exact = |scores: &[f64]| longest_rise(scores, &vec![0.0; scores.len()]);
        assert_eq!(exact(&[3.0, 1.0, 2.0, 5.0, 4.0]), 3, "1 2 5");
        assert_eq!(exact(&[1.0; 4]), 1, "equal scores do not rise");
        assert_eq!(longest_rise(&[1.0; 4], &[0.1; 4]), 4, "but may, unrounded");
    }

    #[test]
    fn silu_slope_is_the_steepest() {
        let steepest = (-4000..4000)
            .map(|i| f64::from(i) / 400.0)
            .map(|g| (silu(g + 1e-6) - silu(g - 1e-6)) / 2e-6)
            .fold(0.0, f64::max);
        assert!((1.099..SILU_SLOPE).contains(&steepest), "{steepest}");
    }
}
