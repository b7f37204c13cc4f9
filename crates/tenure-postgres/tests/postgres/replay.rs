//! Whatever processes do at the same time, and whichever way their commits go: history, replayed from the
//! beginning, is possible at every step and ends at what is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use tenure::clock::{Clock, SystemClock};
use tenure::random::{SystemRandom, below};
use tenure::store::{Commit, Event, Expect, Query, Store, Touch, WatchRequest};
use tenure::{Error, Object};
use tenure_conformance::harness::Trials;
use tenure_conformance::{Failure, ensure, ensure_eq};

use crate::common::{OrFail, Outcome, Server, connect, eventually, key, put, raw};

const CALLERS: u64 = 24;
const IDS: u64 = 16;
const NAMES: u64 = 4;
const TIME: Duration = Duration::from_millis(2_500);

pub(crate) fn add(trials: &mut Trials, server: Server) {
    trials.test("replay::history_ends_at_what_is_there", move || replay(server));
}

/// Mostly minds its own object, of which it knows how it left it, so that commits go the short way.
async fn work(store: &Store, caller: u64, over: &AtomicBool) -> Outcome {
    let id = format!("of-{caller}");
    let mut left = None;
    for n in 0.. {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        if below(&SystemRandom, 60) == 0 {
            meddle(store, n).await?;
        }
        let written = put(&id, &n.to_string()).name(format!("its-{caller}"));
        let commit = match (left, below(&SystemRandom, 3)) {
            (None, _) => written.expect(Expect::Absent).into(),
            (Some(revision), 0) => Commit::new().delete(key(&id), Expect::Revision(revision)),
            (Some(revision), _) => written.expect(Expect::Revision(revision)).into(),
        };
        left = match store.commit(commit).await {
            Ok(done) => done.first_put().map(|put| put.revision),
            Err(Error::Unavailable { .. } | Error::Unknown { .. }) => {
                // A session that was ended cannot commit any more, so this is the truth.
                store.get(&key(&id)).await?.map(|object| object.revision)
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(())
}

/// Anything on any object, without a plan.
async fn meddle(store: &Store, n: u64) -> Outcome {
    let id = below(&SystemRandom, IDS).to_string();
    let written = put(&id, &format!("{n} {}", below(&SystemRandom, 1_000_000)));
    let short = Duration::from_millis(20 + below(&SystemRandom, 200));
    let name = format!("name-{}", below(&SystemRandom, NAMES));
    let seen = store.get(&key(&id)).await?;
    let expect = seen.as_ref().map_or(Expect::Absent, |object| Expect::Revision(object.revision));
    let commit = match below(&SystemRandom, 9) {
        0 | 1 => written.into(),
        2 => written.expect(expect).into(),
        3 => written.expect(Expect::Absent).ttl(short).into(),
        4 => written.name(name).into(),
        5 => written.expect(Expect::Absent).name(name).ttl(short).into(),
        6 => Commit::from(written.expect(Expect::Absent))
            .check(key(below(&SystemRandom, IDS).to_string()), Expect::Absent),
        7 => Commit::new().delete(key(&id), expect),
        _ => {
            let Some(Object { key, revision, .. }) = seen else { return Ok(()) };
            let _ = store.touch(vec![Touch { key, revision, ttl: short }]).await;
            return Ok(());
        }
    };
    match store.commit(commit).await {
        Ok(_) | Err(Error::Unavailable { .. } | Error::Unknown { .. }) => Ok(()),
        Err(error) if error.is_refusal() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn replay(server: Server) -> Outcome {
    let url = server.fresh_database()?;
    let (stores, operator) = ([connect(&url).await?, connect(&url).await?], raw(&url).await?);
    let over = Arc::new(AtomicBool::new(false));
    let trouble = async {
        let cut = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name = 'tenure commit' and datname = current_database()";
        for _ in 0..5 {
            SystemClock.sleep(TIME / 5).await;
            operator.execute(cut, &[]).await.or_fail()?;
        }
        over.store(true, Ordering::Relaxed);
        Ok::<_, Failure>(())
    };
    // One process does most of the work, and is often alone at it.
    let busy = try_join_all((0..CALLERS).map(|caller| work(&stores[0], caller, &over)));
    let other = async {
        for _ in 0..10 {
            SystemClock.sleep(TIME / 15).await;
            for n in 0..3 {
                meddle(&stores[1], n).await?;
            }
        }
        Ok(())
    };
    futures::try_join!(busy, other, trouble)?;

    let mortal = "select count(*) = 0 from objects where ttl_ms is not null";
    eventually("what has a life has ended", || async {
        Ok(operator.query_one(mortal, &[]).await.or_fail()?.get(0))
    })
    .await?;
    let page = stores[1].list(&Query::new("thing").limit(1000)).await?;
    let mut watch = stores[1].watch(&WatchRequest::default().after(0)).await?;
    let mut state: BTreeMap<String, Arc<Object>> = BTreeMap::new();
    for revision in 1..=page.revision {
        let batch = watch.next().await.ok_or("the watch ended")??;
        ensure_eq!(batch.revision, revision);
        for event in &batch.events {
            apply(&mut state, event, revision)?;
        }
        let mut names: Vec<_> = state.values().filter_map(|object| object.name.as_ref()).collect();
        names.sort_unstable();
        ensure!(names.windows(2).all(|pair| pair[0] != pair[1]), "{revision}: {names:?}");
    }
    let replayed: Vec<Object> = state.values().map(|object| Object::clone(object)).collect();
    let mut there = page.objects;
    there.sort_by(|a, b| a.key.id.cmp(&b.key.id));
    ensure_eq!(there, replayed);
    ensure!(page.revision > 100, "only {} revisions", page.revision);
    Ok(())
}

fn apply(state: &mut BTreeMap<String, Arc<Object>>, event: &Event, revision: u64) -> Outcome {
    let before = state.get(&event.key().id).cloned();
    match event {
        Event::Put(object) => {
            ensure_eq!(object.revision, revision);
            match &before {
                None => ensure_eq!((object.version, object.created_revision), (1, revision)),
                Some(before) => ensure_eq!(
                    (object.version, object.created_revision, object.created_at_ms),
                    (before.version + 1, before.created_revision, before.created_at_ms)
                ),
            }
            state.insert(object.key.id.clone(), Arc::clone(object));
        }
        Event::Delete { key, last, .. } => {
            ensure_eq!(*last, before, "{revision}");
            state.remove(&key.id);
        }
    }
    Ok(())
}
