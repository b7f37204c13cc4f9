//! Where the servers are, and how to speak to them.

use std::fmt;
use std::time::Duration;

use tenure::{Error, Result};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// Servers named at most.
const SERVERS: usize = 32;

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
    /// The servers of a URL: `http://HOST:PORT` or `https://HOST:PORT`, more separated by commas.
    pub fn new(url: &str) -> Result<Self> {
        let wrong = |reason: &str| Error::invalid(format!("server {url:?}"), reason);
        let (scheme, hosts) = url
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
            .ok_or_else(|| wrong("write http://HOST:PORT or https://HOST:PORT"))?;
        if hosts.contains('@') {
            return Err(wrong("a login does not belong in it; give a token instead"));
        }
        let hosts = hosts.trim_end_matches('/');
        let servers: Vec<String> = hosts
            .split(',')
            .filter(|host| !host.is_empty())
            .map(|host| format!("{scheme}://{}", with_port(host)))
            .collect();
        if servers.is_empty() {
            return Err(wrong("it names no host; write http://HOST:PORT"));
        }
        if servers.len() > SERVERS {
            return Err(wrong("it names more than 32 servers"));
        }
        if let Some(bad) = servers.iter().find(|server| server.parse::<http::Uri>().is_err()) {
            return Err(wrong(&format!("{bad} is no address; write http://HOST:PORT")));
        }
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

/// Our port unless another is given.
fn with_port(host: &str) -> String {
    let after_address = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    if after_address.contains(':') { host.into() } else { format!("{host}:8368") }
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
    fn servers_are_told_apart_and_get_our_port() {
        let servers = |url| Options::new(url).map(|options| options.servers).unwrap();
        assert_eq!(servers("http://a:1,b"), ["http://a:1", "http://b:8368"]);
        assert_eq!(servers("https://[::1]/"), ["https://[::1]:8368"]);
        assert_eq!(servers("http://[::1]:9"), ["http://[::1]:9"]);
    }

    #[test]
    fn what_is_no_server_is_told_what_is() {
        for bad in ["a:1", "tcp://a", "http://", "http://,", "http://u:p@a", "http://a b"] {
            let error = Options::new(bad).unwrap_err().to_string();
            assert!(error.contains("HOST:PORT") || error.contains("token"), "{bad}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = Options::new("http://a").unwrap().token("sesame").identity("c", "key");
        assert!(!format!("{options:?}").contains("sesame"));
    }
}
