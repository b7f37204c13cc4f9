//! Encryption of the connection: whom to trust, and what to show.
//!
//! Certificates end before programs do and are replaced by new ones in the same place. So files are read
//! for each connection. If a file holds nothing of use, what it held before is used on: it may be in the
//! middle of being replaced.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tenure::{Error, Result};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::innermost;

/// Certificates or a key, in PEM.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    pub(crate) fn read(&self) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::File(file) => std::fs::read(file).map(Cow::from).map_err(|error| {
                Error::invalid(format!("file {file:?} of the etcd address"), error.to_string())
            }),
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Pem>,
    pub(crate) identity: Option<(Pem, Pem)>,
    pub(crate) server_name: Option<String>,
    /// What was of use last.
    last: Arc<Mutex<Option<ClientTlsConfig>>>,
}

impl Tls {
    /// How to encrypt the next connection.
    pub(crate) fn config(&self) -> Result<ClientTlsConfig> {
        let made = self.make();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (made, &*last) {
            (Ok(made), _) => {
                *last = Some(made.clone());
                Ok(made)
            }
            (Err(error), Some(last)) => {
                tracing::warn!(%error, "going on with the certificates that were read before");
                Ok(last.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    fn make(&self) -> Result<ClientTlsConfig> {
        let mut config = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(authority(&ca.read()?)?),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            config = config.identity(Identity::from_pem(certificate.read()?, key.read()?));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        // An endpoint reads all of it, and says what is of no use.
        let read = Endpoint::from_static("https://localhost").tls_config(config.clone());
        read.map_err(|error| invalid("certificates", innermost(&error)))?;
        Ok(config)
    }
}

/// To trust nobody is a mistake, which tonic would only find when it connects.
fn authority(pem: &[u8]) -> Result<Certificate> {
    match CertificateDer::pem_slice_iter(pem).next() {
        Some(Ok(_)) => Ok(Certificate::from_pem(pem)),
        Some(Err(error)) => Err(invalid("ca", error)),
        None => Err(invalid("ca", "it holds no certificate")),
    }
}

fn invalid(what: &str, error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what:?} for TLS to etcd"), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_each_time_and_what_is_of_no_use_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let tls = Tls { ca: Some(Pem::File(file.clone())), ..Tls::default() };
        assert!(tls.config().unwrap_err().to_string().contains("ca.pem"));
        let shown = |tls: &Tls| format!("{:?}", tls.config().unwrap());
        let issue = || {
            let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
            std::fs::write(&file, made.cert.pem()).unwrap();
            (shown(&tls), made.cert.pem())
        };
        let ((first, _), (second, pem)) = (issue(), issue());
        assert_ne!(first, second);
        for useless in ["half of a certifica", &pem[..pem.len() / 2]] {
            std::fs::write(&file, useless).unwrap();
            assert_eq!(shown(&tls), second);
            // Clones of one address share what they know.
            assert_eq!(shown(&tls.clone()), second);
        }
    }

    #[test]
    fn what_is_of_no_use_is_named() {
        let pem = |text: &str| Pem::Text(text.into());
        let empty = Tls { ca: Some(pem("nothing")), ..Tls::default() };
        assert!(empty.config().unwrap_err().to_string().contains("no certificate"));
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        for (cert, key) in [(cert.as_str(), "nothing"), ("nothing", key.as_str())] {
            let identity = Some((pem(cert), pem(key)));
            let tls = Tls { ca: Some(pem(&made.cert.pem())), identity, ..Tls::default() };
            assert!(tls.config().is_err());
        }
    }
}
