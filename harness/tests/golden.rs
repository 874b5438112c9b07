//! `check --golden` on whole golden models, on folders that were tampered with,
//! and on folders that are none.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]

mod support;

use kernels::{Phase, Plan, Variant};
use serde_json::{Map, Value, json};
use std::{
    path::Path,
    process::{Command, Output},
};
use tempfile::TempDir;

fn zerotvm(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerotvm"));
    command.args(args).output().expect("zerotvm starts")
}

/// Exit status and JSON document of a check.
fn check(dir: &Path) -> (Option<i32>, Value) {
    check_with(dir, &[])
}

/// The same with flags.
fn check_with(dir: &Path, flags: &[&str]) -> (Option<i32>, Value) {
    let dir = dir.to_str().expect("a path in UTF-8");
    let flags = flags.iter().flat_map(|flag| ["--flag", flag]);
    let args: Vec<&str> = ["check", "--golden", dir, "--json"]
        .into_iter()
        .chain(flags)
        .collect();
    let output = zerotvm(&args);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    (output.status.code(), document)
}

fn list(document: &Value) -> &[Value] {
    document["checks"].as_array().expect("a list of checks")
}

/// `pass prompt stage` of every check that failed.
fn failed(document: &Value) -> Vec<String> {
    list(document)
        .iter()
        .filter(|check| check["passed"] == false)
        .map(|check| {
            let part = |key: &str| check[key].as_str().expect(key).to_owned();
            [part("pass"), part("prompt"), part("stage")].join(" ")
        })
        .collect()
}

/// A dense model of `layers` layers.
fn passes(test: &str, model: &str, layers: usize) {
    passes_within(test, model, layers, 0.005, false);
}

/// All three prompts of a model of `layers` layers: stages of p1 and of the last row
/// of p2, and every row of logits; on the GPU within `bound`.
fn passes_within(test: &str, model: &str, layers: usize, bound: f64, experts: bool) {
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let Some(dir) = support::golden(test, model) else {
        return;
    };
    let (status, document) = check(&dir);
    assert_eq!(failed(&document), [""; 0], "{model}");
    assert_eq!(status, Some(0), "{model}");
    assert_eq!(document["failed"], 0, "{model}");
    // What a router's logits say anyway.
    let mut ignored = Vec::new();
    for prompt in ["p1", "p2.last"] {
        let routed = ["router_topk_ids", "router_topk_weights"];
        let of_layer = |layer| routed.map(|stage| format!("{prompt}.layers.{layer}.{stage}"));
        ignored.extend((0..layers).filter(|_| experts).flat_map(of_layer));
    }
    let margins = ["p0", "p1", "p2"].map(|prompt| format!("{prompt}.router_margin"));
    ignored.extend(margins.into_iter().filter(|_| experts));
    ignored.push("p2.mean_nll".into());
    ignored.sort();
    assert_eq!(document["ignored"], json!(ignored), "{model}");
    let of_layer = if experts { 7 } else { 6 };
    for pass in ["reference", "prefill", "decode"] {
        let of_pass = || list(&document).iter().filter(|c| c["pass"] == pass);
        let others = ["logits", "all_logits", "experts", "greedy"];
        let stages = of_pass().filter(|c| !others.iter().any(|stage| c["stage"] == *stage));
        assert_eq!(
            stages.count(),
            2 * (2 + layers * of_layer),
            "{model}, {pass}: stages"
        );
        let rows = of_pass().filter(|c| c["stage"] == "logits");
        assert_eq!(rows.count(), 1 + 7 + 37, "{model}, {pass}: rows");
        let chosen = of_pass().filter(|c| c["stage"] == "experts").count();
        let on_gpu = experts && pass != "reference";
        assert!(
            (chosen > 2) == on_gpu,
            "{model}, {pass}: choices of experts"
        );
        let greedy = of_pass().filter(|c| c["stage"] == "greedy").count();
        let prompts = if pass == "prefill" { 0 } else { 3 + 1 };
        assert_eq!(
            greedy, prompts,
            "{model}, {pass}: continuations and their sum"
        );
    }
    // Bounds mean something: rounding to f16 is seen, and is not at the bound.
    let worst = list(&document)
        .iter()
        .filter(|c| c["pass"] != "reference" && (!experts || c["stage"] == "all_logits"))
        .filter_map(|c| c["rel_rms"].as_f64())
        .fold(0.0, f64::max);
    assert!((1e-4..bound).contains(&worst), "{model}: {worst}");
}

#[test]
fn llama_tiny_passes() {
    passes("llama_tiny_passes", "llama-tiny", 2);
}

#[test]
fn phi3_tiny_passes() {
    passes("phi3_tiny_passes", "phi3-tiny", 2);
}

#[test]
fn qwen3_tiny_passes() {
    passes("qwen3_tiny_passes", "qwen3-tiny", 3);
}

#[test]
fn qwen3_mlx_tiny_passes() {
    passes("qwen3_mlx_tiny_passes", "qwen3-mlx-tiny", 3);
}

/// Gated DeltaNet and gated attention.
#[test]
fn qwen35_tiny_passes() {
    passes_within("qwen35_tiny_passes", "qwen35-tiny", 4, 0.006, false);
}

/// The same with experts, of 4 bits and of 3.
#[test]
fn qwen36_moe_tiny_passes() {
    passes_within("qwen36_moe_tiny_passes", "qwen36-moe-tiny", 4, 0.01, true);
}

#[test]
fn qwen36_moe_q3_tiny_passes() {
    passes_within(
        "qwen36_moe_q3_tiny_passes",
        "qwen36-moe-q3-tiny",
        4,
        0.01,
        true,
    );
}

/// Subgroups, prompts token by token, and the recurrence of a chunk in blocks.
#[test]
fn hybrids_pass_with_other_forms() {
    let test = "hybrids_pass_with_other_forms";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    for model in ["qwen35-tiny", "qwen36-moe-q3-tiny"] {
        let Some(dir) = support::golden(test, model) else {
            continue;
        };
        for flags in [&["sg=1"][..], &["chunk=0", "splitk=0"], &["gdnscan=1"]] {
            // Minutes on two cores: one of them always, the others with `test --all`.
            if !support::all() && (model, flags) != ("qwen35-tiny", &["gdnscan=1"]) {
                continue;
            }
            let (status, document) = check_with(&dir, flags);
            assert_eq!(failed(&document), [""; 0], "{model} {flags:?}");
            assert_eq!(status, Some(0), "{model} {flags:?}");
        }
    }
}

/// The real model as it is stored: last rows of logits and 48 greedy tokens of each
/// prompt.
#[test]
fn smollm2_passes() {
    let test = "smollm2_passes";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let Some(dir) = support::golden(test, "smollm2-135m") else {
        return;
    };
    if support::fetched(test, "smollm2-135m").is_none() {
        return;
    }
    let (status, document) = check(&dir);
    assert_eq!(failed(&document), [""; 0], "what failed");
    assert_eq!(status, Some(0), "status");
    assert_eq!(document["ignored"], json!([]), "every tensor is compared");
    for pass in ["reference", "prefill", "decode"] {
        let of_pass = list(&document).iter().filter(|c| c["pass"] == pass);
        let rows = of_pass.clone().filter(|c| c["stage"] == "logits").count();
        assert_eq!(rows, 4, "{pass}: the last row of each prompt");
        let tokens: u64 = of_pass
            .filter(|c| c["stage"] == "greedy" && c["prompt"] != "all")
            .filter_map(|c| c["elements"].as_u64())
            .sum();
        let expected = if pass == "prefill" { 0 } else { 4 * 48 };
        assert_eq!(tokens, expected, "{pass}: greedy tokens");
    }
}

/// Where the feed-forward layer makes the sum before it, that is not compared and said so.
#[test]
fn llama_tiny_passes_with_the_fused_prologue() {
    let test = "llama_tiny_passes_with_the_fused_prologue";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let Some(dir) = support::golden(test, "llama-tiny") else {
        return;
    };
    let (status, document) = check_with(&dir, &["fuseprologue=1"]);
    assert_eq!(failed(&document), [""; 0], "what failed");
    assert_eq!(status, Some(0), "status");
    let ignored = document["ignored"].to_string();
    assert!(ignored.contains("post_attn_norm"), "{ignored}");
    let decoded = list(&document).iter().filter(|c| c["pass"] == "decode");
    assert!(decoded.clone().any(|c| c["stage"] == "layers.0.out"));
    let sums = decoded.filter(|c| c["stage"].as_str().is_some_and(|s| s.contains("post_attn")));
    assert_eq!(sums.count(), 0, "the sums are not stored");
}

/// With affine weights too, `sg` has every matrix multiplied by a subgroup form.
#[test]
fn qwen3_mlx_tiny_passes_by_subgroup() {
    let test = "qwen3_mlx_tiny_passes_by_subgroup";
    let Some(gpu) = support::adapter(test) else {
        return;
    };
    let Some(dir) = support::golden(test, "qwen3-mlx-tiny") else {
        return;
    };
    let weights = reference::mlx::read(&dir, &|_, _| {}).expect("it loads");
    let settings = support::settings(&gpu, &["sg=1"]);
    let plan = Plan::build(weights.spec(), &settings, &gpu.features, Phase::Decode);
    let variants = plan.expect("a plan").variants();
    let read = variants.iter().filter(|v| v.format.is_some());
    let ids: Vec<String> = read.map(Variant::id).collect();
    let expected = [
        "embedding_affine4_g64",
        "int4_matmul_tiled_affine4_g64",
        "fused_ffn_tiled_sg_affine4_g64",
    ];
    assert_eq!(ids, expected, "the forms");
    let (status, document) = check_with(&dir, &["sg=1"]);
    assert_eq!(failed(&document), [""; 0], "by subgroup");
    assert_eq!(status, Some(0), "by subgroup");
}

// ---- folders made from llama-tiny ----

/// Tensors of a safetensors file: dtype, shape and bytes by name.
type Tensors = Vec<(String, Value, Vec<u8>)>;

fn read(file: &Path) -> Tensors {
    let bytes = std::fs::read(file).expect("golden data are readable");
    let (len, rest) = bytes.split_first_chunk::<8>().expect("a header");
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).expect("JSON");
    header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, meta)| {
            let at = |i: usize| meta["data_offsets"][i].as_u64().expect("an offset") as usize;
            let bytes = data[at(0)..at(1)].to_vec();
            (name, meta, bytes)
        })
        .collect()
}

fn write(file: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, meta, bytes) in tensors {
        let from = data.len();
        data.extend_from_slice(bytes);
        let mut meta = meta.clone();
        meta["data_offsets"] = json!([from, data.len()]);
        header.insert(name.clone(), meta);
    }
    let mut header = serde_json::to_vec(&header).expect("JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    std::fs::write(file, bytes).expect("written");
}

/// A copy of llama-tiny whose expected outputs are those of one prompt, changed.
fn changed(test: &str, prompt: &str, change: impl FnOnce(&mut Tensors)) -> Option<TempDir> {
    let source = support::golden(test, "llama-tiny")?;
    let dir = TempDir::new().expect("a temporary folder");
    for entry in std::fs::read_dir(&source).expect("a folder") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("copied");
    }
    let file = dir.path().join("expected.safetensors");
    let mut tensors = read(&file);
    tensors.retain(|(name, ..)| name.starts_with(&format!("{prompt}.")));
    change(&mut tensors);
    // The source may be read-only, and so would be its copy.
    std::fs::remove_file(&file).expect("removed");
    write(&file, &tensors);
    Some(dir)
}

fn tensor<'t>(tensors: &'t mut Tensors, name: &str) -> &'t mut [[u8; 4]] {
    let tensor = tensors.iter_mut().find(|(known, ..)| known == name);
    let (_, _, bytes) = tensor.expect(name);
    bytes.as_chunks_mut::<4>().0
}

fn add(value: &mut [u8; 4], difference: f32) {
    *value = (f32::from_le_bytes(*value) + difference).to_le_bytes();
}

#[test]
fn a_wrong_stage_fails_alone() {
    let test = "a_wrong_stage_fails_alone";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let wrong = |tensors: &mut Tensors| {
        add(
            &mut tensor(tensors, "p1.layers.1.ffn_out")[3 * 576 + 5],
            0.3,
        );
        // Far above the f32 bound, far below that of f16.
        add(&mut tensor(tensors, "p1.layers.0.input_norm")[0], 0.02);
        tensor(tensors, "p1.embed")[7] = f32::NAN.to_le_bytes();
    };
    let Some(dir) = changed(test, "p1", wrong) else {
        return;
    };
    let (status, document) = check(dir.path());
    assert_eq!(status, Some(1), "a check failed");
    assert_eq!(
        failed(&document),
        [
            "reference p1 embed",
            "reference p1 layers.0.input_norm",
            "reference p1 layers.1.ffn_out",
            "prefill p1 embed",
            "prefill p1 layers.1.ffn_out",
            "decode p1 embed",
            "decode p1 layers.1.ffn_out",
        ],
        "what failed"
    );
}

#[test]
fn wrong_logits_and_tokens_fail() {
    let test = "wrong_logits_and_tokens_fail";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let wrong = |tensors: &mut Tensors| {
        add(&mut tensor(tensors, "p0.logits")[500], 0.5);
        tensor(tensors, "p0.greedy")[0] = 3_i32.to_le_bytes();
        tensor(tensors, "p0.greedy")[11] = 3_i32.to_le_bytes();
        // The second is no near tie for the reference, but one for f16.
        tensor(tensors, "p0.greedy_gap")[11] = 0.001_f32.to_le_bytes();
    };
    let Some(dir) = changed(test, "p0", wrong) else {
        return;
    };
    let (status, document) = check(dir.path());
    assert_eq!(status, Some(1), "a check failed");
    assert_eq!(
        failed(&document),
        [
            "reference p0 logits",
            "reference p0 greedy",
            // The decode chain is held against the cached logits.
            "prefill p0 logits",
            "decode p0 greedy",
            // One excused token of twelve is more than 5 %.
            "decode all greedy",
        ],
        "what failed"
    );
}

#[test]
fn folders_of_another_form_are_errors() {
    let test = "folders_of_another_form_are_errors";
    let empty = TempDir::new().expect("a temporary folder");
    let refused = |dir: &Path, part: &str| {
        let dir = dir.to_str().expect("a path in UTF-8");
        let output = zerotvm(&["check", "--golden", dir]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{part}: {error}");
        assert!(error.contains(part), "{error}");
        assert!(output.stdout.is_empty(), "{part}: nothing was checked");
    };
    refused(&empty.path().join("nowhere"), "no such folder");
    let file = empty.path().join("file");
    std::fs::write(&file, []).expect("written");
    refused(&file, "expected a folder, found a file");
    refused(empty.path(), "it has no expected.safetensors");
    std::fs::write(empty.path().join("expected.safetensors"), []).expect("written");
    refused(
        empty.path(),
        "neither mlc-chat-config.json (MLC) nor config.json (MLX, or",
    );
    type Change = fn(&mut Tensors);
    let changes: [(&str, Change); 6] = [
        ("no prompt", |tensors| tensors.clear()),
        ("p0.logits: expected f32, found no tensor", |tensors| {
            tensors.retain(|(name, ..)| name != "p0.logits");
        }),
        ("p0.greedy_gap: expected f32, found no tensor", |tensors| {
            tensors.retain(|(name, ..)| name != "p0.greedy_gap");
        }),
        ("p0.greedy_gap: expected differences", |tensors| {
            tensor(tensors, "p0.greedy_gap")[2] = f32::NAN.to_le_bytes();
        }),
        ("1003 is outside the vocabulary of 1003", |tensors| {
            tensor(tensors, "p0.input_ids")[0] = 1003_i32.to_le_bytes();
        }),
        ("p0.logits: expected [1, 1003], found [17, 59]", |tensors| {
            let logits = tensors.iter_mut().find(|(name, ..)| name == "p0.logits");
            logits.expect("logits").1["shape"] = json!([17, 59]);
        }),
    ];
    for (part, change) in changes {
        let Some(dir) = changed(test, "p0", change) else {
            return;
        };
        refused(dir.path(), part);
        std::fs::write(dir.path().join("expected.safetensors"), [0; 5]).expect("written");
        refused(dir.path(), "write it again");
        std::fs::write(dir.path().join("prompts.json"), "[]").expect("written");
        refused(dir.path(), "expected gguf.sha256");
        std::fs::remove_file(dir.path().join("prompts.json")).expect("removed");
        let config = dir.path().join("mlc-chat-config.json");
        std::fs::remove_file(&config).expect("removed");
        std::fs::create_dir(&config).expect("a folder in its place");
        refused(dir.path(), "found none; fetch the folder again");
    }
    let output = zerotvm(&["check", "--golden", "x", "--model", "phi3-mini"]);
    assert_eq!(output.status.code(), Some(2), "two checkpoints are named");
}

#[test]
fn an_int8_cache_is_not_held_against_golden_outputs() {
    let test = "an_int8_cache_is_not_held_against_golden_outputs";
    let Some(_adapter) = support::adapter(test) else {
        return;
    };
    let Some(dir) = support::golden(test, "llama-tiny") else {
        return;
    };
    let dir = dir.to_str().expect("a path in UTF-8");
    let output = zerotvm(&["check", "--golden", dir, "--flag", "kv8=1"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("leave kv8 off here"), "{error}");
}
