// kv_append: stores rotated keys and values in their pages.
// k, v: (T, KV)   position_map: (T)   kv_pages: (pages, 2, KVH, 16, HD)
// One invocation per element of K and its twin in V. The page is looked up in
// the page table; position -1 is skipped.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u32(u.ntoken) * KV_DIM) {
    return;
  }
  let token = i / KV_DIM;
  let head = (i % KV_DIM) / HEAD_DIM;
  let dim = i % HEAD_DIM;
  let position = position_map[u32(u.position_map_elem_offset) + token];
  if (position < 0) {
    return;
  }
  let at = slot_index(u32(position), head) + u32(u.pages_elem_offset) + dim;
  kv_pages[at] = k[i];
  kv_pages[at + V_PAGE_OFFSET] = v[i];
}

fn slot_index(position: u32, head: u32) -> u32 {
  let page = u32(page_values[position / PAGE_SIZE]);
  return page * KV_PAGE_STRIDE + head * HEAD_PAGE_STRIDE + (position % PAGE_SIZE) * HEAD_DIM;
}
