//! `tenure store` on every kind of store, a real Postgres included.

use tenure_conformance::harness::is_long;

use crate::tenure;

/// All of the check where it takes little, and in the long run everywhere. The suites of the backends
/// run the same behaviours: what is tried here is the command and its processes.
#[track_caller]
fn passes(url: &str) {
    if url.starts_with("memory:") || url.starts_with("sqlite:") || is_long() {
        passes_with(url, &[], 100);
    } else {
        passes_with(url, &["--only", "processes"], 3);
    }
}

#[track_caller]
fn passes_with(url: &str, narrowed: &[&str], at_least: u32) {
    let ran = tenure(url, &[&["store", "check", url], narrowed].concat());
    let last = ran.out.lines().last().unwrap_or_default().to_owned();
    let is_fine = |line: &&str| line.starts_with("ok ") || line.starts_with("n/a ");
    let told: Vec<&str> = ran.out.lines().filter(|line| !is_fine(line)).collect();
    assert_eq!(ran.code, Some(0), "{}\n{}", told.join("\n"), ran.err);
    let passed = last.strip_suffix(" passed, 0 failed").and_then(|n| n.parse::<u32>().ok());
    assert!(passed.is_some_and(|passed| passed >= at_least), "{last}");
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
fn check_passes_on_kubernetes_with_several_processes_and_leaves_no_idle_lease() {
    let server = tenure_testkit::ApiServer::start().unwrap();
    server.create_namespace("check");
    let kubeconfig = server.kubeconfig();
    let url = format!("kubernetes://check?idle=0&kubeconfig={}", kubeconfig.display());
    passes(&url);
    // A process that was killed leaves what it was about to delete; the next list comes across it.
    tenure(&url, &["object", "ls", "lease"]).ok();
    let is_idle = |name: &String| {
        server.lease("check", name)["spec"]["holderIdentity"].as_str().is_none_or(str::is_empty)
    };
    let idle: Vec<_> = server.names("check").into_iter().filter(is_idle).collect();
    assert!(idle.is_empty(), "left behind: {idle:?}");
}

#[test]
fn general_objects_on_kubernetes_are_refused_by_name() {
    let server = tenure_testkit::ApiServer::start().unwrap();
    let url = format!("kubernetes://check?kubeconfig={}", server.kubeconfig().display());
    let ran = tenure(&url, &["object", "put", "order", "1001", "one chair"]);
    assert_ne!(ran.code, Some(0));
    for part in ["kubernetes", "general objects", "memory, file, sqlite, postgres"] {
        assert!(ran.err.contains(part), "{part:?} is not in {:?}", ran.err);
    }
}

#[test]
fn an_api_server_that_is_away_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = tenure_testkit::ApiServer::start().unwrap();
    let text = server.kubeconfig_with("token", "default");
    let nobody = text.replace(&server.address().to_string(), "127.0.0.1:1");
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, nobody).unwrap();
    let url = format!("kubernetes://?kubeconfig={}", path.display());
    let ran = tenure(&url, &["lease", "ls"]);
    assert_eq!((ran.code, ran.err.lines().count()), (Some(7), 1), "{}", ran.err);
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

#[test]
fn check_passes_on_nats_with_several_processes() {
    let server = tenure_testkit::Nats::start().unwrap();
    passes(&server.url_of("check"));
}

#[test]
fn check_passes_on_etcd_with_several_processes() {
    let server = tenure_testkit::Etcd::start().unwrap();
    passes(&server.url("check"));
}
