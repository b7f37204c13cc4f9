//! G9: a gate lets go of its lease only after the last of its loops has stopped.

use crate::history::{Guarantee::G9, Verdict, Violation};

/// A lease of a gate was deleted by its own process while so many of its loops ran.
pub fn released(who: &str, id: &str, token: u64, running: usize) -> Verdict {
    if running == 0 {
        return Ok(());
    }
    let message = format!("{who} released {id} (token {token}) while {running} of its loops ran");
    Err(Violation::new(G9, message))
}
