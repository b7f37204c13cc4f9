//! A module declares its leases once, by name, and acquires them by key.

use std::sync::Arc;
use std::time::Duration;

use tenure::Result;
use tenure::lease::{Coordinator, Hooks, Namespace, Scope, Terms, Wait};

use super::acquired::Acquired;
use super::run::{self, RunError};
use super::{LeaseContext, context};
use crate::ServerStore;

/// Below which the leases of all modules are.
const MODULE: &str = "module";

/// A part of an application that declares the leases it uses. Its namespace is `module.<its name>`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// use std::time::Duration;
/// use tenure::lease::Coordinator;
/// use tenure_client::Module;
/// # let store = tenure::store::memory::MemoryStore::new().into_store();
///
/// let module = Module::new(&Coordinator::new(store)?, "billing")?;
/// let update = module
///     .declare("user.update")?
///     .ttl(Duration::from_secs(10))
///     .wait(Duration::from_secs(30))
///     .deadline(Duration::from_secs(60));
///
/// let paid = update.run("42", |context| async move {
///     let lease = context.innermost().map(|lease| lease.id().to_owned());
///     assert_eq!(lease.as_deref(), Some("module.billing.user.update/42"));
///     anyhow::Ok(true)
/// });
/// assert!(paid.await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Module {
    coordinator: Coordinator,
    name: String,
}

impl Module {
    /// A module that holds its leases through this coordinator.
    pub fn new(coordinator: &Coordinator, name: &str) -> Result<Self> {
        Namespace::new([MODULE, name])?;
        Ok(Self { coordinator: coordinator.clone(), name: name.to_owned() })
    }

    /// A module that holds its leases through a server, or the first of several that answers.
    pub async fn connect(url: &str, name: &str) -> Result<Self> {
        let store = ServerStore::connect(url).await?.into_store();
        Self::new(&Coordinator::new(store)?, name)
    }

    /// What its leases are held through.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// Declares a lease, for instance `user.update`. Acquires nothing yet.
    pub fn declare(&self, name: &str) -> Result<Declared> {
        let namespace = Namespace::new([MODULE, &self.name].into_iter().chain(name.split('.')))?;
        let (coordinator, terms) = (self.coordinator.clone(), Terms::new());
        Ok(Declared { coordinator, namespace, terms, deadline: None, hooked: false })
    }
}

/// A lease that a module has declared: with a key it can be acquired. Cheap to clone.
#[derive(Clone)]
pub struct Declared {
    coordinator: Coordinator,
    namespace: Namespace,
    terms: Terms,
    deadline: Option<Duration>,
    hooked: bool,
}

impl Declared {
    /// The life that each renewal grants.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms = self.terms.ttl(ttl);
        self
    }

    /// How long to wait for it while somebody else has it. Not at all unless said.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.terms = self.terms.wait(wait);
        self
    }

    /// How long the work may take at most, however often the lease is renewed. Without end unless said.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Something to tell everybody about the holder.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.terms = self.terms.metadata(key, value);
        self
    }

    /// Changes that happen together with those of the lease.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.terms = self.terms.hooks(hooks);
        self.hooked = true;
        self
    }

    /// Where its scopes are.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The scope of this key.
    pub fn scope(&self, key: &str) -> Result<Scope> {
        Scope::new(&self.namespace, key)
    }

    /// Acquires it for a key. It is renewed until it is released or dropped.
    ///
    /// # Errors
    /// [`tenure::Error::Held`] if somebody else has it when the wait is over.
    pub async fn acquire(&self, key: &str) -> Result<Acquired> {
        let lease = self.coordinator.acquire(&self.scope(key)?, &self.terms).await?;
        let clock = Arc::clone(self.coordinator.store().clock());
        let deadline = self.deadline.map(|deadline| {
            let at = clock.uptime().saturating_add(deadline);
            context::Deadline { clock, at }
        });
        Ok(Acquired::new(lease, deadline))
    }

    /// Acquires it for a key, does the work, and releases it when the work has stopped.
    ///
    /// The work is dropped at the instant that the lease is lost or its deadline comes, and with it every
    /// call that it made through a [`super::CarryLease`]. Work within work runs under both leases.
    ///
    /// # Errors
    /// [`RunError`] says whether the work began, was stopped, or failed by itself.
    pub async fn run<T, E, F>(
        &self,
        key: &str,
        work: impl FnOnce(LeaseContext) -> F,
    ) -> std::result::Result<T, RunError<E>>
    where
        E: std::fmt::Display,
        F: Future<Output = std::result::Result<T, E>>,
    {
        let acquired = self.acquire(key).await.map_err(RunError::NotAcquired)?;
        let outcome = acquired.run(work).await;
        run::let_go(acquired, outcome, self.hooked).await
    }
}
