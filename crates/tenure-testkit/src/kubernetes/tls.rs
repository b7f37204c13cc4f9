//! Certificates for the stand-in: an authority, the server's, and one for a client.

use std::sync::Arc;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// What a server needs to speak TLS, and what its clients need, as a kubeconfig has it.
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    pub(super) authority: String,
    pub(super) authority_pem: String,
    pub(super) client_certificate: String,
    pub(super) client_key: String,
}

impl Tls {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let signed = |name: &str, purpose: ExtendedKeyUsagePurpose| -> Result<_> {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(vec![name.to_owned()])?;
            params.extended_key_usages = vec![purpose];
            Ok((params.signed_by(&key, &authority)?, key))
        };
        let (server, server_key) = signed("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth)?;
        let (client, client_key) = signed("somebody", ExtendedKeyUsagePurpose::ClientAuth)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).context("trusting the authority")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .context("checking clients")?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![server.der().clone()], key)
            .context("the server's certificate")?;
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            authority: STANDARD.encode(authority.pem()),
            authority_pem: authority.pem(),
            client_certificate: STANDARD.encode(client.pem()),
            client_key: STANDARD.encode(client_key.serialize_pem()),
        })
    }
}
