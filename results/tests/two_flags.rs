//! An A/B of two flags: its blocks, contrasts, verdicts, and what is refused.

mod simulated;

use std::fs;
use std::path::Path;

use results::journal::AbRun;
use results::record::{Arm, Line};
use results::stats::{
    Block, Contrast, Published, ReplicateBlocks, Rules, StatsError, Verdict, blocks, contrasts,
    judge_replicates, questions,
};
use results::summary::{AbSummary, SummaryError};
use simulated::two_flags::{TwoFlags, published_two_flags_run, two_flags_run};
use simulated::{journal_text, lines, run};

fn contrasts_of(world: &TwoFlags) -> [Contrast; 3] {
    let blocks = blocks(&world.samples(), Arm::OF_TWO_FLAGS)
        .expect("valid samples")
        .complete;
    let contrasts = contrasts(&two_flags_run(), &blocks).expect("valid times");
    contrasts.try_into().expect("three of two flags")
}

fn centre(contrast: &Contrast) -> f64 {
    contrast.effect().expect("an effect").centre
}

#[test]
fn effects_and_interaction_are_those_of_the_world_whatever_the_drift() {
    let mut world = TwoFlags::new(3, -0.1, 0.04, -0.03);
    world.world.noise = 0.0;
    for drift in [0.0, 0.5] {
        world.world.drift = drift;
        let [first, second, interaction] = contrasts_of(&world);
        // A main effect is averaged over the other flag, so half of the interaction
        // is in it. Times are whole nanoseconds of some 10^8.
        for (contrast, truth) in [
            (&first, -0.1 - 0.015),
            (&second, 0.04 - 0.015),
            (&interaction, -0.03),
        ] {
            let found = centre(contrast);
            assert!((found - truth).abs() < 1e-7, "{}: {found}", contrast.of);
        }
        assert_eq!(first.of, "splitk", "the first flag");
        assert_eq!(second.of, "fuseqk", "the second flag");
        assert_eq!(interaction.of, "splitk \u{d7} fuseqk", "both");
        let words = [first.word(), second.word(), interaction.word()];
        assert_eq!(words, ["FASTER", "SLOWER", "REINFORCING"], "drift {drift}");
    }
}

/// How many of 200 worlds have this word for the interaction.
fn with_word(word: &str, interaction: f64) -> usize {
    let worlds = (0..200).map(|seed| TwoFlags::new(seed, -0.05, -0.05, interaction));
    worlds
        .filter(|world| contrasts_of(world)[2].word() == word)
        .count()
}

#[test]
fn an_interaction_is_found_where_there_is_one_and_only_there() {
    // Noise of 1 % an element gives the interaction a standard error of 0.4 %.
    assert!(with_word("REINFORCING", -0.06) >= 195, "6 % together saved");
    assert!(with_word("INTERFERING", 0.06) >= 195, "6 % together lost");
    let independent = with_word("INDEPENDENT", 0.0);
    assert!(independent >= 180, "{independent} of 200 none");
    // On the margin a verdict of either kind is wrong in one tail of 2.5 % at most.
    let wrong = with_word("REINFORCING", -0.02);
    assert!(wrong <= 12, "{wrong} of 200 on the margin");
}

/// What 12 replicates of a world say of its interaction.
fn published_interaction(world: &TwoFlags) -> Published {
    let interaction = questions(&published_two_flags_run()).remove(2);
    let replicates: Vec<ReplicateBlocks> = (0..12)
        .map(|index| {
            let samples = world.replicate(index);
            let found = blocks(&samples, Arm::OF_TWO_PUBLISHED).expect("valid");
            let each = |of: &dyn Fn(&Block) -> f64| found.complete.iter().map(of).collect();
            ReplicateBlocks {
                effect: each(&|block| interaction.of_block(block)),
                control: each(&Block::control_log_ratio),
                slowed: each(&Block::slowed_log_ratio),
                void: 0,
            }
        })
        .collect();
    let rules = Rules {
        looks: &[5, 8, 12],
        alpha: 0.05 / 3.0,
        margin: 0.02,
    };
    judge_replicates(&replicates, &rules).expect("valid")
}

#[test]
fn a_published_interaction_is_found_where_there_is_one_and_only_there() {
    let rate = |verdict: Verdict, interaction: f64| {
        let worlds = (0..200).map(|seed| TwoFlags::new(seed, -0.05, -0.05, interaction));
        let found = worlds.map(|world| published_interaction(&world).judgement.verdict);
        found.filter(|&found| found == verdict).count()
    };
    assert!(rate(Verdict::Faster, -0.06) >= 195, "6 % together saved");
    assert!(rate(Verdict::Equivalent, 0.0) >= 190, "none");
    let wrong = rate(Verdict::Faster, 0.0) + rate(Verdict::Slower, 0.0);
    assert_eq!(wrong, 0, "none of 200 where there is none");
    // Three looks of 1.67 % two-sided: 2.5 % in one tail at most, 5 of 200.
    let wrong = rate(Verdict::Faster, -0.02);
    assert!(wrong <= 12, "{wrong} of 200 on the margin");
    let mut covered = 0;
    for seed in 0..200 {
        let world = TwoFlags::new(seed, -0.05, -0.05, 0.01);
        let effect = published_interaction(&world).judgement.effect;
        let ci = effect.and_then(|e| e.ci).expect("12 replicates");
        covered += u32::from((ci.lo..=ci.hi).contains(&0.01));
    }
    assert!(covered >= 188, "{covered} of 200 hold the truth");
}

#[test]
fn a_published_run_of_two_flags_goes_on_until_every_effect_has_its_verdict() {
    // Of the interaction, on the margin, no number of replicates can tell.
    let world = TwoFlags::new(7, -0.1, 0.0, -0.02);
    let of = |replicates| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("two-flags-published-{replicates}.jsonl"));
        fs::write(&path, journal_text(&world.published_lines(replicates))).expect("written");
        let run = AbRun::load(&path).expect("it loads");
        AbSummary::of(&run, Path::new("reports/x")).expect("a sound run")
    };
    let [five, eight, twelve] = [5, 8, 12].map(of);
    let words = |summary: &AbSummary| -> Vec<&str> {
        summary.contrasts.iter().map(|c| c.verdict).collect()
    };
    assert_eq!(words(&five), ["FASTER", "EQUIVALENT", "INCONCLUSIVE"]);
    assert_eq!(words(&five), words(&twelve));
    let published = |summary: &AbSummary| summary.published.clone().expect("published");
    let finished = [&five, &eight, &twelve].map(|s| published(s).finished);
    assert_eq!(finished, [false, false, true]);
    assert_eq!(published(&eight).replicates, 8, "of the interaction");
    assert!(
        five.more_time
            .contains("3 more replicates to the look at 8"),
        "{}",
        five.more_time
    );
    assert!(five.contrasts[0].more_time.starts_with("nothing more"));
    // What had its verdict keeps it, and its replicates.
    assert_eq!(five.contrasts[0], twelve.contrasts[0]);
    let counts = twelve
        .contrasts
        .iter()
        .map(|c| c.replicate_effects_pct.len());
    assert_eq!(counts.collect::<Vec<_>>(), [5, 5, 12]);
    assert_eq!(twelve.arms.len(), 5, "A, B, C, D and S");
    assert!((twelve.ci_level_pct.expect("a level") - 98.3).abs() < 0.1);
    assert!(
        twelve.title.contains("INCONCLUSIVE (published"),
        "{}",
        twelve.title
    );
    assert_eq!(published(&twelve).replicate_effects_pct, Vec::<f64>::new());
}

fn loaded(test: &str, change: impl FnOnce(&mut Vec<Line>)) -> AbRun {
    let mut lines = TwoFlags::new(7, -0.05, 0.0, 0.0).lines();
    change(&mut lines);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("two-flags-{test}.jsonl"));
    fs::write(&path, journal_text(&lines)).expect("a journal can be written");
    AbRun::load(&path).expect("it loads")
}

#[test]
fn the_document_has_three_verdicts_and_none_of_the_whole() {
    let run = loaded("whole", |_| {});
    let summary = AbSummary::of(&run, Path::new("reports/x")).expect("a sound run");
    let title = &summary.title;
    for part in [
        "A/B splitk,fuseqk on SmolLM2 (requantised): splitk FASTER by ",
        ", fuseqk EQUIVALENT (",
        ", splitk \u{d7} fuseqk INDEPENDENT (",
    ] {
        assert!(title.contains(part), "{title} lacks {part}");
    }
    // exp(-0.05) - 1, by twelve blocks of a standard error of 0.2 %.
    let first = summary.contrasts[0].effect_pct.expect("an effect");
    assert!((first + 4.88).abs() < 0.8, "{first}");
    let json = serde_json::to_value(&summary).expect("JSON");
    assert_eq!(json["verdict"], serde_json::Value::Null, "of the whole");
    assert_eq!(json["arms"].as_array().map(Vec::len), Some(4), "arms");
    for (at, kind) in ["main_effect", "main_effect", "interaction"]
        .iter()
        .enumerate()
    {
        let contrast = &json["contrasts"][at];
        assert_eq!(contrast["kind"], *kind, "{contrast}");
        for field in ["effect_pct", "ci_pct", "mde_pct", "verdict", "more_time"] {
            assert!(!contrast[field].is_null(), "{field} of {contrast}");
        }
    }
    assert!(summary.control.effect_pct.is_some(), "the control");
}

#[test]
fn unproven_unchanged_and_unequal_arms_are_refused() {
    let of = |run: &AbRun| AbSummary::of(run, Path::new("reports/x"));
    for arm in [Arm::A, Arm::B, Arm::C, Arm::D] {
        let run = loaded("unproven", |lines| {
            lines.retain(|line| !matches!(line, Line::Check(check) if check.arm == arm));
        });
        let refused = of(&run);
        let expected = matches!(&refused, Err(SummaryError::Unproven { arm: a, .. }) if *a == arm);
        assert!(expected, "{refused:?}");
    }
    let mut run = loaded("same", |_| {});
    run.run.arms[3] = run.run.arms[1].clone();
    let refused = of(&run).expect_err("B and D are the same").to_string();
    assert!(refused.contains("the arms B and D"), "{refused}");
    let run = loaded("work", |lines| {
        for line in lines {
            if let Line::Sample(sample) = line
                && sample.arm == Arm::D
            {
                sample.dispatches += 1;
            }
        }
    });
    let refused = of(&run);
    let expected = matches!(refused, Err(SummaryError::DifferentWork { .. }));
    assert!(expected, "{refused:?}");
    let run = loaded("failed", |lines| {
        for line in lines {
            if let Line::Check(check) = line
                && check.arm == Arm::C
            {
                (check.passed, check.worst_ratio) = (false, 3.0);
            }
        }
    });
    let summary = of(&run).expect("a wrong result is worth a report");
    assert!(summary.title.contains("CHECK FAILED"), "{}", summary.title);
    assert!(summary.contrasts.is_empty(), "{summary:?}");
    let times = summary.arms.iter().map(|arm| arm.decode_ms_per_token);
    assert!(times.flatten().next().is_none(), "{summary:?}");
}

#[test]
fn blocks_that_do_not_mirror_are_errors() {
    let mut samples = TwoFlags::new(1, 0.0, 0.0, 0.0).samples();
    samples.swap(0, 1);
    (samples[0].position, samples[1].position) = (0, 1);
    let error = blocks(&samples, Arm::OF_TWO_FLAGS).expect_err("the halves differ");
    assert!(
        matches!(error, StatsError::Order { block: 0, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("A A' B C D once"), "{error}");
    let mut short = TwoFlags::new(1, 0.0, 0.0, 0.0).samples();
    short.truncate(short.len() - 3);
    let short = blocks(&short, Arm::OF_TWO_FLAGS).expect("an incomplete last block is dropped");
    assert_eq!(short.complete.len(), 11, "complete blocks");
    assert!(
        short.dropped.is_some_and(|note| note.contains("7 of 10")),
        "said"
    );
}

#[test]
fn a_journal_has_no_line_of_an_arm_that_its_run_has_not() {
    let path = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut of_one = lines(run(), &simulated::World::new(1, 0.0));
    for line in &mut of_one {
        if let Line::Check(check) = line {
            check.arm = Arm::D;
        }
    }
    let journal = path("two-flags-arm.jsonl");
    fs::write(&journal, journal_text(&of_one)).expect("written");
    let error = AbRun::load(&journal).expect_err("arm D of two").to_string();
    assert!(
        error.contains("a line of arm D, which a run of 2 arms has not"),
        "{error}"
    );

    let mut three = TwoFlags::new(1, 0.0, 0.0, 0.0).lines();
    if let Line::Run(run) = &mut three[0] {
        run.arms.pop();
    }
    let journal = path("two-flags-three.jsonl");
    fs::write(&journal, journal_text(&three)).expect("written");
    let error = AbRun::load(&journal).expect_err("three arms").to_string();
    assert!(
        error.contains("expected two arms, or four of two flags"),
        "{error}"
    );
}
