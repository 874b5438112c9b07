// sample_select: draws a token with the probability of its weight w = e^((l - M) / temperature).
// logits: (V)   partials: (SAMPLE_PARTS, 2) f32 of sample_reduce   token: (1) i32
// Kept are the tokens whose w is at least min_p, at least the top_k-th greatest, and at
// least the greatest w whose own and greater ones have top_p of the sum of all. The last
// two are found by bisection on the bits of w, which are in the order of positive floats.
// The random number follows from seed and position alone, and tokens are added in the
// order of their index, so that a reference draws the same.
// One workgroup: every step of a bisection is a pass over all logits.

var<workgroup> shared_sum: array<f32, THREADS>;

fn weight(i: u32, largest: f32) -> f32 {
  return exp((f32(logits[i]) - largest) / u.temperature);
}

// lowbias32.
fn hash(seed: u32) -> u32 {
  var x = seed;
  x ^= x >> 16u;
  x *= 0x7feb352du;
  x ^= x >> 15u;
  x *= 0x846ca68bu;
  return x ^ (x >> 16u);
}

// The weights from `threshold` on, added or counted, for every invocation.
fn kept(tid: u32, largest: f32, threshold: f32, counted: bool) -> f32 {
  var sum = 0.0;
  for (var i = tid; i < VOCAB; i += THREADS) {
    let w = weight(i, largest);
    if (w >= threshold) {
      sum += select(w, 1.0, counted);
    }
  }
  shared_sum[tid] = sum;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      shared_sum[tid] += shared_sum[tid + width];
    }
    workgroupBarrier();
  }
  let all = shared_sum[0];
  workgroupBarrier();
  return all;
}

// The greatest threshold whose weights have `needed`; 0 where none has. Weights are
// below 2, whose bits are 2^30.
fn bisect(tid: u32, largest: f32, needed: f32, counted: bool) -> f32 {
  var low = 0u;
  var high = 0x40000000u;
  for (var step = 0u; step < 30u; step++) {
    let middle = low + (high - low) / 2u;
    if (kept(tid, largest, bitcast<f32>(middle), counted) >= needed) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return bitcast<f32>(low);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) tid: u32) {
  var largest = -3.0e38;
  for (var part = 0u; part < SAMPLE_PARTS; part++) {
    largest = max(largest, partials[2u * part]);
  }
  var threshold = u.min_p;
  if (u.top_k > 0u) {
    threshold = max(threshold, bisect(tid, largest, f32(u.top_k), true));
  }
  if (u.top_p < 1.0) {
    var all = 0.0;
    for (var part = 0u; part < SAMPLE_PARTS; part++) {
      let sum = partials[2u * part + 1u];
      if (sum > 0.0) {
        all += sum * exp((partials[2u * part] - largest) / u.temperature);
      }
    }
    threshold = max(threshold, bisect(tid, largest, u.top_p * all, false));
  }

  // Each invocation adds the kept weights of tokens that follow each other.
  const RUN = (VOCAB + THREADS - 1u) / THREADS;
  var sum = 0.0;
  for (var i = tid * RUN; i < min((tid + 1u) * RUN, VOCAB); i++) {
    let w = weight(i, largest);
    if (w >= threshold) {
      sum += w;
    }
  }
  shared_sum[tid] = sum;
  workgroupBarrier();
  if (tid == 0u) {
    var total = 0.0;
    for (var run = 0u; run < THREADS; run++) {
      total += shared_sum[run];
    }
    let share = f32(hash(u.seed ^ hash(u32(position_map[0]))) >> 8u) / 16777216.0;
    let drawn = share * total;
    // The last run, and then the last token, before which the sum is not beyond what
    // was drawn: rounding never leads past the last one.
    var chosen_run = 0u;
    var before_run = 0.0;
    var before = 0.0;
    for (var run = 0u; run < THREADS; run++) {
      if (shared_sum[run] > 0.0 && before <= drawn) {
        chosen_run = run;
        before_run = before;
      }
      before += shared_sum[run];
    }
    var chosen = 0u;
    before = before_run;
    for (var i = chosen_run * RUN; i < min((chosen_run + 1u) * RUN, VOCAB); i++) {
      let w = weight(i, largest);
      if (w > 0.0 && w >= threshold) {
        if (before <= drawn) {
          chosen = i;
        }
        before += w;
      }
    }
    token[0] = i32(chosen);
  }
}
