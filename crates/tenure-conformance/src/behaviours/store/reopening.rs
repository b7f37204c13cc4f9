//! What stays when every handle is closed and the store is opened again.

use std::time::Duration;

use tenure::store::{Commit, Expect, ExpiryClock, Put, Query, Touch, Watch, WatchRequest};

use crate::context::Context;
use crate::helpers::{Replica, existing, put, refused, until_key};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            everything_is_there_after_reopening,
            [reopens],
            "objects with all their numbers, names, labels and lives"
        ),
        behaviour!(
            revisions_go_on_after_reopening,
            [reopens],
            "nothing is drawn twice, not even when the last object was deleted"
        ),
        behaviour!(
            history_is_there_after_reopening,
            [reopens, history],
            "a watch resumes on a handle that was opened later"
        ),
        behaviour!(
            a_closed_handle_refuses,
            [],
            "after close every call is Unavailable, watches end, and other handles go on"
        ),
    ]
}

async fn everything_is_there_after_reopening(ctx: Context) -> Result<(), Failure> {
    let first = ctx.open_brief().await?;
    for n in 0..5 {
        let mut write = Put::new(ctx.key(&n.to_string()), n.to_string()).label("n", n.to_string());
        if ctx.caps().names {
            write = write.name(format!("name {n}"));
        }
        if ctx.caps().ttl.is_some() && n % 2 == 0 {
            write = write.ttl(ctx.ttl_of(Duration::from_secs(600)));
        }
        put(&first, write.clone()).await?;
        write.payload = format!("{n} again").into();
        put(&first, write.new_token()).await?;
    }
    let query = Query::new(ctx.kind("a"));
    let mut before = first.list_all(&query).await?;
    first.close().await;
    let second = ctx.open_brief().await?;
    let mut after = second.list_all(&query).await?;
    for (before, after) in before.iter_mut().zip(&mut after) {
        let (was, is) = (before.expires_in.take(), after.expires_in.take());
        // Where each observer has a clock of its own, the new handle has just begun to count.
        let most = match ctx.caps().expiry_clock {
            ExpiryClock::Observer => before.ttl,
            _ => was,
        };
        ensure!(is <= most, "{}: {is:?} left after {was:?}", before.key);
        ensure_eq!(is.is_some(), was.is_some(), "{} has a life", before.key);
    }
    ensure_eq!(after, before);
    second.close().await;
    Ok(())
}

async fn revisions_go_on_after_reopening(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut highest = 0;
    for round in 0..4 {
        let store = ctx.open_brief().await?;
        let created = put(&store, Put::new(key.clone(), "v").expect(Expect::Absent)).await?;
        ensure!(created.revision > highest, "round {round}: {} after {highest}", created.revision);
        let delete = Commit::new().delete(key.clone(), Expect::Any);
        highest = store.commit(delete).await?.revision.ok_or("a delete without a revision")?;
        ensure!(highest > created.revision);
        store.close().await;
    }
    Ok(())
}

async fn history_is_there_after_reopening(ctx: Context) -> Result<(), Failure> {
    let kind = ctx.kind("a");
    let first = ctx.open_brief().await?;
    let start = first.list(&Query::new(&kind)).await?.revision;
    for n in 0..10 {
        put(&first, Put::new(ctx.key(&(n % 3).to_string()), n.to_string())).await?;
        if n % 4 == 3 {
            first.delete(&ctx.key("0")).await?;
        }
    }
    first.close().await;
    let second = ctx.open_brief().await?;
    let mut watch = second.watch(&WatchRequest::kind(&kind).after(start)).await?;
    let end = ctx.key("~end");
    put(&second, Put::new(end.clone(), "v")).await?;
    let mut replica = Replica { revision: start, ..Replica::default() };
    for batch in until_key(&mut watch, &end).await? {
        replica.apply(&batch, ctx.caps())?;
    }
    replica.matches(&second.list_all(&Query::new(&kind)).await?)?;
    drop(watch);
    second.close().await;
    Ok(())
}

async fn a_closed_handle_refuses(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let closed = ctx.open_brief().await?;
    let written = put(&closed, Put::new(key.clone(), "v")).await?;
    let mut watch = closed.watch(&WatchRequest::kind(&key.kind)).await?;
    closed.close().await;
    closed.close().await;
    let mut answers = vec![
        closed.get(&key).await.map(|_| ()),
        closed.list(&Query::new(&key.kind)).await.map(|_| ()),
        closed.commit(Put::new(key.clone(), "w")).await.map(|_| ()),
        closed.watch(&WatchRequest::kind(&key.kind)).await.map(|_| ()),
        end_of(&mut watch).await?,
    ];
    if ctx.caps().ttl.is_some() {
        let ttl = ctx.ttl_of(Duration::from_secs(600));
        let touch = Touch { key: key.clone(), revision: written.revision, ttl };
        answers.push(closed.touch(vec![touch]).await.map(|_| ()));
    }
    for (n, result) in answers.into_iter().enumerate() {
        match result {
            Err(tenure::Error::Unavailable { .. }) => {}
            other => return Err(Failure::new(format!("a closed handle answered {n}: {other:?}"))),
        }
    }
    ensure_eq!(existing(ctx.store(), &key).await?.version, 1);
    let stale = Put::new(key.clone(), "w").expect(Expect::Version(9));
    ensure_eq!(refused(ctx.store().commit(stale).await)?.code(), "conflict");
    Ok(())
}

/// How a watch ends, whatever it has to say before.
async fn end_of(watch: &mut Watch) -> Result<tenure::Result<()>, Failure> {
    let ends = async {
        loop {
            match watch.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Ok(Err(error)),
                None => return Err(Failure::new("a watch ended without a word")),
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ends).await;
    ended.map_err(|_| Failure::new("a watch of a closed handle goes on"))?
}
