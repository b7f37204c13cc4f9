//! What callers are told while something is halfway done: a commit that is not visible yet, a touch that
//! fails after a part of it was applied.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::store::{Put, Query, Store, Touch};
use tenure::{Error, Object};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};
use tokio_postgres::Client;

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("midway::a_put_in_time_is_found_however_late_it_is_seen", move || late(server));
    trials.test("midway::a_touch_that_fails_halfway_is_unknown", move || halfway(server));
    trials.test("midway::a_touch_without_an_answer_is_unknown", move || unanswered(server));
    trials.test("midway::a_touch_that_was_overtaken_takes_no_life_away", move || overtaken(server));
}

/// An answer of the database that is one boolean.
async fn is_so(client: &Client, sql: &str) -> Result<bool, Failure> {
    Ok(client.query_one(sql, &[]).await.or_fail()?.get(0))
}

async fn late(server: Server) -> Outcome {
    put_in_flight(server, |store| async move { store.get(&key("a")).await }).await?;
    put_in_flight(server, |store| async move {
        Ok(store.list(&Query::new("thing")).await?.objects.pop())
    })
    .await
}

/// Another process has put an object while it lived; its `COMMIT` is under way until that life is over.
async fn put_in_flight<F>(server: Server, read: impl FnOnce(Store) -> F) -> Outcome
where
    F: Future<Output = tenure::Result<Option<Object>>> + Send + 'static,
{
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let (other, looking) = (raw(&url).await?, raw(&url).await?);
    store.commit(put("a", "old").ttl(Duration::from_millis(500))).await?;
    let decided = "begin;
        set local tenure.writer = '1';
        update tenure_meta set revision = revision + 1;
        update objects set payload = 'new', resource_version = 2, revision = revision + 1,
            expires_at_ms = expires_at_ms + 60000";
    other.batch_execute(decided).await.or_fail()?;
    let over = "select (extract(epoch from clock_timestamp()) * 1000)::bigint + m.clock_offset_ms
                > o.expires_at_ms from tenure_meta m, objects o";
    eventually("the first life is over", || is_so(&looking, over)).await?;
    let reading = tokio::spawn(read(store.clone()));
    let waits = "select count(*) > 0 from pg_stat_activity where datname = current_database()
                 and wait_event_type = 'Lock' and query like '%for share of o%'";
    eventually("the reader waits", || is_so(&looking, waits)).await?;
    other.batch_execute("commit").await.or_fail()?;
    let found = reading.await.or_fail()??.ok_or("an object that lived throughout is gone")?;
    ensure_eq!((found.version, found.payload.as_ref()), (2, &b"new"[..]));
    store.close().await;
    Ok(())
}

async fn mortal(store: &Store, id: &str) -> Result<Touch, Failure> {
    let put = Put::new(key(id), "x").ttl(MINUTE);
    let revision = store.commit(put).await?.revision.ok_or("nothing was written")?;
    Ok(Touch { key: key(id), revision, ttl: 2 * MINUTE })
}

async fn left(store: &Store, id: &str) -> Result<Duration, Failure> {
    let object = store.get(&key(id)).await?.ok_or("gone")?;
    Ok(object.expires_in.ok_or("it has no life")?)
}

/// One of two can be prolonged, and is; the other one cannot even be looked at.
async fn halfway(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let store = connect(&url).await?;
    let good = mortal(&store, "good").await?;
    let stale = Touch { revision: 1_000, ..mortal(&store, "stale").await? };
    let other = raw(&url).await?;
    other
        .batch_execute("begin; select from objects where id = 'stale' for update")
        .await
        .or_fail()?;
    let told = store.touch(vec![good, stale]).await;
    ensure!(left(&store, "good").await? > MINUTE, "it was not touched");
    ensure!(matches!(told, Err(Error::Unknown { .. })), "{told:?}");
    other.batch_execute("rollback").await.or_fail()?;
    Ok(())
}

/// The touch is done, and then the store may not see what time it is.
async fn unanswered(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (name, owner) = ("tenure_toucher", raw(&url).await?);
    let role = format!(
        "drop role if exists {name}; create role {name} login password 'secret';
         grant all on schema public to {name}"
    );
    owner.batch_execute(&role).await.or_fail()?;
    let (_, host) = url.split_once('@').ok_or("no host")?;
    let store = connect(&format!("postgres://{name}:secret@{host}")).await?;
    let touch = mortal(&store, "a").await?;
    // So that the touches have a session and a look at the clock behind them.
    store.touch(vec![Touch { ttl: MINUTE, ..touch.clone() }]).await?.remove(0)?;
    let hide = format!(
        "revoke select on tenure_meta from {name};
         grant select (clock_offset_ms, min_writer) on tenure_meta to {name}"
    );
    owner.batch_execute(&hide).await.or_fail()?;
    let told = store.touch(vec![touch]).await;
    owner.batch_execute(&format!("grant select on tenure_meta to {name}")).await.or_fail()?;
    ensure!(left(&store, "a").await? > MINUTE, "it was not touched");
    ensure!(matches!(told, Err(Error::Unknown { .. })), "{told:?}");
    store.close().await;
    owner.batch_execute(&format!("drop owned by {name}; drop role {name}")).await.or_fail()?;
    Ok(())
}

/// A renewal is held up on its way, another one overtakes it, and then the first one arrives after all:
/// the life that the second one promised stays.
async fn overtaken(server: Server) -> Outcome {
    const APART: Duration = Duration::from_secs(1);
    let url = server.fresh_database()?;
    let (store, other) = (connect(&url).await?, connect(&url).await?);
    let touch = mortal(&store, "a").await?;
    let sessions = sessions_that_touch(&store, &touch, &url).await?;
    server.0.pause_sessions(&sessions).or_fail()?;
    let (first, late) = (touch.clone(), store.clone());
    let held_up = tokio::spawn(async move { late.touch(vec![first]).await });
    tokio::time::sleep(APART).await;
    let sent = SystemClock.uptime();
    let (quick, is_held_up) = (other.touch(vec![touch.clone()]).await, !held_up.is_finished());
    server.0.resume_sessions(&sessions).or_fail()?;
    quick?.remove(0)?;
    ensure!(is_held_up, "the first touch was not held up");
    held_up.await.or_fail()??.remove(0)?;
    let left = left(&other, "a").await?;
    let promised = (sent + touch.ttl).saturating_sub(SystemClock.uptime());
    ensure!(left + APART / 2 >= promised, "{left:?} left of {promised:?} that were promised");
    store.close().await;
    other.close().await;
    Ok(())
}

/// All sessions with which a store touches, each opened and used.
async fn sessions_that_touch(store: &Store, touch: &Touch, url: &str) -> Result<Vec<i32>, Failure> {
    let (locking, looking) = (raw(url).await?, raw(url).await?);
    let lock = "begin; select from objects for update";
    locking.batch_execute(lock).await.or_fail()?;
    let waiting = "from pg_stat_activity where datname = current_database()
                   and application_name = 'tenure touch' and wait_event_type = 'Lock'";
    let mut touching = Vec::new();
    // With one of them waiting for the lock, the next touch takes another.
    for session in 1..=2 {
        let (store, touch) = (store.clone(), touch.clone());
        touching.push(tokio::spawn(async move { store.touch(vec![touch]).await }));
        let so_many = format!("select count(*) = {session} {waiting}");
        eventually("the sessions wait for the lock", || is_so(&looking, &so_many)).await?;
    }
    let sessions = format!("select array_agg(pid) {waiting}");
    let pids = looking.query_one(&sessions, &[]).await.or_fail()?.get(0);
    locking.batch_execute("rollback").await.or_fail()?;
    for touched in touching {
        touched.await.or_fail()??.remove(0)?;
    }
    Ok(pids)
}
