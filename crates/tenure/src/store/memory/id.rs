//! Ids as the maps of the memory store keep them: short ones in the map itself.
//!
//! In a large store every pointer that is followed is a cache miss, and comparing an id with one that
//! lies somewhere else would be one more for each lookup.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// Longer ids are kept elsewhere. With this many bytes an id takes as much room as a `String`.
const SHORT: usize = 22;

/// An id. It hashes, compares and sorts as its bytes do, so bytes find it.
#[derive(Clone, Debug)]
pub(super) enum Id {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Id {
    pub(super) fn new(id: &str) -> Self {
        let bytes = id.as_bytes();
        let mut short = [0; SHORT];
        match (short.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(bytes);
                Self::Short(length, short)
            }
            _ => Self::Long(bytes.into()),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }

    /// The id as it was given.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }
}

impl Borrow<[u8]> for Id {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Id {}

impl Ord for Id {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl PartialOrd for Id {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    #[test]
    fn short_and_long_ids_are_found_and_sorted_by_their_bytes() {
        let ids: Vec<String> = ["", "a", "a\0", "ü", "b"]
            .into_iter()
            .map(String::from)
            .chain([SHORT - 1, SHORT, SHORT + 1, 300].map(|length| "a".repeat(length)))
            .collect();
        assert_eq!(size_of::<Id>(), size_of::<String>());
        let hashed: HashSet<Id> = ids.iter().map(|id| Id::new(id)).collect();
        let sorted: BTreeSet<Id> = ids.iter().map(|id| Id::new(id)).collect();
        let mut expected: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect();
        expected.sort_unstable();
        assert!(ids.iter().all(|id| Id::new(id).text() == id));
        assert_eq!(sorted.iter().map(Id::bytes).collect::<Vec<_>>(), expected);
        for id in &ids {
            assert!(hashed.contains(id.as_bytes()) && sorted.contains(id.as_bytes()), "{id}");
            assert!(!hashed.contains(format!("{id}x").as_bytes()) || id.is_empty(), "{id}");
        }
    }
}
