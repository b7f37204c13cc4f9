//! How a client encrypts: whom it trusts, what it shows, and which name the server must prove.
//!
//! Certificates end before programs do, and new ones are written in their place. So files and the system's
//! roots are read again for each connection. If what they hold is of no use, the last good set-up stays in
//! force and a warning is logged; the files may be in the middle of being replaced. The first reading must
//! succeed.

mod pem;
mod verify;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tenure::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::pem::Pem;
pub use self::verify::Check;
use self::verify::Verifier;

/// How to encrypt connections to one kind of server. Clones share the last good set-up.
///
/// ```
/// use tenure_net::tls::{ClientTls, Pem};
///
/// let tls = ClientTls::new("etcd").ca(Pem::File("/etc/etcd/ca.pem".into())).alpn(&[b"h2"]);
/// ```
#[derive(Clone)]
pub struct ClientTls {
    server: &'static str,
    ca: Option<Pem>,
    identity: Option<(Pem, Pem)>,
    name: Option<String>,
    check: Check,
    alpn: Vec<Vec<u8>>,
    last: Arc<Mutex<Option<Arc<ClientConfig>>>>,
}

impl ClientTls {
    /// Trusts what the system trusts and shows no certificate. Errors say "TLS to `server`".
    pub fn new(server: &'static str) -> Self {
        Self {
            server,
            ca: None,
            identity: None,
            name: None,
            check: Check::CertificateAndName,
            alpn: Vec::new(),
            last: Arc::default(),
        }
    }

    /// Trusts these certificates instead of the system's.
    #[must_use]
    pub fn ca(mut self, ca: Pem) -> Self {
        self.ca = Some(ca);
        self.changed()
    }

    /// Shows this certificate (the whole chain, the client's own first) and proves it with this key.
    #[must_use]
    pub fn identity(mut self, certificate: Pem, key: Pem) -> Self {
        self.identity = Some((certificate, key));
        self.changed()
    }

    /// The server must prove this name instead of the host that is connected to.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What is checked about the server; its certificate and its name unless told otherwise.
    #[must_use]
    pub fn check(mut self, check: Check) -> Self {
        self.check = check;
        self.changed()
    }

    /// Offers these protocols, for instance `h2`.
    #[must_use]
    pub fn alpn(mut self, protocols: &[&[u8]]) -> Self {
        self.alpn = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self.changed()
    }

    /// The last good set-up is for other settings now, and clones from before keep theirs.
    fn changed(mut self) -> Self {
        self.last = Arc::default();
        self
    }

    /// Encrypts a connection to this host, a name or an IP address.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that cannot be used, [`Failed::Handshake`] for what went wrong with
    /// the server.
    pub async fn connect<S>(&self, host: &str, stream: S) -> Result<TlsStream<S>, Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.name(host)?;
        let this = self.clone();
        // Files are read, and the system's roots may be hundreds.
        let config = tokio::task::spawn_blocking(move || this.config()).await;
        let config = config.map_err(|error| self.invalid("settings", error))??;
        TlsConnector::from(config).connect(name, stream).await.map_err(Failed::Handshake)
    }

    /// The set-up for the next connection. Reads files, so it blocks for a moment.
    ///
    /// # Errors
    /// [`Error::Invalid`] if nothing of use has ever been read.
    pub fn config(&self) -> Result<Arc<ClientConfig>> {
        let made = self.make();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (made, &*last) {
            (Ok(made), _) => {
                let made = Arc::new(made);
                *last = Some(Arc::clone(&made));
                Ok(made)
            }
            (Err(error), Some(last)) => {
                tracing::warn!(%error, "going on with the certificates that were read before");
                Ok(Arc::clone(last))
            }
            (Err(error), None) => Err(error),
        }
    }

    /// The name that the server at this host must prove: the one that was set, else the host itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is neither a name nor an IP address.
    pub fn name(&self, host: &str) -> Result<ServerName<'static>> {
        let name = self.name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
        ServerName::try_from(name.to_owned()).map_err(|error| self.invalid(name, error))
    }

    fn make(&self) -> Result<ClientConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.invalid("settings", error))?;
        let builder = match self.check {
            Check::CertificateAndName => builder.with_root_certificates(self.roots()?),
            Check::Certificate => {
                let roots = self.trusted(&provider)?;
                let verifier = Verifier::new(provider, Some(roots));
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            Check::Nothing => {
                let verifier = Verifier::new(provider, None);
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificate.certificates("client certificate")?;
                let built = builder.with_client_auth_cert(chain, key.private_key("client key")?);
                built.map_err(|error| self.invalid("client certificate", error))?
            }
        };
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
    }

    fn trusted(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
        let (roots, provider) = (Arc::new(self.roots()?), Arc::clone(provider));
        let built = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        built.map_err(|error| self.invalid("CA", error))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(match &self.ca {
            Some(ca) => ca.certificates("CA")?,
            None => rustls_native_certs::load_native_certs().certs,
        });
        if roots.is_empty() {
            let reason = match self.ca {
                Some(_) => "none of its certificates can be used",
                None => {
                    "this machine has no trusted certificates; name a file of your own, install \
                     ca-certificates or set SSL_CERT_FILE"
                }
            };
            return Err(self.invalid("CA", reason));
        }
        Ok(roots)
    }

    fn invalid(&self, what: &str, reason: impl fmt::Display) -> Error {
        Error::invalid(format!("{what:?} for TLS to {}", self.server), reason.to_string())
    }
}

/// Why a connection is not encrypted.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] Error),
    /// The server and we did not agree.
    #[error("TLS: {0}")]
    Handshake(#[source] std::io::Error),
}

impl fmt::Debug for ClientTls {
    /// Nothing of what is read: it may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("server", &self.server)
            .field("name", &self.name)
            .field("check", &self.check)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
