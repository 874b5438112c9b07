// One step of a chain of dispatches, each of which needs the one before.

@group(0) @binding(0) var<storage, read_write> total: u32;

@compute @workgroup_size(1)
fn main() {
  total += 1u;
}
