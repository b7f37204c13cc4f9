//! The richer kinds of leases: slots that are resized, reading and writing, several scopes at once.

use std::sync::Arc;

use tenure::lease::{Election, Namespace, Scope, Terms};

use crate::belief::{self, Belief, Parting};
use crate::holding;
use crate::workload::{Worker, scope, word};

/// How many slots a group has at first.
pub(crate) const SLOTS: u32 = 2;

pub(crate) fn group() -> Namespace {
    "sim.pool".parse().expect("a namespace that is well formed")
}

fn shared() -> Scope {
    "sim/shared".parse().expect("a scope that is well formed")
}

/// Does one of them.
pub(crate) async fn act(worker: &Worker) {
    match worker.dice.below(10) {
        7 => campaign(worker).await,
        // What is left needs commits of several objects.
        _ if worker.plan.single => slot(worker).await,
        0..=3 => slot(worker).await,
        4 => resize(worker).await,
        5..=6 => share(worker).await,
        _ => several(worker).await,
    }
}

fn terms(worker: &Worker) -> Terms {
    let terms = Terms::new().ttl(worker.ttl());
    match worker.dice.chance(700) {
        true => terms.wait(worker.dice.millis(100, 10_000)),
        false => terms,
    }
}

async fn slot(worker: &Worker) {
    let answer = worker.coordinator.acquire_slot(&group(), SLOTS, &terms(worker)).await;
    match answer {
        Ok(Some(slot)) => holding::hold(worker, slot.into_lease()).await,
        Ok(None) => worker.note("gets no slot"),
        Err(error) => worker.note(&format!("gets no slot: {}", error.code())),
    }
}

async fn resize(worker: &Worker) {
    let count = u32::try_from(worker.dice.between(1, 4)).unwrap_or(1);
    let answer = worker.coordinator.slots(&group()).resize(count).await;
    worker.note(&format!("resizes to {count}: {}", word(&answer)));
}

async fn share(worker: &Worker) {
    // A writer cannot have its turn while there are readers, so others get ahead of it.
    let terms = terms(worker).metadata("yields", "it shares");
    let answer = match worker.dice.chance(600) {
        true => worker.coordinator.acquire_read(&shared(), &terms).await,
        false => worker.coordinator.acquire_write(&shared(), &terms).await,
    };
    match answer {
        Ok(lease) => holding::hold(worker, lease).await,
        Err(error) => worker.note(&format!("gets no share: {}", error.code())),
    }
}

async fn campaign(worker: &Worker) {
    let election = Election::new(&worker.coordinator, scope(0));
    let patience = worker.dice.millis(500, 10_000);
    let _wait = worker.waits(scope(0).as_str(), patience);
    let terms = Terms::new().ttl(worker.ttl()).wait(patience);
    match election.campaign(terms).await {
        Ok(term) => {
            drop(_wait);
            holding::hold(worker, term).await;
        }
        Err(error) => worker.note(&format!("is not elected: {}", error.code())),
    }
}

async fn several(worker: &Worker) {
    let scopes: Vec<Scope> = (0..worker.plan.scopes).map(scope).collect();
    let terms = terms(worker).metadata("yields", "it waits for several");
    let leases = match worker.coordinator.acquire_all(&scopes, &terms).await {
        Ok(leases) => Arc::new(leases),
        Err(error) => return worker.note(&format!("does not get all: {}", error.code())),
    };
    for (at, lease) in leases.iter().enumerate() {
        worker.observer.granted(Belief {
            process: Arc::clone(&worker.process),
            id: lease.id().to_owned(),
            token: lease.token(),
            look: belief::one_of(&leases, at),
            first: None,
        });
    }
    let work = async {
        for lease in leases.iter() {
            holding::count_up(worker, lease).await;
        }
        worker.sleep(worker.dice.millis(5, 1_500)).await;
    };
    if let Err(loss) = leases.run(work).await {
        worker.note(&format!("is told that one of several is lost: {loss}"));
    }
    let Some(leases) = Arc::into_inner(leases) else { return };
    if worker.dice.chance(800) {
        let now = worker.observer.clock.now_ms();
        let partings: Vec<_> = leases.iter().map(|lease| Parting::with(lease, now)).collect();
        let answer = leases.release().await;
        worker.note(&format!("released all: {}", word(&answer)));
        for parting in &partings {
            worker.observer.parted(&worker.process, parting, answer.is_ok());
        }
    }
}
