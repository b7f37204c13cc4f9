//! The process that holds: it acquires, counts under its lease for as long as it believes to hold it,
//! and tells every step on standard output. It is killed, frozen and cut off from its store.
//!
//! Nothing protects the counter but the lease: each count reads it, adds one and writes it back
//! whatever is there by then, fenced. In the same commit it leaves a journal entry, so that the store
//! alone can tell afterwards who counted what under which token.
//!
//! On a store whose commits concern one object there are no fenced commits. There a count is the journal
//! entry alone, and nobody writes late on purpose, because nothing would stop it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::clock::{Clock, SystemClock};
use tenure::lease::{Coordinator, Lease, Terms};
use tenure::store::{Commit, Expect, Put, Store};
use tenure::{Error, Key};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::helpers::number;

/// Lets go of what it holds, and asks for it again.
pub(super) const RELEASE: &str = "release";
/// Lets go of what it holds, and ends.
pub(super) const STOP: &str = "stop";

/// Between counts, so that a tenure is not over before it is disturbed.
pub(super) const PACE: Duration = Duration::from_millis(4);
/// Between attempts while the store cannot be reached.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// The request to a worker: hold this in turn with others, until told otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hold {
    /// The process: its owner's name, and the beginning of its journal entries.
    pub name: String,
    /// A scope, or a group of slots.
    pub what: String,
    /// How many slots, if it is a group.
    pub slots: Option<u32>,
    /// Through a gate, whose loop counts.
    pub gated: bool,
    pub ttl_ms: u64,
    /// The kind of the counters, one for each lease.
    pub counters: String,
    pub journal: String,
}

/// What a holder tells. Instants are nanoseconds of the host's uptime, which all processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// A tenure begins: it believes to hold from here on, until `until` unless it renews.
    Acquired { lease: String, token: u64, at: u64, until: u64 },
    /// A count was acknowledged. `late` after the holder had noticed that its tenure is over.
    Counted { n: u64, entry: Entry, revision: u64, until: u64, late: bool },
    /// A count did not happen; `lost` if the fence stopped it.
    Refused { n: u64, lost: bool, late: bool },
    /// A count may have happened.
    Unknown { n: u64 },
    /// The tenure is over, for this reason; it believed to hold until then.
    Ended { lease: String, token: u64, until: u64, how: String },
    /// Something that must not happen.
    Complaint(String),
}

/// One count, as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub process: String,
    pub lease: String,
    pub token: u64,
    pub value: u64,
}

/// The id of a process's n-th attempt in the journal.
pub(super) fn entry_id(process: &str, n: u64) -> String {
    format!("{process}-{n}")
}

impl Hold {
    /// Runs until told to stop, or until nobody listens.
    pub(crate) async fn run(
        self,
        store: &Store,
        lines: &mut UnboundedReceiver<String>,
        say: impl Fn(&str) -> io::Result<()> + Clone + Send + Sync + 'static,
    ) -> io::Result<()> {
        let coordinator = Coordinator::builder(store.clone()).name(&self.name).start();
        let coordinator = coordinator.map_err(io::Error::other)?;
        let say = move |said: Said| say(&serde_json::to_string(&said)?);
        let holder = Holder { hold: self, store: store.clone(), say, attempts: Arc::default() };
        match holder.hold.gated {
            true => holder.run_gated(&coordinator, lines).await?,
            false => holder.run(&coordinator, lines).await?,
        }
        store.close().await;
        Ok(())
    }
}

pub(super) async fn told_to_stop(lines: &mut UnboundedReceiver<String>) {
    while let Some(line) = lines.recv().await {
        if line == STOP {
            return;
        }
    }
}

/// A process that holds.
#[derive(Clone)]
pub(super) struct Holder<S> {
    pub(super) hold: Hold,
    pub(super) store: Store,
    pub(super) say: S,
    /// Counts tried so far; each has its own place in the journal.
    pub(super) attempts: Arc<AtomicU64>,
}

/// What became of one count.
pub(super) enum Count {
    Done(u64),
    /// It did not happen; with whether the fence stopped it.
    Refused(bool),
    Unknown,
}

impl<S: Fn(Said) -> io::Result<()>> Holder<S> {
    async fn run(
        &self,
        coordinator: &Coordinator,
        lines: &mut UnboundedReceiver<String>,
    ) -> io::Result<()> {
        loop {
            let acquired = tokio::select! {
                acquired = self.acquire(coordinator) => acquired,
                () = told_to_stop(lines) => return Ok(()),
            };
            match acquired {
                Ok(lease) => {
                    if self.tenure(lease, lines).await? {
                        return Ok(());
                    }
                }
                Err(Error::Unavailable { .. } | Error::Unknown { .. } | Error::Held { .. }) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return (self.say)(Said::Complaint(error.to_string())),
            }
        }
    }

    async fn acquire(&self, coordinator: &Coordinator) -> tenure::Result<Lease> {
        let ttl = Duration::from_millis(self.hold.ttl_ms);
        let terms = Terms::new().ttl(ttl).wait_forever();
        match self.hold.slots {
            None => coordinator.acquire(&self.hold.what.parse()?, &terms).await,
            Some(count) => {
                let slots = coordinator.slots(&self.hold.what.parse()?);
                Ok(slots.acquire(count, &terms).await?.into_lease())
            }
        }
    }

    /// Counts until the lease is lost or let go. Whether it was told to stop.
    async fn tenure(
        &self,
        lease: Lease,
        lines: &mut UnboundedReceiver<String>,
    ) -> io::Result<bool> {
        let at = nanos(SystemClock.uptime());
        let (id, token) = (lease.id().to_owned(), lease.token());
        (self.say)(Said::Acquired { lease: id, token, at, until: nanos(lease.valid_until()) })?;
        let (mut last, mut believed) = (None, Duration::ZERO);
        loop {
            let now = SystemClock.uptime();
            if let Some(loss) = lease.loss() {
                // By its clock it may have been over since before it froze; what it went by is what
                // it was told when it last asked.
                let until = believed.max(now.min(lease.valid_until()));
                self.ended(&lease, until, loss.code())?;
                if let Some(last) = last.filter(|_| self.is_fenced()) {
                    self.count(&lease, Some(last), true).await?;
                }
                return Ok(false);
            }
            believed = now;
            match self.count(&lease, None, false).await? {
                Count::Done(value) => last = Some(value),
                Count::Refused(true) if lease.is_valid() => {
                    // The store ends a tenure after its holder does, whoever is frozen or slow.
                    let why = format!("token {token} was fenced off while its holder's clock ran");
                    (self.say)(Said::Complaint(why))?;
                }
                Count::Refused(_) => tokio::time::sleep(PAUSE).await,
                // It may still arrive. Once the lease is let go it cannot, and whoever comes next
                // sees what has become of it.
                Count::Unknown => {
                    self.let_go(lease).await?;
                    return Ok(false);
                }
            }
            tokio::select! {
                biased;
                line = lines.recv() => match line.as_deref() {
                    Some(RELEASE) => return self.let_go(lease).await.map(|()| false),
                    Some(STOP) | None => return self.let_go(lease).await.map(|()| true),
                    Some(_) => {}
                },
                () = tokio::time::sleep(PACE) => {}
            }
        }
    }

    /// One count. A late one is what a holder does that was frozen between looking at its lease and
    /// writing: it writes what it remembers.
    pub(super) async fn count(
        &self,
        lease: &Lease,
        remembered: Option<u64>,
        late: bool,
    ) -> io::Result<Count> {
        let n = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        match self.try_count(lease, remembered, n).await {
            Ok((entry, revision)) => {
                let (value, until) = (entry.value, nanos(lease.valid_until()));
                (self.say)(Said::Counted { n, entry, revision, until, late })?;
                Ok(Count::Done(value))
            }
            Err(Error::Unknown { .. }) => {
                (self.say)(Said::Unknown { n })?;
                Ok(Count::Unknown)
            }
            Err(Error::Unavailable { .. }) => {
                (self.say)(Said::Refused { n, lost: false, late })?;
                Ok(Count::Refused(false))
            }
            Err(Error::Lost { .. }) => {
                (self.say)(Said::Refused { n, lost: true, late })?;
                Ok(Count::Refused(true))
            }
            Err(error) => {
                (self.say)(Said::Complaint(format!("counting met: {error}")))?;
                Ok(Count::Refused(false))
            }
        }
    }

    fn is_fenced(&self) -> bool {
        self.store.capabilities().multi_object_commits
    }

    async fn try_count(
        &self,
        lease: &Lease,
        remembered: Option<u64>,
        n: u64,
    ) -> tenure::Result<(Entry, u64)> {
        let counter = Key::new(&self.hold.counters, lease.id());
        let before = match remembered {
            Some(value) => value,
            None => match self.store.get(&counter).await {
                Ok(object) => object.as_ref().map_or(0, number),
                // Nothing was sent yet that could have happened.
                Err(error) => return Err(Error::unavailable("the counter", error)),
            },
        };
        let (process, lease_id) = (self.hold.name.clone(), lease.id().to_owned());
        let entry = Entry { process, lease: lease_id, token: lease.token(), value: before + 1 };
        let journal = Key::new(&self.hold.journal, entry_id(&self.hold.name, n));
        let payload = serde_json::to_vec(&entry)
            .map_err(|error| Error::invalid("journal entry", error.to_string()))?;
        let mut commit = Commit::from(Put::new(journal, payload).expect(Expect::Absent));
        if self.is_fenced() {
            commit = commit.put(Put::new(counter, entry.value.to_string())).fenced_by(lease);
        }
        let committed = self.store.commit(commit).await?;
        Ok((entry, committed.revision.unwrap_or_default()))
    }

    /// Lets go; from before the request on it no longer believes to hold.
    async fn let_go(&self, lease: Lease) -> io::Result<()> {
        let (id, token) = (lease.id().to_owned(), lease.token());
        let until = nanos(SystemClock.uptime().min(lease.valid_until()));
        let how = match lease.release().await {
            Err(Error::Lost { .. }) => "expired",
            // Where the answer is missing, the lease ends with its life.
            Ok(()) | Err(Error::Unavailable { .. } | Error::Unknown { .. }) => "released",
            Err(error) => return (self.say)(Said::Complaint(format!("a release met: {error}"))),
        };
        (self.say)(Said::Ended { lease: id, token, until, how: how.into() })
    }

    fn ended(&self, lease: &Lease, until: Duration, how: &str) -> io::Result<()> {
        let (lease, token, until) = (lease.id().to_owned(), lease.token(), nanos(until));
        (self.say)(Said::Ended { lease, token, until, how: how.into() })
    }
}

pub(super) fn nanos(uptime: Duration) -> u64 {
    u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX)
}
