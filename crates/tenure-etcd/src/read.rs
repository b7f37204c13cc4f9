//! Reads: always linearizable, and with what is left of each life.
//!
//! etcd says what is left of a lease one lease at a time. A get asks for it; a page asks for its
//! first hundred or so at once, and says of the others that at least nothing is left, which is true.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use tenure::store::{Page, Query};
use tenure::{Error, Key, Object, Result};

use crate::BACKEND;
use crate::endpoints::Budget;
use crate::envelope::{Known, number};
use crate::keys::end_of;
use crate::leases::grace;
use crate::shared::Shared;
use crate::wire::{KeyValue, LeaseLife, LeaseRequest, RangeRequest, RangeResponse, path};

/// Lives asked for on one page, and how many of them at a time.
const LIVES: usize = 128;
const AT_ONCE: usize = 32;
/// Objects looked at for one page of a query that selects.
const LOOKED_AT: usize = 500;
/// A name may pass from one object to another between two reads so often.
const ATTEMPTS: u32 = 10;

impl Shared {
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<Object>> {
        let budget = self.endpoints.budget();
        let answer = self.range(self.keys.object(key), vec![], 0, budget).await?;
        let Some(kv) = answer.kvs.into_iter().next() else { return Ok(None) };
        let known = Known::read(key.clone(), &kv)?;
        self.with_life(known, budget).await.map(Some)
    }

    async fn range(
        &self,
        key: Vec<u8>,
        range_end: Vec<u8>,
        limit: i64,
        budget: Budget,
    ) -> Result<RangeResponse> {
        let question = RangeRequest { key, range_end, limit, count_only: false };
        self.endpoints.read(path::RANGE, question, budget).await
    }

    /// The store's revision: no commit acknowledged before has a greater one.
    pub(crate) async fn head(&self) -> Result<u64> {
        let budget = self.endpoints.budget();
        let answer = self.range(self.keys.writer(), vec![], 0, budget).await?;
        Ok(revision(&answer))
    }

    async fn with_life(&self, known: Known, budget: Budget) -> Result<Object> {
        let left = match known.lease {
            0 => None,
            id => {
                let life: LeaseLife =
                    self.endpoints.read(path::TIME_TO_LIVE, LeaseRequest { id }, budget).await?;
                // Whole seconds, rounded down; negative for a lease that has just ended.
                Some(Duration::from_secs(number(life.ttl).saturating_sub(grace(known.life))))
            }
        };
        let mut object = Object::clone(&known.object);
        object.expires_in = left;
        Ok(object)
    }

    pub(crate) async fn list(&self, query: &Query) -> Result<Page> {
        let budget = self.endpoints.budget();
        if let Some(name) = &query.name {
            return self.list_named(query, name, budget).await;
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
        let answer = self.some_of(start, end, look_at, budget).await?;
        self.page(query, answer, budget).await
    }

    /// As many as fit into one answer, at most `limit`.
    async fn some_of(
        &self,
        start: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
        budget: Budget,
    ) -> Result<RangeResponse> {
        let mut limit = i64::try_from(limit).unwrap_or(i64::MAX);
        loop {
            match self.range(start.clone(), end.clone(), limit, budget).await {
                Err(Error::LimitExceeded { .. }) if limit > 1 => limit /= 4,
                answer => return answer,
            }
            limit = limit.max(1);
        }
    }

    async fn page(&self, query: &Query, answer: RangeResponse, budget: Budget) -> Result<Page> {
        let revision = revision(&answer);
        let mut matching = Vec::new();
        let mut next = None;
        for kv in &answer.kvs {
            let known = self.known(kv)?;
            if matching.len() == query.limit {
                next = matching.last().map(|known: &Known| known.object.key.id.clone());
                break;
            }
            if query.matches(&known.object) {
                matching.push(known);
            } else if answer.more && kv == &answer.kvs[answer.kvs.len() - 1] {
                next = Some(known.object.key.id.clone());
            }
        }
        if next.is_none() && answer.more {
            let last = answer.kvs.last().and_then(|kv| self.keys.parse(&kv.key));
            next = last.map(|key| key.id);
        }
        let objects = self.with_lives(matching, budget).await?;
        Ok(Page { objects, next, revision })
    }

    fn known(&self, kv: &KeyValue) -> Result<Known> {
        let odd = || {
            let key = String::from_utf8_lossy(&kv.key);
            Error::corrupt(BACKEND, format!("{key:?} is no key of Tenure's; delete it"))
        };
        Known::read(self.keys.parse(&kv.key).ok_or_else(odd)?, kv)
    }

    async fn with_lives(&self, known: Vec<Known>, budget: Budget) -> Result<Vec<Object>> {
        let asked = stream::iter(known.into_iter().scan(0_usize, |mortal, known| {
            *mortal += usize::from(known.lease != 0);
            let ask = *mortal <= LIVES || known.lease == 0;
            Some(async move {
                if ask {
                    return self.with_life(known, budget).await;
                }
                let mut object = Object::clone(&known.object);
                object.expires_in = Some(Duration::ZERO);
                Ok(object)
            })
        }));
        let answers: Vec<Result<Object>> = asked.buffered(AT_ONCE).collect().await;
        answers.into_iter().collect()
    }

    async fn list_named(&self, query: &Query, name: &str, budget: Budget) -> Result<Page> {
        for _ in 0..ATTEMPTS {
            let owner = self.range(self.keys.name(&query.kind, name), vec![], 0, budget).await?;
            let Some(kv) = owner.kvs.first() else {
                return Ok(Page { objects: vec![], next: None, revision: revision(&owner) });
            };
            let key = Key::new(&query.kind, String::from_utf8_lossy(&kv.value));
            let answer = self.range(self.keys.object(&key), vec![], 0, budget).await?;
            let Some(kv) = answer.kvs.first() else { continue };
            let known = Known::read(key, kv)?;
            // It may have passed the name on between the two reads.
            if known.object.name.as_deref() != Some(name) {
                continue;
            }
            let id = &known.object.key.id;
            let wanted =
                query.matches(&known.object) && query.after.as_ref().is_none_or(|after| id > after);
            let found = if wanted { vec![known] } else { vec![] };
            let revision = revision(&answer);
            let objects = self.with_lives(found, budget).await?;
            return Ok(Page { objects, next: None, revision });
        }
        Err(Error::unavailable(BACKEND, format!("the name {name:?} changes hands too often")))
    }
}

fn revision(answer: &RangeResponse) -> u64 {
    number(answer.header.as_ref().map_or(0, |header| header.revision))
}
