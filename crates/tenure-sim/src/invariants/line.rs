//! G8: waiters are served in the order they came, woken by the release, without a stampede, and
//! cost the store nothing while they wait.

use std::collections::BTreeMap;

use crate::clock::TrueClock;
use crate::history::{Guarantee::G8, Verdict, Violation};

/// The least time for which a waiter whose turn it is is waited for.
pub const PATIENCE_MS: i64 = 250;
/// Refused attempts of one process on one line within a second, with nobody having let go.
const ATTEMPTS: usize = 3;
/// A line that is free must be served within this, besides the patience with each waiter.
const SOON_MS: i64 = 3000;

/// Somebody in a line, as the store keeps it.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// Its nonce.
    pub nonce: String,
    /// Who waits.
    pub owner: String,
    /// Since when.
    pub joined_ms: i64,
    /// When its record vanishes.
    pub expires_ms: i64,
    /// It waits for several scopes at once, so others may rightly get ahead of it.
    pub yields: bool,
}

/// All lines, as the store keeps them.
#[derive(Debug, Default)]
pub struct Lines {
    lines: BTreeMap<String, BTreeMap<u64, Waiter>>,
    /// Places that were given up lately, and when.
    departed: BTreeMap<String, Vec<(u64, i64)>>,
    refused: BTreeMap<(String, String), Vec<i64>>,
}

impl Lines {
    /// A waiter has joined at this place.
    pub fn joined(&mut self, line: &str, place: u64, waiter: Waiter) {
        self.lines.entry(line.to_owned()).or_default().insert(place, waiter);
    }

    /// A waiter's record is gone.
    pub fn left(&mut self, line: &str, nonce: &str, now_ms: i64) {
        let departed = self.departed.entry(line.to_owned()).or_default();
        departed.retain(|(_, at)| *at > now_ms - 2 * PATIENCE_MS);
        if let Some(waiters) = self.lines.get_mut(line) {
            waiters.retain(|place, waiter| {
                let stays = waiter.nonce != nonce;
                if !stays {
                    departed.push((*place, now_ms));
                }
                stays
            });
        }
    }

    /// Whether somebody ahead of this place left so lately that not all may know.
    fn just_came_up(&self, line: &str, place: u64, now_ms: i64) -> bool {
        let departed = self.departed.get(line).into_iter().flatten();
        departed.into_iter().any(|(ahead, at)| *ahead < place && *at > now_ms - 2 * PATIENCE_MS)
    }

    /// The waiters of a line, in order.
    pub fn waiters(&self, line: &str, now_ms: i64) -> Vec<&Waiter> {
        let all = self.lines.get(line).into_iter().flat_map(BTreeMap::values);
        all.filter(|waiter| waiter.expires_ms > now_ms).collect()
    }

    /// A waiter took what it waited for, in a commit that removed `removed` from the line as well.
    /// `steady` tells whether somebody has been undisturbed since an instant.
    pub fn served(
        &self,
        line: &str,
        nonce: &str,
        removed: &[String],
        now_ms: i64,
        steady: impl Fn(&str, i64) -> bool,
    ) -> Verdict {
        let waiters = self.lines.get(line).into_iter().flatten();
        for (place, waiter) in waiters.filter(|(_, waiter)| waiter.expires_ms > now_ms) {
            if waiter.nonce == nonce {
                break;
            }
            if !steady(&waiter.owner, waiter.joined_ms) {
                // It may be gone without having been able to say so. Those behind it have to wait
                // for it, and how long depends on what each of them knows.
                break;
            }
            let passed = removed.contains(&waiter.nonce) && !waiter.yields;
            if passed && !self.just_came_up(line, *place, now_ms) {
                return Err(Violation::new(
                    G8,
                    format!(
                        "{} waits for {line} since {}, is well, and was passed by",
                        waiter.owner,
                        TrueClock::label(waiter.joined_ms)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Somebody let go: attempts are expected again.
    pub fn freed(&mut self, line: &str) {
        self.refused.retain(|(name, _), _| name != line);
    }

    /// A waiter of this owner tried in vain.
    pub fn tried_in_vain(&mut self, line: &str, owner: &str, now_ms: i64) -> Verdict {
        let times = self.refused.entry((line.to_owned(), owner.to_owned())).or_default();
        times.retain(|at| *at > now_ms - 1000);
        times.push(now_ms);
        if times.len() <= ATTEMPTS {
            return Ok(());
        }
        let message = format!(
            "{owner} tried {} times within a second to get {line}, though nobody had let go",
            times.len()
        );
        Err(Violation::new(G8, message))
    }
}

/// A task waits for a scope that has been free for a while, and is well.
pub fn woken(who: &str, line: &str, since_ms: i64, ahead: usize, now_ms: i64) -> Verdict {
    let ahead = i64::try_from(ahead).unwrap_or(i64::MAX / PATIENCE_MS);
    if now_ms - since_ms <= PATIENCE_MS * (ahead + 1) + SOON_MS {
        return Ok(());
    }
    let message = format!(
        "{line} is free and {who} waits for it, well since {}; nobody wakes it",
        TrueClock::label(since_ms)
    );
    Err(Violation::new(G8, message))
}

/// A process that only waits has called the store though nothing has happened for a while.
pub fn silent(who: &str, what: &str, quiet_since_ms: i64) -> Verdict {
    let message = format!(
        "{who} only waits, nothing has happened since {}, and yet it asks the store: {what}",
        TrueClock::label(quiet_since_ms)
    );
    Err(Violation::new(G8, message))
}
