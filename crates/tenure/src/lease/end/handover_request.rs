//! Asking a holder to hand over.
//!
//! Only the holder can pass a lease on, because only it knows when its work has stopped. So a caller that wants
//! that leaves a request beside the lease, for this tenure and no other. A holder that listens takes it up,
//! stops its work and hands over.
//!
//! A request is taken up by a write, and withdrawn by a delete, that both expect it as it was left. So one
//! of them happens and not the other: nobody stops its work for somebody who has given up, and whoever is
//! told that nothing was done can rely on it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use serde::{Deserialize, Serialize};

use crate::lease::acquire::claim::read;
use crate::lease::acquire::rwlock::can_be_handed_over;
use crate::lease::acquire::slots::passing_on;
use crate::lease::end::handover::{no_hand_over, waits_not};
use crate::lease::inner::Inner;
use crate::lease::queue::list::{find_waiter, waiters};
use crate::lease::record::{HAND_OVER, decode, encode, tagged};
use crate::lease::{Coordinator, Lease, LeaseEvent, LeaseInfo, Scope, Slots, lease_key};
use crate::store::{Capability, Commit, Expect, Put, Store, Watch, WatchRequest};
use crate::{Error, Key, Object, Result};

/// After a store that did not answer, or a successor that does not wait any more, it is looked again.
const PAUSE: Duration = Duration::from_secs(1);
/// Others may ask at the same moment.
const ATTEMPTS: u32 = 3;
/// A request outlives the wait of its caller by this, and expires by itself if nobody withdraws it.
const SLACK: Duration = Duration::from_secs(5);

/// The payload of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RequestRecord {
    /// Whom to hand over to.
    to: String,
    /// Who asks.
    by: String,
    /// The holder stops its work because of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    taken_up: bool,
}

/// What a holder is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOverRequest {
    /// Whom to hand over to, as [`Lease::hand_over`] takes it.
    pub to: String,
    /// Who asks.
    pub by: String,
}

impl Lease {
    /// Resolves when somebody asks that this lease be handed over, and it is waited for by whom it is to
    /// go to. The request is taken up with that: stop the work, then [`Lease::hand_over`], or release the
    /// lease if that cannot be.
    ///
    /// Where a store can hand nothing over this never resolves. Losing the lease does not resolve it.
    pub async fn asked_to_hand_over(&self) -> HandOverRequest {
        let inner = self.inner();
        if !inner.multi() || can_be_handed_over(self.id()).is_err() {
            return std::future::pending().await;
        }
        let key = Key::new(HAND_OVER, self.lease_key());
        let mut watch = None;
        loop {
            match self.look(&key, &mut watch).await {
                Ok(Some(request)) => return request,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(lease = self.id(), %error, "cannot hear of hand-overs");
                    watch = None;
                    inner.clock.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes up the request there is, or waits until there may be another.
    async fn look(&self, key: &Key, watch: &mut Option<Watch>) -> Result<Option<HandOverRequest>> {
        let inner = self.inner();
        let watch = match watch {
            Some(watch) => watch,
            // Before it is looked: what comes in between is then seen twice, not missed.
            none => none.insert(open(&inner.store, key).await?),
        };
        let pause = match inner.store.get(key).await? {
            None => inner.options.recheck_every,
            Some(object) => match self.take_up(&object).await? {
                Some(request) => return Ok(Some(request)),
                None => PAUSE,
            },
        };
        tokio::select! {
            batch = watch.next() => match batch {
                Some(batch) => batch.map(|_| None),
                None => Err(Error::unavailable(inner.backend(), "the watch has ended")),
            },
            () = inner.clock.sleep(pause) => Ok(None),
        }
    }

    /// Takes a request up, unless whom it is to go to waits no more.
    async fn take_up(&self, object: &Object) -> Result<Option<HandOverRequest>> {
        let inner = self.inner();
        let mut record: RequestRecord = decode(object, inner.backend())?;
        let request = HandOverRequest { to: record.to.clone(), by: record.by.clone() };
        if record.taken_up {
            // Nobody but this holder does that: the answer to it was lost.
            return Ok(Some(request));
        }
        let waiter = find_waiter(inner, self.queue(), &record.to).await?;
        if waiter.is_none_or(|waiter| waiter.record.no_hand_over) {
            return Ok(None);
        }
        record.taken_up = true;
        let put = Put::new(object.key.clone(), encode(&record))
            .expect(Expect::Revision(object.revision))
            .ttl(object.ttl.unwrap_or(SLACK));
        inner.store.commit(Commit::from(put)).await?;
        Ok(Some(request))
    }
}

/// A watch of one object, from now on.
async fn open(store: &Store, key: &Key) -> Result<Watch> {
    store.watch(&WatchRequest::kind(&*key.kind).prefix(&*key.id)).await
}

impl Coordinator {
    /// Asks the holder of a scope to stop its work and hand the scope over, to somebody who waits for it
    /// (`name` or `name#start`) or to the first in the queue, and waits until that is done. If a token is
    /// given, only the tenure under that token is meant. Tells who holds it then.
    ///
    /// # Errors
    /// [`Error::NotFound`] if nobody holds it; [`Error::Invalid`] if nobody waits who could have it;
    /// [`Error::Held`] if the holder did not take the request up within the wait, and then it never will;
    /// [`Error::Unknown`] if it did and was not done yet; [`Error::Lost`] if its tenure ended otherwise.
    pub async fn ask_to_hand_over(
        &self,
        scope: &Scope,
        expect_token: Option<u64>,
        to: Option<&str>,
        wait: Duration,
    ) -> Result<LeaseInfo> {
        let wish = Wish { key: lease_key(scope), queue: scope.as_str(), expect_token, to, wait };
        wish.ask(self).await
    }
}

impl Slots {
    /// The same for one slot of the group, for somebody who waits for any.
    pub async fn ask_to_hand_over(
        &self,
        index: u32,
        expect_token: Option<u64>,
        to: Option<&str>,
        wait: Duration,
    ) -> Result<LeaseInfo> {
        let wish = Wish { key: self.slot_key(index), queue: self.queue(), expect_token, to, wait };
        wish.ask(self.coordinator()).await
    }
}

/// What is to be handed over to whom.
struct Wish<'a> {
    key: Key,
    queue: &'a str,
    expect_token: Option<u64>,
    to: Option<&'a str>,
    wait: Duration,
}

/// A request that was left.
struct Request {
    key: Key,
    revision: u64,
    /// Nobody but us can have removed it before this instant.
    stands_until: Duration,
}

impl Wish<'_> {
    async fn ask(&self, coordinator: &Coordinator) -> Result<LeaseInfo> {
        let inner = coordinator.inner();
        if !inner.multi() {
            let capability = Capability::MultiObjectCommits;
            return Err(Error::Unsupported { capability, backend: inner.backend() });
        }
        let deadline = inner.clock.sleep(self.wait);
        let Some(holder) = read(inner, &self.key).await? else {
            return Err(Error::NotFound { key: self.key.clone() });
        };
        if let Some(token) = self.expect_token.filter(|token| *token != holder.token) {
            return Err(self.lost(token, Some(holder.token)));
        }
        can_be_handed_over(&self.key.id)?;
        passing_on(inner, self.queue, &self.key.id).await?;
        let to = self.successor(inner).await?;
        let request = self.leave(inner, &holder, &to).await?;
        tracing::info!(lease = %self.key.id, holder = %holder.holder, to, "asked to hand over");
        tokio::select! {
            biased;
            became = self.becomes(coordinator, &holder, &to) => became,
            () = deadline => self.give_up(inner, &holder, &request, &to).await,
        }
    }

    /// Who is to have it, by name and start.
    async fn successor(&self, inner: &Inner) -> Result<String> {
        if let Some(to) = self.to {
            let waiter = find_waiter(inner, self.queue, to).await?;
            let waiter = waiter.ok_or_else(|| waits_not(to, self.queue))?;
            if waiter.record.no_hand_over {
                return Err(no_hand_over(to));
            }
            return Ok(waiter.owner.to_string());
        }
        let mut queue = waiters(inner, self.queue).await?.into_iter();
        let first = queue.find(|waiter| !waiter.record.no_hand_over);
        first.map(|waiter| waiter.owner.to_string()).ok_or_else(|| {
            let reason =
                "nobody waits who could have it; to end the tenure all the same, revoke it";
            Error::invalid(format!("hand-over of {}", self.key.id), reason)
        })
    }

    /// Leaves the request for the holder. One that somebody else has left stands until it is over.
    async fn leave(&self, inner: &Inner, holder: &LeaseInfo, to: &str) -> Result<Request> {
        let key = Key::new(HAND_OVER, tagged(&self.key.id, &holder.nonce));
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let before = inner.store.get(&key).await?;
            if let Some(object) = &before {
                self.may_replace(inner, object)?;
            }
            let expect = before.map_or(Expect::Absent, |object| Expect::Revision(object.revision));
            let by = inner.owner.to_string();
            let record = RequestRecord { to: to.into(), by, taken_up: false };
            let life = self.wait.saturating_add(SLACK);
            let put = Put::new(key.clone(), encode(&record)).expect(expect).ttl(life);
            // Halfway, so that no clock is so wrong that the request is over and its wait is not.
            let stands_until =
                inner.clock.uptime().saturating_add(self.wait).saturating_add(SLACK / 2);
            match inner.store.commit(Commit::from(put)).await {
                Ok(committed) => {
                    let revision = committed.first_put().map_or(0, |put| put.revision);
                    return Ok(Request { key, revision, stands_until });
                }
                // Somebody was quicker: the next look tells who.
                Err(error) if error.is_conflict() || error.is_not_found() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::unavailable(inner.backend(), "others were quicker")))
    }

    /// Whether the request that is there is ours to replace.
    fn may_replace(&self, inner: &Inner, object: &Object) -> Result<()> {
        let record: RequestRecord = decode(object, inner.backend())?;
        if !record.taken_up && record.by == inner.owner.to_string() {
            return Ok(());
        }
        let reason = format!("{} has asked for it, and it goes to {}", record.by, record.to);
        Err(Error::invalid(format!("hand-over of {}", self.key.id), reason))
    }

    /// Waits until somebody else holds it.
    async fn becomes(
        &self,
        coordinator: &Coordinator,
        before: &LeaseInfo,
        to: &str,
    ) -> Result<LeaseInfo> {
        let inner = coordinator.inner();
        loop {
            // The watch first: a change between the two is then seen twice, never missed.
            let events = coordinator.watch(&self.key.id, None).await;
            let now = read(inner, &self.key).await;
            let (Ok(mut events), Ok(now)) = (events, now) else {
                inner.clock.sleep(PAUSE).await;
                continue;
            };
            if now.as_ref().is_none_or(|now| now.nonce != before.nonce) {
                return self.judge(before, to, now);
            }
            while let Some(Ok(event)) = events.next().await {
                match event {
                    LeaseEvent::Held(info)
                        if info.id == self.key.id && info.nonce != before.nonce =>
                    {
                        return self.judge(before, to, Some(info));
                    }
                    LeaseEvent::Ended { id, .. } if id == self.key.id => {
                        return self.judge(before, to, None);
                    }
                    _ => {}
                }
            }
            inner.clock.sleep(PAUSE).await;
        }
    }

    fn judge(&self, before: &LeaseInfo, to: &str, now: Option<LeaseInfo>) -> Result<LeaseInfo> {
        match now {
            Some(now) if now.holder.is_called(to) => Ok(now),
            now => Err(self.lost(before.token, now.map(|now| now.token))),
        }
    }

    /// The wait is over: takes the request back, unless it was taken up.
    async fn give_up(
        &self,
        inner: &Arc<Inner>,
        holder: &LeaseInfo,
        request: &Request,
        to: &str,
    ) -> Result<LeaseInfo> {
        if !withdraw(inner, request).await.map_err(|error| stands(inner, error))? {
            let told = format!("{} stops its work to hand over, and is not done", holder.holder);
            return Err(Error::unknown(inner.backend(), told));
        }
        if find_waiter(inner, self.queue, to).await?.is_none() {
            return Err(waits_not(to, self.queue));
        }
        Err(Error::Held {
            scope: self.key.id.clone(),
            holder: Some(holder.holder.to_string()),
            token: holder.token,
            expires_in: holder.expires_in.unwrap_or_default(),
        })
    }

    fn lost(&self, token: u64, current: Option<u64>) -> Error {
        Error::Lost { key: self.key.clone(), token, current }
    }
}

/// Whether the request was taken back; not if the holder has taken it up.
async fn withdraw(inner: &Inner, request: &Request) -> Result<bool> {
    let Request { key, revision, stands_until } = request;
    let withdrawal = Commit::new().delete(key.clone(), Expect::Revision(*revision));
    match inner.store.commit(withdrawal).await {
        Ok(_) => Ok(true),
        // It cannot have expired yet, so it was not taken up either.
        Err(Error::NotFound { .. }) if inner.clock.uptime() < *stands_until => Ok(true),
        Err(Error::NotFound { .. }) => {
            let told = "the request is over and may have been taken up before; look who holds it";
            Err(Error::unknown(inner.backend(), told))
        }
        Err(error) if error.is_conflict() => {
            // Changed by the holder, or by another request of ours.
            let now = inner.store.get(key).await?;
            let now = now.map(|object| decode::<RequestRecord>(&object, inner.backend()));
            Ok(now.transpose()?.is_some_and(|now| !now.taken_up))
        }
        Err(error) => Err(error),
    }
}

/// Said where it is not known whether a request was taken back: it stands for a moment longer.
fn stands(inner: &Inner, error: Error) -> Error {
    match error {
        Error::Unavailable { reason, .. } => {
            let told = format!("the request may still be taken up; look who holds it ({reason})");
            Error::unknown(inner.backend(), told)
        }
        other => other,
    }
}
