//! What rests on a look: `lease revoke --token` and `slots resize --version`.

use serde_json::Value;
use tempfile::TempDir;
use tenure::lease::{Coordinator, Lease, Terms};
use tokio::runtime::Runtime;

use crate::tenure;

/// Somebody who holds leases and releases none of them.
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
}

#[test]
fn a_revocation_by_token_leaves_whoever_came_after_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let holder = Holder::on(&folder);
    let lease = holder.hold("a.b/c");
    let first = lease.token().to_string();
    let revoke = |token: &str| tenure(&store, &["lease", "revoke", "a.b/c", "--token", token]);
    assert_eq!(revoke(&first).ok(), "revoked a.b/c\n");
    revoke(&first).fails(3, "a.b/c");
    let second = holder.hold("a.b/c");
    revoke(&first).fails(5, &format!("token {} holds it now", second.token()));
    assert!(tenure(&store, &["lease", "show", "a.b/c"]).ok().starts_with("held by   worker#"));
}

#[test]
fn a_resize_that_rests_on_an_older_look_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("t.db").display());
    let ran = |arguments: &[&str]| tenure(&store, arguments);
    let seen = || -> Value {
        serde_json::from_str(&ran(&["slots", "ls", "group", "--json"]).ok()).expect("JSON")
    };
    assert_eq!((&seen()["count"], &seen()["version"]), (&Value::Null, &Value::Null));
    ran(&["slots", "resize", "group", "4", "--version", "1"]).fails(3, "group not found");
    ran(&["slots", "resize", "group", "3"]).ok();
    let version = seen()["version"].to_string();
    let resize = ["slots", "resize", "group", "4", "--version", &version];
    assert_eq!(ran(&resize).ok(), "group has 4 slots\n");
    ran(&resize).fails(4, "found version 2");
    assert_eq!(seen()["count"], 4);
}
