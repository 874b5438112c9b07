//! Seeded draws: the same seed gives the same ones on every machine.

/// Draws an order of the items, each as likely (Fisher and Yates).
pub fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        // 64 bits over a handful: the bias is below 1 in 10^18.
        items.swap(last, (split_mix(state) % (last as u64 + 1)) as usize);
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014): one step of a seeded sequence.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
