//! Where the servers are, and how to speak to them.

use std::fmt;
use std::time::Duration;

use tenure::Result;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::addresses;

/// How to reach servers.
#[derive(Clone)]
pub struct Options {
    pub(crate) servers: Vec<String>,
    pub(crate) token: Option<String>,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Options {
    /// The servers of a URL: `https://a:8368,https://b:8368`, or with the scheme only once. The port is 8368
    /// unless another is given.
    pub fn new(url: &str) -> Result<Self> {
        let servers = addresses::parse(url)?;
        Ok(Self {
            servers,
            token: None,
            ca: None,
            identity: None,
            timeout: Duration::from_secs(8),
            connect_timeout: Duration::from_secs(3),
        })
    }

    /// Shows this token with every call.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Trusts servers whose certificate this authority signed (PEM), instead of the system's.
    #[must_use]
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Shows this certificate and proves it with this key (PEM), where servers ask for one.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// How long one call may take, reconnecting included.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(crate) fn tls(&self) -> Option<ClientTlsConfig> {
        if !self.servers.iter().any(|server| server.starts_with("https")) {
            return None;
        }
        let tls = match &self.ca {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        Some(match &self.identity {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        })
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the token nor the key.
        f.debug_struct("Options").field("servers", &self.servers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = Options::new("http://a").unwrap().token("sesame").identity("c", "key");
        assert!(!format!("{options:?}").contains("sesame"));
    }
}
