//! Watch: everything that happens, in order, once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure::random::{SeededRandom, below};
use tenure::store::{Batch, Cause, Commit, Event, Expect, Put, Query, Store, WatchRequest};
use tenure::{Error, Key};

use crate::context::Context;
use crate::helpers::{Replica, next, put, refused, text, until_key};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_watch_tells_changes_in_order,
            [],
            "created, changed, deleted, with what they carry"
        ),
        behaviour!(
            a_delete_tells_key_and_cause,
            [],
            "and what the object was, where the store remembers"
        ),
        behaviour!(
            a_watch_misses_and_repeats_nothing,
            [],
            "eight writers at once; exactly the acknowledged revisions, rising"
        ),
        behaviour!(
            a_watch_starts_at_any_revision,
            [history],
            "from a revision in the past it tells everything since"
        ),
        behaviour!(
            a_watch_resumes_where_it_was_dropped,
            [history],
            "behind any batch, with nothing missed and nothing twice"
        ),
        behaviour!(a_watch_keeps_to_its_kind_and_prefix, [], "and without a kind it tells of all"),
        behaviour!(fifty_watchers_hear_the_same, [], "each of them everything"),
        behaviour!(
            a_slow_watcher_gets_everything,
            [],
            "it does not read for a while as thousands of events pass"
        ),
        behaviour!(
            a_watch_hears_of_other_handles,
            [],
            "writes over one connection reach a watch over another"
        ),
        behaviour!(
            a_watch_says_where_it_starts,
            [],
            "a list read after opening shows everything up to that revision"
        ),
        behaviour!(
            a_watch_of_the_future_is_refused,
            [history],
            "a revision that was never drawn is an error, not a silence"
        ),
        behaviour!(
            a_filtered_commit_stays_one_batch,
            [multi],
            "a watcher of one kind gets its part of a commit, whole"
        ),
        behaviour!(
            another_handles_commit_is_told_at_once,
            [real_time, told],
            "not only when somebody looks: a lone commit on an idle store"
        ),
    ]
}

async fn a_watch_tells_changes_in_order(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let first = put(ctx.store(), Put::new(key.clone(), "a").label("x", "y")).await?;
    let second = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    ctx.store().delete(&key).await?;
    let third = put(ctx.store(), Put::new(key.clone(), "c")).await?;
    let expected = [(first, Some("a")), (second, Some("b")), (second, None), (third, Some("c"))];
    for (result, payload) in expected {
        let batch = next(&mut watch).await?;
        ensure_eq!(batch.events.len(), 1);
        match (&batch.events[0], payload) {
            (Event::Put(object), Some(payload)) => {
                ensure_eq!(text(object), payload);
                ensure_eq!(batch.revision, result.revision);
                ensure_eq!((object.version, object.revision), (result.version, result.revision));
                ensure_eq!(
                    (object.token, object.created_revision),
                    (result.token, result.created_revision)
                );
                ensure_eq!(object.labels.len(), usize::from(payload == "a"), "labels of {payload}");
            }
            (Event::Delete { key: told, .. }, None) => ensure_eq!(*told, key),
            (event, _) => return Err(Failure::new(format!("expected {payload:?}, got {event:?}"))),
        }
    }
    Ok(())
}

async fn a_delete_tells_key_and_cause(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    put(ctx.store(), Put::new(key.clone(), "a")).await?;
    let last = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let done = ctx.store().commit(Commit::new().delete(key.clone(), Expect::Any)).await?;
    let batch = next(&mut watch).await?;
    ensure_eq!(Some(batch.revision), done.revision);
    let [Event::Delete { key: told, cause, last: was }] = &batch.events[..] else {
        return Err(Failure::new(format!("not one delete: {:?}", batch.events)));
    };
    ensure_eq!(told, &key);
    ensure!(matches!(cause, Cause::Deleted | Cause::Unspecified), "the cause is {cause:?}");
    if let Some(was) = was {
        ensure_eq!((was.version, was.revision, text(was)), (2, last.revision, "b".to_owned()));
    }
    Ok(())
}

/// One writer: objects of its own are created, changed and deleted; the revisions acknowledged.
async fn write_some(
    store: Store,
    ctx: Context,
    writer: usize,
    n: u64,
) -> Result<Vec<u64>, Failure> {
    let mut acknowledged = Vec::new();
    for step in 0..n {
        let key = ctx.key(&format!("w{writer}-{}", step % 3));
        let commit = match step % 5 {
            4 => Commit::new().delete(key, Expect::Any),
            _ => Put::new(key, format!("{step}")).into(),
        };
        acknowledged.extend(store.commit(commit).await?.revision);
    }
    Ok(acknowledged)
}

/// Eight writers over three handles: every revision acknowledged, and the key that marks the end.
async fn eight_writers(ctx: &Context, each: u64) -> Result<(BTreeSet<u64>, Key), Failure> {
    let handles = ctx.handles(3).await?;
    let writers =
        (0..8).map(|w| write_some(handles[w % handles.len()].clone(), ctx.clone(), w, each));
    let mut revisions: BTreeSet<u64> = BTreeSet::new();
    for revision in all_at_once(writers).await?.into_iter().flatten() {
        ensure!(revisions.insert(revision), "revision {revision} was acknowledged twice");
    }
    let end = ctx.key("~end");
    revisions.insert(ctx.put(&end, "v").await?);
    Ok((revisions, end))
}

async fn verify(
    ctx: &Context,
    batches: &[Arc<Batch>],
    revisions: &BTreeSet<u64>,
) -> Result<(), Failure> {
    let mut replica = Replica::default();
    for batch in batches {
        replica.apply(batch, ctx.caps())?;
    }
    let told: BTreeSet<u64> = batches.iter().map(|batch| batch.revision).collect();
    let missed: Vec<_> = revisions.difference(&told).collect();
    let invented: Vec<_> = told.difference(revisions).collect();
    ensure!(missed.is_empty(), "acknowledged revisions never told: {missed:?}");
    ensure!(invented.is_empty(), "told revisions that nobody wrote: {invented:?}");
    replica.matches(&ctx.store().list_all(&Query::new(ctx.kind("a"))).await?)
}

async fn a_watch_misses_and_repeats_nothing(ctx: Context) -> Result<(), Failure> {
    let mut watch = ctx.store().watch(&WatchRequest::kind(ctx.kind("a"))).await?;
    let (revisions, end) = eight_writers(&ctx, 40).await?;
    let batches = until_key(&mut watch, &end).await?;
    verify(&ctx, &batches, &revisions).await
}

async fn a_watch_starts_at_any_revision(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let before = ctx.store().list(&Query::new(&kind)).await?.revision;
    let (revisions, end) = eight_writers(&ctx, 10).await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&kind).after(before)).await?;
    ensure_eq!(watch.start(), before);
    let batches = until_key(&mut watch, &end).await?;
    verify(&ctx, &batches, &revisions).await?;
    for at in batches.iter().step_by(13) {
        let request = WatchRequest::kind(&kind).after(at.revision);
        let mut watch = ctx.store().watch(&request).await?;
        let rest: Vec<_> = batches.iter().filter(|b| b.revision > at.revision).collect();
        for expected in rest {
            let told = next(&mut watch).await?;
            ensure_eq!(told.revision, expected.revision, "behind {}", at.revision);
            ensure_eq!(told.events.len(), expected.events.len());
        }
    }
    Ok(())
}

async fn a_watch_resumes_where_it_was_dropped(ctx: Context) -> Result<(), Failure> {
    /// Long enough to be told that nothing happens.
    const A_MOMENT: Duration = Duration::from_millis(5);
    let random = SeededRandom::new(7);
    let kind = ctx.kind("a");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&kind)).await?;
    let writing = tokio::spawn({
        let ctx = ctx.clone();
        async move { eight_writers(&ctx, 25).await }
    });
    let mut batches: Vec<Arc<Batch>> = Vec::new();
    let is_done = |batches: &[Arc<Batch>]| {
        batches.last().is_some_and(|batch| batch.events[0].key().id == "~end")
    };
    let handle = ctx.open().await?;
    while !is_done(&batches) {
        for _ in 0..1 + below(&random, 20) {
            batches.push(next(&mut watch).await?);
            if is_done(&batches) {
                break;
            }
        }
        // What was told last is behind where the watch is if only other things have changed since.
        if !is_done(&batches)
            && let Ok(batch) = tokio::time::timeout(A_MOMENT, next(&mut watch)).await
        {
            batches.push(batch?);
        }
        let last = batches.last().map_or(0, |batch| batch.revision);
        ensure!(watch.told() >= last, "told {last}, and it is at {}", watch.told());
        let after = if below(&random, 2) == 0 { last } else { watch.told() };
        let store = if below(&random, 2) == 0 { ctx.store() } else { &handle };
        watch = store.watch(&WatchRequest::kind(&kind).after(after)).await?;
    }
    let (revisions, _) = writing.await??;
    verify(&ctx, &batches, &revisions).await
}

async fn a_watch_keeps_to_its_kind_and_prefix(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.kind("a"), ctx.kind("ab"));
    let all = WatchRequest::default();
    let requests =
        [WatchRequest::kind(&a), WatchRequest::kind(&a).prefix("x%"), WatchRequest::kind(&b), all];
    let mut watches = Vec::new();
    for request in &requests {
        watches.push(ctx.store().watch(request).await?);
    }
    let mut written = Vec::new();
    for id in ["x", "x%", "x%1", "xx", "X%", "y", "~end"] {
        for kind in [&a, &b] {
            let key = Key::new(kind, id);
            ctx.put(&key, id).await?;
            written.push(key);
        }
    }
    // Marks that every one of the watches hears.
    let ends =
        [Key::new(&a, "~end"), Key::new(&a, "x%~"), Key::new(&b, "~end"), Key::new(&b, "~end")];
    ctx.put(&ends[1], "v").await?;
    written.push(ends[1].clone());
    for ((request, watch), end) in requests.iter().zip(&mut watches).zip(&ends) {
        let batches = until_key(watch, end).await?;
        let told: Vec<_> =
            batches.iter().flat_map(|b| &b.events).map(|event| event.key().clone()).collect();
        if let Some(stray) = told.iter().find(|key| !request.wants(key)) {
            return Err(Failure::new(format!("{request:?} was told of {stray}")));
        }
        let expected: Vec<_> = written.iter().filter(|key| request.wants(key)).collect();
        let expected =
            &expected[..=expected.iter().position(|key| *key == end).unwrap_or_default()];
        // A watch of everything hears of others too; ours are those of our kinds.
        let ours: Vec<_> = told.iter().filter(|key| key.kind == a || key.kind == b).collect();
        ensure_eq!(ours, expected, "told to {request:?}");
    }
    Ok(())
}

async fn fifty_watchers_hear_the_same(ctx: Context) -> Result<(), Failure> {
    let request = WatchRequest::kind(ctx.kind("a"));
    let handles = ctx.handles(2).await?;
    let mut watches = Vec::new();
    for n in 0..50 {
        watches.push(handles[n % 2].watch(&request).await?);
    }
    let (revisions, end) = eight_writers(&ctx, 10).await?;
    let listening = watches.into_iter().map(|mut watch| {
        let end = end.clone();
        async move {
            let batches = until_key(&mut watch, &end).await?;
            Ok(batches.iter().map(|batch| batch.revision).collect::<Vec<_>>())
        }
    });
    let expected: Vec<u64> = revisions.into_iter().collect();
    for (n, told) in all_at_once(listening).await?.into_iter().enumerate() {
        ensure_eq!(told, expected, "revisions told to watcher {n}");
    }
    Ok(())
}

async fn a_slow_watcher_gets_everything(ctx: Context) -> Result<(), Failure> {
    let (each, objects): (u64, usize) = match ctx.caps().multi_object_commits {
        true => (25, ctx.caps().limits.commit_operations.min(20)),
        false => (75, 1),
    };
    let mut watch = ctx.store().watch(&WatchRequest::kind(ctx.kind("a"))).await?;
    let writers = (0..8).map(|writer| {
        let ctx = ctx.clone();
        async move {
            for step in 0..each {
                let commit = (0..objects).fold(Commit::new(), |commit, n| {
                    let key = ctx.key(&format!("w{writer}-{n}"));
                    commit.put(Put::new(key, format!("{step:0256}")))
                });
                ctx.store().commit(commit).await?;
            }
            Ok(())
        }
    });
    all_at_once(writers).await?;
    let end = ctx.key("~end");
    ctx.put(&end, "v").await?;
    let mut replica = Replica::default();
    let mut events = 0;
    for batch in until_key(&mut watch, &end).await? {
        replica.apply(&batch, ctx.caps())?;
        events += batch.events.len();
    }
    ensure_eq!(events as u64, 8 * each * objects as u64 + 1, "events told");
    Ok(())
}

async fn a_watch_hears_of_other_handles(ctx: Context) -> Result<(), Failure> {
    let other = ctx.open().await?;
    let kind = ctx.kind("a");
    let mut here = ctx.store().watch(&WatchRequest::kind(&kind)).await?;
    let mut there = other.watch(&WatchRequest::kind(&kind)).await?;
    for n in 0..10 {
        let writer = if n % 2 == 0 { ctx.store() } else { &other };
        let revision = put(writer, Put::new(ctx.key("one"), n.to_string())).await?.revision;
        ensure_eq!(next(&mut here).await?.revision, revision, "told on the first handle");
        ensure_eq!(next(&mut there).await?.revision, revision, "told on the second handle");
    }
    Ok(())
}

async fn a_watch_says_where_it_starts(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let before = ctx.put(&key, "a").await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    ensure!(watch.start() >= before, "a watch from now starts at {} < {before}", watch.start());
    let page = ctx.store().list(&Query::new(&key.kind)).await?;
    ensure!(page.revision >= watch.start());
    let after = ctx.put(&key, "b").await?;
    ensure!(after > watch.start());
    ensure_eq!(next(&mut watch).await?.revision, after, "the first revision told");
    Ok(())
}

async fn a_watch_of_the_future_is_refused(ctx: Context) -> Result<(), Failure> {
    let head = ctx.put(&ctx.key("one"), "v").await?;
    let request = WatchRequest::kind(ctx.kind("a")).after(head + 1_000_000_000);
    let error = refused(ctx.store().watch(&request).await)?;
    ensure!(matches!(error, Error::Invalid { .. }), "{error}");
    Ok(())
}

async fn a_filtered_commit_stays_one_batch(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.kind("a"), ctx.kind("b"));
    let mut watch = ctx.store().watch(&WatchRequest::kind(&b)).await?;
    let put_one = |kind: &str, id: &str| Put::new(Key::new(kind, id), "v");
    let commit = Commit::new()
        .put(put_one(&b, "1"))
        .put(put_one(&a, "1"))
        .put(put_one(&b, "2"))
        .put(put_one(&a, "2"));
    ctx.put(&Key::new(&a, "before"), "v").await?;
    let revision = ctx.store().commit(commit).await?.revision;
    let batch = next(&mut watch).await?;
    ensure_eq!(Some(batch.revision), revision);
    let told: Vec<_> = batch.events.iter().map(|event| event.key().id.as_str()).collect();
    ensure_eq!(told, ["1", "2"]);
    Ok(())
}

async fn another_handles_commit_is_told_at_once(ctx: Context) -> Result<(), Failure> {
    let (here, there) = (ctx.open().await?, ctx.open().await?);
    let key = ctx.key("lone");
    let mut watch = here.watch(&WatchRequest::kind(&key.kind)).await?;
    let mut delays = Vec::new();
    for n in 0..15 {
        // Idle in between, so that no other commit carries the news along.
        ctx.pass(Duration::from_millis(30)).await;
        put(&there, Put::new(key.clone(), n.to_string())).await?;
        let committed = ctx.uptime();
        next(&mut watch).await?;
        delays.push(ctx.uptime() - committed);
    }
    delays.sort();
    // Far above what it takes on a busy machine, far below any poll.
    ensure!(delays[7] < Duration::from_millis(150), "told after {:?} (median)", delays[7]);
    Ok(())
}
