//! The binary from outside: bad input ends with status 2, an explanation on
//! standard error and nothing on standard output; good input prints nothing else.

use reference::folder::Verify;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary in an empty folder, away from the user's caches and the hub.
fn zerotvm(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    command
        .args(args)
        .current_dir(folder)
        .env("ZEROTVM_CACHE", folder)
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HUB_CACHE", folder)
        .env("MLC_LLM_HOME", folder)
        .stdin(Stdio::null());
    command
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // It is left over from an earlier run, or not there.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn run(command: &mut Command) -> (Output, String) {
    let output = command.output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, errors)
}

#[test]
fn bad_input_is_explained_with_status_2() {
    let folder = folder("bad_input");
    std::fs::write(folder.join("not.gguf"), "GGML").expect("written");
    std::fs::write(folder.join("own.toml"), "rank = 1").expect("written");
    let cases: &[(&str, &str)] = &[
        ("plam", "'plan'"),
        ("plan --modle phi3-mini", "'--model'"),
        ("plan --model phi3", "did you mean `phi3-mini`?"),
        ("plan --flag split=8", "did you mean `splitk`?"),
        ("plan --flag splitk=1", "0, or 2 to 16"),
        ("plan --flag vec4=1", "K = 576 is not a multiple of 1024"),
        ("plan --flag fuseqk=1", "the model has no QK-norm"),
        ("plan --flag rowwise=1 --flag vec4=1", "exclude each other"),
        ("plan --flag gdnscan=1", "a prompt dispatches no form"),
        (
            "plan --flag gemm=1 --model qwen3-30b-a3b",
            "no GEMM is written for affine4_g64 weights",
        ),
        (
            "check --weights synthetic --flag gdnscan=1",
            "a prompt dispatches no form",
        ),
        ("check --flag splitk=17", "0, or 2 to 16"),
        ("plan --layers 31", "--layers 31: model smollm2-135m: 31"),
        ("plan --layers 0", "it has 30, expected 1 to as many"),
        ("synth --layers 31 --out no", "it has 30"),
        ("check --weights synthetic --layers 31", "it has 30"),
        ("bench --weights synthetic --layers 0", "it has 30"),
        ("bench --weights synthetic --prompt 99999", "--prompt 99999"),
        (
            "generate --prompt x --weights none",
            "no such file or folder",
        ),
        (
            "generate --prompt x --weights .",
            "no checkpoint: it has neither",
        ),
        ("bench --tokens 0", "--tokens"),
        ("bench --kernels --tokens 3", "--tokens"),
        ("bench --role rope", "--kernels"),
        ("bench --kernels --role ropes", "did you mean `rope`?"),
        ("bench --kernels --seconds 0", "0.1 to 600"),
        ("bench --kernels --baseline new", "take another"),
        ("bench --kernels --save-baseline ../x", "expected letters"),
        ("bench --kernels --csv not.gguf", "the file exists"),
        ("bench --repetitions 0", "--repetitions"),
        ("roof --adapter nothing", "nothing"),
        ("check --model nonsense", "unknown model `nonsense`"),
        ("check --case rope/rope", "did you mean `rope/rope/drawn`?"),
        ("check --case rope/rope/drawn --tokens 3", "--tokens"),
        ("check --case rope", "expected ROLE/VARIANT/PROPERTY"),
        ("check --case rope/rope/drawn --layers 1", "--layers"),
        ("check --golden . --layers 1", "--layers"),
        ("check --golden . --verify never", "--verify"),
        ("check --only kernels --layers 1", "--only model"),
        ("check --csv no/such.csv", "a folder that can be written to"),
        ("check --variant ropes", "did you mean `rope`?"),
        ("check --variant rope --model phi3-mini", "--variant"),
        ("check --only kernels --flag kv8=1", "--only model"),
        ("check --only kernel", "possible values: kernels, model"),
        (
            "mutants --mutant gamma_plus",
            "did you mean `gamma_plus_one`?",
        ),
        (
            "mutants --mutant gamma_plus_one --variant rope",
            "no mutant of",
        ),
        ("mutants --variant ropes", "did you mean `rope`?"),
        ("mutants --variant rope_elem32", "take rope"),
        ("plan --model no/such", "no such file or folder"),
        ("kernels", "Usage"),
        ("kernels show ropes", "did you mean `rope`?"),
        (
            "kernels show rope --model phi3",
            "did you mean `phi3-mini`?",
        ),
        (
            "kernels check --dialect tint",
            "expected native or browser, found `tint`",
        ),
        ("kernels show rope --dialect wgsl", "native or browser"),
        ("kernels diff no-such-revision", "git "),
        ("kernels diff HEAD --variant ropes", "did you mean `rope`?"),
        ("ab --flag ctx", "a setting, not a flag"),
        ("ab --flags splitk,ctx", "a setting, not a flag"),
        ("ab --flags model,profile", "a setting, not a flag"),
        ("ab --flags splitk,rowwize", "did you mean `rowwise`?"),
        ("ab --flags splitk", "expected two flags"),
        ("ab --flags splitk,splitk", "two different flags"),
        ("ab --flags splitk,vec4,rowwise", "expected two flags"),
        ("ab --flags splitk,vec4 --values 0,8", "--values"),
        ("ab --flags splitk,vec4 --flag splitk", "--flag"),
        ("ab --kernel nonsense", "nonsense"),
        ("ab --kernel int4_matmul", "expected --variant twice"),
        (
            "ab --kernel rope --variant argmax --variant rope",
            "not of rope",
        ),
        ("ab --kernel rope --shape 5", "expected ROWSxK"),
        ("ab --site down", "--site"),
        ("bench --publish", "expected --wgsl FILE"),
        ("bench --kernels --margin 3", "expected --wgsl FILE"),
        ("ab --flag splitk --publish --blocks 1", "--blocks 1"),
        ("ab --flag splitk --publish --margin 40", "--margin 40"),
        (
            "ab --resume 2026-01-01-splitk",
            "--resume 2026-01-01-splitk",
        ),
        ("bench --wgsl none.wgsl --role rope", "none.wgsl"),
        ("bench --wgsl own.wgsl", "own.toml is read with own.wgsl"),
        ("bench --wgsl own.wgsl", "unknown field `rank`"),
        ("ab", "--kernel ROLE (two forms"),
        ("check --tokens 0", "--tokens 0"),
        ("generate --prompt x --seed -1", "'-1' for '--seed"),
        ("check --seed -1", "expected a whole number, 0 or above"),
        ("check --seed 99999999999999999999", "too large"),
        ("ab --flag splitk --budget x", "expected a number"),
        ("ab --flag splitk --values 8", "expected two values"),
        ("ab --flag splitk --values 0,x", "`x` is not one of its"),
        ("ab --flag splitk --values 0,8,8", "8 stands there twice"),
        ("ab --base HEAD --values 0,8", "--values"),
        ("ab --flag splitk --budget -1", "--budget -1"),
        (
            "ab --flag texture --with rowwise=0",
            "it needs rowwise=1; say --with rowwise=1",
        ),
        (
            "ab --flag sgmoe --with sg=0",
            "it needs sg=1; say --with sg=1",
        ),
        ("ab --flag splitk --margin nan", "--margin NaN"),
        ("fetch nonsense", "unknown model `nonsense`"),
        (
            "ab --flag splitk --model phi3-mini --weights gguf",
            "published as the folder mlc-ai/Phi-3-mini",
        ),
        (
            "generate --prompt x --model phi3-mini",
            "run: cargo xtask fetch phi3-mini",
        ),
        ("convert none.gguf out", "none.gguf"),
        (
            "convert none.gguf not.gguf/out",
            "not.gguf/out: output folder: expected a folder",
        ),
        (
            "synth --layers 1 --out .",
            "the folder exists and is not empty",
        ),
        ("convert not.gguf out", "no GGUF file: expected a file that"),
        ("inspect not.gguf", "found \"GGML\"; name a GGUF file"),
        (
            "inspect none",
            "found nothing of this name; name a GGUF file",
        ),
        ("inspect .", "name the folder that has one, or a GGUF file"),
        ("synth --model none.json --out no", "no such file or folder"),
        ("ppl --text none.txt", "expected a text file in UTF-8"),
        ("report", "measure first"),
        ("report 2026-01-01-splitk", "the run 2026-01-01-splitk"),
        ("report 2026-01-01-splitk --check", "--check"),
        ("check --shard 5/4", "expected a part as 1/4"),
        ("check --only model --shard 1/4", "of the kernels"),
        ("bench --shard 1/4", "--kernels"),
        ("results merge a.csv --out b.csv", "at least two files"),
        ("results query SELECT", "expected a folder of records"),
        ("results compare a b", "expected a folder of records"),
        ("import excel none.json", "possible values: llama-bench"),
        ("import llama-bench none.json", "none.json"),
    ];
    for (line, expected) in cases {
        for json in [None, Some("--json")] {
            let args: Vec<&str> = line.split(' ').chain(json).collect();
            let (output, errors) = run(&mut zerotvm(&folder, &args));
            assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
            assert!(output.stdout.is_empty(), "{args:?}: standard output");
            assert!(errors.contains(expected), "{args:?}: {errors}");
        }
    }
    let left = std::fs::read_dir(&folder).expect("folder").count();
    assert_eq!(left, 2, "refused commands leave nothing behind");
}

/// The weights need not be whole for it: a header tells what a token dispatches.
#[test]
fn a_kernel_that_no_token_dispatches_is_refused() {
    let folder = folder("no_site");
    let args = "bench --kernels --weights synthetic --variant rope";
    let args: Vec<&str> = args.split(' ').collect();
    let (output, errors) = run(&mut zerotvm(&folder, &args));
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let expected = "nothing to time: the sites are embed (embedding";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn a_file_in_the_place_of_the_records_is_named() {
    let folder = folder("records_file");
    std::fs::create_dir(folder.join("results")).expect("a folder");
    std::fs::write(folder.join("results/data"), "").expect("written");
    for line in [
        "ab --flag splitk",
        "ab --resume 2026-01-01-splitk",
        "bench",
        "bench --wgsl none.wgsl",
        "report",
        "results query SELECT",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let (output, errors) = run(&mut zerotvm(&folder, &args));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        let expected = "results/data: expected a folder, of records or of reports, found a file";
        assert!(errors.contains(expected), "{args:?}: {errors}");
    }
}

/// The cases of one kernel, with golden data and without.
#[test]
fn a_check_counts_its_cases_and_says_what_it_skipped() {
    let folder = folder("check");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reference/tests/golden");
    for (golden, cases, skipped) in [(golden.as_path(), 2, 0), (&folder, 1, 1)] {
        let mut command = zerotvm(&folder, &["check", "--variant", "rope", "--json"]);
        let (output, errors) = run(command.env("ZEROTVM_GOLDEN", golden));
        if errors.contains("no Vulkan") {
            // Other tests say so.
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{errors}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(answer["cases"], cases, "{answer}");
        assert_eq!(answer["passed"], cases, "{answer}");
        assert_eq!(answer["failed"], 0, "{answer}");
        let listed = answer["skipped"].as_array().expect("a list");
        assert_eq!(listed.len(), skipped, "{answer}");
        for case in listed {
            assert_eq!(case["what"], "rope/rope/golden", "{answer}");
            let reason = case["reason"].as_str().expect("a reason");
            assert!(reason.contains("ZEROTVM_GOLDEN"), "{answer}");
        }
        let sizes = answer["unrun"].as_array().expect("a list");
        assert!(sizes.iter().all(|u| u["reason"].is_string()), "{answer}");
        assert_eq!(answer["variants"][0]["variant"], "rope", "{answer}");
    }
}

#[test]
fn kernels_are_listed_and_shown() {
    let folder = folder("kernels");
    let document = |args: &[&str]| {
        let (output, errors) = run(&mut zerotvm(&folder, args));
        assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("one document")
    };
    let list = document(&["kernels", "list", "--json"]);
    let rows = list["variants"].as_array().expect("a list");
    assert_eq!(rows.len(), kernels::variants::VARIANTS.len(), "variants");
    let row = |id: &str| {
        let row = rows.iter().find(|row| row["variant"] == id);
        row.unwrap_or_else(|| panic!("{id} is listed"))
    };
    let needs = serde_json::json!(["shader-f16", "K % 1024 == 0"]);
    assert_eq!(row("int4_matmul_vec4")["needs"], needs, "vec4");
    let flags = serde_json::json!(["rowwise=1", "texture=1"]);
    assert_eq!(row("fused_ffn_row_texture")["flags"], flags, "texture");
    let shown = document(&["kernels", "show", "rope", "--model", "phi3-mini", "--json"]);
    let (output, _) = run(&mut zerotvm(
        &folder,
        &["kernels", "show", "rope", "--model", "phi3-mini"],
    ));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let wgsl = shown["wgsl"].as_str().expect("text");
    assert_eq!(text.trim_end(), wgsl.trim_end(), "the same text");
    assert!(wgsl.contains("const HEAD_DIM = 96;"), "of the model named");
    for (variant, noted) in [
        ("int4_matmul_vec4", true),
        ("int4_matmul_vec4h", false),
        ("rope", false),
    ] {
        let (_, errors) = run(&mut zerotvm(&folder, &["kernels", "show", variant]));
        let found = errors.contains("no plan of smollm2-135m");
        assert_eq!(found, noted, "{variant}: {errors}");
    }
}

/// What another tool measured, from its file to a question and a comparison.
#[test]
fn records_are_imported_asked_and_compared() {
    let folder = folder("records");
    let rows = "engine,hardware,model,date,decode_tok_s\nE,Some GPU,phi3-mini,2026-11-30,100\n\
                F,Some GPU,phi3-mini,2026-11-30,50\n";
    std::fs::write(folder.join("rates.csv"), rows).expect("a file can be written");
    let document = |args: &[&str]| {
        let (output, errors) = run(&mut zerotvm(&folder, args));
        assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("one document")
    };
    let import = ["import", "generic", "rates.csv", "--json"];
    let records = document(&import)["records"].clone();
    let id = |at: usize| records[at]["id"].as_str().expect("an id").to_owned();
    let sql = "SELECT engine FROM external WHERE decode_tok_s > 60";
    let asked = document(&["results", "query", sql, "--json"]);
    assert_eq!(asked, serde_json::json!([{ "engine": "E" }]), "{asked}");
    let compared = document(&["results", "compare", &id(0), &id(1), "--json"]);
    assert_eq!(compared["comparisons"][0]["ratio"], 0.5, "{compared}");
    let (again, errors) = run(&mut zerotvm(&folder, &import));
    assert_eq!(again.status.code(), Some(2), "{errors}");
    assert!(errors.contains("never overwritten"), "{errors}");
    let tables = document(&["results", "tables", "--json"]);
    assert_eq!(tables["tables"][0]["name"], "runs", "{tables}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut command = zerotvm(&folder("closed_pipe"), &["plan", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
}

/// Graphics libraries look for a display; nobody wants to read that there is none.
#[test]
fn no_library_prints_where_no_display_is() {
    let folder = folder("no_display");
    for args in [
        ["doctor", "--json"].as_slice(),
        &["doctor"],
        &["check", "--help"],
    ] {
        let mut command = zerotvm(&folder, args);
        command.env_remove("WAYLAND_DISPLAY");
        command.env_remove("XDG_RUNTIME_DIR");
        let (output, errors) = run(&mut command);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
        assert_eq!(errors, "", "{args:?}: standard error");
        if args.contains(&"--json") {
            serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("one document");
        }
    }
}

/// The first layers of a model have a plan, and are a checkpoint of their own.
#[test]
fn the_first_layers_are_a_model() {
    let folder = folder("first_layers");
    let (output, errors) = run(&mut zerotvm(
        &folder,
        &["plan", "--model", "qwen3-0.6b", "--layers", "2", "--json"],
    ));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(plan["layers"], 2, "{plan}");
    let (output, errors) = run(&mut zerotvm(
        &folder,
        &["synth", "--layers", "2", "--out", "two"],
    ));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let weights = harness::model::open(&folder.join("two"), Verify::Always).expect("read back");
    assert_eq!(weights.spec().num_hidden_layers, 2, "layers");
}
