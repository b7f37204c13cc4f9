//! What is put to the test: a way to open the store, and what the suite may use around it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use tenure::clock::ManualClock;
use tenure::store::{Capabilities, Reach, Store};

use crate::Failure;
use crate::context::Context;

/// Opens a new handle, with connections or file handles of its own, onto the same store. For a store
/// in memory: clones of one store.
pub type Opener = Arc<dyn Fn() -> BoxFuture<'static, tenure::Result<Store>> + Send + Sync>;

/// The store under test.
#[derive(Clone)]
pub struct Subject {
    /// Opens it.
    pub open: Opener,
    /// Starts a separate process on it; without, behaviours that need processes do not apply.
    pub worker: Option<WorkerCommand>,
    /// The clock the store runs on, where the suite may move it. Behaviours then let time pass by
    /// telling the clock instead of by waiting, so they must not share it with others.
    pub clock: Option<ManualClock>,
}

impl Subject {
    /// A store with no separate processes, on a clock of its own.
    pub fn new(open: Opener) -> Self {
        Self { open, worker: None, clock: None }
    }
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subject").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// Starts a process that opens the same store and calls [`crate::worker::serve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// One thing that every store does which declares the capabilities for it.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// A sentence in `snake_case`.
    pub name: &'static str,
    /// The same for people, with the reason.
    pub about: &'static str,
    /// Whether it applies; the error says why not.
    pub needs: Needs,
    /// Whether it depends on lives that the machine has to keep up with.
    pub(crate) is_timed: bool,
    pub(crate) run: fn(Context) -> BoxFuture<'static, Result<(), Failure>>,
}

/// Whether a behaviour applies to a store; the error says why not.
pub type Needs = fn(&Capabilities, &Subject) -> Result<(), &'static str>;

impl std::fmt::Debug for Behaviour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Behaviour").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The conditions that `needs` of a behaviour are made of.
pub(crate) mod need {
    use super::{Capabilities, Reach, Subject};

    type Answer = Result<(), &'static str>;

    fn demand(met: bool, why_not: &'static str) -> Answer {
        if met { Ok(()) } else { Err(why_not) }
    }

    pub(crate) fn leases_only(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.kinds != tenure::store::Kinds::Any, "it keeps any object")
    }

    pub(crate) fn multi(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.multi_object_commits, "its commits concern one object")
    }

    pub(crate) fn single(caps: &Capabilities, _: &Subject) -> Answer {
        demand(!caps.multi_object_commits, "its commits may concern several objects")
    }

    pub(crate) fn names(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.names, "it has no names")
    }

    pub(crate) fn labels(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.labels, "it does not select by labels")
    }

    pub(crate) fn ttl(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.ttl.is_some(), "it has no time to live")
    }

    pub(crate) fn kept_revisions(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.touch_keeps_revision, "its touches draw revisions")
    }

    pub(crate) fn history(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.history.is_some(), "its watches start now only")
    }

    pub(crate) fn user_sql(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.user_sql, "it runs no SQL of yours")
    }

    pub(crate) fn manual_clock(_: &Capabilities, subject: &Subject) -> Answer {
        demand(subject.clock.is_some(), "its clock cannot be stepped from here")
    }

    pub(crate) fn real_time(_: &Capabilities, subject: &Subject) -> Answer {
        demand(subject.clock.is_none(), "renewals need a clock that runs by itself")
    }

    pub(crate) fn told(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.notifies_all(), "it does not tell everybody of a change")
    }

    pub(crate) fn reopens(caps: &Capabilities, _: &Subject) -> Answer {
        demand(caps.reach != Reach::Process, "it ends with its process")
    }

    pub(crate) fn processes(caps: &Capabilities, subject: &Subject) -> Answer {
        demand(caps.reach != Reach::Process, "one process is all that can use it")?;
        demand(subject.worker.is_some(), "no worker program was given to start processes with")?;
        // A process cannot see a clock that lives in this one.
        demand(subject.clock.is_none(), "its clock lives in this process")
    }
}

/// One row of the suite: the function is the name.
macro_rules! behaviour {
    ($function:ident, [$($need:ident),*], $about:literal) => {
        $crate::subject::Behaviour {
            name: stringify!($function),
            about: $about,
            needs: |_caps, _subject| {
                $($crate::subject::need::$need(_caps, _subject)?;)*
                Ok(())
            },
            is_timed: [$(stringify!($need)),*].iter().any(|need| matches!(*need, "ttl" | "real_time")),
            run: |ctx| Box::pin($function(ctx)),
        }
    };
}
pub(crate) use behaviour;
