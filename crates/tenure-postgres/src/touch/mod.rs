//! Touches: many rows prolonged at once, without the commit lock.
//!
//! Mostly all of them succeed, so that is tried first: one statement that prolongs each row if it has
//! the revision given and its life is not over. If it counts fewer rows than there are touches, they
//! are done over in a transaction of two exchanges: lock the rows and look at the clock; decide here,
//! with the very function the other backends use; write the new expiries and commit. Having touched
//! some of them twice does no harm. What fails after some were touched is unknown, not unavailable.
//!
//! Nothing but `expires_at_ms` changes, which is in no index, so the row's new version stays on its
//! page. A touch and a commit settle who was first by the row's lock, which both take in the order of
//! the keys.

pub(crate) mod shares;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, try_join, try_join_all};
use tenure::backend::decide::{Now, Row, decide_touch, expiry};
use tenure::backend::group_queue::{GroupQueue, Most, Queued};
use tenure::store::{Touch, Touched};
use tenure::{Error, Labels, Object, Result};
use tokio_postgres::{Row as SqlRow, Statement};

use crate::BACKEND;
use crate::commit::committer::Work;
use crate::connect::session::{Role, Session};
use crate::error::{Failure, commit_refused, commit_unanswered, refused};
use crate::gather::{Course, gather};
use crate::row::{signed, unsigned};
use crate::shared::Shared;
use crate::tid::Tid;
use crate::time::{Sample, WALL_MS, start_sql};

/// Touches of one call that share a transaction.
pub(crate) const SHARE: usize = 2_500;
/// Touches merged into one transaction.
const MOST: Most = Most { requests: 2_048, bytes: SHARE * TOUCH_BYTES };
/// What one touch counts for in the queue.
pub(crate) const TOUCH_BYTES: usize = 128;
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) type TouchQueue = GroupQueue<Vec<Touch>, Result<Vec<Result<Touched>>>>;

type Job = Queued<Vec<Touch>, Result<Vec<Result<Touched>>>>;

const LOCK: &str = "select w.place, o.ctid, o.resource_version, o.revision, o.token, \
     o.expires_at_ms \
   from (select unnest($1::text[]) as object_type, unnest($2::text[]) as id, \
           generate_series(1, cardinality($1::text[]))::bigint as place) w \
   join objects o on o.object_type = w.object_type and o.id = w.id \
   order by o.object_type, o.id for no key update of o";

/// The server's clock is asked for every row, behind its lock: a life that ended while we waited for
/// the lock has ended.
///
/// A life is planned from the latest that it can be when it is asked for (`$6`), and counts from the
/// present if that is earlier. But the statement may be long on its way, and another touch may have
/// overtaken it. What that one gave is not taken away: of the life that is there, as much stays as this
/// touch would give at the instant it is carried out.
fn all_sql() -> String {
    let now = format!("({WALL_MS} + (select clock_offset_ms from tenure_meta))");
    let start = start_sql(&now, "$5::bigint", "$6::bigint");
    format!(
        "with done as ( \
           update objects o set expires_at_ms = w.life + greatest({start}, \
             least(o.expires_at_ms - w.life, {now})) \
           from (select unnest($1::text[]) as object_type, unnest($2::text[]) as id, \
             unnest($3::bigint[]) as revision, unnest($4::bigint[]) - $6::bigint as life) w \
           where o.object_type = w.object_type and o.id = w.id and o.revision = w.revision \
             and o.expires_at_ms > greatest({now}, $5::bigint) \
           returning 1) \
         select count(*) from done"
    )
}

const PROLONG: &str = "update objects o set expires_at_ms = w.expires_at_ms \
   from (select unnest($1::tid[]) as place, unnest($2::bigint[]) as expires_at_ms) w \
   where o.ctid = w.place";

/// Shared by all workers of the queue. If they panic, the last one to go tells those who wait.
pub(crate) struct LastOut(pub(crate) Arc<Shared>);

impl Drop for LastOut {
    fn drop(&mut self) {
        self.0.touches.abandon();
    }
}

/// One worker with its own session.
pub(crate) struct Toucher {
    shared: Arc<Shared>,
    _last_out: Arc<LastOut>,
    session: Option<(Session, Statements)>,
}

struct Statements {
    all: Statement,
    lock: Statement,
    meta: Statement,
    prolong: Statement,
}

/// Why touches did not happen, or may not have.
enum Broken {
    Before(Failure),
    InDoubt(String),
}

impl From<tokio_postgres::Error> for Broken {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Before(error.into())
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Before(failure)
    }
}

impl Toucher {
    pub(crate) fn new(last_out: &Arc<LastOut>) -> Self {
        Self { shared: Arc::clone(&last_out.0), _last_out: Arc::clone(last_out), session: None }
    }

    /// Works until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(jobs) = gather(&shared.touches, MOST, Course::default()).await {
            self.work_off(jobs).await;
        }
    }

    async fn work_off(&mut self, jobs: Vec<Job>) {
        let touches: Vec<&Touch> = jobs.iter().flat_map(|job| &job.request).collect();
        let mut results: Vec<Option<Result<Touched>>> = vec![None; touches.len()];
        let mut left: Vec<usize> = (0..touches.len()).collect();
        // An object touched twice is touched in two rounds, in order.
        while !left.is_empty() {
            let mut seen = HashSet::with_capacity(left.len());
            let (round, rest): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|place| seen.insert(&touches[*place].key));
            left = rest;
            let batch: Vec<&Touch> = round.iter().map(|place| touches[*place]).collect();
            let answers = match self.attempt(&batch).await {
                Ok(answers) => answers,
                Err(error) => {
                    tracing::warn!(%error, "touch failed");
                    vec![Err(error); batch.len()]
                }
            };
            for (place, answer) in round.into_iter().zip(answers) {
                results[place] = Some(answer);
            }
        }
        let mut results = results.into_iter().flatten();
        for job in jobs {
            let own: Vec<_> = results.by_ref().take(job.request.len()).collect();
            job.answer(whole(own));
        }
    }

    async fn attempt(&mut self, batch: &[&Touch]) -> Result<Vec<Result<Touched>>> {
        let mut applied = false;
        for attempt in 1.. {
            let failure = match self.once(batch, &mut applied).await {
                Ok(answers) => return Ok(answers),
                Err(Broken::InDoubt(why)) => return Err(commit_unanswered(&why)),
                Err(Broken::Before(failure)) => failure,
            };
            if !failure.transient || attempt >= ATTEMPTS {
                return Err(if applied { in_part(&failure.error) } else { failure.error });
            }
            self.shared.time.sleep(PAUSE * attempt).await;
        }
        unreachable!("the loop ends by returning")
    }

    /// Says in `applied` whether some were touched, whatever becomes of the others.
    async fn once(
        &mut self,
        batch: &[&Touch],
        applied: &mut bool,
    ) -> Result<Vec<Result<Touched>>, Broken> {
        let (session, statements) = match self.session.take() {
            Some(ready) if !ready.0.client.is_closed() => ready,
            _ => connect(&self.shared).await?,
        };
        let touched = self.at_once(&session, &statements, batch).await?;
        *applied |= touched > 0;
        let answers = match touched == batch.len() {
            true => batch.iter().map(|touch| Ok(done(touch))).collect(),
            false => self.transact(&session, &statements, batch).await?,
        };
        self.session = Some((session, statements));
        Ok(answers)
    }

    /// Touches as many of them as it can in one exchange; how many that were.
    async fn at_once(
        &self,
        session: &Session,
        statements: &Statements,
        batch: &[&Touch],
    ) -> Result<usize, Broken> {
        let shared = &self.shared;
        let patience = shared.connector.options.reply_timeout;
        let client = &session.client;
        let Some((earliest, latest)) = shared.time.between() else { return Ok(0) };
        let mut sorted = batch.to_vec();
        sorted.sort_unstable_by_key(|touch| &touch.key);
        let kinds: Vec<&str> = sorted.iter().map(|touch| touch.key.kind.as_str()).collect();
        let ids: Vec<&str> = sorted.iter().map(|touch| touch.key.id.as_str()).collect();
        let revisions: Vec<i64> = sorted.iter().map(|touch| signed(touch.revision)).collect();
        // From the latest that it can be by now, so no life is cut short; the server may know better.
        let expiries: Vec<i64> = sorted.iter().map(|touch| expiry(latest, touch.ttl)).collect();
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 6] =
            [&kinds, &ids, &revisions, &expiries, &earliest, &latest];
        let sent = shared.time.sent();
        let both = join(
            client.query_one(&statements.all, &parameters),
            client.query_one(&statements.meta, &[]),
        );
        match tokio::time::timeout(patience, both).await {
            Ok((Ok(counted), Ok(meta))) => {
                let reading = shared.time.received(sent, sample(&meta));
                let sooner = latest - earliest;
                let soonest = expiries.iter().min().map(|at| at - sooner);
                self.record(reading.stepped, &meta, soonest).await;
                Ok(usize::try_from(counted.get::<_, i64>(0)).unwrap_or(0))
            }
            Ok((Err(error), _)) if refused(&error) => Err(error.into()),
            // It may be done, or even is, and we do not know what time it is.
            Ok((Err(error), _) | (_, Err(error))) => Err(Broken::InDoubt(error.to_string())),
            Err(_) => Err(Broken::InDoubt(format!("no answer within {patience:?}"))),
        }
    }

    /// A short life may bring the next expiry nearer, and a stepped clock must be corrected for
    /// everybody. The touch itself is done; at worst an object is swept later.
    async fn record(&self, stepped: bool, meta: &SqlRow, soonest: Option<i64>) {
        let next_expiry_ms = soonest.unwrap_or(i64::MAX);
        let recorded: i64 = meta.get(3);
        // An odd one is the claim of a sweep that may have looked before we came.
        if stepped || next_expiry_ms < recorded || recorded % 2 != 0 {
            let _ = self.shared.commits.ask(Work::Record { next_expiry_ms }, 0).await;
        }
    }

    async fn transact(
        &self,
        session: &Session,
        statements: &Statements,
        batch: &[&Touch],
    ) -> Result<Vec<Result<Touched>>, Broken> {
        let shared = &self.shared;
        let patience = shared.connector.options.reply_timeout;
        let client = &session.client;
        let kinds: Vec<&str> = batch.iter().map(|touch| touch.key.kind.as_str()).collect();
        let ids: Vec<&str> = batch.iter().map(|touch| touch.key.id.as_str()).collect();
        let keys: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&kinds, &ids];
        let sent = shared.time.sent();
        let first = try_join(
            client.batch_execute("begin"),
            try_join(
                client.query(&statements.lock, &keys),
                // Behind the locks, so that the instant lies behind them too.
                client.query_one(&statements.meta, &[]),
            ),
        );
        let ((), (locked, meta)) = tokio::time::timeout(patience, first)
            .await
            .map_err(|_| Failure::timeout("a touch", patience))??;
        let reading = shared.time.received(sent, sample(&meta));
        let now = Now { store_ms: reading.store_ms, wall_ms: reading.wall_ms };
        let (answers, tids, expiries) = judge(batch, &locked, now);

        let prolong = async {
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&tids, &expiries];
            if tids.is_empty() {
                return Ok(0);
            }
            client.execute(&statements.prolong, &parameters).await
        };
        let second = join(prolong, client.batch_execute("commit"));
        match tokio::time::timeout(patience, second).await {
            Ok((Ok(_), Ok(()))) => {}
            Ok((Err(error), _)) if refused(&error) => return Err(error.into()),
            Ok((_, Err(error))) if commit_refused(&error) => return Err(error.into()),
            Ok((Err(error), _) | (_, Err(error))) => {
                return Err(Broken::InDoubt(error.to_string()));
            }
            Err(_) => return Err(Broken::InDoubt(format!("no answer within {patience:?}"))),
        }
        self.record(reading.stepped, &meta, expiries.iter().min().copied()).await;
        Ok(answers)
    }
}

fn sample(meta: &SqlRow) -> Sample {
    Sample { wall_ms: meta.get(0), offset_ms: meta.get(1), last_ms: meta.get(2) }
}

type Judged = (Vec<Result<Touched>>, Vec<Tid>, Vec<i64>);

/// Decides every touch against the row that was locked for it.
fn judge(batch: &[&Touch], locked: &[SqlRow], now: Now) -> Judged {
    let mut rows: Vec<Option<&SqlRow>> = vec![None; batch.len()];
    for row in locked {
        let place = usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(usize::MAX);
        if let Some(slot) = rows.get_mut(place) {
            *slot = Some(row);
        }
    }
    let (mut tids, mut expiries) = (Vec::new(), Vec::new());
    let decide = |(touch, row): (&&Touch, Option<&SqlRow>)| {
        let stored = row.map(|row| stored(touch, row));
        let (expires_at_ms, touched) = decide_touch(touch, stored.as_ref(), now)?;
        if let Some(row) = row {
            tids.push(row.get(1));
            expiries.push(expires_at_ms);
        }
        Ok(touched)
    };
    let answers = batch.iter().zip(rows).map(decide).collect();
    (answers, tids, expiries)
}

/// As much of a row as a touch looks at.
fn stored(touch: &Touch, row: &SqlRow) -> Row {
    let object = Object {
        key: touch.key.clone(),
        name: None,
        labels: Labels::new(),
        payload: bytes::Bytes::new(),
        version: unsigned(row.get(2)),
        revision: unsigned(row.get(3)),
        created_revision: 0,
        token: unsigned(row.get(4)),
        created_at_ms: 0,
        updated_at_ms: 0,
        ttl: None,
        expires_in: None,
    };
    Row { object: Arc::new(object), expires_at_ms: row.get(5) }
}

async fn connect(shared: &Shared) -> Result<(Session, Statements), Failure> {
    let session = shared.connector.open(Role::Touch).await.map_err(|error| {
        let transient = matches!(error, Error::Unavailable { .. });
        Failure { error, transient, blames_request: false, moved: false }
    })?;
    let patience = shared.connector.options.reply_timeout;
    let meta = format!(
        "select {WALL_MS}, clock_offset_ms, clock_last_ms, next_expiry_ms from tenure_meta"
    );
    let all = all_sql();
    let texts = [&all, LOCK, &meta, PROLONG];
    let prepare = try_join_all(texts.map(|text| session.client.prepare(text)));
    let prepared = tokio::time::timeout(patience, prepare)
        .await
        .map_err(|_| Failure::timeout("preparing statements", patience))??;
    let Ok([all, lock, meta, prolong]) = <[Statement; 4]>::try_from(prepared) else {
        return Err(Error::unavailable(BACKEND, "statements went missing").into());
    };
    Ok((session, Statements { all, lock, meta, prolong }))
}

fn done(touch: &Touch) -> Touched {
    Touched { revision: touch.revision, ttl: touch.ttl }
}

/// What to tell of touches that failed after some of them were done.
pub(crate) fn in_part(error: &Error) -> Error {
    if error.is_unknown() {
        return error.clone();
    }
    Error::unknown(BACKEND, format!("a part of the touches failed: {error}"))
}

/// A store that is away is told once for all; refusals stand alone.
fn whole(answers: Vec<Result<Touched>>) -> Result<Vec<Result<Touched>>> {
    match answers.iter().find_map(|answer| answer.as_ref().err().filter(|e| !e.is_refusal())) {
        Some(error) if answers.iter().any(Result::is_ok) => Err(in_part(error)),
        Some(error) => Err(error.clone()),
        None => Ok(answers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_after_a_part_was_done_is_unknown() {
        let done = || Ok(Touched { revision: 1, ttl: Duration::from_secs(1) });
        let gone = || Err(Error::NotFound { key: tenure::Key::new("k", "1") });
        let away = || Err(Error::unavailable(BACKEND, "away"));
        assert!(whole(vec![done(), away()]).unwrap_err().is_unknown());
        assert_eq!(whole(vec![gone(), away()]).unwrap_err().code(), "unavailable");
        assert_eq!(whole(vec![done(), gone()]).unwrap().len(), 2);
    }
}
