//! Reads: always linearizable, and with what is left of each life.
//!
//! etcd says what is left of a lease one lease at a time. A get asks for it; a page asks for its
//! first hundred or so at once, and says of the others that at least nothing is left, which is true.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use tenure::store::{Page, Query};
use tenure::{Error, Key, Object, Result};

use crate::BACKEND;
use crate::endpoints::Deadline;
use crate::inner::Inner;
use crate::keys::end_of;
use crate::lease_pool::grace;
use crate::messages::{KeyValue, LeaseLife, LeaseRequest, RangeRequest, RangeResponse, path};
use crate::stored::{Stored, number};

/// Lives asked for on one page, and how many of them at a time.
const LIVES: usize = 128;
const AT_ONCE: usize = 32;
/// Objects looked at for one page of a query that selects.
const LOOKED_AT: usize = 500;
/// A name may pass from one object to another between two reads so often.
const ATTEMPTS: u32 = 10;

impl Inner {
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let deadline = self.endpoints.deadline();
        let answer = self.range(self.keys.object(key), vec![], 0, deadline).await?;
        let Some(kv) = answer.kvs.into_iter().next() else { return Ok(None) };
        let stored = Stored::read(key.clone(), &kv)?;
        self.with_life(stored, deadline).await.map(Some)
    }

    async fn range(
        &self,
        key: Vec<u8>,
        range_end: Vec<u8>,
        limit: i64,
        deadline: Deadline,
    ) -> Result<RangeResponse> {
        let question = RangeRequest { key, range_end, limit, count_only: false };
        self.endpoints.read(path::RANGE, question, deadline).await
    }

    /// The store's revision: no commit acknowledged before has a greater one.
    pub(crate) async fn head(&self) -> Result<u64> {
        let deadline = self.endpoints.deadline();
        let answer = self.range(self.keys.writer(), vec![], 0, deadline).await?;
        Ok(revision(&answer))
    }

    async fn with_life(&self, stored: Stored, deadline: Deadline) -> Result<Object> {
        let left = match stored.lease {
            0 => None,
            id => {
                let life: LeaseLife =
                    self.endpoints.read(path::TIME_TO_LIVE, LeaseRequest { id }, deadline).await?;
                // Whole seconds, rounded down; negative for a lease that has just ended.
                Some(Duration::from_secs(number(life.ttl).saturating_sub(grace(stored.life))))
            }
        };
        let mut object = Object::clone(&stored.object);
        object.expires_in = left;
        Ok(object)
    }

    pub(crate) async fn list(&self, query: &Query) -> Result<Page> {
        let deadline = self.endpoints.deadline();
        if let Some(name) = &query.name {
            return self.list_named(query, name, deadline).await;
        }
        let kind = Some(query.kind.as_str());
        let base = self.keys.start(kind, "");
        let mut start = self.keys.start(kind, query.range.start());
        if let Some(after) = &query.after {
            // The first key behind it.
            let mut behind = self.keys.start(kind, after);
            behind.push(0);
            start = start.max(behind);
        }
        let mut end = match query.range.prefix.as_str() {
            "" => end_of(&base),
            prefix => end_of(&self.keys.start(kind, prefix)),
        };
        if let Some(until) = &query.range.until {
            end = end.min(self.keys.start(kind, until));
        }
        if start >= end {
            return Ok(Page { objects: vec![], next: None, revision: self.head().await? });
        }
        let look_at = if query.selector.is_empty() { query.limit } else { LOOKED_AT };
        let answer = self.some_of(start, end, look_at, deadline).await?;
        self.page(query, answer, deadline).await
    }

    /// As many as fit into one answer, at most `limit`.
    async fn some_of(
        &self,
        start: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<RangeResponse> {
        let mut limit = i64::try_from(limit).unwrap_or(i64::MAX);
        loop {
            match self.range(start.clone(), end.clone(), limit, deadline).await {
                Err(Error::LimitExceeded { .. }) if limit > 1 => limit /= 4,
                answer => return answer,
            }
            limit = limit.max(1);
        }
    }

    async fn page(&self, query: &Query, answer: RangeResponse, deadline: Deadline) -> Result<Page> {
        let revision = revision(&answer);
        let mut matching = Vec::new();
        let mut next = None;
        for kv in &answer.kvs {
            let stored = self.stored(kv)?;
            if matching.len() == query.limit {
                next = matching.last().map(|stored: &Stored| stored.object.key.id.clone());
                break;
            }
            if query.matches(&stored.object) {
                matching.push(stored);
            } else if answer.more && kv == &answer.kvs[answer.kvs.len() - 1] {
                next = Some(stored.object.key.id.clone());
            }
        }
        if next.is_none() && answer.more {
            let last = answer.kvs.last().and_then(|kv| self.keys.parse(&kv.key));
            next = last.map(|key| key.id);
        }
        let objects = self.with_lives(matching, deadline).await?;
        Ok(Page { objects, next, revision })
    }

    fn stored(&self, kv: &KeyValue) -> Result<Stored> {
        let odd = || {
            let key = String::from_utf8_lossy(&kv.key);
            Error::corrupt(BACKEND, format!("{key:?} is no key of Tenure's; delete it"))
        };
        Stored::read(self.keys.parse(&kv.key).ok_or_else(odd)?, kv)
    }

    async fn with_lives(&self, stored: Vec<Stored>, deadline: Deadline) -> Result<Vec<Object>> {
        let asked = stream::iter(stored.into_iter().scan(0_usize, |mortal, stored| {
            *mortal += usize::from(stored.lease != 0);
            let ask = *mortal <= LIVES || stored.lease == 0;
            Some(async move {
                if ask {
                    return self.with_life(stored, deadline).await;
                }
                let mut object = Object::clone(&stored.object);
                object.expires_in = Some(Duration::ZERO);
                Ok(object)
            })
        }));
        let answers: Vec<Result<Object>> = asked.buffered(AT_ONCE).collect().await;
        answers.into_iter().collect()
    }

    async fn list_named(&self, query: &Query, name: &str, deadline: Deadline) -> Result<Page> {
        for _ in 0..ATTEMPTS {
            let owner = self.range(self.keys.name(&query.kind, name), vec![], 0, deadline).await?;
            let Some(kv) = owner.kvs.first() else {
                return Ok(Page { objects: vec![], next: None, revision: revision(&owner) });
            };
            let key = Key::new(&query.kind, String::from_utf8_lossy(&kv.value));
            let answer = self.range(self.keys.object(&key), vec![], 0, deadline).await?;
            let Some(kv) = answer.kvs.first() else { continue };
            let stored = Stored::read(key, kv)?;
            // It may have passed the name on between the two reads.
            if stored.object.name.as_deref() != Some(name) {
                continue;
            }
            let id = &stored.object.key.id;
            let wanted = query.matches(&stored.object)
                && query.after.as_ref().is_none_or(|after| id > after);
            let found = if wanted { vec![stored] } else { vec![] };
            let revision = revision(&answer);
            let objects = self.with_lives(found, deadline).await?;
            return Ok(Page { objects, next: None, revision });
        }
        Err(Error::unavailable(BACKEND, format!("the name {name:?} changes hands too often")))
    }
}

fn revision(answer: &RangeResponse) -> u64 {
    number(answer.header.as_ref().map_or(0, |header| header.revision))
}
