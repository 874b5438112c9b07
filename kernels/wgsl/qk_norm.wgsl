// qk_norm: x = x * gamma / sqrt(mean(x^2) + eps) over each query and key head, in place.
// qkv: (T, Q+2KV)   q_gamma, k_gamma: (HD)
// One workgroup per head of a token; a tree over its invocations, sums in f32.
// V is left alone.

const DIMS = HEAD_DIM / THREADS;

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  if (group >= u.packGridDimX || group >= u.seq_len * (HEADS + KV_HEADS)) {
    return;
  }
  let head = group % (HEADS + KV_HEADS);
  let base = group / (HEADS + KV_HEADS) * QKV_DIM + head * HEAD_DIM + tid;
  var values: array<f32, DIMS>;
  var sum = 0.0;
  for (var d = 0u; d < DIMS; d++) {
    values[d] = f32(qkv[base + d * THREADS]);
    sum += values[d] * values[d];
  }
  sums[tid] = sum;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      sums[tid] += sums[tid + width];
    }
    workgroupBarrier();
  }
  let scale = inverseSqrt(sums[0] / f32(HEAD_DIM) + RMS_EPS);
  for (var d = 0u; d < DIMS; d++) {
    let dim = d * THREADS + tid;
    var gamma = 0.0;
    if (head < HEADS) {
      gamma = f32(q_gamma[dim]);
    } else {
      gamma = f32(k_gamma[dim]);
    }
    qkv[base + d * THREADS] = Act(values[d] * scale * gamma);
  }
}
