//! What is printed for whoever asked, and what is said on the side. Its reader may go at any time, and the
//! macros of the standard library would panic then: under a lease, or in the middle of an answer.

use std::fmt::Display;
use std::io::{Result, Write as _, stderr, stdout};

/// Prints a line of what was asked for. That it could not be printed is for the exit code to tell.
pub(crate) fn print(line: impl Display) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Says something that nobody needs to hear. In one piece: others write there, too.
pub(crate) fn say(what: impl Display) {
    let _ = stderr().write_all(format!("tenure: {what}\n").as_bytes());
}
