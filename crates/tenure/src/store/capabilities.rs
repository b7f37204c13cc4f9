//! What a backend can promise, said in one struct that callers, tests and people read.

use std::fmt;
use std::time::Duration;

use crate::Limits;

/// The promises of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's name as in its URL: `memory`, `file`, `sqlite`, `postgres`, …
    pub backend: &'static str,
    /// The kinds of objects that it keeps.
    pub kinds: Kinds,
    /// A commit may check and write several objects.
    pub multi_object_commits: bool,
    /// Names, unique within a kind.
    pub names: bool,
    /// Lists can select by labels.
    pub labels: bool,
    /// Time to live, and how fine it is; `None` if there is none.
    pub ttl: Option<Ttl>,
    /// A touch leaves the revision alone and wakes no watcher.
    pub touch_keeps_revision: bool,
    /// How long a watch can be away and still resume; `None` if it can only start now, zero if
    /// history is bounded by size alone.
    pub history: Option<Duration>,
    /// A commit can run the caller's own SQL in its transaction.
    pub user_sql: bool,
    /// Who is told of a change without asking.
    pub notifies: Notifies,
    /// Whose clock judges expiry.
    pub expiry_clock: ExpiryClock,
    /// Who can share the store.
    pub reach: Reach,
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// How many servers keep what was committed; a majority of them has it when it is acknowledged.
    /// `None` if a client cannot tell.
    pub replicas: Option<u32>,
    /// The most it takes.
    pub limits: Limits,
}

/// Which kinds of objects a store keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Any.
    Any,
    /// This one alone. It can be asked for kinds that begin with this one and a hyphen as well: what
    /// keeps this kind elsewhere may have helpers there, and here there are none.
    Only(&'static str),
}

/// How fine time to live is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// The shortest life it grants; a shorter wish is rounded up.
    pub min: Duration,
    /// Lives are rounded up to a multiple of this.
    pub granularity: Duration,
}

impl Ttl {
    /// The life granted for a wish: at least that long, in whole steps.
    pub fn grant(&self, wish: Duration) -> Duration {
        let step = self.granularity.as_nanos().max(1);
        let nanos = wish.max(self.min).as_nanos().div_ceil(step) * step;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Who hears of a change without polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notifies {
    /// Watchers in the process that made it.
    Process,
    /// Watchers in every process of the host.
    Host,
    /// Watchers everywhere.
    Everywhere,
}

/// Whose clock decides that an object has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryClock {
    /// The clock passed to the store.
    Process,
    /// The host's clock since boot, shared by its processes.
    Host,
    /// The store's own, carried in the database.
    Database,
    /// The server's.
    Server,
    /// Each observer's own monotonic clock.
    Observer,
}

/// Who can use the same store at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// One process.
    Process,
    /// Processes of one host.
    Host,
    /// Processes anywhere.
    Network,
}

/// What an acknowledged commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Nothing: it ends with the process.
    Volatile,
    /// Loss of power: it was flushed to the disk first.
    Flushed,
    /// A crash may lose the last so many milliseconds.
    Periodic(Duration),
    /// As the server it runs on is configured.
    Server,
}

/// Something a backend may be unable to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Objects of any kind.
    Objects,
    /// Commits that concern several objects, fenced ones included.
    MultiObjectCommits,
    /// Names.
    Names,
    /// Selection by labels.
    Labels,
    /// Time to live.
    Ttl,
    /// Watching from an earlier revision.
    History,
    /// The caller's own SQL inside a commit.
    UserSql,
}

impl Capability {
    /// The backends that have it.
    pub fn supported_by(self) -> &'static str {
        match self {
            Self::Ttl => "memory, file, sqlite, postgres, etcd, nats, kubernetes",
            Self::Objects | Self::Labels => "memory, file, sqlite, postgres, etcd, nats",
            Self::MultiObjectCommits | Self::Names | Self::History => {
                "memory, file, sqlite, postgres, etcd"
            }
            Self::UserSql => "sqlite, postgres",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Objects => "general objects",
            Self::MultiObjectCommits => "multi-object commits",
            Self::Names => "names",
            Self::Labels => "label selectors",
            Self::Ttl => "time to live",
            Self::History => "watch history",
            Self::UserSql => "SQL of your own in a commit",
        })
    }
}

impl Capabilities {
    /// Whether it keeps objects of this kind.
    pub fn keeps(&self, kind: &str) -> bool {
        match self.kinds {
            Kinds::Any => true,
            Kinds::Only(only) => kind == only,
        }
    }

    /// Whether it can be asked for objects of this kind, though it may keep none. See [`Kinds::Only`].
    pub fn knows(&self, kind: &str) -> bool {
        match self.kinds {
            Kinds::Any => true,
            Kinds::Only(only) => {
                kind.strip_prefix(only).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            }
        }
    }

    /// Whether everybody who can share the store hears of a change without asking.
    pub fn notifies_all(&self) -> bool {
        match self.reach {
            Reach::Process => true,
            Reach::Host => self.notifies != Notifies::Process,
            Reach::Network => self.notifies == Notifies::Everywhere,
        }
    }

    /// Whether one process is all that can use it.
    pub fn is_single_process(&self) -> bool {
        self.reach == Reach::Process
    }

    fn history_text(&self) -> String {
        match self.history {
            None => "no".into(),
            Some(Duration::ZERO) => "bounded by size".into(),
            Some(kept) => format!("{kept:?}"),
        }
    }

    fn replicas_text(&self) -> String {
        match self.replicas {
            Some(count) => count.to_string(),
            None => Durability::Server.to_string(),
        }
    }

    /// Every promise as a row for people: what, and this backend's answer.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
        let limits = &self.limits;
        vec![
            ("general objects", yes(self.kinds == Kinds::Any)),
            ("multi-object commits", yes(self.multi_object_commits)),
            ("names", yes(self.names)),
            ("label selectors", yes(self.labels)),
            ("time to live", self.ttl.map_or_else(|| "no".into(), |ttl| ttl.to_string())),
            ("touch keeps revision", yes(self.touch_keeps_revision)),
            ("watch history", self.history_text()),
            ("SQL of your own", yes(self.user_sql)),
            ("notifies", format!("{:?}", self.notifies).to_lowercase()),
            ("expiry clock", format!("{:?}", self.expiry_clock).to_lowercase()),
            ("shared by", format!("{:?}", self.reach).to_lowercase()),
            ("durability", self.durability.to_string()),
            ("replicas", self.replicas_text()),
            ("payload limit", format!("{} bytes", limits.payload_bytes)),
            ("commit limit", format!("{} operations", limits.commit_operations)),
            ("touch limit", format!("{} objects", limits.touches)),
        ]
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {:?}, in steps of {:?}", self.min, self.granularity)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volatile => f.write_str("none"),
            Self::Flushed => f.write_str("flushed to disk"),
            Self::Periodic(d) => write!(f, "flushed every {d:?}"),
            Self::Server => f.write_str("as the server is configured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_of_leases_keeps_leases_and_knows_what_belongs_to_them() {
        let mut caps = crate::store::memory::MemoryStore::new().into_store().capabilities().clone();
        assert!(caps.keeps("order") && caps.knows("order"));
        caps.kinds = Kinds::Only("lease");
        let answers = |kind: &str| (caps.keeps(kind), caps.knows(kind));
        assert_eq!(answers("lease"), (true, true));
        assert_eq!(answers("lease-waiter"), (false, true));
        assert_eq!((answers("order"), answers("leases")), ((false, false), (false, false)));
    }

    #[test]
    fn a_life_is_granted_in_whole_steps_and_never_cut_short() {
        let ttl = Ttl { min: Duration::from_secs(2), granularity: Duration::from_secs(1) };
        for (wish, granted) in [(1, 2_000), (2_000, 2_000), (2_001, 3_000), (9_999, 10_000)] {
            let granted = Duration::from_millis(granted);
            assert_eq!(ttl.grant(Duration::from_millis(wish)), granted);
        }
    }
}
