//! Reports of simulated runs: the same bytes twice, every required fact, and
//! well-formed pictures.

#[path = "../../results/tests/simulated/mod.rs"]
mod simulated;

use std::fs;
use std::path::{Path, PathBuf};

use reports::{ReportError, Reports, ab, reports};
use results::journal::AbRun;
use results::record::{Arm, End, Line, Run, Status, Weights};
use simulated::two_flags::TwoFlags;
use simulated::{World, check, hash, journal_text, lines, run};

/// A fresh folder of this test.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("ab_report")
        .join(test);
    if path.exists() {
        fs::remove_dir_all(&path).expect("an old test folder can be removed");
    }
    fs::create_dir_all(path.join("data")).expect("a test folder can be made");
    path
}

fn put(folder: &Path, id: &str, text: &str) -> PathBuf {
    let path = folder.join("data").join(format!("{id}.jsonl"));
    fs::write(&path, text).expect("a journal can be written");
    path
}

fn world() -> World {
    World::new(7, -0.035)
}

/// The reports of a folder's data, written into a folder.
fn regenerate(folder: &Path, into: &Path, only: Option<&str>) -> (Reports, Vec<PathBuf>) {
    let made = reports(&folder.join("data"), only).expect("reports are made");
    let written = made.pages.write(into).expect("and written");
    (made, written)
}

/// The page of a journal of these lines.
fn page_of(test: &str, lines: &[Line]) -> (String, PathBuf) {
    let folder = folder(test);
    let journal = put(&folder, "2026-11-30-splitk", &journal_text(lines));
    let run = AbRun::load(&journal).expect("the journal loads");
    let report = folder.join("report");
    ab::write(&run, &report).expect("the report is written");
    let page = fs::read_to_string(report.join("README.md")).expect("the page exists");
    (page, report)
}

#[test]
fn the_same_journal_gives_the_same_bytes() {
    let folder = folder("same_bytes");
    put(
        &folder,
        "2026-11-30-splitk",
        &journal_text(&lines(run(), &world())),
    );
    let read = |into: &str| {
        let reports = folder.join(into);
        let (done, written) = regenerate(&folder, &reports, None);
        assert!(done.refused.is_empty(), "refused: {:?}", done.refused);
        let names: Vec<PathBuf> = written
            .iter()
            .map(|path| path.strip_prefix(&reports).expect("inside").to_owned())
            .collect();
        let bytes: Vec<Vec<u8>> = written
            .iter()
            .map(|path| fs::read(path).expect("written files exist"))
            .collect();
        (names, bytes)
    };
    let first = read("one");
    assert_eq!(
        first.0.len(),
        9,
        "a page and three pictures of the run, and four and one over all: {:?}",
        first.0
    );
    assert!(first == read("two"), "a second folder has other bytes");
    assert!(first == read("one"), "writing again changed the bytes");
}

#[test]
fn the_page_names_every_required_fact() {
    let (page, _) = page_of("facts", &lines(run(), &world()));
    let run = run();
    for fact in [
        "# A/B splitk on SmolLM2 (requantised): FASTER by ",
        "Simulated adapter",
        "simulation seeded generator, nothing measured",
        "vulkan",
        "SmolLM2-135M-Instruct",
        "Debian GNU/Linux 12",
        "Simulated processor, 2 cores",
        "rustc 1.95.0",
        "bounds checks off, loop bounding off",
        "with uncommitted changes",
        "not for publication",
        "| seed | 7 |",
        "| **dispatches per token** | 214 | 244 |",
        "| margin declared before the run | \u{b1}2.00 % |",
        "minimum detectable effect",
        "A/A control",
        "what more time would resolve",
        "logits",
        "greedy",
        "arm against arm",
        "int8kv",
        "results/data/2026-11-30-splitk.jsonl",
        "![Time of every element, by arm, splitk](distribution.svg)",
        "](ratio.svg)",
        "](context.svg)",
        run.model.weights_sha256.as_str(),
        run.environment.commit.as_str(),
        run.command.as_str(),
        hash("attention_combine").as_str(),
        &hash("attention_combine")[..12],
    ] {
        assert!(page.contains(fact), "the page lacks {fact:?}:\n{page}");
    }
    let here = env!("CARGO_TARGET_TMPDIR");
    assert!(
        !page.contains(here),
        "the page names a path of this machine"
    );
    assert!(!page.contains("NaN"), "the page shows a NaN");
}

#[test]
fn pictures_are_well_formed() {
    let (_, report) = page_of("pictures", &lines(run(), &world()));
    for name in ["distribution.svg", "ratio.svg", "context.svg"] {
        let svg = fs::read_to_string(report.join(name)).expect("the picture exists");
        let tree = roxmltree::Document::parse(&svg);
        let tree = tree.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tree.root_element().tag_name().name(), "svg", "{name}");
        let texts = tree
            .descendants()
            .filter(|n| n.has_tag_name("text"))
            .count();
        assert!(texts > 10, "{name} has only {texts} texts");
    }
}

#[test]
fn names_cannot_break_pages_or_pictures() {
    let mut run = run();
    run.arms[1].name = "split<k>=\"8\" & |more|".to_owned();
    run.adapter.name = "A | B\nnext <line>".to_owned();
    let (page, report) = page_of("names", &lines(run, &world()));
    assert!(page.contains("A \\| B next <line>"), "{page}");
    for name in ["distribution.svg", "ratio.svg", "context.svg"] {
        let svg = fs::read_to_string(report.join(name)).expect("the picture exists");
        assert!(
            roxmltree::Document::parse(&svg).is_ok(),
            "{name} is not XML"
        );
    }
}

#[test]
fn a_torn_journal_still_reports() {
    let text = journal_text(&lines(run(), &world()));
    let folder = folder("torn");
    // Inside the seventieth element: 11 whole blocks and a torn line.
    let cut = text
        .match_indices("\"kind\":\"sample\"")
        .nth(69)
        .map(|(at, _)| at + 40);
    let journal = put(
        &folder,
        "2026-11-30-splitk",
        &text[..cut.expect("69 samples")],
    );
    let run = AbRun::load(&journal).expect("a torn journal loads");
    ab::write(&run, &folder.join("report")).expect("and reports");
    let page = fs::read_to_string(folder.join("report/README.md")).expect("the page exists");
    for fact in [
        "interrupted",
        "was torn by a kill",
        "3 of 6 elements",
        "| complete blocks | 11 |",
    ] {
        assert!(page.contains(fact), "the page lacks {fact:?}:\n{page}");
    }
    // No sweep was reached, so the curve comes from the elements' parts.
    assert!(folder.join("report/context.svg").exists(), "no curve");
}

#[test]
fn a_failed_check_withholds_every_time() {
    let mut lines = lines(run(), &world());
    let mut failed = check(Arm::B, "layers.9.fused_ffn", "fused_ffn", f64::NAN);
    failed.worst_abs = f64::INFINITY;
    failed.note = Some("element 12 was never written".to_owned());
    lines.insert(1, Line::Check(failed));
    let (page, report) = page_of("failed", &lines);
    let first = page.lines().next().unwrap_or_default();
    assert!(first.contains("CHECK FAILED, times withheld"), "{first}");
    for fact in [
        "No times are given",
        "**1 failed**",
        "element 12 was never written",
        "NaN",
    ] {
        assert!(page.contains(fact), "the page lacks {fact:?}:\n{page}");
    }
    for name in ["distribution.svg", "ratio.svg", "context.svg"] {
        assert!(!report.join(name).exists(), "{name} shows a time");
    }
    assert!(
        page.contains("| decode, ms per token (median) | \u{2013} | \u{2013} |"),
        "{page}"
    );
}

#[test]
fn void_and_synthetic_are_said_in_the_title() {
    let mut run = run();
    run.model.weights = Weights::Synthetic;
    run.model.title = "SmolLM2".to_owned();
    let mut lines = lines(run, &world());
    lines.pop();
    lines.push(Line::End(End {
        status: Status::Void,
        reason: Some("the device was lost".to_owned()),
    }));
    let (page, _) = page_of("void", &lines);
    assert!(
        page.starts_with(
            "# A/B splitk on SmolLM2 (synthetic weights): VOID, times withheld (screening)\n"
        ),
        "{page}"
    );
    assert!(page.contains("the device was lost"), "{page}");
}

#[test]
fn one_bad_journal_does_not_stop_the_others() {
    let folder = folder("selection");
    let data = folder.join("data");
    let empty = reports(&data, None);
    assert!(
        matches!(empty, Err(ReportError::NothingSelected { .. })),
        "an empty selection is an error: {empty:?}"
    );
    put(
        &folder,
        "2026-11-30-splitk",
        &journal_text(&lines(run(), &world())),
    );
    let second = Run {
        id: "2026-11-30-splitk-2".to_owned(),
        ..run()
    };
    put(
        &folder,
        "2026-11-30-splitk-2",
        &journal_text(&lines(second, &world())),
    );
    put(&folder, "broken", "{\n{}\n");
    put(&folder, "copy", &journal_text(&lines(run(), &world())));
    let (all, _) = regenerate(&folder, &folder.join("reports"), None);
    let of_runs = all
        .pages
        .files
        .keys()
        .filter(|file| file.starts_with("2026-11-30-splitk-2"));
    assert_eq!(of_runs.count(), 4, "{:?}", all.pages.files.keys());
    assert_eq!(
        all.refused.len(),
        2,
        "a broken one, and a second of one id: {:?}",
        all.refused
    );

    let one = reports(&data, Some("2026-11-30-splitk-2")).expect("one is made");
    assert_eq!(one.pages.files.len(), 4, "{:?}", one.pages.files.keys());
    let none = reports(&data, Some("2026-11-31")).expect_err("no such run");
    let message = none.to_string();
    assert!(
        message.contains("the run 2026-11-31") && message.contains("2026-11-30-splitk-2"),
        "{message}"
    );
}

#[test]
fn two_flags_have_four_arms_three_verdicts_and_five_pictures() {
    let world = TwoFlags::new(7, -0.05, 0.0, 0.04);
    let (page, report) = page_of("two_flags", &world.lines());
    for fact in [
        "# A/B splitk,fuseqk on SmolLM2 (requantised): splitk FASTER by ",
        "splitk \u{d7} fuseqk INTERFERING (+",
        "`splitk`: whatever the other flag, time changes by \u{2212}",
        "beyond the product of each change alone, both together change time by +",
        "|  | A: `splitk=0 fuseqk=0` | B: `splitk=8 fuseqk=0` | C: `splitk=0 fuseqk=1` | D: `splitk=8 fuseqk=1` |",
        "| **dispatches per token** | 214 | 244 | 214 | 244 |",
        "| `splitk \u{d7} fuseqk` | **INTERFERING**: ",
        "| A/A control, effect |",
        "| D | logits |",
        "](distribution.svg)",
        "](ratio.svg)",
        "](ratio-2.svg)",
        "](interaction.svg)",
        "](context.svg)",
    ] {
        assert!(page.contains(fact), "the page lacks {fact:?}:\n{page}");
    }
    assert!(!page.contains("effect, 100 (B/A"), "of one flag:\n{page}");
    for name in ["distribution", "ratio", "ratio-2", "interaction", "context"] {
        let svg = fs::read_to_string(report.join(format!("{name}.svg"))).expect("a picture");
        roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn a_published_run_of_two_flags_says_every_effect_over_its_replicates() {
    let lines = TwoFlags::new(7, -0.1, 0.0, -0.02).published_lines(12);
    let (page, report) = page_of("published_two_flags", &lines);
    for fact in [
        "`splitk`: whatever the other flag, time changes by",
        "(98.3 % interval ",
        "| effect | verdict | size | 98.3 % interval |",
        "Sizes are means over replicates",
        "## Replicates and gates",
        "| replicates | 12 |",
        "| effect of each replicate | `splitk`: ",
        "S: `splitk=0 with 6.0 % more work`",
    ] {
        assert!(page.contains(fact), "the page lacks {fact:?}:\n{page}");
    }
    let row = page
        .lines()
        .find(|line| line.starts_with("| effect of each replicate"));
    let row = row.expect("a row");
    // Five of the flags that had their verdict, and twelve of the interaction.
    assert_eq!(row.matches(" %").count(), 5 + 5 + 12, "{row}");
    let picture = fs::read_to_string(report.join("distribution.svg")).expect("a picture");
    for arm in ["A: ", "A&#39;: ", "B: ", "C: ", "D: ", "S: "] {
        let found = picture.contains(arm) || picture.contains(&arm.replace("&#39;", "'"));
        assert!(found, "no {arm} in the picture");
    }
}
