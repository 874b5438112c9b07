// silu_mul: out = silu(gate) * up, silu(g) = g / (1 + e^-g), in f32 until the store.
// gate_up: (T, 2F), a row's gates first   out: (T, F)
// One invocation per element.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * FFN_DIM) {
    return;
  }
  let at = i / FFN_DIM * 2u * FFN_DIM + i % FFN_DIM;
  let gate = f32(gate_up[at]);
  let up = f32(gate_up[at + FFN_DIM]);
  out[i] = Act(gate / (1.0 + exp(-gate)) * up);
}
