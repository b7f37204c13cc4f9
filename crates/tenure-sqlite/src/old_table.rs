//! Taking over the documents' older table.
//!
//! It had no `resource_version`, and `id` alone was its key. The new table is built beside it and gets the
//! rows as they are (payloads untouched, unknown columns kept), in one transaction: a crash leaves the old
//! table or the new one. Every old row becomes version 1 and gets a revision of its own, in order of
//! creation. Indexes, triggers and views of the owner's stay. What cannot be taken over is named before
//! anything is changed.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _};
use tenure::{Error, Result};

use crate::error::{BACKEND, definite};
use crate::schema::has_table;

const SCHEMA: &str = include_str!("schema.sql");
/// The columns of the older table that the new one takes over.
const OLD_COLUMNS: [&str; 7] =
    ["object_type", "id", "name", "payload", "labels", "created_at_ms", "updated_at_ms"];
/// The one of them that tables from before it was added do without.
const LABELS: &str = "labels";
/// The columns the new table adds.
const NEW_COLUMNS: [&str; 6] =
    ["resource_version", "revision", "created_revision", "token", "ttl_ms", "expires_at_ms"];
/// The one of them that the documents' later table has as well.
const VERSION: &str = "resource_version";

/// Creates the tables, taking over an older `objects` table if there is one. Returns how many
/// revisions its rows used.
pub(crate) fn create(conn: &Connection, path: &Path) -> Result<u64> {
    if !has_table(conn, "objects")? {
        conn.execute_batch(&SCHEMA.replace("/*EXTRA*/", "")).map_err(definite)?;
        return Ok(0);
    }
    let old = OldTable { columns: columns(conn).map_err(definite)? };
    old.check_columns(path)?;
    check_references(conn, path)?;
    check_rows(conn)?;
    if old.has(LABELS) {
        check_labels(conn)?;
    }
    old.take_over(conn).map_err(definite)
}

/// The older table.
struct OldTable {
    columns: Vec<Column>,
}

/// A column of the older table.
struct Column {
    name: String,
    kind: String,
    not_null: bool,
    default: Option<String>,
    is_computed: bool,
}

impl Column {
    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// As a table is made with it. One that must not be null and has no default could not be filled for
    /// new objects, so it may be null from here on.
    fn declared(&self) -> String {
        let Self { name, kind, not_null, default, .. } = self;
        let default = default.as_deref().and_then(expression).map(|value| match not_null {
            true => format!(" NOT NULL DEFAULT ({value})"),
            false => format!(" DEFAULT ({value})"),
        });
        format!("\"{name}\" {kind}{}", default.unwrap_or_default())
    }
}

/// A default as an expression; none if it is null. SQLite takes a bare or a double-quoted word for text there,
/// but not in an expression.
fn expression(default: &str) -> Option<String> {
    const WORDS: [&str; 5] = ["TRUE", "FALSE", "CURRENT_TIME", "CURRENT_DATE", "CURRENT_TIMESTAMP"];
    let text = default.trim();
    let is_word = text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let quoted = quoted.filter(|text| !text.replace("\"\"", "").contains('"'));
    match quoted {
        Some(word) => Some(literal(&word.replace("\"\"", "\""))),
        None if text.eq_ignore_ascii_case("null") => None,
        None if is_word && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) => {
            Some(literal(text))
        }
        None => Some(text.to_owned()),
    }
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn columns(conn: &Connection) -> rusqlite::Result<Vec<Column>> {
    let sql =
        "SELECT name, type, \"notnull\", dflt_value, hidden FROM pragma_table_xinfo('objects')";
    let mut statement = conn.prepare(sql)?;
    let rows = statement.query_map([], |row| {
        let (name, kind, is_computed) = (row.get(0)?, row.get(1)?, row.get::<_, u32>(4)? > 0);
        Ok(Column { name, kind, not_null: row.get(2)?, default: row.get(3)?, is_computed })
    })?;
    rows.collect()
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Refused { backend: BACKEND, reason: format!("{} has {why}", path.display()) }
}

/// A row that has to be mended before anything is changed.
fn odd(row: &str, why: &str) -> Error {
    Error::corrupt(BACKEND, format!("{row} {why}; mend that row, then start again"))
}

/// A foreign key would lose what it refers to: an id is unique within its kind only. And the rows that
/// refer to the old table could go with it.
fn check_references(conn: &Connection, path: &Path) -> Result<()> {
    let sql =
        "SELECT tables.name FROM sqlite_master tables, pragma_foreign_key_list(tables.name) keys
               WHERE tables.type = 'table' AND keys.\"table\" = 'objects' COLLATE NOCASE
                 AND tables.name <> 'objects' COLLATE NOCASE LIMIT 1";
    let refers: Option<String> =
        conn.query_row(sql, [], |row| row.get(0)).optional().map_err(definite)?;
    match refers {
        None => Ok(()),
        Some(table) => Err(refused(
            path,
            &format!(
                "a table {table:?} with a foreign key to `objects`, where an id will be unique \
                 within its kind only; make that table again without the key, then start again"
            ),
        )),
    }
}

/// Rows that the new table cannot hold, or that nobody could read there.
fn check_rows(conn: &Connection) -> Result<()> {
    let sql = "SELECT 'the row of ' || coalesce(object_type, '?') || '/' || coalesce(id, '?'),
                 CASE WHEN typeof(object_type) IN ('null', 'blob') THEN 'object_type'
                   WHEN typeof(id) IN ('null', 'blob') THEN 'id'
                   WHEN typeof(name) = 'blob' THEN 'name'
                   WHEN payload IS NULL THEN 'payload'
                   WHEN (CAST(created_at_ms AS INTEGER) = created_at_ms) IS NOT TRUE
                     THEN 'created_at_ms'
                   WHEN (CAST(updated_at_ms AS INTEGER) = updated_at_ms) IS NOT TRUE
                     THEN 'updated_at_ms' END AS wrong
               FROM objects WHERE wrong IS NOT NULL LIMIT 1";
    let text = |row: &rusqlite::Row<'_>, at| {
        row.get_ref(at)
            .map(|value| String::from_utf8_lossy(value.as_bytes().unwrap_or(b"?")).into_owned())
    };
    let found = conn
        .query_row(sql, [], |row| Ok((text(row, 0)?, text(row, 1)?)))
        .optional()
        .map_err(definite)?;
    if let Some((row, column)) = found {
        return Err(odd(&row, &format!("has no {column} that can be read")));
    }
    for column in ["id", "name"] {
        let sql = format!(
            "SELECT object_type || '/' || min(id), {column} FROM objects WHERE {column} <> ''
             GROUP BY object_type, CAST({column} AS TEXT) HAVING count(*) > 1 LIMIT 1"
        );
        let found = conn
            .query_row(&sql, [], |row| Ok((text(row, 0)?, text(row, 1)?)))
            .optional()
            .map_err(definite)?;
        if let Some((row, value)) = found {
            let why = format!("shares its {column} {value:?} with another one of its kind");
            return Err(odd(&format!("the row of {row}"), &why));
        }
    }
    Ok(())
}

/// Labels that are no JSON object would be lost; say so before anything is changed.
fn check_labels(conn: &Connection) -> Result<()> {
    let sql = "SELECT object_type || '/' || id FROM objects
               WHERE labels IS NOT NULL AND trim(labels) NOT IN ('', 'null')
                 AND (NOT json_valid(labels) OR json_type(labels) <> 'object') LIMIT 1";
    let bad: Option<String> =
        conn.query_row(sql, [], |row| row.get(0)).optional().map_err(definite)?;
    match bad {
        None => Ok(()),
        Some(key) => Err(odd(&format!("labels of {key}"), "are not a JSON object")),
    }
}

impl OldTable {
    fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|old| old.is(column))
    }

    /// Whether it is a table of the documents' at all, and what its owner calls the rest.
    fn check_columns(&self, path: &Path) -> Result<()> {
        let missing: Vec<_> =
            OLD_COLUMNS.iter().filter(|c| **c != LABELS && !self.has(c)).collect();
        if !missing.is_empty() {
            let why = format!(
                "a table `objects` without the columns {missing:?}, so it is not one that Tenure \
                 can take over; use another file"
            );
            return Err(refused(path, &why));
        }
        let ours = |column: &Column| NEW_COLUMNS.iter().any(|new| column.is(new));
        let in_the_way = self
            .columns
            .iter()
            .filter(|column| column.is_computed || (ours(column) && !column.is(VERSION)));
        let in_the_way: Vec<_> = in_the_way.map(|column| column.name.as_str()).collect();
        if in_the_way.is_empty() {
            return Ok(());
        }
        let why = format!(
            "a table `objects` with columns {in_the_way:?} that cannot be taken over: Tenure has \
             columns of these names, or they are computed; rename or drop them, then start again"
        );
        Err(refused(path, &why))
    }

    fn take_over(&self, conn: &Connection) -> rusqlite::Result<u64> {
        let known =
            |column: &Column| OLD_COLUMNS.iter().chain(&NEW_COLUMNS).any(|known| column.is(known));
        let extra: Vec<_> = self.columns.iter().filter(|column| !known(column)).collect();
        // Indexes and triggers of the owner's go with the table they belong to; they are made again.
        let owned = texts(
            conn,
            "SELECT sql FROM sqlite_master WHERE tbl_name = 'objects' COLLATE NOCASE
               AND type IN ('index', 'trigger') AND sql IS NOT NULL",
        )?;
        // What else mentions the table means the new one: SQLite would have it follow the old one.
        conn.pragma_update(None, "legacy_alter_table", true)?;
        conn.execute_batch("ALTER TABLE objects RENAME TO tenure_old_objects")?;
        conn.pragma_update(None, "legacy_alter_table", false)?;
        let indexes = texts(
            conn,
            "SELECT name FROM sqlite_master WHERE tbl_name = 'tenure_old_objects'
               AND type = 'index' AND sql IS NOT NULL",
        )?;
        for name in indexes {
            conn.execute_batch(&format!("DROP INDEX \"{name}\""))?;
        }
        let declared: String =
            extra.iter().map(|column| format!(", {}", column.declared())).collect();
        conn.execute_batch(&SCHEMA.replace("/*EXTRA*/", &declared))?;
        let rows = self.copy(conn, &extra)?;
        conn.execute_batch("DROP TABLE tenure_old_objects")?;
        for sql in owned {
            conn.execute_batch(&sql)?;
        }
        tracing::info!(rows, "took over the objects of an older database");
        Ok(rows as u64)
    }

    fn copy(&self, conn: &Connection, extra: &[&Column]) -> rusqlite::Result<usize> {
        let version = if self.has(VERSION) { "coalesce(resource_version, 1)" } else { "1" };
        let labels = match self.has(LABELS) {
            true => {
                "CASE WHEN trim(labels) IN ('', 'null') THEN '{}' ELSE coalesce(labels, '{}') END"
            }
            false => "'{}'",
        };
        let columns: String = extra.iter().map(|column| format!(", \"{}\"", column.name)).collect();
        // An empty name is none. A payload that somebody wrote as text is the same bytes as a blob.
        conn.execute(
            &format!(
                "INSERT INTO objects (object_type, id, name, payload, labels, created_at_ms,
                   updated_at_ms, resource_version, revision, created_revision, token {columns})
                 SELECT object_type, id, nullif(name, ''), CAST(payload AS BLOB), {labels},
                   created_at_ms, updated_at_ms, {version}, tenure_nr, tenure_nr, tenure_nr {columns}
                 FROM (SELECT *, row_number() OVER (ORDER BY created_at_ms, object_type, id)
                         AS tenure_nr
                       FROM tenure_old_objects)"
            ),
            [],
        )
    }
}

fn texts(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_every_kind_are_expressions() {
        for (default, wanted) in [
            ("7", Some("7")),
            ("-1.5", Some("-1.5")),
            ("'it''s'", Some("'it''s'")),
            ("'a' || 'b'", Some("'a' || 'b'")),
            ("draft", Some("'draft'")),
            ("\"dra\"\"ft's\"", Some("'dra\"ft''s'")),
            ("Current_Timestamp", Some("Current_Timestamp")),
            ("true", Some("true")),
            ("NULL", None),
        ] {
            assert_eq!(expression(default).as_deref(), wanted, "{default}");
        }
    }
}
