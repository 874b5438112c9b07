//! Each rule fires once here, and stays silent where it should.

use super::rules::{self, Finding, RULES, SourceFile};

/// The rule and line of each finding about one file.
fn findings(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    let file = SourceFile { path, text };
    let found = RULES.iter().flat_map(|rule| {
        let found = (rule.check)(file);
        for finding in &found {
            assert_eq!(finding.rule, rule.name, "a finding names its rule");
            assert!(finding.message.contains("expected"), "{finding}");
            assert!(finding.message.contains("found"), "{finding}");
        }
        found
    });
    found
        .map(|finding| (finding.rule, finding.line.unwrap_or(0)))
        .collect()
}

#[test]
fn module_doc_fires() {
    let expected = [("module-doc", 1)];
    assert_eq!(findings("kernels/src/flag.rs", "use a;\n"), expected);
    assert_eq!(findings("kernels/tests/t.rs", "// not a doc\n"), expected);
    assert_eq!(findings("kernels/src/empty.rs", ""), expected);
    assert_eq!(findings("kernels/src/flag.rs", "//! Flags.\n"), []);
    assert_eq!(findings("kernels/wgsl/a.wgsl", "// a\n"), []);
}

#[test]
fn file_length_fires() {
    let lines = |count: usize| format!("//! A table.\n{}", "\n".repeat(count - 1));
    assert_eq!(findings("harness/src/a.rs", &lines(800)), []);
    assert_eq!(
        findings("harness/src/a.rs", &lines(801)),
        [("file-length", 801)]
    );
    assert_eq!(findings("harness/tests/a.rs", &lines(801)), []);
}

#[test]
fn whitespace_fires() {
    let expected = [("whitespace", 2)];
    for line in ["\tx", "x ", "x\r", "a\tb", "x\u{a0}"] {
        assert_eq!(findings("a.toml", &format!("x\n{line}\n")), expected);
        assert_eq!(
            findings(".ci/run", &format!("#!/bin/bash\n{line}\n")),
            expected
        );
    }
    assert_eq!(findings("a.toml", "x\n  y\n"), []);
    assert_eq!(findings("README.md", "a hard break  \n"), []);
}

#[test]
fn registry_host_fires() {
    let hosts = [
        ["crates", "io"].join("."),
        ["index.Crates", "io"].join("."),
        ["https://PyPI", "org/simple"].join("."),
        ["files.pythonhosted", "org"].join("."),
        ["https://lib", "rs"].join("."),
    ];
    for host in &hosts {
        let text = format!("a\nsee {host}, there\n");
        assert_eq!(
            findings("README.md", &text),
            [("registry-host", 2)],
            "{host}"
        );
        assert_eq!(findings("Cargo.lock", &text), []);
    }
    for text in ["kernels/src/lib.rs", "my_crates.ion", "pip install x"] {
        assert_eq!(findings("README.md", text), [], "{text}");
    }
}

#[test]
fn environment_fires() {
    let text = "//! A.\n// env::var is banned\nlet a = std::env::var_os(\"A\");\n";
    let expected = [("environment", 3)];
    for library in ["kernels", "generators", "reference", "results", "reports"] {
        assert_eq!(findings(&format!("{library}/src/a.rs"), text), expected);
    }
    assert_eq!(findings("harness/src/engine.rs", text), expected);
    for allowed in [
        "harness/src/main.rs",
        "harness/src/env.rs",
        "harness/tests/parity.rs",
        "xtask/src/process.rs",
    ] {
        assert_eq!(findings(allowed, text), [], "{allowed}");
    }
    assert_eq!(
        findings("kernels/src/a.rs", "//! A.\nenv!(\"CARGO\");\n"),
        []
    );
}

#[test]
fn top_level_fires() {
    let paths = |paths: &[&str]| -> Vec<String> { paths.iter().map(|&path| path.into()).collect() };
    let good = paths(&[".ci/run", "Cargo.toml", "LICENSE", "kernels/src/lib.rs"]);
    assert_eq!(rules::top_level(&good), []);
    let found = rules::top_level(&paths(&["kernels/a", "scripts/a.py", "scripts/b.py"]));
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].rule, found[0].path.as_str()),
        ("top-level", "scripts")
    );
}

#[test]
fn links_fire() {
    let text = "# A\n\
        [good](kernels/src/lib.rs#top) [far](https://example.org/x) [here](#a)\n\
        [bad](kernels/gone.rs) and ![picture](<reports/gone.svg> \"a title\")\n\
        ```text\n[code](not/a/link)\n```\n\
        <img src=\"reports/gone.png\" width=\"5\">\n";
    let exists = |path: &str| path == "kernels/src/lib.rs";
    let lines = |path| -> Vec<usize> {
        let found = rules::links(SourceFile { path, text }, &exists);
        assert!(found.iter().all(|finding| finding.rule == "links"));
        found.iter().filter_map(|finding| finding.line).collect()
    };
    assert_eq!(lines("README.md"), [3, 3, 7]);
    assert_eq!(lines("ARCHITECTURE.md"), [3, 3, 7]);
    assert!(lines("reports/README.md").is_empty());
}

#[test]
fn a_finding_is_shown_with_place_and_rule() {
    let finding = Finding {
        rule: "links",
        path: "README.md".into(),
        line: Some(3),
        message: "expected \"a\"".into(),
    };
    assert_eq!(finding.to_string(), "README.md:3: links: expected \"a\"");
    assert_eq!(
        finding.json(),
        r#"{"rule":"links","path":"README.md","line":3,"message":"expected \"a\""}"#
    );
}
