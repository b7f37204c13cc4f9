//! The whole suite on the store in memory, which is the contract's reference: once on one store that
//! all behaviours share with a busy stranger, once on stores whose clock moves only when told, and
//! once behind the prefix of a tenant.

mod tenants;

use std::sync::Arc;
use std::time::Duration;

use tenure::Key;
use tenure::clock::ManualClock;
use tenure::store::memory::MemoryStore;
use tenure::store::{Put, Store, WatchRequest};
use tenure_conformance::{Subject, harness};

fn main() {
    harness::main(
        |_| Box::pin(async { Err(tenure::Error::invalid("worker", "memory is not shared")) }),
        |trials| {
            let store = MemoryStore::new();
            let stranger = store.clone().into_store();
            // Ends with the process.
            std::thread::spawn(move || be_a_stranger(stranger));
            trials.suite_with("shared", of(store.clone()));
            trials.suite_fresh("manual", manual);
            tenants::add(trials, &store);
        },
    )
}

fn manual() -> Subject {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    Subject { clock: Some(clock), ..of(store) }
}

fn of(store: MemoryStore) -> Subject {
    Subject::new(Arc::new(move || {
        let store = store.clone().into_store();
        Box::pin(async move { Ok(store) })
    }))
}

/// Somebody else on the same store: objects come, change, expire and go all the time.
fn be_a_stranger(store: Store) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("a runtime: {error}"));
    runtime.block_on(async {
        // Open for as long as the trials run, so that expiries are told from this runtime: those of
        // the trials come and go.
        let _watch = store.watch(&WatchRequest::kind("stranger")).await;
        for n in 0u64.. {
            let put = Put::new(Key::new("stranger", (n % 100).to_string()), n.to_string());
            let put = if n % 3 == 0 { put.ttl(Duration::from_millis(50)) } else { put };
            let _ = store.commit(put).await;
            if n % 5 == 0 {
                let _ = store.delete(&Key::new("stranger", (n % 70).to_string())).await;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
}
