//! Kernels that use subgroups at each subgroup size that can be had here. The software
//! driver's size follows from a variable that it reads as it loads, so each size is a
//! process of its own.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]

use crate::support;
use std::process::Command;

/// The tests of roles that have such kernels.
const ROLES: [&str; 9] = [
    "cases::int4_matmul",
    "cases::int4_matmul_moe",
    "cases::qkv_fused",
    "cases::qkv_fused_scratch",
    "cases::fused_ffn",
    "cases::fused_ffn_prologue",
    "cases::attention",
    "cases::attention_splitk",
    "cases::argmax",
];

/// Largest subgroup of the software driver; its vectors have 32 bits per lane.
const SOFTWARE_MOST: u32 = 16;

fn every_case_at(size: u32) {
    let test = format!("subgroups::of_{size}");
    let Some(gpu) = support::adapter(&test) else {
        return;
    };
    let own = gpu.features.subgroup_size == Some((size, size));
    let possible = own || (gpu.features.cpu && size <= SOFTWARE_MOST);
    if !possible {
        support::unrun(
            &test,
            "no adapter of this machine has subgroups of this size",
        );
        return;
    }
    let this = std::env::current_exe().expect("the path of this test");
    let mut child = Command::new(this);
    child.arg("--exact").args(ROLES);
    child.env(support::SUBGROUP_SIZE, size.to_string());
    child.env("PROPTEST_CASES", "2");
    child.env_remove("ZEROTVM_TEST_ALL");
    if !own {
        child.env("LP_NATIVE_VECTOR_WIDTH", (32 * size).to_string());
    }
    let output = child.output().expect("this test runs itself");
    let text = String::from_utf8_lossy(&output.stdout);
    let all = format!("{} passed; 0 failed", ROLES.len());
    assert!(output.status.success() && text.contains(&all), "{text}");
}

/// One test for each size.
macro_rules! sizes {
    ($($name:ident: $size:literal,)*) => {
        $(#[test]
        fn $name() {
            every_case_at($size);
        })*

        #[test]
        fn every_size_has_its_test() {
            assert_eq!([$($size),*], kernels::features::SUBGROUP_SIZES, "the sizes");
        }
    };
}

sizes! {
    of_4: 4,
    of_8: 8,
    of_16: 16,
    of_32: 32,
    of_64: 64,
    of_128: 128,
}
