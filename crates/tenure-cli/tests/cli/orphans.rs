//! What rests on a look: `lease revoke --token`, `slots resize --version`, and `lease reap` of what `lease
//! orphans` lists.

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::lease::{Coordinator, Lease, Terms};
use tokio::runtime::Runtime;

use crate::tenure;

/// Somebody who holds leases.
pub(crate) struct Holder {
    runtime: Runtime,
    coordinator: Coordinator,
}

impl Holder {
    pub(crate) fn on(folder: &TempDir) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let options = tenure_sqlite::Options::new(folder.path().join("t.db"));
        let store = options.open().expect("a store").into_store();
        let coordinator = Coordinator::builder(store).name("worker").start();
        Self { runtime, coordinator: coordinator.expect("a coordinator") }
    }

    pub(crate) fn hold(&self, scope: &str) -> Lease {
        let scope = scope.parse().expect("a scope");
        let terms = Terms::new().reapable().metadata("host", "h7");
        self.runtime.block_on(self.coordinator.acquire(&scope, &terms)).expect("a lease")
    }

    /// Holds it for a moment, and tells under which token.
    pub(crate) fn hold_briefly(&self, scope: &str) -> u64 {
        let lease = self.hold(scope);
        let token = lease.token();
        self.runtime.block_on(lease.release()).expect("a release");
        token
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_revocation_by_token_leaves_whoever_came_after_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let holder = Holder::on(&folder);
    let lease = holder.hold("a.b/c");
    let first = lease.token().to_string();
    let revoke =
        |token: &str| tenure(&store, &["lease", "revoke", "a.b/c", "--expect-token", token]);
    assert_eq!(revoke(&first).ok(), "revoked a.b/c\n");
    revoke(&first).fails(3, "a.b/c");
    let second = holder.hold("a.b/c");
    revoke(&first).fails(5, &format!("token {} holds it now", second.token()));
    assert!(tenure(&store, &["lease", "show", "a.b/c"]).ok().starts_with("held by   worker#"));
}

#[test]
fn what_is_left_is_listed_and_reaped_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let ran = |arguments: &[&str]| tenure(&store, arguments);
    let holder = Holder::on(&folder);
    let mut tokens = Vec::new();
    for scope in ["a.b/c", "a.b/c", "a/d"] {
        let lease = holder.hold(scope);
        ran(&["lease", "revoke", scope]).ok();
        tokens.push(lease.token());
    }
    // One that lives has left nothing.
    let _held = holder.hold("a.b/c");

    let own = ran(&["lease", "orphans", "a"]).ok();
    let rows: Vec<_> = own.lines().collect();
    assert!(rows[0].starts_with("SCOPE  HOLDER") && rows[0].ends_with("METADATA"), "{own}");
    assert!(rows[1].starts_with("a/d    worker#") && rows[1].ends_with("host=h7"), "{own}");
    assert_eq!(rows.len(), 2, "{own}");
    let all = lines(&ran(&["lease", "orphans", "--json"]).ok());
    let below = lines(&ran(&["lease", "orphans", "a", "--children", "--json"]).ok());
    assert_eq!((all.len(), below.len()), (3, 3), "{all:?}");
    let of = |token: u64| all.iter().find(|left| left["token"] == token).expect("what it left");
    let first = of(tokens[0]);
    assert_eq!((&first["scope"], &first["metadata"]["host"]), (&json!("a.b/c"), &json!("h7")));
    assert!(first["nonce"].is_string() && first["revision"].is_u64(), "{first}");

    // A mistake is named before anything is reaped.
    ran(&["lease", "reap", "a/d", "a/nothing"]).fails(3, "a/nothing has left nothing to reap");
    let token = tokens[0].to_string();
    let one = ran(&["lease", "reap", "a.b/c", "--token", &token, "--json"]).ok();
    assert_eq!(lines(&one), [json!({ "scope": "a.b/c", "token": tokens[0], "reaped": true })]);
    let rest = ran(&["lease", "reap", "a.b/c", "a/d"]).ok();
    let rest: Vec<_> = rest.lines().collect();
    assert!(rest[0].starts_with("reaped    a.b/c  worker#"), "{rest:?}");
    assert!(rest[0].ends_with(&format!("token {}", tokens[1])), "{rest:?}");
    assert!(rest.len() == 2 && rest[1].starts_with("reaped    a/d  worker#"), "{rest:?}");
    assert_eq!(ran(&["lease", "orphans", "--json"]).ok(), "");
    ran(&["lease", "reap", "a/d"]).fails(3, "a/d has left nothing to reap");
    assert!(ran(&["lease", "ls"]).ok().contains("a.b/c"), "the one that lives is untouched");
}

#[test]
fn a_resize_that_rests_on_an_older_look_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let ran = |arguments: &[&str]| tenure(&store, arguments);
    let seen = || -> Value {
        serde_json::from_str(&ran(&["slots", "ls", "group", "--json"]).ok()).expect("JSON")
    };
    ran(&["store", "migrate", &store]).ok();
    assert_eq!((&seen()["count"], &seen()["version"]), (&Value::Null, &Value::Null));
    ran(&["slots", "resize", "group", "4", "--expect-version", "1"]).fails(3, "group not found");
    ran(&["slots", "resize", "group", "3"]).ok();
    let version = seen()["version"].to_string();
    let resize = ["slots", "resize", "group", "4", "--expect-version", &version];
    assert_eq!(ran(&resize).ok(), "group has 4 slots\n");
    ran(&resize).fails(4, "found version 2");
    assert_eq!(seen()["count"], 4);
}
