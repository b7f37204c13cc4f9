//! What is true: who held what from when until when, by the store's clock, and why it ended.
//!
//! It is read off every commit and touch at the instant the store applied it, so it depends on
//! nothing that any coordinator believes.

use std::collections::BTreeMap;

use tenure::Object;
use tenure::lease::{LeaseRecord, REVOKED};
use tenure::store::{Commit, Write};

/// How a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Its life ran out.
    Expired,
    /// Its own process deleted the lease.
    Released,
    /// Somebody ended it on purpose, and left a note.
    Revoked(String),
    /// Its own process passed it on to this token.
    HandedOver(u64),
    /// Somebody took it away without any right.
    Robbed(String),
}

/// One tenure of one lease object.
#[derive(Clone, Debug)]
pub struct Tenure {
    /// The owner, with the nonce of its start.
    pub owner: String,
    /// Unique to the acquisition.
    pub nonce: String,
    /// When it began.
    pub began_ms: i64,
    /// Who is given it by a hand-over may not know yet.
    pub granted: bool,
    /// When its life ends unless it is renewed.
    pub expires_ms: i64,
    /// When and how it ended.
    pub end: Option<(i64, End)>,
}

/// What a commit did to a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A tenure began on what was free.
    Began(u64),
    /// The life of this tenure was prolonged.
    Prolonged(u64),
    /// A tenure ended.
    Ended(u64, End),
    /// One tenure ended and another began.
    Passed(u64, u64, End),
}

/// Every tenure of every lease.
#[derive(Debug, Default)]
pub struct Truth {
    tenures: BTreeMap<String, BTreeMap<u64, Tenure>>,
    current: BTreeMap<String, u64>,
    /// Since when a lease has been free.
    free_since: BTreeMap<String, i64>,
}

impl Truth {
    /// Notes what has expired by now.
    pub fn settle(&mut self, now_ms: i64) -> Vec<(String, u64)> {
        let mut expired = Vec::new();
        for (id, token) in &self.current {
            let tenures = self.tenures.get_mut(id);
            let Some(tenure) = tenures.and_then(|all| all.get_mut(token)) else { continue };
            if tenure.expires_ms <= now_ms {
                tenure.end = Some((tenure.expires_ms, End::Expired));
                self.free_since.insert(id.clone(), tenure.expires_ms);
                expired.push((id.clone(), *token));
            }
        }
        for (id, _) in &expired {
            self.current.remove(id);
        }
        expired
    }

    /// The tenure of this token.
    pub fn tenure(&self, id: &str, token: u64) -> Option<&Tenure> {
        self.tenures.get(id)?.get(&token)
    }

    /// The token that holds this now, as of the last [`Truth::settle`].
    pub fn holder(&self, id: &str) -> Option<u64> {
        self.current.get(id).copied()
    }

    /// Every lease held now, with its token.
    pub fn held(&self) -> impl Iterator<Item = (&String, u64)> {
        self.current.iter().map(|(id, token)| (id, *token))
    }

    /// Leases held now whose id starts with this.
    pub fn held_under(&self, prefix: &str) -> usize {
        self.current.keys().filter(|id| id.starts_with(prefix)).count()
    }

    /// Since when this has been free; the beginning of time if it was never held.
    pub fn free_since(&self, id: &str) -> Option<i64> {
        (!self.current.contains_key(id)).then(|| self.free_since.get(id).copied().unwrap_or(0))
    }

    /// A commit of this owner was applied; `after` is what the lease object is like now. Whoever
    /// `revokes` ends what others hold by right, also without a note.
    pub fn committed(
        &mut self,
        now_ms: i64,
        owner: &str,
        commit: &Commit,
        id: &str,
        after: Option<&Object>,
        revokes: bool,
    ) -> Option<Change> {
        let before = self.holder(id);
        let ended = |tenure: &Tenure| {
            let note = format!("{id}#{}", tenure.nonce);
            let noted = commit.writes.iter().any(|write| match write {
                Write::Put(put) => put.key.kind == REVOKED && put.key.id == note,
                Write::Delete(_) => false,
            });
            match noted || revokes {
                true => Some(End::Revoked(owner.into())),
                false => (tenure.owner != owner).then(|| End::Robbed(owner.into())),
            }
        };
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => {
                self.begin(now_ms, id, object, false);
                Some(Change::Began(object.token))
            }
            (Some(token), Some(object)) if object.token == token => {
                self.prolong(now_ms, id, object);
                Some(Change::Prolonged(token))
            }
            (Some(token), Some(object)) => {
                let tenure = self.tenures.get_mut(id)?.get_mut(&token)?;
                let end = ended(tenure).unwrap_or(End::HandedOver(object.token));
                tenure.end = Some((now_ms, end.clone()));
                self.begin(now_ms, id, object, true);
                Some(Change::Passed(token, object.token, end))
            }
            (Some(token), None) => {
                let tenure = self.tenures.get_mut(id)?.get_mut(&token)?;
                let end = ended(tenure).unwrap_or(End::Released);
                tenure.end = Some((now_ms, end.clone()));
                self.current.remove(id);
                self.free_since.insert(id.to_owned(), now_ms);
                Some(Change::Ended(token, end))
            }
        }
    }

    /// The lease object as it is now was prolonged, by a touch or a put that changed nothing.
    pub fn prolong(&mut self, now_ms: i64, id: &str, object: &Object) {
        let tenures = self.tenures.get_mut(id);
        if let Some(tenure) = tenures.and_then(|all| all.get_mut(&object.token)) {
            tenure.expires_ms = expiry(now_ms, object);
        }
    }

    fn begin(&mut self, now_ms: i64, id: &str, object: &Object, granted: bool) {
        let record: Option<LeaseRecord> = serde_json::from_slice(&object.payload).ok();
        let (owner, nonce) = record.map_or_else(Default::default, |record| {
            (format!("{}#{}", record.holder, record.start), record.nonce)
        });
        let expires_ms = expiry(now_ms, object);
        let tenure = Tenure { owner, nonce, began_ms: now_ms, granted, expires_ms, end: None };
        self.tenures.entry(id.to_owned()).or_default().insert(object.token, tenure);
        self.current.insert(id.to_owned(), object.token);
    }
}

/// The instant at which an object that was read now expires. Readers are told one millisecond less
/// than there is.
fn expiry(now_ms: i64, object: &Object) -> i64 {
    let left = object
        .expires_in
        .map_or(i64::MAX / 2, |left| i64::try_from(left.as_millis()).unwrap_or(i64::MAX / 2));
    now_ms + left + 1
}
