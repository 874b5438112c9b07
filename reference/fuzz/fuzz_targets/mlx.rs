//! The target `mlx` for cargo-fuzz.
#![no_main]
#![allow(dead_code, reason = "each program runs one target")]

#[path = "../targets.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| targets::mlx(bytes));
