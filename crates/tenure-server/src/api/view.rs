//! The store as one caller sees it.

use std::sync::Arc;

use tenure::lease::Coordinator;
use tenure::store::{Capabilities, Store};

use super::{Api, Part};
use crate::Fault;
use crate::auth::audit::{self, Notable, Noting};
use crate::auth::{Action, Caller};
use crate::limits::{Taken, Use};

/// What one caller sees, and what it may do there.
#[derive(Clone)]
pub struct View {
    pub(super) api: Api,
    pub(super) part: Arc<Part>,
    pub(super) caller: Caller,
}

impl View {
    /// Who asks.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// What all requests share.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The caller's part of the store. Nothing is checked here.
    pub fn store(&self) -> &Store {
        &self.part.store
    }

    /// What the caller's part of the store promises. A commit has to fit into a message, with half of it
    /// left for names, labels and whatever it is wrapped in.
    pub fn capabilities(&self) -> Capabilities {
        let mut told = self.part.store.capabilities().clone();
        let most = (self.api.room().limits().message_bytes / 2).max(1);
        let limits = &mut told.limits;
        limits.payload_bytes = limits.payload_bytes.min(most);
        limits.commit_bytes = limits.commit_bytes.min(most);
        told
    }

    /// What acts for the caller on leases. Nothing is checked here.
    pub fn coordinator(&self) -> &Coordinator {
        &self.part.coordinator
    }

    /// Refuses what the caller may not do, and says so in the audit log.
    pub fn require(&self, action: Action, resource: &str) -> Result<(), Fault> {
        if self.caller.may(action, resource) {
            return Ok(());
        }
        // The caller of a stream was known when it began and may not be any more.
        self.caller.check()?;
        audit::denied(&self.caller, action, resource);
        Err(self.caller.denial(action, resource))
    }

    /// Something is about to be done with a permission that not everybody has: the audit log is told.
    pub(super) fn noting(&self, all: Vec<Notable>) -> Noting<'_> {
        Noting::new(&self.caller, all)
    }

    /// Takes room for a stream or a wait of this caller.
    pub fn take(&self, what: Use) -> Result<Taken, Fault> {
        let subject = self.caller.subject();
        // People of different tenants may have the same name, and do not share room for it.
        match self.caller.tenant() {
            Some(tenant) => self.api.room().take(what, &format!("{tenant}~{subject}")),
            None => self.api.room().take(what, subject),
        }
    }
}
