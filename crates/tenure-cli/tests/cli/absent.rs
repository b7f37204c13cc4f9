//! Whoever only looks makes nothing: a path with no store is a mistake, and named.

use std::path::Path;
use std::process::Command;

use crate::{ran, tenure};

/// Every command that only reads, on a store that is given.
const READING: &[&[&str]] = &[
    &["lease", "ls"],
    &["lease", "show", "a/b"],
    &["lease", "orphans"],
    &["lease", "watch"],
    &["slots", "ls"],
    &["slots", "ls", "group"],
    &["elect", "leader", "a/b"],
    &["elect", "observe", "a/b"],
    &["object", "get", "order", "1"],
    &["object", "ls", "order"],
    &["object", "watch"],
];

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).expect("a folder").next().is_none()
}

#[test]
fn a_command_that_reads_refuses_a_path_without_a_store_and_makes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (typo, below) = (folder.path().join("typo"), folder.path().join("no/such/typo"));
    for path in [typo, below] {
        for kind in ["sqlite", "file"] {
            let store = format!("{kind}:{}", path.display());
            let told = format!("there is no store at {}", path.display());
            for line in READING {
                tenure(&store, line).fails(6, &told);
            }
            let given = ["lease", "ls", "--store", &store];
            tenure("", &given).fails(6, "tenure store migrate");
            tenure("", &["store", "capabilities", &store]).fails(6, &told);
        }
    }
    // A folder that is there and empty is none either.
    let store = format!("file:{}", folder.path().display());
    tenure(&store, &["lease", "ls"]).fails(6, "there is no store at");
    assert!(is_empty(folder.path()));
}

#[test]
fn a_command_that_writes_makes_the_store_and_the_usual_one_need_not_be_there() {
    let folder = tempfile::tempdir().expect("a folder");
    for kind in ["sqlite", "file"] {
        let store = format!("{kind}:{}", folder.path().join(kind).display());
        tenure(&store, &["object", "put", "order", "1", "x"]).ok();
        tenure(&store, &["object", "get", "order", "1"]).ok();
        tenure("", &["store", "capabilities", &store]).ok();
    }
    let mut line = Command::new(env!("CARGO_BIN_EXE_tenure"));
    line.args(["lease", "ls"]).env_remove("TENURE_STORE").env_remove("TENURE_SERVER");
    line.env("XDG_DATA_HOME", folder.path().join("data"));
    assert_eq!(ran(line.output().expect("the binary runs")).ok().lines().count(), 1);
}

#[test]
fn a_file_that_is_no_database_is_not_told_as_damaged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("passwd");
    std::fs::write(&path, "root:x:0:0:root:/root:/bin/sh\n".repeat(100)).expect("a file");
    let store = format!("sqlite:{}", path.display());
    let ran = tenure(&store, &["lease", "ls"]);
    assert!(!ran.err.contains("damaged") && !ran.err.contains("backup"), "{}", ran.err);
    ran.fails(6, "is no SQLite database");
    let lines = std::fs::read_to_string(&path).expect("the file").lines().count();
    assert_eq!(lines, 100, "it is left as it was");
}
