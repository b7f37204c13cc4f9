//! A crowd in front of one lease.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Coordinator, Terms};
use crate::store::measured::StoreMetrics;
use crate::store::memory::MemoryStore;

#[tokio::test]
async fn ten_thousand_waiters_are_served_in_order_without_a_stampede() {
    const CROWD: usize = 10_000;
    let metrics = StoreMetrics::default();
    let store = MemoryStore::new().into_store().with_metrics(metrics.clone());
    let coordinator = Coordinator::builder(store.clone()).name("crowd").start().unwrap();
    let scope = "crowd/one".parse::<super::Scope>().unwrap();
    let first = coordinator.acquire(&scope, &Terms::new()).await.unwrap();

    let served = Arc::new(Mutex::new(Vec::with_capacity(CROWD)));
    let mut tasks = Vec::new();
    for n in 0..CROWD {
        let (coordinator, scope, served) = (coordinator.clone(), scope.clone(), served.clone());
        // One runtime with one thread: they arrive in the order in which they are started.
        tasks.push(tokio::spawn(async move {
            let terms = Terms::new().wait_forever();
            let lease = coordinator.acquire(&scope, &terms).await.unwrap();
            served.lock().unwrap().push((n, lease.token()));
            lease.release().await.unwrap();
        }));
    }
    while coordinator.status(&scope).await.unwrap().waiters.len() < CROWD {
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    first.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let served = std::mem::take(&mut *served.lock().unwrap());
    assert!(served.iter().map(|(n, _)| *n).eq(0..CROWD), "out of order");
    assert!(served.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens must rise");
    // Each was refused once, when it came; nobody tried in vain after that.
    let refused = metrics.conflicts("lease") + metrics.conflicts("lease-waiter");
    assert!(refused <= CROWD as u64 + 100, "{refused} attempts in vain");
    assert_eq!(coordinator.status(&scope).await.unwrap().waiters.len(), 0);
}
