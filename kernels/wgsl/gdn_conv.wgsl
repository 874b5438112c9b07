// gdn_conv: out = silu(sum of w x), a causal convolution of each channel over the last
// CONV_TAPS tokens.
// qkv_raw: (P), of which the first C   w: (C, CONV_TAPS), the current token's last
// ring: (CONV_RING, C), the token at position p in slot p % CONV_RING   out: (C)
// One invocation per channel: no other reads or writes the channel's ring. No token
// stands before position 0, so a sequence begins on whatever the ring holds.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let channel = group * THREADS + tid;
  if (group >= u.packGridDimX || channel >= u.seq_len * GDN_CONV_DIM) {
    return;
  }
  let position = u32(position_map[0]);
  let current = channel * CONV_TAPS + CONV_RING;
  var sum = f32(w[current]) * f32(qkv_raw[channel]);
  for (var back = 1u; back <= min(position, CONV_RING); back++) {
    let slot = (position - back) % CONV_RING;
    sum += f32(w[current - back]) * f32(ring[slot * GDN_CONV_DIM + channel]);
  }
  ring[position % CONV_RING * GDN_CONV_DIM + channel] = qkv_raw[channel];
  out[channel] = Act(sum / (1.0 + exp(-sum)));
}
