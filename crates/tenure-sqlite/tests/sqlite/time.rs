//! The store's clock: uptime of the host, whatever the wall clock does, across restarts and reboots.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use rusqlite::Connection;
use tenure::Key;
use tenure::clock::{Clock, ManualClock};
use tenure::store::{Commit, Put, Query, Store, Touch};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, OrFail, ensure, ensure_eq};
use tenure_sqlite::Options;

pub(crate) fn add(trials: &mut Trials) {
    trials.test("wall_clock_steps_change_nothing", wall_clock);
    trials.test("a_restart_goes_on_counting", restart);
    trials.test("a_read_that_stands_still_finds_what_was_touched_meanwhile", standing_still);
    trials.test("what_is_being_prolonged_does_not_seem_gone_meanwhile", being_prolonged);
    trials.test("a_reboot_counts_from_first_sight", reboot);
}

fn open(path: &std::path::Path, clock: &ManualClock, boot: &str) -> tenure::Result<Store> {
    Ok(Options::new(path).clock(Arc::new(clock.clone())).boot_id(boot).open()?.into_store())
}

async fn wall_clock() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let clock = ManualClock::new();
    let store = open(&folder.path().join("t.db"), &clock, "b1")?;
    let key = Key::new("k", "1");
    let ttl = Duration::from_secs(30);
    let put = store.commit(Put::new(key.clone(), "x").ttl(ttl)).await?;
    for step in [3_600_000, -7_200_000, 86_400_000] {
        clock.step_wall(step);
        let object = store.get(&key).await?.ok_or("a step of the wall clock ended it")?;
        ensure_eq!(object.expires_in, Some(ttl));
    }
    clock.advance(Duration::from_secs(29));
    let touch = Touch { key: key.clone(), revision: put.revision.unwrap_or(0), ttl };
    store.touch(vec![touch]).await?.remove(0)?;
    clock.step_wall(-86_400_000);
    clock.advance(Duration::from_secs(29));
    ensure!(store.get(&key).await?.is_some(), "the touch was not counted");
    clock.advance(Duration::from_millis(1_001));
    ensure_eq!(store.get(&key).await?, None, "a step of the wall clock prolonged it");
    Ok(())
}

async fn restart() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let clock = ManualClock::new();
    let key = Key::new("k", "1");
    let store = open(&path, &clock, "b1")?;
    store.commit(Put::new(key.clone(), "x").ttl(Duration::from_secs(30))).await?;
    store.close().await;
    clock.advance(Duration::from_secs(20));
    let store = open(&path, &clock, "b1")?;
    let left = store.get(&key).await?.and_then(|object| object.expires_in);
    ensure_eq!(left, Some(Duration::from_secs(10)));
    clock.advance(Duration::from_millis(10_001));
    ensure_eq!(store.get(&key).await?, None);
    Ok(())
}

async fn reboot() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let key = Key::new("k", "1");
    let before = ManualClock::new();
    before.advance(Duration::from_secs(1_000_000));
    let store = open(&path, &before, "b1")?;
    store.commit(Put::new(key.clone(), "x").ttl(Duration::from_secs(30))).await?;
    store.close().await;

    // Uptime starts over, far below what it was, and the wall clock is wrong for good measure.
    let after = ManualClock::new();
    after.step_wall(-1_000_000_000);
    let store = open(&path, &after, "b2")?;
    let left = store.get(&key).await?.and_then(|object| object.expires_in);
    ensure_eq!(left, Some(Duration::from_secs(30)), "what was left when it was last seen");
    after.advance(Duration::from_millis(30_001));
    ensure_eq!(store.get(&key).await?, None);
    Ok(())
}

/// A clock whose next reader stands still for a while; the writer goes on.
struct Interrupted {
    clock: ManualClock,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for Interrupted {
    fn uptime(&self) -> Duration {
        if std::thread::current().name() != Some("tenure-sqlite-writer")
            && let Some(meanwhile) = self.meanwhile.lock().expect("no panic").take()
        {
            meanwhile();
        }
        self.clock.uptime()
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    fn sleep_until(&self, uptime: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(uptime)
    }
}

/// Another process touches the object, and its first life passes.
fn touched_elsewhere(path: &Path, clock: &ManualClock) {
    let conn = Connection::open(path).expect("the file opens");
    conn.busy_timeout(Duration::from_secs(5)).expect("a timeout");
    let touch = "UPDATE objects SET expires_at_ms = expires_at_ms + 30000";
    assert_eq!(conn.execute(touch, []).expect("a touch"), 1);
    clock.advance(Duration::from_secs(31));
}

async fn standing_still() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("t.db");
    let manual = ManualClock::new();
    let clock = Arc::new(Interrupted { clock: manual.clone(), meanwhile: Mutex::default() });
    let store = Options::new(&path).clock(clock.clone()).open()?.into_store();
    let key = Key::new("k", "1");
    store.commit(Put::new(key.clone(), "x").ttl(Duration::from_secs(30))).await?;
    *clock.meanwhile.lock().expect("no panic") =
        Some(Box::new(move || touched_elsewhere(&path, &manual)));
    let found = store.get(&key).await?.ok_or("a live object was not found")?;
    ensure_eq!(found.expires_in, Some(Duration::from_secs(29)));
    Ok(())
}

/// A commit that was begun in time and is not on the disk yet when the old life ends.
async fn being_prolonged() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let (path, clock) = (folder.path().join("t.db"), ManualClock::new());
    let (store, other) = (open(&path, &clock, "b1")?, open(&path, &clock, "b1")?);
    let life = Duration::from_secs(10);
    let put = Put::new(Key::new("k", "1"), "x").ttl(life);
    store.commit(put.clone()).await?;
    clock.advance(life - Duration::from_millis(1));

    let (begun, is_begun) = std::sync::mpsc::channel();
    let (finish, may_finish) = std::sync::mpsc::channel();
    let may_finish = Mutex::new(may_finish);
    // Writing the same again begins the life anew; the SQL that comes with it takes its time.
    let slow = Commit::from(put).attach(tenure_sqlite::sql(move |_| {
        let _ = begun.send(());
        let may_finish = may_finish.lock().map(|go| go.recv_timeout(Duration::from_secs(2)));
        drop(may_finish);
        Ok(())
    }));
    let committing = tokio::spawn({
        let store = store.clone();
        async move { store.commit(slow).await }
    });
    tokio::task::spawn_blocking(move || is_begun.recv()).await?.or_fail()?;
    clock.advance(Duration::from_millis(2));
    let reading = tokio::spawn(async move {
        let (got, query) = (other.get(&Key::new("k", "1")).await?, Query::new("k"));
        Ok::<_, tenure::Error>((got, other.list_all(&query).await?))
    });
    // Long enough for a read that does not wait.
    tokio::time::sleep(Duration::from_millis(100)).await;
    finish.send(()).or_fail()?;
    committing.await??;
    let (got, listed) = reading.await??;
    ensure!(got.is_some() && listed.len() == 1, "it seemed gone and is there: {got:?}");
    Ok(())
}
