// gdn_conv_seq: gdn_conv of every token of a chunk; the ring is that before it.
// qkv_raw: (T, P), of which the first C of each row   w: (C, CONV_TAPS)
// ring: (CONV_RING, C)   position_map: (T)   out: (T, C)
// The chunk's last token has row 0, the others follow in order. One invocation per
// channel of a token; gdn_conv_commit stores the tokens, since others read the ring.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u.seq_len * GDN_CONV_DIM) {
    return;
  }
  let row = i / GDN_CONV_DIM;
  let channel = i % GDN_CONV_DIM;
  let position = u32(position_map[row]);
  let step = (row + u.seq_len - 1u) % u.seq_len;
  let current = channel * CONV_TAPS + CONV_RING;
  var sum = f32(w[current]) * f32(qkv_raw[row * GDN_PROJ_DIM + channel]);
  for (var back = 1u; back <= min(position, CONV_RING); back++) {
    var token = 0.0;
    if (back <= step) {
      token = f32(qkv_raw[(step - back + 1u) * GDN_PROJ_DIM + channel]);
    } else {
      token = f32(ring[(position - back) % CONV_RING * GDN_CONV_DIM + channel]);
    }
    sum += f32(w[current - back]) * token;
  }
  out[i] = Act(sum / (1.0 + exp(-sum)));
}
