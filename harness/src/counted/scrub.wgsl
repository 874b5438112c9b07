// Leaves words in workgroup memory that no kernel takes for its own.

const WORDS = 4096u;
const THREADS = 64u;

var<workgroup> held: array<u32, WORDS>;
@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(local_invocation_index) tid: u32,
  @builtin(workgroup_id) wg: vec3<u32>,
) {
  for (var i = tid; i < WORDS; i += THREADS) {
    held[i] = 0x7FC07FC1u ^ (i * 0x01010101u);
  }
  workgroupBarrier();
  // Read, so that the stores are not left out.
  out[wg.x * THREADS + tid] = held[(tid * 61u + wg.x) % WORDS];
}
