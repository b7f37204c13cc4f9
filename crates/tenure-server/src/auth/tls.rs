//! TLS: the server's certificate, read again when its files change, and whose client certificates count.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tenure::clock::SystemClock;
use tenure::{Error, Result};

use super::MtlsSettings;
use super::reloaded::Reloaded;

/// TLS of a server, as its files have it now. Cheap to ask.
pub struct ServerTls(Source);

enum Source {
    Fixed(Arc<ServerConfig>),
    /// With a verifier of clients, which changes with the file of their issuers.
    Clients(Reloaded<ServerConfig>),
}

impl ServerTls {
    /// The configuration for the next connection. After a change of the client issuers it is another one,
    /// which resumes no session of the one before: a client that is no longer trusted cannot come in by
    /// resuming.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        match &self.0 {
            Source::Fixed(config) => Arc::clone(config),
            Source::Clients(watched) => watched.current(),
        }
    }
}

/// TLS 1.2 and 1.3 with this certificate (PEM, the whole chain, the server's own first) and its key,
/// for HTTP/2 and HTTP/1.1. A renewed certificate is taken without a restart, and so are new issuers of
/// client certificates.
pub fn server_config(
    certificate: &Path,
    key: &Path,
    clients: Option<&MtlsSettings>,
) -> Result<ServerTls> {
    let names = format!("certificate {} with key {}", certificate.display(), key.display());
    let load = move |files: &[Vec<u8>]| {
        certified(files).map_err(|reason| Error::invalid(names.clone(), reason))
    };
    let clock = SystemClock::shared();
    let resolver = Resolver(Reloaded::open(&[certificate, key], Arc::clone(&clock), load)?);
    let resolver = Arc::new(resolver);
    let Some(clients) = clients else {
        return Ok(ServerTls(Source::Fixed(Arc::new(config(None, resolver)?))));
    };
    let (path, required) = (clients.client_ca.clone(), clients.required);
    let name = format!("client CA file {}", path.display());
    let load = move |files: &[Vec<u8>]| {
        let issuers = files.first().map_or(&[][..], |file| file);
        let verifier = verifier(issuers, required);
        let verifier = verifier.map_err(|reason| Error::invalid(name.clone(), reason))?;
        config(Some(verifier), Arc::clone(&resolver))
    };
    Ok(ServerTls(Source::Clients(Reloaded::open(&[&path], clock, load)?)))
}

fn config(
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    resolver: Arc<Resolver>,
) -> Result<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS", error.to_string()))?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Believes certificates of these issuers (PEM).
fn verifier(
    issuers: &[u8],
    required: bool,
) -> std::result::Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(issuers) {
        let root = root.map_err(|error| error.to_string())?;
        roots.add(root).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has no certificate in PEM form".into());
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let verifier = if required { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map_err(|error| error.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The chain and the key that belongs to it, from the two files.
fn certified(files: &[Vec<u8>]) -> std::result::Result<Arc<CertifiedKey>, String> {
    let [chain, key] = files else { return Err("two files are needed".into()) };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| format!("the certificate file: {error}"))?;
    if chain.is_empty() {
        return Err("the certificate file has no certificate in PEM form".into());
    }
    // The error says what kind of thing was there, not what it was.
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key file: {error}"))?;
    let key = CertifiedKey::from_der(chain, key, &provider());
    key.map(Arc::new).map_err(|error| format!("they do not go together: {error}"))
}

/// The certificate as the files have it now.
struct Resolver(Reloaded<Arc<CertifiedKey>>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current()))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ServerTls {
    /// The names of files only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Fixed(_) => f.write_str("ServerTls"),
            Source::Clients(watched) => write!(f, "ServerTls({watched:?})"),
        }
    }
}
