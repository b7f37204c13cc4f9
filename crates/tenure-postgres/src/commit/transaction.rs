//! One transaction for a group of commits, in two exchanges.
//!
//! The first locks the counter row, so that commits everywhere are strictly serial, reads every row
//! that the group is about, and looks at the clock. Then each commit is decided in turn against what
//! the ones before it left; a refusal concerns its own commit only. The second exchange writes the
//! outcome and commits.
//!
//! Rows with a time to live are locked as well, because a touch does not take the counter. All others
//! change under the counter only.

use futures::future::{try_join, try_join_all};
use tenure::backend::check_writer;
use tenure::backend::decide::{Now, Row, Step, decide_sweep};
use tenure::store::Committed;
use tenure::{Error, Result};
use tokio_postgres::{Client, Row as SqlRow, Statement};

use crate::BACKEND;
use crate::commit::affected::Affected;
use crate::commit::apply::{
    BY_KEY, BY_PLACE, FREE_NAMES, Head, Keys, WRITTEN_BY, Writes, remove_sql, write_sql,
};
use crate::commit::committer::Work;
use crate::commit::known::Known;
use crate::commit::overlay::Overlay;
use crate::commit::quick::{change_sql, look_sql, replace_sql};
use crate::connect::session::{Role, Session};
use crate::error::{Failure, commit_refused, refused};
use crate::read::empty_meta;
use crate::row::{COLUMN_COUNT, COLUMNS, decode, signed, unsigned};
use crate::shared::Shared;
use crate::tid::Xid;
use crate::time::{Reading, Sample, WALL_MS};
use crate::watch::pump::Pump;

/// What a committing session has prepared.
pub(crate) struct Statements {
    lock: Statement,
    rows: Statement,
    locked_rows: Statement,
    named: Statement,
    clock: Statement,
    remove: Statement,
    free_names: Statement,
    write: Statement,
    write_by_key: Statement,
    pub(crate) replace: Statement,
    pub(crate) change: Statement,
    pub(crate) come_and_go: Statement,
    pub(crate) look: Statement,
}

/// Where a group broke.
pub(crate) enum Broken {
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
pub(crate) struct Outcome {
    pub(crate) answers: Vec<Result<Committed>>,
    pub(crate) steps: Vec<Step>,
    /// How the counter row was left, if it was written.
    pub(crate) left: Option<(Head, Xid)>,
}

impl Outcome {
    /// Tells the watchers of this process.
    pub(crate) fn tell(&self, pump: &Pump) {
        if let Some((head, _)) = &self.left {
            pump.committed(&self.steps, head);
        }
    }
}

/// Opens a session and prepares its statements.
pub(crate) async fn connect(shared: &Shared, role: Role) -> Result<(Session, Statements), Failure> {
    let session = shared.connector.open(role).await.map_err(|error| {
        let transient = matches!(error, Error::Unavailable { .. });
        Failure { error, transient, blames_request: false, moved: false }
    })?;
    shared.pump.doubt();
    let prepare = prepare(&session.client);
    let patience = shared.connector.options.reply_timeout;
    let statements = tokio::time::timeout(patience, prepare)
        .await
        .map_err(|_| Failure::timeout("preparing statements", patience))??;
    Ok((session, statements))
}

async fn prepare(client: &Client) -> Result<Statements, Failure> {
    let rows = format!(
        "select {COLUMNS}, o.ctid \
         from (select unnest($1::text[]) as object_type, unnest($2::text[]) as id) k \
         join objects o on o.object_type = k.object_type and o.id = k.id"
    );
    let locked_rows = format!("{rows} order by o.object_type, o.id for no key update of o");
    let named = format!(
        "select {COLUMNS}, o.ctid \
         from (select unnest($1::text[]) as object_type, unnest($2::text[]) as name) k \
         join objects o on o.object_type = k.object_type and o.name = k.name \
         where o.name is not null order by o.object_type, o.id for no key update of o"
    );
    let lock = "select min_writer, revision, clock_offset_ms, clock_last_ms, next_expiry_ms, xmin \
                from tenure_meta for update";
    // A statement of its own: the others' clocks would be read before their locks were granted.
    let clock = format!("select {WALL_MS}");
    let [write, by_key] = [BY_PLACE, BY_KEY].map(write_sql);
    let remove = remove_sql();
    let quick = [replace_sql(), change_sql(true), change_sql(false), look_sql()];
    let [rows, locked, named, clock] = [&rows, &locked_rows, &named, &clock].map(String::as_str);
    let texts = [lock, rows, locked, named, clock, &remove, FREE_NAMES, &write, &by_key];
    let texts = texts.into_iter().chain(quick.iter().map(String::as_str));
    let prepared = try_join_all(texts.map(|text| client.prepare(text))).await?;
    let Ok(
        [
            lock,
            rows,
            locked_rows,
            named,
            clock,
            remove,
            free_names,
            write,
            write_by_key,
            replace,
            change,
            come_and_go,
            look,
        ],
    ) = <[Statement; 13]>::try_from(prepared)
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
        replace,
        change,
        come_and_go,
        look,
    })
}

/// One transaction of one group.
pub(crate) struct Transaction<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) client: &'a Client,
    pub(crate) statements: &'a Statements,
    /// The transaction is open and holds SQL of the caller's, for the only commit of the group: it
    /// ends as that commit does, even if nothing else is written.
    pub(crate) joins: bool,
    /// Every row is locked as it is read, not only those that touches change without the counter.
    pub(crate) locks: bool,
}

/// The counter row as it was locked.
struct Locked {
    revision: u64,
    offset_ms: i64,
    last_ms: i64,
    next_expiry_ms: i64,
}

impl Transaction<'_> {
    /// Runs a group: every request gets its own answer.
    pub(crate) async fn run(&self, jobs: &[&Work], known: &mut Known) -> Result<Outcome, Broken> {
        let patience = self.shared.connector.options.reply_timeout;
        let load = tokio::time::timeout(patience, self.load(jobs, known));
        let (locked, mut overlay, reading) =
            load.await.map_err(|_| Failure::timeout("a commit", patience))??;

        let now = Now { store_ms: reading.store_ms, wall_ms: reading.wall_ms };
        let mut head = locked.revision;
        let mut steps = Vec::new();
        let mut next_expiry_ms = locked.next_expiry_ms;
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            match job {
                Work::Commit(commit) => {
                    answers.push(overlay.commit(commit, now, &mut head, &mut steps));
                }
                Work::Sweep { keys, claimed_ms, next_expiry_ms: next } => {
                    let rows = overlay.rows(keys);
                    let live = rows.iter().filter(|row| row.is_live(now.store_ms));
                    let spared = live.filter_map(|row| row.expires_at_ms).min();
                    let next = lowered(spared.unwrap_or(i64::MAX).min(*next));
                    let unmoved = next_expiry_ms == *claimed_ms;
                    next_expiry_ms = if unmoved { next } else { next_expiry_ms.min(next) };
                    if let Some(step) = decide_sweep(rows, now, head) {
                        head = step.revision;
                        overlay.apply(&step);
                        steps.push(step);
                    }
                    answers.push(Ok(Committed { revision: None, writes: Vec::new() }));
                }
                Work::Record { next_expiry_ms: next } => {
                    next_expiry_ms = lowered(next_expiry_ms.min(*next));
                    answers.push(Ok(Committed { revision: None, writes: Vec::new() }));
                }
            }
        }
        let left = self.write(&locked, reading, &overlay, &steps, next_expiry_ms, &answers).await?;
        Ok(Outcome { answers, steps, left })
    }

    /// The first exchange: begin, lock the counter, read the rows, look at the clock.
    async fn load(
        &self,
        jobs: &[&Work],
        known: &mut Known,
    ) -> Result<(Locked, Overlay, Reading), Broken> {
        let affected = Affected::by(jobs);
        let (mortal, other) = (affected.mortal(), affected.other());
        let names = affected.names();
        let Statements { lock, rows, locked_rows, named, clock, .. } = self.statements;
        let rows = if self.locks { locked_rows } else { rows };
        let sent = self.shared.time.sent();
        // Polled together, they travel together.
        let ((), (locked, (mortal, (other, (named, clock))))) = try_join(
            self.begin(),
            try_join(
                self.client.query_opt(lock, &[]),
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

        let locked = locked.ok_or_else(empty_meta)?;
        check_writer(BACKEND, u32::try_from(locked.get::<_, i32>(0)).unwrap_or(u32::MAX))?;
        known.found(unsigned(locked.get(1)), locked.get(5));
        let locked = Locked {
            revision: unsigned(locked.get(1)),
            offset_ms: locked.get(2),
            last_ms: locked.get(3),
            next_expiry_ms: locked.get(4),
        };
        let mut overlay = Overlay::default();
        for row in mortal.iter().chain(&other).chain(&named) {
            overlay.load(decoded(row)?, row.get(COLUMN_COUNT));
        }
        // A row taken for one without a time to live may have one: then it must be locked after all.
        let mut surprises = Keys::default();
        for row in &other {
            if !self.locks && row.get::<_, Option<i64>>(COLUMN_COUNT - 1).is_some() {
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
                overlay.load(decoded(row)?, row.get(COLUMN_COUNT));
            }
        }
        let sample = Sample { wall_ms, offset_ms: locked.offset_ms, last_ms: locked.last_ms };
        Ok((locked, overlay, self.shared.time.received(sent, sample)))
    }

    async fn begin(&self) -> Result<(), tokio_postgres::Error> {
        if self.joins {
            return Ok(());
        }
        self.client.batch_execute("begin").await
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

    /// The second exchange: write, commit. Tells how the counter row was left, if it was written.
    async fn write(
        &self,
        locked: &Locked,
        reading: Reading,
        overlay: &Overlay,
        steps: &[Step],
        next_expiry_ms: i64,
        answers: &[Result<Committed>],
    ) -> Result<Option<(Head, Xid)>, Broken> {
        let client = self.client;
        let writes = Writes::new(overlay, steps);
        let next_expiry_ms = writes
            .earliest_expiry()
            .map_or(next_expiry_ms, |earliest| lowered(earliest.min(next_expiry_ms)));
        let patience = self.shared.connector.options.reply_timeout;
        let idle = match self.joins {
            true => answers.iter().all(Result::is_err),
            false => {
                writes.is_empty() && next_expiry_ms == locked.next_expiry_ms && !reading.stepped
            }
        };
        if idle {
            // Nothing to write: all were refused or found things as they should be.
            let ended = tokio::time::timeout(patience, client.batch_execute("rollback")).await;
            ended.map_err(|_| Failure::timeout("a commit", patience))??;
            return Ok(None);
        }
        let head = Head {
            revision: steps.last().map_or(signed(locked.revision), |step| signed(step.revision)),
            clock_last_ms: reading.store_ms,
            clock_offset_ms: reading.offset_ms,
            next_expiry_ms,
        };
        let notify = !steps.is_empty();
        let parameters = writes.parameters(&head, &notify, &self.shared.names.commits);
        let Statements { remove, free_names, write, write_by_key, .. } = self.statements;
        let statement = if writes.renamed.is_empty() { write } else { write_by_key };
        let removed = async {
            if writes.removed.is_empty() {
                return Ok(0);
            }
            let expected = i64::try_from(writes.removed.len()).unwrap_or(i64::MAX);
            client.execute(remove, &[&writes.removed, &expected]).await
        };
        let freed = async {
            if writes.renamed.is_empty() {
                return Ok(0);
            }
            client.execute(free_names, &writes.renamed.parameters()).await
        };
        let write = try_join(removed, try_join(freed, client.query_one(statement, &parameters)));
        // A statement that fails turns the COMMIT behind it into a rollback.
        let both = futures::future::join(write, client.batch_execute("commit"));
        let changed = || answers.iter().map(|answer| answer.is_ok()).collect();
        match tokio::time::timeout(patience, both).await {
            Ok((Ok((_, (_, answer))), Ok(()))) => Ok(Some((head, answer.get(WRITTEN_BY)))),
            Ok((Err(error), _)) if refused(&error) => Err(error.into()),
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

/// A row that is damaged is the affair of those who ask for it; the others of the group go on without them.
fn decoded(row: &SqlRow) -> Result<Row, Failure> {
    decode(row, 0).map_err(|error| Failure { blames_request: true, ..error.into() })
}

/// What writers leave as the next expiry is even, also where theirs comes later than what is there; what a
/// sweep claims it with is odd. So the sweep can tell whether anybody has written since it looked.
pub(crate) fn lowered(expires_at_ms: i64) -> i64 {
    expires_at_ms & !1
}
