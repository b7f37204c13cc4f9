//! Reaping: any process tidies up after those that went without a release, several at once.

use async_trait::async_trait;
use tenure::lease::{HookContext, LeaseInfo, ReapHook};
use tenure::store::Put;
use tenure::{Key, Result};

use crate::server::TALLY;
use crate::workload::{Worker, scope, word};

/// Writes down what is reaped, in the commit that tidies up.
pub(crate) struct Tally {
    pub(crate) by: String,
}

#[async_trait]
impl ReapHook for Tally {
    async fn will_reap(&self, lease: &LeaseInfo, draft: &mut HookContext<'_>) -> Result<()> {
        let key = Key::new(TALLY, format!("{}#{}", lease.id, lease.token));
        // A read in between, as a hook with conditions of its own has: others may be quicker.
        draft.store.get(&key).await?;
        draft.commit = std::mem::take(&mut draft.commit).put(Put::new(key, self.by.clone()));
        Ok(())
    }
}

/// Reaps everything once.
pub(crate) async fn reap(worker: &Worker) {
    let hook = Tally { by: worker.process.owner.to_string() };
    let answer = worker.coordinator.reap(&[scope(0).namespace()], true, &hook).await;
    let count = answer.as_ref().copied().unwrap_or(0);
    worker.note(&format!("reaps {count}: {}", word(&answer)));
}
