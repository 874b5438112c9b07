//! The part of a kernel's text that the tables determine: header, constants,
//! uniform struct, bindings.

use crate::consts;
use kernels::{
    Elem, ModelSpec, Variant,
    role::{Access, Binding, Element, Scalar},
    variants::Load,
};
use std::fmt::Write as _;

/// Everything that stands before the body.
pub(crate) fn render(variant: Variant, spec: &ModelSpec) -> String {
    let mut text = format!(
        "// {} for {}, generated from the tables: edit the template or the table, not this text.\n\
         {}alias Act = {};\n\
         const THREADS = {}u;\n{}\n",
        variant.id(),
        spec.id,
        if variant.uses_f16() {
            "enable f16;\n\n"
        } else {
            ""
        },
        variant.elem.name(),
        variant.threads(),
        consts::render(variant, spec)
    );
    if variant
        .bindings()
        .any(|b| b.element == Some(Element::Output))
    {
        let out = variant.elem.max(variant.out);
        let _ = writeln!(text, "alias Out = {};", out.name());
    }
    uniform(variant, &mut text);
    for (number, binding) in variant.bindings().enumerate() {
        if variant.in_texture(binding) {
            let _ = writeln!(
                text,
                "@group(0) @binding({number}) var {}: texture_2d<u32>;",
                binding.name
            );
            continue;
        }
        let (space, ty) = match (binding.access, binding.element) {
            (Access::Uniform, _) | (_, None) => ("uniform".to_owned(), "Uniform".to_owned()),
            (Access::Read, Some(element)) => {
                ("storage, read".to_owned(), array(variant, binding, element))
            }
            (Access::ReadWrite, Some(element)) => (
                "storage, read_write".to_owned(),
                array(variant, binding, element),
            ),
        };
        let _ = writeln!(
            text,
            "@group(0) @binding({number}) var<{space}> {}: {ty};",
            binding.name
        );
    }
    text.push('\n');
    text
}

fn uniform(variant: Variant, text: &mut String) {
    let fields = variant.uniform();
    if fields.is_empty() {
        return;
    }
    text.push_str("struct Uniform {\n");
    for field in fields {
        let ty = match field.scalar {
            Scalar::U32 => "u32",
            Scalar::I32 => "i32",
            Scalar::F32 => "f32",
        };
        let _ = writeln!(text, "  {}: {ty},", field.name);
    }
    text.push_str("}\n");
}

/// WGSL type of a storage binding.
fn array(variant: Variant, binding: &Binding, element: Element) -> String {
    let wide = |ty: &str, width: usize| match width {
        1 => format!("array<{ty}>"),
        _ => format!("array<vec{width}<{ty}>>"),
    };
    let float = variant.float_type(binding).map_or("", Elem::name);
    match element {
        Element::Output if variant.load == Load::Vec4 && binding.access == Access::Read => {
            wide(float, 4)
        }
        Element::Activation
        | Element::Output
        | Element::Scale
        | Element::Bias
        | Element::KvScale
        | Element::F32 => wide(float, 1),
        // Wide loads take activations four at a time, whatever the words per load;
        // the row form eight, as pairs in words: half the loads; the
        // texture form one pair, which the subgroup shares.
        Element::WideActivation => match (variant.reduce, variant.load) {
            (_, Load::Texture) => wide("u32", 1),
            _ if variant.loads_eights() && variant.elem == Elem::F16 => wide("u32", 4),
            (_, Load::Word) => wide(float, 1),
            (_, Load::Vec2 | Load::Vec4 | Load::Dp4a) => wide(float, 4),
        },
        Element::WideF32 => wide(float, if variant.load == Load::Vec4 { 4 } else { 1 }),
        Element::Packed | Element::KvCodes => wide("u32", variant.packed_words()),
        Element::I32 => wide("i32", 1),
    }
}
