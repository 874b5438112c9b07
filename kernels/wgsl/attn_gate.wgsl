// attn_gate: attn_out *= sigmoid(gate), in f32 until the store.
// attn_out, gate: (T, Q)
// One invocation per element.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * Q_DIM) {
    return;
  }
  attn_out[i] = Act(f32(attn_out[i]) / (1.0 + exp(-f32(gate[i]))));
}
