//! What a holder does with its lease, and how it lets go of it.

use std::sync::Arc;

use tenure::Key;
use tenure::lease::{HandOverRequest, Lease, Loss};
use tenure::store::{Commit, Expect, Put};

use crate::asking;
use crate::belief::Parting;
use crate::invariants::fence::Work;
use crate::server::{COUNTER, JOURNAL};
use crate::workload::{Worker, name, word};

/// Holds a lease for a while, works under it, and lets go.
pub(crate) async fn hold(worker: &Worker, lease: Lease) {
    let lease = Arc::new(lease);
    worker.observer.granted(worker.belief(&lease));
    let steps = worker.dice.below(if worker.plan.slow { 12 } else { 6 });
    for _ in 0..steps {
        let since = worker.observer.clock.now_ms();
        let stepped = match !worker.plan.single && worker.dice.chance(150) {
            true => asking::listen(worker, &lease).await,
            false => step(worker, &lease).await.map(|()| None),
        };
        match stepped {
            Ok(None) => {}
            Ok(Some(HandOverRequest { to, .. })) => {
                let Some(lease) = Arc::into_inner(lease) else { return };
                return hand_over(worker, lease, &to).await;
            }
            Err(loss) => {
                told(worker, &lease, &loss, since);
                return linger(worker, lease).await;
            }
        }
    }
    let_go(worker, lease).await;
}

fn told(worker: &Worker, lease: &Lease, loss: &Loss, since: i64) {
    let until = worker.process.clock.true_ms(lease.valid_until());
    worker.observer.told(&worker.process, lease.id(), loss, until, since);
}

async fn step(worker: &Worker, lease: &Lease) -> Result<(), Loss> {
    let dice = &worker.dice;
    match dice.below(10) {
        // Without commits of several objects there is no fence to work behind.
        4..=7 if worker.plan.single => lease.run(worker.sleep(dice.millis(5, 2_000))).await,
        0..=3 => {
            let pause =
                if worker.plan.slow { dice.millis(10, 6_000) } else { dice.millis(5, 2_000) };
            lease.run(worker.sleep(pause)).await
        }
        // As a careful holder does it, and as a careless one does.
        4..=5 => lease.run(count_up(worker, lease)).await,
        6 => {
            if lease.is_valid() {
                journal(worker, lease).await;
            }
            Ok(())
        }
        7 => {
            journal(worker, lease).await;
            Ok(())
        }
        8 => {
            let metadata = [("address".to_owned(), dice.below(1000).to_string())].into();
            let answer = lease.proclaim(metadata).await;
            worker.note(&format!("proclaims on {}: {}", lease.id(), word(&answer)));
            Ok(())
        }
        _ => {
            match worker.perhaps_giving_up(lease.renew()).await {
                Some(answer) => {
                    worker.note(&format!("renews {}: {}", lease.id(), word(&answer)));
                }
                None => worker.note(&format!("no longer waits for {} to be renewed", lease.id())),
            }
            Ok(())
        }
    }
}

/// Reads a counter and counts it up, if nobody else has and the lease still holds.
pub(crate) async fn count_up(worker: &Worker, lease: &Lease) {
    let key = Key::new(COUNTER, lease.id());
    let Ok(before) = worker.coordinator.store().get(&key).await else { return };
    let (count, expect) = match &before {
        Some(object) => {
            let work: Option<Work> = serde_json::from_slice(&object.payload).ok();
            (work.map_or(0, |work| work.count), Expect::Revision(object.revision))
        }
        None => (0, Expect::Absent),
    };
    let put = Put::new(key, work(lease, count + 1)).expect(expect);
    let commit = Commit::from(put).fenced_by(lease);
    let answer = worker.coordinator.store().commit(commit).await;
    worker.note(&format!("counts {} up to {}: {}", lease.id(), count + 1, word(&answer)));
}

/// Writes something without looking first; only the fence protects it.
pub(crate) async fn journal(worker: &Worker, lease: &Lease) {
    let put = Put::new(Key::new(JOURNAL, lease.id()), work(lease, worker.dice.below(1 << 40)));
    let answer = worker.coordinator.store().commit(Commit::from(put).fenced_by(lease)).await;
    worker.note(&format!("writes under {}: {}", lease.id(), word(&answer)));
}

fn work(lease: &Lease, count: u64) -> Vec<u8> {
    let work = Work { lease: lease.id().to_owned(), token: lease.token(), count };
    serde_json::to_vec(&work).unwrap_or_default()
}

/// Keeps the handle of a lost lease for a while, and acts as if nothing had happened.
async fn linger(worker: &Worker, lease: Arc<Lease>) {
    if worker.dice.chance(500) {
        worker.sleep(worker.dice.millis(1, 3_000)).await;
        if !worker.plan.single {
            journal(worker, &lease).await;
        }
    }
    let_go(worker, lease).await;
}

/// Releases, drops or hands over.
async fn let_go(worker: &Worker, lease: Arc<Lease>) {
    let id = lease.id().to_owned();
    // The observer looks only between steps, so nobody else has the handle now.
    let Some(lease) = Arc::into_inner(lease) else { return };
    let how = worker.dice.below(10);
    if how < 2 {
        worker.note(&format!("drops {id}"));
        return drop(lease);
    }
    if how < 5 {
        let to = name(worker.dice.below(worker.plan.processes));
        return hand_over(worker, lease, &to).await;
    }
    release(worker, lease).await;
}

/// Hands over, and keeps the lease for a while if that cannot be.
async fn hand_over(worker: &Worker, lease: Lease, to: &str) {
    let id = lease.id().to_owned();
    worker.note(&format!("hands {id} over to {to}"));
    let parting = Parting::with(&lease, worker.observer.clock.now_ms());
    match worker.perhaps_giving_up(lease.hand_over(to)).await {
        None => worker.note(&format!("no longer waits for {id} to be handed over")),
        Some(Ok(())) => {
            worker.note(&format!("has handed {id} over to {to}"));
            worker.observer.parted(&worker.process, &parting, true);
        }
        Some(Err((back, error))) => {
            worker.note(&format!("keeps {id}: {}", error.code()));
            let back = Arc::new(back);
            worker.observer.kept(worker.belief(&back));
            let since = worker.observer.clock.now_ms();
            if let Err(loss) = back.run(worker.sleep(worker.dice.millis(1, 1_000))).await {
                told(worker, &back, &loss, since);
            }
            let Some(back) = Arc::into_inner(back) else { return };
            release(worker, back).await;
        }
    }
}

async fn release(worker: &Worker, lease: Lease) {
    let id = lease.id().to_owned();
    worker.note(&format!("releases {id}"));
    let parting = Parting::with(&lease, worker.observer.clock.now_ms());
    match worker.perhaps_giving_up(lease.release()).await {
        Some(answer) => {
            worker.note(&format!("released {id}: {}", word(&answer)));
            worker.observer.parted(&worker.process, &parting, answer.is_ok());
        }
        None => worker.note(&format!("no longer waits for {id} to be released")),
    }
}
