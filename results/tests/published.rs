//! Published runs: worlds with known truth, gates that must fire, and a journal that is
//! killed at any byte.

mod simulated;

use std::path::Path;

use results::external::Side;
use results::history::Standing;
use results::journal::{AbRun, JournalWriter};
use results::record::{Arm, Candidate, Line, Status};
use results::stats::{
    LAG_LIMIT, Limits, MODES_LIMIT, ReplicateBlocks, Rules, Verdict, benjamini_hochberg, blocks,
    gates, hodges_lehmann, judge_replicates, spearman, two_groups,
};
use results::summary::{AbSummary, Analysis};
use simulated::journal_text;
use simulated::published::{ManyWorlds, published_lines, samples};

const LOOKS: [u32; 3] = [5, 8, 12];

/// Runs of each world; a rate of 5 % among them has a standard error of 1.1 %.
const RUNS: u64 = 400;

/// Replicates straight from the samples, without a journal.
fn replicates(world: &ManyWorlds, count: u32) -> Vec<ReplicateBlocks> {
    (0..count)
        .map(|index| {
            let samples = samples(&world.replicate(index));
            let blocks = blocks(&samples, Arm::OF_PUBLISHED).expect("valid").complete;
            ReplicateBlocks {
                effect: blocks.iter().map(|b| b.log_ratio()).collect(),
                control: blocks.iter().map(|b| b.control_log_ratio()).collect(),
                slowed: blocks.iter().map(|b| b.slowed_log_ratio()).collect(),
                void: 0,
            }
        })
        .collect()
}

const RULES: Rules<'static> = Rules {
    looks: &LOOKS,
    alpha: 0.05 / 3.0,
    margin: 0.02,
};

/// Shares of verdicts over worlds, with the share of intervals that hold the truth.
#[derive(Debug, Default)]
struct Rates {
    faster: f64,
    slower: f64,
    equivalent: f64,
    inconclusive: f64,
    covered: f64,
    replicates: f64,
}

fn rates(world: impl Fn(u64) -> ManyWorlds) -> Rates {
    let mut rates = Rates::default();
    let share = 1.0 / RUNS as f64;
    for seed in 0..RUNS {
        let world = world(seed);
        let found = judge_replicates(&replicates(&world, 12), &RULES).expect("valid");
        match found.judgement.verdict {
            Verdict::Faster => rates.faster += share,
            Verdict::Slower => rates.slower += share,
            Verdict::Equivalent => rates.equivalent += share,
            Verdict::Inconclusive | Verdict::Invalid => rates.inconclusive += share,
        }
        let ci = found
            .judgement
            .effect
            .and_then(|e| e.ci)
            .expect("12 replicates");
        if (ci.lo..=ci.hi).contains(&world.effect) {
            rates.covered += share;
        }
        rates.replicates += share * found.replicates as f64;
    }
    rates
}

#[test]
fn equal_arms_are_found_equal_and_never_different() {
    for (drift, heavy) in [(0.0, true), (0.03, true), (0.03, false)] {
        let found = rates(|seed| ManyWorlds {
            drift,
            heavy,
            ..ManyWorlds::new(seed, 0.0)
        });
        assert!(found.equivalent >= 0.99, "drift {drift}: {found:?}");
        assert!(
            found.faster + found.slower == 0.0,
            "drift {drift}: {found:?}"
        );
        // 98.3 % of one look; those that stop early choose their look.
        assert!(found.covered >= 0.95, "drift {drift}: {found:?}");
    }
}

#[test]
fn an_effect_on_the_margin_is_seldom_called_beyond_or_within() {
    // 3 looks of 1.67 % two-sided: at most 2.5 % on one side, and 5 % for the two
    // one-sided tests of equivalence; the rest is the spread of 400 runs.
    let found = rates(|seed| ManyWorlds::new(seed, -0.02));
    assert!(found.faster <= 0.045, "{found:?}");
    assert!(found.equivalent <= 0.08, "{found:?}");
    assert!(found.slower == 0.0, "{found:?}");
}

#[test]
fn an_effect_of_two_margins_is_found() {
    let found = rates(|seed| ManyWorlds::new(seed, -0.04));
    assert!(found.faster >= 0.98, "{found:?}");
    let found = rates(|seed| ManyWorlds::new(seed, 0.04));
    assert!(found.slower >= 0.98, "{found:?}");
    assert!(
        found.replicates < 8.0,
        "most stop at the first look: {found:?}"
    );
}

#[test]
fn a_large_spread_between_replicates_is_not_taken_for_evidence() {
    // Every process has a shift of its own of 3 %: blocks of one are no evidence.
    let found = rates(|seed| ManyWorlds {
        between: 0.03,
        ..ManyWorlds::new(seed, 0.0)
    });
    assert!(found.faster + found.slower <= 0.05, "{found:?}");
    assert!(found.covered >= 0.93, "{found:?}");
    // The interval of all blocks together would have said otherwise.
    let mut excluded = 0;
    for seed in 0..100 {
        let world = ManyWorlds {
            between: 0.03,
            ..ManyWorlds::new(seed, 0.0)
        };
        let found = judge_replicates(&replicates(&world, 5), &RULES).expect("valid");
        excluded += u32::from(found.within.expect("60 blocks").excludes_zero());
    }
    assert!(excluded > 20, "{excluded} of 100");
}

#[test]
fn a_run_that_does_not_see_the_slowed_arm_gives_no_verdict() {
    let world = ManyWorlds {
        slowed: 0.0,
        ..ManyWorlds::new(3, -0.10)
    };
    let found = judge_replicates(&replicates(&world, 12), &RULES).expect("valid");
    assert_eq!(found.judgement.verdict, Verdict::Inconclusive);
    assert!(
        found.judgement.reason.contains("no power"),
        "{}",
        found.judgement.reason
    );
    assert!(found.finished, "no look is left");
}

#[test]
fn before_the_first_look_there_is_no_verdict() {
    let world = ManyWorlds::new(5, -0.10);
    let found = judge_replicates(&replicates(&world, 4), &RULES).expect("valid");
    assert_eq!(found.judgement.verdict, Verdict::Inconclusive);
    assert!(!found.finished && found.next_look == Some(5), "{found:?}");
    // Two blocks are enough for every figure.
    let mut few = replicates(&world, 1);
    few[0].effect.truncate(2);
    few[0].control.truncate(2);
    few[0].slowed.truncate(2);
    judge_replicates(&few, &RULES).expect("finite figures");
    let at_five = judge_replicates(&replicates(&world, 5), &RULES).expect("valid");
    assert_eq!(at_five.judgement.verdict, Verdict::Faster);
    // What comes after a verdict does not change it.
    let later = judge_replicates(&replicates(&world, 7), &RULES).expect("valid");
    assert_eq!((later.replicates, later.judgement), (5, at_five.judgement));
}

fn load(lines: &[Line], dir: &Path) -> AbRun {
    let path = dir.join("run.jsonl");
    std::fs::write(&path, journal_text(lines)).expect("written");
    AbRun::load(&path).expect("a valid journal")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn blocks_with_a_sentinel_that_is_off_are_left_out_and_too_many_void_the_run() {
    let dir = folder();
    let few = ManyWorlds {
        disturbed: 0.08,
        ..ManyWorlds::new(11, 0.0)
    };
    let run = load(&published_lines(&few, 5), dir.path());
    let analysis = Analysis::of(&run).expect("a summary");
    let found = analysis.published.first().expect("published");
    assert!(found.void[0] > 0, "{:?}", found.void);
    assert_eq!(found.judgement.verdict, Verdict::Equivalent);
    assert_eq!(analysis.blocks.complete.len(), 60 - found.void[0]);
    assert!(
        analysis
            .gates
            .iter()
            .any(|g| g.contains("the sentinel was")),
        "{:?}",
        analysis.gates
    );

    let many = ManyWorlds {
        disturbed: 0.4,
        ..ManyWorlds::new(11, -0.2)
    };
    let run = load(&published_lines(&many, 5), dir.path());
    let summary = AbSummary::of(&run, dir.path()).expect("a summary");
    assert_eq!(summary.verdict, Some(Verdict::Invalid));
    assert!(summary.title.contains("INVALID"), "{}", summary.title);
    let side = Side::arm(&run, Arm::A, Standing::Current).expect("a summary");
    let unfit = side.and_then(|side| side.unfit).expect("no figure");
    assert!(unfit.contains("is INVALID: "), "{unfit}");
}

#[test]
fn a_baseline_that_drifts_too_far_voids_its_replicate() {
    let dir = folder();
    let world = ManyWorlds {
        drift: 0.3,
        noise: 0.005,
        ..ManyWorlds::new(1, 0.0)
    };
    let run = load(&published_lines(&world, 5), dir.path());
    let summary = AbSummary::of(&run, dir.path()).expect("a summary");
    assert_eq!(
        summary.verdict,
        Some(Verdict::Invalid),
        "{}",
        summary.reason
    );
}

/// Shares of a world's replicates that gates void.
fn voided(world: impl Fn(u64) -> ManyWorlds, count: u64) -> f64 {
    let limits = Limits {
        sentinel: 0.02,
        margin: 0.02,
        modes: Some(MODES_LIMIT),
        lag: Some(LAG_LIMIT),
    };
    let void = (0..count).filter(|&seed| {
        let samples = samples(&world(seed).replicate(0));
        let blocks = blocks(&samples, Arm::OF_PUBLISHED).expect("valid").complete;
        let sentinels: Vec<(u32, u64)> = blocks.iter().map(|b| (b.index, 1_000)).collect();
        let found = gates(&blocks, &sentinels, &limits).expect("times");
        assert!(found.blocks.is_empty(), "sentinels are alike");
        found.replicate.is_some()
    });
    void.count() as f64 / count as f64
}

#[test]
fn gates_void_what_is_off_and_seldom_what_is_sound() {
    // Larger noise than the margin, so that nothing is spared for its size.
    for (heavy, noise, drift) in [(true, 0.03, 0.0), (false, 0.03, 0.0), (true, 0.01, 0.005)] {
        let sound = voided(
            |seed| ManyWorlds {
                heavy,
                noise,
                drift,
                ..ManyWorlds::new(seed, -0.04)
            },
            2000,
        );
        // Trend and place once in a thousand each, modes as seldom, lags once in a hundred
        // where the control's spread is larger than the margin.
        let most = if noise > 0.02 { 0.02 } else { 0.006 };
        assert!(sound <= most, "heavy {heavy}, noise {noise}: {sound}");
    }
    for heavy in [true, false] {
        let of = |jump: f64| {
            let world = |seed| ManyWorlds {
                jump,
                heavy,
                ..ManyWorlds::new(seed, 0.0)
            };
            voided(world, 500)
        };
        // Half the blocks eight standard deviations of an element slower.
        let (far, near) = (of(0.08), of(0.01));
        assert!(far >= 0.9, "heavy {heavy}: {far}");
        assert!(near <= 0.01, "within the margin, heavy {heavy}: {near}");
    }
    let wandering = voided(
        |seed| ManyWorlds {
            kept: 0.97,
            ..ManyWorlds::new(seed, 0.0)
        },
        500,
    );
    let jumping = voided(
        |seed| ManyWorlds {
            kept: 0.01,
            ..ManyWorlds::new(seed, 0.0)
        },
        500,
    );
    assert!(
        wandering > 10.0 * jumping && jumping < 0.03,
        "{wandering} against {jumping}"
    );
}

#[test]
fn times_of_two_groups_void_a_run_that_declared_it_and_are_reported_of_one_that_did_not() {
    let dir = folder();
    let world = ManyWorlds {
        jump: 0.12,
        ..ManyWorlds::new(1, 0.0)
    };
    let mut lines = published_lines(&world, 5);
    let summary = AbSummary::of(&load(&lines, dir.path()), dir.path()).expect("a summary");
    assert_eq!(
        summary.verdict,
        Some(Verdict::Invalid),
        "{}",
        summary.reason
    );
    let published = summary.published.expect("published");
    assert_eq!(published.void_blocks, 60);
    let off = |gate: &&String| gate.contains("is void: the baseline's times are of two groups");
    assert_eq!(published.gates.iter().filter(off).count(), 5);

    let Some(Line::Run(run)) = lines.first_mut() else {
        panic!("a run line");
    };
    let publish = run.publish.as_mut().expect("published");
    (publish.modes_limit, publish.lag_limit) = (None, None);
    let summary = AbSummary::of(&load(&lines, dir.path()), dir.path()).expect("a summary");
    assert_eq!(summary.verdict, Some(Verdict::Equivalent));
    let reported = |gate: &&String| gate.ends_with("reported, not judged");
    let gates = summary.published.expect("published").gates;
    assert_eq!(gates.iter().filter(reported).count(), 5, "{gates:?}");
}

#[test]
fn values_are_split_where_they_part() {
    let two: Vec<f64> = (0..40)
        .map(|i| f64::from(i % 4) + f64::from(i / 30) * 100.0)
        .collect();
    let found = two_groups(&two).expect("finite").expect("forty values");
    // 30 values around 1.433 and 10 around 101.7, both with a standard deviation of 1.14.
    assert!((found.gap - 100.267).abs() < 1e-3, "{found:?}");
    assert!((found.ratio - 87.88).abs() < 0.01, "{found:?}");
    // Less than a fifth are outliers, not a group.
    let few: Vec<f64> = (0..40)
        .map(|i| f64::from(i % 4) + f64::from(i / 36) * 100.0)
        .collect();
    let found = two_groups(&few).expect("finite").expect("forty values");
    assert!(found.ratio < 3.0, "{found:?}");
    assert_eq!(two_groups(&two[..39]), Ok(None), "too few");
    assert_eq!(two_groups(&[1.0; 40]), Ok(None), "all the same");
    two_groups(&[f64::NAN; 40]).expect_err("no times");
}

/// A stopped run that goes on is, in everything but time, the run that was not stopped.
#[test]
fn a_journal_killed_at_any_byte_goes_on_to_the_same_record() {
    let dir = folder();
    let world = ManyWorlds::new(7, -0.05);
    let whole = published_lines(&world, 2);
    let text = journal_text(&whole);
    let expected = load(&whole, dir.path());
    let head = journal_text(&whole[..1]).len();
    let path = dir.path().join("killed.jsonl");
    let mut cuts: Vec<usize> = (head..text.len()).step_by(97).collect();
    // Every byte around the ends of lines.
    let ends = text
        .match_indices('\n')
        .map(|(at, _)| at)
        .filter(|&at| at >= head);
    cuts.extend(
        ends.flat_map(|at| [at, at + 1, at + 2])
            .filter(|&at| at < text.len()),
    );
    for cut in cuts {
        std::fs::write(&path, &text[..cut]).expect("written");
        let found = AbRun::load(&path).expect("the rest is read");
        if found.end.is_some() {
            continue;
        }
        let done = found.replicates.len() as u32;
        // The checks of the gate come before replicates and are not made again here.
        let gate = whole
            .iter()
            .position(|line| matches!(line, Line::Replicate(_)));
        let before: usize = journal_text(&whole[..gate.expect("replicates")]).len();
        if cut < before {
            continue;
        }
        let mut journal = JournalWriter::reopen(&path).expect("it goes on");
        for index in done..2 {
            for line in world.replicate(index) {
                journal.append(&line).expect("admitted");
            }
        }
        journal
            .append(whole.last().expect("an end"))
            .expect("admitted");
        let resumed = AbRun::load(&path).expect("a valid journal");
        let resumed = AbRun {
            journal: expected.journal.clone(),
            notes: vec![],
            ..resumed
        };
        assert_eq!(resumed, expected, "cut at byte {cut}");
    }
}

#[test]
fn an_ended_journal_is_not_reopened_and_a_replicate_is_not_skipped() {
    let dir = folder();
    let world = ManyWorlds::new(7, 0.0);
    let lines = published_lines(&world, 1);
    let run = load(&lines, dir.path());
    assert_eq!(run.status(), Status::Complete);
    JournalWriter::reopen(&run.journal).expect_err("it has its end");
    let mut skipped = lines.clone();
    skipped.truncate(lines.len() - 1);
    skipped.extend(world.replicate(3));
    let path = dir.path().join("skipped.jsonl");
    std::fs::write(&path, journal_text(&skipped)).expect("written");
    let error = AbRun::load(&path).expect_err("replicate 1 is missing");
    assert!(
        error
            .to_string()
            .contains("expected replicate 1, found replicate 3"),
        "{error}"
    );
}

#[test]
fn replicates_that_made_other_tokens_cannot_be_compared() {
    let dir = folder();
    let mut lines = published_lines(&ManyWorlds::new(2, 0.0), 5);
    for line in &mut lines {
        if let Line::ReplicateEnd(end) = line
            && end.index == 3
        {
            end.tokens_sha256.insert(Arm::B, "another".to_owned());
        }
    }
    let run = load(&lines, dir.path());
    let error = Analysis::of(&run).expect_err("other work").to_string();
    assert!(error.contains("replicate 3 made other tokens"), "{error}");
}

#[test]
fn times_past_the_roof_are_void() {
    let dir = folder();
    let mut lines = published_lines(&ManyWorlds::new(2, 0.0), 5);
    for line in &mut lines {
        if let Line::Sample(sample) = line
            && sample.block == 9
        {
            sample.wall_ns /= 100;
        }
    }
    let error = Analysis::of(&load(&lines, dir.path())).expect_err("too fast");
    assert!(
        error.to_string().contains("past what this adapter reads"),
        "{error}"
    );
}

#[test]
fn false_discoveries_are_held_at_their_rate() {
    // The example of Benjamini and Hochberg (1995), section 3.2: 4 of 15 at 5 %.
    let p = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0,
    ];
    let stands = benjamini_hochberg(&p, 0.05).expect("p-values");
    assert_eq!(stands.iter().filter(|s| **s).count(), 4);
    assert!(
        stands[..4].iter().all(|s| *s),
        "the smallest stand: {stands:?}"
    );
    assert_eq!(benjamini_hochberg(&[], 0.05), Ok(vec![]));
    benjamini_hochberg(&[1.5], 0.05).expect_err("no probability");
}

#[test]
fn ranks_follow_time() {
    assert_eq!(spearman(&[1.0, 2.0, 5.0, 9.0]), Some(1.0));
    assert_eq!(spearman(&[9.0, 5.0, 2.0, 1.0]), Some(-1.0));
    assert_eq!(spearman(&[1.0, 1.0, 1.0]), None, "no order");
    let tied = spearman(&[1.0, 2.0, 2.0, 3.0]).expect("ranks");
    assert!((tied - 0.948_683).abs() < 1e-6, "{tied}");
    assert_eq!(hodges_lehmann(&[1.0, 2.0, 9.0]), Ok(3.5));
}

/// A choice among values that are all alike: what each of them reads in a run of one
/// process, which has a shift of its own.
fn choice(seed: u64, truth: f64) -> Vec<Candidate> {
    (0..8)
        .map(|value| {
            let world = ManyWorlds::new(seed ^ ((value + 1) << 40), truth);
            let own = replicates(&world, 1).remove(0);
            Candidate {
                name: format!("splitk={value}"),
                run: format!("2026-11-30-splitk-{value}"),
                effect: hodges_lehmann(&own.effect).expect("twelve blocks"),
            }
        })
        .collect()
}

#[test]
fn a_winner_flatters_itself_and_what_the_choice_has_not_seen_does_not() {
    for truth in [0.0, -0.04] {
        let (mut seen, mut unseen, mut covered) = (vec![], vec![], 0.0);
        for seed in 0..RUNS {
            let chosen_from = choice(seed, truth);
            let best = Candidate::best(&chosen_from).expect("eight values");
            seen.push(best.effect - truth);
            let again = ManyWorlds::new(seed ^ 0x5ee_d000, truth);
            let found = judge_replicates(&replicates(&again, 12), &RULES).expect("valid");
            let effect = found.judgement.effect.expect("12 replicates");
            unseen.push(effect.centre - truth);
            let ci = effect.ci.expect("an interval");
            covered += f64::from(u8::from((ci.lo..=ci.hi).contains(&truth))) / RUNS as f64;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let error = |values: &[f64]| {
            let square: f64 = values.iter().map(|v| (v - mean(values)).powi(2)).sum();
            (square / (values.len() - 1) as f64 / values.len() as f64).sqrt()
        };
        // The least of eight values of a spread of half a percent lies 1.4 spreads low.
        let (flattered, fair) = (mean(&seen), mean(&unseen));
        assert!(flattered < -0.005, "truth {truth}: {flattered}");
        assert!(
            fair.abs() < 3.0 * error(&unseen) && fair.abs() < 0.1 * flattered.abs(),
            "truth {truth}: bias {fair} with a standard error of {}, {flattered} when chosen",
            error(&unseen)
        );
        assert!(covered >= 0.95, "truth {truth}: covered {covered}");
    }
}

#[test]
fn a_chosen_value_is_reported_by_what_the_choice_has_not_seen() {
    let folder = folder();
    let world = ManyWorlds::new(3, -0.04);
    let mut lines = published_lines(&world, 5);
    let chosen_from = choice(3, -0.04);
    let best = Candidate::best(&chosen_from).expect("eight values").clone();
    let Some(Line::Run(run)) = lines.first_mut() else {
        panic!("a run line");
    };
    run.arms[1].name.clone_from(&best.name);
    run.publish.as_mut().expect("published").chosen_from = chosen_from.clone();
    let run = load(&lines, folder.path());
    let plain = AbSummary::of(
        &load(&published_lines(&world, 5), self::folder().path()),
        Path::new("report"),
    );
    let found = AbSummary::of(&run, Path::new("report")).expect("valid");
    assert_eq!(found.effect_pct, plain.expect("valid").effect_pct);
    let published = found.published.expect("published");
    assert_eq!(published.chosen_from.len(), 8);
    let then = published.when_chosen_pct().expect("chosen");
    assert!((then - results::stats::percent(best.effect)).abs() < 1e-12);

    // Another arm than the one that was chosen is not what was declared.
    let Some(Line::Run(run)) = lines.first_mut() else {
        panic!("a run line");
    };
    run.arms[1].name = "splitk=99".to_owned();
    let error = run.validate().expect_err("not the chosen one");
    assert!(error.contains("splitk=99"), "{error}");
}
