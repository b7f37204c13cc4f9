//! Commits over several objects: all or nothing, at one instant.

use tenure::Error;
use tenure::store::{Commit, Expect, Put, WatchRequest, Written};

use crate::context::Context;
use crate::helpers::{existing, next, number, put, refused, text};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_commit_applies_all_or_nothing,
            [multi],
            "one failing condition and nothing of the commit is there"
        ),
        behaviour!(
            a_commit_has_one_revision_and_one_batch,
            [multi],
            "watchers get all its events at once, in the order of its writes"
        ),
        behaviour!(
            checks_concern_objects_that_are_not_written,
            [multi],
            "absent, exists, version, revision and token of bystanders"
        ),
        behaviour!(
            the_first_failing_condition_is_told,
            [multi],
            "checks before writes, each in order"
        ),
        behaviour!(
            an_object_is_written_once_in_a_commit,
            [multi],
            "two writes of one object are refused"
        ),
        behaviour!(
            a_commit_of_checks_only_changes_nothing,
            [multi],
            "it answers whether all of them hold, and draws no revision"
        ),
        behaviour!(
            an_object_may_be_checked_and_written,
            [multi],
            "checks see the state before the commit"
        ),
        behaviour!(
            a_provider_in_use_is_never_deleted,
            [multi],
            "attach and delete race; never do both succeed"
        ),
        behaviour!(
            write_skew_is_impossible,
            [multi],
            "two commits that check each other's object never both apply"
        ),
        behaviour!(
            transfers_keep_the_sum,
            [multi],
            "concurrent commits over two accounts neither make nor lose money"
        ),
    ]
}

async fn a_commit_applies_all_or_nothing(ctx: Context) -> Result<(), Failure> {
    let (a, b, c) = (ctx.key("a"), ctx.key("b"), ctx.other_key("c"));
    put(ctx.store(), Put::new(b.clone(), "old")).await?;
    let bad = Commit::new()
        .put(Put::new(a.clone(), "new"))
        .delete(b.clone(), Expect::Any)
        .put(Put::new(c.clone(), "new").expect(Expect::Exists));
    ensure_eq!(refused(ctx.store().commit(bad).await)?.code(), "not_found");
    ensure_eq!(ctx.store().get(&a).await?, None);
    ensure_eq!(text(&existing(ctx.store(), &b).await?), "old");
    ensure_eq!(ctx.store().get(&c).await?, None);
    let good = Commit::new()
        .put(Put::new(a.clone(), "new"))
        .delete(b.clone(), Expect::Version(1))
        .put(Put::new(c.clone(), "new").expect(Expect::Absent));
    let done = ctx.store().commit(good).await?;
    let revision = done.revision.ok_or("a commit has no revision")?;
    ensure_eq!(done.writes[1], Written::Deleted { revision });
    ensure_eq!(existing(ctx.store(), &a).await?.revision, revision);
    ensure_eq!(ctx.store().get(&b).await?, None);
    ensure_eq!(existing(ctx.store(), &c).await?.revision, revision);
    Ok(())
}

async fn a_commit_has_one_revision_and_one_batch(ctx: Context) -> Result<(), Failure> {
    let keys: Vec<_> = ["c", "a", "d", "b"].iter().map(|id| ctx.key(id)).collect();
    put(ctx.store(), Put::new(keys[2].clone(), "old")).await?;
    let mut watch = ctx.store().watch(&WatchRequest::kind(&keys[0].kind)).await?;
    for round in 0..5 {
        let mut commit = Commit::new();
        for (n, key) in keys.iter().enumerate() {
            commit = match (n + round) % 4 {
                2 => commit.delete(key.clone(), Expect::Any),
                _ => commit.put(Put::new(key.clone(), format!("{round}"))),
            };
        }
        let done = ctx.store().commit(commit).await?;
        let batch = next(&mut watch).await?;
        ensure_eq!(Some(batch.revision), done.revision, "the batch of round {round}");
        let changed: Vec<_> = keys
            .iter()
            .zip(&done.writes)
            .filter(|(_, written)| matches!(written, Written::Put(_) | Written::Deleted { .. }))
            .map(|(key, _)| key)
            .collect();
        let told: Vec<_> = batch.events.iter().map(tenure::store::Event::key).collect();
        ensure_eq!(told, changed, "events of round {round}");
    }
    Ok(())
}

async fn checks_concern_objects_that_are_not_written(ctx: Context) -> Result<(), Failure> {
    let (watched, target, absent) = (ctx.key("w"), ctx.other_key("t"), ctx.key("none"));
    put(ctx.store(), Put::new(watched.clone(), "1")).await?;
    put(ctx.store(), Put::new(watched.clone(), "2")).await?;
    let now = existing(ctx.store(), &watched).await?;
    let cases = [
        (&absent, Expect::Absent, None),
        (&absent, Expect::Any, None),
        (&absent, Expect::Exists, Some("not_found")),
        (&absent, Expect::Version(1), Some("not_found")),
        (&absent, Expect::Token(1), Some("lost")),
        (&watched, Expect::Absent, Some("already_exists")),
        (&watched, Expect::Exists, None),
        (&watched, Expect::Version(2), None),
        (&watched, Expect::Version(1), Some("conflict")),
        (&watched, Expect::Revision(now.revision), None),
        (&watched, Expect::Revision(now.token), Some("conflict")),
        (&watched, Expect::Token(now.token), None),
        (&watched, Expect::Token(now.revision), Some("lost")),
    ];
    for (n, (key, expect, refusal)) in cases.into_iter().enumerate() {
        let before = ctx.store().get(&target).await?.map(|object| object.revision);
        let commit =
            Commit::new().check(key.clone(), expect).put(Put::new(target.clone(), n.to_string()));
        let done = ctx.store().commit(commit).await;
        let after = ctx.store().get(&target).await?.map(|object| object.revision);
        match (done, refusal) {
            (Ok(done), None) => ensure_eq!(done.revision, after, "{expect:?}"),
            (Err(error), Some(code)) => {
                ensure_eq!(error.code(), code, "{expect:?}");
                ensure_eq!(after, before, "{expect:?}: after the refusal");
            }
            (done, _) => return Err(Failure::new(format!("{expect:?}: {done:?}"))),
        }
    }
    ensure_eq!(existing(ctx.store(), &watched).await?, now, "the object that was only checked");
    Ok(())
}

async fn the_first_failing_condition_is_told(ctx: Context) -> Result<(), Failure> {
    let (there, absent, other) = (ctx.key("there"), ctx.key("absent"), ctx.other_key("x"));
    put(ctx.store(), Put::new(there.clone(), "v")).await?;
    let write = Put::new(there.clone(), "w").expect(Expect::Absent);
    let code = async |commit: Commit| -> Result<&'static str, Failure> {
        Ok(refused(ctx.store().commit(commit).await)?.code())
    };
    let missing = Commit::new().check(absent.clone(), Expect::Exists);
    let stale = Commit::new().check(there.clone(), Expect::Version(7));
    let both = missing.clone().check(there.clone(), Expect::Version(7)).put(write.clone());
    ensure_eq!(code(both).await?, "not_found");
    let turned = stale.check(absent.clone(), Expect::Exists).put(write.clone());
    ensure_eq!(code(turned).await?, "conflict");
    // A check that fails is told before a write that comes earlier in the code.
    let late_check = Commit::new().put(write.clone()).check(absent.clone(), Expect::Token(5));
    ensure_eq!(code(late_check).await?, "lost");
    let writes = Commit::new()
        .put(Put::new(other.clone(), "v"))
        .delete(absent.clone(), Expect::Exists)
        .put(write.clone());
    ensure_eq!(code(writes).await?, "not_found");
    let writes = Commit::new().put(write).delete(absent.clone(), Expect::Exists);
    ensure_eq!(code(writes).await?, "already_exists");
    ensure_eq!(ctx.store().get(&other).await?, None);
    Ok(())
}

async fn an_object_is_written_once_in_a_commit(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let twice = [
        Commit::new().put(Put::new(key.clone(), "a")).put(Put::new(key.clone(), "b")),
        Commit::new().put(Put::new(key.clone(), "a")).delete(key.clone(), Expect::Any),
    ];
    for commit in twice {
        ensure_eq!(refused(ctx.store().commit(commit).await)?.code(), "invalid");
        ensure_eq!(ctx.store().get(&key).await?, None);
    }
    Ok(())
}

async fn a_commit_of_checks_only_changes_nothing(ctx: Context) -> Result<(), Failure> {
    let (a, b) = (ctx.key("a"), ctx.other_key("b"));
    let object = put(ctx.store(), Put::new(a.clone(), "v")).await?;
    let holds = Commit::new()
        .check(a.clone(), Expect::Token(object.token))
        .check(b.clone(), Expect::Absent);
    let done = ctx.store().commit(holds).await?;
    ensure_eq!((done.revision, done.writes.len()), (None, 0));
    let fails = Commit::new().check(a.clone(), Expect::Exists).check(b.clone(), Expect::Exists);
    ensure_eq!(refused(ctx.store().commit(fails).await)?.code(), "not_found");
    ensure_eq!(existing(ctx.store(), &a).await?.revision, object.revision);
    Ok(())
}

async fn an_object_may_be_checked_and_written(ctx: Context) -> Result<(), Failure> {
    let key = ctx.key("one");
    let create = Commit::new().put(Put::new(key.clone(), "a")).check(key.clone(), Expect::Absent);
    ctx.store().commit(create).await?;
    let change = Commit::new()
        .check(key.clone(), Expect::Exists)
        .check(key.clone(), Expect::Version(1))
        .put(Put::new(key.clone(), "b").expect(Expect::Version(1)));
    ctx.store().commit(change).await?;
    ensure_eq!(existing(ctx.store(), &key).await?.version, 2);
    Ok(())
}

async fn a_provider_in_use_is_never_deleted(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    let (mut attached, mut deleted) = (0, 0);
    for round in 0..40 {
        let provider = ctx.key(&format!("provider-{round}"));
        let sandbox = ctx.other_key(&format!("sandbox-{round}"));
        let setup = Commit::new()
            .put(Put::new(provider.clone(), "gpu"))
            .put(Put::new(sandbox.clone(), "uses nothing"));
        ctx.store().commit(setup).await?;
        let attach = Commit::new()
            .check(provider.clone(), Expect::Exists)
            .put(Put::new(sandbox.clone(), "uses gpu").expect(Expect::Version(1)));
        // Whoever deletes has read that no sandbox uses it, and says so.
        let delete = Commit::new()
            .check(sandbox.clone(), Expect::Version(1))
            .delete(provider.clone(), Expect::Version(1));
        let race = [attach, delete].into_iter().enumerate().map(|(n, commit)| {
            let store = handles[(n + round) % 2].clone();
            async move { won(store.commit(commit).await) }
        });
        let outcome = all_at_once(race).await?;
        ensure!(outcome[0] != outcome[1], "round {round}: attached and deleted are {outcome:?}");
        let uses = text(&existing(ctx.store(), &sandbox).await?) == "uses gpu";
        let there = ctx.store().get(&provider).await?.is_some();
        ensure_eq!((uses, there), (outcome[0], outcome[0]), "round {round}");
        attached += u32::from(outcome[0]);
        deleted += u32::from(outcome[1]);
    }
    tracing::debug!(attached, deleted, "attach against delete");
    Ok(())
}

fn won(result: tenure::Result<tenure::store::Committed>) -> Result<bool, Failure> {
    match result {
        Ok(_) => Ok(true),
        Err(Error::Conflict { .. } | Error::NotFound { .. } | Error::AlreadyExists { .. }) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

async fn write_skew_is_impossible(ctx: Context) -> Result<(), Failure> {
    let handles = ctx.handles(2).await?;
    for round in 0..40 {
        // Two doctors on call: each may leave if the other stays.
        let doctors = [ctx.key(&format!("{round}-a")), ctx.key(&format!("{round}-b"))];
        let setup = doctors.iter().fold(Commit::new(), |c, key| c.put(Put::new(key.clone(), "on")));
        ctx.store().commit(setup).await?;
        let leave = |me: usize| {
            let store = handles[me].clone();
            let commit = Commit::new()
                .check(doctors[1 - me].clone(), Expect::Version(1))
                .put(Put::new(doctors[me].clone(), "off").expect(Expect::Version(1)));
            async move { won(store.commit(commit).await) }
        };
        let outcome = all_at_once([leave(0), leave(1)]).await?;
        ensure!(outcome[0] != outcome[1], "round {round}: who left is {outcome:?}");
    }
    Ok(())
}

async fn transfers_keep_the_sum(ctx: Context) -> Result<(), Failure> {
    const ACCOUNTS: usize = 4;
    let handles = ctx.handles(3).await?;
    for n in 0..ACCOUNTS {
        ctx.put(&ctx.key(&n.to_string()), "1000").await?;
    }
    let transfers = (0..8usize).map(|worker| {
        let (ctx, store) = (ctx.clone(), handles[worker % handles.len()].clone());
        async move {
            let mut done = 0;
            for n in 0..12 {
                let from = ctx.key(&((worker + n) % ACCOUNTS).to_string());
                let to = ctx.key(&((worker + n + 1 + n % 3) % ACCOUNTS).to_string());
                if from == to {
                    continue;
                }
                loop {
                    let a = existing(&store, &from).await?;
                    let b = existing(&store, &to).await?;
                    let commit = Commit::new()
                        .put(
                            a.to_put()
                                .expect(Expect::Revision(a.revision))
                                .pay(number(&a).saturating_sub(1)),
                        )
                        .put(b.to_put().expect(Expect::Revision(b.revision)).pay(number(&b) + 1));
                    if won(store.commit(commit).await)? {
                        done += 1;
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            Ok(done)
        }
    });
    let done: u64 = all_at_once(transfers).await?.into_iter().sum();
    let (mut sum, mut versions) = (0, 0);
    for n in 0..ACCOUNTS {
        let account = existing(ctx.store(), &ctx.key(&n.to_string())).await?;
        sum += number(&account);
        versions += account.version - 1;
    }
    ensure_eq!(sum, 1000 * ACCOUNTS as u64, "money in all accounts");
    ensure_eq!(versions, 2 * done, "changes of accounts after {done} transfers");
    Ok(())
}

trait Pay {
    fn pay(self, amount: u64) -> Self;
}

impl Pay for Put {
    fn pay(mut self, amount: u64) -> Self {
        self.payload = amount.to_string().into();
        self
    }
}
