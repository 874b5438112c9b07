//! The journal: what is written is read back, a kill loses one line at most,
//! and a bad line is named.

mod simulated;

use std::fs;
use std::path::{Path, PathBuf};

use results::journal::{AbRun, JournalError, JournalWriter, next_run_id};
use results::record::{Arm, Context, End, Line, Status};
use simulated::{World, check, journal_text, lines, run};

fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("journal")
        .join(test);
    if path.exists() {
        fs::remove_dir_all(&path).expect("an old test folder can be removed");
    }
    fs::create_dir_all(&path).expect("a test folder can be made");
    path
}

fn load(test: &str, text: &[u8]) -> Result<AbRun, JournalError> {
    let path = folder(test).join("run.jsonl");
    fs::write(&path, text).expect("a journal can be written");
    AbRun::load(&path)
}

fn message(test: &str, text: &[u8]) -> String {
    match load(test, text) {
        Ok(run) => panic!("{test}: expected an error, found {run:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_read_back() {
    let path = folder("round_trip").join("data/2026-11-30-splitk.jsonl");
    let lines = lines(run(), &World::new(1, -0.03));
    let mut writer = JournalWriter::create(&path, &run()).expect("a new journal");
    for line in &lines[1..] {
        writer.append(line).expect("a valid line");
    }
    assert!(writer.append(&lines[1]).is_err(), "a line after the end");
    let loaded = AbRun::load(&path).expect("it loads");
    let mut again = vec![Line::Run(Box::new(loaded.run.clone()))];
    again.extend(loaded.checks.iter().cloned().map(Line::Check));
    again.extend(loaded.prefills.iter().cloned().map(Line::Prefill));
    again.extend(loaded.samples.iter().cloned().map(Line::Sample));
    again.extend(loaded.context.iter().cloned().map(Line::Context));
    again.extend(loaded.end.iter().cloned().map(Line::End));
    assert!(again == lines, "other lines came back");
    assert_eq!(loaded.status(), Status::Complete);

    let existing = JournalWriter::create(&path, &run());
    assert!(
        matches!(existing, Err(JournalError::Exists { .. })),
        "an existing run was overwritten: {existing:?}"
    );
}

#[test]
fn values_that_json_lacks_come_back() {
    let mut failed = check(Arm::A, "logits", "int4_matmul", f64::NAN);
    failed.worst_abs = f64::INFINITY;
    failed.worst_rel = f64::NEG_INFINITY;
    let text = journal_text(&[Line::Run(Box::new(run())), Line::Check(failed)]);
    let loaded = load("not_finite", text.as_bytes()).expect("it loads");
    let check = &loaded.checks[0];
    assert!(check.worst_ratio.is_nan(), "{check:?}");
    assert_eq!(check.worst_abs, f64::INFINITY);
    assert_eq!(check.worst_rel, f64::NEG_INFINITY);
}

#[test]
fn every_cut_loads_or_says_that_there_is_no_run() {
    let world = World {
        blocks: 1,
        ..World::new(3, 0.0)
    };
    let mut lines = lines(run(), &world);
    // One line of each kind: every byte is a file that is read.
    lines.dedup_by_key(|line| std::mem::discriminant(line));
    let text = journal_text(&lines);
    let path = folder("cuts").join("run.jsonl");
    let first = text.find('\n').expect("lines") + 1;
    for cut in 0..text.len() {
        fs::write(&path, &text[..cut]).expect("a journal can be written");
        match AbRun::load(&path) {
            Ok(loaded) => {
                let whole = text[..cut].ends_with('\n');
                assert_eq!(loaded.notes.is_empty(), whole, "cut at {cut}");
                assert_eq!(loaded.status(), Status::Interrupted, "cut at {cut}");
            }
            Err(JournalError::NoRun { .. }) => assert!(cut < first, "cut at {cut}"),
            Err(error) => panic!("cut at {cut}: {error}"),
        }
    }
}

#[test]
fn bad_journals_are_named() {
    let run_line = journal_text(&[Line::Run(Box::new(run()))]);
    let end = journal_text(&[Line::End(End {
        status: Status::Complete,
        reason: None,
    })]);
    let with = |line: &str| format!("{run_line}{line}{end}").into_bytes();

    let torn_inside = message("inside", &with("{\"kind\":\"sam\n"));
    assert!(
        torn_inside.contains("run.jsonl:2: not JSON"),
        "{torn_inside}"
    );
    let unknown = message("kind", &with("{\"kind\":\"smaple\"}\n"));
    assert!(
        unknown.contains(":2:") && unknown.contains("smaple"),
        "{unknown}"
    );
    let field = message(
        "field",
        &with("{\"kind\":\"end\",\"status\":\"complete\",\"x\":1}\n"),
    );
    assert!(field.contains(":2:") && field.contains('x'), "{field}");
    let other = run_line.replace("\"schema\":1", "\"schema\":9");
    let schema = message("schema", other.as_bytes());
    assert!(
        schema.contains("schema 9") && schema.contains("schema 1"),
        "{schema}"
    );
    for (test, text) in [("empty", ""), ("no_run", end.as_str())] {
        let none = message(test, text.as_bytes());
        assert!(none.contains("no `run` line"), "{none}");
    }
    let late = message("late", format!("{end}{run_line}").as_bytes());
    assert!(late.contains(":1:") && late.contains("first"), "{late}");
    let twice = message("twice", &with(&run_line));
    assert!(twice.contains(":2:") && twice.contains("second"), "{twice}");
    let after = message("after", format!("{run_line}{end}{end}").as_bytes());
    assert!(after.contains(":3:"), "{after}");
}

#[test]
fn lines_that_contradict_themselves_are_refused() {
    let path = folder("refused").join("run.jsonl");
    let mut writer = JournalWriter::create(&path, &run()).expect("a new journal");
    let mut passed = check(Arm::A, "logits", "int4_matmul", 2.0);
    passed.passed = true;
    let mut vacuous = check(Arm::A, "logits", "int4_matmul", 0.0);
    vacuous.elements = 0;
    let context = Context {
        arm: Arm::Control,
        context: 1,
        tokens: 1,
        wall_ns: 1,
    };
    let timeless = Context {
        arm: Arm::A,
        context: 1,
        tokens: 1,
        wall_ns: 0,
    };
    for line in [
        Line::Check(passed),
        Line::Check(vacuous),
        Line::Context(context),
        Line::Context(timeless),
        Line::Run(Box::new(run())),
    ] {
        assert!(writer.append(&line).is_err(), "accepted {line:?}");
    }
    for id in ["../up", "", ".hidden", "a/b"] {
        let mut bad = run();
        bad.id = id.to_owned();
        assert!(
            JournalWriter::create(&path.with_extension("x"), &bad).is_err(),
            "id {id:?}"
        );
    }
    let mut sums = run();
    sums.arms[0].dispatches_per_token += 1;
    assert!(
        JournalWriter::create(&path.with_extension("y"), &sums).is_err(),
        "wrong sum"
    );
}

#[test]
fn the_next_id_of_a_day_is_free() {
    let folder = folder("next");
    let (data, reports) = (folder.join("data"), folder.join("reports"));
    let next = || next_run_id(&[&data, &reports], "2026-11-30", "splitk");
    assert_eq!(
        next().expect("missing folders are empty"),
        "2026-11-30-splitk"
    );
    fs::create_dir_all(reports.join("2026-11-30-splitk")).expect("a report");
    fs::create_dir_all(&data).expect("a folder");
    assert_eq!(next().expect("an id"), "2026-11-30-splitk-2");
    fs::write(data.join("2026-11-30-splitk-2.jsonl"), "").expect("a journal");
    assert_eq!(next().expect("an id"), "2026-11-30-splitk-3");
    for (date, topic) in [
        ("30.11.2026", "splitk"),
        ("2026-11-30", "a/b"),
        ("2026-11-30", ""),
    ] {
        assert!(
            next_run_id(&[&data], date, topic).is_err(),
            "{date} {topic}"
        );
    }
}
