//! The token that is shown to servers.
//!
//! Signed tokens end before programs do, and new ones are written into the same file. So a file is looked at
//! before each call that shows the token, and read again if it has changed. If what it holds is of no use, the
//! token from before stays: the file may be in the middle of being replaced.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tenure::{Error, Result};
use tonic::metadata::{Ascii, MetadataValue};

/// Where the token comes from.
#[derive(Clone)]
pub(crate) enum Source {
    Text(String),
    File(PathBuf),
}

/// The token as calls carry it.
pub(crate) struct Token {
    file: Option<PathBuf>,
    last: Mutex<(Option<Stamp>, MetadataValue<Ascii>)>,
}

/// What tells one file from another that took its place.
#[derive(PartialEq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Token {
    /// # Errors
    /// If the file cannot be read, or there is nothing in it that a header can carry.
    pub(crate) fn new(source: &Source) -> Result<Self> {
        let (file, stamp, value) = match source {
            Source::Text(text) => (None, None, value(text)?),
            Source::File(path) => (Some(path.clone()), stamp(path), read(path)?),
        };
        Ok(Self { file, last: Mutex::new((stamp, value)) })
    }

    /// For the next call.
    pub(crate) fn current(&self) -> MetadataValue<Ascii> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.file {
            // Looked at before it is read, so that what comes in between is read the next time.
            let now = stamp(path);
            if now != last.0 {
                // Of no use or not, it is read once. Mending it changes it again.
                last.0 = now;
                match read(path) {
                    Ok(value) => last.1 = value,
                    Err(error) => tracing::warn!(%error, "going on with the token of before"),
                }
            }
        }
        last.1.clone()
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some(Stamp { modified: found.modified().ok(), length: found.len(), inode: found.ino() })
}

fn read(path: &Path) -> Result<MetadataValue<Ascii>> {
    let what = || format!("token file {}", path.display());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::invalid(what(), format!("it cannot be read: {error}")))?;
    match text.trim() {
        "" => Err(Error::invalid(what(), "it is empty")),
        token => value(token),
    }
}

fn value(token: &str) -> Result<MetadataValue<Ascii>> {
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}")
        .parse()
        .map_err(|_| Error::invalid("token", "it contains characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_when_it_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let source = Source::File(path.clone());
        assert!(Token::new(&source).err().unwrap().to_string().contains("cannot be read"));
        std::fs::write(&path, "\n").unwrap();
        assert!(Token::new(&source).err().unwrap().to_string().contains("empty"));
        std::fs::write(&path, "first\n").unwrap();
        let token = Token::new(&source).unwrap();
        assert_eq!(token.current().to_str().unwrap(), "Bearer first");
        std::fs::write(&path, "the second\n").unwrap();
        assert_eq!(token.current().to_str().unwrap(), "Bearer the second");
        for of_no_use in ["", "two\nlines of something"] {
            std::fs::write(&path, of_no_use).unwrap();
            assert_eq!(token.current().to_str().unwrap(), "Bearer the second");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.current().to_str().unwrap(), "Bearer the second");
    }
}
