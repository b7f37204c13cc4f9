//! The races that the compare-and-swap document lists: several kinds of writers change different
//! parts of one record, each by read, merge and conditional write. None of them may lose the others'
//! part, whichever handle it writes through.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure::Key;
use tenure::store::{Put, RetryPolicy, Store};

use crate::context::Context;
use crate::helpers::{ATTEMPTS, existing, put};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            attaching_and_detaching_lose_nothing,
            [],
            "many attach and detach providers of one sandbox; it ends with exactly those that stayed"
        ),
        behaviour!(
            attaching_beside_status_updates_loses_nothing,
            [],
            "providers and phase are changed by different writers at the same time"
        ),
        behaviour!(
            policy_status_beside_attaching_loses_nothing,
            [],
            "the policy version rises while providers come and go"
        ),
        behaviour!(
            provider_updates_merge_without_loss,
            [],
            "writers that each set a key of one provider's map all find theirs in it"
        ),
        behaviour!(
            settings_saved_by_many_keep_one_identity,
            [],
            "concurrent first saves make one row, and later ones keep its id and creation"
        ),
    ]
}

/// A sandbox as the document's gateway keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sandbox {
    providers: BTreeMap<String, u64>,
    phase: u64,
    policy_version: u64,
}

/// Read, merge, conditional write; over and over while others are faster. The document's handlers
/// give up after a few attempts and let their caller try again, which is what this does.
async fn merge<T: Serialize + for<'a> Deserialize<'a>>(
    store: &Store,
    key: &Key,
    change: impl Fn(&mut T),
) -> Result<(), Failure> {
    for _ in 0..ATTEMPTS {
        let attempt = store.update_with_retry(key, RetryPolicy::default(), |object| {
            let invalid = |error: serde_json::Error| {
                tenure::Error::invalid(key.to_string(), error.to_string())
            };
            let mut value: T = serde_json::from_slice(&object.payload).map_err(invalid)?;
            change(&mut value);
            let mut put = object.to_put();
            put.payload = serde_json::to_vec(&value).map_err(invalid)?.into();
            Ok(put)
        });
        match attempt.await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(format!("{key} was never free for {ATTEMPTS} attempts")))
}

async fn sandbox(ctx: &Context) -> Result<Key, Failure> {
    let key = ctx.key("sandbox");
    put(ctx.store(), Put::new(key.clone(), serde_json::to_vec(&Sandbox::default())?)).await?;
    Ok(key)
}

async fn read(ctx: &Context, key: &Key) -> Result<(Sandbox, u64), Failure> {
    let object = existing(ctx.store(), key).await?;
    Ok((serde_json::from_slice(&object.payload)?, object.version))
}

/// Attaches `rounds` providers of its own and detaches all but the last.
async fn attach(store: Store, key: Key, writer: usize, rounds: u64) -> Result<(), Failure> {
    for round in 0..rounds {
        let name = format!("w{writer}-{round}");
        merge(&store, &key, |s: &mut Sandbox| {
            s.providers.insert(name.clone(), round);
        })
        .await?;
        if round + 1 < rounds {
            merge(&store, &key, |s: &mut Sandbox| {
                s.providers.remove(&name);
            })
            .await?;
        }
    }
    Ok(())
}

fn stayed(writers: usize, rounds: u64) -> BTreeMap<String, u64> {
    (0..writers).map(|writer| (format!("w{writer}-{}", rounds - 1), rounds - 1)).collect()
}

async fn attaching_and_detaching_lose_nothing(ctx: Context) -> Result<(), Failure> {
    const ROUNDS: u64 = 8;
    let key = sandbox(&ctx).await?;
    let handles = ctx.handles(4).await?;
    let writers = handles.into_iter().enumerate();
    all_at_once(writers.map(|(n, store)| attach(store, key.clone(), n, ROUNDS))).await?;
    let (sandbox, version) = read(&ctx, &key).await?;
    ensure_eq!(sandbox.providers, stayed(4, ROUNDS));
    ensure_eq!(version, 1 + 4 * (2 * ROUNDS - 1), "one version for every change");
    Ok(())
}

/// Runs two attaching writers beside one that counts something else up.
async fn beside(
    ctx: Context,
    count_up: fn(&mut Sandbox),
    count: fn(&Sandbox) -> u64,
) -> Result<(), Failure> {
    const ROUNDS: u64 = 10;
    let key = sandbox(&ctx).await?;
    let mut handles = ctx.handles(3).await?;
    let counter = handles.remove(0);
    let counted = key.clone();
    let counting = async move {
        for _ in 0..ROUNDS {
            merge(&counter, &counted, count_up).await?;
        }
        Ok(())
    };
    let attaching = handles.into_iter().enumerate();
    let mut tasks: Vec<futures::future::BoxFuture<'static, Result<(), Failure>>> =
        vec![Box::pin(counting)];
    for (n, store) in attaching {
        tasks.push(Box::pin(attach(store, key.clone(), n, ROUNDS)));
    }
    all_at_once(tasks).await?;
    let (sandbox, version) = read(&ctx, &key).await?;
    ensure_eq!(sandbox.providers, stayed(2, ROUNDS));
    ensure_eq!(count(&sandbox), ROUNDS);
    ensure_eq!(version, 1 + ROUNDS + 2 * (2 * ROUNDS - 1), "one version for every change");
    Ok(())
}

async fn attaching_beside_status_updates_loses_nothing(ctx: Context) -> Result<(), Failure> {
    beside(ctx, |sandbox| sandbox.phase += 1, |sandbox| sandbox.phase).await
}

async fn policy_status_beside_attaching_loses_nothing(ctx: Context) -> Result<(), Failure> {
    beside(ctx, |sandbox| sandbox.policy_version += 1, |sandbox| sandbox.policy_version).await
}

async fn provider_updates_merge_without_loss(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("provider");
    put(ctx.store(), Put::new(key.clone(), "{}")).await?;
    let handles = ctx.handles(8).await?;
    let update = |(n, store): (usize, Store)| {
        let key = key.clone();
        async move {
            let set = |map: &mut BTreeMap<String, usize>| {
                map.insert(format!("key-{n}"), n);
            };
            merge(&store, &key, set).await
        }
    };
    all_at_once(handles.into_iter().enumerate().map(update)).await?;
    let object = existing(ctx.store(), &key).await?;
    let map: BTreeMap<String, usize> = serde_json::from_slice(&object.payload)?;
    ensure_eq!(map, (0..8).map(|n| (format!("key-{n}"), n)).collect());
    ensure_eq!(object.version, 9);
    Ok(())
}

async fn settings_saved_by_many_keep_one_identity(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("settings");
    let handles = ctx.handles(6).await?;
    let save = |(n, store): (usize, Store)| {
        let key = key.clone();
        async move {
            // Whoever comes first creates; all others merge into what is there.
            let first = store.create_if_absent(&key, format!("{{\"by-{n}\":1}}"), None).await?;
            if matches!(first, tenure::store::CreateOutcome::Created(_)) {
                return Ok(true);
            }
            let set = |map: &mut BTreeMap<String, u64>| {
                map.insert(format!("by-{n}"), 1);
            };
            merge(&store, &key, set).await.map(|()| false)
        }
    };
    let created = all_at_once(handles.into_iter().enumerate().map(save)).await?;
    ensure_eq!(created.into_iter().filter(|created| *created).count(), 1, "first saves");
    let object = existing(ctx.store(), &key).await?;
    let map: BTreeMap<String, u64> = serde_json::from_slice(&object.payload)?;
    ensure_eq!(map.len(), 6, "settings that were kept");
    ensure_eq!(object.version, 6);
    ensure_eq!(object.created_revision, object.token);
    Ok(())
}
