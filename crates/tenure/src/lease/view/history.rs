//! Who held a scope before, as far as the store remembers.
//!
//! It is told from the store's history of changes, which every watcher can read. So it reaches back as far
//! as that is kept and costs nothing while nobody asks. A tenure's beginning is in its record; of its end
//! the history has the place and the cause but no time. What comes closest is told instead: when it was
//! revoked, or else when the next one began.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt as _;

use crate::lease::record::{REVOKED, RevokedRecord, decode, tagged};
use crate::lease::{Coordinator, LeaseEvent, LeaseInfo, LeaseWatch, Scope};
use crate::store::Cause;
use crate::{Error, Key, Result};

/// Whoever has nothing further to tell for this long has told everything. History does not say where it
/// ends: what comes next is the future.
const QUIET: Duration = Duration::from_millis(300);
/// History may be shortened between being asked how far it reaches and being read.
const ATTEMPTS: usize = 3;

/// How a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenureEnd {
    /// The holder let go, or somebody deleted its lease.
    Released,
    /// Nobody renewed it.
    Expired,
    /// Somebody ended it on purpose.
    Revoked {
        /// Who.
        by: String,
        /// Why, in that person's words.
        reason: String,
    },
    /// The holder passed it on.
    HandedOver {
        /// The successor.
        to: String,
    },
    /// The store does not say.
    Unspecified,
}

impl TenureEnd {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked { .. } => "revoked",
            Self::HandedOver { .. } => "handed_over",
            Self::Unspecified => "unspecified",
        }
    }
}

/// A tenure that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastTenure {
    /// The lease as it was last told.
    pub lease: LeaseInfo,
    /// How it ended.
    pub end: TenureEnd,
    /// It was over by then: revoked, or somebody else's. A label; `None` if nobody has held it since.
    pub until_ms: Option<i64>,
}

/// What is known of the tenures before those that are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Older {
    /// There were none.
    None,
    /// The store has forgotten, or never knew of, what was before.
    Compacted,
    /// More than were asked for.
    LeftOff,
    /// There was no time to read on, so that what is missing is newer than what is told.
    Unread,
    /// This store keeps no history at all.
    NotKept,
}

impl Older {
    /// A short stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Compacted => "compacted",
            Self::LeftOff => "left_off",
            Self::Unread => "unread",
            Self::NotKept => "not_kept",
        }
    }
}

/// The tenures of a scope that are over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The last one first.
    pub tenures: Vec<PastTenure>,
    /// What there was before.
    pub older: Older,
}

impl Coordinator {
    /// Who held a scope before: the last `most` tenures that are over, as far as the store's history
    /// reaches. Takes no longer than `within`, and what was found until then is told.
    pub async fn history(&self, scope: &Scope, most: usize, within: Duration) -> Result<History> {
        let inner = self.inner();
        if inner.store.capabilities().history.is_none() {
            return Ok(History { tenures: Vec::new(), older: Older::NotKept });
        }
        let holder = self.holder(scope).await?;
        let mut past = Past::new(scope, most);
        let limit = inner.clock.sleep(within);
        let read = tokio::select! {
            biased;
            read = self.read_history(scope, holder.as_ref(), &mut past) => Some(read?),
            () = limit => None,
        };
        let mut tenures: Vec<PastTenure> = past.ended.into();
        for tenure in &mut tenures {
            self.explain(tenure).await?;
        }
        tenures.reverse();
        let older = match read {
            None => Older::Unread,
            Some(_) if past.left_off => Older::LeftOff,
            Some(0) => Older::None,
            Some(_) => Older::Compacted,
        };
        Ok(History { tenures, older })
    }

    /// Reads it up to the present holder, or to where it is quiet. Tells where it began.
    async fn read_history(
        &self,
        scope: &Scope,
        holder: Option<&LeaseInfo>,
        past: &mut Past,
    ) -> Result<u64> {
        let mut after = 0;
        for _ in 0..ATTEMPTS {
            let read = match self.watch_batches(scope.as_str(), Some(after)).await {
                Ok(watch) => self.read_from(watch, after, holder, past).await,
                Err(error) => Err(error),
            };
            match read {
                Err(Error::Compacted { oldest, .. }) => {
                    after = after.max(oldest);
                    *past = Past::new(scope, past.most);
                }
                read => return read.map(|()| after),
            }
        }
        // It is forgotten faster than it can be read.
        Ok(after.max(1))
    }

    async fn read_from(
        &self,
        mut watch: LeaseWatch,
        after: u64,
        holder: Option<&LeaseInfo>,
        past: &mut Past,
    ) -> Result<()> {
        // A holder from before the beginning of the history has had it all along.
        if holder.is_some_and(|holder| holder.revision <= after) {
            return Ok(());
        }
        let clock = &self.inner().clock;
        loop {
            // With a holder its end is known, and silence means nothing: what others do is passed over.
            let quiet = async {
                match holder {
                    Some(_) => std::future::pending().await,
                    None => clock.sleep(QUIET).await,
                }
            };
            let batch = tokio::select! {
                biased;
                batch = watch.next() => batch,
                () = quiet => None,
            };
            let Some(batch) = batch.transpose()? else { return Ok(()) };
            let reached = holder.is_some_and(|holder| batch.revision >= holder.revision);
            batch.events.into_iter().for_each(|event| past.hear(event));
            if reached {
                return Ok(());
            }
        }
    }

    /// A lease that was revoked is deleted like one that was released; a word is left about it.
    async fn explain(&self, tenure: &mut PastTenure) -> Result<()> {
        if tenure.end != TenureEnd::Released {
            return Ok(());
        }
        let inner = self.inner();
        let key = Key::new(REVOKED, tagged(&tenure.lease.id, &tenure.lease.nonce));
        if inner.multi()
            && let Some(note) = inner.store.get(&key).await?
        {
            let RevokedRecord { by, reason } = decode(&note, inner.backend())?;
            tenure.end = TenureEnd::Revoked { by, reason };
            tenure.until_ms = Some(note.created_at_ms);
        }
        Ok(())
    }
}

/// What was heard so far.
struct Past {
    id: String,
    most: usize,
    /// The tenure that goes on.
    open: Option<LeaseInfo>,
    ended: VecDeque<PastTenure>,
    left_off: bool,
}

impl Past {
    fn new(scope: &Scope, most: usize) -> Self {
        let id = scope.as_str().to_owned();
        Self { id, most, open: None, ended: VecDeque::new(), left_off: false }
    }

    fn hear(&mut self, event: LeaseEvent) {
        match event {
            LeaseEvent::Held(info) if info.id == self.id => self.begin(info),
            LeaseEvent::Ended { id, cause, last } if id == self.id => {
                let end = match cause {
                    Cause::Deleted => TenureEnd::Released,
                    Cause::Expired => TenureEnd::Expired,
                    Cause::Unspecified => TenureEnd::Unspecified,
                };
                // Its beginning may be forgotten; the end tells what it was, where the store remembers.
                if let Some(lease) = self.open.take().or(last) {
                    self.end(lease, end);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, info: LeaseInfo) {
        let before = self.open.replace(info.clone()).filter(|before| before.nonce != info.nonce);
        if let Some(before) = before {
            self.end(before, TenureEnd::HandedOver { to: info.holder.to_string() });
        }
        if let Some(last) = self.ended.back_mut()
            && last.lease.nonce != info.nonce
        {
            last.until_ms.get_or_insert(info.acquired_at_ms);
        }
    }

    fn end(&mut self, lease: LeaseInfo, end: TenureEnd) {
        self.ended.push_back(PastTenure { lease, end, until_ms: None });
        if self.ended.len() > self.most {
            self.ended.pop_front();
            self.left_off = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::FeedLimits;
    use crate::clock::SystemClock;
    use crate::lease::Terms;
    use crate::store::Put;
    use crate::store::memory::MemoryStore;

    const SOON: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn it_tells_who_held_a_scope_and_how_each_tenure_ended() {
        let store = MemoryStore::new().into_store();
        let named = |name: &str| Coordinator::builder(store.clone()).name(name).start().unwrap();
        let (a, b) = (named("a"), named("b"));
        let scope: Scope = "h/one".parse().unwrap();
        let none = a.history(&scope, 5, SOON).await.unwrap();
        assert_eq!(none, History { tenures: Vec::new(), older: Older::None });

        let terms = Terms::new().ttl(Duration::from_secs(60));
        let other = "h/one-more".parse().unwrap();
        let beside = b.acquire(&other, &terms).await.unwrap();
        let lease = a.acquire(&scope, &terms).await.unwrap();
        let tokens = [lease.token()];
        let waits = tokio::spawn({
            let (b, scope, terms) = (b.clone(), scope.clone(), terms.clone().wait_forever());
            async move { b.acquire(&scope, &terms).await }
        });
        while a.status(&scope).await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
        lease.hand_over("b").await.map_err(|(_, error)| error).unwrap();
        let lease = waits.await.unwrap().unwrap();
        lease.proclaim([("at".to_owned(), "home".to_owned())].into()).await.unwrap();
        a.revoke(&scope, "to see what happens").await.unwrap();
        a.acquire(&scope, &terms).await.unwrap().release().await.unwrap();
        let brief = Terms::new().ttl(Duration::from_millis(200));
        let brief = b.acquire(&scope, &brief).await.unwrap();
        brief.detach();
        while a.holder(&scope).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }

        let told = a.history(&scope, 5, SOON).await.unwrap();
        let ends: Vec<_> = told.tenures.iter().map(|past| past.end.code()).collect();
        assert_eq!(ends, ["expired", "released", "revoked", "handed_over"], "{told:?}");
        let names: Vec<_> = told.tenures.iter().map(|past| past.lease.holder.name()).collect();
        assert_eq!(names, ["b", "a", "b", "a"]);
        assert_eq!(told.tenures[3].lease.token, tokens[0]);
        assert_eq!(told.tenures[2].lease.metadata["at"], "home");
        let until: Vec<_> = told.tenures.iter().map(|past| past.until_ms.is_some()).collect();
        assert_eq!(until, [false, true, true, true]);
        assert_eq!(told.older, Older::None);

        let two = a.history(&scope, 2, SOON).await.unwrap();
        assert_eq!((two.tenures.len(), two.older), (2, Older::LeftOff));
        assert_eq!(two.tenures, told.tenures[..2]);
        // While somebody holds it, that one is no past.
        let now = a.acquire(&scope, &terms).await.unwrap();
        let held = a.history(&scope, 5, SOON).await.unwrap();
        assert_eq!(held.tenures.len(), 4);
        assert!(held.tenures[0].until_ms.is_some());
        now.release().await.unwrap();
        beside.release().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_forgotten_is_said_to_be() {
        let few = FeedLimits { batches: 8, bytes: 64 * 1024 };
        let store = MemoryStore::with_history(SystemClock::shared(), few).into_store();
        let coordinator = Coordinator::new(store.clone()).unwrap();
        let scope: Scope = "h/two".parse().unwrap();
        coordinator.acquire(&scope, &Terms::new()).await.unwrap().release().await.unwrap();
        for number in 0..64 {
            store.commit(Put::new(Key::new("k", "1"), number.to_string())).await.unwrap();
        }
        let told = coordinator.history(&scope, 5, SOON).await.unwrap();
        assert_eq!(told, History { tenures: Vec::new(), older: Older::Compacted });
        let held = coordinator.acquire(&scope, &Terms::new()).await.unwrap();
        assert_eq!(coordinator.history(&scope, 5, SOON).await.unwrap(), told);
        held.release().await.unwrap();
    }
}
