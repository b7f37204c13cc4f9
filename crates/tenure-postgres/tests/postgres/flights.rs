//! Many callers of one process, whose groups set off before the one ahead is answered, and everything
//! that can happen to the one ahead.
//!
//! From sixteen callers on a process tries two groups at a time within a quarter of a second, and goes
//! on trying; so each of these tests lets more than that many work for a second or two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use tenure::clock::{Clock, SystemClock};
use tenure::store::{Commit, Event, Expect, Store, WatchRequest};
use tenure::{Error, Key};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};

use crate::common::{OrFail, Outcome, Server, connect, key, put, raw};

const CALLERS: u64 = 48;
const TIME: Duration = Duration::from_millis(1_500);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("flights::nothing_is_lost_or_done_twice", move || alone(server));
    trials.test("flights::others_get_in_between", move || between(server));
    trials.test("flights::a_row_that_is_not_as_it_was_holds_up_nobody", move || odd(server));
    trials.test("flights::a_lost_connection_leaves_doubt_and_no_more", move || lost(server));
}

/// Counts up an object of its own, each time from where it left it, and lets a second one come and go.
/// How often it did.
async fn count_up(store: &Store, caller: u64, over: &AtomicBool) -> Result<u64, Failure> {
    let (id, other) = (format!("mine-{caller}"), format!("comes-and-goes-{caller}"));
    let mut turns = 0;
    while !over.load(Ordering::Relaxed) {
        let expect = if turns == 0 { Expect::Absent } else { Expect::Version(turns) };
        let done = store.commit(put(&id, &turns.to_string()).expect(expect)).await?;
        ensure_eq!(done.first_put().map(|put| put.version), Some(turns + 1), "{id}");
        turns += 1;
        let granted = put(&other, "x").expect(Expect::Absent).ttl(Duration::from_secs(60));
        let granted = Commit::from(granted).check(key(format!("{other}#")), Expect::Absent);
        let token = store.commit(granted).await?.first_put().ok_or("no put")?.token;
        store.commit(Commit::new().delete(key(&other), Expect::Token(token))).await?;
    }
    Ok(turns)
}

async fn for_a_while(over: Arc<AtomicBool>) -> Result<u64, Failure> {
    SystemClock.sleep(TIME).await;
    over.store(true, Ordering::Relaxed);
    Ok(0)
}

/// What watchers hear from the beginning: every revision once and in order, every object's versions
/// without a gap.
async fn complete(store: &Store, turns: &[u64], strangers: u64) -> Outcome {
    let mut watch = store.watch(&WatchRequest::default().after(0)).await?;
    let written: u64 = turns.iter().map(|turns| 3 * turns).sum::<u64>() + strangers;
    let mut versions = vec![0; turns.len()];
    for revision in 1..=written {
        let batch = watch.next().await.ok_or("the watch ended")??;
        ensure_eq!(batch.revision, revision);
        ensure_eq!(batch.events.len(), 1, "{batch:?}");
        let Some(Event::Put(object)) = batch.events.first() else { continue };
        let Some(caller) = object.key.id.strip_prefix("mine-") else { continue };
        let seen: &mut u64 = &mut versions[caller.parse::<usize>().or_fail()?];
        *seen += 1;
        ensure_eq!(object.version, *seen, "{}", object.key);
    }
    ensure_eq!(versions, turns);
    let head = store.commit(put("last", "x")).await?.revision;
    ensure_eq!(head, Some(written + 1));
    Ok(())
}

async fn alone(server: Server) -> Outcome {
    let store = connect(&server.fresh_database()?).await?;
    let over = Arc::new(AtomicBool::new(false));
    let callers = try_join_all((0..CALLERS).map(|caller| count_up(&store, caller, &over)));
    let (turns, _) = futures::try_join!(callers, for_a_while(Arc::clone(&over)))?;
    complete(&store, &turns, 0).await
}

async fn between(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let over = Arc::new(AtomicBool::new(false));
    let strangers = AtomicU64::new(0);
    let stranger = async {
        while !over.load(Ordering::Relaxed) {
            let number = strangers.fetch_add(1, Ordering::Relaxed);
            other.commit(put("theirs", &number.to_string())).await?;
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
        Ok::<u64, Failure>(0)
    };
    let callers = try_join_all((0..CALLERS).map(|caller| count_up(&store, caller, &over)));
    let (turns, ..) = futures::try_join!(callers, stranger, for_a_while(Arc::clone(&over)))?;
    complete(&store, &turns, strangers.load(Ordering::Relaxed)).await
}

/// Somebody changes rows without drawing a revision: the counter is as it was, the rows are not.
async fn odd(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, raw(&url).await?);
    operator.batch_execute("set tenure.writer = '1'").await.or_fail()?;
    let over = Arc::new(AtomicBool::new(false));
    let meddler = async {
        let mut round = 0;
        while !over.load(Ordering::Relaxed) {
            let change = "update objects set created_at_ms = created_at_ms where id = $1";
            let id = format!("mine-{}", round % CALLERS);
            operator.execute(change, &[&id]).await.or_fail()?;
            round += 1;
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
        Ok::<u64, Failure>(0)
    };
    let callers = try_join_all((0..CALLERS).map(|caller| count_up(&store, caller, &over)));
    let (turns, ..) = futures::try_join!(callers, meddler, for_a_while(Arc::clone(&over)))?;
    complete(&store, &turns, 0).await
}

/// Sessions are ended while both groups may be under way. What was acknowledged is there, and what
/// was refused is not.
async fn lost(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (store, operator) = (connect(&url).await?, raw(&url).await?);
    let over = Arc::new(AtomicBool::new(false));
    let killer = async {
        let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'tenure commit' and datname = current_database()";
        while !over.load(Ordering::Relaxed) {
            SystemClock.sleep(Duration::from_millis(150)).await;
            operator.execute(end, &[]).await.or_fail()?;
        }
        Ok::<u64, Failure>(0)
    };
    let callers = try_join_all((0..CALLERS).map(|caller| settled(&store, caller, &over)));
    let (written, ..) = futures::try_join!(callers, killer, for_a_while(Arc::clone(&over)))?;
    for (caller, written) in written.into_iter().enumerate() {
        let stored = store.get(&mine(caller as u64)).await?;
        ensure_eq!(stored.map_or(0, |object| object.version), written, "{caller}");
    }
    Ok(())
}

fn mine(caller: u64) -> Key {
    key(format!("mine-{caller}"))
}

/// Counts up, and looks after a commit whose outcome is unknown. The version it left.
async fn settled(store: &Store, caller: u64, over: &AtomicBool) -> Result<u64, Failure> {
    let mut version = 0;
    while !over.load(Ordering::Relaxed) {
        let expect = if version == 0 { Expect::Absent } else { Expect::Version(version) };
        let text = format!("{version}");
        match store.commit(put(format!("mine-{caller}"), &text).expect(expect)).await {
            Ok(_) => version += 1,
            Err(Error::Unknown { .. }) => {
                // A session that was ended cannot commit any more, so this is the truth.
                let stored = store.get(&mine(caller)).await?;
                let now = stored.map_or(0, |object| object.version);
                ensure!(now == version || now == version + 1, "{caller}: {now} after {version}");
                version = now;
            }
            Err(Error::Unavailable { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(version)
}
