//! The runner notices what a wrong kernel does.

use crate::support;
use generators::Shader;
use half::f16;
use harness::kernel::{Case, Operand, Runner};
use kernels::{Role, Variant};

/// An argmax by hand whose `main` has this body.
fn shader(body: &str) -> Shader {
    Shader {
        variant: Variant::base(Role::Argmax),
        wgsl: format!(
            "enable f16;\n\
             @group(0) @binding(0) var<storage, read> logits: array<f16>;\n\
             @group(0) @binding(1) var<storage, read_write> token: array<i32>;\n\
             @compute @workgroup_size(1) fn main() {{ {body} }}\n"
        ),
        sha256: body.into(),
    }
}

#[test]
fn a_write_past_the_end_a_missing_write_and_a_read_past_the_end_are_seen() {
    let Some(gpu) = support::adapter(
        "runner::a_write_past_the_end_a_missing_write_and_a_read_past_the_end_are_seen",
    ) else {
        return;
    };
    let mut runner = Runner::new(&gpu);
    // An odd number of f16 values, so that the last word is half theirs.
    let logits = [f16::ONE; 3];
    let case = Case {
        operands: vec![
            ("logits", Operand::data(&logits)),
            ("token", Operand::output::<i32>(2)),
        ],
        uniform: vec![],
        grid: [1, 1, 1],
    };
    let right = shader("token[0] = i32(logits[2]); token[1] = 5;");
    let found = runner.run_shader(&right, &case).expect("a right kernel");
    assert_eq!(found.i32("token"), [1, 5], "both elements");
    assert_eq!(
        runner.run_shader(&right, &case).expect("compiled already"),
        found,
        "the same again"
    );

    for past in [2, 3, 17] {
        let wrong = shader(&format!("token[0] = i32(logits[0]); token[{past}] = 7;"));
        let Err(error) = runner.run_shader(&wrong, &case) else {
            panic!("the guard is changed at {past}");
        };
        let error = error.to_string();
        assert!(
            error.contains("argmax: token: written past its end"),
            "{error}"
        );
    }
    let lazy = shader("token[0] = i32(logits[0]);");
    let found = runner.run_shader(&lazy, &case).expect("nothing is amiss");
    assert_eq!(found.i32("token"), [1, -1], "the second still holds poison");
    for past in [3, 4, 30] {
        let body = format!(
            "let bits = bitcast<u32>(f32(logits[{past}])) & 0x7fffffffu;
             token[0] = select(0, 1, bits > 0x7f800000u); token[1] = 0;"
        );
        let found = runner.run_shader(&shader(&body), &case).expect("it runs");
        assert_eq!(found.i32("token"), [1, 0], "element {past} is NaN");
    }
}

#[test]
fn a_shader_that_the_device_refuses_is_an_error() {
    let Some(gpu) = support::adapter("runner::a_shader_that_the_device_refuses_is_an_error") else {
        return;
    };
    let mut runner = Runner::new(&gpu);
    let logits = [f16::ONE; 2];
    let case = |grid| Case {
        operands: vec![
            ("logits", Operand::data(&logits)),
            ("token", Operand::output::<i32>(1)),
        ],
        uniform: vec![],
        grid,
    };
    let wrong = shader("token[0] = logits[0];");
    let error = runner.run_shader(&wrong, &case([1, 1, 1])).map(|_| ());
    let error = error.expect_err("f16 is no i32").to_string();
    assert!(error.contains("compiling argmax"), "{error}");
    let right = shader("token[0] = i32(logits[0]);");
    let most = gpu.device.limits().max_compute_workgroups_per_dimension;
    let error = runner
        .run_shader(&right, &case([most + 1, 1, 1]))
        .map(|_| ());
    let error = format!("{:#}", error.expect_err("one workgroup too many"));
    assert!(error.contains("in each dimension"), "{error}");
}
