// Adds all words of a buffer to one counter, so that no load can be left out.
// words: vec4<u32>, LOADS of them in flight for each invocation; total: one word.

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> total: atomic<u32>;

var<workgroup> sum_of_group: atomic<u32>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let stride = num_wg.x * 256u;
  let count = arrayLength(&words);
  var sums: array<vec4<u32>, LOADS>;
  for (var i = wg.x * 256u + tid; i + (LOADS - 1u) * stride < count; i += LOADS * stride) {
    for (var n = 0u; n < LOADS; n++) {
      sums[n] += words[i + n * stride];
    }
  }
  var sum = vec4<u32>();
  for (var n = 0u; n < LOADS; n++) {
    sum += sums[n];
  }
  atomicAdd(&sum_of_group, sum.x + sum.y + sum.z + sum.w);
  workgroupBarrier();
  if (tid == 0u) {
    atomicAdd(&total, atomicLoad(&sum_of_group));
  }
}
