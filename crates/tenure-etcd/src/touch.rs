//! Touches: the life of many objects started anew, with no transaction of their own.
//!
//! An etcd lease that is kept alive prolongs its object and changes nothing else. So the leases that
//! are known are kept alive at once, all of them down one connection, and beside that the objects are
//! read to see that each still has the revision given and hangs on that lease.
//!
//! Where a leader was deposed either order is sound, as long as both were answered in one term: an object
//! found on a lease that was kept alive within this call lives at least its full life from the start of
//! the call (decision 10). Where a life has run out it is not. etcd deletes an object before it forgets
//! the lease, and a keep-alive that comes in between is answered with success; only a read that comes
//! after the keep-alive tells. The first round leaves the order open, so it counts for lives that cannot
//! have run out: those that this process has begun less than a life before it had the answers. That is
//! how holders renew. All others are kept alive first and read then, in a second round.

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
/// How much longer each of them, or of the keep-alives, may take.
const MORE: Duration = Duration::from_micros(200);
/// Objects moved to longer leases at a time.
const MOVES: usize = 64;
/// How often a move may find the object changed by another one.
const ATTEMPTS: u32 = 10;
const AGAIN_AND_AGAIN: &str = "others touched the object again and again";

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

/// When the objects are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Beside the keep-alives.
    Beside,
    /// When those have been answered.
    After,
}

/// The lease that is kept alive for a touch.
#[derive(Clone, Copy)]
struct Guess {
    /// 0 if it is not known.
    lease: i64,
    /// Until when it cannot have ended.
    until: Duration,
}

impl Shared {
    pub(crate) async fn touch(&self, touches: &[Touch]) -> Result<Vec<Result<Touched>>> {
        let budget = self.endpoints.budget();
        let since = self.endpoints.options.clock.uptime();
        let guesses: Vec<Guess> = touches.iter().map(|touch| self.guess(touch)).collect();
        let mut looks = self.look(touches, &guesses, Order::Beside, budget).await?;
        for _ in 0..ATTEMPTS {
            if !self.look_again(touches, &mut looks, budget).await? {
                break;
            }
        }
        let answers = looks.into_iter().zip(touches);
        let answers = answers.map(|(look, touch)| self.answer(touch, look, since, budget));
        Ok(stream::iter(answers.collect::<Vec<_>>()).buffered(MOVES).collect().await)
    }

    async fn answer(
        &self,
        touch: &Touch,
        look: Look,
        since: Duration,
        budget: Budget,
    ) -> Result<Touched> {
        let known = match look {
            Look::No(error) => return Err(error),
            Look::Move(known) => return self.lengthen(touch, known, budget).await,
            Look::Renew(_) => return Err(Error::unavailable(BACKEND, AGAIN_AND_AGAIN)),
            Look::Done(known) => known,
        };
        self.cache.put(&Arc::new(Known { since: Some(since), ..Known::clone(&known) }));
        Ok(Touched { revision: touch.revision, ttl: touch.ttl })
    }

    /// Another round for those whose lease has yet to be kept alive. Whether there were any: what is
    /// found on yet another lease, because somebody moved it, needs one more.
    async fn look_again(
        &self,
        touches: &[Touch],
        looks: &mut [Look],
        budget: Budget,
    ) -> Result<bool> {
        let (mut late, mut again, mut guesses) = (Vec::new(), Vec::new(), Vec::new());
        for (look, touch) in looks.iter_mut().zip(touches) {
            if let Look::Renew(known) = look {
                guesses.push(Guess { lease: known.lease, until: Duration::ZERO });
                again.push(touch.clone());
                late.push(look);
            }
        }
        if late.is_empty() {
            return Ok(false);
        }
        let found = self.look(&again, &guesses, Order::After, budget).await?;
        late.into_iter().zip(found).for_each(|(look, found)| *look = found);
        Ok(true)
    }

    /// Keeps alive what is known and reads everything, on one connection.
    async fn look(
        &self,
        touches: &[Touch],
        guesses: &[Guess],
        order: Order,
        budget: Budget,
    ) -> Result<Vec<Look>> {
        loop {
            let link = self.endpoints.link(budget).await?;
            let attempt = self.endpoints.options.attempt + order.more(touches.len());
            let attempt = self.endpoints.left(budget).min(attempt);
            let watched = Watched::new(&self.endpoints, &link);
            let asking = self.ask(&link, touches, guesses, order);
            let answers = tokio::time::timeout(attempt, asking).await;
            watched.done();
            let late = || Fault::Unclear(format!("no answer within {attempt:?}"));
            let fault = match answers.unwrap_or_else(|_| Err(late())) {
                Ok(looks) => return Ok(looks),
                Err(Fault::No(error)) => return Err(error),
                Err(fault) => fault,
            };
            self.endpoints.fail_by(&link, &fault);
            // A server may go on to answer reads and to break keep-alives at once.
            if !self.endpoints.pause(budget).await {
                return Err(fault.of_read());
            }
        }
    }

    async fn ask(
        &self,
        link: &Link,
        touches: &[Touch],
        guesses: &[Guess],
        order: Order,
    ) -> Result<Vec<Look>, Fault> {
        let leases: Vec<i64> =
            guesses.iter().map(|guess| guess.lease).filter(|lease| *lease != 0).collect();
        let keeping = self.keep_alive(link, &leases);
        let (renewed, read) = match order {
            Order::Beside => join(keeping, self.read_all(link, touches)).await,
            Order::After => (keeping.await, self.read_all(link, touches).await),
        };
        let Read { term, objects } = read?;
        let term = term.ok_or_else(|| Fault::Later("the leader changed".into()));
        let renewed = match (term.and_then(|term| believed(renewed, term)), order) {
            (Ok(renewed), _) => renewed,
            // They are done again in the second round.
            (Err(_), Order::Beside) => Vec::new(),
            (Err(fault), Order::After) => return Err(fault),
        };
        let alive: HashMap<i64, bool> =
            leases.into_iter().zip(renewed.iter().map(Result::is_ok)).collect();
        let now = self.endpoints.options.clock.uptime();
        let judged = touches.iter().zip(objects).zip(guesses).map(|((touch, known), guess)| {
            let was_kept = alive.get(&guess.lease).is_some_and(|alive| *alive);
            let counts = was_kept && (order == Order::After || now < guess.until);
            judge(touch, known, counts.then_some(guess.lease))
        });
        Ok(judged.collect())
    }

    /// The lease that an object hangs on as far as this process remembers.
    fn guess(&self, touch: &Touch) -> Guess {
        let known = self.cache.get(&touch.key);
        let known = known.filter(|known| known.object.revision == touch.revision);
        match known.filter(|known| known.life >= touch.ttl.as_secs()) {
            Some(known) => Guess { lease: known.lease, until: known.lives_until() },
            None => Guess { lease: 0, until: Duration::ZERO },
        }
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
        Err(Error::unavailable(BACKEND, AGAIN_AND_AGAIN))
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

impl Order {
    /// How much longer this many objects may take a server that has to ask the leader.
    fn more(self, objects: usize) -> Duration {
        let each = match self {
            Self::Beside => MORE,
            Self::After => MORE * 2,
        };
        each * u32::try_from(objects).unwrap_or(u32::MAX)
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

/// What becomes of one touch, if this lease was kept alive for it.
fn judge(touch: &Touch, known: Result<Option<Arc<Known>>>, kept: Option<i64>) -> Look {
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
    if kept == Some(known.lease) { Look::Done(known) } else { Look::Renew(known) }
}
