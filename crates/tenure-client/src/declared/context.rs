//! Under which leases the present work is done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{self, BoxFuture, FutureExt};
use tenure::clock::SharedClock;
use tenure::lease::Lease;
use tenure::store::Commit;
use tokio::sync::watch;

use super::carried::CarriedLease;
use super::ended::Ended;

tokio::task_local! {
    static CURRENT: LeaseContext;
}

/// The leases under which a piece of work is done, and the instant by which it must be done.
///
/// Whatever runs on the same task finds it with [`LeaseContext::current`]; a task of its own takes it
/// along: `tokio::spawn(context.enter(work))`. Calls through a [`super::CarryLease`] take it to other
/// services. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # use tenure::{Key, lease::Coordinator, store::{Commit, Put, memory::MemoryStore}};
/// # use tenure_client::{LeaseContext, Module};
/// # let store = MemoryStore::new().into_store();
/// # let module = Module::new(&Coordinator::new(store.clone())?, "billing")?;
/// async fn deep_inside(store: &tenure::store::Store) -> tenure::Result<()> {
///     let commit = Commit::from(Put::new(Key::new("user", "42"), "paid"));
///     // Applies only if every lease that we work under is still held.
///     let commit = match LeaseContext::current() {
///         Some(context) => context.fence(commit),
///         None => commit,
///     };
///     store.commit(commit).await.map(drop)
/// }
///
/// let update = module.declare("user.update")?;
/// update.run("42", |_| deep_inside(&store)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeaseContext {
    inner: Arc<Inner>,
}

struct Inner {
    /// The work that this work is a part of.
    outer: Option<LeaseContext>,
    /// Those of the outer one, then our own.
    leases: Vec<CarriedLease>,
    deadline: Option<Deadline>,
    /// Whether the work has ended, whatever became of it.
    over: watch::Sender<bool>,
}

/// An instant that never moves, on the clock that it was read from.
pub(super) struct Deadline {
    pub(super) clock: SharedClock,
    pub(super) at: Duration,
}

impl Deadline {
    fn left(&self) -> Duration {
        self.at.saturating_sub(self.clock.uptime())
    }
}

impl LeaseContext {
    pub(super) fn new(
        outer: Option<Self>,
        own: impl IntoIterator<Item = CarriedLease>,
        deadline: Option<Deadline>,
    ) -> Self {
        let mut leases = outer.as_ref().map_or_else(Vec::new, |outer| outer.leases().to_vec());
        leases.extend(own);
        let over = watch::Sender::new(false);
        Self { inner: Arc::new(Inner { outer, leases, deadline, over }) }
    }

    /// The context of work under this lease, within the present one if there is one. For leases that
    /// were not declared: slots, elections, several at once.
    pub fn of(lease: &Lease) -> Self {
        Self::new(Self::current(), [CarriedLease::here(lease.observer())], None)
    }

    /// The context of the present task.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// The leases, outermost first.
    pub fn leases(&self) -> &[CarriedLease] {
        &self.inner.leases
    }

    /// The lease of the innermost work.
    pub fn innermost(&self) -> Option<&CarriedLease> {
        self.leases().last()
    }

    /// Puts all of the leases on a commit, so that it applies only while each of them is held.
    #[must_use]
    pub fn fence(&self, commit: Commit) -> Commit {
        self.leases().iter().fold(commit, |commit, lease| commit.fenced_by(lease))
    }

    /// How long until the instant by which the work must be done; `None` if there is none. Renewals
    /// do not move it.
    pub fn time_left(&self) -> Option<Duration> {
        let own = self.inner.deadline.as_ref().map(Deadline::left);
        let outer = self.inner.outer.as_ref().and_then(Self::time_left);
        [own, outer].into_iter().flatten().min()
    }

    /// Why nothing may be done under it any more; `None` while something may.
    pub fn end(&self) -> Option<Ended> {
        let lost = |lease: &CarriedLease| Some(Ended::lost(lease, lease.loss()?));
        let late = || self.inner.deadline.as_ref().filter(|own| own.left().is_zero());
        let over = || *self.inner.over.borrow();
        self.own_leases()
            .iter()
            .find_map(lost)
            .or_else(|| late().map(|_| self.late()))
            .or_else(|| self.inner.outer.as_ref().and_then(Self::end))
            .or_else(|| over().then_some(Ended::Over))
    }

    /// Resolves when nothing may be done under it any more: a lease is lost, the time is up, or the
    /// work that it was made for has ended.
    pub fn ended(&self) -> BoxFuture<'static, Ended> {
        // The first of them that has come counts.
        let mut ends: Vec<BoxFuture<'static, Ended>> = Vec::new();
        for lease in self.own_leases() {
            let (lost, lease) = (lease.lost(), lease.clone());
            ends.push(lost.map(move |loss| Ended::lost(&lease, loss)).boxed());
        }
        if let Some(deadline) = &self.inner.deadline {
            let late = self.late();
            ends.push(deadline.clock.sleep_until(deadline.at).map(|()| late).boxed());
        }
        ends.extend(self.inner.outer.as_ref().map(Self::ended));
        let this = self.clone();
        let over = async move {
            // It cannot fail: we hold the sender.
            let _ = this.inner.over.subscribe().wait_for(|over| *over).await;
            Ended::Over
        };
        ends.push(over.boxed());
        future::select_all(ends).map(|(ended, ..)| ended).boxed()
    }

    /// Runs work in this context, so that whatever it calls on its task finds it. Does not stop it.
    pub fn enter<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), work)
    }

    /// Runs work in this context, and drops it at the instant when nothing may be done any more.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Ended> {
        tokio::select! {
            biased;
            ended = self.ended() => Err(ended),
            output = self.enter(work) => Ok(output),
        }
    }

    /// Does something at once in this context.
    pub(super) fn within<T>(&self, action: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), action)
    }

    /// Over when the guard is dropped.
    pub(super) fn until_dropped(&self) -> Closing {
        Closing(self.clone())
    }

    fn own_leases(&self) -> &[CarriedLease] {
        let outer = self.inner.outer.as_ref().map_or(0, |outer| outer.leases().len());
        &self.leases()[outer..]
    }

    fn late(&self) -> Ended {
        Ended::Deadline { lease: self.innermost().map(|lease| lease.id().to_owned()) }
    }
}

/// Ends the work of a context when dropped.
pub(super) struct Closing(LeaseContext);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.inner.over.send_replace(true);
    }
}

impl fmt::Debug for LeaseContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseContext")
            .field("leases", &self.leases())
            .field("time_left", &self.time_left())
            .finish_non_exhaustive()
    }
}
