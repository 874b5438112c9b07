//! Part of the Zero-TVM workbench.
fn main() {}
