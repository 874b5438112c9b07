// gdn_gates: decay = exp(-e^A_log softplus(a + dt_bias)); rate = sigmoid(b).
// ab: (T, ab_stride), a and b of a token from GDN_A_OFFSET on   a_log, dt_bias: (VH) f32
// gates: (T, 2, VH) f32, decays first
// One invocation per head of a token.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * GDN_V_HEADS) {
    return;
  }
  let token = i / GDN_V_HEADS;
  let head = i % GDN_V_HEADS;
  let at = token * u.ab_stride + GDN_A_OFFSET + head;
  let x = f32(ab[at]) + dt_bias[head];
  // Above 20 the 1 is lost in f32, and e^x may be infinite.
  var softplus = x;
  if (x <= 20.0) {
    softplus = log(1.0 + exp(x));
  }
  let out = token * 2u * GDN_V_HEADS + head;
  gates[out] = exp(-exp(a_log[head]) * softplus);
  gates[out + GDN_V_HEADS] = 1.0 / (1.0 + exp(-f32(ab[at + GDN_V_HEADS])));
}
