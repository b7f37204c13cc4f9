//! Certificates and keys in PEM, given as text or as the file that has them.

use std::borrow::Cow;
use std::path::PathBuf;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tenure::{Error, Result};

/// Certificates or a key, in PEM.
#[derive(Clone)]
pub enum Pem {
    /// The text itself.
    Text(Vec<u8>),
    /// The file that has it, read again each time.
    File(PathBuf),
}

impl Pem {
    /// The text as it is now.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the file's name if it cannot be read.
    pub fn read(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::File(file) => std::fs::read(file).map(Cow::from).map_err(|error| {
                Error::invalid(format!("file {file:?}"), format!("it cannot be read: {error}"))
            }),
        }
    }

    /// All certificates in it, of which there is at least one.
    pub(super) fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>> {
        let text = self.read()?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let all = all.map_err(|error| self.invalid(what, error.to_string()))?;
        if all.is_empty() {
            return Err(self.invalid(what, "it holds no certificate in PEM form"));
        }
        Ok(all)
    }

    /// The first key in it. Errors say what kind of thing was there, not what it was.
    pub(super) fn private_key(&self, what: &str) -> Result<PrivateKeyDer<'static>> {
        let key = PrivateKeyDer::from_pem_slice(&self.read()?);
        key.map_err(|error| self.invalid(what, error.to_string()))
    }

    fn invalid(&self, what: &str, reason: impl Into<String>) -> Error {
        let what = match self {
            Self::Text(_) => what.to_owned(),
            Self::File(file) => format!("{what} in {file:?}"),
        };
        Error::invalid(what, reason)
    }
}
