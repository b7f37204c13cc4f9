//! Encryption of the connection: whom to trust, and what to show.
//!
//! Certificates end before programs do, and whoever issues them writes new ones in their place. So files
//! are read for each connection. If what they hold is of no use, it counts what they held before: they
//! may be in the middle of being replaced.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tenure::{Error, Result};

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
    last: Arc<Mutex<Option<Arc<ClientConfig>>>>,
}

impl Tls {
    /// How to encrypt the next connection.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>> {
        let made = self.make();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (made, &*last) {
            (Ok(made), _) => *last = Some(made),
            (Err(error), Some(_)) => {
                tracing::warn!(%error, "going on with the certificates that were read before");
            }
            (Err(error), None) => return Err(error),
        }
        last.clone().ok_or_else(|| invalid("settings", "there are none"))
    }

    fn make(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(match &self.ca {
            Some(ca) => certificates("ca", &ca.read()?)?,
            None => rustls_native_certs::load_native_certs().certs,
        });
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("settings", error))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("cert", &certificate.read()?)?;
                let key =
                    PrivateKeyDer::from_pem_slice(&key.read()?).map_err(|e| invalid("key", e))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| invalid("cert", e))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    /// The name that the server at this address must prove to have.
    pub(crate) fn name(&self, address: &str) -> Result<ServerName<'static>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = self.server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
        ServerName::try_from(name.to_owned()).map_err(|error| invalid(name, error))
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| invalid(what, error))?;
    if all.is_empty() {
        return Err(invalid(what, "it holds no certificate"));
    }
    Ok(all)
}

fn invalid(what: &str, error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what:?} for TLS to etcd"), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_to_prove_is_the_host_unless_another_is_given() {
        let shown = |tls: &Tls, address: &str| format!("{:?}", tls.name(address).unwrap());
        let tls = Tls::default();
        assert!(shown(&tls, "one.example:2379").contains("one.example"));
        assert!(shown(&tls, "[::1]:2379").contains("IpAddress"));
        let named = Tls { server_name: Some("other.example".into()), ..Tls::default() };
        assert!(shown(&named, "127.0.0.1:2379").contains("other.example"));
        assert!(tls.name("not a name:1").is_err());
        let empty = Tls { ca: Some(Pem::Text(b"nothing".to_vec())), ..Tls::default() };
        assert!(empty.config().unwrap_err().to_string().contains("no certificate"));
    }

    #[test]
    fn files_are_read_each_time_and_what_is_of_no_use_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let tls = Tls { ca: Some(Pem::File(file.clone())), ..Tls::default() };
        assert!(tls.config().unwrap_err().to_string().contains("ca.pem"));
        let issue = || {
            let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
            std::fs::write(&file, made.cert.pem()).unwrap();
            tls.config().unwrap()
        };
        let (first, second) = (issue(), issue());
        assert!(!Arc::ptr_eq(&first, &second));
        std::fs::write(&file, "half of a certifica").unwrap();
        assert!(Arc::ptr_eq(&second, &tls.config().unwrap()));
        // Clones of one address share what they know.
        assert!(Arc::ptr_eq(&second, &tls.clone().config().unwrap()));
    }
}
