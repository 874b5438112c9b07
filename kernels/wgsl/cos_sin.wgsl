
// Cosine and sine of an angle in radians, times what the model scales rotated values
// by. WGSL bounds their error only within
// [-pi, pi], so the angle is reduced first; 2 pi in two parts keeps the
// reduction exact to f32 for the angles of any context length.
fn cos_sin(angle: f32) -> vec2<f32> {
  let turns = round(angle * 0.15915494);
  let reduced = (angle - turns * 6.28125) - turns * 0.0019353072;
  return ROPE_ATTENTION_FACTOR * vec2<f32>(cos(reduced), sin(reduced));
}
