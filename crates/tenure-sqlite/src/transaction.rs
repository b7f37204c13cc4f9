//! One transaction of the writer: rows as they are in it, and what is to change.

use rusqlite::Connection;
use tenure::backend::check_writer;
use tenure::backend::decide::{Change, Decision, Now, Row, Step, View, decide_touch};
use tenure::store::{Touch, Touched};
use tenure::{Error, Key, Result};

use crate::apply::{Statements, by_name, find, of_row};
use crate::error::{BACKEND, definite, of_write};
use crate::guard::Guard;
use crate::history;
use crate::known::Known;
use crate::queue::MOST;

/// What the writer does between `BEGIN` and `COMMIT`.
pub(crate) struct Transaction<'w> {
    pub(crate) conn: &'w Connection,
    pub(crate) guard: &'w Guard,
    pub(crate) known: &'w mut Known,
    statements: Statements<'w>,
    pub(crate) now: Now,
    begun_at: u64,
    steps: Vec<Step>,
    /// What the steps hold, about.
    bytes: usize,
}

impl View for Transaction<'_> {
    fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        if let Some(row) = self.known.get(key) {
            return Ok(row);
        }
        let row = find(self.conn, key).map_err(|error| of_row(error, key))?;
        self.known.set(key, row.clone());
        Ok(row)
    }

    fn named(&mut self, kind: &str, name: &str) -> Result<Option<Row>> {
        by_name(self.conn, kind, name).map_err(|error| of_row(error, &Key::new(kind, name)))
    }
}

impl<'w> Transaction<'w> {
    /// Inside a transaction that has begun.
    pub(crate) fn new(
        conn: &'w Connection,
        guard: &'w Guard,
        known: &'w mut Known,
        now: Now,
    ) -> Result<Self> {
        if !known.begin(conn).map_err(definite)? {
            guard.look(conn).map_err(definite)?;
            // A newer program may have opened the file meanwhile, beside which this one is unsafe.
            check_writer(BACKEND, min_writer(conn).map_err(definite)?)?;
        }
        let begun_at = revision(conn).map_err(definite)?;
        let statements = Statements::new(conn).map_err(definite)?;
        Ok(Self { conn, guard, known, statements, now, begun_at, steps: Vec::new(), bytes: 0 })
    }

    /// The last revision drawn.
    pub(crate) fn head(&self) -> u64 {
        self.steps.last().map_or(self.begun_at, |step| step.revision)
    }

    /// Changes the rows. What is done is kept only with [`Transaction::keep`].
    pub(crate) fn apply(&mut self, decision: &Decision) -> Result<()> {
        for step in &decision.steps {
            self.step(step)?;
        }
        for (key, expires_at_ms) in &decision.refreshed {
            self.extend(key, *expires_at_ms)?;
        }
        Ok(())
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<()> {
        self.statements.apply(step).map_err(of_write)?;
        for change in &step.changes {
            match change {
                Change::Put { row, .. } => self.known.set(&row.object.key, Some(row.clone())),
                Change::Remove { row, .. } => self.known.set(&row.object.key, None),
            }
        }
        Ok(())
    }

    /// What was applied counts: others are told of it.
    pub(crate) fn keep(&mut self, steps: impl IntoIterator<Item = Step>) {
        for step in steps {
            let objects = step.changes.iter().map(|change| match change {
                Change::Put { row, .. } | Change::Remove { row, .. } => row.object.size(),
            });
            self.bytes += objects.sum::<usize>();
            self.steps.push(step);
        }
    }

    /// Whether it has done enough: what it did is in memory until it is written down.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= MOST.bytes
    }

    /// Prolongs one life, if it can be.
    pub(crate) fn touch(&mut self, touch: &Touch) -> Result<Result<Touched>> {
        let row = match self.row(&touch.key) {
            Ok(row) => row,
            // Nobody but whoever touches it is concerned.
            Err(error @ Error::Corrupt { .. }) => return Ok(Err(error)),
            Err(error) => return Err(error),
        };
        let decided = decide_touch(touch, row.as_ref(), self.now);
        if let Ok((expires_at_ms, _)) = &decided {
            match self.extend(&touch.key, *expires_at_ms) {
                // One statement, which is undone by itself.
                Err(error) if error.is_refusal() && !self.conn.is_autocommit() => {
                    return Ok(Err(error));
                }
                done => done?,
            }
        }
        Ok(decided.map(|(_, touched)| touched))
    }

    fn extend(&mut self, key: &Key, expires_at_ms: i64) -> Result<()> {
        self.statements.extend(key, expires_at_ms).map_err(of_write)?;
        self.known.extend(key, expires_at_ms);
        Ok(())
    }

    /// Writes down what happened, the counter and the clock: where it began, and what it did.
    pub(crate) fn end(self) -> rusqlite::Result<(u64, Vec<Step>)> {
        history::record(self.conn, &self.steps, self.now.store_ms)?;
        let head = self.steps.last().map(|step| step.revision);
        let sql = "UPDATE tenure_meta SET revision = coalesce(?1, revision),
                     last_ms = max(last_ms, ?2)";
        self.conn.prepare_cached(sql)?.execute((head, self.now.store_ms))?;
        Ok((self.begun_at, self.steps))
    }
}

/// The last revision drawn, as this connection sees it.
pub(crate) fn revision(conn: &Connection) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT revision FROM tenure_meta")?.query_row([], |row| row.get(0))
}

/// The lowest writer level that the file accepts.
fn min_writer(conn: &Connection) -> rusqlite::Result<u32> {
    conn.prepare_cached("SELECT min_writer FROM tenure_meta")?.query_row([], |row| row.get(0))
}
