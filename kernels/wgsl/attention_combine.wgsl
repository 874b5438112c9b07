// attention_combine: merges the split-K partials of one head.
// partials: (H, parts, HD+2) f32: maximum, denominator, unnormalised output
// out: (Q)
// M = max of the maxima over non-empty parts, D = sum of d e^(m-M),
// out = sum of o e^(m-M) / D. Every invocation forms M and D itself: at most
// 16 parts, and no barrier. Two loops bounded by the uniform, not three: beyond
// that Mesa 22 bakes the uniform into the shader and recompiles it at every dispatch.

@compute @workgroup_size(THREADS)
fn main(
  @builtin(workgroup_id) wg: vec3<u32>,
  @builtin(local_invocation_index) tid: u32,
) {
  let head = wg.y;
  let base = head * u.num_splits * PARTIAL_LEN;
  var largest = EMPTY_MAX;
  for (var part = 0u; part < u.num_splits; part++) {
    if (partials[base + part * PARTIAL_LEN + 1u] > 0.0) {
      largest = max(largest, partials[base + part * PARTIAL_LEN]);
    }
  }
  for (var dim = tid; dim < HEAD_DIM; dim += THREADS) {
    var denominator = 0.0;
    var sum = 0.0;
    for (var part = 0u; part < u.num_splits; part++) {
      let at = base + part * PARTIAL_LEN;
      if (partials[at + 1u] > 0.0) {
        let weight = exp(partials[at] - largest);
        denominator += partials[at + 1u] * weight;
        sum += partials[at + 2u + dim] * weight;
      }
    }
    if (denominator > 0.0) {
      out[head * HEAD_DIM + dim] = Act(sum / denominator);
    }
  }
}
