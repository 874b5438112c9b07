//! Matrices of weights in a plan: what their parts are bound to, and the variant
//! for their format.

use super::{Buffer, Part, Rows, Work};
use crate::{
    models::{ModelSpec, Shape, Tensor},
    quant::QuantFormat,
    variants::{Load, Variant},
};

/// Rows of a matrix whose outputs fill 256 bytes in f16: WebGPU allows an adapter to
/// ask for that alignment of a binding.
const ROWS_STEP: usize = 128;

/// A matrix, and what its parts are bound to.
pub(super) struct Matrix {
    layer: Option<usize>,
    tensor: Tensor,
    /// Its first row in the whole matrix, and whether that has others.
    pub(super) first: usize,
    part: bool,
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
        Self::part(spec.format_of(layer, tensor), layer, tensor, k, None, rows)
    }

    /// The rows from `first` on, or all of them.
    fn part(
        format: QuantFormat,
        layer: Option<usize>,
        tensor: Tensor,
        k: usize,
        first: Option<usize>,
        rows: usize,
    ) -> Self {
        let part = |part| Buffer::Param {
            layer,
            tensor,
            part,
            rows: first.map(|first| Rows { first, count: rows }),
        };
        Self {
            layer,
            tensor,
            first: first.unwrap_or(0),
            part: first.is_some(),
            rows,
            k,
            format,
            scales: part(Part::Scales),
            words: part(Part::Words),
            biases: format.is_affine().then(|| part(Part::Biases)),
        }
    }

    /// The matrix in parts that a variant may bind: of as many whole tiles of rows as
    /// fit, so that every output starts at an offset that a binding may have.
    pub(super) fn bindable(self, variant: Variant, most: u64) -> Vec<Self> {
        let format = self.format;
        let words = if variant.load == Load::Texture {
            0
        } else {
            4 * format.words_per_row(self.k)
        };
        let scales = format.scale_type().bytes() * format.scales_per_row(self.k);
        let rows = most / words.max(scales).max(1) as u64;
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        // The rows of several vectors lie apart in their outputs.
        if self.rows <= rows || variant.is_batched() {
            return vec![self];
        }
        let count = (rows / ROWS_STEP * ROWS_STEP).max(ROWS_STEP);
        let parts = (0..self.rows).step_by(count).map(|first| {
            let rows = count.min(self.rows - first);
            let (layer, tensor) = (self.layer, self.tensor);
            Self::part(format, layer, tensor, self.k, Some(first), rows)
        });
        parts.collect()
    }

    /// A stack of experts' matrices of `rows` rows each, in parts of whole experts that a
    /// variant may bind.
    pub(super) fn bindable_experts(self, rows: usize, most: u64) -> Vec<Self> {
        let words = 4 * self.format.words_per_row(self.k);
        let expert = (rows * words).max(1) as u64;
        let experts = usize::try_from(most / expert).unwrap_or(usize::MAX);
        if self.rows / rows <= experts {
            return vec![self];
        }
        let count = experts.max(1) * rows;
        let parts = (0..self.rows).step_by(count).map(|first| {
            let rows = count.min(self.rows - first);
            let (layer, tensor) = (self.layer, self.tensor);
            Self::part(self.format, layer, tensor, self.k, Some(first), rows)
        });
        parts.collect()
    }

    /// The label of its dispatch, given that of the whole matrix.
    pub(super) fn label(&self, whole: &str) -> String {
        if self.part {
            format!("{whole}.rows{}", self.first)
        } else {
            whole.to_owned()
        }
    }

    /// Bindings of a role with the biases behind them, where the format has any.
    pub(super) fn bound(&self, mut buffers: Vec<Buffer>) -> Vec<Buffer> {
        buffers.extend(self.biases);
        buffers
    }

    /// The product with this many vectors.
    pub(super) fn work(&self, vectors: usize) -> Work {
        Work {
            bytes: self.format.matrix_bytes(self.rows, self.k),
            flops: 2 * (self.rows * self.k * vectors) as u64,
        }
    }

    /// The products of as many vectors with a matrix each of a stack of `stack`. Which ones
    /// they take is not known yet; never more than there are, and of a part its share.
    pub(super) fn expert_work(&self, stack: usize, vectors: usize) -> Work {
        let Work { bytes, flops } = self.work(vectors);
        Work {
            bytes: bytes * vectors.min(stack) as u64 / stack as u64,
            flops: flops / stack as u64,
        }
    }
}
