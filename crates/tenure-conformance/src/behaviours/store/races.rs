//! Races between tasks and between threads: one winner, no lost update.

use tenure::Error;
use tenure::store::{CasOutcome, Commit, CreateOutcome, Expect, Put};

use crate::context::Context;
use crate::helpers::{existing, increment, number, put};
use crate::subject::behaviour;
use crate::together::{all_at_once, on_threads};
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            one_of_many_tasks_creates,
            [],
            "of many concurrent creations one is told Created, the others see that one"
        ),
        behaviour!(
            one_of_many_threads_creates,
            [],
            "the same over threads with runtimes and handles of their own"
        ),
        behaviour!(one_of_many_deletes_succeeds, [], "an object ends once"),
        behaviour!(
            one_of_many_updates_from_the_same_state_succeeds,
            [],
            "compare-and-set on a version that many have read"
        ),
        behaviour!(
            concurrent_increments_by_tasks_add_up,
            [],
            "the value is the number of acknowledged increments"
        ),
        behaviour!(
            concurrent_increments_by_threads_add_up,
            [],
            "the same over threads with handles of their own"
        ),
        behaviour!(
            compare_and_set_by_revision_adds_up,
            [],
            "the helper by that name, in a loop, loses nothing"
        ),
        behaviour!(
            acknowledged_writes_are_read_everywhere,
            [],
            "a read on another handle after the reply sees the write"
        ),
    ]
}

async fn one_of_many_tasks_creates(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    for round in 0..10 {
        let key = ctx.key(&round.to_string());
        let creating = (0..16).map(|n| {
            let (store, key) = (handles[n % handles.len()].clone(), key.clone());
            async move { Ok(store.create_if_absent(&key, n.to_string(), None).await?) }
        });
        let outcomes = all_at_once(creating).await?;
        let object = existing(ctx.store(), &key).await?;
        let mut winners = Vec::new();
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                CreateOutcome::Created(result) => winners.push((n as u64, result.revision)),
                CreateOutcome::Exists(current) => {
                    ensure_eq!(current, object.current(), "loser {n}")
                }
            }
        }
        ensure_eq!(winners, [(number(&object), object.revision)], "winners of round {round}");
    }
    Ok(())
}

async fn one_of_many_threads_creates(ctx: Context) -> Result<(), Failure> {
    ctx.kind("a");
    let won = on_threads(&ctx, 6, |store, ctx, _| {
        Box::pin(async move {
            let mut won = Vec::new();
            for round in 0..10 {
                let key = ctx.key(&round.to_string());
                let created = store.create_if_absent(&key, "v", None).await?;
                won.push(u32::from(matches!(created, CreateOutcome::Created(_))));
            }
            Ok(won)
        })
    });
    let won = won.await?;
    for round in 0..10 {
        let winners: u32 = won.iter().map(|won| won[round]).sum();
        ensure_eq!(winners, 1, "winners of round {round}");
    }
    Ok(())
}

async fn one_of_many_deletes_succeeds(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    for round in 0..10 {
        let key = ctx.key("one");
        put(ctx.store(), Put::new(key.clone(), "v").expect(Expect::Absent)).await?;
        let deleting = (0..12).map(|n| {
            let (store, key) = (handles[n % handles.len()].clone(), key.clone());
            async move { Ok(store.delete(&key).await?) }
        });
        let winners = all_at_once(deleting).await?.into_iter().filter(|won| *won).count();
        ensure_eq!(winners, 1, "deletes that deleted in round {round}");
    }
    Ok(())
}

async fn one_of_many_updates_from_the_same_state_succeeds(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    let key = ctx.key("one");
    put(ctx.store(), Put::new(key.clone(), "start")).await?;
    for round in 0..10 {
        let before = existing(ctx.store(), &key).await?;
        let updating = (0..12).map(|n| {
            let expect = match n % 2 {
                0 => Expect::Version(before.version),
                _ => Expect::Revision(before.revision),
            };
            let put = Put::new(key.clone(), format!("{round}-{n}")).expect(expect);
            let store = handles[n % handles.len()].clone();
            async move {
                match store.commit(put).await {
                    Ok(_) => Ok(true),
                    Err(Error::Conflict { .. }) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
        });
        let winners = all_at_once(updating).await?.into_iter().filter(|won| *won).count();
        ensure_eq!(winners, 1, "updates that applied in round {round}");
        ensure_eq!(existing(ctx.store(), &key).await?.version, before.version + 1);
    }
    Ok(())
}

async fn concurrent_increments_by_tasks_add_up(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    let key = ctx.key("counter");
    let counting = (0..8usize).map(|n| {
        let (store, key) = (handles[n % handles.len()].clone(), key.clone());
        async move {
            let mut seen = Vec::new();
            for _ in 0..25 {
                seen.push(increment(&store, &key).await?);
            }
            Ok(seen)
        }
    });
    let mut values: Vec<u64> = all_at_once(counting).await?.into_iter().flatten().collect();
    values.sort_unstable();
    ensure_eq!(values, (1..=200).collect::<Vec<u64>>(), "values that were acknowledged");
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!((number(&object), object.version), (200, 200));
    Ok(())
}

async fn concurrent_increments_by_threads_add_up(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("counter");
    let counting = on_threads(&ctx, 4, |store, ctx, _| {
        Box::pin(async move {
            for _ in 0..25 {
                increment(&store, &ctx.key("counter")).await?;
            }
            Ok(())
        })
    });
    counting.await?;
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!((number(&object), object.version), (100, 100));
    Ok(())
}

async fn compare_and_set_by_revision_adds_up(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    let key = ctx.key("counter");
    let counting = (0..4usize).map(|n| {
        let (store, key) = (handles[n % 2].clone(), key.clone());
        async move {
            let mut done = 0;
            while done < 15 {
                let object = store.get(&key).await?;
                let (revision, value) = object.map_or((0, 0), |o| (o.revision, number(&o)));
                let next = (value + 1).to_string();
                match store.compare_and_set(&key, revision, next, None).await? {
                    CasOutcome::Created(result) => {
                        ensure_eq!((revision, result.version), (0, 1));
                        done += 1;
                    }
                    CasOutcome::Updated(_) => done += 1,
                    CasOutcome::Conflict(Some(now)) => ensure!(now.revision != revision),
                    CasOutcome::Conflict(None) => return Err("nobody deletes here".into()),
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    });
    all_at_once(counting).await?;
    ensure_eq!(number(&existing(ctx.store(), &key).await?), 60);
    ctx.store().commit(Commit::new().delete(key.clone(), Expect::Any)).await?;
    let gone = ctx.store().compare_and_set(&key, 1, "x", None).await?;
    ensure_eq!(gone, CasOutcome::Conflict(None));
    Ok(())
}

async fn acknowledged_writes_are_read_everywhere(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(3).await?;
    let key = ctx.key("one");
    for n in 0..60usize {
        let write = Put::new(key.clone(), n.to_string());
        let revision = put(&handles[n % handles.len()], write).await?.revision;
        for store in &handles {
            let read = existing(store, &key).await?.revision;
            ensure_eq!(read, revision, "read after write {n} was acknowledged");
        }
    }
    Ok(())
}
