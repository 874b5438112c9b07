//! Who may know what: the crate graph of ARCHITECTURE.md, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Every edge between crates of the workspace.
const EDGES: &[(&str, &[&str])] = &[
    ("generators", &["kernels"]),
    (
        "harness",
        &["generators", "kernels", "reference", "reports", "results"],
    ),
    ("kernels", &[]),
    ("reference", &["kernels"]),
    ("reports", &["kernels", "results"]),
    ("results", &["kernels"]),
    ("xtask", &[]),
];

/// `cargo metadata` for this host, from Cargo.lock and without the network.
fn metadata() -> Value {
    let host = output("rustc", &["--version", "--verbose"]);
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .expect("rustc names its host");
    let args = ["metadata", "--format-version=1", "--locked", "--offline"];
    let args = args.into_iter().chain(["--filter-platform", host]);
    let json = output(env!("CARGO"), &args.collect::<Vec<_>>());
    serde_json::from_str(&json).expect("cargo metadata prints JSON")
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What depends on what: package id to (name, the ids and kinds of its dependencies).
struct Graph {
    members: BTreeMap<String, String>,
    names: BTreeMap<String, String>,
    edges: BTreeMap<String, Vec<(String, Vec<Kind>)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Build,
    Dev,
}

impl Graph {
    fn read() -> Self {
        let metadata = metadata();
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let list = |value: &Value| value.as_array().expect("an array").clone();
        let names: BTreeMap<String, String> = list(&metadata["packages"])
            .iter()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let members = list(&metadata["workspace_members"])
            .iter()
            .map(|id| (names[&text(id)].clone(), text(id)))
            .collect();
        let kind = |value: &Value| match value["kind"].as_str() {
            None => Kind::Normal,
            Some("build") => Kind::Build,
            Some("dev") => Kind::Dev,
            Some(other) => panic!("unknown kind of dependency {other}"),
        };
        let edges = list(&metadata["resolve"]["nodes"])
            .iter()
            .map(|node| {
                let dependencies = list(&node["deps"]).into_iter().map(|dependency| {
                    let kinds = list(&dependency["dep_kinds"]).iter().map(kind).collect();
                    (text(&dependency["pkg"]), kinds)
                });
                (text(&node["id"]), dependencies.collect())
            })
            .collect();
        Self {
            members,
            names,
            edges,
        }
    }

    /// The names of a member's own dependencies, test-only ones apart.
    fn direct(&self, member: &str) -> BTreeSet<&str> {
        self.edges[&self.members[member]]
            .iter()
            .filter(|(_, kinds)| kinds.iter().any(|kind| *kind != Kind::Dev))
            .map(|(id, _)| self.names[id].as_str())
            .collect()
    }

    /// The names of all that a member reaches, through tests too.
    fn reached(&self, member: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![&self.members[member]];
        while let Some(id) = open.pop() {
            for (dependency, _) in &self.edges[id] {
                if reached.insert(dependency) {
                    open.push(dependency);
                }
            }
        }
        reached.iter().map(|id| self.names[*id].as_str()).collect()
    }

    fn members_reaching(&self, package: &str) -> Vec<&str> {
        let members = self.members.keys().map(String::as_str);
        members
            .filter(|member| self.reached(member).contains(package))
            .collect()
    }
}

#[test]
fn the_edges_between_our_crates_are_those_of_the_design() {
    let graph = Graph::read();
    let found: Vec<(&str, Vec<&str>)> = graph
        .members
        .keys()
        .map(|member| {
            let ours = graph.direct(member).into_iter();
            let ours = ours.filter(|name| graph.members.contains_key(*name));
            (member.as_str(), ours.collect())
        })
        .collect();
    let expected: Vec<(&str, Vec<&str>)> = EDGES
        .iter()
        .map(|(member, ours)| (*member, ours.to_vec()))
        .collect();
    assert_eq!(found, expected, "change ARCHITECTURE.md first");
}

#[test]
fn the_harness_alone_sees_a_gpu() {
    let graph = Graph::read();
    assert_eq!(graph.members_reaching("wgpu"), ["harness"]);
    assert!(graph.direct("harness").contains("wgpu"));
}

#[test]
fn shaders_are_read_by_the_generators_and_the_harness() {
    let graph = Graph::read();
    assert_eq!(graph.members_reaching("naga"), ["generators", "harness"]);
}

#[test]
fn the_results_alone_open_sqlite() {
    let graph = Graph::read();
    let members = graph.members.keys().map(String::as_str);
    let direct: Vec<&str> = members
        .filter(|member| graph.direct(member).contains("rusqlite"))
        .collect();
    assert_eq!(direct, ["results"]);
}

#[test]
fn xtask_depends_on_clap_alone() {
    let graph = Graph::read();
    let direct: Vec<&str> = graph.direct("xtask").into_iter().collect();
    assert_eq!(direct, ["clap"]);
}
