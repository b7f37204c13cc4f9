//! A machine that sleeps: its uptime counts on, the timers of its programs do not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::clock::{Clock, ManualClock};
use crate::lease::{Coordinator, Loss, Spawn, Terms};
use crate::random::SystemRandom;
use crate::store::memory::MemoryStore;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Shows what [`crate::clock::SystemClock`] does of a machine that was suspended.
#[derive(Clone)]
struct Sleepy {
    awake: ManualClock,
    slept: Arc<Mutex<Duration>>,
}

impl Sleepy {
    fn sleeps(&self, long: Duration) {
        *self.slept.lock().unwrap_or_else(PoisonError::into_inner) += long;
    }
}

impl Clock for Sleepy {
    fn uptime(&self) -> Duration {
        self.awake.uptime() + *self.slept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wall_ms(&self) -> i64 {
        self.awake.wall_ms()
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move {
            while clock.uptime() < uptime {
                clock.awake.sleep(uptime - clock.uptime()).await;
            }
        })
    }
}

/// On the one thread of the test, so that everybody has come to rest when it goes on.
struct Here;

impl Spawn for Here {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

async fn rest() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn work_stops_soon_after_a_machine_wakes_up_whose_lease_ended_meanwhile() {
    let clock = Sleepy { awake: ManualClock::new(), slept: Arc::default() };
    let store = MemoryStore::new().into_store();
    let store = store.with_clock(Arc::new(clock.clone()), SystemRandom::shared());
    let coordinator = Coordinator::builder(store).spawn_on(Arc::new(Here)).start().unwrap();
    let terms = Terms::new().ttl(HOUR);
    let lease = coordinator.acquire(&"a/asleep".parse().unwrap(), &terms).await.unwrap();
    let (tell, begun) = oneshot::channel();
    let work = tokio::spawn(async move {
        let work = async {
            let _ = tell.send(());
            std::future::pending::<()>().await;
        };
        lease.run(work).await
    });
    begun.await.unwrap();
    rest().await;
    clock.sleeps(2 * HOUR);
    rest().await;
    clock.awake.advance(SECOND);
    rest().await;
    assert!(work.is_finished(), "it works on, a second after the machine woke up");
    assert_eq!(work.await.unwrap(), Err(Loss::Expired));
}
