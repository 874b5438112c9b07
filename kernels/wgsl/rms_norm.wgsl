// rms_norm: out = x * gamma / sqrt(mean(x^2) + eps), sums in f32.
// x: (T, D)   gamma: (D)   out: (T, D)
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
    let value = f32(x[base + i]);
    sum += value * value;
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
  for (var i = tid; i < D; i += THREADS) {
    out[base + i] = Act(f32(x[base + i]) * scale * f32(gamma[i]));
  }
}
