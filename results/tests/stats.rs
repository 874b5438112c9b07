//! Statistics: published values, invariants, and simulated worlds with known
//! answers.

mod simulated;

use proptest::prelude::*;
use results::record::{Arm, Sample, Spread};
use results::stats::{
    Judgement, StatsError, TimeNeeded, Verdict, blocks, blocks_needed, change_points,
    hodges_lehmann, judge, signed_rank_interval, signed_rank_level, spread,
};
use simulated::{Random, World, run};

fn judged(world: &World) -> Judgement {
    let blocks = blocks(&world.samples(), Arm::OF_ONE_FLAG)
        .expect("valid samples")
        .complete;
    let effect: Vec<f64> = blocks.iter().map(|b| b.log_ratio()).collect();
    let control: Vec<f64> = blocks.iter().map(|b| b.control_log_ratio()).collect();
    judge(&effect, &control, 0.02).expect("valid ratios")
}

/// How many of 300 seeded worlds get each verdict: faster, slower, equivalent,
/// inconclusive.
fn verdicts(world: impl Fn(u64) -> World) -> [usize; 4] {
    let mut counts = [0; 4];
    for seed in 0..300 {
        counts[match judged(&world(seed)).verdict {
            Verdict::Faster => 0,
            Verdict::Slower => 1,
            Verdict::Equivalent => 2,
            Verdict::Inconclusive | Verdict::Invalid => 3,
        }] += 1;
    }
    counts
}

#[test]
fn levels_are_those_of_published_tables() {
    // Smallest exact two-sided levels, 2 / 2^n.
    assert_eq!(signed_rank_level(5, 0), 0.0625);
    assert_eq!(signed_rank_level(6, 0), 0.03125);
    // Two-sided 5 % critical values (Wilcoxon and Wilcox): the largest w at or
    // below 5 %.
    for (n, critical) in [
        (6, 0),
        (7, 2),
        (8, 3),
        (9, 5),
        (10, 8),
        (12, 13),
        (15, 25),
        (20, 52),
        (25, 89),
    ] {
        assert!(
            signed_rank_level(n, critical) <= 0.05,
            "n = {n}: {critical} is above 5 %"
        );
        assert!(
            signed_rank_level(n, critical + 1) > 0.05,
            "n = {n}: {critical} is not the largest"
        );
    }
}

#[test]
fn intervals_begin_at_six_and_five_values() {
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let six = signed_rank_interval(&values, 0.95)
        .expect("finite")
        .expect("six are enough");
    assert_eq!((six.lo, six.hi), (1.0, 6.0));
    assert_eq!(six.achieved, 0.96875);
    assert_eq!(signed_rank_interval(&values[..5], 0.95), Ok(None));
    assert!(
        signed_rank_interval(&values[..5], 0.90)
            .expect("finite")
            .is_some(),
        "five"
    );
    assert_eq!(signed_rank_interval(&[], 0.95), Err(StatsError::Empty));
}

#[test]
fn exact_and_limiting_intervals_meet() {
    let mut random = Random(5);
    let values: Vec<f64> = (0..301).map(|_| random.normal()).collect();
    let exact = signed_rank_interval(&values[..300], 0.95)
        .expect("finite")
        .expect("many");
    let limit = signed_rank_interval(&values, 0.95)
        .expect("finite")
        .expect("many");
    assert!(
        (exact.lo - limit.lo).abs() < 0.01 && (exact.hi - limit.hi).abs() < 0.01,
        "{exact:?} {limit:?}"
    );
}

#[test]
fn the_minimum_detectable_effect_is_that_of_the_formula() {
    // n = 10: t(0.975, 9) = 2.262157, t(0.8, 9) = 0.883404 (published tables).
    let values: Vec<f64> = (0..10).map(f64::from).collect();
    let judgement = judge(&values, &[0.0; 10], 0.02).expect("finite");
    let sd = (82.5f64 / 9.0).sqrt();
    let expected = (2.262_157 + 0.883_404) * sd / 10f64.sqrt();
    let mde = judgement.effect.and_then(|e| e.mde).expect("ten values");
    assert!((mde - expected).abs() < 1e-4, "{mde} against {expected}");
}

#[test]
fn the_interval_covers_the_truth_as_often_as_it_says() {
    let mut covered = 0;
    for seed in 0..1000 {
        let mut random = Random(seed);
        let values: Vec<f64> = (0..12).map(|_| random.heavy()).collect();
        let ci = signed_rank_interval(&values, 0.95)
            .expect("finite")
            .expect("twelve");
        covered += usize::from(ci.lo <= 0.0 && 0.0 <= ci.hi);
    }
    assert!((935..=975).contains(&covered), "covered {covered} of 1000");
}

#[test]
fn worlds_get_their_verdicts() {
    let [faster, slower, equivalent, _] = verdicts(|seed| World::new(seed, 0.0));
    assert_eq!((faster, slower), (0, 0), "no effect was called one");
    assert!(
        equivalent >= 270,
        "no effect: EQUIVALENT in {equivalent} of 300"
    );

    let [_, slower, ..] = verdicts(|seed| World::new(seed, 1.05f64.ln()));
    assert!(slower >= 285, "+5 %: SLOWER in {slower} of 300");
    let [faster, ..] = verdicts(|seed| World::new(seed, 0.95f64.ln()));
    assert!(faster >= 285, "-5 %: FASTER in {faster} of 300");

    let heavy = |seed, effect| World {
        heavy: true,
        ..World::new(seed, effect)
    };
    let [faster, slower, equivalent, _] = verdicts(|seed| heavy(seed, 0.0));
    assert_eq!(
        (faster, slower),
        (0, 0),
        "heavy tails were called an effect"
    );
    assert!(
        equivalent >= 255,
        "heavy tails: EQUIVALENT in {equivalent} of 300"
    );

    // On the margin a one-sided 2.5 % error is all that is allowed.
    let [faster, ..] = verdicts(|seed| World::new(seed, -0.02));
    assert!(faster <= 15, "on the margin: FASTER in {faster} of 300");
}

#[test]
fn a_linear_drift_cancels() {
    let world = World {
        noise: 0.0,
        drift: 0.03,
        ..World::new(1, 0.0)
    };
    let effect = judged(&world).effect.expect("twelve blocks");
    assert!(effect.centre.abs() < 1e-7, "{effect:?}");
    let drifting = |seed| World {
        drift: 0.03,
        ..World::new(seed, 0.0)
    };
    let [faster, slower, equivalent, _] = verdicts(drifting);
    assert_eq!((faster, slower), (0, 0), "drift was called an effect");
    assert!(equivalent >= 270, "EQUIVALENT in {equivalent} of 300");
}

#[test]
fn a_control_that_is_off_forbids_a_verdict() {
    for control in [0.03, -0.03, 0.015] {
        let world = World {
            control,
            noise: 0.002,
            ..World::new(2, -0.10)
        };
        let judgement = judged(&world);
        assert_eq!(
            judgement.verdict,
            Verdict::Inconclusive,
            "control {control}"
        );
        assert!(
            judgement.reason.contains("A/A control"),
            "{}",
            judgement.reason
        );
        assert_eq!(blocks_needed(&judgement, None), TimeNeeded::ControlOff);
    }
}

#[test]
fn five_blocks_are_never_enough() {
    for (count, effect) in [(0, 0.0), (1, 0.5), (5, -0.5)] {
        let judgement = judge(&vec![effect; count], &vec![0.0; count], 0.02).expect("finite");
        assert_eq!(judgement.verdict, Verdict::Inconclusive, "{count} blocks");
        let needed = blocks_needed(&judgement, Some(2.0));
        assert!(
            matches!(
                needed,
                TimeNeeded::More { blocks, .. } | TimeNeeded::AtLeast { blocks, .. }
                    if blocks + count >= 6
            ),
            "{count} blocks: {needed:?}"
        );
    }
}

#[test]
fn more_time_is_estimated_or_declared_hopeless() {
    let noisy = World {
        noise: 0.04,
        ..World::new(11, -0.03)
    };
    let judgement = judged(&noisy);
    assert_eq!(judgement.verdict, Verdict::Inconclusive);
    let text = blocks_needed(&judgement, Some(3.0)).to_string();
    assert!(
        text.contains("more block") && text.contains("s of measuring"),
        "{text}"
    );

    let spread = [-0.03, -0.01, -0.025, -0.015, -0.0201, -0.02, -0.03, -0.01];
    let judgement = judge(&spread, &[0.0; 8], 0.02).expect("finite");
    let text = blocks_needed(&judgement, None).to_string();
    assert!(text.contains("sits on the margin"), "{text}");
}

#[test]
fn broken_samples_are_errors() {
    let good = World::new(1, 0.0).samples();
    let change = |at: usize, change: fn(&mut Sample)| {
        let mut samples = good.clone();
        change(&mut samples[at]);
        blocks(&samples, Arm::OF_ONE_FLAG)
    };
    let zero = change(3, |s| s.wall_ns = 0);
    assert!(matches!(zero, Err(StatsError::Time { .. })), "{zero:?}");
    let tokenless = change(3, |s| s.tokens = 0);
    assert!(
        matches!(tokenless, Err(StatsError::Time { .. })),
        "{tokenless:?}"
    );
    let order = change(0, |s| s.arm = Arm::Control);
    assert!(matches!(order, Err(StatsError::Order { .. })), "{order:?}");
    let mut gap = good.clone();
    gap.remove(5);
    let gap = blocks(&gap, Arm::OF_ONE_FLAG);
    assert!(
        matches!(
            gap,
            Err(StatsError::Gap {
                block: 0,
                found: 5,
                ..
            })
        ),
        "{gap:?}"
    );

    let mut short = good.clone();
    short.truncate(good.len() - 2);
    let short = blocks(&short, Arm::OF_ONE_FLAG).expect("an incomplete last block is dropped");
    assert_eq!(short.complete.len(), 11);
    assert!(
        short.dropped.is_some_and(|note| note.contains("4 of 6")),
        "and said so"
    );

    for bad in [f64::NAN, f64::INFINITY] {
        assert!(judge(&[bad], &[0.0], 0.02).is_err(), "{bad}");
        assert!(judge(&[0.0], &[bad], 0.02).is_err(), "{bad}");
        assert!(judge(&[0.0], &[0.0], bad).is_err(), "margin {bad}");
    }
    assert!(judge(&[0.0], &[0.0], 0.0).is_err(), "margin 0");
    assert!(judge(&[0.0], &[], 0.02).is_err(), "unpaired");
}

fn ratios() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(-0.5f64..0.5, 6..40)
}

proptest! {
    #[test]
    fn the_estimate_follows_shift_and_sign(values in ratios(), shift in -0.5f64..0.5) {
        let centre = hodges_lehmann(&values).expect("finite");
        let shifted: Vec<f64> = values.iter().map(|v| v + shift).collect();
        let mirrored: Vec<f64> = values.iter().map(|v| -v).collect();
        prop_assert!((hodges_lehmann(&shifted).expect("finite") - centre - shift).abs() < 1e-12);
        prop_assert!((hodges_lehmann(&mirrored).expect("finite") + centre).abs() < 1e-12);
    }

    #[test]
    fn intervals_hold_the_estimate_and_nest(values in ratios()) {
        let centre = hodges_lehmann(&values).expect("finite");
        let wide = signed_rank_interval(&values, 0.95).expect("finite").expect("six or more");
        let narrow = signed_rank_interval(&values, 0.90).expect("finite").expect("six or more");
        prop_assert!(wide.lo <= narrow.lo && narrow.lo <= centre);
        prop_assert!(centre <= narrow.hi && narrow.hi <= wide.hi);
        prop_assert!(wide.achieved >= 0.95 && narrow.achieved >= 0.90);
    }

    #[test]
    fn exchanging_the_arms_mirrors_the_verdict(values in ratios(), shift in -0.6f64..0.6) {
        let values: Vec<f64> = values.iter().map(|v| 0.1 * v + shift).collect();
        let mirrored: Vec<f64> = values.iter().map(|v| -v).collect();
        let zeros = vec![0.0; values.len()];
        let one = judge(&values, &zeros, 0.02).expect("finite").verdict;
        let other = judge(&mirrored, &zeros, 0.02).expect("finite").verdict;
        let mirror = match one {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            Verdict::Equivalent => Verdict::Equivalent,
            Verdict::Inconclusive | Verdict::Invalid => one,
        };
        prop_assert_eq!(mirror, other);
    }
}

/// Blocks of A and A' alone, of which a run of one dispatch finds its margin.
fn control_blocks(seed: u64, noise: f64) -> Vec<f64> {
    let world = World {
        blocks: 20,
        noise,
        heavy: true,
        ..World::new(seed, 0.0)
    };
    let found = blocks(&world.samples(), Arm::OF_ONE_FLAG).expect("valid samples");
    let control = found.complete.iter().map(|block| block.control_log_ratio());
    control.collect()
}

#[test]
fn a_margin_found_of_the_control_holds_what_does_not_differ() {
    for noise in [0.002, 0.01, 0.05] {
        let (mut equal, mut different, mut least) = (0, 0, 0);
        for seed in 0..400 {
            let found = spread(&control_blocks(seed, noise)).expect("values");
            let margin = found.margin();
            least += u32::from(margin == Spread::LEAST);
            // The run that follows, of other blocks.
            let (effect, control) = (
                control_blocks(seed ^ 0xe_ffec_0000, noise),
                control_blocks(seed ^ 0xc0_0000_0000, noise),
            );
            let verdict = judge(&effect, &control, margin).expect("valid").verdict;
            equal += u32::from(verdict == Verdict::Equivalent);
            different += u32::from(matches!(verdict, Verdict::Faster | Verdict::Slower));
        }
        assert!(equal >= 396, "noise {noise}: {equal} of 400 equal");
        assert_eq!(different, 0, "noise {noise}");
        // Times are as exact as the least margin asks, or not nearly.
        let fits = if noise < 0.005 {
            least >= 350
        } else {
            least == 0
        };
        assert!(fits, "noise {noise}: {least} of 400 have the least margin");
    }
    // 19 values up to the 95th percentile of 20, interpolated.
    let values: Vec<f64> = (1..=20)
        .map(|i| f64::from(i) * if i % 2 == 0 { 1e-3 } else { -1e-3 })
        .collect();
    let found = spread(&values).expect("values");
    assert!((found.p95 - 0.01905).abs() < 1e-12, "{found:?}");
    assert!((found.margin() - 0.0381).abs() < 1e-12, "{found:?}");
    spread(&[]).expect_err("nothing to find it of");
}

#[test]
fn a_margin_that_does_not_follow_from_its_control_is_refused() {
    let mut line = run();
    line.margin_from = Some(Spread {
        blocks: 20,
        p95: 0.01,
    });
    assert_eq!(line.validate(), Ok(()));
    line.margin = 0.03;
    let error = line.validate().expect_err("not twice the control's");
    assert!(
        error.contains("expected 0.02 of the control's 0.01, found 0.03"),
        "{error}"
    );
}

/// A series of 30 values around 0, those from each of `steps` on higher by its height.
fn series(seed: u64, heavy: bool, steps: &[(usize, f64)]) -> Vec<f64> {
    let mut random = Random(seed);
    let value = |at: usize| {
        let noise = if heavy {
            random.heavy()
        } else {
            random.normal()
        };
        let passed = steps.iter().filter(|(from, _)| at >= *from);
        noise + passed.map(|(_, height)| height).sum::<f64>()
    };
    (0..30).map(value).collect()
}

#[test]
fn change_points_are_found_where_a_series_changes_and_seldom_where_it_does_not() {
    let found = |seed, heavy, steps: &[(usize, f64)]| {
        change_points(&series(seed, heavy, steps), seed).expect("finite")
    };
    for heavy in [false, true] {
        let count = |holds: &dyn Fn(u64) -> bool| (0..300).filter(|&seed| holds(seed)).count();
        let alarms = count(&|seed| !found(seed, heavy, &[]).is_empty());
        // One in a hundred of them.
        assert!(
            alarms <= 9,
            "heavy {heavy}: {alarms} of 300 without a change"
        );
        let near = |found: &[usize], at: usize| found.iter().any(|f| f.abs_diff(at) <= 1);
        let one = count(&|seed| near(&found(seed, heavy, &[(18, 3.0)]), 18));
        assert!(one >= 285, "heavy {heavy}: {one} of 300 steps found");
        let two = count(&|seed| {
            let found = found(seed, heavy, &[(10, 4.0), (20, -8.0)]);
            near(&found, 10) && near(&found, 20) && found.len() == 2
        });
        assert!(two >= 280, "heavy {heavy}: {two} of 300 pairs found");
    }
    let exact: Vec<f64> = (0..12).map(|i| f64::from(u8::from(i >= 5))).collect();
    assert_eq!(change_points(&exact, 1), Ok(vec![5]));
    assert_eq!(change_points(&exact[..7], 1), Ok(vec![]), "too few");
    assert_eq!(change_points(&[1.0; 20], 1), Ok(vec![]), "nothing changes");
    change_points(&[f64::NAN; 9], 1).expect_err("no times");
}
