//! Touches: the life of many objects started anew, with no transaction of their own.
//!
//! An etcd lease that is kept alive prolongs its object and changes nothing else. So a touch keeps the
//! leases it knows of alive, all of them over one connection. Beside that it reads the objects, to see
//! that each still has the given revision and hangs on that lease.
//!
//! Which comes first, keep-alive or read, matters only where a life may have run out. etcd deletes an
//! object before it forgets its lease, and a keep-alive in between succeeds; only a read that comes after
//! the keep-alive tells. So there are two rounds:
//!
//! 1. Keep-alives and reads go out together. That counts for a life that this process began less than a
//!    life before it had the answers. Holders renew in this round.
//! 2. The leases of all other objects are kept alive first, and the objects are read then.
//!
//! Where a leader was deposed in between, either order is sound as long as both were answered in one term
//! (decision 10).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use futures::stream::{self, StreamExt};
use tenure::store::{Expect, Touch, Touched};
use tenure::{Error, Key, Result};

use crate::BACKEND;
use crate::confirmed::believed;
use crate::connection::Connection;
use crate::endpoints::{CallGuard, Deadline};
use crate::error::CallError;
use crate::inner::Inner;
use crate::messages::{TxnRequest, TxnResponse, path};
use crate::snapshot::get;
use crate::stored::{Stored, rewrite};
use crate::txn::{put, unchanged};

/// Objects read in one transaction.
const READ: usize = 100;
/// How much longer each of them, or of the keep-alives, may take.
const MORE: Duration = Duration::from_micros(200);
/// Objects moved to longer leases at a time.
const MOVES: usize = 64;
/// How often a move may find the object changed by another one.
const ATTEMPTS: u32 = 10;
const AGAIN_AND_AGAIN: &str = "others touched the object again and again";

/// What is left to do for one touch after its object was read.
enum Check {
    /// Its lease was kept alive.
    Done(Arc<Stored>),
    /// Its lease has yet to be.
    KeepAlive(Arc<Stored>),
    /// Its lease is too short.
    MoveLease(Arc<Stored>),
    Refused(Error),
}

/// When the objects are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadOrder {
    /// Beside the keep-alives.
    Beside,
    /// When those have been answered.
    After,
}

/// The lease that is kept alive for a touch.
#[derive(Clone, Copy)]
struct LeaseGuess {
    /// 0 if it is not known.
    lease: i64,
    /// Until when it cannot have ended.
    until: Duration,
}

impl Inner {
    pub(crate) async fn touch(&self, touches: &[Touch]) -> Result<Vec<Result<Touched>>> {
        let deadline = self.endpoints.deadline();
        let since = self.endpoints.options.clock.uptime();
        let guesses: Vec<LeaseGuess> = touches.iter().map(|touch| self.guess(touch)).collect();
        let mut checks = self.check(touches, &guesses, ReadOrder::Beside, deadline).await?;
        for _ in 0..ATTEMPTS {
            if !self.check_again(touches, &mut checks, deadline).await? {
                break;
            }
        }
        let answers = checks.into_iter().zip(touches);
        let answers = answers.map(|(check, touch)| self.answer(touch, check, since, deadline));
        Ok(stream::iter(answers.collect::<Vec<_>>()).buffered(MOVES).collect().await)
    }

    async fn answer(
        &self,
        touch: &Touch,
        check: Check,
        since: Duration,
        deadline: Deadline,
    ) -> Result<Touched> {
        let stored = match check {
            Check::Refused(error) => return Err(error),
            Check::MoveLease(stored) => return self.lengthen(touch, stored, deadline).await,
            Check::KeepAlive(_) => return Err(Error::unavailable(BACKEND, AGAIN_AND_AGAIN)),
            Check::Done(stored) => stored,
        };
        self.cache.put(&Arc::new(Stored { since: Some(since), ..Stored::clone(&stored) }));
        Ok(Touched { revision: touch.revision, ttl: touch.ttl })
    }

    /// Another round for those whose lease has yet to be kept alive. Whether there were any: what is
    /// found on yet another lease, because somebody moved it, needs one more.
    async fn check_again(
        &self,
        touches: &[Touch],
        checks: &mut [Check],
        deadline: Deadline,
    ) -> Result<bool> {
        let (mut late, mut again, mut guesses) = (Vec::new(), Vec::new(), Vec::new());
        for (check, touch) in checks.iter_mut().zip(touches) {
            if let Check::KeepAlive(stored) = check {
                guesses.push(LeaseGuess { lease: stored.lease, until: Duration::ZERO });
                again.push(touch.clone());
                late.push(check);
            }
        }
        if late.is_empty() {
            return Ok(false);
        }
        let found = self.check(&again, &guesses, ReadOrder::After, deadline).await?;
        late.into_iter().zip(found).for_each(|(check, found)| *check = found);
        Ok(true)
    }

    /// Keeps alive what is known and reads everything, on one connection.
    async fn check(
        &self,
        touches: &[Touch],
        guesses: &[LeaseGuess],
        order: ReadOrder,
        deadline: Deadline,
    ) -> Result<Vec<Check>> {
        loop {
            let connection = self.endpoints.connection(deadline).await?;
            let attempt = self.endpoints.options.attempt + order.more(touches.len());
            let attempt = self.endpoints.time_left(deadline).min(attempt);
            let guard = CallGuard::new(&self.endpoints, &connection);
            let asking = self.ask(&connection, touches, guesses, order);
            let answers = tokio::time::timeout(attempt, asking).await;
            guard.answered();
            let late = || CallError::Unknown(format!("no answer within {attempt:?}"));
            let error = match answers.unwrap_or_else(|_| Err(late())) {
                Ok(checks) => return Ok(checks),
                Err(CallError::Final(error)) => return Err(error),
                Err(error) => error,
            };
            self.endpoints.fail_by(&connection, &error);
            // A server may go on to answer reads and to break keep-alives at once.
            if !self.endpoints.pause(deadline).await {
                return Err(error.into_read_error());
            }
        }
    }

    async fn ask(
        &self,
        connection: &Connection,
        touches: &[Touch],
        guesses: &[LeaseGuess],
        order: ReadOrder,
    ) -> Result<Vec<Check>, CallError> {
        let leases: Vec<i64> =
            guesses.iter().map(|guess| guess.lease).filter(|lease| *lease != 0).collect();
        let keeping = self.keep_alive(connection, &leases);
        let (renewed, read) = match order {
            ReadOrder::Beside => join(keeping, self.read_all(connection, touches)).await,
            ReadOrder::After => (keeping.await, self.read_all(connection, touches).await),
        };
        let Read { term, objects } = read?;
        let term = term.ok_or_else(|| CallError::TryLater("the leader changed".into()));
        let renewed = match (term.and_then(|term| believed(renewed, term)), order) {
            (Ok(renewed), _) => renewed,
            // They are done again in the second round.
            (Err(_), ReadOrder::Beside) => Vec::new(),
            (Err(error), ReadOrder::After) => return Err(error),
        };
        let alive: HashMap<i64, bool> =
            leases.into_iter().zip(renewed.iter().map(Result::is_ok)).collect();
        let now = self.endpoints.options.clock.uptime();
        let judged = touches.iter().zip(objects).zip(guesses).map(|((touch, stored), guess)| {
            let was_kept = alive.get(&guess.lease).is_some_and(|alive| *alive);
            let counts = was_kept && (order == ReadOrder::After || now < guess.until);
            judge(touch, stored, counts.then_some(guess.lease))
        });
        Ok(judged.collect())
    }

    /// The lease that an object hangs on as far as this process remembers.
    fn guess(&self, touch: &Touch) -> LeaseGuess {
        let stored = self.cache.get(&touch.key);
        let stored = stored.filter(|stored| stored.object.revision == touch.revision);
        match stored.filter(|stored| stored.life >= touch.ttl.as_secs()) {
            Some(stored) => LeaseGuess { lease: stored.lease, until: stored.lives_until() },
            None => LeaseGuess { lease: 0, until: Duration::ZERO },
        }
    }

    async fn read_all(
        &self,
        connection: &Connection,
        touches: &[Touch],
    ) -> Result<Read, CallError> {
        let reading = touches.chunks(READ).map(|chunk| {
            let success = chunk.iter().map(|touch| get(self.keys.object(&touch.key))).collect();
            let question = TxnRequest { success, ..TxnRequest::default() };
            connection.call::<_, TxnResponse>(path::TXN, question)
        });
        let mut read = Read { term: None, objects: Vec::with_capacity(touches.len()) };
        let mut terms = Vec::new();
        for (chunk, answer) in touches.chunks(READ).zip(join_all(reading).await) {
            let answer = answer?;
            terms.push(answer.header.map_or(0, |header| header.raft_term));
            if answer.responses.len() != chunk.len() {
                return Err(CallError::TryElsewhere(
                    "the server answered less than was asked".into(),
                ));
            }
            for (touch, response) in chunk.iter().zip(answer.responses) {
                let kv = response.range.and_then(|range| range.kvs.into_iter().next());
                let stored = kv.map(|kv| Stored::read(touch.key.clone(), &kv)).transpose();
                read.objects.push(stored.map(|stored| stored.map(Arc::new)));
            }
        }
        read.term = terms.first().copied().filter(|first| terms.iter().all(|term| term == first));
        Ok(read)
    }

    /// Moves an object to a lease with a longer life. Its version, revision and token stay.
    async fn lengthen(
        &self,
        touch: &Touch,
        stored: Arc<Stored>,
        deadline: Deadline,
    ) -> Result<Touched> {
        let mut stored = stored;
        for attempt in 0..ATTEMPTS {
            let since = self.endpoints.options.clock.uptime();
            let life = touch.ttl.as_secs();
            // Freshly granted, so that there is no need to keep it alive as well.
            let spare = self.leases.grant(life, deadline).await?;
            let txn = self.moving(&stored, spare.id, life);
            let connection = self.endpoints.connection(deadline).await?;
            let left = self.endpoints.time_left(deadline);
            let call =
                tokio::time::timeout(left, connection.call::<_, TxnResponse>(path::TXN, txn));
            let late = || CallError::Unknown(format!("no answer within {left:?}"));
            let answer = match call.await.unwrap_or_else(|_| Err(late())) {
                Ok(answer) => answer,
                Err(error) => {
                    self.endpoints.fail_by(&connection, &error);
                    return Err(error.into_write_error());
                }
            };
            if answer.succeeded {
                let modified = answer.header.map_or(0, |header| header.revision);
                let moved = Stored {
                    object: Arc::clone(&stored.object),
                    modified,
                    lease: spare.id,
                    life,
                    skipped: stored.skipped + 1,
                    since: Some(since),
                };
                self.cache.put(&Arc::new(moved));
                self.leases.reclaim(&stored);
                return Ok(Touched { revision: touch.revision, ttl: touch.ttl });
            }
            self.leases.put_back(spare);
            stored = match judge(touch, found(&touch.key, answer), None) {
                Check::Refused(error) => return Err(error),
                Check::Done(stored) | Check::KeepAlive(stored) | Check::MoveLease(stored) => stored,
            };
            tracing::debug!(key = %touch.key, attempt, "another touch moved it first");
        }
        Err(Error::unavailable(BACKEND, AGAIN_AND_AGAIN))
    }

    fn moving(&self, stored: &Stored, lease: i64, life: u64) -> TxnRequest {
        let key = self.keys.object(&stored.object.key);
        let mut success = vec![put(key.clone(), rewrite(stored, life), lease)];
        if let Some(name) = &stored.object.name {
            let Key { kind, id } = &stored.object.key;
            success.push(put(self.keys.name(kind, name), id.clone().into_bytes(), lease));
        }
        let compare = vec![unchanged(key.clone(), stored.modified)];
        TxnRequest { compare, success, failure: vec![get(key)] }
    }
}

impl ReadOrder {
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
    objects: Vec<Result<Option<Arc<Stored>>>>,
}

fn found(key: &Key, answer: TxnResponse) -> Result<Option<Arc<Stored>>> {
    let range = answer.responses.into_iter().next().and_then(|response| response.range);
    let kv = range.and_then(|range| range.kvs.into_iter().next());
    kv.map(|kv| Stored::read(key.clone(), &kv).map(Arc::new)).transpose()
}

/// What becomes of one touch, if this lease was kept alive for it.
fn judge(touch: &Touch, stored: Result<Option<Arc<Stored>>>, kept: Option<i64>) -> Check {
    let stored = match stored {
        Ok(Some(stored)) => stored,
        Ok(None) => return Check::Refused(Error::NotFound { key: touch.key.clone() }),
        Err(error) => return Check::Refused(error),
    };
    if stored.object.revision != touch.revision {
        return Check::Refused(Error::Conflict {
            key: touch.key.clone(),
            expected: Expect::Revision(touch.revision),
            current: stored.current(),
        });
    }
    if stored.lease == 0 {
        return Check::Refused(Error::invalid(
            format!("touch of {}", touch.key),
            "it has no time to live; give it one with a put",
        ));
    }
    if stored.life < touch.ttl.as_secs() {
        return Check::MoveLease(stored);
    }
    if kept == Some(stored.lease) { Check::Done(stored) } else { Check::KeepAlive(stored) }
}
