//! Every variant under every model: rendered, valid, and as the table says.

use generators::Dialect;
use kernels::{Features, Variant, models, variants::VARIANTS};

#[test]
fn every_variant_renders_under_every_model() {
    for spec in models::registry() {
        for &variant in VARIANTS.iter() {
            let shader = generators::render(variant, &spec)
                .unwrap_or_else(|error| panic!("{} for {}: {error}", variant, spec.id));
            let again = generators::render(variant, &spec).expect("renders again");
            assert_eq!(shader, again, "{variant}: the same text every time");
        }
    }
}

#[test]
fn a_swapped_binding_and_a_swapped_uniform_field_are_refused() {
    let spec = models::find("smollm2-135m").expect("registered");
    let rope: Variant = "rope".parse().expect("in the table");
    let text = generators::render(rope, &spec).expect("renders").wgsl;
    let swapped = text
        .replace("@binding(0)", "@binding(99)")
        .replace("@binding(1)", "@binding(0)")
        .replace("@binding(99)", "@binding(1)");
    let error = generators::validate(rope, &swapped).expect_err("q_out and k_out are swapped");
    assert!(
        error.to_string().contains("the table has q_out at @0"),
        "{error}"
    );
    let swapped = text.replace(
        "  apply_rope: i32,\n  position_map_elem_offset: i32,",
        "  position_map_elem_offset: i32,\n  apply_rope: i32,",
    );
    assert_ne!(swapped, text, "the anchor is in the text");
    let error = generators::validate(rope, &swapped).expect_err("fields are swapped");
    assert!(error.to_string().contains("uniform field 0"), "{error}");
}

/// A browser's text differs by its directive alone, and has it exactly where the
/// table says that the variant needs subgroups.
#[test]
fn the_browser_dialect_enables_subgroups_where_the_table_needs_them() {
    let spec = models::find("phi3-mini").expect("registered");
    let without = Features {
        subgroup_size: None,
        ..Features::PUBLISHED
    };
    let mut enabled = 0;
    for &variant in VARIANTS.iter() {
        let native = generators::render(variant, &spec).expect("renders").wgsl;
        let browser = Dialect::Browser.of_native(&native);
        let directive = "enable subgroups;\n";
        let needs = variant.check(&without, variant.k_step()).is_err();
        assert_eq!(browser.contains(directive), needs, "{variant}");
        assert_eq!(browser.replacen(directive, "", 1), native, "{variant}");
        enabled += usize::from(needs);
    }
    assert!(enabled > 0, "a variant uses subgroups");
}
