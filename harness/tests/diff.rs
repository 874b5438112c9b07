//! Texts of a git revision against those of this build.

mod support;

use generators::Sources;
use harness::diff::{self, Change, Revision};
use kernels::{Role, Variant, models, variants::VARIANTS};
use std::{fs, path::Path, process::Command};

fn git(folder: &Path, args: &[&str]) -> bool {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    let output = Command::new("git")
        .args(identity)
        .args(args)
        .current_dir(folder)
        // Of no other checkout than the folder's, whoever runs the tests.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .output();
    output.is_ok_and(|output| output.status.success())
}

/// The source files of this build.
fn present() -> Vec<(String, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let paths = Sources::embedded().paths();
    let text = |path: &str| fs::read_to_string(top.join(path)).expect("a source file");
    paths.map(|path| (path.to_owned(), text(path))).collect()
}

/// A checkout whose one commit, tagged `old`, holds these files.
fn checkout(files: &[(String, String)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    for args in [
        ["init", "-q", "."].as_slice(),
        &["add", "."],
        &["commit", "-q", "--no-gpg-sign", "-m", "old"],
        &["tag", "old"],
    ] {
        assert!(git(folder.path(), args), "git {args:?}");
    }
    folder
}

#[test]
fn changed_added_removed_and_unchanged_texts_are_told_apart() {
    if !git(Path::new("."), &["--version"]) {
        let test = "diff::changed_added_removed_and_unchanged_texts_are_told_apart";
        return support::unrun(test, "git is not installed");
    }
    let mut files = present();
    files.retain(|(path, _)| path != "kernels/wgsl/silu_mul.wgsl");
    files.push(("kernels/wgsl/gone.wgsl".into(), "fn gone() {}\n".into()));
    for (path, text) in &mut files {
        if path == "kernels/wgsl/rope.wgsl" {
            *text = text.replace("u.apply_rope != 0", "u.apply_rope == 1");
        }
    }
    let folder = checkout(&files);
    let old = Revision::read(folder.path(), "old").expect("a commit");
    assert_eq!(old.commit.len(), 40, "{}", old.commit);
    let spec = models::find("smollm2-135m").expect("registered");
    let report = diff::compare(&old, Sources::embedded(), &VARIANTS, &spec).expect("renders");
    assert_eq!(report.removed, ["kernels/wgsl/gone.wgsl"], "removed");
    let of_role = |role| VARIANTS.iter().filter(|v| v.role == role).count();
    let [ropes, silu_muls] = [Role::Rope, Role::SiluMul].map(of_role);
    let rest = VARIANTS.len() - ropes - silu_muls;
    assert_eq!(report.counts(), [ropes, silu_muls, rest], "counts");
    for text in &report.texts {
        let variant: Variant = text.variant.parse().expect("in the table");
        match (variant.role, &text.change) {
            (Role::Rope, Change::Changed { diff }) => {
                let header = format!("--- old/{variant}.wgsl\n+++ {variant}.wgsl\n@@ ");
                let line = |sign, test| format!("\n{sign}  if ({test} && dim < ROTARY_DIM) {{\n");
                assert!(diff.starts_with(&header), "{diff}");
                assert!(diff.contains(&line('-', "u.apply_rope == 1")), "{diff}");
                assert!(diff.contains(&line('+', "u.apply_rope != 0")), "{diff}");
            }
            (Role::SiluMul, Change::Added { reason }) => {
                assert!(reason.contains("kernels/wgsl/silu_mul.wgsl"), "{reason}");
            }
            (_, change) => assert_eq!(*change, Change::Unchanged, "{variant}"),
        }
    }
}

#[test]
fn what_is_no_revision_of_the_workbench_is_explained() {
    if !git(Path::new("."), &["--version"]) {
        let test = "diff::what_is_no_revision_of_the_workbench_is_explained";
        return support::unrun(test, "git is not installed");
    }
    let error = |folder: &Path, name: &str| {
        let error = Revision::read(folder, name).expect_err("no revision");
        format!("{error:#}")
    };
    let empty = tempfile::tempdir().expect("a folder");
    let told = error(empty.path(), "HEAD");
    assert!(told.contains("expected a git checkout"), "{told}");
    let other = checkout(&[("README.md".into(), "else\n".into())]);
    let told = error(other.path(), "old");
    assert!(
        told.contains("expected a revision of the workbench"),
        "{told}"
    );
    for name in ["nonsense", "--help", "old:README.md"] {
        let told = error(other.path(), name);
        assert!(
            told.contains(&format!("unknown revision `{name}`")),
            "{told}"
        );
    }
    let template = ("generators/templates/x.tera".into(), "{% if %}".into());
    let told = error(checkout(&[template]).path(), "old");
    assert!(told.contains("the templates of old"), "{told}");
}
