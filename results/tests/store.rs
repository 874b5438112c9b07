//! The store, its questions and its merges.

mod simulated;

use std::fs;
use std::path::{Path, PathBuf};

use results::history::Standing;
use results::merge::merge;
use results::query::{Format, TABLES, describe, query};
use results::sheet::{self, CheckedKernel, KernelTime, Kind, Rows};
use results::store::Store;
use results::tokens::TokenTimes;
use simulated::{World, bench_lines, check, journal_text, lines, run};

use results::record::{Arm, Line};

fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("store")
        .join(test);
    if path.exists() {
        fs::remove_dir_all(&path).expect("an old test folder can be removed");
    }
    fs::create_dir_all(&path).expect("a test folder can be made");
    path
}

fn put(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a test folder can be made");
    fs::write(&path, text).expect("a file can be written");
    path
}

fn world(seed: u64) -> World {
    World {
        blocks: 8,
        ..World::new(seed, -0.05)
    }
}

/// The text of a small journal of this id.
fn journal(id: &str, seed: u64) -> String {
    let mut run = run();
    run.id = id.to_owned();
    journal_text(&lines(run, &world(seed)))
}

fn checked(variant: &str, shard: &str) -> CheckedKernel {
    CheckedKernel {
        adapter: "Simulated adapter".into(),
        driver: "none".into(),
        seed: 7,
        shard: shard.into(),
        variant: variant.into(),
        cases: 3,
        passed: 3,
        failed: 0,
        skipped: 0,
        unrun: String::new(),
    }
}

fn kernel_time(sample: u64) -> KernelTime {
    KernelTime {
        model: "phi3-mini".into(),
        adapter: "Simulated adapter".into(),
        driver: "none".into(),
        timestamps: true,
        site: "o".into(),
        variant: "int4_matmul".into(),
        shape: "3072 x 3072".into(),
        mode: "cold".into(),
        dispatches_per_token: 32,
        weight_bytes: 5_308_416,
        weight_sets: 8,
        sample,
        dispatches: 10,
        ns: 77_500,
        weight_flops: Some(18_874_368),
        roof_gb_s: Some(4000.0),
    }
}

#[test]
fn every_table_answers_and_its_columns_are_described() {
    let folder = folder("tables");
    put(
        &folder,
        "2026-11-30-splitk.jsonl",
        &journal("2026-11-30-splitk", 1),
    );
    let bench = journal_text(&bench_lines("2026-11-30-bench", &TIMES));
    put(&folder, "2026-11-30-bench.jsonl", &bench);
    sheet::write(&folder.join("times.csv"), &[kernel_time(0), kernel_time(1)]).expect("written");
    sheet::write(&folder.join("checks.csv"), &[checked("rope", "1/1")]).expect("written");
    let store = Store::read(&folder).expect("it reads");
    assert!(store.refused.is_empty(), "refused {:?}", store.refused);
    let help = describe();
    for table in TABLES {
        let statement = format!("SELECT * FROM {}", table.name);
        let answer = query(&store, &statement).expect("it answers");
        let names: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
        assert_eq!(answer.columns, names, "{}", table.name);
        assert!(
            names.iter().all(|name| help.contains(name)),
            "{}",
            table.name
        );
        let of_others = [
            "external",
            "history",
            "qualities",
            "replicates",
            "sentinels",
        ];
        let empty = of_others.contains(&table.name);
        assert_eq!(answer.rows.is_empty(), empty, "{}", table.name);
    }
    let samples = query(&store, "SELECT count(*) AS n FROM samples").expect("it answers");
    assert_eq!(
        samples.rows[0][0],
        48 + 4,
        "8 blocks of 6 elements, 4 repetitions"
    );
    let role = query(&store, "SELECT DISTINCT role FROM kernel_times").expect("it answers");
    assert_eq!(role.rows[0][0], "int4_matmul");
}

#[test]
fn the_verdict_is_that_of_the_summary() {
    let folder = folder("verdict");
    put(
        &folder,
        "2026-11-30-splitk.jsonl",
        &journal("2026-11-30-splitk", 1),
    );
    let store = Store::read(&folder).expect("it reads");
    let answer = query(
        &store,
        "SELECT verdict, effect_pct < ci_high_pct AND effect_pct > ci_low_pct AS inside, \
         round(effect_pct) AS effect FROM runs",
    )
    .expect("it answers");
    assert_eq!(answer.rows[0][0], "FASTER");
    assert_eq!(
        (&answer.rows[0][1], &answer.rows[0][2]),
        (&1.into(), &(-5.0).into())
    );
}

#[test]
fn a_failed_check_withholds_every_time() {
    let folder = folder("withheld");
    let mut failed = lines(run(), &world(1));
    let mut wrong = check(Arm::B, "logits", "int4_matmul", 3.0);
    wrong.passed = false;
    failed.insert(1, Line::Check(wrong));
    put(&folder, "2026-11-30-splitk.jsonl", &journal_text(&failed));
    let store = Store::read(&folder).expect("it reads");
    let count = |table: &str| {
        let answer = query(&store, &format!("SELECT count(*) FROM {table}")).expect("it answers");
        answer.rows[0][0].as_i64().expect("a number")
    };
    for table in ["samples", "spans", "prefills", "contexts"] {
        assert_eq!(count(table), 0, "{table}");
    }
    assert_eq!(
        (count("runs"), count("shaders") > 0),
        (1, true),
        "the rest is there"
    );
}

#[test]
fn a_question_reads_and_does_nothing_else() {
    let folder = folder("read_only");
    let file = folder.join("out.sqlite");
    let store = Store::default();
    for statement in [
        "DELETE FROM runs",
        "INSERT INTO history VALUES (1,2,3,4,5)",
        "CREATE TABLE t (a)",
        "PRAGMA query_only = 0",
        &format!("ATTACH '{}' AS x", file.display()),
        &format!("VACUUM INTO '{}'", file.display()),
    ] {
        let error = query(&store, statement).expect_err(statement).to_string();
        assert!(error.contains("more than read"), "{statement}: {error}");
    }
    assert!(!file.exists(), "a file was written");
    let two = query(&store, "SELECT 1; SELECT 2")
        .expect_err("two statements")
        .to_string();
    assert!(two.contains("more than one"), "{two}");
    let none = query(&store, "SELECT nothing FROM runs").expect_err("no such column");
    let none = none.to_string();
    assert!(
        none.contains("nothing") && none.contains("kernel_times"),
        "{none}"
    );
    for empty in ["", "-- a remark"] {
        assert!(query(&store, empty).is_err(), "{empty:?} has an answer");
    }
}

#[test]
fn an_answer_is_written_in_every_format() {
    let answer = query(
        &Store::default(),
        "SELECT 'a|b' AS text, 1.5 AS number, NULL AS none",
    )
    .expect("it answers");
    let print = |format| answer.print(format);
    assert_eq!(print(Format::Text), "text  number  none\na|b      1.5\n");
    assert_eq!(print(Format::Csv), "text,number,none\na|b,1.5,\n");
    assert_eq!(
        print(Format::Markdown),
        "| text | number | none |\n| --- | ---: | --- |\n| a\\|b | 1.5 |  |\n"
    );
    let line = "{\"text\":\"a|b\",\"number\":1.5,\"none\":null}\n";
    assert_eq!(print(Format::JsonLines), line);
    let json: serde_json::Value = serde_json::from_str(&print(Format::Json)).expect("JSON");
    assert_eq!(json[0]["number"], 1.5);
}

#[test]
fn sheets_come_back_and_their_columns_are_their_types() {
    let folder = folder("sheets");
    let (times, checks) = (folder.join("times.csv"), folder.join("checks.csv"));
    let rows = vec![kernel_time(0), kernel_time(1)];
    sheet::write(&times, &rows).expect("written");
    sheet::write(&checks, &[checked("rope", "1/1")]).expect("written");
    assert_eq!(
        sheet::read(&times).expect("it reads"),
        Rows::KernelTimes(rows)
    );
    for (file, kind) in [(&times, Kind::KernelTimes), (&checks, Kind::CheckedKernels)] {
        let head = fs::read_to_string(file).expect("text");
        let head = head.lines().next().expect("a head line").to_owned();
        assert_eq!(
            head,
            kind.columns().join(","),
            "the columns are those of the type"
        );
        assert!(
            sheet::write(file, &[checked("rope", "1/1")]).is_err(),
            "overwritten"
        );
    }
    for (file, part) in [
        (times.clone(), "exists"),
        (folder.join("no/t.csv"), "a folder"),
    ] {
        let error = sheet::require_writable(&file).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let free = folder.join("free.csv");
    sheet::require_writable(&free).expect("it can be made");
    assert!(!free.exists(), "nothing is left");
    // A sheet that is older than its last two columns.
    let text = fs::read_to_string(&times).expect("text");
    let cells = |line: &str| line.split(',').take(14).collect::<Vec<_>>().join(",") + "\n";
    let older = put(
        &folder,
        "older.csv",
        &text.lines().map(cells).collect::<String>(),
    );
    let Rows::KernelTimes(found) = sheet::read(&older).expect("it reads") else {
        panic!("kernel times");
    };
    assert_eq!((found[1].weight_flops, found[1].roof_gb_s), (None, None));
    assert_eq!(found[1].ns, 77_500);
    let error = merge(&[times.clone(), older]).expect_err("other columns");
    assert!(error.to_string().contains("other columns"), "{error}");
    let other = put(&folder, "other.csv", "a,b\n1,2\n");
    let error = sheet::read(&other).expect_err("no sheet").to_string();
    assert!(
        error.contains("found a,b") && error.contains("adapter,driver,seed"),
        "{error}"
    );
    let bad = fs::read_to_string(&times)
        .expect("text")
        .replace("77500", "fast");
    let error = sheet::read(&put(&folder, "bad.csv", &bad)).expect_err("a word for a time");
    assert!(error.to_string().contains("line"), "{error}");
}

#[test]
fn shards_merge_and_what_does_not_belong_together_is_refused() {
    let folder = folder("merge");
    let file = |name: &str| folder.join(name);
    sheet::write(&file("1.csv"), &[checked("rope", "1/3")]).expect("written");
    sheet::write(&file("2.csv"), &[checked("argmax", "2/3")]).expect("written");
    sheet::write(&file("t.csv"), &[kernel_time(0)]).expect("written");
    let merged = merge(&[file("1.csv"), file("2.csv")]).expect("they merge");
    assert_eq!(merged.what, "2 rows");
    assert_eq!(merged.notes, ["part 3/3 is not there"]);
    let all = put(&folder, "all.csv", &merged.text);
    let expected = vec![checked("rope", "1/3"), checked("argmax", "2/3")];
    assert_eq!(
        sheet::read(&all).expect("it reads"),
        Rows::CheckedKernels(expected)
    );

    let a = put(&folder, "a.jsonl", &journal("a", 1));
    let whole = journal("b", 2);
    // Killed in its last line.
    let b = put(&folder, "b.jsonl", &whole[..whole.len() - 9]);
    let merged = merge(&[a.clone(), b.clone(), a.clone()]).expect("they merge");
    assert_eq!(merged.what, "2 runs");
    assert!(
        merged.notes.iter().any(|note| note.contains("torn")),
        "{:?}",
        merged.notes
    );
    assert!(
        merged.notes.iter().any(|note| note.contains("taken once")),
        "{:?}",
        merged.notes
    );
    let both = put(&folder, "both.jsonl", &merged.text);
    let store = Store::read(&both).expect("it reads");
    let ids: Vec<&str> = store.runs.iter().map(|run| run.run.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(store.runs[0].samples.len(), 48);

    let other = put(&folder, "c.jsonl", &journal("a", 3));
    let newer = journal("d", 1).replace("\"schema\":1", "\"schema\":9");
    let newer = put(&folder, "d.jsonl", &newer);
    for (files, reason) in [
        (vec![file("1.csv"), file("1.csv")], "measured twice"),
        (vec![file("1.csv"), file("t.csv")], "other columns"),
        (vec![file("1.csv"), a.clone()], "merge each kind by itself"),
        (vec![a.clone(), other], "both hold run a"),
        (vec![a.clone(), newer], "schema 9"),
        (vec![a.clone(), file("none.jsonl")], "reading the journal"),
        (vec![a], "at least two files"),
        (vec![], "at least two files"),
    ] {
        let error = merge(&files).expect_err(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_merged_journal_names_the_line_of_the_file() {
    let folder = folder("lines");
    let text = journal("a", 1);
    let count = text.lines().count();
    let second = journal("b", 1).replacen('\n', "\nnonsense\n", 1);
    let bad = put(&folder, "ab.jsonl", &format!("{text}{second}"));
    let error = merge(&[bad.clone(), bad]).expect_err("a line of no kind");
    let error = error.to_string();
    assert!(
        error.contains(&format!(":{}: not JSON", count + 2)),
        "{error}"
    );
}

#[test]
fn the_history_stands_beside_the_records() {
    let folder = folder("history");
    put(&folder, "a.jsonl", &journal("a", 1));
    put(&folder, "b.jsonl", &journal("b", 2));
    let entry = |text: &str| {
        put(&folder, "history.json", text);
        Store::read(&folder).expect("it reads")
    };
    let store = entry(
        r#"[{"run":"a","standing":"superseded","date":"2026-12-01","by":"b","why":"a longer prompt"}]"#,
    );
    assert!(store.refused.is_empty(), "refused {:?}", store.refused);
    assert_eq!(store.standing("a"), Standing::Superseded);
    assert_eq!(store.standing("b"), Standing::Current);
    let asked = query(&store, "SELECT run FROM runs WHERE standing = 'current'");
    assert_eq!(
        asked.expect("it answers").rows,
        [[serde_json::Value::from("b")]]
    );
    for (text, reason) in [
        ("{}", "expected a JSON array"),
        (
            r#"[{"run":"a","standing":"withdrawn","date":"2026-12-01","why":""}]"#,
            "no reason",
        ),
        (
            r#"[{"run":"a","standing":"superseded","date":"2026-12-01","why":"x"}]"#,
            "by which run",
        ),
        (
            r#"[{"run":"a","standing":"current","date":"2026-12-01","why":"x"}]"#,
            "without one",
        ),
        (
            r#"[{"run":"z","standing":"withdrawn","date":"2026-12-01","why":"x"}]"#,
            "not recorded",
        ),
    ] {
        let refused = entry(text).refused;
        assert!(
            refused.iter().any(|(_, why)| why.contains(reason)),
            "{reason}: {refused:?}"
        );
    }
}

/// Sixteen tokens in 32.8 ms, the median of an even number of repetitions.
const TIMES: [[u64; 2]; 4] = [
    [5_000_000, 33_600_000],
    [9_000_000, 32_000_000],
    [4_000_000, 30_400_000],
    [5_000_000, 144_000_000],
];

#[test]
fn times_of_whole_tokens_are_recorded_and_asked() {
    let folder = folder("token_times");
    let id = "2026-11-30-bench-smollm2-135m";
    let text = journal_text(&bench_lines(id, &TIMES));
    put(&folder, &format!("{id}.jsonl"), &text);
    put(&folder, "ab.jsonl", &journal("2026-11-30-splitk", 1));
    let store = Store::read(&folder).expect("read");
    assert_eq!((store.runs.len(), store.benches.len()), (1, 1));
    assert!(store.refused.is_empty(), "{:?}", store.refused);
    let times = TokenTimes::of(&store.benches[0]).expect("valid");
    let times = times.expect("proven");
    for (what, found, expected) in [
        ("to the first, ms", times.ttft_ms, 5.0),
        ("tokens a second", times.decode_tok_s, 16.0 / 0.0328),
        ("GB/s", times.read_gb_s, 4.1e6 / (0.0328 / 16.0) / 1e9),
        (
            "GFLOP/s",
            times.gflop_s.expect("counted"),
            269.16e6 / (0.0328 / 16.0) / 1e9,
        ),
        ("% of the roof", times.pct_of_roof.expect("a roof"), 50.0),
    ] {
        assert!((found - expected).abs() < 1e-9, "{what}: {found}");
    }
    assert_eq!((times.repetitions, times.void), (4, None));
    let asked = |sql: &str| query(&store, sql).expect("an answer").print(Format::Csv);
    let found =
        asked("SELECT run, repetitions, ttft_ms, prompt_tokens, checks_passed FROM token_times");
    let row = format!("{id},4,5.0,41,1");
    assert!(found.contains(&row), "{found}");
    let found = asked(&format!("SELECT count(*) FROM samples WHERE run = '{id}'"));
    assert!(found.contains('4'), "{found}");
    // It compares nothing, and so is no A/B.
    let found = asked(&format!(
        "SELECT count(*) AS n FROM runs WHERE run = '{id}'"
    ));
    assert!(found.contains("\n0"), "{found}");
}

#[test]
fn times_of_whole_tokens_need_a_proof_and_a_bound() {
    let id = "2026-11-30-bench-smollm2-135m";
    let folder = folder("token_times_void");
    let mut fast = bench_lines(id, &[[1_000, 16_000]]);
    let load = |lines: &[Line]| {
        let path = put(&folder, "bench.jsonl", &journal_text(lines));
        results::journal::AbRun::load(&path).expect("a journal")
    };
    let void = TokenTimes::of(&load(&fast))
        .expect("valid")
        .expect("proven")
        .void;
    assert!(
        void.is_some_and(|void| void.contains("4100.0 GB/s")),
        "4.1 MB in a microsecond"
    );
    let slow = bench_lines(id, &[[1_000_000, 320_000_000]]);
    let slow = TokenTimes::of(&load(&slow))
        .expect("valid")
        .expect("proven");
    let below = slow.suspicious.expect("4.1 MB in 20 ms");
    assert!(below.starts_with("5.1 % of the roof"), "{below}");
    assert_eq!(slow.void, None, "it may be so");
    // A record from before operations were counted.
    let mut old = bench_lines(id, &TIMES);
    let Line::Run(run) = &mut old[0] else {
        panic!("a run line");
    };
    run.model.flops_per_token = None;
    run.bench.as_mut().expect("a bench").kv_flops_per_token = None;
    assert!(!journal_text(&old).contains("flops"), "as it was written");
    let times = TokenTimes::of(&load(&old)).expect("valid").expect("proven");
    assert_eq!((times.flops_per_token, times.gflop_s), (None, None));
    // Killed in the middle of a repetition: the whole ones count.
    let whole = bench_lines(id, &TIMES);
    let killed = TokenTimes::of(&load(&whole[..7])).expect("valid");
    assert_eq!(killed.expect("two of them").repetitions, 2);
    assert_eq!(
        TokenTimes::of(&load(&whole[..3])).expect("valid"),
        None,
        "none is whole"
    );
    fast[1] = Line::Check(check(Arm::A, "logits", "int4_matmul", 1.7));
    assert_eq!(
        TokenTimes::of(&load(&fast)).expect("valid"),
        None,
        "a check failed"
    );
    fast.remove(1);
    assert_eq!(
        TokenTimes::of(&load(&fast)).expect("valid"),
        None,
        "nothing was checked"
    );
    let Line::Run(run) = &mut fast[0] else {
        panic!("a run line");
    };
    run.arms.push(run.arms[0].clone());
    let error = run.validate().expect_err("two arms");
    assert!(error.contains("expected one arm"), "{error}");
}
