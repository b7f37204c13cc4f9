//! Asking a holder to hand over takes leave to revoke; to follow takes no more than to hold.

use std::time::Duration;

use tenure::Error;
use tenure::lease::{Coordinator, HAND_OVER, Scope, Terms};
use tenure::store::Query;

use super::rig::{Rig, logged, token, until};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn whoever_may_revoke_may_ask_and_whoever_holds_follows() {
    let (worker, first) = token("handing-worker", &["leases:hold:billing.*"]);
    let (boss, second) =
        token("handing-boss", &["leases:read:billing.*", "leases:revoke:billing.*"]);
    let rig = Rig::start(Some(&format!("{first}{second}")), |_, _| {}).await;
    let named = async |token: &str, name: &str| {
        Coordinator::builder(rig.store(token).await).name(name).start().unwrap()
    };
    let (holder, next) = (named(&worker, "holder").await, named(&worker, "next").await);
    let boss = named(&boss, "boss").await;
    let scope: Scope = "billing.eu/close".parse().unwrap();
    let terms = Terms::new().ttl(LONG);
    let lease = holder.acquire(&scope, &terms).await.unwrap();
    let waits = tokio::spawn({
        let (next, scope, terms) = (next.clone(), scope.clone(), terms.clone().wait_forever());
        async move { next.acquire(&scope, &terms).await }
    });
    until("somebody waits", || async { !boss.status(&scope).await.unwrap().waiters.is_empty() })
        .await;

    // One holder cannot send another away.
    let told = next.ask_to_hand_over(&scope, None, None, LONG).await.unwrap_err();
    assert!(!matches!(told, Error::Held { .. }), "{told}");
    assert!(told.to_string().contains("leases:revoke"), "{told}");
    // Whoever asks takes its request back, too.
    let brief = Duration::from_millis(300);
    let told = boss.ask_to_hand_over(&scope, None, None, brief).await.unwrap_err();
    assert!(matches!(told, Error::Held { .. }), "{told}");
    let left = boss.store().list_all(&Query::new(HAND_OVER).prefix("billing.eu/")).await.unwrap();
    assert!(left.is_empty(), "{left:?}");

    let asking = tokio::spawn({
        let (boss, scope) = (boss.clone(), scope.clone());
        async move { boss.ask_to_hand_over(&scope, None, Some("next"), LONG).await }
    });
    let request = lease.asked_to_hand_over().await;
    assert!(request.by.starts_with("boss#"), "{request:?}");
    lease.hand_over(&request.to).await.map_err(|(_, error)| error).unwrap();
    assert_eq!(asking.await.unwrap().unwrap().holder, *next.owner());
    waits.await.unwrap().unwrap().release().await.unwrap();
    let lines = logged(&["handing-boss", "asked to hand over", "billing.eu/close"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(logged(&["handing-worker", "denied", "leases:revoke"]).len(), 1);
}
