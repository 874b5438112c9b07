// gdn_conv_commit: the last tokens of a chunk to their slots of the ring.
// qkv_raw: (T, P), of which the first C of each row   ring: (CONV_RING, C)
// position_map: (T)
// One invocation per channel of a slot; a slot whose token is none of the chunk's stays.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= CONV_RING * GDN_CONV_DIM) {
    return;
  }
  // Row 0 is the chunk's last token.
  let last = u32(position_map[0]);
  let back = (last + CONV_RING - i / GDN_CONV_DIM) % CONV_RING;
  if (back >= u.seq_len) {
    return;
  }
  let row = (u.seq_len - back) % u.seq_len;
  ring[i] = qkv_raw[row * GDN_PROJ_DIM + i % GDN_CONV_DIM];
}
