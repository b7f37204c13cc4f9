//! TLS: the server's certificate, read again when its files change, and whose client certificates count.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tenure::clock::SystemClock;
use tenure::{Error, Result};

use super::MtlsSettings;
use super::watched::Watched;

/// TLS 1.2 and 1.3 with this certificate (PEM, the whole chain, the server's own first) and its key,
/// for HTTP/2 and HTTP/1.1. A renewed certificate is taken without a restart; new certificates in the
/// file of client issuers are not.
pub fn server_config(
    certificate: &Path,
    key: &Path,
    clients: Option<&MtlsSettings>,
) -> Result<rustls::ServerConfig> {
    let names = format!("certificate {} with key {}", certificate.display(), key.display());
    let load = move |files: &[Vec<u8>]| {
        certified(files).map_err(|reason| Error::invalid(names.clone(), reason))
    };
    let resolver = Resolver(Watched::open(&[certificate, key], SystemClock::shared(), load)?);
    let provider = provider();
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS", error.to_string()))?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(clients)?, provider);
            let verifier =
                if clients.required { verifier } else { verifier.allow_unauthenticated() };
            let wrong = |error: &dyn fmt::Display| bad_issuers(clients, error);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(&error))?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// For what we fetch ourselves: whom this machine trusts, we trust.
pub(super) fn client_config() -> std::result::Result<rustls::ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("this machine has no trusted certificates; install ca-certificates or set \
                    SSL_CERT_FILE"
            .into());
    }
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
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

fn roots(clients: &MtlsSettings) -> Result<Arc<RootCertStore>> {
    let wrong = |error: &dyn fmt::Display| bad_issuers(clients, error);
    let mut roots = RootCertStore::empty();
    let all = CertificateDer::pem_file_iter(&clients.client_ca).map_err(|error| wrong(&error))?;
    for root in all {
        let root = root.map_err(|error| wrong(&error))?;
        roots.add(root).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"it has no certificate in PEM form"));
    }
    Ok(Arc::new(roots))
}

fn bad_issuers(clients: &MtlsSettings, error: &dyn fmt::Display) -> Error {
    Error::invalid(format!("client CA file {}", clients.client_ca.display()), error.to_string())
}

/// The certificate as the files have it now.
struct Resolver(Watched<Arc<CertifiedKey>>);

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
