//! The helpers over commit: by the names people know, typed values, and the one retry loop.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::store::{CasOutcome, CreateOutcome, Json, ObjectMeta, Put, RetryPolicy, Store, Typed};
use tenure::{Error, Key};

use crate::context::Context;
use crate::helpers::{existing, number, put, refused, text};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            create_if_absent_tells_created_from_existing,
            [],
            "and shows the numbers of what is there"
        ),
        behaviour!(
            compare_and_set_keeps_name_and_labels,
            [],
            "it replaces the payload of exactly what was read; 0 means absent"
        ),
        behaviour!(
            the_short_ways_to_write_give_the_life_that_was_asked_for,
            [ttl],
            "when they create, when they replace, and none if none was asked for"
        ),
        behaviour!(
            update_with_retry_starts_over_after_a_conflict,
            [],
            "the change is computed again on the newest state"
        ),
        behaviour!(
            update_with_retry_gives_up_with_a_conflict,
            [],
            "after three to five attempts, whatever was asked for"
        ),
        behaviour!(
            update_with_retry_passes_other_errors_on,
            [],
            "a missing object, and the caller's own error, at once"
        ),
        behaviour!(
            concurrent_updates_with_retry_lose_nothing,
            [],
            "what was acknowledged adds up, also when some gave up"
        ),
        behaviour!(
            typed_values_carry_the_rows_numbers,
            [],
            "whatever the payload says about itself"
        ),
    ]
}

async fn create_if_absent_tells_created_from_existing(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let CreateOutcome::Created(result) = ctx.store().create_if_absent(&key, "a", None).await?
    else {
        return Err("the first was not told Created".into());
    };
    ensure_eq!(result.version, 1);
    let second = ctx.store().create_if_absent(&key, "b", None).await?;
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!(second, CreateOutcome::Exists(object.current()));
    ensure_eq!(text(&object), "a");
    Ok(())
}

async fn compare_and_set_keeps_name_and_labels(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let set = async |revision: u64, value: &'static str| {
        ctx.store().compare_and_set(&key, revision, value, None).await
    };
    ensure!(matches!(set(0, "a").await?, CasOutcome::Created(result) if result.version == 1));
    let now = existing(ctx.store(), &key).await?.current();
    ensure_eq!(set(0, "b").await?, CasOutcome::Conflict(Some(now)));
    let mut write = Put::new(key.clone(), "c").label("x", "y");
    if ctx.caps().names {
        write = write.name("n");
    }
    let before = put(ctx.store(), write.clone()).await?;
    ensure!(matches!(set(before.revision, "d").await?, CasOutcome::Updated(r) if r.version == 3));
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!((&object.name, &object.labels), (&write.name, &write.labels));
    ensure_eq!(set(before.revision, "e").await?, CasOutcome::Conflict(Some(object.current())));
    ensure_eq!(text(&existing(ctx.store(), &key).await?), "d");
    Ok(())
}

async fn the_short_ways_to_write_give_the_life_that_was_asked_for(
    ctx: Context,
) -> Result<(), Failure> {
    let key = ctx.key("one");
    let (life, longer) =
        (ctx.ttl_of(Duration::from_secs(60)), ctx.ttl_of(Duration::from_secs(600)));
    let CreateOutcome::Created(created) =
        ctx.store().create_if_absent(&key, "a", Some(life)).await?
    else {
        return Err("the first was not told Created".into());
    };
    let left = existing(ctx.store(), &key).await?.expires_in;
    ensure!(left.is_some_and(|left| left <= life), "{left:?} left of {life:?}");
    let set = async |revision: u64, ttl: Option<Duration>| match ctx
        .store()
        .compare_and_set(&key, revision, format!("{ttl:?}"), ttl)
        .await?
    {
        CasOutcome::Created(result) | CasOutcome::Updated(result) => Ok(result.revision),
        CasOutcome::Conflict(current) => Err(Failure::new(format!("{current:?} is there"))),
    };
    let revision = set(created.revision, Some(longer)).await?;
    let left = existing(ctx.store(), &key).await?.expires_in;
    ensure!(left.is_some_and(|left| left > life && left <= longer), "{left:?} of {longer:?}");
    set(revision, None).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.expires_in, None, "without a life");
    ctx.store().delete(&key).await?;
    set(0, Some(life)).await?;
    let left = existing(ctx.store(), &key).await?.expires_in;
    ensure!(left.is_some_and(|left| left <= life), "{left:?} left of {life:?}");
    Ok(())
}

/// Writes behind the back of whoever is in the middle of an update.
fn interfere(store: &Store, key: &Key, value: String) -> Result<(), Error> {
    let (store, put) = (store.clone(), Put::new(key.clone(), value));
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(store.commit(put)))
        .map(|_| ())
}

/// Whether this runtime can wait inside a synchronous closure.
fn can_block() -> bool {
    let flavor = tokio::runtime::Handle::current().runtime_flavor();
    flavor == tokio::runtime::RuntimeFlavor::MultiThread
}

async fn update_with_retry_starts_over_after_a_conflict(ctx: Context) -> Result<(), Failure> {
    if !can_block() {
        return Ok(());
    }
    let key = ctx.key("one");
    ctx.put(&key, "0").await?;
    let mut seen = Vec::new();
    let result = ctx
        .store()
        .update_with_retry(&key, RetryPolicy::attempts(5), |object| {
            seen.push(text(object));
            if seen.len() < 3 {
                interfere(ctx.store(), &key, format!("rival {}", seen.len()))?;
            }
            Ok(Put::new(key.clone(), "mine"))
        })
        .await?;
    ensure_eq!(seen, ["0", "rival 1", "rival 2"], "states the change was computed on");
    ensure_eq!(result.version, 4);
    ensure_eq!(text(&existing(ctx.store(), &key).await?), "mine");
    Ok(())
}

async fn update_with_retry_gives_up_with_a_conflict(ctx: Context) -> Result<(), Failure> {
    if !can_block() {
        return Ok(());
    }
    let key = ctx.key("one");
    ctx.put(&key, "0").await?;
    for (asked, expected) in [(1, 3), (4, 4), (100, 5)] {
        let mut attempts = 0;
        let updated = ctx
            .store()
            .update_with_retry(&key, RetryPolicy::attempts(asked), |_| {
                attempts += 1;
                interfere(ctx.store(), &key, format!("rival {asked}-{attempts}"))?;
                Ok(Put::new(key.clone(), "mine"))
            })
            .await;
        ensure_eq!(refused(updated)?.code(), "conflict");
        ensure_eq!(attempts, expected, "attempts when asked for {asked}");
        ensure!(text(&existing(ctx.store(), &key).await?).starts_with("rival"));
    }
    Ok(())
}

async fn update_with_retry_passes_other_errors_on(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let policy = RetryPolicy::default();
    let write = || Ok(Put::new(key.clone(), "v"));
    let missing = ctx.store().update_with_retry(&key, policy, |_| write()).await;
    ensure_eq!(refused(missing)?.code(), "not_found");
    ctx.put(&key, "0").await?;
    let mut attempts = 0;
    let own = ctx
        .store()
        .update_with_retry(&key, policy, |_| {
            attempts += 1;
            Err(Error::invalid("change", "not today"))
        })
        .await;
    ensure_eq!((refused(own)?.code(), attempts), ("invalid", 1));
    ensure_eq!(existing(ctx.store(), &key).await?.version, 1);
    Ok(())
}

async fn concurrent_updates_with_retry_lose_nothing(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    let key = ctx.key("counter");
    ctx.put(&key, "0").await?;
    let counting = (0..4usize).map(|n| {
        let (store, key) = (handles[n % 2].clone(), key.clone());
        async move {
            let mut done = 0;
            for _ in 0..15 {
                let add = |object: &tenure::Object| {
                    Ok(Put::new(object.key.clone(), (number(object) + 1).to_string()))
                };
                match store.update_with_retry(&key, RetryPolicy::default(), add).await {
                    Ok(_) => done += 1,
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(done)
        }
    });
    let done: u64 = all_at_once(counting).await?.into_iter().sum();
    ensure!(done > 0, "nobody got through");
    ensure_eq!(number(&existing(ctx.store(), &key).await?), done, "acknowledged increments");
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    metadata: ObjectMeta,
    state: String,
}

impl Typed for Order {
    // The type's kind cannot be drawn for each run; its id is.
    const KIND: &'static str = "check-typed";
    type Codec = Json;
    fn metadata(&self) -> ObjectMeta {
        self.metadata.clone()
    }
    fn set_metadata(&mut self, metadata: ObjectMeta) {
        self.metadata = metadata;
    }
}

async fn typed_values_carry_the_rows_numbers(ctx: Context) -> Result<(), Failure> {
    let store = ctx.store();
    let key = ctx.adopt(Order::KIND);
    let metadata = ObjectMeta { id: key.id.clone(), ..ObjectMeta::default() };
    let new = Order { metadata, state: "new".into() };
    let first = store.put_typed(&new).await?;
    ensure_eq!(first.metadata.resource_version, 1);
    ensure!(first.metadata.created_at_ms > 0);
    ensure_eq!(refused(store.put_typed(&new).await)?.code(), "already_exists");
    let same = store.put_typed(&first).await?;
    ensure_eq!(same.metadata.resource_version, 1, "the version after writing the same again");
    let pay = |order: &mut Order| {
        order.state = "paid".into();
        Ok(())
    };
    let paid = store.update_typed::<Order>(&key.id, RetryPolicy::default(), pay).await?;
    ensure_eq!((paid.metadata.resource_version, paid.state.as_str()), (2, "paid"));
    ensure_eq!(refused(store.put_typed(&first).await)?.code(), "conflict", "a stale value");
    // A payload that lies about itself is put right by its row.
    let lie = Order {
        metadata: ObjectMeta { id: "other".into(), resource_version: 99, ..ObjectMeta::default() },
        state: "lie".into(),
    };
    put(store, Put::new(key.clone(), serde_json::to_vec(&lie)?)).await?;
    let read: Order = store.get_typed(&key.id).await?.ok_or("the value is gone")?;
    ensure_eq!((read.metadata.id, read.metadata.resource_version), (key.id.clone(), 3));
    Ok(())
}
