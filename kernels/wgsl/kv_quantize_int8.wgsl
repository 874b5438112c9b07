// kv_quantize_int8: stores rotated keys and values as int8 codes with a scale.
// k, v: (T, KV)   position_map: (T)
// kv_pages: (pages, KVH, 16, 2, HD/4) u32 of four codes, the first in the lowest byte
// kv_scales: (pages, KVH, 16, 2)
// scale = max(max |x| / 127, 1e-8), and a code is x / scale, rounded: codes are of the
// scale in f32, the scale is stored as f16. Workgroup (x, y) owns head x / 2 of
// token y, its keys where x is even and its values where it is odd. The page is
// looked up in the page table; position -1 is skipped.

var<workgroup> largest: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  if (wg.x >= u.packGridDimX) {
    return;
  }
  let position = position_map[u32(u.position_map_elem_offset) + wg.y];
  if (position < 0) {
    return;
  }
  let head = wg.x / 2u;
  let side = wg.x % 2u;
  let first = wg.y * KV_DIM + head * HEAD_DIM;
  var most = 0.0;
  for (var dim = tid; dim < HEAD_DIM; dim += THREADS) {
    most = max(most, abs(element(side, first + dim)));
  }
  largest[tid] = most;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      largest[tid] = max(largest[tid], largest[tid + width]);
    }
    workgroupBarrier();
  }
  let scale = max(largest[0] / 127.0, 1e-8);

  let at = slot_index(u32(position), head) + side;
  let first_word = u32(u.pages_elem_offset) + at * KV_I8_WORDS;
  for (var i = tid; i < KV_I8_WORDS; i += THREADS) {
    let dim = first + 4u * i;
    let x = vec4<f32>(
      element(side, dim),
      element(side, dim + 1u),
      element(side, dim + 2u),
      element(side, dim + 3u),
    );
    let code = clamp(round(x / scale), vec4<f32>(-127.0), vec4<f32>(127.0));
    kv_pages[first_word + i] = pack4xI8(vec4<i32>(code));
  }
  if (tid == 0u) {
    kv_scales[u32(u.scales_elem_offset) + at] = f16(scale);
  }
}

fn element(side: u32, i: u32) -> f32 {
  if (side == 0u) {
    return f32(k[i]);
  }
  return f32(v[i]);
}

// Index of the scale of a position's keys of a head; that of its values is the next.
fn slot_index(position: u32, head: u32) -> u32 {
  let page = u32(page_values[position / PAGE_SIZE]);
  let slot = head * KV_SCALES_HEAD_STRIDE + (position % PAGE_SIZE) * 2u;
  return page * KV_SCALES_PAGE_STRIDE + slot;
}
