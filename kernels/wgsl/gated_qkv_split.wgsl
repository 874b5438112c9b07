// gated_qkv_split: a projection whose query heads are followed by their gates, apart.
// c_attn: (T, H, query and gate of HD each; 2 KV)   qkv: (T, Q+2KV)   gate: (T, Q)
// One invocation per element.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * GATED_QKV_DIM) {
    return;
  }
  let token = i / GATED_QKV_DIM;
  let row = i % GATED_QKV_DIM;
  if (row >= 2u * Q_DIM) {
    qkv[token * QKV_DIM + row - Q_DIM] = c_attn[i];
    return;
  }
  let head = row / (2u * HEAD_DIM);
  let dim = row % (2u * HEAD_DIM);
  if (dim < HEAD_DIM) {
    qkv[token * QKV_DIM + head * HEAD_DIM + dim] = c_attn[i];
  } else {
    gate[token * Q_DIM + head * HEAD_DIM + dim - HEAD_DIM] = c_attn[i];
  }
}
