//! The user's own SQL in a commit: with the commit or not at all, whatever becomes of it.
//!
//! These behaviours need a table of the user's, so they stand beside the suite and not in it; only
//! the first, which no store may fail, is part of it.

use std::collections::BTreeSet;

use tenure::store::{Attachment, Commit, Expect, Fence, Put, WatchRequest};
use tenure::{Error, Key};

use crate::context::Context;
use crate::crash::both;
use crate::helpers::{existing, next, put, refused};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::user_table::Then;
use crate::{Behaviour, Failure};

pub(super) fn everywhere() -> Vec<Behaviour> {
    vec![behaviour!(
        what_is_meant_for_another_store_is_unsupported,
        [],
        "SQL for a store that cannot run it is refused, and the error names those that can"
    )]
}

pub(in crate::behaviours) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            own_sql_applies_with_its_commit,
            [user_sql],
            "both are there, and watchers are told, with the answer"
        ),
        behaviour!(
            own_sql_rides_on_checks_alone,
            [user_sql, multi],
            "a fenced commit guards the user's tables too, without writing an object"
        ),
        behaviour!(
            a_refused_commit_leaves_the_users_table_alone,
            [user_sql],
            "whatever the condition was"
        ),
        behaviour!(
            sql_that_fails_leaves_the_store_alone,
            [user_sql],
            "a veto, a statement that fails or a panic undoes the commit"
        ),
        behaviour!(
            several_attachments_are_one,
            [user_sql],
            "they run in order, and the last one's veto undoes the first"
        ),
        behaviour!(
            a_veto_concerns_only_its_own_commit,
            [user_sql],
            "others that are under way at the same time go on, with SQL and without"
        ),
        behaviour!(
            counting_in_sql_and_in_objects_adds_up,
            [user_sql],
            "over several handles, the row and the object agree with what was acknowledged"
        ),
        behaviour!(
            killed_writers_leave_both_or_neither,
            [user_sql, processes],
            "five rounds of killing a writer whose commits carry SQL"
        ),
    ]
}

async fn what_is_meant_for_another_store_is_unsupported(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let stray = Attachment::new("elsewhere", ());
    let commit = Commit::from(Put::new(key.clone(), "v")).attach(stray);
    let error = refused(ctx.store().commit(commit).await)?;
    ensure!(matches!(error, Error::Unsupported { .. }), "{error}");
    let text = error.to_string();
    ensure!(text.contains(ctx.caps().backend), "{text}");
    ensure!(text.contains("sqlite") && text.contains("postgres"), "{text}");
    ensure_eq!(ctx.store().get(&key).await?, None);
    Ok(())
}

/// A row that nobody else uses.
fn row(ctx: &Context, name: &str) -> String {
    format!("{}-{name}", ctx.kind("row"))
}

fn veto() -> Error {
    Error::invalid("order", "no chairs are left")
}

async fn own_sql_applies_with_its_commit(ctx: Context) -> Result<(), Failure> {
    let (key, row, table) = (ctx.key("one"), row(&ctx, "one"), ctx.table()?);
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    let mut afar = ctx.open().await?.watch(&WatchRequest::kind(&key.kind)).await?;
    for n in 1..=3 {
        let commit = Commit::from(Put::new(key.clone(), n.to_string()));
        let done = ctx.store().commit(commit.attach(table.count(&row, Then::Apply))).await?;
        let result = done.first_put().ok_or("a put was confirmed without its result")?;
        ensure_eq!((result.version, Some(result.revision)), (n, done.revision));
        ensure_eq!(table.read(&row).await?, n, "the row");
        ensure_eq!(existing(ctx.store(), &key).await?.version, n);
        ensure_eq!(next(&mut watch).await?.revision, result.revision, "told");
        ensure_eq!(next(&mut afar).await?.revision, result.revision, "told on another handle");
        // One without SQL in between: revisions go on from one to the other.
        let plain = put(ctx.store(), Put::new(ctx.other_key("plain"), n.to_string())).await?;
        ensure!(plain.revision > result.revision, "{plain:?} after {result:?}");
    }
    // A commit that changes no object still runs its SQL.
    let same = Commit::from(Put::new(key.clone(), "3")).attach(table.count(&row, Then::Apply));
    ensure_eq!(ctx.store().commit(same).await?.revision, None);
    ensure_eq!(table.read(&row).await?, 4);
    if ctx.caps().history.is_some() {
        let last = existing(ctx.store(), &key).await?.revision;
        let request = WatchRequest::kind(&key.kind).after(last - 1);
        ensure_eq!(next(&mut ctx.store().watch(&request).await?).await?.revision, last, "history");
    }
    Ok(())
}

async fn own_sql_rides_on_checks_alone(ctx: Context) -> Result<(), Failure> {
    let (lease, row, table) = (ctx.key("lease"), row(&ctx, "one"), ctx.table()?);
    let old = put(ctx.store(), Put::new(lease.clone(), "mine")).await?.token;
    let fenced = |token| {
        let commit = Commit::new().fenced_by(Fence::new(lease.clone(), token));
        ctx.store().commit(commit.attach(table.count(&row, Then::Apply)))
    };
    ensure_eq!(fenced(old).await?.revision, None);
    ensure_eq!(table.read(&row).await?, 1);
    let new = put(ctx.store(), Put::new(lease.clone(), "theirs").new_token()).await?.token;
    let error = refused(fenced(old).await)?;
    ensure!(matches!(error, Error::Lost { .. }), "{error}");
    ensure_eq!(table.read(&row).await?, 1, "a lost lease wrote");
    fenced(new).await?;
    ensure_eq!(table.read(&row).await?, 2);
    Ok(())
}

async fn a_refused_commit_leaves_the_users_table_alone(ctx: Context) -> Result<(), Failure> {
    let (key, row, table) = (ctx.key("one"), row(&ctx, "one"), ctx.table()?);
    let there = put(ctx.store(), Put::new(key.clone(), "v")).await?;
    for (id, expect) in [
        ("one", Expect::Absent),
        ("one", Expect::Version(there.version + 1)),
        ("one", Expect::Revision(there.revision + 1)),
        ("one", Expect::Token(there.token + 1)),
        ("none", Expect::Exists),
    ] {
        let commit = Commit::from(Put::new(ctx.key(id), "w").expect(expect));
        let done = ctx.store().commit(commit.attach(table.count(&row, Then::Apply))).await;
        refused(done).map_err(|failure| failure.during(expect))?;
        ensure_eq!(table.read(&row).await?, 0, "the row after {expect}");
    }
    ensure_eq!(existing(ctx.store(), &key).await?.revision, there.revision);
    Ok(())
}

async fn sql_that_fails_leaves_the_store_alone(ctx: Context) -> Result<(), Failure> {
    let (key, row, table) = (ctx.key("one"), row(&ctx, "one"), ctx.table()?);
    let before = put(ctx.store(), Put::new(key.clone(), "v")).await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&key.kind)).await?;
    for then in [Then::Veto(veto()), Then::Fail, Then::Panic] {
        let what = format!("{then:?}");
        let commit =
            Commit::new().put(Put::new(key.clone(), "w")).attach(table.count(&row, then.clone()));
        let error = refused(ctx.store().commit(commit).await).map_err(|f| f.during(&what))?;
        ensure!(matches!(error, Error::Invalid { .. }), "{what}: {error}");
        if let Then::Veto(veto) = then {
            ensure_eq!(error.to_string(), veto.to_string(), "the closure's own words");
        }
        ensure_eq!(table.read(&row).await?, 0, "the row after {what}");
        ensure_eq!(existing(ctx.store(), &key).await?.revision, before.revision, "after {what}");
    }
    // The store goes on, and the watcher hears of nothing else.
    let commit = Commit::from(Put::new(key, "x")).attach(table.count(&row, Then::Apply));
    let done = ctx.store().commit(commit).await?;
    ensure_eq!(Some(next(&mut watch).await?.revision), done.revision);
    ensure_eq!(table.read(&row).await?, 1);
    Ok(())
}

async fn several_attachments_are_one(ctx: Context) -> Result<(), Failure> {
    let (one, two, table) = (row(&ctx, "one"), row(&ctx, "two"), ctx.table()?);
    let count = |row: &str, then| table.count(row, then);
    let commit = |id| Commit::from(Put::new(ctx.key(id), "v"));
    let undone = commit("undone")
        .attach(count(&one, Then::Apply))
        .attach(count(&one, Then::Apply))
        .attach(count(&two, Then::Veto(veto())));
    refused(ctx.store().commit(undone).await)?;
    ensure_eq!((table.read(&one).await?, table.read(&two).await?), (0, 0));
    ensure_eq!(ctx.store().get(&ctx.key("undone")).await?, None);
    let done = commit("done")
        .attach(count(&one, Then::Apply))
        .attach(count(&one, Then::Apply))
        .attach(count(&two, Then::Apply));
    ctx.store().commit(done).await?;
    ensure_eq!((table.read(&one).await?, table.read(&two).await?), (2, 1));
    Ok(())
}

/// What one of many commits is to do.
fn sort(n: u64) -> Option<Then> {
    match n % 6 {
        0 => Some(Then::Veto(veto())),
        1 | 4 => Some(Then::Apply),
        2 => Some(Then::Fail),
        _ => None,
    }
}

async fn a_veto_concerns_only_its_own_commit(ctx: Context) -> Result<(), Failure> {
    let (row, table) = (row(&ctx, "one"), ctx.table()?);
    let total = 60;
    let commits = (0..total).map(|n| {
        let (store, table) = (ctx.store().clone(), table.clone());
        let (key, row) = (ctx.key(&n.to_string()), row.clone());
        async move {
            let commit = Commit::from(Put::new(key, "v"));
            let commit = match sort(n) {
                Some(then) => commit.attach(table.count(&row, then)),
                None => commit,
            };
            Ok(store.commit(commit).await)
        }
    });
    let mut revisions = BTreeSet::new();
    for (n, outcome) in (0..total).zip(all_at_once(commits).await?) {
        let there = ctx.store().get(&ctx.key(&n.to_string())).await?;
        match (sort(n), outcome) {
            (None | Some(Then::Apply), Ok(done)) => {
                ensure_eq!(there.map(|object| object.revision), done.revision, "commit {n}");
                ensure!(revisions.insert(done.revision), "commit {n} shares its revision");
            }
            (Some(Then::Veto(_) | Then::Fail), Err(Error::Invalid { .. })) => {
                ensure_eq!(there, None, "commit {n}");
            }
            (_, other) => return Err(format!("commit {n}: {other:?}").into()),
        }
    }
    ensure_eq!(table.read(&row).await?, total / 3, "the row");
    Ok(())
}

async fn counting_in_sql_and_in_objects_adds_up(ctx: Context) -> Result<(), Failure> {
    const EACH: u64 = 20;
    let (key, row, table) = (ctx.key("counter"), row(&ctx, "counter"), ctx.table()?);
    let handles = ctx.handles(3).await?;
    let counting = handles.iter().chain(&handles).enumerate().map(|(who, store)| {
        let (store, table) = (store.clone(), table.clone());
        let (key, row): (Key, _) = (key.clone(), row.clone());
        async move {
            for n in 0..EACH {
                let put = Put::new(key.clone(), format!("{who} {n}"));
                let count = table.count(&row, Then::Apply);
                store.commit(Commit::from(put).attach(count)).await?;
            }
            Ok(())
        }
    });
    let clients = all_at_once(counting).await?.len() as u64;
    ensure_eq!(table.read(&row).await?, clients * EACH, "the row");
    ensure_eq!(existing(ctx.store(), &key).await?.version, clients * EACH, "the object");
    Ok(())
}

async fn killed_writers_leave_both_or_neither(ctx: Context) -> Result<(), Failure> {
    both::kill_rounds(&ctx, 5, 1).await
}
