//! `gated_qkv_split`: a projection whose query heads are followed by their gates, apart.

use kernels::ModelSpec;

/// The role's two outputs; both are copies.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Queries, keys and values, `[Q + 2 KV]`.
    pub qkv: Vec<f64>,
    /// Gates, `[Q]`.
    pub gate: Vec<f64>,
}

/// `c_attn` `[2 Q + 2 KV]`, of each query head first the query.
///
/// # Panics
/// When it has another length.
pub fn compute(c_attn: &[f64], spec: &ModelSpec) -> Split {
    let (head_dim, q_dim) = (spec.head_dim, spec.q_dim());
    assert_eq!(
        c_attn.len(),
        q_dim + spec.qkv_dim(),
        "gated_qkv_split: queries, gates, keys and values"
    );
    let (heads, rest) = c_attn.split_at(2 * q_dim);
    let heads = heads.chunks_exact(2 * head_dim);
    let mut qkv: Vec<f64> = heads
        .clone()
        .flat_map(|head| &head[..head_dim])
        .copied()
        .collect();
    qkv.extend_from_slice(rest);
    let gate = heads.flat_map(|head| &head[head_dim..]).copied().collect();
    Split { qkv, gate }
}
