//! The kernels on a device with the least that WebGPU promises: 65,535 workgroups per
//! dimension, 128 MiB in a binding, eight storage buffers, 16 KiB of workgroup memory.
//! Uniforms are uniform buffers in any case; no kernel uses immediates.

use crate::support;
use harness::{
    cases::{self, Bench, SEED},
    device::Gpu,
};
use std::collections::BTreeSet;

#[test]
fn every_variant_runs_on_a_device_of_default_limits() {
    let test = "limits::every_variant_runs_on_a_device_of_default_limits";
    if support::adapter(test).is_none() {
        return;
    }
    let gpu = match Gpu::with_default_limits(None) {
        Ok(gpu) => gpu,
        Err(error) => panic!("an adapter that WebGPU accepts has its limits: {error:#}"),
    };
    assert_eq!(
        gpu.device.limits().max_compute_workgroup_storage_size,
        16_384
    );
    let mut ran = BTreeSet::new();
    let mut skipped = BTreeSet::new();
    let drawn = cases::all().filter(|case| case.id().ends_with("/drawn"));
    for case in drawn {
        if let Err(why) = case.variant().check(&gpu.features, 0) {
            let buffers = case.variant().storage_buffers();
            assert!(buffers > 8, "{why}");
            assert_eq!(
                why,
                format!("binds {buffers} storage buffers, this adapter allows 8")
            );
            skipped.insert(case.variant());
            continue;
        }
        let mut bench = Bench::new(&gpu, None);
        for seed in case.seeds(SEED, 1) {
            if let Err(error) = case.run(&mut bench, seed) {
                panic!("{error:#}");
            }
        }
        ran.insert(case.variant());
    }
    assert_eq!(
        ran.len() + skipped.len(),
        kernels::variants::VARIANTS.len(),
        "every variant ran, or binds more than eight storage buffers"
    );
    assert!(
        skipped.iter().all(|v| v.id().starts_with("qkv_fused")),
        "{skipped:?}"
    );
}
