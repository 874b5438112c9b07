// embedding: out = (code - 7) * scale, in the arithmetic of the activations.
// weights: (V, D/8) u32   scales: (V, D/32) f16   ids: (T)   out: (T, D)
// One invocation per element; any D.
// Bound by: nothing much, one row per token.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * D) {
    return;
  }
  let token = u32(ids[i / D]);
  let k = i % D;
  let word = weights[token * D_PACKED + k / 8u];
  let code = (word >> (4u * (k % 8u))) & 15u;
  out[i] = (Act(code) - Act(ZERO_POINT)) * Act(scales[token * D_SCALES + k / GROUP_SIZE]);
}
