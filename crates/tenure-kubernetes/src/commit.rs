//! One commit on one Lease: read, decide, PUT; and again if somebody was faster.
//!
//! The decision is the one that all stores share. What it is taken on may be what this process
//! remembers: a PUT with that resourceVersion and uid applies only if nothing has changed since, so
//! success proves that the memory was right. A refusal is only ever given on what was just read.
//!
//! A tenure of ours that expired and stands in the way is ended first, by a PUT of its own, so that
//! everybody sees it end before the next one begins.

use std::time::Duration;

use tenure::backend::decide::{Change, Decision, Now, Row, View, decide};
use tenure::store::{Commit, Committed, Write, WriteResult, Written};
use tenure::{Error, Key, Object, Result};

use crate::BACKEND;
use crate::cleanup;
use crate::error::Failure;
use crate::record::{self, UNDRAWN};
use crate::shared::{Read, Shared, row};
use crate::wire::Lease;

/// Times that somebody else may be faster before the caller is told to try again later.
const ATTEMPTS: u32 = 32;
/// From the third time on there is a pause in between, longer each time.
const PAUSE: Duration = Duration::from_millis(2);

/// The one row a commit here can concern.
struct One(Option<Row>);

impl View for One {
    fn row(&mut self, _key: &Key) -> Result<Option<Row>> {
        Ok(self.0.clone())
    }

    fn named(&mut self, _kind: &str, _name: &str) -> Result<Option<Row>> {
        Ok(None)
    }
}

/// What has to be done for a decision.
enum Effect {
    Nothing,
    Put(Box<Object>),
    Empty,
    Refresh(Duration),
}

/// Applies a commit.
pub(crate) async fn commit(shared: &Shared, commit: &Commit) -> Result<Committed> {
    let written = commit.writes.first().map(Write::key);
    let Some(key) = written.or_else(|| commit.checks.first().map(|check| &check.key)) else {
        return Ok(Committed { revision: None, writes: Vec::new() });
    };
    let name = shared.names.encode(&key.id);
    let mut remembered = shared.remembered(&name);
    for attempt in 0..ATTEMPTS {
        let fresh = remembered.is_none();
        let read = match remembered.take() {
            Some(read) => Some(read),
            None => shared.read(&name).await?,
        };
        let now = shared.now();
        let before = match &read {
            Some(read) => row(&read.lease, read.sight, &key.id)?,
            None => None,
        };
        let decision = match decide(&mut One(before.clone()), commit, now, UNDRAWN) {
            Ok(decision) => decision,
            Err(error) if error.is_refusal() && !fresh => continue,
            Err(error) => return Err(error),
        };
        let effect = effect(&decision, commit);
        if let Some(read) = read.as_ref().filter(|_| decision.steps.len() > 1)
            && record::is_ours(&read.lease)
        {
            match send(shared, &record::empty(&read.lease, true, now.wall_ms), true).await {
                Ok(emptied) => remembered = Some(emptied),
                Err(Failure::Overtaken) => {}
                Err(failure) => return Err(failure.of_write()),
            }
            continue;
        }
        if matches!(effect, Effect::Nothing) {
            if fresh {
                return Ok(decision.committed);
            }
            continue;
        }
        if let Effect::Put(object) = &effect
            && object.token >= UNDRAWN
            && read.as_ref().is_some_and(|read| read.lease.is_going())
        {
            if fresh {
                return Err(going(&name));
            }
            continue;
        }
        let lease = compose(&name, read.as_ref(), before.as_ref(), &effect, now);
        match send(shared, &lease, read.is_some()).await {
            Ok(read) => {
                cleanup::delete_if_idle(shared, &read.lease, read.sight);
                return answer(&read, &key.id, &effect);
            }
            Err(Failure::Overtaken) => {
                let pause = PAUSE * attempt.saturating_sub(2);
                tokio::time::sleep(pause).await;
            }
            Err(failure) => return Err(failure.of_write()),
        }
    }
    Err(Error::unavailable(BACKEND, format!("others changed {key} each time; try again")))
}

/// A tenure on a Lease that is about to vanish would end unseen, and the next one begin beside it.
fn going(name: &str) -> Error {
    let why =
        format!("Lease {name} is being deleted; it can be held again when its finalizers are done");
    Error::unavailable(BACKEND, why)
}

fn effect(decision: &Decision, commit: &Commit) -> Effect {
    // An expired row that stands in the way is replaced by the write itself.
    match decision.steps.last().and_then(|step| step.changes.last()) {
        Some(Change::Put { row, .. }) => Effect::Put(Box::new(Object::clone(&row.object))),
        Some(Change::Remove { .. }) => Effect::Empty,
        None => match (decision.refreshed.first(), commit.writes.first()) {
            (Some(_), Some(Write::Put(put))) => put.ttl.map_or(Effect::Nothing, Effect::Refresh),
            _ => Effect::Nothing,
        },
    }
}

fn compose(
    name: &str,
    read: Option<&Read>,
    before: Option<&Row>,
    effect: &Effect,
    now: Now,
) -> Lease {
    let base = read.map_or_else(|| Lease::new(name), |read| Lease::clone(&read.lease));
    match (effect, before) {
        (Effect::Put(object), _) => record::write(&base, read.is_some(), object, now.wall_ms),
        (Effect::Refresh(life), Some(row)) => record::touch(&base, &row.object, *life, now.wall_ms),
        (Effect::Empty, _) => record::empty(&base, false, now.wall_ms),
        (Effect::Nothing | Effect::Refresh(_), _) => base,
    }
}

/// Writes a Lease, and takes notice of what the server made of it.
pub(crate) async fn send(shared: &Shared, lease: &Lease, exists: bool) -> Result<Read, Failure> {
    let written = match exists {
        true => shared.api.replace(lease).await,
        false => shared.api.create(lease).await,
    };
    let written = match written {
        Ok(written) => written,
        Err(failure) => {
            // Whatever became of it, what is remembered may be old now.
            shared.seen.forget_body(&lease.metadata.name);
            return Err(failure);
        }
    };
    shared.take_in(written).map_err(|error| Failure::Unsettled(error.to_string()))
}

fn answer(read: &Read, id: &str, effect: &Effect) -> Result<Committed> {
    let unclear = || Error::unknown(BACKEND, "the server stored something else than was sent");
    let revision = read.lease.revision()?;
    let row = row(&read.lease, read.sight, id)?;
    let put = row.map(|row| WriteResult::from(&*row.object));
    let (revision, written) = match effect {
        Effect::Empty => (Some(revision), Written::Deleted { revision }),
        Effect::Put(_) => (Some(revision), Written::Put(put.ok_or_else(unclear)?)),
        Effect::Refresh(_) | Effect::Nothing => {
            (None, Written::Unchanged(put.ok_or_else(unclear)?))
        }
    };
    Ok(Committed { revision, writes: vec![written] })
}
