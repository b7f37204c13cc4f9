//! Writes that change nothing, and the small changes that do count.

use tenure::store::{Put, WatchRequest, Written};

use crate::context::Context;
use crate::helpers::{existing, put, until_key};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            an_equal_put_changes_nothing,
            [],
            "writing the same again bumps no version, revision or label in time"
        ),
        behaviour!(an_equal_put_wakes_no_watcher, [], "watchers hear of changes only"),
        behaviour!(a_changed_label_alone_is_a_change, [], "labels are part of the object"),
        behaviour!(a_changed_name_alone_is_a_change, [names], "the name is part of the object"),
        behaviour!(
            a_changed_life_alone_is_a_change,
            [ttl],
            "the time to live is part of the object"
        ),
        behaviour!(
            an_equal_put_within_a_commit_is_unchanged,
            [multi],
            "equal and changed puts of one commit are told apart"
        ),
    ]
}

async fn an_equal_put_changes_nothing(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let write = Put::new(key.clone(), "v").label("a", "1").label("b", "2");
    put(ctx.store(), Put::new(key.clone(), "before")).await?;
    put(ctx.store(), write.clone()).await?;
    let before = existing(ctx.store(), &key).await?;
    // A later label in time would show.
    ctx.pass(std::time::Duration::from_millis(3)).await;
    for _ in 0..3 {
        let done = ctx.store().commit(write.clone()).await?;
        ensure_eq!(done.revision, None, "the revision of a commit that changed nothing");
        let [Written::Unchanged(result)] = done.writes[..] else {
            return Err(Failure::new(format!("not unchanged: {:?}", done.writes)));
        };
        ensure_eq!((result.version, result.revision), (before.version, before.revision));
        ensure_eq!(result.updated_at_ms, before.updated_at_ms);
        ensure_eq!(
            (result.token, result.created_revision),
            (before.token, before.created_revision)
        );
    }
    ensure_eq!(existing(ctx.store(), &key).await?, before);
    Ok(())
}

async fn an_equal_put_wakes_no_watcher(ctx: Context) -> Result<(), Failure> {
    let (key, end) = (ctx.key("one"), ctx.key("end"));
    ctx.put(&key, "v").await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    for _ in 0..3 {
        ctx.put(&key, "v").await?;
    }
    ctx.put(&end, "v").await?;
    let told = until_key(&mut watch, &end).await?;
    ensure_eq!(told.len(), 1, "batches told for one change");
    Ok(())
}

async fn changes(ctx: &Context, writes: impl IntoIterator<Item = Put>) -> Result<(), Failure> {
    let mut last = None;
    for write in writes {
        let done = ctx.store().commit(write.clone()).await?;
        let result = done.first_put().ok_or("a put has no result")?;
        ensure!(done.revision.is_some(), "{write:?} counted as no change");
        let expected = last.map_or(1, |version| version + 1);
        ensure_eq!(result.version, expected, "version after {write:?}");
        let object = existing(ctx.store(), &write.key).await?;
        ensure_eq!((object.labels, object.name), (write.labels, write.name));
        ensure_eq!(object.version, result.version);
        last = Some(result.version);
    }
    Ok(())
}

async fn a_changed_label_alone_is_a_change(ctx: Context) -> Result<(), Failure> {
    let bare = Put::new(ctx.key("one"), "v");
    let one = bare.clone().label("a", "1");
    let writes = [bare.clone(), one.clone(), one.clone().label("b", ""), one.label("a", "2"), bare];
    changes(&ctx, writes).await
}

async fn a_changed_name_alone_is_a_change(ctx: Context) -> Result<(), Failure> {
    let bare = Put::new(ctx.key("one"), "v");
    changes(&ctx, [bare.clone(), bare.clone().name("a"), bare.clone().name("b"), bare]).await
}

async fn a_changed_life_alone_is_a_change(ctx: Context) -> Result<(), Failure> {
    let bare = Put::new(ctx.key("one"), "v");
    let long = ctx.ttl_of(std::time::Duration::from_secs(600));
    let writes = [bare.clone(), bare.clone().ttl(long), bare.clone().ttl(long * 2), bare];
    changes(&ctx, writes).await
}

async fn an_equal_put_within_a_commit_is_unchanged(ctx: Context) -> Result<(), Failure> {
    let (same, other) = (ctx.key("same"), ctx.key("other"));
    let before = put(ctx.store(), Put::new(same.clone(), "v")).await?;
    let commit = tenure::store::Commit::new()
        .put(Put::new(same.clone(), "v"))
        .put(Put::new(other.clone(), "w"));
    let done = ctx.store().commit(commit).await?;
    let revision = done.revision.ok_or("a commit that changed something has no revision")?;
    match done.writes[..] {
        [Written::Unchanged(a), Written::Put(b)] => {
            ensure_eq!((a.version, a.revision), (1, before.revision));
            ensure_eq!((b.version, b.revision), (1, revision));
        }
        _ => return Err(Failure::new(format!("{:?}", done.writes))),
    }
    Ok(())
}
