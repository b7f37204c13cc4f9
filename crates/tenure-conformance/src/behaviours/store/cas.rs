//! Compare-and-swap: what every condition accepts, refuses, and says about it.

use tenure::store::{Commit, Expect, Put, WriteCondition, Written};
use tenure::{Current, Error, Key};

use crate::context::Context;
use crate::helpers::{existing, put, refused};
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            must_create_refuses_what_exists,
            [],
            "MustCreate creates once and then names what is there"
        ),
        behaviour!(
            a_stale_version_conflicts_and_a_gone_object_is_not_found,
            [],
            "changed and gone are told apart, and the conflict carries the current numbers"
        ),
        behaviour!(
            an_unconditional_put_always_writes,
            [],
            "the last writer wins where it asked for that"
        ),
        behaviour!(
            delete_if_tells_deleted_changed_and_gone_apart,
            [],
            "a conditional delete is true, a conflict, or false"
        ),
        behaviour!(
            every_expectation_is_judged_on_puts,
            [],
            "absent, exists, version, revision and token, each on an absent and a present object"
        ),
        behaviour!(
            every_expectation_is_judged_on_deletes,
            [],
            "the same for deletes; a refused delete deletes nothing"
        ),
        behaviour!(
            every_expectation_is_judged_on_checks,
            [],
            "the same for a commit of one check; it draws no revision"
        ),
        behaviour!(
            a_revision_is_not_fooled_by_recreation,
            [],
            "delete and re-create fools a version, never a revision or a token"
        ),
        behaviour!(
            a_new_token_is_greater_and_keeps_the_creation,
            [],
            "a hand-over draws a greater token, an ordinary put keeps the token"
        ),
        behaviour!(
            tokens_never_repeat,
            [],
            "over creations, hand-overs and deletes, tokens only rise"
        ),
    ]
}

async fn must_create_refuses_what_exists(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let create = |value: &'static str| {
        ctx.store().put_if(Put::new(key.clone(), value), WriteCondition::MustCreate)
    };
    let first = create("a").await?;
    let second = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    match refused(create("c").await)? {
        Error::AlreadyExists { key: named, current } => {
            ensure_eq!(named, key);
            let now = Current { version: 2, revision: second.revision, token: first.token };
            ensure_eq!(current, now);
        }
        other => return Err(Failure::new(format!("not AlreadyExists: {other}"))),
    }
    ensure_eq!(existing(ctx.store(), &key).await?.revision, second.revision);
    Ok(())
}

async fn a_stale_version_conflicts_and_a_gone_object_is_not_found(
    ctx: Context,
) -> Result<(), Failure> {
    let key = ctx.key("one");
    let on = |version| {
        let put = Put::new(key.clone(), format!("on {version}"));
        ctx.store().put_if(put, WriteCondition::MatchResourceVersion(version))
    };
    let error = refused(on(1).await)?;
    ensure!(error.is_not_found(), "an update of what never was: {error}");
    let first = put(ctx.store(), Put::new(key.clone(), "a")).await?;
    let second = on(1).await?;
    ensure_eq!(second.version, 2);
    for stale in [1, 3, u64::from(u32::MAX)] {
        match refused(on(stale).await)? {
            Error::Conflict { key: named, expected, current } => {
                ensure_eq!((named, expected), (key.clone(), Expect::Version(stale)));
                let now = Current { version: 2, revision: second.revision, token: first.token };
                ensure_eq!(current, now);
            }
            other => return Err(Failure::new(format!("version {stale}: {other}"))),
        }
    }
    ctx.store().delete(&key).await?;
    let error = refused(on(2).await)?;
    ensure!(error.is_not_found(), "an update of what is gone: {error}");
    ensure_eq!(ctx.store().get(&key).await?, None);
    Ok(())
}

async fn an_unconditional_put_always_writes(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let write = |value: &'static str| {
        ctx.store().put_if(Put::new(key.clone(), value), WriteCondition::Unconditional)
    };
    ensure_eq!(write("a").await?.version, 1);
    ensure_eq!(write("b").await?.version, 2);
    ctx.store().delete(&key).await?;
    ensure_eq!(write("c").await?.version, 1);
    Ok(())
}

async fn delete_if_tells_deleted_changed_and_gone_apart(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    ensure!(!ctx.store().delete_if(&key, 1).await?, "deleted what never was");
    put(ctx.store(), Put::new(key.clone(), "a")).await?;
    let second = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    match refused(ctx.store().delete_if(&key, 1).await)? {
        Error::Conflict { current, .. } => {
            ensure_eq!((current.version, current.revision), (2, second.revision));
        }
        other => return Err(Failure::new(format!("not a conflict: {other}"))),
    }
    ensure_eq!(existing(ctx.store(), &key).await?.version, 2, "after a refused delete");
    ensure!(ctx.store().delete_if(&key, 2).await?);
    ensure!(!ctx.store().delete_if(&key, 2).await?, "deleted twice");
    Ok(())
}

/// Every condition with the code of its refusal on an absent and on a present object.
fn expectations(now: Current) -> Vec<(Expect, Option<&'static str>, Option<&'static str>)> {
    let (missing, changed, lost) = (Some("not_found"), Some("conflict"), Some("lost"));
    vec![
        (Expect::Any, None, None),
        (Expect::Absent, None, Some("already_exists")),
        (Expect::Exists, missing, None),
        (Expect::Version(now.version), missing, None),
        (Expect::Version(now.version + 1), missing, changed),
        (Expect::Revision(now.revision), missing, None),
        (Expect::Revision(now.revision - 1), missing, changed),
        (Expect::Token(now.token), lost, None),
        (Expect::Token(now.revision), lost, lost),
    ]
}

/// An object at version 2, so that its version, revision and token all differ.
async fn second_version(ctx: &Context, key: &Key) -> Result<Current, Failure> {
    ctx.store().delete(key).await?;
    put(ctx.store(), Put::new(key.clone(), "first")).await?;
    put(ctx.store(), Put::new(key.clone(), "second")).await?;
    Ok(existing(ctx.store(), key).await?.current())
}

async fn judge(
    ctx: &Context,
    commit: impl Fn(Key, Expect) -> Commit,
    applied: impl Fn(Option<&str>, bool) -> bool,
) -> Result<(), Failure> {
    let key = ctx.key("one");
    let count = expectations(Current { version: 1, revision: 1, token: 1 }).len();
    for (case, present) in (0..count).flat_map(|case| [(case, false), (case, true)]) {
        let now = second_version(ctx, &key).await?;
        if !present {
            ctx.store().delete(&key).await?;
        }
        let (expect, on_absent, on_present) = expectations(now)[case];
        let refusal = if present { on_present } else { on_absent };
        let what = format!("{expect:?} on an object that is there: {present}");
        let done = ctx.store().commit(commit(key.clone(), expect)).await;
        let value = ctx.store().get(&key).await?.map(|object| crate::helpers::text(&object));
        match (done, refusal) {
            (Ok(_), None) => {
                let as_it_should = applied(value.as_deref(), present);
                ensure!(as_it_should, "{what}: applied, and now it is {value:?}");
            }
            (Err(error), Some(code)) => {
                ensure_eq!(error.code(), code, "{what}");
                let before = present.then_some("second");
                ensure_eq!(value.as_deref(), before, "{what}: after the refusal");
                match error {
                    Error::Conflict { current, .. } | Error::AlreadyExists { current, .. } => {
                        ensure_eq!(current, now, "{what}");
                    }
                    Error::Lost { current, .. } => {
                        ensure_eq!(current, present.then_some(now.token), "{what}");
                    }
                    _ => {}
                }
            }
            (done, _) => return Err(Failure::new(format!("{what}: {done:?}"))),
        }
    }
    Ok(())
}

async fn every_expectation_is_judged_on_puts(ctx: Context) -> Result<(), Failure> {
    let commit = |key, expect| Put::new(key, "third").expect(expect).into();
    judge(&ctx, commit, |value, _| value == Some("third")).await
}

async fn every_expectation_is_judged_on_deletes(ctx: Context) -> Result<(), Failure> {
    judge(&ctx, |key, expect| Commit::new().delete(key, expect), |value, _| value.is_none()).await
}

async fn every_expectation_is_judged_on_checks(ctx: Context) -> Result<(), Failure> {
    let check = |key, expect| Commit::new().check(key, expect);
    judge(&ctx, check, |value, present| value.is_some() == present).await?;
    let done = ctx.store().commit(check(ctx.key("none"), Expect::Absent)).await?;
    ensure_eq!((done.revision, done.writes.len()), (None, 0), "a commit of one check");
    Ok(())
}

async fn a_revision_is_not_fooled_by_recreation(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let first = put(ctx.store(), Put::new(key.clone(), "a")).await?;
    ctx.store().delete(&key).await?;
    put(ctx.store(), Put::new(key.clone(), "a")).await?;
    for (expect, code) in
        [(Expect::Revision(first.revision), "conflict"), (Expect::Token(first.token), "lost")]
    {
        let late = ctx.store().commit(Put::new(key.clone(), "late").expect(expect)).await;
        ensure_eq!(refused(late)?.code(), code, "{expect:?}");
    }
    // As documented: a version alone cannot tell the two lives apart.
    let fooled = Put::new(key.clone(), "fooled").expect(Expect::Version(1));
    ensure_eq!(put(ctx.store(), fooled).await?.version, 2);
    Ok(())
}

async fn a_new_token_is_greater_and_keeps_the_creation(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let first = put(ctx.store(), Put::new(key.clone(), "a")).await?;
    let changed = put(ctx.store(), Put::new(key.clone(), "b")).await?;
    ensure_eq!(changed.token, first.token);
    // The same content again: drawing a token is a change by itself.
    let done = ctx.store().commit(Put::new(key.clone(), "b").new_token()).await?;
    let handed = done.first_put().ok_or("a put has no result")?;
    ensure!(matches!(done.writes[..], [Written::Put(_)]), "a hand-over counted as unchanged");
    ensure_eq!((handed.version, handed.token), (3, handed.revision));
    ensure!(handed.token > first.token);
    ensure_eq!(handed.created_revision, first.revision);
    let after = put(ctx.store(), Put::new(key.clone(), "c")).await?;
    ensure_eq!(after.token, handed.token, "the token after an ordinary put");
    ensure_eq!(existing(ctx.store(), &key).await?.token, handed.token);
    Ok(())
}

async fn tokens_never_repeat(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let mut highest = 0;
    for round in 0..12 {
        let mut write = Put::new(key.clone(), round.to_string());
        write.new_token = round % 3 != 0;
        if round % 3 == 0 {
            ctx.store().delete(&key).await?;
        }
        let token = put(ctx.store(), write).await?.token;
        ensure!(token > highest, "round {round}: token {token} after {highest}");
        highest = token;
    }
    Ok(())
}
