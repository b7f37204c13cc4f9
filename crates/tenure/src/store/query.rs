//! Asking for objects page by page.

use super::Selector;
use crate::Object;

/// A range of ids, bytewise: from (inclusive) until (exclusive).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdRange {
    /// The first id that may match.
    pub from: Option<String>,
    /// The first id that no longer matches.
    pub until: Option<String>,
    /// What every matching id starts with.
    pub prefix: String,
}

impl IdRange {
    /// Whether an id lies in the range.
    pub fn contains(&self, id: &str) -> bool {
        id.starts_with(&self.prefix)
            && self.from.as_deref().is_none_or(|from| id >= from)
            && self.until.as_deref().is_none_or(|until| id < until)
    }

    /// The smallest id that can match: where a scan starts.
    pub fn start(&self) -> &str {
        self.from.as_deref().map_or(self.prefix.as_str(), |from| from.max(&self.prefix))
    }

    /// Whether a scan in order can stop at this id: nothing from here on can match.
    pub fn is_past(&self, id: &str) -> bool {
        self.until.as_deref().is_some_and(|until| id >= until)
            || (!id.starts_with(&self.prefix) && id > self.prefix.as_str())
    }
}

/// Which objects to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The kind.
    pub kind: String,
    /// The ids.
    pub range: IdRange,
    /// Only the object with this name.
    pub name: Option<String>,
    /// Only objects whose labels match.
    pub selector: Selector,
    /// Continue behind this id: the [`Page::next`] of the page before.
    pub after: Option<String>,
    /// At most so many objects.
    pub limit: usize,
}

impl Query {
    /// All objects of a kind, 100 a page.
    pub fn new(kind: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            range: IdRange::default(),
            name: None,
            selector: Selector::default(),
            after: None,
            limit: 100,
        }
    }

    /// Only ids that start with this.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.range.prefix = prefix.into();
        self
    }

    /// Only ids from this one on.
    #[must_use]
    pub fn from(mut self, id: impl Into<String>) -> Self {
        self.range.from = Some(id.into());
        self
    }

    /// Only ids before this one.
    #[must_use]
    pub fn until(mut self, id: impl Into<String>) -> Self {
        self.range.until = Some(id.into());
        self
    }

    /// Only the object with this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only objects whose labels match.
    #[must_use]
    pub fn selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Continue behind this id.
    #[must_use]
    pub fn after(mut self, id: impl Into<String>) -> Self {
        self.after = Some(id.into());
        self
    }

    /// At most so many objects a page.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Whether an object belongs to the answer, paging aside.
    pub fn matches(&self, object: &Object) -> bool {
        object.key.kind == self.kind
            && self.range.contains(&object.key.id)
            && self.name.as_ref().is_none_or(|name| object.name.as_ref() == Some(name))
            && self.selector.matches(&object.labels)
    }
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In bytewise order of id.
    pub objects: Vec<Object>,
    /// Give this as [`Query::after`] to go on; `None` at the end. A page may hold fewer objects than
    /// the limit, even none, and still have a next one: a selector that matches little is answered
    /// in bounded steps.
    pub next: Option<String>,
    /// The store's revision when the page was read. Watching from the *first* page's revision misses
    /// nothing of what happens while the others are read.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_bytewise_and_knows_when_to_stop() {
        let range =
            IdRange { prefix: "b".into(), from: Some("bb".into()), until: Some("bd".into()) };
        assert_eq!(range.start(), "bb");
        assert!(range.contains("bb") && range.contains("bczz"));
        assert!(!range.contains("ba") && !range.contains("bd"));
        assert!(range.is_past("bd") && range.is_past("c"));
        assert!(!range.is_past("a") && !range.is_past("bc"));
        let all = IdRange::default();
        assert!(all.contains("") && !all.is_past("\u{10ffff}"));
        // "a" sorts before the prefix: a scan that starts early must go on.
        assert!(!range.is_past("azzz"));
    }
}
