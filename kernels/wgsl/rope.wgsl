// rope: splits QKV, rotates Q and K by half-split RoPE, copies V.
// qkv: (T, Q+2KV)   q_out: (T, Q)   k_out, v_out: (T, KV)   inv_freq: (HALF_ROTARY) f32
// One invocation per element; it reads its partner in the pair.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  let i = group * THREADS + tid;
  if (group >= u.packGridDimX || i >= u32(u.seq_len) * QKV_DIM) {
    return;
  }
  let token = i / QKV_DIM;
  let row = i % QKV_DIM;
  if (row >= Q_DIM + KV_DIM) {
    v_out[token * KV_DIM + row - Q_DIM - KV_DIM] = qkv[i];
    return;
  }
  let dim = row % HEAD_DIM;
  var value = f32(qkv[i]);
  if (u.apply_rope != 0 && dim < ROTARY_DIM) {
    let position = position_map[u32(u.position_map_elem_offset) + token];
    let turn = cos_sin(f32(position) * inv_freq[dim % HALF_ROTARY]);
    if (dim < HALF_ROTARY) {
      value = value * turn.x - f32(qkv[i + HALF_ROTARY]) * turn.y;
    } else {
      value = value * turn.x + f32(qkv[i - HALF_ROTARY]) * turn.y;
    }
  }
  if (row < Q_DIM) {
    q_out[token * Q_DIM + row] = Act(value);
  } else {
    k_out[token * KV_DIM + row - Q_DIM] = Act(value);
  }
}
