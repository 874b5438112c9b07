//! What an adapter offers, as far as the choice of kernels depends on it.

use serde::{Deserialize, Serialize};

/// The properties of an adapter that flags and variants are resolved against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// The adapter is a CPU (a software driver): it gets the row-per-invocation
    /// forms by default.
    pub cpu: bool,
    /// `shader-f16`: f16 arithmetic and f16 storage arrays.
    pub shader_f16: bool,
    /// Smallest and largest subgroup size in invocations; `None` without subgroups.
    pub subgroup_size: Option<(u32, u32)>,
    /// Largest number of workgroups in one dimension of a dispatch.
    pub max_workgroups_per_dimension: u32,
    /// Largest storage binding in bytes.
    pub max_storage_binding_bytes: u64,
    /// Workgroup memory in bytes.
    pub max_workgroup_storage_bytes: u32,
    /// Storage buffers that one kernel may bind.
    pub max_storage_buffers: u32,
    /// Largest width and height of a 2-D texture in texels.
    pub max_texture_dimension_2d: u32,
}

/// The subgroup sizes that WGSL allows, in invocations.
pub const SUBGROUP_SIZES: [u32; 6] = [4, 8, 16, 32, 64, 128];

impl Features {
    /// The subgroup sizes that kernels which use them cannot be run at here.
    pub fn other_subgroup_sizes(&self) -> Vec<u32> {
        let here = |size: &u32| {
            let range = self.subgroup_size.map(|(least, most)| least..=most);
            range.is_some_and(|range| range.contains(size))
        };
        let mut sizes = SUBGROUP_SIZES.to_vec();
        sizes.retain(|size| !here(size));
        sizes
    }

    /// The published feature set: a GPU with f16 and subgroups of 32, WebGPU's
    /// default dispatch limit. `plan` resolves against it when no adapter is asked.
    pub const PUBLISHED: Self = Self {
        cpu: false,
        shader_f16: true,
        subgroup_size: Some((32, 32)),
        max_workgroups_per_dimension: 65_535,
        max_storage_binding_bytes: i32::MAX as u64,
        max_workgroup_storage_bytes: 32 * 1024,
        max_storage_buffers: 10,
        max_texture_dimension_2d: 8192,
    };
}
