//! Making and upgrading the tables, safely when many processes start at once.

use std::time::Duration;

use tenure::backend::{WRITER_LEVEL, check_writer};
use tenure::{Error, Result};

use crate::BACKEND;
use crate::connect::session::{Connector, Session, quoted};
use crate::error::Failure;
use crate::watch::listen::{Listener, Names};

/// Every step of the schema, oldest first; the position is the version before it.
const STEPS: &[&str] =
    &[include_str!("../sql/001_objects.sql"), include_str!("../sql/002_mortal.sql")];

/// A table of a million old rows takes a while to adopt.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a store must know before it starts.
pub(crate) struct Opened {
    /// What sessions of this schema that listen are called, and what they listen to.
    pub(crate) names: Names,
    /// Whether the server flushes to disk at all.
    pub(crate) flushes: bool,
    /// The session that all this was learnt on.
    pub(crate) listener: Listener,
}

/// Brings the tables up to date if need be, and refuses to go on if this program is too old.
pub(crate) async fn migrate(connector: &Connector) -> Result<Opened> {
    let listener = Listener::open(connector).await?;
    let session = &listener.session;
    let work = async {
        let stored = stored_version(session).await?;
        if stored > version() {
            return Err(newer(stored).into());
        }
        if stored < version() || min_writer(session).await? < level() {
            upgrade(session, connector.options.schema.as_deref()).await?;
        }
        opened(session).await
    };
    let done = tokio::time::timeout(PATIENCE, work).await;
    let (names, flushes) = done
        .unwrap_or_else(|_| Err(Failure::timeout("migrating the tables", PATIENCE)))
        .map_err(|failure| failure.error)?;
    Ok(Opened { names, flushes, listener })
}

fn version() -> i32 {
    STEPS.len() as i32
}

fn level() -> i32 {
    i32::try_from(WRITER_LEVEL).unwrap_or(i32::MAX)
}

fn newer(stored: i32) -> Error {
    Error::Refused {
        backend: BACKEND,
        reason: format!(
            "its tables have version {stored}, this program knows {}; upgrade it",
            version()
        ),
    }
}

/// The lowest writer level that the tables accept.
async fn min_writer(session: &Session) -> Result<i32, Failure> {
    let row = session.client.query_opt("select min_writer from tenure_meta", &[]).await?;
    // An empty table is told by whoever needs more of it.
    Ok(row.map_or(i32::MAX, |row| row.get(0)))
}

/// Turns away whoever is below our level, and so would be unsafe beside us: by the number that every
/// program looks at, and by the trigger that lets those of one level pass without a look at it.
async fn raise(session: &Session) -> Result<(), Failure> {
    let client = &session.client;
    client.execute("update tenure_meta set min_writer = $1", &[&level()]).await?;
    let trigger = format!(
        "drop trigger if exists tenure_refuse_writer on objects; \
         create trigger tenure_refuse_writer \
         before insert or update or delete or truncate on objects for each statement \
         when (current_setting('tenure.writer', true) is distinct from '{WRITER_LEVEL}') \
         execute function tenure_refuse_writer()"
    );
    client.batch_execute(&trigger).await?;
    tracing::info!(level = WRITER_LEVEL, "raised the writer level of the postgres store");
    Ok(())
}

/// 0 if there are no tables of ours.
async fn stored_version(session: &Session) -> Result<i32, Failure> {
    let client = &session.client;
    // Not `to_regclass`: it may answer from a cache that is older than the lock we waited for.
    let sql = "select count(*) from pg_catalog.pg_tables \
               where schemaname = current_schema() and tablename = 'tenure_meta'";
    if client.query_one(sql, &[]).await?.get::<_, i64>(0) == 0 {
        return Ok(0);
    }
    let row = client.query_one("select schema_version from tenure_meta", &[]).await?;
    Ok(row.get(0))
}

async fn upgrade(session: &Session, schema: Option<&str>) -> Result<(), Failure> {
    let client = &session.client;
    client.batch_execute("begin").await?;
    let upgraded = async {
        // Whoever comes second waits here and then finds nothing to do. One lock for the database:
        // the schema may not exist yet.
        client.execute("select pg_advisory_xact_lock(hashtext('tenure migration'))", &[]).await?;
        if let Some(schema) = schema {
            client
                .batch_execute(&format!("create schema if not exists {}", quoted(schema)))
                .await?;
        }
        let found = stored_version(session).await?;
        if found > 0 {
            // In the order in which commits lock: the counter first, then the objects.
            client.execute("select from tenure_meta for update", &[]).await?;
        }
        let steps = STEPS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0));
        for (before, step) in steps {
            client.batch_execute(step).await?;
            let after = before as i32 + 1;
            client.execute("update tenure_meta set schema_version = $1", &[&after]).await?;
            tracing::info!(version = after, "upgraded the tables of the postgres store");
        }
        if min_writer(session).await? < level() {
            raise(session).await?;
        }
        client.batch_execute("commit").await?;
        Ok(())
    };
    upgraded.await.map_err(|failure: Failure| Failure {
        error: match failure.error {
            Error::Unavailable { backend, reason } => {
                Error::Unavailable { backend, reason: format!("making the tables: {reason}") }
            }
            other => other,
        },
        ..failure
    })
}

async fn opened(session: &Session) -> Result<(Names, bool), Failure> {
    let sql = "select min_writer, current_schema(), current_setting('fsync') = 'on', \
               left(md5(current_schema()), 16) from tenure_meta";
    let row = session.client.query_opt(sql, &[]).await?;
    let Some(row) = row else {
        let reason = "table tenure_meta is empty; restore it from a backup";
        return Err(Error::corrupt(BACKEND, reason).into());
    };
    check_writer(BACKEND, u32::try_from(row.get::<_, i32>(0)).unwrap_or(u32::MAX))?;
    let schema: Option<&str> = row.get(1);
    let mark: Option<&str> = row.get(3);
    let commits = channel(schema.unwrap_or("public"));
    Ok((Names::new(commits, mark.unwrap_or_default()), row.get(2)))
}

/// Channels belong to the database; stores in two schemas of one must not wake each other. Names are
/// cut at 63 bytes, so a long schema is told by its beginning: an extra wake-up does no harm.
fn channel(schema: &str) -> String {
    let mut name = format!("tenure_{schema}");
    while name.len() > 60 {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_fits_whatever_the_schema() {
        assert_eq!(channel("public"), "tenure_public");
        assert!(channel(&"ü".repeat(63)).len() <= 60);
    }
}
