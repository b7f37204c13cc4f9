//! G9: a gate lets go of its lease only after the last of its loops has stopped. G3: it stops them in
//! time, so that nobody works beside the next holder.

use crate::history::{Guarantee::G3, Guarantee::G9, Verdict, Violation};

/// A lease of a gate was deleted by its own process while so many of its loops ran.
pub fn released(who: &str, id: &str, token: u64, running: usize) -> Verdict {
    if running == 0 {
        return Ok(());
    }
    let message = format!("{who} released {id} (token {token}) while {running} of its loops ran");
    Err(Violation::new(G9, message))
}

/// A loop starts under this token while loops of an earlier one run, whose process could have stopped them.
pub fn beside(id: &str, token: u64, earlier: u64, who: &str) -> Verdict {
    let message = format!(
        "a loop of {id} starts under token {token}, and {who} still runs some under {earlier}"
    );
    Err(Violation::new(G3, message))
}
