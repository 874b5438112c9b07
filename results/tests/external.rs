//! Figures of other engines: what is read, what is refused, what may be compared.

mod simulated;

use results::external::{External, Figure, Given, Kind, SCHEMA, Side, Tool, compare, import, text};
use results::history::Standing;
use results::journal::AbRun;
use results::record::Arm;
use simulated::{World, bench_lines, journal_text, lines, run};

/// What a user says about a file of the tests.
fn given() -> Given {
    Given {
        file: "results.json".into(),
        sha256: "00".repeat(32),
        ..Given::default()
    }
}

fn told() -> Given {
    Given {
        hardware: Some("Some GPU".into()),
        model: Some("phi3-mini".into()),
        quantisation: Some("q4f16_1".into()),
        date: Some("2026-11-30".into()),
        ..given()
    }
}

/// A test of `llama-bench`, invented.
fn llama_test(prompt: u32, decode: u32) -> String {
    format!(
        r#"{{"build_commit":"abc1234","build_number":1,"cpu_info":"Some CPU","gpu_info":"Some GPU",
        "backends":"CUDA","model_filename":"m.gguf","model_type":"phi3 3B Q4_0","model_size":2250000000,
        "model_n_params":4000000000,"n_gpu_layers":99,"flash_attn":false,"n_prompt":{prompt},
        "n_gen":{decode},"n_depth":0,"test_time":"2026-11-30T01:02:03Z","avg_ns":2000000000,
        "stddev_ns":1,"avg_ts":64.0,"stddev_ts":0.1,"samples_ns":[2000000000,2000000000],
        "samples_ts":[64.0,64.0]}}"#
    )
}

#[test]
fn llama_bench_is_read_in_its_formats() {
    let (pp, tg, both) = (llama_test(512, 0), llama_test(0, 128), llama_test(512, 128));
    let array = import(Tool::LlamaBench, &format!("[{pp},{tg},{both}]"), &given()).expect("JSON");
    let [prefill, decode, total] = &array[..] else {
        panic!("three tests, found {array:?}");
    };
    assert_eq!(prefill.prefill_tok_s, Some(64.0));
    assert_eq!(
        (decode.decode_tok_s, decode.prefill_tok_s),
        (Some(64.0), None)
    );
    assert_eq!(
        total.total_tok_s,
        Some(64.0),
        "128 generated tokens in 2 s, its prompt apart"
    );
    assert_eq!(decode.decode_tokens, Some(128));
    assert_eq!(decode.quantisation.as_deref(), Some("Q4_0"));
    assert_eq!(decode.bytes_per_weight, Some(0.5625));
    assert_eq!(decode.statistic.as_deref(), Some("mean of 2"));
    assert_eq!(
        (decode.hardware.as_str(), decode.date.as_str()),
        ("Some GPU", "2026-11-30")
    );
    assert_eq!(decode.engine_version.as_deref(), Some("abc1234"));
    assert_eq!(decode.source_sha256, Some(given().sha256));
    assert_eq!(decode.kind, Kind::Imported);
    let lines = format!("{}\n{}\n", pp.replace('\n', ""), tg.replace('\n', ""));
    assert_eq!(
        import(Tool::LlamaBench, &lines, &given()).expect("JSON lines"),
        array[..2]
    );
    let csv = "build_commit,gpu_info,backends,model_type,model_size,model_n_params,n_prompt,n_gen,\
               n_depth,test_time,avg_ns,avg_ts\n\
               abc1234,Some GPU,CUDA,phi3 3B Q4_0,2250000000,4000000000,0,128,0,\
               2026-11-30T01:02:03Z,2000000000,64.0\n";
    let csv = import(Tool::LlamaBench, csv, &given()).expect("CSV");
    assert_eq!(csv[0].decode_tok_s, Some(64.0));
    let mut ids: Vec<&str> = array.iter().map(|record| record.id.as_str()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each has an id of its own: {ids:?}");
    let renamed = Given {
        model: Some("phi3-mini".into()),
        ..given()
    };
    let renamed = import(Tool::LlamaBench, &tg, &renamed).expect("JSON");
    assert_eq!(renamed[0].model, "phi3-mini");
    assert!(
        renamed[0].notes.iter().any(|n| n.contains("phi3 3B Q4_0")),
        "{:?}",
        renamed[0].notes
    );
}

#[test]
fn webllm_is_read_from_usage_and_from_pairs() {
    let usage = |decode: f64| {
        format!(
            r#"{{"usage":{{"prompt_tokens":35,"completion_tokens":120,"total_tokens":155,
            "extra":{{"e2e_latency_s":2.0,"prefill_tokens_per_s":250.0,
            "decode_tokens_per_s":{decode},"time_to_first_token_s":0.15,
            "time_per_output_token_s":0.016}}}}}}"#
        )
    };
    let three = format!("[{},{},{}]", usage(61.0), usage(63.0), usage(70.0));
    let records = import(Tool::WebLlm, &three, &told()).expect("three completions");
    let [one] = &records[..] else {
        panic!("repetitions are one record, found {records:?}");
    };
    assert_eq!((one.decode_tok_s, one.ttft_ms), (Some(63.0), Some(150.0)));
    assert_eq!((one.total_tok_s, one.prompt_tokens), (Some(60.0), Some(35)));
    assert_eq!(one.statistic.as_deref(), Some("median of 3"));

    let pair = r#"{"model":"Phi-3-mini-4k-instruct-q4f16_1","date":"2026-01-02","hardware":"Some GPU",
        "protocol":"both in turn","zeroTvm":{"totalTokPerS":60.0,"ttftMs":300,"decodeTokPerS":80.0,
        "totalRuns":[60.0,60.0]},"webllm":{"version":"0.0.1","totalTokPerS":50.0,
        "selfReportedDecodeTokPerS":55.0,"totalRuns":null}}"#;
    let halves = import(Tool::WebLlm, pair, &given()).expect("a pair");
    assert_eq!(halves.len(), 2);
    assert_eq!(halves[0].pair, halves[1].pair, "the halves belong together");
    assert_eq!(halves[1].quantisation.as_deref(), Some("q4f16_1"));
    let sides = (Side::external(&halves[0]), Side::external(&halves[1]));
    let compared = compare(&sides.0, &sides.1, Figure::Total);
    assert_eq!(compared.ratio, Some(50.0 / 60.0), "{compared:?}");

    for (text, reason) in [
        (usage(1.0).replace("120", "0"), "0 tokens"),
        (r#"{"usage":{"prompt_tokens":1}}"#.to_owned(), "`extra`"),
        (usage(1.0).replace("2.0", "\"long\""), "expected a number"),
    ] {
        let error = import(Tool::WebLlm, &text, &told())
            .expect_err(reason)
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn transformers_js_is_read_in_both_kinds() {
    let page = r#"{"model":"a/b","device":"webgpu","maxTokens":64,"metrics":{"ttft":250.0,"itl":20.0,
        "tokensGenerated":64,"totalTimeSeconds":2.0,"tokensPerSecond":32.0},"tokenTimestamps":[],
        "timestamp":"2026-01-02T03:04:05Z","userAgent":"Some browser"}"#;
    let records = import(Tool::Tjs, page, &told())
        .expect_err("two dates")
        .to_string();
    assert!(
        records.contains("--date") && records.contains("2026-01-02"),
        "{records}"
    );
    let told = Given {
        date: None,
        ..told()
    };
    let records = import(Tool::Tjs, page, &told).expect("a page");
    assert_eq!(
        (records[0].ttft_ms, records[0].decode_tok_s),
        (Some(250.0), Some(50.0))
    );
    assert_eq!(records[0].date, "2026-01-02");
    let points = r#"{"model":"Some-4B","engine":"transformers.js","date":"2026-01-02",
        "hardware":"Some GPU","points":[{"targetTokens":64,"promptTokens":60,
        "ttftMsRuns":[1.0,2.0,3.0],"ttftMs":2.0,"decodeTokPerS":25.0},
        {"targetTokens":256,"promptTokens":252,"ttftMsRuns":[4.0],"ttftMs":4.0,"decodeTokPerS":24.0}],
        "webgpu":true,"quant":"ONNX q4f16"}"#;
    let records = import(Tool::Tjs, points, &given()).expect("points");
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].backend.as_deref(), Some("WebGPU"));
    assert_eq!(
        (records[1].prompt_tokens, records[1].ttft_ms),
        (Some(252), Some(4.0))
    );
    let error = import(Tool::Tjs, "{\"a\":1}", &told)
        .expect_err("neither")
        .to_string();
    assert!(
        error.contains("`points`") && error.contains("found a"),
        "{error}"
    );
}

#[test]
fn any_tool_is_read_by_the_names_of_the_fields() {
    let csv = "engine,hardware,model,date,decode_tok_s,weights_bytes,parameters\n\
               ExLlama,Some GPU,phi3-mini,2026-11-30,205,2250000000,4000000000\n";
    let records = import(Tool::Generic, csv, &given()).expect("CSV");
    assert_eq!(records[0].bytes_per_weight, Some(0.5625));
    for (text, reason) in [
        (
            r#"{"engine":"E","decode_tok_s":1,"speed":2}"#,
            "unknown field `speed`",
        ),
        (r#"{"engine":"E","decode_tok_s":1}"#, "give --model"),
        (r#"{"decode_tok_s":1}"#, "no `engine`"),
        (
            r#"{"engine":"E","model":"m","date":"yesterday","hardware":"h","decode_tok_s":1}"#,
            "YYYY-MM-DD",
        ),
        (
            r#"{"engine":"E","model":"m","date":"2026-11-30","hardware":"h"}"#,
            "no figure",
        ),
        ("", "empty"),
        ("[]", "no result"),
        ("{\"engine\":", "not JSON"),
    ] {
        let error = import(Tool::Generic, text, &given())
            .expect_err(reason)
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// What is changed on one side, by what the comparison says then.
type Change<'a> = (&'a str, &'a dyn Fn(&mut External));

fn record(id: &str) -> External {
    let one = r#"{"engine":"E","model":"phi3-mini","date":"2026-11-30","hardware":"Some GPU",
        "decode_tok_s":100,"quantisation":"q4f16_1","bytes_per_weight":0.5625,"prompt":"a",
        "prompt_tokens":35,"decode_tokens":128}"#;
    let mut record = import(Tool::Generic, one, &given())
        .expect("a record")
        .remove(0);
    record.id = id.to_owned();
    record.pair = Some("one evening".into());
    record
}

#[test]
fn only_like_goes_with_like() {
    let side = |change: &dyn Fn(&mut External)| {
        let mut other = record("other");
        change(&mut other);
        Side::external(&other)
    };
    let a = Side::external(&record("one"));
    let with = |change: &dyn Fn(&mut External)| compare(&a, &side(change), Figure::Decode);
    let same = with(&|_| ());
    assert_eq!(
        (same.word(), same.ratio),
        ("like for like", Some(1.0)),
        "{same:?}"
    );

    let labelled: [Change<'_>; 7] = [
        ("weights", &|r| r.quantisation = Some("q4f32_1".into())),
        ("bytes per weight", &|r| r.bytes_per_weight = Some(0.625)),
        ("prompt:", &|r| r.prompt = None),
        ("prompt tokens", &|r| r.prompt_tokens = Some(512)),
        ("decoded tokens", &|r| r.decode_tokens = Some(120)),
        ("side by side", &|r| r.pair = None),
        ("not known", &|r| r.bytes_per_weight = None),
    ];
    for (what, change) in labelled {
        let compared = with(change);
        assert_eq!(compared.word(), "not like for like", "{what}");
        assert!(compared.ratio.is_some(), "{what} refuses");
        assert!(
            compared.labels.iter().any(|l| l.contains(what)),
            "{what}: {compared:?}"
        );
    }
    let refused: [Change<'_>; 4] = [
        ("other models", &|r| r.model = "qwen3-4b".into()),
        ("other devices", &|r| r.hardware = "Another GPU".into()),
        ("no decode figure", &|r| r.decode_tok_s = None),
        ("WITHDRAWN", &|r| {
            r.standing = Standing::Withdrawn;
            r.why = Some("it prefilled one token".into());
        }),
    ];
    for (what, change) in refused {
        let compared = with(change);
        assert_eq!(
            (compared.word(), compared.ratio),
            ("refused", None),
            "{what}"
        );
        assert!(
            compared.refused.iter().any(|r| r.contains(what)),
            "{what}: {compared:?}"
        );
    }
    let alias = with(&|r| r.model = "Phi-3-mini-4k-instruct".into());
    assert!(
        alias.refused.is_empty(),
        "a published name is the same model: {alias:?}"
    );
}

#[test]
fn an_arm_of_a_run_is_a_side() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("side");
    std::fs::create_dir_all(&folder).expect("a test folder can be made");
    let path = folder.join("run.jsonl");
    let text = journal_text(&lines(run(), &World::new(1, -0.05)));
    std::fs::write(&path, text).expect("a journal can be written");
    let loaded = AbRun::load(&path).expect("it loads");
    let side = |standing| {
        Side::arm(&loaded, Arm::B, standing)
            .expect("it is summarised")
            .expect("arm B")
    };
    let current = side(Standing::Current);
    assert_eq!(current.record, "2026-11-30-splitk:B");
    assert!(
        current.figure(Figure::Decode).is_some() && current.unfit.is_none(),
        "{current:?}"
    );
    assert!(
        current
            .bytes_per_weight
            .is_some_and(|b| (0.3..1.1).contains(&b)),
        "{current:?}"
    );
    assert!(
        side(Standing::Withdrawn).unfit.is_some(),
        "a withdrawn run is no side"
    );
    assert_eq!(
        Side::arm(&loaded, Arm::D, Standing::Current).expect("summarised"),
        None
    );
}

#[test]
fn records_are_validated_when_read_and_written() {
    let mut withdrawn = record("x");
    withdrawn.standing = Standing::Withdrawn;
    assert!(text(&[withdrawn]).is_err(), "withdrawn without a reason");
    let mut other = record("x");
    other.schema = SCHEMA + 1;
    assert!(text(&[other]).is_err(), "another schema");
    let mut zero = record("x");
    zero.decode_tokens = Some(0);
    assert!(text(&[zero]).is_err(), "a rate over no tokens");
    let mut id = record("x");
    id.id = "../x".into();
    assert!(text(&[id]).is_err(), "an id that is a path");
    let written = text(&[record("x"), record("y")]).expect("valid");
    assert_eq!(written.lines().count(), 2);
}

#[test]
fn a_timing_of_whole_tokens_is_a_side_unless_it_is_void() {
    let folder = tempfile::tempdir().expect("a folder");
    let side = |id: &str, times: &[[u64; 2]], standing| {
        let path = folder.path().join(format!("{id}.jsonl"));
        std::fs::write(&path, journal_text(&bench_lines(id, times))).expect("written");
        Side::bench(&AbRun::load(&path).expect("a journal"), standing).expect("times")
    };
    let a = side("a", &[[4_100_000, 64_000_000]], Standing::Current);
    let b = side("b", &[[8_200_000, 32_000_000]], Standing::Current);
    assert_eq!(a.figure(Figure::Decode), Some(250.0));
    assert_eq!(
        a.figure(Figure::Prefill),
        Some(10_000.0),
        "41 tokens in 4.1 ms"
    );
    let decode = compare(&a, &b, Figure::Decode);
    assert_eq!(
        (decode.ratio, decode.word()),
        (Some(2.0), "not like for like")
    );
    for label in [
        "not measured side by side: 2026-11-30 and 2026-11-30",
        "a is a timing in one process, which makes no claim",
    ] {
        assert!(
            decode.labels.iter().any(|l| l == label),
            "{:?}",
            decode.labels
        );
    }
    assert_eq!(compare(&a, &b, Figure::Ttft).ratio, Some(2.0));
    // 4.1 MB in a microsecond, no repetition, and one that is withdrawn.
    for (id, times, standing, why) in [
        (
            "fast",
            vec![[4_100_000, 16_000]],
            Standing::Current,
            "fast is void: 4100.0 GB/s",
        ),
        (
            "none",
            vec![],
            Standing::Current,
            "none is without a repetition",
        ),
        (
            "old",
            vec![[4_100_000, 32_000_000]],
            Standing::Withdrawn,
            "old is WITHDRAWN",
        ),
    ] {
        let other = side(id, &times, standing);
        let found = compare(&a, &other, Figure::Decode);
        assert_eq!(found.ratio, None, "{id}");
        assert!(found.refused[0].starts_with(why), "{:?}", found.refused);
    }
}
