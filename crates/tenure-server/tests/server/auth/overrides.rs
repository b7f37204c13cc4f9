//! Over the heads of others: what ends a tenure or changes a count by writing the records themselves.

use tenure::lease::{Coordinator, LEASE, Namespace, SLOTS, Scope, Terms};
use tenure_proto::v1;
use tenure_proto::v1::expect::What;
use tonic::{Code, Status};

use super::rig::{Rig, key, logged, token};

fn denied(told: Result<(), Status>) -> bool {
    told.is_err_and(|told| told.code() == Code::PermissionDenied)
}

fn expect(what: What) -> Option<v1::Expect> {
    Some(v1::Expect { what: Some(what) })
}

/// Lines of the audit log about this subject and resource that say this.
fn lines(subject: &str, resource: &str, what: &str) -> usize {
    let (subject, resource) = (format!("subject={subject:?}"), format!("resource={resource:?}"));
    logged(&["audit", &subject, &resource, what]).len()
}

#[tokio::test]
async fn a_count_is_not_changed_by_removing_the_record_and_writing_it_anew() {
    let (holder, first) = token("count-holder", &["leases:hold:count.*"]);
    let (boss, second) = token("count-boss", &["leases:*:*", "slots:resize:count.*"]);
    let rig = Rig::start(Some(&format!("{first}{second}")), |_, _| {}).await;
    let holder = rig.client(Some(&holder)).await;
    let boss = holder.as_with(&boss);
    let group = [(SLOTS, "count.pool")];
    holder.put_saying(&group, expect(What::Absent(true)), r#"{"count":3}"#).await.unwrap();

    for what in [None, expect(What::Exists(true)), expect(What::Version(1))] {
        assert!(denied(holder.delete(SLOTS, "count.pool", what).await), "{what:?}");
    }
    // One that is to vanish by itself comes to the same.
    let brief = |expect| {
        let (key, payload) = (key(SLOTS, "count.pool"), r#"{"count":3}"#.into());
        let put = v1::Put { key, expect, payload, ttl_ms: Some(50), ..v1::Put::default() };
        vec![v1::write::Write::Put(put)]
    };
    for what in [None, expect(What::Exists(true)), expect(What::Absent(true))] {
        assert!(denied(holder.commit(brief(what)).await), "{what:?}");
    }
    assert_eq!(lines("count-holder", "count.pool/*", "denied"), 6);
    assert_eq!(lines("count-holder", "count.pool/*", "resized"), 0);

    boss.commit(brief(expect(What::Exists(true)))).await.unwrap();
    boss.put_saying(&group, None, r#"{"count":3}"#).await.unwrap();
    boss.delete(SLOTS, "count.pool", expect(What::Exists(true))).await.unwrap();
    assert_eq!(lines("count-boss", "count.pool/*", "resized"), 3);
}

#[tokio::test]
async fn to_end_the_tenure_of_others_takes_leave_to_revoke_and_is_told() {
    let (holder, first) = token("tenure-holder", &["leases:hold:tenure.*"]);
    let (boss, second) = token("tenure-boss", &["leases:*:tenure.*"]);
    let rig = Rig::start(Some(&format!("{first}{second}")), |_, _| {}).await;
    let other = rig.client(Some(&holder)).await;
    let boss = other.as_with(&boss);
    // The library itself names what it writes over, whatever it does.
    let coordinator = Coordinator::new(rig.store(&holder).await).unwrap();
    let (scope, group): (Scope, Namespace) =
        ("tenure.a/close".parse().unwrap(), "tenure.pool".parse().unwrap());
    let lease = coordinator.acquire(&scope, &Terms::new().reapable()).await.unwrap();
    lease.proclaim([("a".into(), "b".into())].into()).await.unwrap();
    lease.release().await.unwrap();
    let slot = coordinator.acquire_slot(&group, 2, &Terms::new()).await.unwrap().unwrap();
    slot.into_lease().release().await.unwrap();
    let _held = coordinator.acquire(&scope, &Terms::new()).await.unwrap();
    assert!(coordinator.revoke(&scope, "no leave to").await.is_err());

    let careless = [None, expect(What::Exists(true)), expect(What::Version(1))];
    for what in careless {
        assert!(denied(other.delete(LEASE, "tenure.a/close", what).await), "{what:?}");
        let put = other.put_expecting(&[(LEASE, "tenure.a/close")], what);
        assert!(denied(put.await), "{what:?}");
    }
    assert_eq!(lines("tenure-holder", "tenure.a/close", "overridden"), 0);
    boss.put_expecting(&[(LEASE, "tenure.a/close")], expect(What::Exists(true))).await.unwrap();
    boss.delete(LEASE, "tenure.a/close", None).await.unwrap();
    let told = boss.delete(LEASE, "tenure.a/close", expect(What::Exists(true))).await;
    assert_eq!(told.unwrap_err().code(), Code::NotFound);
    assert_eq!(lines("tenure-boss", "tenure.a/close", "overridden"), 2);
}
