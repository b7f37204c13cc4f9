//! Gates: loops run only under the lease, and the lease goes only after them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tenure::Key;
use tenure::gate::{Gate, GateState, Patience};
use tenure::lease::{Coordinator, Scope};
use tenure::store::faulty::{Fault, Operation};
use tenure::store::{Commit, Expect, Put};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::leases::{soon, terms};
use super::waiting::in_line;
use crate::context::{Context, PATIENCE};
use crate::helpers::number;
use crate::subject::behaviour;
use crate::{Behaviour, Failure};

pub(super) fn all() -> Vec<Behaviour> {
    vec![
        behaviour!(
            one_gate_of_many_is_open,
            [ttl, real_time],
            "its loops run, the others' do not, and a shutdown passes the role on"
        ),
        behaviour!(
            a_gate_releases_after_its_loops_have_stopped,
            [ttl, real_time],
            "also if one of them is slow to stop"
        ),
        behaviour!(
            a_loop_that_panics_is_restarted_elsewhere,
            [ttl, real_time],
            "the lease is released, and this replica pauses before it competes again"
        ),
        behaviour!(
            a_gate_without_its_store_closes,
            [ttl, real_time],
            "its loops stop before another replica's start"
        ),
        behaviour!(
            a_write_under_a_lost_term_wins_or_conflicts,
            [multi, ttl, real_time],
            "fenced by its term it never lands late"
        ),
        behaviour!(
            a_gate_that_is_asked_hands_over,
            [multi, ttl, real_time, told],
            "to whom it is told, once its loops have stopped, and stands by again"
        ),
        behaviour!(
            a_standby_says_who_holds,
            [ttl, real_time, told],
            "its status names the holder, and the next one, without anybody asking the store"
        ),
        behaviour!(
            an_ungated_gate_needs_no_lease,
            [ttl, real_time],
            "it runs its loops and leaves the store alone"
        ),
    ]
}

/// A replica: how many loops of all replicas are running at once is counted in `inside`.
struct Replica {
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<tenure::Result<()>>,
    status: tokio::sync::watch::Receiver<tenure::gate::GateStatus>,
}

fn patience() -> Patience {
    Patience {
        stop: Duration::from_secs(10),
        restart_first: Duration::from_millis(400),
        restart_max: Duration::from_secs(2),
    }
}

fn replica(ctx: &Context, c: &Coordinator, scope: &Scope, inside: &Arc<AtomicI64>) -> Replica {
    let inside = Arc::clone(inside);
    let gate = Gate::new(c, scope.clone()).terms(terms(ctx)).patience(patience());
    start(gate.work("loop", move |term| {
        let inside = Arc::clone(&inside);
        async move {
            let _one = Inside::enter(&inside);
            while term.sleep(Duration::from_millis(5)).await {}
        }
    }))
}

fn start(gate: Gate) -> Replica {
    let (stop, stopped) = oneshot::channel::<()>();
    let status = gate.status();
    let run = tokio::spawn(gate.run(async move {
        let _ = stopped.await;
    }));
    Replica { stop: Some(stop), run, status }
}

impl Replica {
    async fn until(&mut self, state: GateState) -> Result<(), Failure> {
        let reached = self.status.wait_for(|status| status.state == state);
        soon(&format!("{state}"), reached).await?.map_err(|_| "the gate is gone")?;
        Ok(())
    }

    async fn stop(mut self) -> Result<(), Failure> {
        drop(self.stop.take());
        Ok(soon("the shutdown", self.run).await???)
    }
}

/// Counts itself for as long as it lives.
struct Inside(Arc<AtomicI64>);

impl Inside {
    fn enter(count: &Arc<AtomicI64>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn one_gate_of_many_is_open(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("gate")?, Arc::default());
    let mut replicas = Vec::new();
    for n in 0..3 {
        let coordinator = ctx.coordinator(&format!("r{n}")).await?;
        replicas.push(replica(&ctx, &coordinator, &scope, &inside));
    }
    for left in (1..=3).rev() {
        let open = soon("an open gate", async {
            loop {
                let open = replicas.iter().position(|r| r.status.borrow().is_holding());
                if let Some(open) = open.filter(|_| inside.load(Ordering::SeqCst) == 1) {
                    return open;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await?;
        ctx.pass(Duration::from_millis(100)).await;
        ensure_eq!(inside.load(Ordering::SeqCst), 1, "loops that run with {left} replicas");
        replicas.swap_remove(open).stop().await?;
    }
    ensure_eq!(inside.load(Ordering::SeqCst), 0, "loops left");
    Ok(())
}

async fn a_gate_releases_after_its_loops_have_stopped(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("slow")?, Arc::<AtomicI64>::default());
    let slow = ctx.coordinator("slow").await?;
    let counted = Arc::clone(&inside);
    let gate = Gate::new(&slow, scope.clone()).terms(terms(&ctx)).patience(patience());
    let mut first = start(gate.work("slow", move |term| {
        let inside = Arc::clone(&counted);
        async move {
            let _one = Inside::enter(&inside);
            term.over().await;
            // A step that cannot be interrupted, longer than a life of the lease.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
    }));
    first.until(GateState::Holding).await?;
    let other = ctx.coordinator("other").await?;
    let next = {
        let (scope, inside) = (scope.clone(), Arc::clone(&inside));
        let terms = terms(&ctx).wait_forever();
        tokio::spawn(async move {
            let lease = other.acquire(&scope, &terms).await?;
            let beside = inside.load(Ordering::SeqCst);
            lease.release().await?;
            Ok::<_, tenure::Error>(beside)
        })
    };
    first.stop().await?;
    ensure_eq!(soon("the next holder", next).await???, 0, "loops beside the next holder");
    Ok(())
}

async fn a_loop_that_panics_is_restarted_elsewhere(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("panic")?, Arc::default());
    let fragile = ctx.coordinator("fragile").await?;
    let terms_begun = Arc::new(AtomicU64::new(0));
    let begun = Arc::clone(&terms_begun);
    let gate = Gate::new(&fragile, scope.clone()).terms(terms(&ctx)).patience(patience());
    let mut first = start(gate.work("fragile", move |term| {
        let nth = begun.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if nth == 0 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            term.over().await;
        }
    }));
    first.until(GateState::Pausing).await?;
    // While it pauses, another one takes over.
    let sturdy = ctx.coordinator("sturdy").await?;
    let mut second = replica(&ctx, &sturdy, &scope, &inside);
    second.until(GateState::Holding).await?;
    second.stop().await?;
    soon("the second term", async {
        while terms_begun.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    first.stop().await
}

async fn a_gate_without_its_store_closes(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("cut")?, Arc::<AtomicI64>::default());
    let (cut, plan) = ctx.faulty("cut").await?;
    let mut first = replica(&ctx, &cut, &scope, &inside);
    first.until(GateState::Holding).await?;
    let sound = ctx.coordinator("sound").await?;
    let beside = Arc::new(AtomicI64::new(-1));
    let (seen, others) = (Arc::clone(&beside), Arc::clone(&inside));
    let gate = Gate::new(&sound, scope.clone()).terms(terms(&ctx)).patience(patience());
    let mut second = start(gate.work("next", move |term| {
        seen.store(others.load(Ordering::SeqCst), Ordering::SeqCst);
        async move { term.over().await }
    }));
    plan.next(Operation::Touch, Fault::CrashBefore);
    second.until(GateState::Holding).await?;
    soon("the first loop", async {
        while beside.load(Ordering::SeqCst) < 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    ensure_eq!(beside.load(Ordering::SeqCst), 0, "loops of the old holder beside the new one");
    // Its loops are gone; the gate itself may not have had its turn since.
    let told = first.status.wait_for(|status| status.last_loss.is_some());
    let told = soon("the old holder's loss", told).await?.map(drop);
    told.map_err(|_| "the old holder's gate is gone")?;
    second.stop().await?;
    first.stop().await
}

async fn a_write_under_a_lost_term_wins_or_conflicts(ctx: Context) -> Result<(), Failure> {
    let (scope, target) = (ctx.scope("late")?, ctx.key("target"));
    let coordinator = ctx.coordinator("writer").await?;
    let (store, key) = (coordinator.store().clone(), target.clone());
    let refused = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refused);
    let gate = Gate::new(&coordinator, scope.clone()).terms(terms(&ctx)).patience(patience());
    let mut first = start(gate.work("write", move |term| {
        let (store, key, refused) = (store.clone(), key.clone(), Arc::clone(&counted));
        async move {
            while !term.is_over() {
                let put = Put::new(key.clone(), term.token().unwrap_or(0).to_string());
                if store.commit(term.fence(put)).await.is_err() {
                    refused.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                term.sleep(Duration::from_millis(1)).await;
            }
        }
    }));
    first.until(GateState::Holding).await?;
    ctx.pass(Duration::from_millis(50)).await;
    // The role is taken away under its feet: from this commit on nothing of it may land.
    let key = tenure::lease::lease_key(&scope);
    let mark = Key::new(target.kind.clone(), "mark");
    let commit = Commit::new().delete(key, Expect::Exists).put(Put::new(mark.clone(), "taken"));
    let taken = ctx.store().commit(commit).await?.revision.ok_or("nothing was taken")?;
    first.until(GateState::Pausing).await?;
    let last = ctx.store().get(&target).await?;
    let last = last.ok_or(Failure::late("nothing was written before the role was taken away"))?;
    ensure!(last.revision < taken, "written at {} after {taken}", last.revision);
    ensure!(number(&last) > 0, "written under a token");
    let refused = refused.load(Ordering::SeqCst);
    ensure_in_time!(refused > 0, "the loop was told of its loss before it wrote again");
    ensure_eq!(refused, 1, "writes that were refused");
    first.stop().await
}

async fn a_gate_that_is_asked_hands_over(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("asked")?, Arc::<AtomicI64>::default());
    let mut replicas = Vec::new();
    for name in ["a", "b", "c"] {
        let mut next = replica(&ctx, &ctx.coordinator(name).await?, &scope, &inside);
        // In line one after the other, so that the last one would not be next by itself.
        if replicas.is_empty() {
            next.until(GateState::Holding).await?;
        } else {
            soon("a place in line", until_so_many_wait(&ctx, &scope, replicas.len())).await??;
        }
        replicas.push(next);
    }
    let operator = ctx.coordinator("operator").await?;
    for (from, to) in [(0, 2), (2, 1)] {
        let name = ["a", "b", "c"][to];
        let now = operator.ask_to_hand_over(&scope, None, Some(name), PATIENCE).await?;
        ensure_eq!(now.holder.name(), name, "the holder");
        replicas[to].until(GateState::Holding).await?;
        replicas[from].until(GateState::Standby).await?;
        let lost = replicas[from].status.borrow().last_loss.clone();
        ensure_eq!(lost, None, "nothing was lost by handing over");
        ctx.pass(Duration::from_millis(50)).await;
        ensure_eq!(inside.load(Ordering::SeqCst), 1, "loops that run");
    }
    for replica in replicas {
        replica.stop().await?;
    }
    Ok(())
}

async fn until_so_many_wait(ctx: &Context, scope: &Scope, many: usize) -> Result<(), Failure> {
    while in_line(ctx, scope).await?.len() < many {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn a_standby_says_who_holds(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("who")?, Arc::default());
    let (a, b) = (ctx.coordinator("a").await?, ctx.coordinator("b").await?);
    let lease = a.acquire(&scope, &terms(&ctx)).await?;
    let mut standby = replica(&ctx, &b, &scope, &inside);
    let holder = Some(a.owner().to_string());
    let named = standby.status.wait_for(|status| status.holder == holder);
    let state = soon("the holder's name", named).await?.map_err(|_| "the gate is gone")?.state;
    ensure_eq!(state, GateState::Standby);
    lease.release().await?;
    standby.until(GateState::Holding).await?;
    let status = standby.status.borrow().clone();
    let holder = status.is_holding().then(|| b.owner().to_string());
    ensure_eq!(status.holder, holder, "the holder of its own term");
    standby.stop().await
}

async fn an_ungated_gate_needs_no_lease(ctx: Context) -> Result<(), Failure> {
    let (scope, inside) = (ctx.scope("ungated")?, Arc::<AtomicI64>::default());
    let coordinator = ctx.coordinator("only").await?;
    let counted = Arc::clone(&inside);
    let gate = Gate::new(&coordinator, scope.clone()).ungated();
    let mut only = start(gate.work("loop", move |term| {
        let inside = Arc::clone(&counted);
        async move {
            let _one = Inside::enter(&inside);
            term.over().await;
        }
    }));
    only.until(GateState::Ungated).await?;
    soon("the loop", async {
        while inside.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await?;
    ensure!(coordinator.holder(&scope).await?.is_none(), "it took a lease");
    only.stop().await?;
    ensure_eq!(inside.load(Ordering::SeqCst), 0, "loops left");
    Ok(())
}
