// sample_reduce: the greatest logit of each part of the vocabulary and its weights' sum.
// logits: (V)   partials: (SAMPLE_PARTS, 2) f32: m = max l, sum of e^((l - m) / temperature)
// One workgroup a part; each invocation takes every THREADS-th logit of it, twice. A
// part behind the vocabulary's end has the sum 0.

var<workgroup> shared_max: array<f32, THREADS>;
var<workgroup> shared_sum: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  const PART = (VOCAB + SAMPLE_PARTS - 1) / SAMPLE_PARTS;
  let first = wg.x * PART;
  let end = min(first + PART, VOCAB);
  var largest = -3.0e38;
  for (var i = first + tid; i < end; i += THREADS) {
    largest = max(largest, f32(logits[i]));
  }
  shared_max[tid] = largest;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      shared_max[tid] = max(shared_max[tid], shared_max[tid + width]);
    }
    workgroupBarrier();
  }
  largest = shared_max[0];
  var sum = 0.0;
  for (var i = first + tid; i < end; i += THREADS) {
    sum += exp((f32(logits[i]) - largest) / u.temperature);
  }
  shared_sum[tid] = sum;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      shared_sum[tid] += shared_sum[tid + width];
    }
    workgroupBarrier();
  }
  if (tid == 0u) {
    partials[2u * wg.x] = largest;
    partials[2u * wg.x + 1u] = shared_sum[0];
  }
}
