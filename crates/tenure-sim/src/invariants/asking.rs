//! G6: whoever asks for a hand-over and is told that it was not taken up can rely on that.

use std::collections::BTreeMap;

use crate::history::{Guarantee::G6, Verdict, Violation};

/// Requests, by the tenure they are for and by whoever asks.
#[derive(Debug, Default)]
pub struct Asked {
    all: BTreeMap<(String, u64, String), Request>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    TakenUp,
    /// Whoever asked was told that it never will be taken up.
    Withdrawn,
}

impl Asked {
    /// Somebody asks from now on; what it was told before no longer counts.
    pub fn begins(&mut self, id: &str, by: &str) {
        self.all.retain(|(asked, _, asker), _| asked != id || asker != by);
    }

    /// The holder takes a request up.
    pub fn taken_up(&mut self, id: &str, token: u64, by: &str) -> Verdict {
        let key = (id.to_owned(), token, by.to_owned());
        match self.all.insert(key, Request::TakenUp) {
            Some(Request::Withdrawn) => wrong(id, token, by),
            _ => Ok(()),
        }
    }

    /// Whoever asked is told that the holder of this token does not and will not.
    pub fn withdrawn(&mut self, id: &str, token: u64, by: &str) -> Verdict {
        let key = (id.to_owned(), token, by.to_owned());
        match self.all.insert(key, Request::Withdrawn) {
            Some(Request::TakenUp) => wrong(id, token, by),
            _ => Ok(()),
        }
    }
}

fn wrong(id: &str, token: u64, by: &str) -> Verdict {
    let message = format!(
        "{by} was told that token {token} of {id} is not handed over as it asked, but its holder stops"
    );
    Err(Violation::new(G6, message))
}
