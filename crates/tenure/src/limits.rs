//! Stated, enforced limits. Every backend declares its own; an error names the limit it met.

use std::time::Duration;

use crate::store::{Commit, Put, Query, Requirement, Selector, Touch, WatchRequest, Write};
use crate::{Error, Key, Result};

/// The most a backend takes. Sizes are bytes of UTF-8 or of payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of a kind.
    pub kind_bytes: usize,
    /// Length of an id.
    pub id_bytes: usize,
    /// Length of a name.
    pub name_bytes: usize,
    /// Labels on one object.
    pub labels: usize,
    /// Length of a label's key and of its value, each.
    pub label_bytes: usize,
    /// Size of one payload.
    pub payload_bytes: usize,
    /// Checks plus writes in one commit.
    pub commit_operations: usize,
    /// Payloads of one commit, added up.
    pub commit_bytes: usize,
    /// Objects in one touch.
    pub touches: usize,
    /// Objects in one page of a list.
    pub page_objects: usize,
    /// The longest time to live.
    pub ttl_max: Duration,
}

impl Limits {
    /// Values that a selector may name in all, on every backend: each object is compared with them.
    pub const SELECTOR_VALUES: usize = 1_000;

    /// What every backend of ours takes unless it says otherwise.
    pub const DEFAULT: Self = Self {
        kind_bytes: 128,
        id_bytes: 512,
        name_bytes: 256,
        labels: 64,
        label_bytes: 256,
        payload_bytes: 1024 * 1024,
        commit_operations: 128,
        commit_bytes: 4 * 1024 * 1024,
        touches: 10_000,
        page_objects: 1_000,
        ttl_max: Duration::from_secs(366 * 24 * 3600),
    };

    pub(crate) fn check_key(&self, key: &Key) -> Result<()> {
        self.check_kind(&key.kind)?;
        check_text("id", &key.id, self.id_bytes)
    }

    fn check_kind(&self, kind: &str) -> Result<()> {
        check_text("kind", kind, self.kind_bytes)?;
        if kind.contains('/') {
            return Err(Error::invalid(
                format!("kind {kind:?}"),
                "'/' separates kind from id; use another character",
            ));
        }
        Ok(())
    }

    pub(crate) fn check_commit(&self, commit: &Commit) -> Result<()> {
        let operations = commit.checks.len() + commit.writes.len();
        check_limit("commit_operations", self.commit_operations, operations)?;
        let mut bytes = 0;
        let mut seen = std::collections::HashSet::new();
        for check in &commit.checks {
            self.check_key(&check.key)?;
        }
        for write in &commit.writes {
            self.check_key(write.key())?;
            // One write needs no set: the common commit pays nothing for this rule.
            if commit.writes.len() > 1 && !seen.insert(write.key()) {
                return Err(Error::invalid(
                    format!("commit writing {} twice", write.key()),
                    "a commit may write an object once; merge the two writes",
                ));
            }
            if let Write::Put(put) = write {
                self.check_put(put)?;
                bytes += put.payload.len();
            }
        }
        check_limit("commit_bytes", self.commit_bytes, bytes)
    }

    fn check_put(&self, put: &Put) -> Result<()> {
        if let Some(name) = &put.name {
            check_text("name", name, self.name_bytes)?;
        }
        check_limit("labels", self.labels, put.labels.len())?;
        for (key, value) in &put.labels {
            check_text("label key", key, self.label_bytes)?;
            check_text_or_none("label value", value, self.label_bytes)?;
        }
        check_limit("payload_bytes", self.payload_bytes, put.payload.len())?;
        put.ttl.map_or(Ok(()), |ttl| self.check_ttl(ttl))
    }

    pub(crate) fn check_touches(&self, touches: &[Touch]) -> Result<()> {
        check_limit("touches", self.touches, touches.len())?;
        touches.iter().try_for_each(|touch| {
            self.check_key(&touch.key)?;
            self.check_ttl(touch.ttl)
        })
    }

    pub(crate) fn check_query(&self, query: &Query) -> Result<()> {
        self.check_kind(&query.kind)?;
        check_limit("page_objects", self.page_objects, query.limit)?;
        if query.limit == 0 {
            return Err(Error::invalid("page limit 0", "ask for at least one object a page"));
        }
        if let Some(name) = &query.name {
            check_text("name", name, self.name_bytes)?;
        }
        check_text_or_none("prefix", &query.range.prefix, self.id_bytes)?;
        self.check_bound("from", query.range.from.as_deref())?;
        self.check_bound("until", query.range.until.as_deref())?;
        self.check_bound("after", query.after.as_deref())?;
        self.check_selector(&query.selector)
    }

    pub(crate) fn check_watch(&self, request: &WatchRequest) -> Result<()> {
        request.kind.as_deref().map_or(Ok(()), |kind| self.check_kind(kind))?;
        check_text_or_none("prefix", &request.prefix, self.id_bytes)
    }

    /// A bound need not be an id that could be: what comes right behind one has a character more, and
    /// that may be a control character. Only a NUL is more than every backend can compare with.
    fn check_bound(&self, what: &'static str, bound: Option<&str>) -> Result<()> {
        let Some(bound) = bound else { return Ok(()) };
        if bound.contains('\0') {
            return Err(Error::invalid(
                format!("{what} {bound:?}"),
                "it contains a NUL, which no id has",
            ));
        }
        check_limit("id_bytes", self.id_bytes + 1, bound.len())
    }

    fn check_selector(&self, selector: &Selector) -> Result<()> {
        check_limit("labels", self.labels, selector.0.len())?;
        let mut named = 0;
        for requirement in &selector.0 {
            let (key, values) = match requirement {
                Requirement::In(key, values) | Requirement::NotIn(key, values) => {
                    (key, &values[..])
                }
                Requirement::Exists(key) | Requirement::Absent(key) => (key, &[][..]),
            };
            check_text("label key", key, self.label_bytes)?;
            named += values.len();
            check_limit("selector_values", Self::SELECTOR_VALUES, named)?;
            for value in values {
                check_text_or_none("label value", value, self.label_bytes)?;
            }
        }
        Ok(())
    }

    fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl < Duration::from_millis(1) {
            return Err(Error::invalid(
                format!("time to live {ttl:?}"),
                "it must be at least one millisecond",
            ));
        }
        if ttl > self.ttl_max {
            return Err(Error::LimitExceeded {
                limit: "ttl_max (seconds)",
                max: self.ttl_max.as_secs(),
                got: ttl.as_secs(),
            });
        }
        Ok(())
    }
}

fn check_limit(limit: &'static str, max: usize, got: usize) -> Result<()> {
    if got > max {
        return Err(Error::LimitExceeded { limit, max: max as u64, got: got as u64 });
    }
    Ok(())
}

fn check_text_or_none(what: &'static str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() { Ok(()) } else { check_text(what, text, max) }
}

/// Text that every backend can store and sort alike: not empty, bounded, without control characters
/// (a NUL cannot be kept by Postgres, a newline would break what people read).
fn check_text(what: &'static str, text: &str, max: usize) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(what, "it must not be empty"));
    }
    if text.len() > max {
        return Err(Error::LimitExceeded {
            limit: match what {
                "kind" => "kind_bytes",
                "id" | "prefix" => "id_bytes",
                "name" => "name_bytes",
                _ => "label_bytes",
            },
            max: max as u64,
            got: text.len() as u64,
        });
    }
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        return Err(Error::invalid(
            format!("{what} {text:?}"),
            format!("it contains the control character {bad:?}"),
        ));
    }
    Ok(())
}
