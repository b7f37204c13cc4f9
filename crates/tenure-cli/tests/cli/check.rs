//! `tenure store` on every kind of store, a real Postgres included.

use crate::tenure;

#[track_caller]
fn passes(url: &str) {
    let ran = tenure(url, &["store", "check", url]);
    let last = ran.out.lines().last().unwrap_or_default().to_owned();
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let passed = last.strip_suffix(" passed, 0 failed").and_then(|n| n.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed > 100), "{last}");
}

#[test]
fn check_passes_in_memory() {
    passes("memory:");
}

#[test]
fn check_passes_on_files_with_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    passes(&format!("file:{}", folder.path().display()));
}

#[test]
fn check_passes_on_sqlite_with_several_processes() {
    let folder = tempfile::tempdir().unwrap();
    passes(&format!("sqlite:{}/check.db", folder.path().display()));
}

#[test]
fn check_passes_on_postgres_with_several_processes() {
    let server = tenure_testkit::Postgres::start().unwrap();
    passes(&server.fresh_database().unwrap());
}

#[test]
fn check_can_be_narrowed_and_says_when_nothing_matches() {
    let one = tenure("", &["store", "check", "memory:", "--only", "absent_object"]).ok();
    assert!(one.ends_with("1 passed, 0 failed\n"), "{one}");
    tenure("", &["store", "check", "memory:", "--only", "no such"]).fails(1, "no behaviour");
}

#[test]
fn migrate_says_where_a_store_stands() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/m.db", folder.path().display());
    let said = tenure("", &["store", "migrate", &url]).ok();
    assert!(said.contains("up to date, at revision 0"), "{said}");
}
