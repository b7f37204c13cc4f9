//! The records that leases are made of, and what it takes to write them.
//!
//! A caller that may hold a scope may write the records of that scope. Writes that act against other holders
//! need more than that, and go to the audit log:
//!
//! - The word left for a holder that was revoked is for those who may revoke. So is a request to hand
//!   over; the holder takes it up, and its author takes it back.
//! - So is a lease that is written or deleted without naming what is there. A holder knows its token and
//!   revision, and an acquire expects nothing.
//! - How many slots a group has is for those who may resize it. A caller that takes a slot may create the
//!   group's record, and write it again with the same count; not remove it, nor let it expire.

use std::borrow::Cow;

use tenure::Error;
use tenure::lease::{HAND_OVER, LEASE, ORPHAN, READERS, REVOKED, SLOTS, WAITER};
use tenure::store::{Check, Commit, Expect, Put, Write};

use super::View;
use crate::Fault;
use crate::auth::Action;
use crate::auth::audit::Notable;

/// Whether a kind belongs to leases.
pub(super) fn is_of_leases(kind: &str) -> bool {
    matches!(kind, LEASE | WAITER | ORPHAN | SLOTS | READERS | REVOKED | HAND_OVER)
}

/// What the id of a record of leases is about, as permissions see it: its scope, which is what comes
/// before a tag, or everything in its group.
pub(super) fn about(id: &str) -> Cow<'_, str> {
    let about = id.rsplit_once('#').map_or(id, |(about, _)| about);
    if about.contains('/') { about.into() } else { group(about).into() }
}

/// A group of slots, as permissions see it: all of its slots.
pub(super) fn group(group: &str) -> String {
    format!("{group}/*")
}

/// How many slots a group's record says there are.
fn count(payload: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(payload).ok()?.get("count")?.as_u64()
}

/// What a write takes beyond leave to hold the scope, or to write the object.
enum Takes {
    Nothing,
    /// This permission; and the audit log says that it was done.
    More(Action, &'static str),
    /// Leave to resize, unless the group's record says the same count now.
    SameCount,
    /// Leave to revoke will do in place of leave to hold.
    HoldOrRevoke,
}

fn takes(write: &Write) -> Takes {
    match (write.key().kind.as_str(), write) {
        (REVOKED, _) => Takes::More(Action::LeasesRevoke, "revoked"),
        // It is there already, and names who asked: to take it up, or back, is to know it.
        (HAND_OVER, write) => match write.expect() {
            Expect::Revision(_) if matches!(write, Write::Delete(_)) => Takes::HoldOrRevoke,
            Expect::Revision(_) if takes_up(write) => Takes::Nothing,
            _ => Takes::More(Action::LeasesRevoke, "asked to hand over"),
        },
        (LEASE, write) => match write.expect() {
            Expect::Absent | Expect::Revision(_) | Expect::Token(_) => Takes::Nothing,
            // Every lease has had the version 1.
            Expect::Any | Expect::Exists | Expect::Version(_) => {
                Takes::More(Action::LeasesRevoke, "overridden")
            }
        },
        (SLOTS, Write::Put(put)) if put.ttl.is_none() => match put.expect {
            Expect::Absent => Takes::Nothing,
            Expect::Any => Takes::More(Action::SlotsResize, "resized"),
            _ => Takes::SameCount,
        },
        (SLOTS, _) => Takes::More(Action::SlotsResize, "resized"),
        _ => Takes::Nothing,
    }
}

/// Whether a request to hand over is written as one that its holder follows.
fn takes_up(write: &Write) -> bool {
    let Write::Put(put) = write else { return false };
    let record = serde_json::from_slice::<serde_json::Value>(&put.payload).unwrap_or_default();
    record.get("taken_up").and_then(serde_json::Value::as_bool).unwrap_or(false)
}

impl View {
    /// Refuses what the caller may not check or write, and tells what the audit log has to know of the
    /// rest. A commit that may apply only to what is there now is made to expect that.
    pub(super) async fn may_commit(&self, commit: &mut Commit) -> Result<Vec<Notable>, Fault> {
        for check in &commit.checks {
            self.may_read(&check.key.kind, &check.key.id, false)?;
        }
        let mut notable = Vec::new();
        let mut counted = Vec::new();
        for write in &commit.writes {
            match takes(write) {
                Takes::More(action, what) => notable.push(self.may_more(write, action, what)?),
                Takes::SameCount => {
                    self.may_change(write.key())?;
                    counted.push(write.clone());
                }
                Takes::HoldOrRevoke => {
                    let about = about(&write.key().id);
                    if !self.caller.may(Action::LeasesRevoke, &about) {
                        self.may_change(write.key())?;
                    }
                }
                Takes::Nothing => self.may_change(write.key())?,
            }
        }
        for write in &counted {
            let Write::Put(put) = write else { continue };
            match Box::pin(self.same_count_at(put)).await? {
                Some(expect) => commit.checks.push(Check { key: put.key.clone(), expect }),
                None => notable.push(self.may_more(write, Action::SlotsResize, "resized")?),
            }
        }
        Ok(notable)
    }

    fn may_more(
        &self,
        write: &Write,
        action: Action,
        what: &'static str,
    ) -> Result<Notable, Fault> {
        let key = write.key();
        // Who takes a lease from others holds it then.
        if key.kind == LEASE {
            self.may_change(key)?;
        }
        let resource = about(&key.id).into_owned();
        self.require(action, &resource)?;
        Ok(Notable { action, resource, what })
    }

    /// The group's record as it is now, if this leaves its count as it is.
    async fn same_count_at(&self, put: &Put) -> Result<Option<Expect>, Fault> {
        let now = self.part.store.get(&put.key).await?;
        let now = now.ok_or_else(|| Error::NotFound { key: put.key.clone() })?;
        let same = count(&now.payload) == count(&put.payload);
        Ok(same.then_some(Expect::Revision(now.revision)))
    }
}
