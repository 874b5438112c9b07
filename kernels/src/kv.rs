//! Layout of the paged KV cache and of split-K partials.
//!
//! One buffer per attention layer holds pages of [`PAGE_SIZE`] slots:
//! `page * 2*KVH*16*HD + side * KVH*16*HD + head * 16*HD + slot * HD + dim`,
//! side 0 being K (stored rotated) and side 1 V. A page is found through the
//! page table by readers and by writers alike.
//!
//! An int8 cache has codes, four to a word, and one f16 scale for each head of a
//! position's keys or values, in two buffers and in another order
//! ([`Int8Layout`]).

use crate::quant::Elem;

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
    /// The same heads in int8.
    pub const fn int8(self) -> Int8Layout {
        Int8Layout {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
        }
    }

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

/// How keys and values are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// As activations.
    Plain,
    /// As int8 codes with an f16 scale per head, position and side.
    Int8,
}

impl KvFormat {
    /// Bytes of one position's keys and values in one layer.
    pub const fn position_bytes(self, layout: KvLayout, elem: Elem) -> u64 {
        let page = match self {
            Self::Plain => layout.page_stride() * elem.bytes(),
            Self::Int8 => {
                let int8 = layout.int8();
                int8.page_words() * size_of::<u32>() + int8.page_scales() * Elem::F16.bytes()
            }
        };
        (page / PAGE_SIZE) as u64
    }
}

/// Strides of one layer's int8 pages. The scale of `(page, head, slot, side)` is
/// element `page * KVH*16*2 + head * 16*2 + slot * 2 + side` of the scales; its
/// `HD / 4` words of codes stand in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int8Layout {
    /// Number of key/value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
}

impl Int8Layout {
    /// Words of the codes that share a scale.
    pub const fn words(self) -> usize {
        self.head_dim / 4
    }

    /// Scales of one head's slots in a page.
    pub const fn head_scales(self) -> usize {
        PAGE_SIZE * 2
    }

    /// Scales of one page.
    pub const fn page_scales(self) -> usize {
        self.kv_heads * self.head_scales()
    }

    /// Words of one page's codes.
    pub const fn page_words(self) -> usize {
        self.page_scales() * self.words()
    }

    /// Index of the scale of `(page, head, slot, side)`.
    pub const fn scale_index(self, page: usize, head: usize, slot: usize, side: Side) -> usize {
        let side = match side {
            Side::K => 0,
            Side::V => 1,
        };
        page * self.page_scales() + head * self.head_scales() + slot * 2 + side
    }

    /// Index of the first word of the codes of `(page, head, slot, side)`.
    pub const fn word_index(self, page: usize, head: usize, slot: usize, side: Side) -> usize {
        self.scale_index(page, head, slot, side) * self.words()
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
        let int8 = kv.int8();
        let bytes = int8.page_words() * 4 + int8.page_scales() * 2;
        assert_eq!(bytes, 98_304 + 2048, "half of it, and the scales");
        let position = |format: KvFormat| format.position_bytes(kv, Elem::F16);
        assert_eq!(position(KvFormat::Plain), 196_608 / 16, "of 16 positions");
        assert_eq!(
            position(KvFormat::Int8),
            bytes as u64 / 16,
            "of 16 positions"
        );
        assert_eq!(
            int8.word_index(1, 2, 3, Side::V),
            24_576 + (2 * 32 + 3 * 2 + 1) * 24,
            "page, head, slot, side"
        );
    }
}
