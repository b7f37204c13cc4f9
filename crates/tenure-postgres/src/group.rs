//! The one place that changes objects: commits, grouped.
//!
//! A worker takes all that waits and runs it as one transaction of two exchanges. The first locks the
//! counter row, so that commits everywhere are strictly serial, and reads every row that the group is
//! about. Then each commit is decided in turn against what the ones before it left; a refusal
//! concerns its own commit only. The second exchange writes the outcome and commits. Callers are
//! answered when the server has flushed it.
//!
//! Rows with a time to live are locked as well, because a touch does not take the counter. All others
//! change under the counter only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use tenure::store::decide::{Now, Step, decide, decide_sweep};
use tenure::store::{Batch, Commit, Committed, Put, Write, check_writer};
use tenure::{Error, Key, Result};
use tokio_postgres::{Client, Row as SqlRow, Statement};

use crate::BACKEND;
use crate::apply::{BY_KEY, BY_PLACE, FREE_NAMES, Head, Keys, REMOVE, Writes, write_sql};
use crate::connection::{Role, Session};
use crate::error::{Failure, commit_refused, commit_unanswered};
use crate::overlay::Overlay;
use crate::queue::{Most, Waiting};
use crate::row::{COLUMN_COUNT, COLUMNS, decode, signed, unsigned};
use crate::shared::Shared;
use crate::time::{Reading, Sample, WALL_MS};

/// One group at most: bigger ones gain nothing and make everybody wait.
const MOST: Most = Most { requests: 512, bytes: 4 * 1024 * 1024 };
/// How often a group is tried when it is certain that nothing was applied.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// What can be asked of the workers.
pub(crate) enum Work {
    /// A caller's commit.
    Commit(Commit),
    /// Remove those of these that expired; nothing else expires before the instant given.
    Sweep { keys: Vec<Key>, next_expiry_ms: i64 },
    /// Write down the store's time, and that something may expire at the instant given.
    Record { next_expiry_ms: i64 },
}

/// A request before the workers.
pub(crate) type Job = Waiting<Work, Result<Committed>>;

struct Statements {
    lock: Statement,
    rows: Statement,
    locked_rows: Statement,
    named: Statement,
    clock: Statement,
    remove: Statement,
    free_names: Statement,
    write: Statement,
    write_by_key: Statement,
}

/// One worker with its own session.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    session: Option<(Session, Statements)>,
}

/// Where a group broke.
enum Broken {
    /// Nothing was applied.
    Before(Failure),
    /// The `COMMIT` was sent; `changed` tells for each request whether it stood to change something.
    InDoubt { why: String, changed: Vec<bool> },
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Before(failure)
    }
}

impl From<tokio_postgres::Error> for Broken {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Before(error.into())
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Before(error.into())
    }
}

/// What a group came to.
struct Outcome {
    answers: Vec<Result<Committed>>,
    batches: Vec<Arc<Batch>>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, session: None }
    }

    /// Works until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(jobs) = shared.commits.take(MOST).await {
            self.work_off(jobs).await;
        }
    }

    async fn work_off(&mut self, jobs: Vec<Job>) {
        match self.attempt(&jobs).await {
            Ok(outcome) => {
                self.shared.pump.committed(&outcome.batches);
                for (job, answer) in jobs.into_iter().zip(outcome.answers) {
                    job.answer(answer);
                }
            }
            Err(Broken::Before(failure)) if jobs.len() > 1 && failure.blames_request => {
                // One request may have spoilt it for all; alone, each gets its own answer.
                tracing::debug!(error = %failure.error, "group failed; trying one by one");
                let mut jobs = jobs.into_iter();
                for job in jobs.by_ref() {
                    if Box::pin(self.alone(job)).await {
                        break;
                    }
                }
                jobs.for_each(|job| job.answer(Err(failure.error.clone())));
            }
            Err(Broken::Before(failure)) => {
                tracing::warn!(error = %failure.error, "commit failed; nothing was applied");
                jobs.into_iter().for_each(|job| job.answer(Err(failure.error.clone())));
            }
            Err(Broken::InDoubt { why, changed }) => {
                tracing::warn!(why, "the outcome of a group of commits is unknown");
                for (job, changed) in jobs.into_iter().zip(changed) {
                    job.answer(Err(if changed {
                        commit_unanswered(&why)
                    } else {
                        Error::unavailable(BACKEND, &why)
                    }));
                }
            }
        }
    }

    /// Runs one job; true if the store itself is at fault, so that trying the others is pointless.
    async fn alone(&mut self, job: Job) -> bool {
        let jobs = vec![job];
        let (answer, at_fault) = match self.attempt(&jobs).await {
            Ok(mut outcome) => {
                self.shared.pump.committed(&outcome.batches);
                let answer = outcome.answers.pop();
                (answer.unwrap_or_else(|| Err(commit_unanswered("no answer"))), false)
            }
            Err(Broken::Before(failure)) => {
                let at_fault = !failure.blames_request;
                (Err(failure.error), at_fault)
            }
            Err(Broken::InDoubt { why, .. }) => (Err(commit_unanswered(&why)), true),
        };
        jobs.into_iter().for_each(|job| job.answer(answer.clone()));
        at_fault
    }

    /// Runs a group, again if it is certain that nothing was applied and another attempt may help.
    async fn attempt(&mut self, jobs: &[Job]) -> Result<Outcome, Broken> {
        for attempt in 1.. {
            let error = match self.once(jobs).await {
                Err(Broken::Before(failure)) => failure,
                other => return other,
            };
            // A refused statement leaves the transaction open; a fresh session is the simple cure.
            self.session = None;
            if !error.transient || attempt >= ATTEMPTS {
                return Err(error.into());
            }
            tracing::debug!(error = %error.error, attempt, "group of commits starts over");
            self.shared.time.sleep(PAUSE * attempt).await;
        }
        unreachable!("the loop ends by returning")
    }

    async fn once(&mut self, jobs: &[Job]) -> Result<Outcome, Broken> {
        let (session, statements) = match self.session.take() {
            Some(ready) if !ready.0.client.is_closed() => ready,
            _ => connect(&self.shared).await?,
        };
        let group =
            Group { shared: &self.shared, client: &session.client, statements: &statements };
        let outcome = group.run(jobs).await;
        if outcome.is_ok() {
            self.session = Some((session, statements));
        }
        outcome
    }
}

async fn connect(shared: &Shared) -> Result<(Session, Statements), Failure> {
    let session = shared.connector.open(Role::Commit).await.map_err(|error| {
        let transient = matches!(error, Error::Unavailable { .. });
        Failure { error, transient, blames_request: false }
    })?;
    let prepare = prepare(&session.client);
    let patience = shared.connector.options.reply_timeout;
    let statements = tokio::time::timeout(patience, prepare)
        .await
        .map_err(|_| Failure::timeout("preparing statements", patience))??;
    Ok((session, statements))
}

async fn prepare(client: &Client) -> Result<Statements, Failure> {
    let rows = format!(
        "select {COLUMNS}, o.ctid from unnest($1::text[], $2::text[]) as k (object_type, id) \
         join objects o on o.object_type = k.object_type and o.id = k.id"
    );
    let locked_rows = format!("{rows} order by o.object_type, o.id for no key update of o");
    let named = format!(
        "select {COLUMNS}, o.ctid from unnest($1::text[], $2::text[]) as k (object_type, name) \
         join objects o on o.object_type = k.object_type and o.name = k.name \
         where o.name is not null order by o.object_type, o.id for no key update of o"
    );
    let lock = "select min_writer, revision, clock_offset_ms, clock_last_ms, next_expiry_ms \
                from tenure_meta for update";
    // A statement of its own: the others' clocks would be read before their locks were granted.
    let clock = format!("select {WALL_MS}");
    let (write, by_key) = (write_sql(BY_PLACE), write_sql(BY_KEY));
    let texts = [lock, &rows, &locked_rows, &named, &clock, REMOVE, FREE_NAMES, &write, &by_key];
    let prepared = try_join_all(texts.iter().map(|text| client.prepare(text))).await?;
    let Ok([lock, rows, locked_rows, named, clock, remove, free_names, write, write_by_key]) =
        <[Statement; 9]>::try_from(prepared)
    else {
        return Err(Error::unavailable(BACKEND, "statements went missing").into());
    };
    Ok(Statements {
        lock,
        rows,
        locked_rows,
        named,
        clock,
        remove,
        free_names,
        write,
        write_by_key,
    })
}

struct Group<'a> {
    shared: &'a Shared,
    client: &'a Client,
    statements: &'a Statements,
}

/// The counter row as it was locked.
struct Locked {
    revision: u64,
    offset_ms: i64,
    last_ms: i64,
    next_expiry_ms: i64,
}

impl Group<'_> {
    async fn run(&self, jobs: &[Job]) -> Result<Outcome, Broken> {
        let patience = self.shared.connector.options.reply_timeout;
        let load = tokio::time::timeout(patience, self.load(jobs));
        let (locked, mut overlay, reading) =
            load.await.map_err(|_| Failure::timeout("a commit", patience))??;

        let now = Now { store_ms: reading.store_ms, wall_ms: reading.wall_ms };
        let mut head = locked.revision;
        let mut steps = Vec::new();
        let mut next_expiry_ms = locked.next_expiry_ms;
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            match &job.request {
                Work::Commit(commit) => {
                    let decision = decide(&mut overlay, commit, now, head);
                    answers.push(decision.map(|decision| {
                        for step in decision.steps {
                            head = step.revision;
                            overlay.apply(&step);
                            steps.push(step);
                        }
                        for (key, expires_at_ms) in decision.refreshed {
                            overlay.extend(&key, expires_at_ms);
                        }
                        decision.committed
                    }));
                }
                Work::Sweep { keys, next_expiry_ms: next } => {
                    if let Some(step) = decide_sweep(overlay.rows(keys), now, head) {
                        head = step.revision;
                        overlay.apply(&step);
                        steps.push(step);
                    }
                    next_expiry_ms = next_expiry_ms.min(*next);
                    answers.push(Ok(Committed { revision: None, writes: Vec::new() }));
                }
                Work::Record { next_expiry_ms: next } => {
                    next_expiry_ms = next_expiry_ms.min(*next);
                    answers.push(Ok(Committed { revision: None, writes: Vec::new() }));
                }
            }
        }
        self.write(&locked, reading, &overlay, &steps, next_expiry_ms, &answers).await?;
        Ok(Outcome { answers, batches: steps.iter().map(Step::batch).collect() })
    }

    /// The first exchange: begin, lock the counter, read the rows, look at the clock.
    async fn load(&self, jobs: &[Job]) -> Result<(Locked, Overlay, Reading), Broken> {
        let concerned = Concerned::by(jobs);
        let (mortal, other) = (columns(&concerned.mortal), columns(&concerned.other));
        let names = columns(&concerned.names);
        let Statements { lock, rows, locked_rows, named, clock, .. } = self.statements;
        let sent = self.shared.time.sent();
        // Polled together, they travel together.
        let ((), (locked, (mortal, (other, (named, clock))))) = try_join(
            self.client.batch_execute("begin"),
            try_join(
                self.client.query_one(lock, &[]),
                try_join(
                    self.rows(locked_rows, &mortal),
                    try_join(
                        self.rows(rows, &other),
                        try_join(self.rows(named, &names), self.client.query_one(clock, &[])),
                    ),
                ),
            ),
        )
        .await?;

        check_writer(BACKEND, u32::try_from(locked.get::<_, i32>(0)).unwrap_or(u32::MAX))?;
        let locked = Locked {
            revision: unsigned(locked.get(1)),
            offset_ms: locked.get(2),
            last_ms: locked.get(3),
            next_expiry_ms: locked.get(4),
        };
        let mut overlay = Overlay::default();
        for row in mortal.iter().chain(&other).chain(&named) {
            overlay.load(decode(row, 0)?, row.get(COLUMN_COUNT));
        }
        // A row taken for one without a time to live may have one: then it must be locked after all.
        let mut surprises = Keys::default();
        for row in &other {
            if row.get::<_, Option<i64>>(COLUMN_COUNT - 1).is_some() {
                surprises.push(row.get(0), row.get(1));
            }
        }
        let mut wall_ms = clock.get(0);
        if !surprises.is_empty() {
            let (rows, clock) = try_join(
                self.rows(locked_rows, &surprises),
                self.client.query_one(&self.statements.clock, &[]),
            )
            .await?;
            wall_ms = clock.get(0);
            for row in &rows {
                overlay.load(decode(row, 0)?, row.get(COLUMN_COUNT));
            }
        }
        let sample = Sample { wall_ms, offset_ms: locked.offset_ms, last_ms: locked.last_ms };
        Ok((locked, overlay, self.shared.time.received(sent, sample)))
    }

    async fn rows(
        &self,
        statement: &Statement,
        keys: &Keys<'_>,
    ) -> Result<Vec<SqlRow>, tokio_postgres::Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.client.query(statement, &keys.parameters()).await
    }

    /// The second exchange: write, commit.
    async fn write(
        &self,
        locked: &Locked,
        reading: Reading,
        overlay: &Overlay,
        steps: &[Step],
        next_expiry_ms: i64,
        answers: &[Result<Committed>],
    ) -> Result<(), Broken> {
        let client = self.client;
        let writes = Writes::new(overlay, steps);
        let next_expiry_ms = writes
            .earliest_expiry()
            .map_or(next_expiry_ms, |earliest| earliest.min(next_expiry_ms));
        let patience = self.shared.connector.options.reply_timeout;
        if writes.is_empty() && next_expiry_ms == locked.next_expiry_ms && !reading.stepped {
            // Nothing to write: all were refused or found things as they should be.
            let ended = tokio::time::timeout(patience, client.batch_execute("rollback")).await;
            return Ok(ended.map_err(|_| Failure::timeout("a commit", patience))??);
        }
        let head = Head {
            revision: steps.last().map_or(signed(locked.revision), |step| signed(step.revision)),
            clock_last_ms: reading.store_ms,
            clock_offset_ms: reading.offset_ms,
            next_expiry_ms,
        };
        let notify = !steps.is_empty();
        let parameters = writes.parameters(&head, &notify, &self.shared.channel);
        let Statements { remove, free_names, write, write_by_key, .. } = self.statements;
        let statement = if writes.renamed.is_empty() { write } else { write_by_key };
        let removed = async {
            if writes.removed.is_empty() {
                return Ok(0);
            }
            client.execute(remove, &[&writes.removed]).await
        };
        let freed = async {
            if writes.renamed.is_empty() {
                return Ok(0);
            }
            client.execute(free_names, &writes.renamed.parameters()).await
        };
        let write = try_join(removed, try_join(freed, client.query(statement, &parameters)));
        // A statement that fails turns the COMMIT behind it into a rollback.
        let both = futures::future::join(write, client.batch_execute("commit"));
        let changed = || answers.iter().map(|answer| answer.is_ok()).collect();
        match tokio::time::timeout(patience, both).await {
            Ok((Ok(_), Ok(()))) => Ok(()),
            Ok((Err(error), _)) if error.as_db_error().is_some() => Err(error.into()),
            Ok((_, Err(error))) if commit_refused(&error) => Err(error.into()),
            Ok((Err(error), _) | (_, Err(error))) => {
                Err(Broken::InDoubt { why: error.to_string(), changed: changed() })
            }
            Err(_) => Err(Broken::InDoubt {
                why: format!("no answer within {patience:?}"),
                changed: changed(),
            }),
        }
    }
}

type Pair<'a> = (&'a str, &'a str);

/// What a group is about, each once and in order.
#[derive(Default)]
struct Concerned<'a> {
    /// Keys of rows that probably have a time to live.
    mortal: BTreeSet<Pair<'a>>,
    /// All other keys.
    other: BTreeSet<Pair<'a>>,
    /// Kinds and names that are claimed.
    names: BTreeSet<Pair<'a>>,
}

impl<'a> Concerned<'a> {
    fn by(jobs: &'a [Job]) -> Self {
        let mut concerned = Self::default();
        let pair = |key: &'a Key| (key.kind.as_str(), key.id.as_str());
        for job in jobs {
            match &job.request {
                Work::Commit(commit) => {
                    // Checks and deletes are mostly about leases.
                    concerned.mortal.extend(commit.checks.iter().map(|check| pair(&check.key)));
                    for write in &commit.writes {
                        match write {
                            Write::Put(Put { key, ttl: None, .. }) => {
                                concerned.other.insert(pair(key))
                            }
                            write => concerned.mortal.insert(pair(write.key())),
                        };
                        if let Write::Put(Put { key, name: Some(name), .. }) = write {
                            concerned.names.insert((&key.kind, name));
                        }
                    }
                }
                Work::Sweep { keys, .. } => concerned.mortal.extend(keys.iter().map(pair)),
                Work::Record { .. } => {}
            }
        }
        concerned.other.retain(|pair| !concerned.mortal.contains(pair));
        concerned
    }
}

fn columns<'a>(pairs: &BTreeSet<Pair<'a>>) -> Keys<'a> {
    let mut columns = Keys::default();
    pairs.iter().for_each(|(kind, second)| columns.push(kind, second));
    columns
}
