//! A GGUF file as a checkpoint, its weights as they are stored.
//!
//! Q4_0, Q4_1 and Q8_0 are formats of the kernels, so their codes, scales and biases
//! are taken over: only their order in memory changes. Where tensors of different
//! types are joined by rows, the matrix takes the narrowest affine format that holds
//! both, in which they are exact too: `(code - 8) * d` is `code * d - 8 d`, and `8 d`
//! is exact in f16. All other types are converted, and the loss is stated: Q4_K keeps
//! its codes, with scales and minima rounded to f16, and the rest is quantised to 8
//! bits.

use super::blocks::{codes_of_32, groups_of_32, half_at};
use super::model::{LoadError, Model, Part, exact_format};
use super::{BlockType, Gguf, dequantise};
use crate::checkpoint::{Checkpoint, Container, Key, Progress, Provenance, Stored};
use crate::matrix::{Packed, ScaleValues};
use crate::quantise::quantise_row_affine;
use half::f16;
use kernels::models::{ModelSpec, Shape, TensorFormat};
use kernels::quant::QuantFormat;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows that one job converts.
const JOB_ROWS: usize = 64;

/// Reads a GGUF file; `progress` counts parameters.
///
/// # Errors
/// [`LoadError`], naming file and field.
pub fn load(path: &Path, progress: Progress<'_>) -> Result<Checkpoint, LoadError> {
    load_model(&Model::new(&Gguf::open(path)?)?, progress)
}

/// The same of a file that is open.
///
/// # Errors
/// [`LoadError`].
pub fn load_model(model: &Model<'_>, progress: Progress<'_>) -> Result<Checkpoint, LoadError> {
    let spec = model.stored_spec()?;
    let keys = spec.tensors();
    let done = AtomicU64::new(0);
    let loaded: Vec<(Key, Stored, Losses)> = keys
        .par_iter()
        .map(|&key| {
            let (stored, losses) = parameter(model, &spec, key)?;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, keys.len() as u64);
            Ok((key, stored, losses))
        })
        .collect::<Result<_, LoadError>>()?;
    let mut losses = Losses::default();
    let mut tensors = Vec::new();
    for (key, stored, loss) in loaded {
        losses.add(&loss);
        tensors.push((key, stored));
    }
    let sha256 = model.gguf.sha256()?;
    let how = if losses.is_empty() {
        "as stored"
    } else {
        "converted"
    };
    let mut notes = vec![format!(
        "weights of the GGUF with sha256 {sha256}: {}",
        formats(&spec)
    )];
    notes.extend(losses.notes());
    let provenance = Provenance {
        weights: Container::Gguf,
        title: format!("{} (GGUF, {how})", spec.title),
        notes,
        sha256,
    };
    Checkpoint::new(spec, provenance, tensors).map_err(|cause| LoadError::Checkpoint {
        file: model.gguf.file().to_owned(),
        cause,
    })
}

/// The model's formats in words.
fn formats(spec: &ModelSpec) -> String {
    let mut counts: BTreeMap<QuantFormat, usize> = BTreeMap::new();
    for (layer, tensor) in spec.tensors() {
        if matches!(spec.shape(tensor), Shape::Matrix { .. }) {
            *counts.entry(spec.format_of(layer, tensor)).or_default() += 1;
        }
    }
    let counts = counts
        .iter()
        .map(|(format, n)| format!("{n} matrices in {format}"));
    counts.collect::<Vec<_>>().join(", ")
}

impl Model<'_> {
    /// The model as [`load_model`] gives it: with the format that each matrix takes; its own
    /// is the most frequent. No weight is read.
    ///
    /// # Errors
    /// [`LoadError`], naming the tensor.
    pub fn stored_spec(&self) -> Result<ModelSpec, LoadError> {
        let mut of_matrices = Vec::new();
        for key @ (_, tensor) in self.spec.tensors() {
            if matches!(self.spec.shape(tensor), Shape::Matrix { .. }) {
                of_matrices.push((key, joined_format(&self.parts(key)?)));
            }
        }
        let count = |format| of_matrices.iter().filter(|(_, f)| *f == format).count();
        // Of formats as frequent, the first of the table.
        let format = QuantFormat::ALL
            .iter()
            .rev()
            .copied()
            .max_by_key(|&f| count(f));
        let format = format.unwrap_or(QuantFormat::Q4f16_1);
        let others = of_matrices.into_iter().filter(|(_, f)| *f != format);
        let other_formats = others.map(|((layer, tensor), format)| TensorFormat {
            layer,
            tensor,
            format,
        });
        Ok(ModelSpec {
            format,
            other_formats: other_formats.collect(),
            ..self.spec.clone()
        })
    }
}

/// The format of a matrix whose rows are these tensors'.
fn joined_format(parts: &[Part<'_>]) -> QuantFormat {
    let mut types = parts.iter().map(|part| part.info.block_type);
    let first = types.clone().next().and_then(exact_format);
    if let Some(format) = first
        && types.clone().all(|t| exact_format(t) == Some(format))
    {
        return format;
    }
    let four_bits = |t| matches!(t, BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K);
    if types.all(four_bits) {
        QuantFormat::Affine4G32
    } else {
        QuantFormat::Affine8G32
    }
}

/// What conversion loses, by the type that was converted.
#[derive(Clone, Debug, Default)]
struct Losses {
    of_types: BTreeMap<BlockType, Loss>,
    /// Largest error of a vector's element, relative to the element.
    vectors: f64,
}

/// The loss of the tensors of one type.
#[derive(Clone, Copy, Debug)]
struct Loss {
    format: QuantFormat,
    tensors: usize,
    /// Sums of the squares of weights and of their errors.
    squares: f64,
    error_squares: f64,
}

impl Losses {
    fn is_empty(&self) -> bool {
        self.of_types.is_empty()
    }

    fn add(&mut self, other: &Self) {
        self.vectors = self.vectors.max(other.vectors);
        for (&of, loss) in &other.of_types {
            let sum = self.of_types.entry(of).or_insert(Loss {
                tensors: 0,
                squares: 0.0,
                error_squares: 0.0,
                ..*loss
            });
            sum.tensors += loss.tensors;
            sum.squares += loss.squares;
            sum.error_squares += loss.error_squares;
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .of_types
            .iter()
            .map(|(of, loss)| {
                let rms = (loss.error_squares / loss.squares.max(f64::MIN_POSITIVE)).sqrt();
                format!(
                    "{} tensors in {} converted to {}, relative rms error {rms:.2e}",
                    loss.tensors,
                    of.name(),
                    loss.format
                )
            })
            .collect();
        if self.vectors > 0.0 {
            let worst = self.vectors;
            notes.push(format!(
                "norms rounded to f16, relative error up to {worst:.2e}"
            ));
        }
        notes
    }
}

fn parameter(model: &Model<'_>, spec: &ModelSpec, key: Key) -> Result<(Stored, Losses), LoadError> {
    match spec.shape(key.1) {
        Shape::Matrix { rows, k } => matrix(model, spec.format_of(key.0, key.1), key, rows, k),
        Shape::Vector { len } => vector(model, key, len),
        Shape::Floats { .. } => panic!("no architecture that is read from GGUF has {:?}", key.1),
    }
}

fn vector(model: &Model<'_>, key: Key, len: usize) -> Result<(Stored, Losses), LoadError> {
    let mut values = vec![0.0; len];
    model.rows(key, 0..1, &mut values)?;
    let mut losses = Losses::default();
    let mut halves = Vec::with_capacity(len);
    for (column, &value) in values.iter().enumerate() {
        let half = f16::from_f32(value);
        if !half.is_finite() {
            let part = &model.parts(key)?[0];
            return Err(not_finite(model, part, 0, column, value));
        }
        let error = (f64::from(half.to_f32()) - f64::from(value)).abs();
        if error > 0.0 {
            losses.vectors = losses.vectors.max(error / f64::from(value.abs()));
        }
        halves.push(half);
    }
    Ok((Stored::Vector(halves), losses))
}

fn matrix(
    model: &Model<'_>,
    format: QuantFormat,
    key: Key,
    rows: usize,
    k: usize,
) -> Result<(Stored, Losses), LoadError> {
    let (words_per_row, groups) = (format.words_per_row(k), format.scales_per_row(k));
    let biases_per_row = if format.is_affine() { groups } else { 0 };
    let mut words = vec![0; rows * words_per_row];
    let mut scales = vec![f16::ZERO; rows * groups];
    let mut biases = vec![f16::ZERO; rows * biases_per_row];
    let mut losses = Losses::default();
    let mut first = 0;
    for part in model.parts(key)? {
        let count = part.info.rows;
        let row_bytes = part.info.row_bytes();
        let blocks = model.gguf.rows(part.info, 0, count)?;
        let of_part = |per_row: usize| first * per_row..(first + count) * per_row;
        let mut bias_rows: Vec<&mut [f16]> = if biases_per_row == 0 {
            (0..count).map(|_| <&mut [f16]>::default()).collect()
        } else {
            let part = &mut biases[of_part(biases_per_row)];
            part.chunks_exact_mut(biases_per_row).collect()
        };
        let sums =
            words[of_part(words_per_row)]
                .par_chunks_mut(words_per_row * JOB_ROWS)
                .zip(scales[of_part(groups)].par_chunks_mut(groups * JOB_ROWS))
                .zip(bias_rows.par_chunks_mut(JOB_ROWS))
                .enumerate()
                .map(|(job, ((words, scales), biases))| {
                    let mut converter = Converter::new(part.info.block_type, format, k);
                    let rows = words
                        .chunks_exact_mut(words_per_row)
                        .zip(scales.chunks_exact_mut(groups))
                        .zip(biases);
                    for (i, ((words, scales), biases)) in rows.enumerate() {
                        let source = part.source(job * JOB_ROWS + i);
                        let blocks = &blocks[source * row_bytes..][..row_bytes];
                        converter.row(blocks, words, scales, biases).map_err(
                            |(column, value)| not_finite(model, &part, source, column, value),
                        )?;
                    }
                    Ok((converter.squares, converter.error_squares))
                })
                .collect::<Result<Vec<(f64, f64)>, LoadError>>()?;
        if exact_format(part.info.block_type).is_none() {
            let mut loss = Losses::default();
            let sum = Loss {
                format,
                tensors: 1,
                squares: sums.iter().map(|s| s.0).sum(),
                error_squares: sums.iter().map(|s| s.1).sum(),
            };
            loss.of_types.insert(part.info.block_type, sum);
            losses.add(&loss);
        }
        first += count;
    }
    let stored = Stored::Matrix(Packed {
        format,
        rows,
        k,
        words,
        scales: ScaleValues::F16(scales),
        biases,
    });
    Ok((stored, losses))
}

/// Converts rows of one type to one format, and adds up what that loses.
struct Converter {
    block_type: BlockType,
    format: QuantFormat,
    weights: Vec<f32>,
    codes: Vec<u8>,
    squares: f64,
    error_squares: f64,
}

impl Converter {
    fn new(block_type: BlockType, format: QuantFormat, k: usize) -> Self {
        Self {
            block_type,
            format,
            weights: vec![0.0; k],
            codes: vec![0; k],
            squares: 0.0,
            error_squares: 0.0,
        }
    }

    /// Column and value of a weight that the format cannot hold are the error.
    fn row(
        &mut self,
        blocks: &[u8],
        words: &mut [u32],
        scales: &mut [f16],
        biases: &mut [f16],
    ) -> Result<(), (usize, f32)> {
        match self.block_type {
            BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q8_0 => {
                self.exact(blocks, scales, biases);
                self.pack(words);
            }
            BlockType::Q4K => {
                self.of_groups(blocks, scales, biases);
                self.pack(words);
                self.lose(blocks, words, scales, biases);
            }
            BlockType::F32
            | BlockType::F16
            | BlockType::Bf16
            | BlockType::Q2K
            | BlockType::Q3K
            | BlockType::Q5K
            | BlockType::Q6K => {
                dequantise(self.block_type, blocks, &mut self.weights);
                quantise_row_affine(self.format, &self.weights, words, scales, biases)
                    .map_err(|column| (column, self.weights[column]))?;
                self.lose(blocks, words, scales, biases);
            }
        }
        let group = self.format.group_size();
        for values in [&*scales, &*biases] {
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                return Err((i * group, values[i].to_f32()));
            }
        }
        Ok(())
    }

    /// Takes over codes, scales and biases.
    fn exact(&mut self, blocks: &[u8], scales: &mut [f16], biases: &mut [f16]) {
        let blocks = blocks.chunks_exact(self.block_type.block_bytes());
        let codes = self.codes.as_chunks_mut::<32>().0;
        for (group, (block, codes)) in blocks.zip(codes).enumerate() {
            scales[group] = half_at(block, 0);
            let (zero_point, nibbles) = match self.block_type {
                BlockType::Q4_0 => (8.0, Some(&block[2..])),
                BlockType::Q4_1 => (0.0, Some(&block[4..])),
                BlockType::Q8_0 => (128.0, None),
                BlockType::F32
                | BlockType::F16
                | BlockType::Bf16
                | BlockType::Q2K
                | BlockType::Q3K
                | BlockType::Q4K
                | BlockType::Q5K
                | BlockType::Q6K => unreachable!("no format of the kernels"),
            };
            match nibbles {
                // Low nibbles are the first half of a block.
                Some(nibbles) => {
                    for (i, &byte) in nibbles.iter().enumerate() {
                        (codes[i], codes[i + 16]) = (byte & 15, byte >> 4);
                    }
                }
                None => {
                    for (code, &byte) in codes.iter_mut().zip(&block[2..]) {
                        *code = byte ^ 0x80;
                    }
                }
            }
            if let Some(bias) = biases.get_mut(group) {
                *bias = if self.block_type == BlockType::Q4_1 {
                    half_at(block, 2)
                } else {
                    // A power of two times an f16 is one, short of overflow.
                    f16::from_f32(-zero_point * scales[group].to_f32())
                };
            }
        }
    }

    /// Takes over codes and rounds scales and minima.
    fn of_groups(&mut self, blocks: &[u8], scales: &mut [f16], biases: &mut [f16]) {
        let blocks = blocks.chunks_exact(self.block_type.block_bytes());
        let codes = self.codes.as_chunks_mut::<256>().0;
        for (at, (block, codes)) in blocks.zip(codes).enumerate() {
            codes_of_32(self.block_type, block, codes);
            for (group, (scale, min)) in groups_of_32(block).into_iter().enumerate() {
                scales[at * 8 + group] = f16::from_f32(scale);
                biases[at * 8 + group] = f16::from_f32(-min);
            }
        }
    }

    fn pack(&self, words: &mut [u32]) {
        let bits = self.format.bits();
        for (word, codes) in words.iter_mut().zip(self.codes.chunks_exact(32 / bits)) {
            let codes = codes.iter().rev();
            *word = codes.fold(0, |word, &code| word << bits | u32::from(code));
        }
    }

    fn lose(&mut self, blocks: &[u8], words: &[u32], scales: &[f16], biases: &[f16]) {
        dequantise(self.block_type, blocks, &mut self.weights);
        let k = self.weights.len();
        let matrix = crate::Matrix {
            format: self.format,
            rows: 1,
            k,
            words,
            scales: crate::matrix::Scales::F16(scales),
            biases,
        };
        let mut found = vec![0.0; k];
        matrix.row_into(0, &mut found);
        for (&weight, found) in self.weights.iter().zip(found) {
            let (weight, found) = (f64::from(weight), f64::from(found));
            self.squares += weight * weight;
            self.error_squares += (found - weight) * (found - weight);
        }
    }
}

fn not_finite(
    model: &Model<'_>,
    part: &Part<'_>,
    row: usize,
    column: usize,
    value: f32,
) -> LoadError {
    LoadError::NotFinite {
        file: model.gguf.file().to_owned(),
        tensor: part.name.clone(),
        row,
        column,
        value,
    }
}
