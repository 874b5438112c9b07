// argmax: token = index of the largest logit; the lowest index wins a tie.
// logits: (V)   token: (1) i32
// One workgroup; each invocation scans every THREADS-th logit, then a tree.
// A NaN never compares greater, so all-NaN logits give token 0.

var<workgroup> best_value: array<f32, THREADS>;
var<workgroup> best_index: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) tid: u32) {
  var value = -3.0e38;
  var index = 0u;
  for (var i = tid; i < VOCAB; i += THREADS) {
    let logit = f32(logits[i]);
    if (logit > value) {
      value = logit;
      index = i;
    }
  }
  best_value[tid] = value;
  best_index[tid] = index;
  workgroupBarrier();
  for (var width = THREADS / 2u; width > 0u; width /= 2u) {
    if (tid < width) {
      let other = tid + width;
      let greater = best_value[other] > best_value[tid];
      let tie = best_value[other] == best_value[tid] && best_index[other] < best_index[tid];
      if (greater || tie) {
        best_value[tid] = best_value[other];
        best_index[tid] = best_index[other];
      }
    }
    workgroupBarrier();
  }
  if (tid == 0u) {
    token[0] = i32(best_index[0]);
  }
}
