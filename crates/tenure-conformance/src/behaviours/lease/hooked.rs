//! Hooks: changes that happen together with those of a lease, and reaping.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::lease::{HookContext, Hooks, LeaseInfo, LeaseRef, Namespace, ORPHAN, ReapHook, Scope};
use tenure::store::faulty::{Fault, Operation};
use tenure::store::{Commit, Expect, Put};
use tenure::{Error, Key};

use super::leases::{soon, terms};
use crate::context::Context;
use crate::helpers::{existing, number, text};
use crate::subject::behaviour;
use crate::together::all_at_once;
use crate::user_table::{SharedTable, Then};
use crate::{Behaviour, Failure};

pub(in crate::behaviours) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            a_hook_changes_things_along_with_the_lease,
            [multi, ttl, real_time],
            "on acquisition, renewal, release with a value and release with an error"
        ),
        behaviour!(
            a_hook_that_refuses_prevents_the_acquisition,
            [multi, ttl, real_time],
            "and one that meets a conflict is asked again"
        ),
        behaviour!(
            a_careless_hook_cannot_lose_the_lease,
            [multi, ttl, real_time],
            "one that puts a commit of its own in place of the draft adds to it all the same"
        ),
        behaviour!(
            one_bad_record_does_not_stop_the_reaper,
            [multi, ttl, real_time],
            "the others are reaped, in every namespace, and the error names the one that cannot be read"
        ),
        behaviour!(
            an_unreleased_lease_is_reaped_once,
            [multi, ttl, real_time],
            "by several coordinators at once; one that lives or was released is not reaped"
        ),
    ]
}

/// Behaviours that need a table of the user's own.
pub(in crate::behaviours) fn with_sql() -> Vec<Behaviour> {
    vec![behaviour!(
        a_hook_runs_sql_along_with_the_lease,
        [user_sql, multi, ttl, real_time],
        "on acquisition, renewal, release and reaping; a veto prevents the change of the lease"
    )]
}

/// Counts everything that happens in a table of the user's, or refuses to.
struct InSql {
    table: SharedTable,
    row: String,
    then: Then,
}

impl InSql {
    fn count(&self, draft: &mut HookContext<'_>) -> tenure::Result<()> {
        let sql = self.table.count(&self.row, self.then.clone());
        draft.commit = std::mem::take(&mut draft.commit).attach(sql);
        Ok(())
    }
}

#[async_trait]
impl Hooks for InSql {
    async fn will_insert(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.count(draft)
    }

    async fn will_heartbeat(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.count(draft)
    }

    async fn will_release_ok(
        &self,
        _: LeaseRef<'_>,
        _: &[u8],
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.count(draft)
    }

    fn hears_heartbeats(&self) -> bool {
        true
    }
}

#[async_trait]
impl ReapHook for InSql {
    async fn will_reap(&self, _: &LeaseInfo, draft: &mut HookContext<'_>) -> tenure::Result<()> {
        self.count(draft)
    }
}

async fn a_hook_runs_sql_along_with_the_lease(ctx: Context) -> Result<(), Failure> {
    let (table, row) = (ctx.table()?, ctx.kind("hooked"));
    let in_sql = |then| InSql { table: table.clone(), row: row.clone(), then };
    let life = ctx.ttl_of(Duration::from_secs(30));
    let (coordinator, scope) = (ctx.coordinator("c").await?, ctx.scope("sql")?);
    let veto = Arc::new(in_sql(Then::Veto(Error::invalid("hook", "not today"))));
    let refused = coordinator.acquire(&scope, &terms(&ctx).ttl(life).hooks(veto)).await;
    ensure!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    ensure!(coordinator.holder(&scope).await?.is_none(), "held though its hook refused");
    ensure_eq!(table.read(&row).await?, 0, "counted though refused");

    let hooks = Arc::new(in_sql(Then::Apply));
    let lease = coordinator.acquire(&scope, &terms(&ctx).ttl(life).hooks(hooks)).await?;
    ensure_eq!(table.read(&row).await?, 1, "with the acquisition");
    lease.renew().await?;
    ensure_eq!(table.read(&row).await?, 2, "with the renewal");
    lease.release_ok(b"").await?;
    ensure_eq!(table.read(&row).await?, 3, "with the release");

    let reapable = terms(&ctx).reapable();
    let (dying, plan) = ctx.faulty("dying").await?;
    let lease = dying.acquire(&scope, &reapable).await?;
    plan.next(Operation::Touch, Fault::CrashBefore);
    soon("the loss", lease.lost()).await?;
    ctx.pass(ctx.life() / 5 + ctx.slack()).await;
    let reaped = coordinator.reap(&[scope.namespace()], false, &in_sql(Then::Apply)).await?;
    ensure_eq!((reaped, table.read(&row).await?), (1, 4), "reaped, and counted");
    Ok(())
}

/// Keeps a journal of what happened in one object, and counts in another.
struct Journal {
    journal: Key,
    asked: AtomicUsize,
}

impl Journal {
    async fn note(&self, draft: &mut HookContext<'_>, line: &str) -> tenure::Result<()> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let before = draft.store.get(&self.journal).await?;
        let (expect, old) = match &before {
            Some(object) => (Expect::Revision(object.revision), text(object)),
            None => (Expect::Absent, String::new()),
        };
        let put = Put::new(self.journal.clone(), format!("{old}{line};")).expect(expect);
        draft.commit = std::mem::take(&mut draft.commit).put(put);
        Ok(())
    }
}

#[async_trait]
impl Hooks for Journal {
    async fn will_insert(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.note(draft, "insert").await
    }

    async fn will_heartbeat(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.note(draft, "beat").await
    }

    async fn will_release_ok(
        &self,
        _: LeaseRef<'_>,
        value: &[u8],
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.note(draft, &format!("ok {}", String::from_utf8_lossy(value))).await
    }

    async fn will_release_fail(
        &self,
        _: LeaseRef<'_>,
        error: &str,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        self.note(draft, &format!("fail {error}")).await
    }

    fn hears_heartbeats(&self) -> bool {
        true
    }
}

async fn a_hook_changes_things_along_with_the_lease(ctx: Context) -> Result<(), Failure> {
    let journal = Arc::new(Journal { journal: ctx.key("journal"), asked: AtomicUsize::new(0) });
    let coordinator = ctx.coordinator("c").await?;
    let terms = terms(&ctx).hooks(journal.clone());
    let scope = ctx.scope("hooked")?;
    let lease = coordinator.acquire(&scope, &terms).await?;
    lease.renew().await?;
    ensure_eq!(text(&existing(ctx.store(), &journal.journal).await?), "insert;beat;");
    ctx.pass(ctx.life() * 2).await;
    ensure_in_time!(lease.is_valid(), "renewed with its hook: {lease:?}");
    lease.release_ok(b"42").await?;
    let written = text(&existing(ctx.store(), &journal.journal).await?);
    ensure!(written.starts_with("insert;beat;beat;") && written.ends_with("ok 42;"), "{written}");
    let lease = coordinator.acquire(&scope, &terms).await?;
    lease.release_fail("out of paper").await?;
    let written = text(&existing(ctx.store(), &journal.journal).await?);
    ensure!(written.ends_with("ok 42;insert;fail out of paper;"), "{written}");
    Ok(())
}

/// Refuses, or conflicts so many times before it adds something that applies.
struct Difficult {
    key: Key,
    refuses: bool,
    conflicts: AtomicUsize,
}

#[async_trait]
impl Hooks for Difficult {
    async fn will_insert(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        if self.refuses {
            return Err(Error::invalid("hook", "not today"));
        }
        let commit = std::mem::take(&mut draft.commit);
        let left = self.conflicts.load(Ordering::Relaxed);
        draft.commit = if left > 0 {
            self.conflicts.store(left - 1, Ordering::Relaxed);
            commit.put(Put::new(self.key.clone(), "never").expect(Expect::Version(999)))
        } else {
            commit.put(Put::new(self.key.clone(), "at last"))
        };
        Ok(())
    }
}

async fn a_hook_that_refuses_prevents_the_acquisition(ctx: Context) -> Result<(), Failure> {
    let (scope, key) = (ctx.scope("difficult")?, ctx.key("target"));
    ctx.put(&key, "before").await?;
    let coordinator = ctx.coordinator("c").await?;
    let hook = |refuses, conflicts| {
        let conflicts = AtomicUsize::new(conflicts);
        Arc::new(Difficult { key: key.clone(), refuses, conflicts })
    };
    let refused = coordinator.acquire(&scope, &terms(&ctx).hooks(hook(true, 0))).await;
    ensure!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    ensure!(coordinator.holder(&scope).await?.is_none(), "held all the same");
    let lease = coordinator.acquire(&scope, &terms(&ctx).hooks(hook(false, 3))).await?;
    ensure_eq!(text(&existing(ctx.store(), &key).await?), "at last");
    Ok(lease.release().await?)
}

/// Writes its own commit over whatever was there.
struct Careless {
    key: Key,
}

#[async_trait]
impl Hooks for Careless {
    async fn will_insert(
        &self,
        _: LeaseRef<'_>,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        draft.commit = Commit::from(Put::new(self.key.clone(), "in"));
        Ok(())
    }

    async fn will_release_ok(
        &self,
        _: LeaseRef<'_>,
        _: &[u8],
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        draft.commit = Commit::from(Put::new(self.key.clone(), "out"));
        Ok(())
    }
}

async fn a_careless_hook_cannot_lose_the_lease(ctx: Context) -> Result<(), Failure> {
    let (scope, key) = (ctx.scope("careless")?, ctx.key("target"));
    let coordinator = ctx.coordinator("c").await?;
    let hook = Arc::new(Careless { key: key.clone() });
    let lease = coordinator.acquire(&scope, &terms(&ctx).hooks(hook)).await?;
    ensure_eq!(text(&existing(ctx.store(), &key).await?), "in");
    let info = coordinator.holder(&scope).await?.ok_or("held by nobody, whatever it believes")?;
    ensure_eq!(info.token, lease.token());
    lease.release_ok(b"").await?;
    ensure_eq!(text(&existing(ctx.store(), &key).await?), "out");
    ensure!(coordinator.holder(&scope).await?.is_none(), "held after its release");
    Ok(())
}

async fn one_bad_record_does_not_stop_the_reaper(ctx: Context) -> Result<(), Failure> {
    let (dying, plan) = ctx.faulty("dying").await?;
    let reaper = ctx.coordinator("reaper").await?;
    let (namespace, later) = (ctx.namespace("lease")?, ctx.namespace("later")?);
    let child = Namespace::new(namespace.parts().chain(["child"]))?;
    let mut lost = Vec::new();
    for (namespace, key) in [(&namespace, "a"), (&namespace, "z"), (&child, "c"), (&later, "l")] {
        let scope = Scope::new(namespace, key)?;
        lost.push(dying.acquire(&scope, &terms(&ctx).reapable()).await?);
    }
    let bad = Key::new(ORPHAN, format!("{}#broken", ctx.scope("m")?));
    ctx.store().commit(Put::new(bad.clone(), "not a record")).await?;
    plan.next(Operation::Touch, Fault::CrashBefore);
    for lease in &lost {
        soon("the loss", lease.lost()).await?;
    }
    ctx.pass(ctx.life() / 5 + ctx.slack()).await;
    let tally = ctx.key("tally");
    match reaper.reap(&[namespace, later], true, &Tally { key: tally.clone() }).await {
        Err(Error::Corrupt { reason, .. }) => {
            ensure!(reason.contains(&bad.to_string()), "it does not say which: {reason}");
        }
        other => return Err(Failure::new(format!("the bad record went unnoticed: {other:?}"))),
    }
    let reaped = number(&existing(ctx.store(), &tally).await?);
    ensure_eq!(reaped, 4, "the others were reaped, also below it and in the next namespace");
    Ok(())
}

/// Counts how often a lease was reaped, in the store.
struct Tally {
    key: Key,
}

#[async_trait]
impl ReapHook for Tally {
    async fn will_reap(
        &self,
        lease: &LeaseInfo,
        draft: &mut HookContext<'_>,
    ) -> tenure::Result<()> {
        let before = draft.store.get(&self.key).await?;
        let (expect, count) = match &before {
            Some(object) => (Expect::Revision(object.revision), number(object)),
            None => (Expect::Absent, 0),
        };
        tokio::task::yield_now().await;
        if lease.id.is_empty() {
            return Err(Error::invalid("lease", "without an id"));
        }
        let put = Put::new(self.key.clone(), (count + 1).to_string()).expect(expect);
        draft.commit = std::mem::take(&mut draft.commit).put(put);
        Ok(())
    }
}

async fn an_unreleased_lease_is_reaped_once(ctx: Context) -> Result<(), Failure> {
    const DEAD: u64 = 6;
    let namespace = ctx.namespace("lease")?;
    let (dying, plan) = ctx.faulty("dying").await?;
    let living = ctx.coordinator("living").await?;
    let terms = terms(&ctx).reapable();
    let kept = living.acquire(&ctx.scope("kept")?, &terms).await?;
    living.acquire(&ctx.scope("released")?, &terms).await?.release().await?;
    let mut lost = Vec::new();
    for n in 0..DEAD {
        lost.push(dying.acquire(&ctx.scope(&format!("dead-{n}"))?, &terms).await?);
    }
    plan.next(Operation::Touch, Fault::CrashBefore);
    for lease in &lost {
        soon("the loss", lease.lost()).await?;
    }
    ctx.pass(ctx.life() / 5 + ctx.slack()).await;
    // Somebody else has one of them meanwhile; the one before it is still reaped.
    let next = living.acquire(&ctx.scope("dead-0")?, &terms.clone().wait(ctx.life() * 4)).await?;

    let tally = ctx.key("tally");
    let mut tasks = Vec::new();
    for n in 0..4 {
        let reaper = ctx.coordinator(&format!("reaper-{n}")).await?;
        let (namespaces, key) = ([namespace.clone()], tally.clone());
        tasks.push(async move { Ok(reaper.reap(&namespaces, true, &Tally { key }).await?) });
    }
    let reaped: usize = all_at_once(tasks).await?.into_iter().sum();
    ensure_eq!(number(&existing(ctx.store(), &tally).await?), DEAD, "hooks that took effect");
    ensure_eq!(reaped as u64, DEAD, "reaped");
    let again = living.reap(&[namespace], true, &Tally { key: tally.clone() }).await?;
    ensure_eq!(again, 0, "reaped again");
    next.release().await?;
    Ok(kept.release().await?)
}
