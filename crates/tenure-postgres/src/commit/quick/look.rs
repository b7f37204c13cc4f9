//! Reads rows that this process did not write, so that a group can go in one exchange after all.
//!
//! It locks nothing; what it reads is confirmed with all the rest. It costs an exchange, but neither a
//! transaction nor the statements of the ordinary way. It also tells whether others have written, so that
//! nothing is tried in vain.

use std::collections::HashMap;

use tenure::Key;
use tenure::backend::decide::Row;
use tokio_postgres::Row as SqlRow;

use crate::commit::apply::Keys;
use crate::commit::in_flight::Ready;
use crate::commit::known::Left;
use crate::error::Failure;
use crate::row::{COLUMN_COUNT, COLUMNS, decode_joined};
use crate::tid::Xid;

/// Rows as they were a moment ago, and who wrote them; `None` where there was none.
pub(crate) type Seen = HashMap<Key, Option<(Row, Xid)>>;

/// The counter row comes first, whatever else is there.
pub(crate) fn look_sql() -> String {
    format!(
        "select m.revision, m.xmin, {COLUMNS}, o.xmin from tenure_meta m left join ( \
           (select unnest($1::text[]) as object_type, unnest($2::text[]) as id) k \
           join objects o on o.object_type = k.object_type and o.id = k.id) on true"
    )
}

/// How many columns of the counter there are.
const COUNTER: usize = 2;

/// The rows with these keys; `None` if others have written since the counter was left like this.
pub(crate) async fn look(
    ready: &Ready,
    left: Left,
    keys: Vec<Key>,
) -> Result<Option<Seen>, Failure> {
    let mut asked = Keys::default();
    keys.iter().for_each(|key| asked.push(&key.kind, &key.id));
    let found = ready.session.client.query(&ready.statements.look, &asked.parameters()).await?;
    let is_as_left = |found: &SqlRow| {
        found.get::<_, i64>(0) == left.head.revision && left.by == Some(found.get(1))
    };
    if !found.first().is_some_and(is_as_left) {
        return Ok(None);
    }
    let mut seen: Seen = keys.into_iter().map(|key| (key, None)).collect();
    for found in &found {
        if let Some(row) = decode_joined(found, COUNTER)? {
            let by = found.get(COUNTER + COLUMN_COUNT);
            seen.insert(row.object.key.clone(), Some((row, by)));
        }
    }
    Ok(Some(seen))
}
