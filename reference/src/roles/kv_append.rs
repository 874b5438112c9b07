//! `kv_append`: where keys and values lie in the paged cache.
//!
//! Generic over the element: f64 here, f16 or its bits for a GPU buffer.
//! Copies are exact, so a kernel's pages must equal these.

use super::RoleError;
use kernels::kv::{KvLayout, PAGE_SIZE, Side};

/// The page and the slot within it that hold `position`, through `table`
/// (physical page of each logical one).
///
/// # Errors
/// When the table does not list the position's page.
pub fn locate(table: &[u32], position: usize) -> Result<(u32, usize), RoleError> {
    let needed = position / PAGE_SIZE;
    match table.get(needed) {
        Some(&page) => Ok((page, position % PAGE_SIZE)),
        None => Err(RoleError::Position {
            position,
            needed,
            listed: table.len(),
        }),
    }
}

/// [`locate`], and that `pages` (elements) reaches that far.
fn slot<T>(
    pages: &[T],
    layout: KvLayout,
    table: &[u32],
    position: usize,
) -> Result<(usize, usize), RoleError> {
    let (page, slot) = locate(table, position)?;
    let held = pages.len() / layout.page_stride();
    match usize::try_from(page) {
        Ok(page) if page < held => Ok((page, slot)),
        _ => Err(RoleError::Page { page, pages: held }),
    }
}

/// Writes one position's `k` and `v` (`[kv_heads, head_dim]`) to its slot; a
/// negative position (padding) is skipped.
///
/// # Errors
/// When the position has no page in the table or the buffer.
///
/// # Panics
/// When `k` or `v` is not `[kv_heads, head_dim]`.
pub fn compute<T: Copy>(
    pages: &mut [T],
    layout: KvLayout,
    table: &[u32],
    position: i32,
    k: &[T],
    v: &[T],
) -> Result<(), RoleError> {
    let Ok(position) = usize::try_from(position) else {
        return Ok(());
    };
    let (page, slot) = slot(pages, layout, table, position)?;
    for (side, values) in [(Side::K, k), (Side::V, v)] {
        assert_eq!(
            values.len(),
            layout.kv_heads * layout.head_dim,
            "kv_append: [kv_heads, head_dim]"
        );
        for (head, values) in values.chunks_exact(layout.head_dim).enumerate() {
            let start = layout.index(page, side, head, slot);
            pages[start..start + layout.head_dim].copy_from_slice(values);
        }
    }
    Ok(())
}

/// Reads positions `0..len` of one side, in order: `[len, kv_heads, head_dim]`.
///
/// # Errors
/// When a position has no page in the table or the buffer.
pub fn gather<T: Copy>(
    pages: &[T],
    layout: KvLayout,
    table: &[u32],
    side: Side,
    len: usize,
) -> Result<Vec<T>, RoleError> {
    let mut out = Vec::new();
    for position in 0..len {
        let (page, slot) = slot(pages, layout, table, position)?;
        for head in 0..layout.kv_heads {
            let start = layout.index(page, side, head, slot);
            out.extend_from_slice(&pages[start..start + layout.head_dim]);
        }
    }
    Ok(out)
}
