//! Packed codes of one row to numbers.

use kernels::quant::QuantFormat;

/// The codes of a row of `words`, less the zero point, into `out`, `[k]`.
pub(super) fn decode(format: QuantFormat, words: &[u32], out: &mut [f64]) {
    let zero_point = format.zero_point();
    match format {
        QuantFormat::Q4f16_1
        | QuantFormat::Q4f32_1
        | QuantFormat::Q4_0
        | QuantFormat::Affine4G32
        | QuantFormat::Affine4G64 => {
            for (word, out) in words.iter().zip(out.as_chunks_mut::<8>().0) {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f64::from((word >> (4 * i) & 15) as i32 - zero_point);
                }
            }
        }
        QuantFormat::Q8_0 | QuantFormat::Affine8G32 | QuantFormat::Affine8G64 => {
            for (word, out) in words.iter().zip(out.as_chunks_mut::<4>().0) {
                *out = word
                    .to_le_bytes()
                    .map(|code| f64::from(i32::from(code) - zero_point));
            }
        }
        QuantFormat::Affine3G64 => {
            let (triples, _) = words.as_chunks::<3>();
            for (triple, out) in triples.iter().zip(out.as_chunks_mut::<32>().0) {
                // Three words are one stream of 32 codes.
                let stream = triple
                    .iter()
                    .rev()
                    .fold(0_u128, |stream, &word| stream << 32 | u128::from(word));
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f64::from((stream >> (3 * i)) as u32 & 7);
                }
            }
        }
    }
}
