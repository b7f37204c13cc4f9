//! Who holds: a name people recognise, and a nonce that tells two starts of it apart.

use std::fmt;
use std::sync::Arc;

use crate::random::{self, Random};
use crate::{Error, Result};

/// The longest name of an owner.
const MAX_BYTES: usize = 200;

/// A replica, as the lease record and the logs name it: `worker-2#9f3c21aa`.
///
/// Two processes with the same name are two owners, and so is one that was restarted: every start
/// draws its own nonce.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    name: Arc<str>,
    start: Arc<str>,
}

impl Owner {
    /// An owner of this name, started now.
    pub fn new(name: &str, random: &dyn Random) -> Result<Self> {
        let start = random::nonce(random);
        Self::from_parts(name, &start[..8])
    }

    /// An owner as a record names it: its name and the nonce of its start.
    pub fn from_parts(name: &str, start: &str) -> Result<Self> {
        for (what, text) in [("owner name", name), ("owner nonce", start)] {
            if text.is_empty() {
                return Err(Error::invalid(what, "it must not be empty"));
            }
            if text.len() > MAX_BYTES {
                let (max, got) = (MAX_BYTES as u64, text.len() as u64);
                return Err(Error::LimitExceeded { limit: "owner_bytes", max, got });
            }
            if let Some(bad) = text.chars().find(|c| *c == '#' || c.is_control()) {
                let reason = format!("it contains {bad:?}; use another character");
                return Err(Error::invalid(format!("{what} {text:?}"), reason));
            }
        }
        Ok(Self { name: name.into(), start: start.into() })
    }

    /// This process: by the name given, else by `HOSTNAME`, else by a random one.
    pub fn detect(explicit: Option<&str>, random: &dyn Random) -> Result<Self> {
        Self::choose(explicit, std::env::var("HOSTNAME").ok().as_deref(), random)
    }

    fn choose(explicit: Option<&str>, host: Option<&str>, random: &dyn Random) -> Result<Self> {
        if let Some(name) = explicit {
            return Self::new(name, random);
        }
        // A host name that cannot serve as a name is no reason to refuse to start.
        match host.map(|name| Self::new(name.trim(), random)) {
            Some(Ok(owner)) => Ok(owner),
            _ => Self::new(&random::nonce(random), random),
        }
    }

    /// The name people gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The nonce of its start.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// Whether a person who writes `text` means this owner: its name, or name and nonce.
    pub fn is_called(&self, text: &str) -> bool {
        match text.split_once('#') {
            Some((name, start)) => *self.name == *name && *self.start == *start,
            None => *self.name == *text,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.name, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SeededRandom;

    #[test]
    fn two_starts_of_one_name_are_two_owners() {
        let random = SeededRandom::new(1);
        let (a, b) = (Owner::new("w", &random).unwrap(), Owner::new("w", &random).unwrap());
        assert_ne!(a, b);
        assert!(a.is_called("w") && a.is_called(&a.to_string()) && !a.is_called(&b.to_string()));
    }

    #[test]
    fn an_explicit_name_wins_and_a_bad_one_is_refused() {
        let random = SeededRandom::new(1);
        assert_eq!(Owner::detect(Some("me"), &random).unwrap().name(), "me");
        assert!(Owner::detect(Some("a#b"), &random).is_err());
    }

    #[test]
    fn without_a_name_it_is_the_hosts_and_without_a_usable_one_a_random_one() {
        let random = SeededRandom::new(1);
        let choose = |name, host| Owner::choose(name, host, &random).unwrap();
        assert_eq!(choose(Some("me"), Some("pod-7")).name(), "me");
        assert_eq!(choose(None, Some("pod-7")).name(), "pod-7");
        assert_eq!(choose(None, Some(" pod-7\n")).name(), "pod-7");
        assert_ne!(choose(None, Some("pod-7")), choose(None, Some("pod-7")), "two starts");
        for host in [None, Some(""), Some("  "), Some("a#b")] {
            let (one, other) = (choose(None, host), choose(None, host));
            assert_eq!(one.name().len(), 32, "{host:?}: {one}");
            assert_ne!(one.name(), other.name(), "{host:?}");
        }
    }
}
