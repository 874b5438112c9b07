// Adds all words of a buffer to one counter, so that no load can be left out. What stands
// for the loads is made for a form: `roof::ReadForm`.
// words: vec4<u32>; total: one word.

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> total: atomic<u32>;

var<workgroup> sum_of_group: atomic<u32>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  // LOADS
  atomicAdd(&sum_of_group, sum.x + sum.y + sum.z + sum.w);
  workgroupBarrier();
  if (tid == 0u) {
    atomicAdd(&total, atomicLoad(&sum_of_group));
  }
}
