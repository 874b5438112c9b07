// add_norm: residual = a + b; normed = residual * gamma / sqrt(mean(residual^2) + eps).
// a, b, normed, residual: (T, D)   gamma: (D)
// The sum is an f16 sum; the mean square is taken in f32 over the rounded sum,
// so that a later reader of `residual` sees what was normalised.
// One workgroup per token; a tree over its invocations; any D.

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let token = wg.z * num_wg.x + wg.x;
  if (token >= u.packGridDimX) {
    return;
  }
  let base = token * D;
  var sum = 0.0;
  for (var i = tid; i < D; i += THREADS) {
    let added = a[base + i] + b[base + i];
    residual[base + i] = added;
    sum += f32(added) * f32(added);
  }
  sums[tid] = sum;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      sums[tid] += sums[tid + width];
    }
    workgroupBarrier();
  }
  let scale = inverseSqrt(sums[0] / f32(D) + RMS_EPS);
  // Each invocation reads back only what it wrote itself.
  for (var i = tid; i < D; i += THREADS) {
    normed[base + i] = Act(f32(residual[base + i]) * scale * f32(gamma[i]));
  }
}
