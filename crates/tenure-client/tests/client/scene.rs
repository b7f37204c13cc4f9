//! A server, a ledger that is called under leases, and somebody who listens to what they tell.

use std::sync::Arc;
use std::time::Duration;

use tenure::lease::Coordinator;
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_client::{Declared, Module, ReceiveLease};
use tenure_conformance::Failure;
use tokio::sync::{Notify, mpsc};

use crate::common::{Outcome, Serving, connect};
use crate::services::{Client, Ears, Front, Ledger, Listening, Mouth, Told, client, listen, next};

pub(crate) const TTL: Duration = Duration::from_millis(900);

/// A server, a ledger, and a client of the ledger; what they tell is heard.
pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) operator: Coordinator,
    pub(crate) module: Module,
    pub(crate) ledger: Listening,
    pub(crate) client: Client,
    pub(crate) mouth: Mouth,
    pub(crate) ears: Ears,
    pub(crate) go: Arc<Notify>,
    _tenure: Serving,
}

impl Scene {
    pub(crate) async fn new() -> Result<Self, Failure> {
        Self::with(false).await
    }

    /// With a ledger that looks at leases itself, or not.
    pub(crate) async fn with(checking: bool) -> Result<Self, Failure> {
        let tenure = Serving::start(MemoryStore::new().into_store());
        let store = connect(&tenure.url()).await?;
        let (mouth, ears) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let layer = match checking {
            true => ReceiveLease::checking(store.clone()),
            false => ReceiveLease::new(),
        };
        let (own, go_too) = (connect(&tenure.url()).await?, Arc::clone(&go));
        let last = Ledger { store: own, mouth: mouth.clone(), go: go_too, next: None };
        let ledger = listen(last, layer).await?;
        let operator = Coordinator::builder(store.clone()).name("operator").start()?;
        let module = Module::connect(&tenure.url(), "front").await?;
        let client = client(&ledger)?;
        Ok(Self { store, operator, module, ledger, client, mouth, ears, go, _tenure: tenure })
    }

    pub(crate) fn lease(&self) -> Result<Declared, Failure> {
        Ok(self.module.declare("user.update")?.ttl(TTL))
    }

    /// A front whose nested calls go to this ledger.
    pub(crate) async fn front(&self, ledger: &Listening) -> Result<Listening, Failure> {
        let (lease, ledger, mouth) = (self.lease()?, client(ledger)?, self.mouth.clone());
        listen(Front { lease, ledger, mouth }, ReceiveLease::new()).await
    }

    /// The ledger has been called under this one lease; its token.
    pub(crate) async fn called(&mut self) -> Result<u64, Failure> {
        match next(&mut self.ears).await? {
            Told::Called { leases, .. } if leases.len() == 1 && leases[0].0 == SCOPE => {
                Ok(leases[0].1)
            }
            other => Err(Failure::new(format!("{other:?} instead of a call under {SCOPE}"))),
        }
    }

    /// All of these are told, in any order.
    pub(crate) async fn all_of(&mut self, mut expected: Vec<Told>) -> Outcome {
        while !expected.is_empty() {
            let told = next(&mut self.ears).await?;
            let found = expected.iter().position(|one| *one == told);
            let found = found.ok_or_else(|| format!("{told:?} instead of {expected:?}"))?;
            expected.swap_remove(found);
        }
        Ok(())
    }

    pub(crate) async fn holder(&self) -> Result<Option<u64>, Failure> {
        Ok(self.operator.holder(&SCOPE.parse()?).await?.map(|info| info.token))
    }
}

pub(crate) const SCOPE: &str = "module.front.user.update/42";

pub(crate) fn stopped(who: &'static str, held: bool) -> Told {
    Told::Stopped { who, held }
}

pub(crate) fn lost(status: &tonic::Status) -> bool {
    tenure_proto::status::error(status).is_some_and(|error| error.code == "lost")
}
