//! Matrices of weights in a plan: what their parts are bound to, and the variant
//! for their format.

use super::{Buffer, Part};
use crate::{
    features::Features,
    models::{ModelSpec, Shape, Tensor},
    quant::QuantFormat,
    variants::{VARIANTS, Variant},
};

/// A matrix, and what its parts are bound to.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) format: QuantFormat,
    pub(super) scales: Buffer,
    pub(super) words: Buffer,
    biases: Option<Buffer>,
}

impl Matrix {
    pub(super) fn of(spec: &ModelSpec, layer: Option<usize>, tensor: Tensor) -> Self {
        let Shape::Matrix { rows, k } = spec.shape(tensor) else {
            panic!("{tensor:?} is not a matrix");
        };
        let part = |part| Buffer::Param {
            layer,
            tensor,
            part,
        };
        let format = spec.format_of(layer, tensor);
        Self {
            rows,
            k,
            format,
            scales: part(Part::Scales),
            words: part(Part::Words),
            biases: format.is_affine().then(|| part(Part::Biases)),
        }
    }

    /// Bindings of a role with the biases behind them, where the format has any.
    pub(super) fn bound(&self, mut buffers: Vec<Buffer>) -> Vec<Buffer> {
        buffers.extend(self.biases);
        buffers
    }

    pub(super) fn bytes(&self) -> u64 {
        self.format.matrix_bytes(self.rows, self.k)
    }
}

/// Whether a variant is in the table and may run over rows of `k` weights.
///
/// # Errors
/// The constraint in words.
pub(super) fn check(variant: Variant, features: &Features, k: usize) -> Result<(), String> {
    if VARIANTS.contains(&variant) {
        return variant.check(features, k);
    }
    let format = variant.format.map_or("no", QuantFormat::name);
    let elem = variant.elem.name();
    Err(format!(
        "it is not written for {format} weights and {elem} activations"
    ))
}
