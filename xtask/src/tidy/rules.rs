//! The rules: text in, findings out.

use std::fmt;

use crate::json;

/// The most lines a file of source may have.
const LINES: usize = 800;

/// Longer files that are tables, each with the reason why it stays one file.
const LONG_TABLES: &[(&str, &str)] = &[];

/// What may lie at the top beside dot-files.
const TOP_LEVEL: &[&str] = &[
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "generators",
    "harness",
    "kernels",
    "reference",
    "reports",
    "results",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "typos.toml",
    "xtask",
];

/// Package registries, in two parts so that this file does not break its own rule.
const REGISTRIES: &[(&str, &str)] = &[
    ("crates", "io"),
    ("lib", "rs"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("npmjs", "com"),
    ("npmjs", "org"),
];

/// The crates that are libraries: whatever calls them reads the environment.
const LIBRARIES: &[&str] = &["kernels", "generators", "reference", "results", "reports"];

/// A text file of the repository.
#[derive(Debug, Clone, Copy)]
pub struct SourceFile<'a> {
    /// From the top of the checkout, with `/` between the parts.
    pub path: &'a str,
    /// All of it.
    pub text: &'a str,
}

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// The file.
    pub path: String,
    /// The line, from 1; `None` if it is about the whole file.
    pub line: Option<usize>,
    /// What was expected, what was found, what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", self.path)?;
        if let Some(line) = self.line {
            write!(out, "{line}:")?;
        }
        write!(out, " {}: {}", self.rule, self.message)
    }
}

impl Finding {
    /// The finding as a JSON object.
    #[must_use]
    pub fn json(&self) -> String {
        json::object(&[
            ("rule", json::string(self.rule)),
            ("path", json::string(&self.path)),
            (
                "line",
                self.line.map_or("null".into(), |line| line.to_string()),
            ),
            ("message", json::string(&self.message)),
        ])
    }
}

/// A rule about one file at a time.
#[derive(Debug)]
pub struct Rule {
    /// Its name, as findings give it.
    pub name: &'static str,
    /// Finds where the file breaks it.
    pub check: fn(SourceFile<'_>) -> Vec<Finding>,
}

/// The rules about one file at a time that need nothing but its text.
pub const RULES: &[Rule] = &[
    Rule {
        name: "module-doc",
        check: module_doc,
    },
    Rule {
        name: "file-length",
        check: file_length,
    },
    Rule {
        name: "whitespace",
        check: whitespace,
    },
    Rule {
        name: "registry-host",
        check: registry_host,
    },
    Rule {
        name: "environment",
        check: environment,
    },
];

impl<'a> SourceFile<'a> {
    fn has_extension(self, extensions: &[&str]) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| extensions.contains(&extension))
    }

    fn is_rust(self) -> bool {
        self.has_extension(&["rs"])
    }

    /// Whether it belongs to the `src` folder of a crate, and of which.
    fn crate_name(self) -> Option<&'a str> {
        let (name, rest) = self.path.split_once('/')?;
        rest.starts_with("src/").then_some(name)
    }

    /// The lines with their numbers, carriage returns and all.
    fn lines(self) -> impl Iterator<Item = (usize, &'a str)> {
        let text = self.text.strip_suffix('\n').unwrap_or(self.text);
        (1..).zip(text.split('\n'))
    }

    fn finding(self, rule: &'static str, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            rule,
            path: self.path.to_owned(),
            line: Some(line),
            message: message.into(),
        }
    }
}

/// Every Rust file opens with `//!`: what it is for, before what it does.
fn module_doc(file: SourceFile<'_>) -> Vec<Finding> {
    if !file.is_rust() || file.text.trim_start().starts_with("//!") {
        return Vec::new();
    }
    let message = "expected the file to open with `//!`, found something else; say first what \
                   this module is for";
    vec![file.finding("module-doc", 1, message)]
}

/// No behaviour is longer than [`LINES`] lines; tables are listed with a reason.
fn file_length(file: SourceFile<'_>) -> Vec<Finding> {
    let lines = file.lines().count();
    let exempt = LONG_TABLES.iter().any(|(path, _)| *path == file.path);
    if file.crate_name().is_none() || !file.is_rust() || lines <= LINES || exempt {
        return Vec::new();
    }
    let message = format!(
        "expected at most {LINES} lines, found {lines}; split it, or list it in LONG_TABLES with \
         the reason if it is a table"
    );
    vec![file.finding("file-length", LINES + 1, message)]
}

/// No tabs, no blanks at a line's end.
fn whitespace(file: SourceFile<'_>) -> Vec<Finding> {
    let is_script = file.text.starts_with("#!");
    if !is_script && !file.has_extension(&["rs", "toml", "wgsl", "tera", "sh", "yml", "yaml"]) {
        return Vec::new();
    }
    let check = |(line, text): (usize, &str)| {
        let message = if text.contains('\t') {
            "expected spaces, found a tab; indent with spaces, write a tab in a string as \\t"
        } else if text.ends_with(char::is_whitespace) {
            "expected nothing after the text, found white space; remove it"
        } else {
            return None;
        };
        Some(file.finding("whitespace", line, message))
    };
    file.lines().filter_map(check).collect()
}

/// Where packages come from is the user's configuration, and Cargo.lock's.
fn registry_host(file: SourceFile<'_>) -> Vec<Finding> {
    if file.path == "Cargo.lock" {
        return Vec::new();
    }
    let hosts: Vec<String> = REGISTRIES
        .iter()
        .map(|(name, domain)| format!("{name}.{domain}"))
        .collect();
    let check = |(line, text): (usize, &str)| {
        let host = hosts.iter().find(|host| names_host(text, host))?;
        let message = format!(
            "expected no package registry by its host's name, found {host}; name the package alone"
        );
        Some(file.finding("registry-host", line, message))
    };
    file.lines().filter_map(check).collect()
}

/// Whether `text` names `host` itself or a host under it, not `src/lib.rs` or a longer word.
fn names_host(text: &str, host: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.match_indices(host).any(|(start, _)| {
        let before = &text[..start];
        let after = text[start + host.len()..].chars().next();
        let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let starts = !before.ends_with(|last: char| is_word(last) || last == '-');
        // `lib.rs` is a file nearly everywhere; it is a host behind `//` alone.
        let is_address = host != "lib.rs" || before.ends_with("//");
        starts && is_address && !after.is_some_and(is_word)
    })
}

/// Libraries get what they need as arguments; only command lines read the environment.
fn environment(file: SourceFile<'_>) -> Vec<Finding> {
    let concerned = match file.crate_name() {
        Some("harness") => !["harness/src/main.rs", "harness/src/env.rs"].contains(&file.path),
        Some(name) => LIBRARIES.contains(&name),
        None => false,
    };
    if !concerned || !file.is_rust() {
        return Vec::new();
    }
    let check = |(line, text): (usize, &str)| {
        let is_comment = text.trim_start().starts_with("//");
        (!is_comment && text.contains("env::var")).then(|| {
            let message = "expected no environment variable to be read here, found `env::var`; \
                           read it in harness/src/main.rs or harness/src/env.rs and pass it on";
            file.finding("environment", line, message)
        })
    };
    file.lines().filter_map(check).collect()
}

/// The top of the checkout holds the agreed names and dot-files, nothing else.
#[must_use]
pub fn top_level(paths: &[String]) -> Vec<Finding> {
    let mut tops: Vec<&str> = paths
        .iter()
        .map(|path| path.split('/').next().unwrap_or_default())
        .collect();
    tops.dedup();
    tops.retain(|top| !top.starts_with('.') && !TOP_LEVEL.contains(top));
    tops.into_iter()
        .map(|top| Finding {
            rule: "top-level",
            path: top.to_owned(),
            line: None,
            message: format!(
                "expected only {} and dot-files at the top, found {top}; move it into a crate",
                TOP_LEVEL.join(", ")
            ),
        })
        .collect()
}

/// An exemption goes when its file goes.
#[must_use]
pub fn stale_exemptions(paths: &[String]) -> Vec<Finding> {
    LONG_TABLES
        .iter()
        .filter(|(exempt, _)| !paths.iter().any(|path| path == exempt))
        .map(|(exempt, _)| Finding {
            rule: "file-length",
            path: (*exempt).to_owned(),
            line: None,
            message: "expected the exempt file to exist, found none; remove it from LONG_TABLES"
                .to_owned(),
        })
        .collect()
}

/// Relative links of the documents at the top lead somewhere.
pub fn links(file: SourceFile<'_>, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    if !["README.md", "ARCHITECTURE.md"].contains(&file.path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut in_code = false;
    for (line, text) in file.lines() {
        if text.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(text) {
            let path = target.split(['#', '?']).next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !elsewhere && !path.is_empty() && !exists(path) {
                let message = format!(
                    "expected the link to lead to a file or folder, found no {path}; correct it"
                );
                findings.push(file.finding("links", line, message));
            }
        }
    }
    findings
}

/// Where the links and pictures of a line of Markdown lead.
fn targets(text: &str) -> Vec<&str> {
    let openings = [("](", ')'), ("src=\"", '"'), ("href=\"", '"')];
    let mut targets = Vec::new();
    for (opening, closing) in openings {
        for (start, _) in text.match_indices(opening) {
            let rest = &text[start + opening.len()..];
            let target = rest.split(closing).next().unwrap_or_default();
            // A title may follow: [text](path "title").
            let target = target.split_whitespace().next().unwrap_or_default();
            targets.push(target.trim_matches(['<', '>']));
        }
    }
    targets
}
