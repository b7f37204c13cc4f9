//! Hand-overs that are asked for from outside, by any process of any holder.

use std::sync::Arc;

use tenure::Error;
use tenure::lease::{HandOverRequest, Lease, Loss, Scope};

use crate::gated;
use crate::workload::{Worker, name, word};

/// Asks whoever holds something to hand it over.
pub(crate) async fn ask(worker: &Worker) {
    let scope = match worker.plan.gates && worker.dice.chance(400) {
        true => gated::scope(),
        false => worker.any_scope(),
    };
    let by = worker.process.owner.to_string();
    let Some(_asking) = Asking::begin(worker, &scope, &by) else { return };
    let to = worker.dice.chance(500).then(|| name(worker.dice.below(worker.plan.processes)));
    let wait = worker.dice.millis(50, 4_000);
    worker.note(&format!("asks to hand {scope} over to {to:?} within {wait:?}"));
    let answer = worker.coordinator.ask_to_hand_over(&scope, None, to.as_deref(), wait).await;
    worker.note(&format!("asking for {scope}: {}", word(&answer)));
    if let Err(Error::Held { token, .. }) = answer {
        let verdict = worker.observer.known().asked.withdrawn(scope.as_str(), token, &by);
        worker.observer.judge(verdict);
    }
}

/// One request of a process for a scope at a time: a second one replaces the first.
struct Asking<'a> {
    worker: &'a Worker,
    key: (String, String),
}

impl<'a> Asking<'a> {
    fn begin(worker: &'a Worker, scope: &Scope, by: &str) -> Option<Self> {
        let key = (scope.to_string(), by.to_owned());
        let mut known = worker.observer.known();
        if !known.asking.insert(key.clone()) {
            return None;
        }
        known.asked.begins(scope.as_str(), by);
        Some(Self { worker, key })
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.worker.observer.known().asking.remove(&self.key);
    }
}

/// Works for a while and listens: who asks for the lease, if somebody does.
pub(crate) async fn listen(
    worker: &Worker,
    lease: &Arc<Lease>,
) -> Result<Option<HandOverRequest>, Loss> {
    let pause = worker.dice.millis(10, 4_000);
    let listening = async {
        tokio::select! {
            biased;
            request = lease.asked_to_hand_over() => Some(request),
            () = worker.sleep(pause) => None,
        }
    };
    let request = lease.run(listening).await?;
    if let Some(HandOverRequest { to, by }) = &request {
        worker.note(&format!("is asked by {by} to hand {} over to {to}", lease.id()));
        worker.observer.taken_up(lease, by);
    }
    Ok(request)
}
