//! Several processes that write to one file: a busy one keeps the others from nothing.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::store::{Put, Query, Store};
use tenure::{Key, Result};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail, ensure};
use tenure_sqlite::SqliteStore;

/// Makes this binary write to a store with many at once until it is killed.
pub(crate) const HAMMER: &str = "--hammer";
/// So many at once.
const WRITERS: usize = 64;
/// Commits of the one that comes and goes.
const COMMITS: usize = 150;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("fair::a_busy_process_starves_nobody", one_beside_many);
    trials.test("fair::two_busy_processes_share", two_that_are_busy);
}

/// A process that ends with the test.
struct Busy(Child);

impl Busy {
    fn start(path: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe().or_fail()?;
        let child = Command::new(program).args([HAMMER, path]).stdin(Stdio::null()).spawn();
        Ok(Self(child.or_fail()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the busy process does.
pub(crate) fn hammer(path: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let store = SqliteStore::open(path).expect("the store opens").into_store();
        let writers = (0..WRITERS).map(|writer| write_on(store.clone(), writer));
        futures::future::join_all(writers).await;
    });
}

async fn write_on(store: Store, writer: usize) {
    let key = Key::new("busy", writer.to_string());
    for number in 0_u64.. {
        // Being told to wait is no reason to stop.
        let _ = store.commit(Put::new(key.clone(), number.to_string())).await;
    }
}

/// A store and a busy process beside it.
async fn beside_a_busy_one(folder: &tempfile::TempDir) -> Result<(Store, Busy), Failure> {
    let path = folder.path().join("shared.db").to_string_lossy().into_owned();
    let store = SqliteStore::open(&path)?.into_store();
    let busy = Busy::start(&path)?;
    let last = Key::new("busy", (WRITERS - 1).to_string());
    while store.get(&last).await?.is_none_or(|object| object.version < 10) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok((store, busy))
}

/// One that comes now and then: how many commits of the other go first while it waits? What was under
/// way when it came, and what fits into the time that a busy machine leaves it without a processor.
async fn one_beside_many() -> Result<(), Failure> {
    let folder = tempfile::tempdir().or_fail()?;
    let (store, _busy) = beside_a_busy_one(&folder).await?;
    let (mut took, mut passed) = (Vec::new(), Vec::new());
    for number in 0..COMMITS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let before = store.list(&Query::new("single")).await?.revision;
        let sent = SystemClock.uptime();
        let done = store.commit(Put::new(single(), number.to_string())).await?;
        took.push(SystemClock.uptime() - sent);
        passed.push(done.revision.unwrap_or(u64::MAX) - before);
    }
    took.sort_unstable();
    passed.sort_unstable();
    let at = |percent: usize| (COMMITS - 1) * percent / 100;
    let told = format!(
        "of {COMMITS} commits one took {:?}, one in a hundred {:?}, the longest {:?}; \
         {} commits went first, {} in one of ten, {} at most",
        took[at(50)],
        took[at(99)],
        took[at(100)],
        passed[at(50)],
        passed[at(90)],
        passed[at(100)]
    );
    println!("{told}");
    ensure!(passed[at(90)] <= WRITERS as u64 * 6, "{told}");
    Ok(())
}

/// One that writes on and on, each time when it has its answer: it is as greedy as the other.
async fn two_that_are_busy() -> Result<(), Failure> {
    let folder = tempfile::tempdir().or_fail()?;
    let (store, _busy) = beside_a_busy_one(&folder).await?;
    let before = store.list(&Query::new("single")).await?.revision;
    let began = SystemClock.uptime();
    for number in 0..COMMITS {
        store.commit(Put::new(single(), number.to_string())).await?;
    }
    let lasted = SystemClock.uptime() - began;
    let all = store.list(&Query::new("single")).await?.revision - before;
    let told =
        format!("{COMMITS} commits in {lasted:?}, and {} of the other", all - COMMITS as u64);
    println!("{told}");
    ensure!(all > COMMITS as u64 * 8, "{told}");
    Ok(())
}

fn single() -> Key {
    Key::new("single", "one")
}
