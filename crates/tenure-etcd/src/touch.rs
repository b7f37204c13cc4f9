//! Touches: the life of many objects started anew, with no transaction of their own.
//!
//! An etcd lease that is kept alive prolongs its object and changes nothing else. So the leases that
//! are known are kept alive at once, all of them down one connection, and beside that the objects are
//! read to see that each still has the revision given and hangs on that lease. Either order is sound:
//! an object found on a lease that was kept alive within this call lives at least its full life from
//! the start of the call. What was not known is kept alive in a second round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{self, StreamExt};
use tenure::store::{Expect, Touch, Touched};
use tenure::{Error, Key, Result};

use crate::BACKEND;
use crate::endpoints::{Budget, Watched};
use crate::envelope::{Known, rewrite};
use crate::error::Fault;
use crate::link::Link;
use crate::plan::{put, unchanged};
use crate::shared::{Shared, believed};
use crate::snapshot::get;
use crate::wire::{TxnRequest, TxnResponse, path};

/// Objects read in one transaction.
const READ: usize = 100;
/// How much longer each of them may take a server that has to ask the leader.
const MORE: Duration = Duration::from_micros(200);
/// Objects moved to longer leases at a time.
const MOVES: usize = 64;
/// How often a move may find the object changed by another one.
const ATTEMPTS: u32 = 10;

/// What is to be done for one touch after a look at its object.
enum Look {
    /// Its lease was kept alive.
    Done(Arc<Known>),
    /// Its lease has yet to be.
    Renew(Arc<Known>),
    /// Its lease is too short.
    Move(Arc<Known>),
    No(Error),
}

impl Shared {
    pub(crate) async fn touch(&self, touches: &[Touch]) -> Result<Vec<Result<Touched>>> {
        let budget = self.endpoints.budget();
        let since = self.endpoints.options.clock.uptime();
        let looks = self.look(touches, budget).await?;
        let late: Vec<i64> = looks
            .iter()
            .filter_map(|look| match look {
                Look::Renew(known) => Some(known.lease),
                _ => None,
            })
            .collect();
        let mut renewed = match late.is_empty() {
            true => Vec::new(),
            false => self.keep_alive_for_certain(&late, budget).await?,
        }
        .into_iter();
        let answers = looks.into_iter().zip(touches).map(|(look, touch)| {
            let in_time = match look {
                Look::Renew(_) => renewed.next().is_some_and(|answer| answer.is_ok()),
                _ => true,
            };
            self.answer(touch, look, in_time, since, budget)
        });
        Ok(stream::iter(answers.collect::<Vec<_>>()).buffered(MOVES).collect().await)
    }

    async fn answer(
        &self,
        touch: &Touch,
        look: Look,
        in_time: bool,
        since: Duration,
        budget: Budget,
    ) -> Result<Touched> {
        let known = match look {
            Look::No(error) => return Err(error),
            Look::Move(known) => return self.lengthen(touch, known, budget).await,
            Look::Done(known) | Look::Renew(known) if in_time => known,
            _ => return Err(Error::NotFound { key: touch.key.clone() }),
        };
        self.cache.put(&Arc::new(Known { since: Some(since), ..Known::clone(&known) }));
        Ok(Touched { revision: touch.revision, ttl: touch.ttl })
    }

    /// Keeps alive what is known and reads everything, on one connection.
    async fn look(&self, touches: &[Touch], budget: Budget) -> Result<Vec<Look>> {
        let mut why = Error::unavailable(BACKEND, "no time was left");
        while !self.endpoints.left(budget).is_zero() {
            let link = self.endpoints.link(budget).await?;
            let attempt = self.endpoints.options.attempt + MORE * touches.len() as u32;
            let attempt = self.endpoints.left(budget).min(attempt);
            let guesses: Vec<i64> = touches.iter().map(|touch| self.guess(touch)).collect();
            let leases: Vec<i64> = guesses.iter().copied().filter(|lease| *lease != 0).collect();
            let watched = Watched::new(&self.endpoints, &link);
            let both = join(self.keep_alive(&link, &leases), self.read_all(&link, touches));
            let answers = tokio::time::timeout(attempt, both).await;
            watched.done();
            let (renewed, read) = match answers {
                Ok((renewed, Ok(read))) => (renewed, read),
                Ok((_, Err(Fault::No(error)))) => return Err(error),
                Ok((_, Err(fault))) => {
                    why = fault.of_read();
                    self.endpoints.fail(&link);
                    continue;
                }
                Err(_) => {
                    why = Error::unavailable(BACKEND, format!("no answer within {attempt:?}"));
                    self.endpoints.fail(&link);
                    continue;
                }
            };
            // One read in another term makes all keep-alives doubtful; they are done again then.
            let term = read.term;
            let renewed = term.and_then(|term| believed(renewed, term).ok()).unwrap_or_default();
            let alive: HashMap<i64, bool> =
                leases.into_iter().zip(renewed.iter().map(Result::is_ok)).collect();
            let judged = touches.iter().zip(read.objects).zip(guesses);
            return Ok(judged
                .map(|((touch, known), guess)| {
                    judge(touch, known, alive.get(&guess).map(|alive| (guess, *alive)))
                })
                .collect());
        }
        Err(why)
    }

    /// The lease that an object hangs on as far as this process remembers, or 0.
    fn guess(&self, touch: &Touch) -> i64 {
        let known = self.cache.get(&touch.key);
        let known = known.filter(|known| known.object.revision == touch.revision);
        known.filter(|known| known.life >= touch.ttl.as_secs()).map_or(0, |known| known.lease)
    }

    async fn read_all(&self, link: &Link, touches: &[Touch]) -> Result<Read, Fault> {
        let reading = touches.chunks(READ).map(|chunk| {
            let success = chunk.iter().map(|touch| get(self.keys.object(&touch.key))).collect();
            let question = TxnRequest { success, ..TxnRequest::default() };
            link.call::<_, TxnResponse>(path::TXN, question)
        });
        let mut read = Read { term: None, objects: Vec::with_capacity(touches.len()) };
        let mut terms = Vec::new();
        for (chunk, answer) in touches.chunks(READ).zip(join_all(reading).await) {
            let answer = answer?;
            terms.push(answer.header.map_or(0, |header| header.raft_term));
            if answer.responses.len() != chunk.len() {
                return Err(Fault::Elsewhere("the server answered less than was asked".into()));
            }
            for (touch, response) in chunk.iter().zip(answer.responses) {
                let kv = response.range.and_then(|range| range.kvs.into_iter().next());
                let known = kv.map(|kv| Known::read(touch.key.clone(), &kv)).transpose();
                read.objects.push(known.map(|known| known.map(Arc::new)));
            }
        }
        read.term = terms.first().copied().filter(|first| terms.iter().all(|term| term == first));
        Ok(read)
    }

    /// Moves an object to a lease with a longer life. Its version, revision and token stay.
    async fn lengthen(&self, touch: &Touch, known: Arc<Known>, budget: Budget) -> Result<Touched> {
        let mut known = known;
        for attempt in 0..ATTEMPTS {
            let since = self.endpoints.options.clock.uptime();
            let life = touch.ttl.as_secs();
            // Freshly granted, so that there is no need to keep it alive as well.
            let spare = self.leases.grant(life, budget).await?;
            let txn = self.moving(&known, spare.id, life);
            let link = self.endpoints.link(budget).await?;
            let left = self.endpoints.left(budget);
            let call = tokio::time::timeout(left, link.call::<_, TxnResponse>(path::TXN, txn));
            let late = || Fault::Unclear(format!("no answer within {left:?}"));
            let answer = match call.await.unwrap_or_else(|_| Err(late())) {
                Ok(answer) => answer,
                Err(fault) => {
                    self.endpoints.fail_by(&link, &fault);
                    return Err(fault.of_write());
                }
            };
            if answer.succeeded {
                let modified = answer.header.map_or(0, |header| header.revision);
                let moved = Known {
                    object: Arc::clone(&known.object),
                    modified,
                    lease: spare.id,
                    life,
                    skipped: known.skipped + 1,
                    since: Some(since),
                };
                self.cache.put(&Arc::new(moved));
                self.leases.freed(&known);
                return Ok(Touched { revision: touch.revision, ttl: touch.ttl });
            }
            self.leases.give(spare);
            known = match judge(touch, found(&touch.key, answer), None) {
                Look::No(error) => return Err(error),
                Look::Done(known) | Look::Renew(known) | Look::Move(known) => known,
            };
            tracing::debug!(key = %touch.key, attempt, "another touch moved it first");
        }
        Err(Error::unavailable(BACKEND, "others touched the object again and again"))
    }

    fn moving(&self, known: &Known, lease: i64, life: u64) -> TxnRequest {
        let key = self.keys.object(&known.object.key);
        let mut success = vec![put(key.clone(), rewrite(known, life), lease)];
        if let Some(name) = &known.object.name {
            let Key { kind, id } = &known.object.key;
            success.push(put(self.keys.name(kind, name), id.clone().into_bytes(), lease));
        }
        let compare = vec![unchanged(key.clone(), known.modified)];
        TxnRequest { compare, success, failure: vec![get(key)] }
    }
}

struct Read {
    /// The term, if it was the same throughout.
    term: Option<u64>,
    objects: Vec<Result<Option<Arc<Known>>>>,
}

fn found(key: &Key, answer: TxnResponse) -> Result<Option<Arc<Known>>> {
    let range = answer.responses.into_iter().next().and_then(|response| response.range);
    let kv = range.and_then(|range| range.kvs.into_iter().next());
    kv.map(|kv| Known::read(key.clone(), &kv).map(Arc::new)).transpose()
}

/// What becomes of one touch. `guess` is the lease that was kept alive for it, and whether it was
/// there to be.
fn judge(touch: &Touch, known: Result<Option<Arc<Known>>>, guess: Option<(i64, bool)>) -> Look {
    let known = match known {
        Ok(Some(known)) => known,
        Ok(None) => return Look::No(Error::NotFound { key: touch.key.clone() }),
        Err(error) => return Look::No(error),
    };
    if known.object.revision != touch.revision {
        return Look::No(Error::Conflict {
            key: touch.key.clone(),
            expected: Expect::Revision(touch.revision),
            current: known.current(),
        });
    }
    if known.lease == 0 {
        return Look::No(Error::invalid(
            format!("touch of {}", touch.key),
            "it has no time to live; give it one with a put",
        ));
    }
    if known.life < touch.ttl.as_secs() {
        return Look::Move(known);
    }
    match guess {
        Some((lease, true)) if lease == known.lease => Look::Done(known),
        _ => Look::Renew(known),
    }
}
