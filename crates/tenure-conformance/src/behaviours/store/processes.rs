//! Races between processes, and what one process sees of another.

use std::time::Duration;

use tenure::clock::{Clock, SystemClock};
use tenure::store::{Put, WatchRequest};

use crate::context::Context;
use crate::helpers::{existing, next, number, put};
use crate::process::Worker;
use crate::subject::behaviour;
use crate::worker::{Reply, Request};
use crate::{Behaviour, Failure, crash};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            one_of_many_processes_creates,
            [processes],
            "separate processes, started at one instant; one winner each time"
        ),
        behaviour!(one_of_many_processes_deletes, [processes], "an object ends once"),
        behaviour!(
            concurrent_increments_by_processes_add_up,
            [processes],
            "the value is the number of acknowledged increments"
        ),
        behaviour!(
            processes_see_each_others_writes,
            [processes],
            "reads after the reply, watches soon after, both ways"
        ),
        behaviour!(
            killed_writers_lose_nothing_acknowledged,
            [processes],
            "five rounds of killing writers in the middle of their commits"
        ),
    ]
}

async fn start(ctx: &Context, count: usize) -> Result<Vec<Worker>, Failure> {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(Worker::start(ctx.worker()?)?);
    }
    // Asked one by one after all were started, so that they open the store side by side.
    for worker in &mut workers {
        worker.ask(Request::Ready).await?;
    }
    Ok(workers)
}

/// Asks all of them for the same thing at the same instant.
async fn ask_all(workers: &mut [Worker], request: &Request) -> Result<Vec<Reply>, Failure> {
    let at = SystemClock.uptime() + Duration::from_millis(10);
    let at_ms = u64::try_from(at.as_millis()).unwrap_or_default();
    for worker in &mut *workers {
        worker.send(at_ms, request.clone()).await?;
    }
    let mut replies = Vec::new();
    for worker in workers {
        replies.push(worker.reply().await?);
    }
    Ok(replies)
}

async fn one_of_many_processes_creates(ctx: Context) -> Result<(), Failure> {
    let mut workers = start(&ctx, 4).await?;
    for round in 0..10 {
        let key = ctx.key(&round.to_string());
        let request =
            Request::Create { kind: key.kind.clone(), id: key.id.clone(), value: "v".into() };
        let replies = ask_all(&mut workers, &request).await?;
        let winners = replies.iter().filter(|reply| reply.won).count();
        ensure_eq!(winners, 1, "winners of round {round}");
        let revision = existing(ctx.store(), &key).await?.revision;
        ensure!(
            replies.iter().all(|reply| reply.revision == revision),
            "round {round}: {replies:?}"
        );
    }
    Ok(())
}

async fn one_of_many_processes_deletes(ctx: Context) -> Result<(), Failure> {
    let mut workers = start(&ctx, 4).await?;
    for round in 0..5 {
        let key = ctx.key("one");
        ctx.put(&key, "v").await?;
        let request = Request::Delete { kind: key.kind.clone(), id: key.id.clone() };
        let replies = ask_all(&mut workers, &request).await?;
        let winners = replies.iter().filter(|reply| reply.won).count();
        ensure_eq!(winners, 1, "winners of round {round}");
        ensure_eq!(ctx.store().get(&key).await?, None);
    }
    Ok(())
}

async fn concurrent_increments_by_processes_add_up(ctx: Context) -> Result<(), Failure> {
    let mut workers = start(&ctx, 3).await?;
    let key = ctx.key("counter");
    let request = Request::Increment { kind: key.kind.clone(), id: key.id.clone(), times: 30 };
    let replies = ask_all(&mut workers, &request).await?;
    let acknowledged: u64 = replies.iter().map(|reply| reply.count).sum();
    ensure_eq!(acknowledged, 90);
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!((number(&object), object.version), (acknowledged, acknowledged));
    Ok(())
}

async fn processes_see_each_others_writes(ctx: Context) -> Result<(), Failure> {
    let mut workers = start(&ctx, 1).await?;
    let worker = &mut workers[0];
    let key = ctx.key("one");
    let (kind, id) = (key.kind.clone(), key.id.clone());
    let mut watch = ctx.store().watch(&WatchRequest::kind(&kind)).await?;
    for n in 0..10 {
        let value = format!("theirs {n}");
        let write = Request::Put { kind: kind.clone(), id: id.clone(), value };
        let theirs = worker.ask(write).await?.revision;
        ensure_eq!(existing(ctx.store(), &key).await?.revision, theirs, "read here");
        ensure_eq!(next(&mut watch).await?.revision, theirs, "told here");
        let ours = put(ctx.store(), Put::new(key.clone(), format!("ours {n}"))).await?.revision;
        let read = worker.ask(Request::Get { kind: kind.clone(), id: id.clone() }).await?;
        ensure_eq!((read.value, read.revision), (Some(format!("ours {n}")), ours), "read there");
        ensure_eq!(next(&mut watch).await?.revision, ours, "told here of our own");
    }
    Ok(())
}

async fn killed_writers_lose_nothing_acknowledged(ctx: Context) -> Result<(), Failure> {
    crash::run(&ctx, 5, 1).await
}
