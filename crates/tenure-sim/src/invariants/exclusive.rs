//! G1: at every instant a scope has at most one valid holder, a group at most N, and a scope that is
//! written has no readers.

use std::sync::Arc;

use crate::history::{Guarantee::G1, Verdict, Violation};
use crate::process::Process;
use crate::truth::{End, Truth};

/// Somebody who believes to hold something now.
pub struct Believer {
    /// Who.
    pub process: Arc<Process>,
    /// What.
    pub id: String,
    /// Under which token.
    pub token: u64,
}

/// No two of them believe to hold what excludes the other.
pub fn believers(all: &[Believer]) -> Verdict {
    for (at, a) in all.iter().enumerate() {
        for b in &all[at + 1..] {
            if exclude(&a.id, &b.id) {
                return Err(Violation::new(
                    G1,
                    format!(
                        "{} (token {}) and {} (token {}) both believe to hold {} and {} now",
                        a.process.who, a.token, b.process.who, b.token, a.id, b.id
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Whether these two leases must not be held at once.
fn exclude(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    match (a.rsplit_once('#'), b.rsplit_once('#')) {
        (Some((scope_a, kind_a)), Some((scope_b, kind_b))) => {
            scope_a == scope_b && (kind_a == "write" || kind_b == "write")
        }
        _ => false,
    }
}

/// A tenure of a slot or of a share has begun: the group is not overfull, no writer meets a reader.
pub fn began(truth: &Truth, id: &str, slots: Option<usize>) -> Verdict {
    if let (Some((group, _)), Some(count)) = (id.split_once("/slot-"), slots) {
        let held = truth.held_under(&format!("{group}/slot-"));
        if held > count {
            let message = format!("{id} was granted as number {held} of a group of {count}");
            return Err(Violation::new(G1, message));
        }
    }
    let Some((scope, kind)) = id.rsplit_once('#') else { return Ok(()) };
    let readers = truth.held_under(&format!("{scope}#read-"));
    let writing = truth.holder(&format!("{scope}#write")).is_some();
    if writing && readers > 0 {
        let message =
            format!("{scope} was granted to a {kind} with {readers} readers and a writer");
        return Err(Violation::new(G1, message));
    }
    Ok(())
}

/// A tenure that passed to somebody else was passed on by its own holder.
pub fn passed(id: &str, from: u64, to: u64, end: &End) -> Verdict {
    match end {
        End::Robbed(by) => Err(Violation::new(
            G1,
            format!("{by} took {id} with token {to} while token {from} held it"),
        )),
        _ => Ok(()),
    }
}
