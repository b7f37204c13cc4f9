//! Which programs may write to a store.
//!
//! A store that outlives one release is written by several. Each records the lowest writer level it
//! accepts; a program below that level is refused when it opens the store, instead of losing
//! an update later. Levels rise only when an older writer would be unsafe.

use crate::{Error, Result};

/// The level of this build.
pub const WRITER_LEVEL: u32 = 1;

/// Refuses to go on if the store demands a newer program than this one.
pub fn check_writer(backend: &'static str, required: u32) -> Result<()> {
    check(backend, required, WRITER_LEVEL)
}

fn check(backend: &'static str, required: u32, ours: u32) -> Result<()> {
    if required > ours {
        return Err(Error::Refused {
            backend,
            reason: format!(
                "it accepts writers of level {required} and above, this program has level {ours}; \
                 upgrade this program before it starts on this store"
            ),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_program_is_refused_and_told_what_to_do() {
        assert!(check("sqlite", 3, 3).is_ok());
        let error = check("sqlite", 4, 3).unwrap_err().to_string();
        assert!(error.contains("level 4") && error.contains("level 3"), "{error}");
        assert!(error.contains("upgrade"), "{error}");
    }
}
