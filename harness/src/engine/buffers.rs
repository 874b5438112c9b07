//! Buffers and textures by themselves: bytes in, bytes out.

use crate::device::Gpu;
use anyhow::{Result, bail};
use half::f16;
use kernels::{Elem, plan::Rows, variants::TEXTURE_WIDTH};
use reference::Matrix;

/// Bytes behind every activation that no kernel may touch.
pub const GUARD_BYTES: u64 = 64;
/// What the guard holds, and what outputs hold before a checked dispatch: NaN in
/// f16 and in f32.
pub(crate) const POISON: u8 = 0xFF;
/// Bytes of a buffer or a copy that holds `bytes`: WebGPU counts in words.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(4)
}

/// The rows of a matrix that a dispatch takes.
pub(crate) fn part_of(matrix: Matrix<'_>, rows: Option<Rows>) -> Matrix<'_> {
    rows.map_or(matrix, |rows| matrix.part(rows.first, rows.count))
}

/// Values of a type in a buffer.
pub(crate) fn floats(bytes: &[u8], elem: Elem) -> Vec<f32> {
    match elem {
        Elem::F16 => {
            let halves: Vec<f16> = bytemuck::pod_collect_to_vec(bytes);
            halves.into_iter().map(f16::to_f32).collect()
        }
        Elem::F32 => bytemuck::pod_collect_to_vec(bytes),
    }
}

/// Values as a buffer of a type holds them.
pub(crate) fn bytes_of(values: &[f32], elem: Elem) -> Vec<u8> {
    match elem {
        Elem::F16 => {
            let halves: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
            bytemuck::cast_slice(&halves).to_vec()
        }
        Elem::F32 => bytemuck::cast_slice(values).to_vec(),
    }
}

/// A matrix in a texture of [`TEXTURE_WIDTH`] texels of four words.
pub(crate) fn texture(gpu: &Gpu, words: &[u32]) -> Result<wgpu::TextureView> {
    let row_words = TEXTURE_WIDTH * 4;
    let height = words.len().div_ceil(row_words);
    let limit = gpu.features.max_texture_dimension_2d as usize;
    if height > limit {
        bail!(
            "a matrix of {} bytes needs a texture of {height} rows, this adapter allows {limit}; \
             choose texture=0",
            words.len() * 4
        );
    }
    let size = |rows: usize, width: usize| wgpu::Extent3d {
        width: width as u32,
        height: rows as u32,
        depth_or_array_layers: 1,
    };
    let texture = gpu.device.create_texture(&wgpu::TextureDescriptor {
        label: Some("weights"),
        size: size(height, TEXTURE_WIDTH),
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: wgpu::TextureFormat::Rgba32Uint,
        usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    });
    // Whole rows, then what is left in the last.
    let rows = words.len() / row_words;
    let (whole, rest) = words.split_at(rows * row_words);
    for (first, rows, words) in [(0, rows, whole), (rows, 1, rest)] {
        if words.is_empty() {
            continue;
        }
        gpu.queue.write_texture(
            wgpu::TexelCopyTextureInfo {
                origin: wgpu::Origin3d {
                    y: first as u32,
                    ..wgpu::Origin3d::ZERO
                },
                ..texture.as_image_copy()
            },
            bytemuck::cast_slice(words),
            wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(4 * row_words as u32),
                rows_per_image: None,
            },
            size(rows, words.len() / rows / 4),
        );
    }
    Ok(texture.create_view(&wgpu::TextureViewDescriptor::default()))
}

/// A buffer of `bytes` with the guard words behind them.
pub(crate) fn with_guard(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    let buffer = empty(gpu, label, padded(bytes) + GUARD_BYTES);
    let guard = [POISON; GUARD_BYTES as usize];
    gpu.queue.write_buffer(&buffer, padded(bytes), &guard);
    buffer
}

/// Reads `bytes` of a buffer made [`with_guard`]; what lies behind them must
/// still be poison.
pub(crate) fn read_guarded(
    gpu: &Gpu,
    what: &str,
    buffer: &wgpu::Buffer,
    bytes: u64,
) -> Result<Vec<u8>> {
    let mut data = gpu.read(buffer, 0, padded(bytes) + GUARD_BYTES)?;
    let guard = data.split_off(bytes as usize);
    if guard.iter().any(|&byte| byte != POISON) {
        bail!("{what}: written past its end: the guard words are changed");
    }
    Ok(data)
}

pub(super) fn empty(gpu: &Gpu, label: &str, bytes: u64) -> wgpu::Buffer {
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: padded(bytes.max(4)),
        usage: wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

pub(super) fn upload(gpu: &Gpu, label: &str, bytes: &[u8]) -> wgpu::Buffer {
    let buffer = empty(gpu, label, bytes.len() as u64);
    let whole = bytes.len() / 4 * 4;
    gpu.queue.write_buffer(&buffer, 0, &bytes[..whole]);
    if whole < bytes.len() {
        let mut last = [0; 4];
        last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
        gpu.queue.write_buffer(&buffer, whole as u64, &last);
    }
    buffer
}
