//! What callers may do, by action and by name: objects, and the records that leases are made of.

use std::time::Duration;

use tenure::lease::{Coordinator, LEASE, REVOKED, SLOTS, Scope, Terms, WAITER, Wait};
use tenure::store::WatchRequest;
use tenure_proto::v1;
use tonic::{Code, Status};

use super::rig::{Client, Rig, logged, token, until};

fn denied(told: Result<impl std::fmt::Debug, Status>) -> bool {
    told.as_ref().is_err_and(|told| told.code() == Code::PermissionDenied)
}

fn absent() -> Option<v1::Expect> {
    Some(v1::Expect { what: Some(v1::expect::What::Absent(true)) })
}

#[tokio::test]
async fn objects_are_read_and_written_by_kind_and_id() {
    let clerk = ["objects:read:order/*", "objects:write:order/2026-*"];
    let (clerk, entry) = token("objects-clerk", &clerk);
    let rig = Rig::start(Some(&entry), |_, _| {}).await;
    let clerk = rig.client(Some(&clerk)).await;
    clerk.put(&[("order", "2026-1")]).await.unwrap();
    assert!(clerk.get("order", "2026-1").await.unwrap());
    clerk.list("order", "").await.unwrap();
    clerk.list("order", "2025").await.unwrap();
    clerk.watch(Some("order"), "").await.unwrap();
    assert!(denied(clerk.put(&[("order", "2025-1")]).await));
    assert!(denied(clerk.get("orders", "2026-1").await));
    assert!(denied(clerk.get("secret", "1").await));
    assert!(denied(clerk.list("orders", "").await));
    assert!(denied(clerk.watch(None, "").await));
    assert!(denied(clerk.watch(Some("ord"), "").await));
    // All or nothing, permissions included.
    let both = [("order", "2026-2"), ("order", "2025-2")];
    assert!(denied(clerk.put(&both).await));
    assert!(!clerk.get("order", "2026-2").await.unwrap());
    // The records of leases are no objects like others.
    assert!(denied(clerk.get(LEASE, "billing/close").await));
    assert!(denied(clerk.watch(Some(LEASE), "").await));
    let lines = logged(&["objects-clerk", "denied", "action=\"objects:write\"", "order/2025-1"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[tokio::test]
async fn records_of_leases_are_kept_by_scope() {
    let (holder, first) = token("leases-holder", &["leases:hold:billing.*"]);
    let (boss, second) = token("leases-boss", &["leases:*:*", "slots:resize:billing.*"]);
    let (one, third) = token("leases-one", &["leases:*:billing/close"]);
    let rig = Rig::start(Some(&format!("{first}{second}{third}")), |_, _| {}).await;
    let holder = rig.client(Some(&holder)).await;
    let (boss, one) = (holder.as_with(&boss), holder.as_with(&one));

    let own = ["billing/close", "billing.eu/close", "billing/report#write"];
    let others = ["billingx/close", "bill/close", "shipping/close", "billingx.billing/close"];
    for id in own {
        holder.put_expecting(&[(LEASE, id)], absent()).await.unwrap();
        assert!(holder.get(LEASE, id).await.unwrap());
    }
    for id in others {
        assert!(denied(holder.put_expecting(&[(LEASE, id)], absent()).await), "{id}");
        assert!(denied(holder.get(LEASE, id).await), "{id}");
    }
    holder.put(&[(WAITER, "billing/close#1")]).await.unwrap();
    for (prefix, fine) in [("billing.", true), ("billing/", true), ("billing", false), ("", false)]
    {
        assert_eq!(denied(holder.list(LEASE, prefix).await), !fine, "{prefix}");
        // A watch shows what may be seen of it.
        holder.watch(Some(LEASE), prefix).await.unwrap();
    }
    // Who waits for one scope is seen by whoever may see that scope.
    one.list(WAITER, "billing/close#").await.unwrap();
    assert!(denied(one.list(WAITER, "billing/close").await));
    assert!(denied(one.list(WAITER, "billing/close2#").await));

    over_the_heads_of_others(&holder, &boss).await;
}

/// Revoking and resizing need permissions of their own, and leave a line in the audit log.
async fn over_the_heads_of_others(holder: &Client, boss: &Client) {
    holder.put_expecting(&[(SLOTS, "billing.pool")], absent()).await.unwrap();
    assert!(denied(holder.put(&[(REVOKED, "billing/close#1")]).await));
    assert!(denied(holder.put(&[(SLOTS, "billing.pool")]).await));
    // A commit that fails was not done, and is not told as if it were.
    let taken =
        boss.put_expecting(&[(REVOKED, "billing/old#1"), (LEASE, "billing/close")], absent());
    assert_eq!(taken.await.unwrap_err().code(), Code::AlreadyExists);
    boss.put(&[(REVOKED, "billing/close#1")]).await.unwrap();
    boss.put(&[(SLOTS, "billing.pool")]).await.unwrap();
    assert!(denied(boss.put(&[(SLOTS, "shipping.pool")]).await));
    let line = |subject: &str, action: &str, resource: &str, what: &str| {
        let fields = [
            format!("subject={subject:?}"),
            format!("action={action:?}"),
            format!("resource={resource:?}"),
            "peer=127.0.0.1".into(),
            what.into(),
        ];
        logged(&fields.each_ref().map(String::as_str)).len()
    };
    assert_eq!(line("leases-boss", "leases:revoke", "billing/close", "revoked"), 1);
    assert_eq!(line("leases-boss", "leases:revoke", "billing/old", "revoked"), 0);
    assert_eq!(line("leases-boss", "slots:resize", "billing.pool/*", "resized"), 1);
    assert_eq!(line("leases-boss", "slots:resize", "shipping.pool/*", "denied"), 1);
    assert_eq!(line("leases-holder", "leases:revoke", "billing/close", "denied"), 1);
    assert_eq!(line("leases-holder", "slots:resize", "billing.pool/*", "denied"), 1);
    // Whoever takes a slot may write the group's record, but not its count.
    let group = [(SLOTS, "billing.pool")];
    boss.put_saying(&group, None, r#"{"count":3}"#).await.unwrap();
    let exists = || Some(v1::Expect { what: Some(v1::expect::What::Exists(true)) });
    holder.put_saying(&group, exists(), r#"{"count":3,"epoch":1}"#).await.unwrap();
    assert!(denied(holder.put_saying(&group, exists(), r#"{"count":4}"#).await));
    boss.put_saying(&group, exists(), r#"{"count":4}"#).await.unwrap();
}

#[tokio::test]
async fn a_coordinator_over_the_wire_waits_for_what_it_may_hold_and_sees_nothing_else() {
    let (billing, first) = token("wire-billing", &["leases:hold:billing.*"]);
    let (all, second) = token("wire-all", &["leases:*:*"]);
    let rig = Rig::start(Some(&format!("{first}{second}")), |_, _| {}).await;
    let (billing, all) = (rig.store(&billing).await, rig.store(&all).await);
    let mut seen = billing.watch(&WatchRequest::kind(LEASE)).await.unwrap();
    let (holder, waiter) = (Coordinator::new(all).unwrap(), Coordinator::new(billing).unwrap());
    let terms = Terms::new().wait(Wait::Forever);
    let (own, other) =
        ("billing.eu/close".parse::<Scope>().unwrap(), "shipping/close".parse().unwrap());

    let _other = holder.acquire(&other, &terms).await.unwrap();
    let told = waiter.acquire(&other, &Terms::new()).await.unwrap_err();
    assert!(!matches!(told, tenure::Error::Held { .. }), "it was told who holds it: {told}");
    let held = holder.acquire(&own, &terms).await.unwrap();
    let waiting = tokio::spawn({
        let own = own.clone();
        async move { waiter.acquire(&own, &terms).await }
    });
    until("somebody waits", || async { !holder.status(&own).await.unwrap().waiters.is_empty() })
        .await;
    held.release().await.unwrap();
    // Long before the lease would have ended by itself.
    let lease = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    let lease = lease.unwrap().unwrap().unwrap();
    lease.release().await.unwrap();
    let first = seen.next().await.unwrap().unwrap();
    assert_eq!(first.events[0].key().id, "billing.eu/close", "the other one came first");
}

#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let of = |name: &str, tenant: &str| {
        let (token, entry) = token(name, &["objects:*:*", "leases:*:*"]);
        (token, format!("{entry}tenant = {tenant:?}\n"))
    };
    let ((acme, first), (globex, second)) = (of("tenant-a", "acme"), of("tenant-g", "globex"));
    let (owner, third) = token("tenant-none", &["objects:*:*"]);
    let rig = Rig::start(Some(&format!("{first}{second}{third}")), |_, _| {}).await;
    let acme = rig.client(Some(&acme)).await;
    let (globex, owner) = (acme.as_with(&globex), acme.as_with(&owner));
    acme.put(&[("order", "1")]).await.unwrap();
    assert!(acme.get("order", "1").await.unwrap());
    for id in ["1", "acme~1", "~1", "../acme~1"] {
        assert!(!globex.get("order", id).await.unwrap(), "{id}");
    }
    globex.put(&[("order", "1")]).await.unwrap();
    assert!(owner.get("order", "acme~1").await.unwrap());
    assert!(!owner.get("order", "1").await.unwrap());
}
