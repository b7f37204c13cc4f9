//! A loop that cannot be stopped: its lease stays, so that nobody starts beside it.

use std::time::Duration;

use crate::Error;
use crate::gate::{Gate, Patience};
use crate::lease::{Coordinator, Scope, Terms};
use crate::store::memory::MemoryStore;

const LIFE: Duration = Duration::from_millis(300);
/// Longer than the gate waits for a loop that blocks its thread, and some lives more.
const STUCK: Duration = Duration::from_millis(3_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_loop_that_is_stuck_at_shutdown_keeps_its_lease_from_others() {
    let store = MemoryStore::new().into_store();
    let here = Coordinator::builder(store.clone()).name("here").start().unwrap();
    let there = Coordinator::builder(store).name("there").start().unwrap();
    let scope: Scope = "stuck/loop".parse().unwrap();
    let patience = Patience { stop: Duration::from_millis(100), ..Patience::default() };
    let gate = Gate::new(&here, scope.clone())
        .terms(Terms::new().ttl(LIFE))
        .patience(patience)
        .work("stuck", |_term| async { std::thread::sleep(STUCK) });
    let ended = gate.run(tokio::time::sleep(LIFE)).await;
    let error = ended.expect_err("a loop is still running");
    assert!(error.to_string().contains("did not stop in time"), "{error}");
    for _ in 0..4 {
        tokio::time::sleep(LIFE / 2).await;
        let taken = there.acquire(&scope, &Terms::new()).await;
        assert!(matches!(taken, Err(Error::Held { .. })), "{taken:?}");
    }
}
