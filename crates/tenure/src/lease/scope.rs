//! What is held: a scope, which is a key within a namespace, written `a.b/key`.
//!
//! The text is the identity: people type it, the store keeps it as the id of the lease object, and
//! both sort alike. So the parts must not contain what separates them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, Result};

/// The longest scope; the store's ids leave room behind it for a waiter's nonce.
const MAX_BYTES: usize = 400;

/// A list of names, written `a.b`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// A namespace from its parts.
    pub fn new<P: AsRef<str>>(parts: impl IntoIterator<Item = P>) -> Result<Self> {
        let mut text = String::new();
        for part in parts {
            check_part(part.as_ref())?;
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(part.as_ref());
        }
        check_whole("namespace", &text)?;
        Ok(Self(text.into()))
    }

    /// The names, outermost first.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('.')
    }

    /// As people write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `other` lies below this one: `a.b` holds `a.b.c`, not itself, and not `a.bc`.
    pub fn is_above(&self, other: &Namespace) -> bool {
        other.0.strip_prefix(&*self.0).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text.split('.'))
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A namespace and a key: the thing at most one owner holds.
///
/// ```
/// use tenure::lease::Scope;
///
/// let scope: Scope = "billing.nightly/close".parse()?;
/// assert_eq!(scope.namespace().parts().collect::<Vec<_>>(), ["billing", "nightly"]);
/// assert_eq!(scope.key(), "close");
/// assert!("billing/".parse::<Scope>().is_err());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

impl Scope {
    /// A scope from its two halves.
    pub fn new(namespace: &Namespace, key: &str) -> Result<Self> {
        check_key(key)?;
        let text = format!("{namespace}/{key}");
        check_whole("scope", &text)?;
        Ok(Self(text.into()))
    }

    /// Where it belongs.
    pub fn namespace(&self) -> Namespace {
        Namespace(self.0.split_once('/').map_or("", |(namespace, _)| namespace).into())
    }

    /// The key within the namespace.
    pub fn key(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, key)| key)
    }

    /// As people write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((namespace, key)) = text.split_once('/') else {
            return Err(Error::invalid(
                format!("scope {text:?}"),
                "it has no key; write it as namespace/key, for instance billing.nightly/close",
            ));
        };
        Self::new(&namespace.parse()?, key)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_part(part: &str) -> Result<()> {
    let what = || format!("namespace part {part:?}");
    if part.is_empty() {
        return Err(Error::invalid(what(), "it is empty; write names separated by single dots"));
    }
    if let Some(bad) = part.chars().find(|c| matches!(c, '.' | '/' | '#') || c.is_control()) {
        let reason = format!("it contains {bad:?}; '.' separates parts, '/' the key, '#' waiters");
        return Err(Error::invalid(what(), reason));
    }
    Ok(())
}

fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("scope key", "it is empty; write namespace/key"));
    }
    if let Some(bad) = key.chars().find(|c| *c == '#' || c.is_control()) {
        let reason = format!("it contains {bad:?}, which is reserved; use another character");
        return Err(Error::invalid(format!("scope key {key:?}"), reason));
    }
    Ok(())
}

fn check_whole(limit: &'static str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(limit, "it is empty; name at least one part"));
    }
    if text.len() > MAX_BYTES {
        return Err(Error::LimitExceeded { limit, max: MAX_BYTES as u64, got: text.len() as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_keys_that_would_be_ambiguous_are_refused_by_name() {
        for bad in ["", "a", "/k", "a./k", ".a/k", "a..b/k", "a/", "a/k#1", "a#b/k", "a\n/k"] {
            let error = bad.parse::<Scope>().expect_err(bad);
            assert_eq!(error.code(), "invalid", "{bad:?}: {error}");
        }
        let error = Namespace::new(["user", "up.date"]).unwrap_err().to_string();
        assert!(error.contains("up.date") && error.contains("'.'"), "{error}");
        let long = format!("a/{}", "x".repeat(MAX_BYTES));
        assert_eq!(long.parse::<Scope>().unwrap_err().code(), "limit_exceeded");
    }

    #[test]
    fn a_scope_survives_being_written_and_read() {
        for text in ["a/k", "a.b.c/k", "module.time/user:42", "a/with/slash.and.dots"] {
            let scope: Scope = text.parse().unwrap();
            assert_eq!(scope.to_string(), text);
            assert_eq!(Scope::new(&scope.namespace(), scope.key()).unwrap(), scope);
        }
    }

    #[test]
    fn children_are_told_from_neighbours() {
        let ns = |text: &str| text.parse::<Namespace>().unwrap();
        assert!(ns("a.b").is_above(&ns("a.b.c")));
        assert!(!ns("a.b").is_above(&ns("a.b")));
        assert!(!ns("a.b").is_above(&ns("a.bc")));
    }
}
