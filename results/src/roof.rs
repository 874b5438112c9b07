//! The roofline gate: what a rate of reading weights says of a time, given what the adapter
//! reads at most.

/// Share of the roof below which a rate is suspicious: honest kernels reach 15 to 45 %.
pub const SUSPICIOUS: f64 = 0.08;

/// Why a time means nothing whose rate, GB/s, is past the roof.
pub fn past(gb_s: f64, roof_gb_s: f64) -> Option<String> {
    (gb_s > roof_gb_s).then(|| {
        format!(
            "void: {gb_s:.1} GB/s is more than the {roof_gb_s:.1} GB/s that this adapter reads; the \
             weights lie in its caches or work is missing"
        )
    })
}

/// What to look for where a rate, GB/s, is far below the roof. The time stands.
pub fn far_below(gb_s: f64, roof_gb_s: f64) -> Option<String> {
    let share = gb_s / roof_gb_s;
    (share < SUSPICIOUS).then(|| {
        format!(
            "{:.1} % of the roof, less than {:.0} %, is suspicious: the time may be of something \
             else than reading weights",
            100.0 * share,
            100.0 * SUSPICIOUS
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_past_the_roof_is_void_and_one_far_below_it_suspicious() {
        let past = past(2000.1, 2000.0).expect("past");
        assert!(
            past.contains("2000.1 GB/s is more than the 2000.0"),
            "{past}"
        );
        assert_eq!(super::past(2000.0, 2000.0), None, "the roof is reached");
        let below = far_below(159.0, 2000.0).expect("suspicious");
        assert!(below.starts_with("8.0 % of the roof"), "{below}");
        assert_eq!(far_below(160.0, 2000.0), None, "8 %");
    }
}
