//! Tint takes every text in the browser's dialect, and refuses what naga lets through.

mod support;

use generators::Dialect;
use harness::{
    dialects::{self, DEFAULT_STORAGE_BUFFERS},
    tint::{Text, Tint},
};
use kernels::{Role, Variant, models, variants::VARIANTS};

#[test]
fn tint_takes_every_text() {
    let Some(tint) = support::tint("browser::tint_takes_every_text") else {
        return;
    };
    let specs = dialects::planned_models().expect("defaults resolve");
    let ids: Vec<&str> = specs.iter().map(|spec| spec.id.as_str()).collect();
    for id in ["smollm2-135m", "phi3-mini", "qwen3-4b"] {
        assert!(ids.contains(&id), "{id} has a plan");
    }
    let refused = dialects::check_browser(&specs, &tint).expect("it runs");
    assert_eq!(refused, [], "refused texts");
    assert_eq!(dialects::check_native(&specs), [], "refused by naga");
}

/// The projection of a layer has a ninth buffer with affine weights, their biases, and one
/// more where it makes its norm, the gammas.
#[test]
fn few_variants_bind_more_than_the_default_number_of_buffers() {
    let above = VARIANTS
        .iter()
        .filter(|v| v.storage_buffers() > DEFAULT_STORAGE_BUFFERS);
    for variant in above {
        let more = |name: &str| variant.storage_bindings().any(|b| b.name == name);
        let more = usize::from(more("biases")) + usize::from(more("gamma"));
        assert!(variant.projects() && more > 0, "{variant}");
        assert_eq!(
            variant.storage_buffers(),
            DEFAULT_STORAGE_BUFFERS + more,
            "{variant}"
        );
    }
}

/// Texts that naga takes, each with the place and the reason of Tint's refusal.
#[test]
fn tint_refuses_what_naga_lets_through() {
    let Some(tint) = support::tint("browser::tint_refuses_what_naga_lets_through") else {
        return;
    };
    let spec = models::find("smollm2-135m").expect("registered");
    let text = |variant: Variant| generators::render(variant, &spec).expect("renders").wgsl;
    let argmax = Variant::base(Role::Argmax);
    let texture: Variant = "int4_matmul_row_texture".parse().expect("in the table");
    let edit = |variant: Variant, find: &str, replace: &str| {
        let edited = text(variant).replacen(find, replace, 1);
        generators::validate(variant, &edited).expect("naga takes it");
        assert_ne!(edited, text(variant), "`{find}` is in the text");
        edited
    };
    let barrier = edit(
        argmax,
        "    workgroupBarrier();\n",
        "    if (tid < width) {\n      workgroupBarrier();\n    }\n",
    );
    let broadcast = edit(
        texture,
        "let a = activations(first_load + i, at);",
        "if (at.tid > i) { continue; }\n    let a = activations(first_load + i, at);",
    );
    let memory = edit(argmax, "array<u32, THREADS>", "array<u32, THREADS * 64>");
    let no_directive = text(texture);
    let directive = Dialect::Browser.of_native(&no_directive);
    let cases = [
        (
            Dialect::Browser.of_native(&barrier),
            "'workgroupBarrier' must only be called from uniform",
        ),
        (
            Dialect::Browser.of_native(&broadcast),
            "'subgroupBroadcast' must only be called from",
        ),
        (Dialect::Browser.of_native(&memory), "workgroup"),
        (no_directive, "subgroups"),
    ];
    let wgsl = cases.iter().map(|(text, _)| text.clone());
    let texts: Vec<Text> = wgsl
        .chain([directive])
        .map(|wgsl| Text {
            wgsl,
            within_limits: true,
        })
        .collect();
    let faults = tint.compile(&texts).expect("it runs");
    for ((text, expected), faults) in cases.iter().zip(&faults) {
        let fault = faults
            .first()
            .unwrap_or_else(|| panic!("taken: {expected}"));
        assert!(fault.message.contains(expected), "{expected}: {fault:?}");
        let line = text.lines().nth(fault.line.saturating_sub(1) as usize);
        let named = expected.split('\'').nth(1).unwrap_or_default();
        assert!(line.is_some_and(|line| line.contains(named)), "{fault:?}");
    }
    assert_eq!(
        faults.last(),
        Some(&vec![]),
        "with its directive it is taken"
    );
    assert_eq!(
        tint.compile(&[]).expect("no text"),
        Vec::<Vec<_>>::new(),
        "none"
    );
}

#[test]
fn without_tint_the_check_says_what_to_do() {
    let empty = tempfile::tempdir().expect("a folder");
    let error = Tint::find(empty.path()).expect_err("nothing is installed");
    assert!(
        error.to_string().contains("webgpu 0.6.2") || error.to_string().contains("Node.js"),
        "{error}"
    );
}
