//! Lists: pages by key, from one snapshot, in bounded steps.

use tenure::backend::decide::Row;
use tenure::store::{IdRange, Page, Query, Requirement};
use tenure::{Labels, Result};
use tokio_postgres::types::ToSql;

use crate::read::{META_COUNT, Meta, empty_meta, meta_columns};
use crate::row::{COLUMN_COUNT, COLUMNS, decode_joined, labels_text};
use crate::shared::Shared;

/// Rows looked at for one page when labels decide which of them belong.
const SCAN: i64 = 5_000;
/// Payloads of one page, roughly; a single object may exceed it.
const PAGE_BYTES: i64 = 16 * 1024 * 1024;

impl Shared {
    /// One page, with the store's revision in the same snapshot.
    pub(crate) async fn list(&self, query: &Query) -> Result<Page> {
        let sql = statement(query);
        let bounds = Bounds::of(query);
        // One more than asked for tells whether there is a next page.
        let limit = query.limit as i64 + 1;
        let labels = equalities(query).and_then(|labels| labels_text(&labels));
        let mut parameters: Vec<&(dyn ToSql + Sync)> =
            vec![&query.kind, &bounds.first, &bounds.inclusive, &limit];
        if let Some(until) = &bounds.until {
            parameters.push(until);
        }
        if let Some(name) = &query.name {
            parameters.push(name);
        }
        if let Some(labels) = &labels {
            parameters.push(labels);
        }
        let (sent, rows) = self.read(&sql, &parameters).await?;
        let first = rows.first().ok_or_else(empty_meta)?;
        let meta = Meta::received(self, sent, first);
        // Where a bounded scan stopped, if it did not reach the end.
        let mut stopped: Option<String> = first.get(META_COUNT + COLUMN_COUNT);
        let total: Option<i64> = first.get(META_COUNT + COLUMN_COUNT + 1);
        let found: Vec<Row> = rows
            .iter()
            .map(|row| decode_joined(row, META_COUNT))
            .filter_map(Result::transpose)
            .collect::<Result<_>>()?;
        if total.is_some_and(|total| total > found.len() as i64) {
            // Cut off by size; the page goes on behind what fitted.
            stopped = found.iter().map(|row| &row.object.key.id).max().cloned();
        }
        self.page(query, found, meta, stopped).await
    }

    async fn page(
        &self,
        query: &Query,
        mut found: Vec<Row>,
        meta: Meta,
        stopped: Option<String>,
    ) -> Result<Page> {
        found.sort_by(|a, b| a.object.key.id.cmp(&b.object.key.id));
        let full = found.len() > query.limit;
        found.truncate(query.limit);
        let last = found.last().map(|row| row.object.key.id.clone());
        let next = if full { last } else { stopped };

        let store_ms = meta.reading.store_ms;
        let wanted = |row: &Row| query.matches(&row.object);
        let expired: Vec<&Row> =
            found.iter().filter(|row| wanted(row) && !row.is_live(store_ms)).collect();
        let saved = match expired.is_empty() {
            true => Vec::new(),
            false => {
                let (saved, reading) = self.look_again(&expired).await?;
                let saved = saved.iter().filter(|row| wanted(row));
                saved.filter_map(|row| row.read(reading.store_ms)).collect()
            }
        };
        let live = found.iter().filter(|row| wanted(row)).filter_map(|row| row.read(store_ms));
        let mut objects: Vec<_> = live.chain(saved).collect();
        objects.sort_by(|a, b| a.key.id.cmp(&b.key.id));
        Ok(Page { objects, next, revision: meta.revision })
    }
}

/// The part of the key's index that a query can find anything in.
struct Bounds {
    first: String,
    inclusive: bool,
    until: Option<String>,
}

impl Bounds {
    fn of(query: &Query) -> Self {
        let start = query.range.start();
        let (first, inclusive) = match query.after.as_deref() {
            Some(after) if after >= start => (after, false),
            _ => (start, true),
        };
        Self { first: first.to_owned(), inclusive, until: until(&query.range) }
    }
}

fn until(range: &IdRange) -> Option<String> {
    let past = past_prefix(&range.prefix);
    match (&range.until, past) {
        (Some(until), Some(past)) => Some(until.clone().min(past)),
        (Some(until), None) => Some(until.clone()),
        (None, past) => past,
    }
}

/// The first text behind all that start with the prefix: its last character replaced by the next
/// one. Characters sort as their UTF-8 bytes do.
fn past_prefix(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // `nth(1)` steps over the surrogates, which are no characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

/// The labels that must have one certain value: the database can select by these.
fn equalities(query: &Query) -> Option<Labels> {
    let mut labels = Labels::new();
    for requirement in &query.selector.0 {
        if let Requirement::In(key, values) = requirement
            && let [value] = values.as_slice()
        {
            labels.insert(key.clone(), value.clone());
        }
    }
    (!labels.is_empty()).then_some(labels)
}

fn statement(query: &Query) -> String {
    let mut number = 4;
    let mut next = || {
        number += 1;
        number
    };
    let mut bounds = "o.object_type = $1 and o.id >= $2 and (o.id <> $2 or $3::boolean)".to_owned();
    if Bounds::of(query).until.is_some() {
        bounds.push_str(&format!(" and o.id < ${}", next()));
    }
    if query.name.is_some() {
        bounds.push_str(&format!(" and o.name = ${} and o.name is not null", next()));
    }
    let meta = meta_columns();
    if query.selector.is_empty() {
        let rows =
            sized(&format!("select o.* from objects o where {bounds} order by o.id limit $4"));
        return format!(
            "select {meta}, {COLUMNS}, null::text, o.tenure_total \
             from tenure_meta m left join lateral ({rows}) o on true"
        );
    }
    let hit = match equalities(query) {
        Some(_) => format!("coalesce(o.labels, '{{}}')::jsonb @> ${}::text::jsonb", next()),
        None => "true".to_owned(),
    };
    let rows = sized(
        "select o.* from scanned s join objects o on o.object_type = $1 and o.id = s.id \
         where s.hit order by s.id limit $4",
    );
    format!(
        "with scanned as materialized ( \
           select o.id, {hit} as hit from objects o where {bounds} order by o.id limit {SCAN}) \
         select {meta}, {COLUMNS}, \
           (select max(id) from scanned having count(*) = {SCAN}), o.tenure_total \
         from tenure_meta m left join lateral ({rows}) o on true"
    )
}

/// As many of the rows as fit into a page of bounded size, at least one, and how many there were.
fn sized(rows: &str) -> String {
    format!(
        "select f.* from ( \
           select o.*, count(*) over () as tenure_total, \
             sum(octet_length(o.payload)) over (order by o.id \
               rows between unbounded preceding and 1 preceding) as tenure_before \
           from ({rows}) o) f \
         where f.tenure_before is null or f.tenure_before < {PAGE_BYTES}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::store::Selector;

    #[test]
    fn the_end_of_a_prefix_is_bytewise() {
        assert_eq!(past_prefix("ab").as_deref(), Some("ac"));
        assert_eq!(past_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(past_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(past_prefix("\u{10ffff}"), None);
        assert_eq!(past_prefix(""), None);
    }

    #[test]
    fn only_what_is_asked_for_is_bound() {
        let all = statement(&Query::new("k"));
        assert!(all.contains("$4") && !all.contains("$5"));
        let query = Query::new("k").prefix("a").name("n").selector(Selector::equals("l", "v"));
        let narrow = statement(&query);
        assert!(narrow.contains("o.id < $5") && narrow.contains("o.name = $6"));
        assert!(narrow.contains("$7::text::jsonb"));
        assert_eq!(equalities(&query).map(|labels| labels.len()), Some(1));
    }
}
