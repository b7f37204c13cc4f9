//! What a store must look like after its writers were killed.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::store::{Durability, Put, Query, Reach, Store, WatchRequest};
use tenure::{Key, Object};

use super::script::{COUNTER, Counter, LEASE_TTL, Spam, state_after};
use crate::Failure;
use crate::context::{Context, PATIENCE};
use crate::helpers::{Replica, put, text, until_key};

/// What is known from the rounds before.
pub(super) struct Ledger {
    pub(super) kind: String,
    /// Steps each worker has done.
    done: BTreeMap<u32, u64>,
    /// All objects at the end of the last round.
    replica: Replica,
    round: u64,
}

impl Ledger {
    pub(super) async fn new(ctx: &Context, kind: &str) -> Result<Self, Failure> {
        let revision = put(ctx.store(), Put::new(Key::new(kind, "round"), "0")).await?.revision;
        let objects = ctx.store().list_all(&Query::new(kind)).await?;
        let replica = Replica::of(objects, revision);
        Ok(Self { kind: kind.to_owned(), done: BTreeMap::new(), replica, round: 0 })
    }

    pub(super) fn done(&self, worker: u32) -> u64 {
        self.done.get(&worker).copied().unwrap_or_default()
    }

    /// Looks at everything, through a handle that was opened after the kill.
    pub(super) async fn verify(
        &mut self,
        ctx: &Context,
        acked: &[(u32, u64)],
    ) -> Result<(), Failure> {
        if ctx.caps().reach == Reach::Network {
            // A server may still be at the last request of a client that is gone.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let store = ctx.open_brief().await?;
        let result = self.look(ctx, &store, acked).await;
        let _ = tokio::time::timeout(PATIENCE, store.close()).await;
        result
    }

    async fn look(
        &mut self,
        ctx: &Context,
        store: &Store,
        acked: &[(u32, u64)],
    ) -> Result<(), Failure> {
        self.round += 1;
        let mark = Key::new(&self.kind, "round");
        let marked = put(store, Put::new(mark.clone(), self.round.to_string())).await?.revision;
        ensure!(
            marked > self.replica.revision,
            "revisions went back from {} to {marked}",
            self.replica.revision
        );
        let objects = store.list_all(&Query::new(&self.kind)).await?;
        let mut counted = 0;
        for (worker, acked) in acked {
            let step = self.settle(ctx, *worker, *acked, &objects)?;
            self.done.insert(*worker, step);
        }
        for (worker, done) in &self.done {
            counted += count_steps(*done);
            // A worker that rested must have been left alone too.
            self.settle(ctx, *worker, *done, &objects)?;
        }
        let counter = find_counter(&self.kind, &objects)?;
        ensure_eq!(counter.total, counted, "increments of the shared counter");
        if ctx.caps().history.is_some() {
            let request = WatchRequest::kind(&self.kind).after(self.replica.revision);
            let mut watch = store.watch(&request).await?;
            for batch in until_key(&mut watch, &mark).await? {
                self.replica.apply(&batch, ctx.caps())?;
            }
            self.replica.matches(&objects)?;
        }
        self.replica = Replica::of(objects, marked);
        Ok(())
    }

    /// How far a worker got: its last acknowledged step or the one after. Anything else is a loss.
    fn settle(
        &self,
        ctx: &Context,
        worker: u32,
        acked: u64,
        objects: &[Object],
    ) -> Result<u64, Failure> {
        let caps = ctx.caps();
        let (multi, ttl) = (caps.multi_object_commits, caps.ttl.is_some());
        let spam = Spam { kind: self.kind.clone(), worker, from: 0 };
        let suffix = format!("-{worker}");
        let mut found = BTreeMap::new();
        for object in objects {
            let Some(name) = object.key.id.strip_suffix(&suffix) else { continue };
            found.insert(name.to_owned(), text(object));
            if object.key == spam.key("lease") {
                ensure_eq!(object.version, 1, "version of an object that was only touched");
                let left = object.expires_in.unwrap_or_default();
                let fair = left <= LEASE_TTL && left > LEASE_TTL / 2;
                ensure!(fair, "a touched object has {left:?} left");
            }
        }
        let counted = find_counter(&self.kind, objects)?.last.get(&worker).copied();
        let earliest = match caps.durability {
            // It says that a crash may lose the most recent past, but never a part of a step.
            Durability::Periodic(_) => self.done(worker),
            _ => acked,
        };
        for step in (earliest..=acked + 1).rev() {
            let (state, count) = state_after(step, multi, ttl);
            let same = state.len() == found.len()
                && state.iter().all(|(name, value)| found.get(*name) == Some(value));
            if same && counted.unwrap_or_default() == count {
                return Ok(step);
            }
        }
        let (expected, _) = state_after(acked, multi, ttl);
        Err(Failure::new(format!(
            "worker {worker} had acknowledged step {acked}, but its objects are neither at that \
             step nor at the next: found {found:?} and counter {counted:?}, expected {expected:?}"
        )))
    }
}

fn find_counter(kind: &str, objects: &[Object]) -> Result<Counter, Failure> {
    let key = Key::new(kind, COUNTER);
    let Some(object) = objects.iter().find(|o| o.key == key) else { return Ok(Counter::default()) };
    Ok(serde_json::from_slice(&object.payload)?)
}

/// How many of the first `done` steps count.
fn count_steps(done: u64) -> u64 {
    // Steps 4, 10, 16, …
    (done + 2) / 6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subject;
    use std::sync::Arc;
    use tenure::store::memory::MemoryStore;

    /// A store on which a worker has done so many steps, all acknowledged.
    async fn after(steps: u64) -> (Context, Ledger, Spam) {
        let store = MemoryStore::new().into_store();
        let subject = Subject::new(Arc::new(move || {
            let store = store.clone();
            Box::pin(async move { Ok(store) })
        }));
        let ctx = Context::open_new(&subject).await.unwrap();
        let ledger = Ledger::new(&ctx, &ctx.kind("crash")).await.unwrap();
        let spam = Spam { kind: ledger.kind.clone(), worker: 0, from: 1 };
        for step in 1..=steps {
            spam.step(ctx.store(), step).await.unwrap();
        }
        (ctx, ledger, spam)
    }

    async fn complaint(ctx: &Context, ledger: &mut Ledger, acked: u64) -> String {
        let verified = ledger.verify(ctx, &[(0, acked)]).await;
        verified.err().map(|failure| failure.to_string()).unwrap_or_default()
    }

    #[tokio::test]
    async fn the_last_step_may_be_acknowledged_or_not() {
        for acked in [20, 21] {
            let (ctx, mut ledger, _) = after(21).await;
            assert_eq!(complaint(&ctx, &mut ledger, acked).await, "");
            assert_eq!(ledger.done(0), 21);
        }
        let (ctx, mut ledger, _) = after(21).await;
        let lost = complaint(&ctx, &mut ledger, 23).await;
        assert!(lost.contains("had acknowledged step 23"), "{lost}");
        let (ctx, mut ledger, _) = after(21).await;
        assert!(!complaint(&ctx, &mut ledger, 18).await.is_empty(), "steps nobody acknowledged");
    }

    #[tokio::test]
    async fn half_a_commit_and_a_lost_count_are_noticed() {
        let (ctx, mut ledger, spam) = after(20).await;
        ctx.put(&spam.key("b"), "13").await.unwrap();
        assert!(complaint(&ctx, &mut ledger, 20).await.contains("neither"));

        let (ctx, mut ledger, _) = after(20).await;
        let counter = Counter { total: 2, last: [(0, 16)].into() };
        let counter = serde_json::to_string(&counter).unwrap();
        ctx.put(&Key::new(&ledger.kind, COUNTER), &counter).await.unwrap();
        let wrong = complaint(&ctx, &mut ledger, 20).await;
        assert!(wrong.contains("shared counter: got 2, expected 3"), "{wrong}");
    }
}
