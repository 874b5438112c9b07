//! `qk_norm`: RMSNorm of each head, before RoPE (Qwen3).

use super::rms_norm;

/// `x` `[heads, head_dim]` and `gamma` `[head_dim]`, giving `[heads, head_dim]`.
///
/// # Panics
/// When `x` does not consist of whole heads.
pub fn compute(x: &[f64], gamma: &[f64], eps: f64) -> Vec<f64> {
    assert!(
        x.len().is_multiple_of(gamma.len()),
        "qk_norm: whole heads of {}, found {} elements",
        gamma.len(),
        x.len()
    );
    x.chunks_exact(gamma.len())
        .flat_map(|head| rms_norm::compute(head, gamma, eps))
        .collect()
}
