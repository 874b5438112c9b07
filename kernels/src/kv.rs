//! Layout of the paged KV cache and of split-K partials.
//!
//! One buffer per attention layer holds pages of [`PAGE_SIZE`] slots:
//! `page * 2*KVH*16*HD + side * KVH*16*HD + head * 16*HD + slot * HD + dim`,
//! side 0 being K (stored rotated) and side 1 V. A page is found through the
//! page table by readers and by writers alike.

/// Positions in one page.
pub const PAGE_SIZE: usize = 16;

/// Which half of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Keys, rotated.
    K,
    /// Values.
    V,
}

/// Strides of one layer's pages, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

impl KvLayout {
    /// Elements of one head's slots in a page.
    pub const fn head_page_stride(self) -> usize {
        PAGE_SIZE * self.head_dim
    }

    /// Elements from a page's K half to its V half.
    pub const fn v_page_offset(self) -> usize {
        self.kv_heads * self.head_page_stride()
    }

    /// Elements of one page.
    pub const fn page_stride(self) -> usize {
        2 * self.v_page_offset()
    }

    /// Element index of `(page, side, head, slot, 0)`.
    pub const fn index(self, page: usize, side: Side, head: usize, slot: usize) -> usize {
        let side = match side {
            Side::K => 0,
            Side::V => self.v_page_offset(),
        };
        page * self.page_stride() + side + head * self.head_page_stride() + slot * self.head_dim
    }
}

/// f32 elements of one split-K partial: maximum, denominator, unnormalised output.
pub const fn partial_len(head_dim: usize) -> usize {
    head_dim + 2
}

/// Pages that hold `positions` positions.
pub const fn pages_for(positions: usize) -> usize {
    positions.div_ceil(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phi3_page_is_196_608_bytes() {
        let kv = KvLayout {
            kv_heads: 32,
            head_dim: 96,
        };
        assert_eq!(kv.page_stride() * 2, 196_608, "spec.md, KV pages");
        assert_eq!(
            kv.index(1, Side::V, 2, 3),
            98_304 + 49_152 + 2 * 1536 + 3 * 96,
            "page, side, head, slot"
        );
    }
}
