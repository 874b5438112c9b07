//! Reflection: the text's interface, as naga sees it, against the binding table.

use kernels::{
    Variant,
    role::{Access, Binding, Scalar},
};
use naga::{
    AddressSpace, ImageClass, ImageDimension, Module, ScalarKind, StorageAccess, TypeInner,
};

/// Compares entry point, bindings, access and uniform layout with the table.
pub(crate) fn interface(variant: Variant, module: &Module) -> Result<(), String> {
    entry_point(variant, module)?;
    let mut found: Vec<(u32, &naga::GlobalVariable)> = module
        .global_variables
        .iter()
        .filter_map(|(_, var)| var.binding.map(|b| (b.binding, var)))
        .collect();
    found.sort_by_key(|&(number, _)| number);
    let table: Vec<&Binding> = variant.bindings().collect();
    if found.len() != table.len() {
        return Err(format!(
            "the table has {} bindings, the text {}",
            table.len(),
            found.len()
        ));
    }
    for (number, (binding, (found_number, var))) in table.iter().zip(&found).enumerate() {
        let name = var.name.as_deref().unwrap_or("");
        if *found_number as usize != number || name != binding.name {
            return Err(format!(
                "the table has {} at @{number}, the text {name} at @{found_number}",
                binding.name
            ));
        }
        let texture = matches!(
            module.types[var.ty].inner,
            TypeInner::Image {
                dim: ImageDimension::D2,
                arrayed: false,
                class: ImageClass::Sampled {
                    kind: ScalarKind::Uint,
                    multi: false
                }
            }
        );
        if texture != variant.in_texture(binding) {
            return Err(format!(
                "{name} is {} texture_2d<u32>, the variant takes it as {}",
                if texture { "a" } else { "no" },
                if texture { "a buffer" } else { "one" }
            ));
        }
        if texture {
            continue;
        }
        let access = access(var.space)
            .ok_or_else(|| format!("{name} is in {:?}, expected a buffer", var.space))?;
        if access != binding.access {
            return Err(format!(
                "the table has {name} as {:?}, the text as {access:?}",
                binding.access
            ));
        }
        if access == Access::Uniform {
            uniform(variant, module, var)?;
        }
    }
    Ok(())
}

fn entry_point(variant: Variant, module: &Module) -> Result<(), String> {
    let [entry] = module.entry_points.as_slice() else {
        return Err(format!(
            "expected one entry point, found {}",
            module.entry_points.len()
        ));
    };
    let threads = variant.threads() as u32;
    if entry.name != "main" || entry.workgroup_size != [threads, 1, 1] {
        return Err(format!(
            "expected `main` of {threads} invocations, found `{}` of {:?}",
            entry.name, entry.workgroup_size
        ));
    }
    Ok(())
}

fn access(space: AddressSpace) -> Option<Access> {
    match space {
        AddressSpace::Uniform => Some(Access::Uniform),
        AddressSpace::Storage { access } if access.contains(StorageAccess::STORE) => {
            Some(Access::ReadWrite)
        }
        AddressSpace::Storage { .. } => Some(Access::Read),
        AddressSpace::Function
        | AddressSpace::Private
        | AddressSpace::WorkGroup
        | AddressSpace::Handle
        | AddressSpace::Immediate
        | AddressSpace::TaskPayload
        | AddressSpace::RayPayload
        | AddressSpace::IncomingRayPayload => None,
    }
}

fn uniform(variant: Variant, module: &Module, var: &naga::GlobalVariable) -> Result<(), String> {
    let fields = variant.uniform();
    let TypeInner::Struct { members, span } = &module.types[var.ty].inner else {
        return Err("the uniform is not a struct".into());
    };
    if *span as usize != fields.len() * 4 || members.len() != fields.len() {
        return Err(format!(
            "the uniform has {} fields in {span} bytes, the table {} fields of 4 bytes",
            members.len(),
            fields.len()
        ));
    }
    for (i, (field, member)) in fields.iter().zip(members).enumerate() {
        let kind = match field.scalar {
            Scalar::U32 => ScalarKind::Uint,
            Scalar::I32 => ScalarKind::Sint,
            Scalar::F32 => ScalarKind::Float,
        };
        let matches = member.name.as_deref() == Some(field.name)
            && member.offset as usize == i * 4
            && matches!(module.types[member.ty].inner, TypeInner::Scalar(s) if s.kind == kind && s.width == 4);
        if !matches {
            return Err(format!(
                "uniform field {i}: the table has {} ({:?}) at {}, the text {:?} at {}",
                field.name,
                field.scalar,
                i * 4,
                member.name,
                member.offset
            ));
        }
    }
    Ok(())
}
