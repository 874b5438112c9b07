//! Part of the Zero-TVM workbench.
