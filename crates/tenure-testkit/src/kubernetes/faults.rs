//! What goes wrong on purpose.

use std::collections::VecDeque;
use std::time::Duration;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is applied, and the connection breaks instead of an answer.
    LoseReply,
    /// The connection breaks before anything is applied.
    LoseRequest,
    /// It is applied and answered only after this long.
    Delay(Duration),
    /// It is refused with this status; 429 also says when to come back.
    Answer(u16),
    /// The same with this reason.
    Because(u16, &'static str),
    /// It is answered 200, and that is all: a proxy that ends every watch at once.
    End,
    /// It is answered 200, and then nothing comes and nothing ends: a connection that died silently.
    Mute,
}

/// A request as the stand-in saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// `GET`, `PUT`, ….
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The body; null if there was none.
    pub body: serde_json::Value,
    /// The status it was answered with; 0 if it was not.
    pub status: u16,
}

/// Faults to come, and what came of earlier ones.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) next: VecDeque<(String, Fault)>,
    pub(super) seen: Vec<Seen>,
    /// Methods that nobody has the right to.
    pub(super) forbidden: Vec<String>,
    /// Every connection breaks at once.
    pub(super) away: bool,
    /// A watch from too far back is told so by an event instead of by the status of the answer.
    pub(super) gone_by_event: bool,
}

impl Faults {
    /// The fault of a request with this method, if one was ordered.
    pub(super) fn take(&mut self, method: &str) -> Option<Fault> {
        let at = self.next.iter().position(|(wanted, _)| wanted == method)?;
        self.next.remove(at).map(|(_, fault)| fault)
    }
}
