//! Where the servers are, and how to speak to them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tenure::{Error, Result};
use tenure_net::tls::{ClientTls, Pem};

use crate::token::Source;
use crate::{addresses, connect};

/// How to reach servers.
#[derive(Clone)]
pub struct Options {
    pub(crate) servers: Vec<String>,
    pub(crate) token: Option<Source>,
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

    /// The servers of a URL, and what the environment says of the way to speak to them: the token in
    /// `TENURE_BEARER`, whom to trust in the file `TENURE_CA`, what to show in `TENURE_CERT` and `TENURE_KEY`.
    pub fn from_env(url: &str) -> Result<Self> {
        Self::new(url)?.with(|name| std::env::var(name).ok())
    }

    fn with(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name: &str| {
            let value = variable(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let pem = |name: &str| given(name).map(|path| file(name, &path)).transpose();
        self.token = given("TENURE_BEARER").map(Source::Text);
        self.ca = pem("TENURE_CA")?;
        self.identity = match (pem("TENURE_CERT")?, pem("TENURE_KEY")?) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (certificate, _) => {
                let (there, missing) = match certificate {
                    Some(_) => ("TENURE_CERT", "TENURE_KEY"),
                    None => ("TENURE_KEY", "TENURE_CERT"),
                };
                let reason = format!("{there} is set and {missing} is not; set both, or neither");
                return Err(Error::invalid("environment", reason));
            }
        };
        Ok(self)
    }

    /// Shows this token with every call.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Source::Text(token.into()));
        self
    }

    /// Shows the token in this file with every call. It may be replaced at any time, as signed tokens are
    /// that end after an hour: the next call shows the new one.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(Source::File(path.into()));
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

    /// How to encrypt, if any address says so.
    ///
    /// # Errors
    /// Certificates or a key that cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<ClientTls>> {
        if !self.servers.iter().any(|server| server.starts_with("https")) {
            return Ok(None);
        }
        let mut tls = ClientTls::new("servers").alpn(&[connect::PROTOCOL]);
        if let Some(pem) = &self.ca {
            tls = tls.ca(Pem::Text(pem.clone()));
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Pem::Text(certificate.clone()), Pem::Text(key.clone()));
        }
        tls.config()?;
        Ok(Some(tls))
    }
}

/// What is in the file that a variable names.
fn file(variable: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Error::invalid(format!("{variable}={path}"), format!("it cannot be read: {error}"))
    })
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

    #[test]
    fn the_environment_says_how_to_speak_to_them() {
        let with = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            Options::new("https://a").unwrap().with(move |name| {
                set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
            })
        };
        let nothing = with(&[("TENURE_BEARER", " "), ("TENURE_CA", "")]).unwrap();
        assert!(nothing.token.is_none() && nothing.ca.is_none() && nothing.identity.is_none());
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let all = [("TENURE_BEARER", "sesame\n"), ("TENURE_CA", here), ("TENURE_CERT", here)];
        let half = with(&all).unwrap_err().to_string();
        assert!(half.contains("TENURE_CERT is set and TENURE_KEY is not"), "{half}");
        let all = with(&[&all[..], &[("TENURE_KEY", here)]].concat()).unwrap();
        assert!(matches!(all.token, Some(Source::Text(token)) if token == "sesame"));
        assert!(all.ca.is_some() && all.identity.is_some());
        let gone = with(&[("TENURE_CA", "/no/such/file")]).unwrap_err().to_string();
        assert!(gone.contains("TENURE_CA=/no/such/file"), "{gone}");
    }
}
