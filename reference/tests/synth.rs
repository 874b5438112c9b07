//! Synthetic weights: the same on every machine, and of the right size.

mod common;

use common::tiny_llama;
use kernels::models::{self, Tensor};
use reference::{quantise, synth};

#[test]
fn seed_decides_every_byte() {
    let sum = |seed| {
        let checkpoint = synth::checkpoint(&tiny_llama(), seed).expect("synthetic");
        checkpoint.provenance().sha256.clone()
    };
    assert_eq!(sum(5), sum(5), "same seed");
    assert_ne!(sum(5), sum(6), "other seed");
    // Pinned: it must not differ between machines or versions, or old records
    // can no longer be made again.
    assert_eq!(sum(42), PINNED, "the generator changed");
}

const PINNED: &str = "d46b71a565b78021322beaa84592e658dc1d6bf766796e5ebdf1209dcc24f732";

#[test]
fn projections_have_unit_gain() {
    let spec = models::find("smollm2-135m").expect("registered");
    let checkpoint = synth::checkpoint(&spec, 1).expect("synthetic");
    let qkv = checkpoint.matrix(Some(3), Tensor::Qkv);
    let weights = quantise::dequantise(qkv.words, qkv.scales, qkv.k);
    let count = weights.len() as f64;
    let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / count;
    let square = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / count;
    let gain = (square * qkv.k as f64).sqrt();
    assert!((0.95..1.15).contains(&gain), "gain {gain}");
    assert!(mean.abs() < 1e-3, "mean {mean}");
    assert!(
        qkv.words
            .iter()
            .all(|w| (0..8).all(|i| w >> (4 * i) & 15 != 15)),
        "codes as a quantiser makes them"
    );
}

#[test]
fn unsupported_families_are_refused() {
    let spec = models::find("qwen35-4b").expect("registered");
    let error = synth::checkpoint(&spec, 1).expect_err("hybrid").to_string();
    assert!(
        error.contains("Qwen35") && error.contains("supported: Llama"),
        "{error}"
    );
}
