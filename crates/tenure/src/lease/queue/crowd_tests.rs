//! A crowd in front of one lease.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lease::{Coordinator, Terms};
use crate::store::measured::StoreMetrics;
use crate::store::memory::MemoryStore;

#[tokio::test]
async fn ten_thousand_waiters_are_served_in_order_without_a_stampede() {
    const CROWD: usize = 10_000;
    let metrics = StoreMetrics::default();
    let store = MemoryStore::new().into_store().with_metrics(metrics.clone());
    let coordinator = Coordinator::builder(store.clone()).name("crowd").start().unwrap();
    let scope = "crowd/one".parse::<crate::lease::Scope>().unwrap();
    let first = coordinator.acquire(&scope, &Terms::new()).await.unwrap();

    let served = Arc::new(Mutex::new(Vec::with_capacity(CROWD)));
    let mut tasks = Vec::new();
    for n in 0..CROWD {
        let (crowd, wanted, served) = (coordinator.clone(), scope.clone(), served.clone());
        tasks.push(tokio::spawn(async move {
            let terms = Terms::new().wait_forever();
            let lease = crowd.acquire(&wanted, &terms).await.unwrap();
            served.lock().unwrap().push((n, lease.token()));
            lease.release().await.unwrap();
        }));
        // The first one opens the queue. After that, on one thread, they arrive as they are started.
        while n == 0 && coordinator.status(&scope).await.unwrap().waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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
