//! Calls are answered on the runtime that the store was opened on, and go on without it.

use std::time::Duration;

use tenure::store::Put;
use tenure::store::memory::MemoryStore;
use tenure::{Error, Key};
use tenure_conformance::Failure;
use tenure_conformance::harness::Trials;
use tokio::runtime::{Builder, Runtime};

use crate::common::{Outcome, Serving, connect};

/// Longer than it takes to find out that a server is frozen.
const STANDSTILL: Duration = Duration::from_millis(3_500);

pub(crate) fn add(trials: &mut Trials) {
    trials.test("near::a_store_outlives_the_runtime_it_was_opened_on", elsewhere);
    trials.test("near::a_runtime_that_stood_still_finds_its_answers", standstill);
}

fn put(id: &str) -> Put {
    Put::new(Key::new("thing", id), "x")
}

fn small() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn elsewhere() -> Outcome {
    let server = Serving::start(MemoryStore::new().into_store());
    let url = server.url();
    let opened = std::thread::spawn(move || {
        let runtime = small();
        let client = runtime.block_on(async {
            let client = connect(&url).await?;
            client.commit(put("there")).await?;
            Ok::<_, Error>(client)
        });
        (client, runtime)
    });
    let (client, runtime) = opened.join().map_err(|_| Failure::new("the thread panicked"))?;
    let client = client?;
    // It is there still, but nobody runs it.
    client.commit(put("here")).await?;
    runtime.shutdown_background();
    client.commit(put("later")).await?;
    for id in ["there", "here", "later"] {
        if client.get(&Key::new("thing", id)).await?.is_none() {
            return Err(Failure::new(format!("{id} is missing")));
        }
    }
    Ok(())
}

async fn standstill() -> Outcome {
    let server = Serving::start(MemoryStore::new().into_store());
    let url = server.url();
    let stood = tokio::task::spawn_blocking(move || {
        small().block_on(async {
            let client = connect(&url).await?;
            client.commit(put("before")).await?;
            let during = tokio::spawn({
                let client = client.clone();
                async move { client.commit(put("during")).await }
            });
            tokio::task::yield_now().await;
            std::thread::sleep(STANDSTILL);
            let during = during.await.map_err(|error| Error::unavailable("test", error))?;
            client.commit(put("after")).await?;
            during
        })
    });
    stood.await??;
    Ok(())
}
