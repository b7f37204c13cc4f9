//! What can be set, and the address that most of it comes from.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure::clock::{SharedClock, SystemClock};
use tenure::{Error, Result};

use crate::tls::{Pem, Tls};

/// Where the servers are and how to use them.
///
/// ```
/// use std::time::Duration;
/// use tenure_etcd::Options;
///
/// # fn main() -> tenure::Result<()> {
/// let options = Options::parse("etcd://me:secret@one:2379,two:2379/billing")?
///     .timeout(Duration::from_secs(3));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) endpoints: Vec<String>,
    pub(crate) prefix: String,
    pub(crate) login: Option<(String, String)>,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeout: Duration,
    pub(crate) attempt: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) spares: usize,
    pub(crate) clock: SharedClock,
}

impl Options {
    /// These servers (`host:port`), with default settings.
    pub fn new<S: Into<String>>(endpoints: impl IntoIterator<Item = S>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "tenure".into(),
            login: None,
            tls: None,
            timeout: Duration::from_secs(5),
            attempt: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(2),
            spares: 256,
            clock: SystemClock::shared(),
        }
    }

    /// Reads `etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PREFIX][?tls=true&ca=FILE&cert=FILE&key=FILE&name=NAME]`.
    /// The scheme `etcds` means `tls=true`, as does naming any file. Files are read for each connection.
    ///
    /// # Errors
    /// Says what is wrong with the address, or which file cannot be read.
    pub fn parse(url: &str) -> Result<Self> {
        let bad = |reason: String| Error::invalid("etcd address", reason);
        let form = "write etcd://HOST:PORT/PREFIX, with USER:PASSWORD@ in front if need be";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad(form.into()))?;
        let secure = match scheme {
            "etcd" => false,
            "etcds" => true,
            other => return Err(bad(format!("the scheme is {other:?}; {form}"))),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let mut this = Self::new(hosts.split(',').filter(|host| !host.is_empty()));
        if this.endpoints.is_empty() {
            return Err(bad(format!("no server is named; {form}")));
        }
        for host in &mut this.endpoints {
            if !host.rsplit(']').next().unwrap_or_default().contains(':') {
                host.push_str(":2379");
            }
        }
        if let Some(login) = login {
            let (user, password) = login
                .split_once(':')
                .ok_or_else(|| bad(format!("the password is missing; {form}")))?;
            this.login = Some((unescape(user)?, unescape(password)?));
        }
        if !prefix.is_empty() {
            this = this.prefix(unescape(prefix)?.trim_end_matches('/'));
        }
        this.tls = secure.then(Tls::default);
        this.read_query(query)?;
        Ok(this)
    }

    fn read_query(&mut self, query: &str) -> Result<()> {
        let (mut cert, mut key) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match (name, value.as_str()) {
                ("tls", "true" | "1" | "") => drop(self.tls.get_or_insert_default()),
                ("tls", "false" | "0") => self.tls = None,
                ("ca", file) => self.tls.get_or_insert_default().ca = Some(read(file)?),
                ("cert", file) => cert = Some(read(file)?),
                ("key", file) => key = Some(read(file)?),
                ("name", name) => {
                    self.tls.get_or_insert_default().server_name = Some(name.to_owned());
                }
                _ => {
                    return Err(Error::invalid(
                        format!("etcd address with {pair:?}"),
                        "known are tls=true, ca=FILE, cert=FILE with key=FILE, and name=NAME",
                    ));
                }
            }
        }
        match (cert, key) {
            (None, None) => Ok(()),
            (Some(cert), Some(key)) => {
                self.tls.get_or_insert_default().identity = Some((cert, key));
                Ok(())
            }
            _ => Err(Error::invalid("etcd address", "cert and key go together; give both")),
        }
    }

    /// Everything is kept under this key prefix (`tenure`). Stores with different prefixes share
    /// nothing but the revision counter.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Logs in. The login is renewed by itself.
    #[must_use]
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((user.into(), password.into()));
        self
    }

    /// Talks TLS and trusts servers whose certificate this authority signed; without one, what the
    /// system trusts.
    #[must_use]
    pub fn tls(mut self, ca: Option<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().ca = ca.map(Pem::Text);
        self
    }

    /// Shows servers this certificate, with its key, both PEM. Implies TLS.
    #[must_use]
    pub fn identity(mut self, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        let identity = (Pem::Text(certificate), Pem::Text(key));
        self.tls.get_or_insert_default().identity = Some(identity);
        self
    }

    /// How long one call may take in all, all servers it tries included (5 seconds).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self.attempt = self.attempt.min(timeout);
        self
    }

    /// How long one server may take over a read before the next is asked (2 seconds).
    #[must_use]
    pub fn attempt(mut self, attempt: Duration) -> Self {
        self.attempt = attempt;
        self
    }

    /// How long connecting to one server may take (2 seconds).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How many unused etcd leases are kept at hand for each time to live (at most 256).
    #[must_use]
    pub fn spare_leases(mut self, spares: usize) -> Self {
        self.spares = spares;
        self
    }

    /// Takes steady time from elsewhere, for tests.
    #[must_use]
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }
}

/// A file that can be read now, and will be again.
fn read(file: &str) -> Result<Pem> {
    let pem = Pem::File(file.into());
    pem.read()?;
    Ok(pem)
}

/// Undoes `%41`. A `%` that is followed by anything else is a mistake and not left as it is.
fn unescape(text: &str) -> Result<String> {
    let is_escape =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|digit| digit.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_escape) {
        let reason = "a % is not followed by two hexadecimal digits";
        return Err(Error::invalid("etcd address", reason));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Error::invalid("etcd address", "it is not UTF-8"))
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_it_all() {
        let options = Options::parse("etcd://me:p%40ss@a:1,b,[::1]:3,[::1]/x/y/").unwrap();
        assert_eq!(options.endpoints, ["a:1", "b:2379", "[::1]:3", "[::1]:2379"]);
        assert_eq!(options.login, Some(("me".into(), "p@ss".into())));
        assert_eq!(options.prefix, "x/y");
        assert!(options.tls.is_none());
        assert!(Options::parse("etcds://a").unwrap().tls.is_some());
        assert_eq!(Options::parse("etcd://a/").unwrap().prefix, "tenure");
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said() {
        for (url, hint) in [
            ("etcd:a", "HOST:PORT"),
            ("etcd:///x", "no server"),
            ("etcd://me@a", "password"),
            ("etcd://a?cert=/nonexistent", "/nonexistent"),
            ("etcd://a?colour=red", "known are"),
            ("etcd://a/%zz", "hexadecimal"),
            ("etcd://a/x%4", "hexadecimal"),
            ("etcd://a/%+1", "hexadecimal"),
            ("etcd://a/%ff", "UTF-8"),
        ] {
            let error = Options::parse(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
    }
}
