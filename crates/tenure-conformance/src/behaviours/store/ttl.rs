//! Time to live: there until its time, absent from then on, for everybody and every condition.

use std::time::Duration;

use tenure::Key;
use tenure::store::{Cause, Commit, Event, Expect, Put, Query, WatchRequest, WriteResult, Written};

use crate::context::Context;
use crate::helpers::{existing, next_in_time, put, refused};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            an_object_lives_as_long_as_it_was_granted,
            [ttl],
            "there as long as less than its life has passed since before the request"
        ),
        behaviour!(
            an_expired_object_is_absent_to_readers,
            [ttl],
            "get, list and lookups by name agree"
        ),
        behaviour!(
            an_expired_object_is_absent_to_conditions,
            [ttl],
            "absent holds, exists and version do not, a delete finds nothing"
        ),
        behaviour!(
            an_expired_object_makes_room_for_a_new_one,
            [ttl],
            "created anew with version 1 and a greater token"
        ),
        behaviour!(
            watchers_see_an_object_end_before_it_begins_again,
            [ttl],
            "the expiry comes first, under a revision of its own"
        ),
        behaviour!(
            watchers_are_told_of_an_expiry,
            [ttl],
            "without anybody writing or reading, soon after"
        ),
        behaviour!(
            watchers_are_told_of_an_expiry_that_another_handle_left,
            [ttl, reopens],
            "its writer is gone; whoever watches sees to it"
        ),
        behaviour!(
            the_remaining_life_counts_down,
            [ttl],
            "expires_in never grows and never exceeds what was granted"
        ),
        behaviour!(
            a_put_without_life_makes_an_object_permanent,
            [ttl],
            "and one with life makes it mortal"
        ),
        behaviour!(
            a_life_is_granted_in_whole_steps,
            [ttl],
            "rounded up, told as granted, and the same wish again changes nothing"
        ),
        behaviour!(
            an_equal_put_starts_the_life_anew,
            [ttl],
            "no new version, no event, but a full life"
        ),
        behaviour!(
            an_expired_holder_frees_its_name,
            [ttl, names],
            "at once, before anything was swept"
        ),
        behaviour!(
            many_objects_expire_together,
            [ttl],
            "none is left behind and each is told once"
        ),
        behaviour!(
            stepped_wall_clocks_change_nothing,
            [ttl, manual_clock],
            "neither forwards nor backwards"
        ),
        behaviour!(
            an_object_expires_at_its_very_instant,
            [ttl, manual_clock],
            "not early at all, and at most a millisecond late"
        ),
    ]
}

/// Writes an object with a short life: the result, and the instants before and after.
async fn mortal(ctx: &Context, write: Put) -> Result<(Duration, WriteResult, Duration), Failure> {
    let before = ctx.uptime();
    let result = put(ctx.store(), write.ttl(ctx.ttl())).await?;
    let granted = result.ttl.ok_or("a life was asked for and none granted")?;
    ensure!(granted >= ctx.ttl(), "granted {granted:?} instead of {:?}", ctx.ttl());
    Ok((before, result, ctx.uptime()))
}

/// Writes an object with a short life and lets it pass.
async fn expired(ctx: &Context, write: Put) -> Result<WriteResult, Failure> {
    let key = write.key.clone();
    let (_, result, after) = mortal(ctx, write).await?;
    ctx.outlive(&key, after + result.ttl.unwrap_or_default()).await?;
    Ok(result)
}

async fn an_object_lives_as_long_as_it_was_granted(ctx: Context) -> Result<(), Failure> {
    const STEP: Duration = Duration::from_millis(1);
    let key = ctx.key("one");
    for _ in 0..2 {
        let (before, result, after) = mortal(&ctx, Put::new(key.clone(), "v")).await?;
        let granted = result.ttl.unwrap_or_default();
        loop {
            let there = ctx.store().get(&key).await?.is_some();
            let listed = ctx.store().list(&Query::new(&key.kind)).await?.objects.len();
            let age = ctx.uptime() - before;
            if age >= granted {
                break;
            }
            ensure!(there && listed == 1, "gone after {age:?} of {granted:?}");
            let left = granted - age;
            ctx.pass((left / 2).clamp(STEP, Duration::from_millis(50))).await;
        }
        ctx.outlive(&key, after + granted).await?;
        ensure_eq!(ctx.store().get(&key).await?, None, "the object after its life");
    }
    Ok(())
}

async fn an_expired_object_is_absent_to_readers(ctx: Context) -> Result<(), Failure> {
    let (key, other) = (ctx.key("one"), ctx.key("other"));
    let mut write = Put::new(key.clone(), "v");
    if ctx.caps().names {
        write = write.name("n");
    }
    ctx.put(&other, "stays").await?;
    expired(&ctx, write).await?;
    ensure_eq!(ctx.store().get(&key).await?, None);
    let listed = ctx.store().list_all(&Query::new(&key.kind)).await?;
    ensure_eq!(listed.len(), 1, "objects listed");
    ensure_eq!(listed[0].key, other);
    if ctx.caps().names {
        ensure_eq!(ctx.store().get_by_name(&key.kind, "n").await?, None);
    }
    Ok(())
}

async fn an_expired_object_is_absent_to_conditions(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let gone = expired(&ctx, Put::new(key.clone(), "v")).await?;
    for (expect, code) in [
        (Expect::Exists, "not_found"),
        (Expect::Version(1), "not_found"),
        (Expect::Revision(gone.revision), "not_found"),
        (Expect::Token(gone.token), "lost"),
    ] {
        for commit in [
            Commit::new().check(key.clone(), expect),
            Commit::new().delete(key.clone(), expect),
            Put::new(key.clone(), "w").expect(expect).into(),
        ] {
            let error = refused(ctx.store().commit(commit.clone()).await)?;
            ensure_eq!(error.code(), code, "{commit:?}");
        }
    }
    ctx.store().commit(Commit::new().check(key.clone(), Expect::Absent)).await?;
    let done = ctx.store().commit(Commit::new().delete(key.clone(), Expect::Any)).await?;
    ensure_eq!((done.revision, done.writes), (None, vec![Written::Absent]));
    Ok(())
}

async fn an_expired_object_makes_room_for_a_new_one(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    put(ctx.store(), Put::new(key.clone(), "older")).await?;
    let gone = expired(&ctx, Put::new(key.clone(), "old")).await?;
    ensure_eq!(gone.version, 2);
    let new = put(ctx.store(), Put::new(key.clone(), "old").expect(Expect::Absent)).await?;
    ensure_eq!(new.version, 1);
    ensure!(new.token > gone.revision, "token {} after revision {}", new.token, gone.revision);
    ensure_eq!((new.created_revision, new.token), (new.revision, new.revision));
    ensure_eq!(existing(ctx.store(), &key).await?.ttl, None);
    Ok(())
}

async fn watchers_see_an_object_end_before_it_begins_again(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let first = expired(&ctx, Put::new(key.clone(), "a")).await?;
    let second = put(ctx.store(), Put::new(key.clone(), "b").expect(Expect::Absent)).await?;
    let mut told = Vec::new();
    for _ in 0..3 {
        let batch = next_in_time(&ctx, &mut watch).await?;
        ensure_eq!(batch.events.len(), 1, "events of revision {}", batch.revision);
        told.push(batch);
    }
    ensure_eq!(told[0].revision, first.revision);
    let end = &told[1];
    ensure!(end.revision > first.revision && end.revision < second.revision);
    is_expiry(&end.events[0], &key)?;
    ensure_eq!(told[2].revision, second.revision);
    ensure!(matches!(&told[2].events[0], Event::Put(object) if object.version == 1));
    Ok(())
}

fn is_expiry(event: &Event, key: &Key) -> Result<(), Failure> {
    let Event::Delete { key: told, cause, last } = event else {
        return Err(Failure::new(format!("not an end but {event:?}")));
    };
    ensure_eq!(told, key);
    ensure!(matches!(cause, Cause::Expired | Cause::Unspecified), "the cause is {cause:?}");
    ensure!(last.as_ref().is_none_or(|last| last.key == *key && last.version == 1));
    Ok(())
}

async fn watchers_are_told_of_an_expiry(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let result = expired(&ctx, Put::new(key.clone(), "v")).await?;
    let created = next_in_time(&ctx, &mut watch).await?;
    ensure_eq!(created.revision, result.revision);
    if let Event::Put(object) = &created.events[0] {
        ensure_eq!(
            (object.ttl, object.expires_in),
            (result.ttl, None),
            "life as an event tells it"
        );
    }
    let end = next_in_time(&ctx, &mut watch).await?;
    ensure!(end.revision > created.revision);
    is_expiry(&end.events[0], &key)
}

async fn watchers_are_told_of_an_expiry_that_another_handle_left(
    ctx: Context,
) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let other = ctx.open_brief().await?;
    let result = put(&other, Put::new(key.clone(), "v").ttl(ctx.ttl())).await?;
    ctx.close_brief(&other).await;
    let created = next_in_time(&ctx, &mut watch).await?;
    ensure_eq!(created.revision, result.revision);
    ctx.pass(result.ttl.ok_or("no life granted")? + ctx.slack()).await;
    let end = next_in_time(&ctx, &mut watch).await?;
    is_expiry(&end.events[0], &key)
}

async fn the_remaining_life_counts_down(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let long = ctx.ttl_of(Duration::from_secs(60));
    let granted = put(ctx.store(), Put::new(key.clone(), "v").ttl(long)).await?.ttl;
    let granted = granted.ok_or("no life granted")?;
    let mut last = granted;
    for _ in 0..5 {
        let object = existing(ctx.store(), &key).await?;
        ensure_eq!(object.ttl, Some(granted));
        let left = object.expires_in.ok_or("a mortal object has no expires_in")?;
        ensure!(left <= last, "{left:?} left after {last:?}");
        ensure!(left > granted / 2, "{left:?} left of {granted:?}");
        last = left;
        ctx.pass(Duration::from_millis(10)).await;
    }
    ensure!(last < granted, "{last:?} left of {granted:?} after a while");
    let listed = ctx.store().list(&Query::new(&key.kind)).await?;
    ensure!(listed.objects[0].expires_in.is_some_and(|left| left <= last));
    Ok(())
}

async fn a_put_without_life_makes_an_object_permanent(ctx: Context) -> Result<(), Failure> {
    let (stays, goes) = (ctx.key("stays"), ctx.key("goes"));
    mortal(&ctx, Put::new(stays.clone(), "v")).await?;
    put(ctx.store(), Put::new(stays.clone(), "v")).await?;
    put(ctx.store(), Put::new(goes.clone(), "v")).await?;
    expired(&ctx, Put::new(goes.clone(), "v")).await?;
    let object = existing(ctx.store(), &stays).await?;
    ensure_eq!((object.version, object.ttl, object.expires_in), (2, None, None));
    ensure_eq!(ctx.store().get(&goes).await?, None);
    Ok(())
}

async fn a_life_is_granted_in_whole_steps(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let steps = ctx.caps().ttl.ok_or("no time to live")?;
    for wish in [Duration::from_micros(60_000_700), Duration::from_nanos(60_001_000_001)] {
        let write = Put::new(key.clone(), "v").ttl(wish);
        let granted = put(ctx.store(), write.clone()).await?.ttl.ok_or("no life granted")?;
        ensure!(granted >= wish, "{granted:?} for {wish:?}");
        ensure_eq!(granted, steps.grant(wish), "granted for {wish:?}");
        ensure_eq!(existing(ctx.store(), &key).await?.ttl, Some(granted));
        let again = ctx.store().commit(write).await?;
        ensure_eq!(again.revision, None, "the revision of the same wish again");
    }
    Ok(())
}

async fn an_equal_put_starts_the_life_anew(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let life = ctx.ttl_of(ctx.ttl() * 5);
    let write = Put::new(key.clone(), "v").ttl(life);
    let first = put(ctx.store(), write.clone()).await?;
    ctx.pass(life / 2).await;
    let before = ctx.uptime();
    let done = ctx.store().commit(write).await?;
    ensure_eq!(done.revision, None);
    ensure!(matches!(done.writes[..], [Written::Unchanged(_)]), "{:?}", done.writes);
    ctx.pass_until(before + life * 3 / 4).await;
    let object = ctx.store().get(&key).await?;
    ensure_in_time!(ctx.uptime() < before + life, "asked after its life: {object:?}");
    let object = object.ok_or("it did not start its life anew")?;
    ensure_eq!(object.version, 1);
    match ctx.caps().touch_keeps_revision {
        true => ensure_eq!(object.revision, first.revision),
        // A life that starts anew draws a revision there, whichever way it does.
        false => ensure!(object.revision >= first.revision && object.token == first.token),
    }
    Ok(())
}

async fn an_expired_holder_frees_its_name(ctx: Context) -> Result<(), Failure> {
    let (old, new) = (ctx.key("old"), ctx.key("new"));
    expired(&ctx, Put::new(old.clone(), "v").name("n")).await?;
    put(ctx.store(), Put::new(new.clone(), "v").name("n")).await?;
    let found = ctx.store().get_by_name(&new.kind, "n").await?;
    ensure_eq!(found.map(|object| object.key), Some(new));
    ensure_eq!(ctx.store().get(&old).await?, None);
    Ok(())
}

async fn many_objects_expire_together(ctx: Context) -> Result<(), Failure> {
    const MANY: usize = 150;
    let kind = ctx.kind("a");
    let mut watch = ctx.store().watch(&WatchRequest::kind(&kind)).await?;
    let writes = (0..MANY).map(|n| {
        let (ctx, key) = (ctx.clone(), ctx.key(&n.to_string()));
        async move { mortal(&ctx, Put::new(key, "v")).await }
    });
    let written = futures::future::try_join_all(writes).await?;
    let last = written.iter().map(|(_, result, after)| *after + result.ttl.unwrap_or_default());
    let last = last.max().unwrap_or_default();
    for n in 0..MANY {
        ctx.outlive(&ctx.key(&n.to_string()), last).await?;
    }
    ensure_eq!(ctx.store().list_all(&Query::new(&kind)).await?.len(), 0, "objects left");
    let (mut begun, mut ended) = (0, std::collections::BTreeSet::new());
    while ended.len() < MANY {
        for event in &next_in_time(&ctx, &mut watch).await?.events {
            match event {
                Event::Put(_) => begun += 1,
                Event::Delete { key, .. } => {
                    ensure!(ended.insert(key.clone()), "{key} ended twice");
                }
            }
        }
    }
    ensure_eq!(begun, MANY, "objects that began");
    Ok(())
}

async fn stepped_wall_clocks_change_nothing(ctx: Context) -> Result<(), Failure> {
    const DAY_MS: i64 = 24 * 3600 * 1000;
    let key = ctx.key("one");
    for step in [DAY_MS, -2 * DAY_MS] {
        let (before, result, _) = mortal(&ctx, Put::new(key.clone(), "v")).await?;
        let granted = result.ttl.unwrap_or_default();
        ctx.pass(granted / 2).await;
        ctx.step_wall(step);
        let left = existing(ctx.store(), &key).await?.expires_in.unwrap_or_default();
        ensure!(left <= granted && left >= granted / 4, "{left:?} left of {granted:?}");
        ctx.outlive(&key, before + granted).await?;
        ctx.step_wall(-step * 2);
        ensure_eq!(ctx.store().get(&key).await?, None, "after its life");
    }
    Ok(())
}

async fn an_object_expires_at_its_very_instant(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let (before, result, _) = mortal(&ctx, Put::new(key.clone(), "v")).await?;
    let granted = result.ttl.unwrap_or_default();
    ctx.pass_until(before + granted - Duration::from_millis(1)).await;
    let left = existing(ctx.store(), &key).await?.expires_in;
    ensure_eq!(left, Some(Duration::from_millis(1)));
    // Stores count whole milliseconds, and none of them may be missing from a life.
    ctx.pass(Duration::from_millis(2)).await;
    ensure_eq!(ctx.store().get(&key).await?, None, "at the end of its life");
    let again = Put::new(key.clone(), "v").expect(Expect::Absent);
    ensure_eq!(put(ctx.store(), again).await?.version, 1);
    Ok(())
}
