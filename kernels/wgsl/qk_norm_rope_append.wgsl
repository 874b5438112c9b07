// qk_norm_rope_append: RMSNorm of each query and key head, RoPE and KV append in one dispatch.
// qkv: (T, Q+2KV)   q_gamma, k_gamma: (HD)   position_map: (T)   inv_freq: (HALF_ROTARY) f32
// q_out: (T, Q)   kv_pages: (pages, 2, KVH, 16, HD)
// One workgroup per head of a token, in the order Q, K, V; a tree over its
// invocations. A normalised value stays in f32 until it is rotated, so the
// result is not that of qk_norm and rope to the bit. V is copied. The page is
// looked up in the page table; a token at position -1 is skipped.

const QKV_HEADS = HEADS + 2 * KV_HEADS;
const PAIRS = (HALF_HEAD_DIM + THREADS - 1) / THREADS;

var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(num_workgroups) num_wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let group = wg.z * num_wg.x + wg.x;
  if (group >= u.packGridDimX || group >= u.seq_len * QKV_HEADS) {
    return;
  }
  let token = group / QKV_HEADS;
  let head = group % QKV_HEADS;
  let position = position_map[token];
  if (position < 0) {
    return;
  }
  let base = token * QKV_DIM + head * HEAD_DIM;
  if (head >= HEADS + KV_HEADS) {
    let at = slot_index(u32(position), head - HEADS - KV_HEADS) + V_PAGE_OFFSET;
    for (var dim = tid; dim < HEAD_DIM; dim += THREADS) {
      kv_pages[at + dim] = qkv[base + dim];
    }
    return;
  }

  var values: array<vec2<f32>, PAIRS>;
  var sum = 0.0;
  for (var n = 0u; n < PAIRS; n++) {
    let pair = n * THREADS + tid;
    if (pair < HALF_HEAD_DIM) {
      let dims = base + pair_dims(pair);
      values[n] = vec2<f32>(f32(qkv[dims.x]), f32(qkv[dims.y]));
      sum += dot(values[n], values[n]);
    }
  }
  sums[tid] = sum;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      sums[tid] += sums[tid + width];
    }
    workgroupBarrier();
  }
  let scale = inverseSqrt(sums[0] / f32(HEAD_DIM) + RMS_EPS);

  for (var n = 0u; n < PAIRS; n++) {
    let pair = n * THREADS + tid;
    if (pair < HALF_HEAD_DIM) {
      let dims = pair_dims(pair);
      var normed = values[n] * scale * gammas(head, dims);
      if (pair < HALF_ROTARY) {
        let turn = cos_sin(f32(position) * inv_freq[pair]);
        normed = vec2<f32>(
          normed.x * turn.x - normed.y * turn.y,
          normed.y * turn.x + normed.x * turn.y,
        );
      }
      store(token, head, u32(position), dims, normed);
    }
  }
}

// The two dimensions of a pair: RoPE partners first, then neighbours in the part
// of the head that is not rotated.
fn pair_dims(pair: u32) -> vec2<u32> {
  if (pair < HALF_ROTARY) {
    return vec2<u32>(pair, pair + HALF_ROTARY);
  }
  let dim = ROTARY_DIM + 2u * (pair - HALF_ROTARY);
  return vec2<u32>(dim, dim + 1u);
}

fn gammas(head: u32, dims: vec2<u32>) -> vec2<f32> {
  if (head < HEADS) {
    return vec2<f32>(f32(q_gamma[dims.x]), f32(q_gamma[dims.y]));
  }
  return vec2<f32>(f32(k_gamma[dims.x]), f32(k_gamma[dims.y]));
}

fn store(token: u32, head: u32, position: u32, dims: vec2<u32>, values: vec2<f32>) {
  if (head < HEADS) {
    let at = token * Q_DIM + head * HEAD_DIM + dims;
    q_out[at.x] = Act(values.x);
    q_out[at.y] = Act(values.y);
  } else {
    let at = slot_index(position, head - HEADS) + dims;
    kv_pages[at.x] = Act(values.x);
    kv_pages[at.y] = Act(values.y);
  }
}

fn slot_index(position: u32, head: u32) -> u32 {
  let page = u32(page_values[position / PAGE_SIZE]);
  return page * KV_PAGE_STRIDE + head * HEAD_PAGE_STRIDE + (position % PAGE_SIZE) * HEAD_DIM;
}
