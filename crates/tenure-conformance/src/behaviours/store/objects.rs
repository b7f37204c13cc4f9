//! One object's life: created, changed, read, deleted, created again.

use std::time::Duration;

use bytes::Bytes;
use tenure::Key;
use tenure::lease::WAITER;
use tenure::store::{Capability, Commit, Expect, Put, Query, Touch, WatchRequest, Written};

use crate::context::Context;
use crate::helpers::{existing, put, refused};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_created_object_has_version_one,
            [],
            "creating sets version 1, and the revision is also its creation's and its token"
        ),
        behaviour!(
            an_update_adds_one_to_the_version,
            [],
            "a change adds exactly one to the version, raises the revision, keeps creation and token"
        ),
        behaviour!(
            a_deleted_object_is_absent,
            [],
            "deleting removes the object and draws a revision; deleting again finds nothing"
        ),
        behaviour!(
            a_recreated_object_starts_again_at_version_one,
            [],
            "version restarts at 1 after delete and create, revision and token never go back"
        ),
        behaviour!(an_absent_object_is_none, [], "reading what was never there is no error"),
        behaviour!(
            payloads_are_any_bytes,
            [],
            "a payload comes back byte for byte: empty, all byte values, not UTF-8"
        ),
        behaviour!(
            unicode_ids_come_back_as_written,
            [],
            "ids of any script, composed or not, are kept apart and come back unchanged"
        ),
        behaviour!(
            wall_clock_labels_are_set,
            [],
            "creation and change carry wall-clock labels; a change moves only the second"
        ),
        behaviour!(
            a_store_of_leases_refuses_other_objects,
            [leases_only],
            "the error names the capability, the backend and the stores that have it"
        ),
    ]
}

async fn a_created_object_has_version_one(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let done = ctx.store().commit(Put::new(key.clone(), "v").expect(Expect::Absent)).await?;
    let result = done.first_put().ok_or("a put has no result")?;
    ensure_eq!(result.version, 1);
    ensure!(result.revision > 0);
    ensure_eq!(Some(result.revision), done.revision, "the put's revision and the commit's");
    ensure_eq!(result.created_revision, result.revision);
    ensure_eq!(result.token, result.revision);
    ensure_eq!(result.ttl, None);
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!(object.key, key);
    ensure_eq!(object.payload, Bytes::from("v"));
    ensure_eq!(object.version, 1);
    ensure_eq!(object.revision, result.revision);
    ensure_eq!(object.created_revision, result.revision);
    ensure_eq!(object.token, result.revision);
    ensure_eq!((object.name, object.ttl, object.expires_in), (None, None, None));
    ensure!(object.labels.is_empty());
    Ok(())
}

async fn an_update_adds_one_to_the_version(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let first = put(ctx.store(), Put::new(key.clone(), "0")).await?;
    let mut last = first;
    for n in 1..=5u64 {
        let next = put(ctx.store(), Put::new(key.clone(), n.to_string())).await?;
        ensure_eq!(next.version, last.version + 1);
        ensure!(next.revision > last.revision, "{} after {}", next.revision, last.revision);
        ensure_eq!(next.created_revision, first.revision);
        ensure_eq!(next.token, first.token);
        last = next;
    }
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!((object.version, object.revision), (6, last.revision));
    ensure_eq!((object.created_revision, object.token), (first.revision, first.token));
    Ok(())
}

async fn a_deleted_object_is_absent(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let created = put(ctx.store(), Put::new(key.clone(), "v")).await?;
    let delete = || Commit::new().delete(key.clone(), Expect::Any);
    let done = ctx.store().commit(delete()).await?;
    let revision = done.revision.ok_or("a delete that deleted has no revision")?;
    ensure_eq!(done.writes, vec![Written::Deleted { revision }]);
    ensure!(revision > created.revision);
    ensure_eq!(ctx.store().get(&key).await?, None);
    let again = ctx.store().commit(delete()).await?;
    ensure_eq!((again.revision, again.writes), (None, vec![Written::Absent]));
    ensure!(!ctx.store().delete(&key).await?, "a second delete says that there was something");
    Ok(())
}

async fn a_recreated_object_starts_again_at_version_one(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut highest = 0;
    for round in 0..4 {
        let first = put(ctx.store(), Put::new(key.clone(), "a").expect(Expect::Absent)).await?;
        ensure_eq!(first.version, 1, "version in round {round}");
        ensure!(first.revision > highest, "revision {} after {highest}", first.revision);
        ensure_eq!((first.created_revision, first.token), (first.revision, first.revision));
        let second = put(ctx.store(), Put::new(key.clone(), "b")).await?;
        ensure_eq!(second.version, 2);
        let done = ctx.store().commit(Commit::new().delete(key.clone(), Expect::Exists)).await?;
        highest = done.revision.ok_or("a delete has no revision")?;
        ensure!(highest > second.revision);
    }
    Ok(())
}

async fn an_absent_object_is_none(ctx: Context) -> Result<(), Failure> {
    ensure_eq!(ctx.store().get(&ctx.key("never")).await?, None);
    ensure!(!ctx.store().delete(&ctx.key("never")).await?);
    Ok(())
}

async fn payloads_are_any_bytes(ctx: Context) -> Result<(), Failure> {
    let every: Vec<u8> = (0..=255).collect();
    let payloads =
        [Vec::new(), every.clone(), every.repeat(16), vec![0], b"\xff\xfe\x00'\"\\".into()];
    for (n, payload) in payloads.into_iter().enumerate() {
        let key = ctx.key(&n.to_string());
        put(ctx.store(), Put::new(key.clone(), payload.clone())).await?;
        let object = existing(ctx.store(), &key).await?;
        ensure!(
            object.payload == payload,
            "payload {n} came back as {} bytes",
            object.payload.len()
        );
    }
    Ok(())
}

async fn unicode_ids_come_back_as_written(ctx: Context) -> Result<(), Failure> {
    // The second and third look alike and differ in bytes: one composed, one not.
    let ids =
        ["plain", "\u{e9}", "e\u{301}", "日本", "🦀", "a b", "a/b", "%41", "'; drop", "A", "a"];
    for id in ids {
        put(ctx.store(), Put::new(ctx.key(id), id)).await?;
    }
    for id in ids {
        let object = existing(ctx.store(), &ctx.key(id)).await?;
        ensure_eq!(object.key.id, id);
        ensure_eq!(object.payload, Bytes::from(id), "payload of {id:?}");
        ensure_eq!(object.version, 1, "version of {id:?}");
    }
    Ok(())
}

async fn wall_clock_labels_are_set(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let first = put(ctx.store(), Put::new(key.clone(), "a")).await?;
    ensure!(first.created_at_ms > 0);
    ensure_eq!(first.created_at_ms, first.updated_at_ms);
    // Later, so that a label which moves shows.
    ctx.pass(Duration::from_millis(5)).await;
    let second = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    ensure_eq!(second.created_at_ms, first.created_at_ms);
    if ctx.is_manual() {
        ensure_eq!(second.updated_at_ms, first.updated_at_ms + 5);
    }
    let object = existing(ctx.store(), &key).await?;
    ensure_eq!(object.created_at_ms, first.created_at_ms);
    ensure_eq!(object.updated_at_ms, second.updated_at_ms);
    Ok(())
}

async fn a_store_of_leases_refuses_other_objects(ctx: Context) -> Result<(), Failure> {
    let store = ctx.undisguised();
    let key = Key::new("order", "one");
    let waiter = Key::new(WAITER, "a/b#c");
    let touch = Touch { key: key.clone(), revision: 1, ttl: Duration::from_secs(5) };
    let refusals = [
        refused(store.get(&key).await)?,
        refused(store.list(&Query::new("order")).await)?,
        refused(store.commit(Put::new(key.clone(), "v")).await)?,
        refused(store.commit(Commit::new().delete(key.clone(), Expect::Any)).await)?,
        refused(store.commit(Commit::new().check(key.clone(), Expect::Absent)).await)?,
        refused(store.commit(Put::new(waiter.clone(), "v")).await)?,
        refused(store.touch(vec![touch]).await)?,
        refused(store.watch(&WatchRequest::kind("order")).await)?,
    ];
    for error in refusals {
        let text = error.to_string();
        for part in [ctx.caps().backend, "general objects", Capability::Objects.supported_by()] {
            ensure!(text.contains(part), "{text:?} does not name {part:?}");
        }
    }
    // What belongs to leases can be asked for anywhere; here there is none.
    ensure_eq!(store.get(&waiter).await?, None);
    ensure_eq!(store.list(&Query::new(WAITER)).await?.objects.len(), 0);
    Ok(())
}
