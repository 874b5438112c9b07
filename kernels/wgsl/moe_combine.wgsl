// moe_combine: the sum of a token's slots by their scores, in f32 until the store.
// slots: (T, SLOTS, N)   score: (T, SLOTS) f32   out: (T, N)
// Workgroups (x, t): one invocation per element of token t.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let i = wg.x * THREADS + tid;
  if (i >= u.N) {
    return;
  }
  let first = wg.y * u.SLOTS;
  var sum = 0.0;
  for (var slot = 0u; slot < u.SLOTS; slot++) {
    sum += score[first + slot] * f32(slots[(first + slot) * u.N + i]);
  }
  out[wg.y * u.N + i] = Act(sum);
}
