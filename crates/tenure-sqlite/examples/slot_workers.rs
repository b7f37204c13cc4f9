//! N workers at a time, however many there are, and N can change while they work.
//!
//! Eight workers share two slots, say because a licence or a rate limit allows two at once. The group
//! is grown to four, which counts at once, and shrunk to one, which evicts nobody: nothing is refilled
//! until only one is left.
//!
//! Run it with `cargo run -p tenure-sqlite --example slot_workers`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Namespace, Slots, Terms};
use tenure_sqlite::SqliteStore;

const WORKERS: usize = 8;
/// How long a worker is at work each time.
const WORK: Duration = Duration::from_millis(40);
/// Long enough that none runs out while this machine is busy with other things.
const LIFE: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Who is at work, as the work itself sees it.
#[derive(Default)]
struct Site {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
    over: AtomicBool,
}

impl Site {
    /// The most that were at work at once since this was asked the last time.
    fn take_most(&self) -> usize {
        self.most.swap(self.now.load(Ordering::SeqCst), Ordering::SeqCst)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("slots.db");
    let site = Arc::new(Site::default());
    let slots = group(&path, "operator")?;
    let mut workers = Vec::new();
    for n in 1..=WORKERS {
        workers.push(tokio::spawn(work(group(&path, &format!("worker-{n}"))?, Arc::clone(&site))));
    }
    println!("{WORKERS} workers share 2 slots.");
    until(|| done(&site) >= 10).await;
    let most = site.take_most();
    println!("  After {} pieces of work: at most {most} were at work at once.", done(&site));
    assert_eq!(most, 2);

    slots.resize(4).await?;
    println!("Now there are 4, and nobody had to be restarted.");
    until(|| site.most.load(Ordering::SeqCst) >= 4).await;
    let so_far = done(&site);
    until(|| done(&site) >= so_far + 12).await;
    let most = site.take_most();
    println!("  After {} pieces of work: at most {most} were at work at once.", done(&site));
    assert_eq!(most, 4);

    slots.resize(1).await?;
    println!("Now there is 1. Whoever has a slot may finish …");
    let began = SystemClock.uptime();
    while slots.holders().await?.len() > 1 {
        assert!(SystemClock.uptime() - began < PATIENCE, "it took too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    site.take_most();
    let so_far = done(&site);
    until(|| done(&site) >= so_far + 4).await;
    let most = site.take_most();
    println!("… and from then on at most {most} is at work. {} pieces in all.", done(&site));
    assert_eq!(most, 1);

    site.over.store(true, Ordering::SeqCst);
    for worker in workers {
        let finished = worker.await?;
        finished.map_err(|error| format!("a worker met: {error}"))?;
    }
    println!("Everybody got a turn, and the line is empty.");
    assert!(slots.waiters().await?.is_empty() && slots.holders().await?.is_empty());
    Ok(())
}

/// The group of slots, as somebody of this name with a handle of its own.
fn group(path: &Path, name: &str) -> Outcome<Slots> {
    let store = SqliteStore::open(path)?.into_store();
    let coordinator = Coordinator::builder(store).name(name).start()?;
    let group: Namespace = "render.licence".parse()?;
    Ok(coordinator.slots(&group))
}

/// One worker: a slot, some work, the slot back, and again.
async fn work(slots: Slots, site: Arc<Site>) -> tenure::Result<()> {
    while !site.over.load(Ordering::SeqCst) {
        // The 2 counts for a group that is new; afterwards the operator decides.
        let slot = slots.acquire(2, &Terms::new().ttl(LIFE).wait_forever()).await?;
        let now = site.now.fetch_add(1, Ordering::SeqCst) + 1;
        site.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(WORK).await;
        site.now.fetch_sub(1, Ordering::SeqCst);
        site.done.fetch_add(1, Ordering::SeqCst);
        slot.into_lease().release().await?;
    }
    Ok(())
}

fn done(site: &Site) -> usize {
    site.done.load(Ordering::SeqCst)
}

/// Looks again and again until it is so.
async fn until(mut is_so: impl FnMut() -> bool) {
    let began = SystemClock.uptime();
    while !is_so() {
        assert!(SystemClock.uptime() - began < PATIENCE, "it took too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
