//! The credentials file of a user: a claim that somebody signed, and the key that proves whose it is.
//!
//! Claims end before programs do, and are replaced by writing a new file. So the file is read for each
//! connection. If it cannot be used, the one read before counts: it may be in the middle of being replaced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;
use tenure::{Error, Result};

const CLAIM: &str = "NATS USER JWT";
const SEED: &str = "USER NKEY SEED";

/// A file, and what was of use in it last.
pub(crate) struct Credentials {
    file: PathBuf,
    last: Mutex<Arc<User>>,
}

struct User {
    claim: String,
    key: KeyPair,
}

impl Credentials {
    pub(crate) fn open(file: &Path) -> Result<Self> {
        let user = User::read(file).map_err(|why| {
            let what = format!("credentials file {}", file.display());
            Error::invalid(what, format!("it cannot be used: {why}"))
        })?;
        Ok(Self { file: file.to_owned(), last: Mutex::new(Arc::new(user)) })
    }

    /// What to show to a server that sent this to be signed: the claim, and a signature.
    pub(crate) fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let user = self.user();
        let mut auth = Auth::new();
        auth.signature = Some(user.key.sign(nonce).map_err(AuthError::new)?);
        auth.jwt = Some(user.claim.clone());
        Ok(auth)
    }

    fn user(&self) -> Arc<User> {
        let read = User::read(&self.file);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(user) => *last = Arc::new(user),
            Err(why) => {
                let file = self.file.display();
                tracing::warn!(%file, why, "going on with the credentials that were read before");
            }
        }
        Arc::clone(&last)
    }
}

impl User {
    fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        let part = |name| part(&text, name).ok_or_else(|| format!("it holds no {name}"));
        let key = KeyPair::from_seed(part(SEED)?).map_err(|error| error.to_string())?;
        Ok(Self { claim: part(CLAIM)?.to_owned(), key })
    }
}

/// The line between those that name it.
fn part<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let names = |line: &str, which: &str| line.contains(&format!("{which} {name}"));
    let mut lines = text.lines().skip_while(|line| !names(line, "BEGIN")).skip(1);
    let inside = lines.next()?.trim();
    lines.next().filter(|line| names(line, "END")).map(|_| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_are_found_whatever_is_around_them() {
        let seed = KeyPair::new_user().seed().unwrap();
        let file = |claim: &str| {
            format!(
                "-----BEGIN NATS USER JWT-----\r\n{claim}\r\n------END NATS USER JWT------\r\n\r\n\
                 ************************* IMPORTANT *************************\r\n\
                 NKEYs are sensitive.\r\n\r\n\
                 -----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\r\n"
            )
        };
        let text = file("eyJ0.e-_30.c2ln-");
        assert_eq!(part(&text, CLAIM), Some("eyJ0.e-_30.c2ln-"));
        assert_eq!(part(&text, SEED), Some(&*seed));
        // Half of a file.
        assert_eq!(part("-----BEGIN USER NKEY SEED-----\nSU", SEED), None);
    }

    #[test]
    fn the_file_is_read_each_time_and_what_is_of_no_use_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("user.creds");
        assert!(Credentials::open(&file).is_err());
        let seed = KeyPair::new_user().seed().unwrap();
        let write = |claim: &str| {
            let text = format!(
                "-----BEGIN NATS USER JWT-----\n{claim}\n------END NATS USER JWT------\n\
                 -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
            );
            std::fs::write(&file, text).unwrap();
        };
        write("one");
        let credentials = Credentials::open(&file).unwrap();
        let shown = || credentials.answer(b"nonce").unwrap().jwt;
        assert_eq!(shown().as_deref(), Some("one"));
        write("two");
        assert_eq!(shown().as_deref(), Some("two"));
        std::fs::write(&file, "-----BEGIN NATS USER JWT-----\nthr").unwrap();
        assert_eq!(shown().as_deref(), Some("two"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(shown().as_deref(), Some("two"));
    }
}
