//! Encryption of the connection: whom to trust, and what to show.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tenure::{Error, Result};

/// Certificates, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) server_name: Option<String>,
}

impl Tls {
    /// How to encrypt.
    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(match &self.ca {
            Some(ca) => certificates("ca", ca)?,
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
                let chain = certificates("cert", certificate)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| invalid("key", e))?;
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
        let empty = Tls { ca: Some(b"nothing".to_vec()), ..Tls::default() };
        assert!(empty.config().unwrap_err().to_string().contains("no certificate"));
    }
}
