//! The service account of the pod that this program runs in: where the API server is, whom to trust
//! there, which namespace is ours, and the token that says who we are.
//!
//! The kubelet replaces the token before it expires, and the certificates when the cluster gets new
//! ones. The token is therefore read for each request: it is a kilobyte in memory, which costs less
//! than deciding when it was read last, and nothing has to be compared with any clock. A token that
//! cannot be read just now is the one that was read before. The client reads the certificates again
//! by itself, every minute.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::HeaderValue;
use kube::Config;
use tenure::{Error, Result};

/// Where a pod finds it.
pub(crate) const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// What to do where it is not there, or not whole.
const NEXT: &str = "let the pod have it with automountServiceAccountToken: true, or name a kubeconfig \
     with ?kubeconfig=";

/// Whether this looks like a pod.
pub(crate) fn in_a_pod() -> bool {
    std::env::var_os(HOST).is_some()
}

/// The configuration and the token of the service account in this folder.
pub(crate) fn read(folder: &Path) -> Result<(Config, Token)> {
    let server = address(std::env::var(HOST).ok().as_deref(), std::env::var(PORT).ok().as_deref())?;
    let token = Token::open(folder.join("token"))?;
    let namespace = text(&folder.join("namespace"))?;
    let authority = folder.join("ca.crt");
    // The client would say which file only of some of its errors.
    text(&authority)?;
    let mut config = Config::new(server);
    config.default_namespace = namespace;
    // Nobody is trusted but whom the file names: without a list of its own, empty as it is, the client
    // would first look for what the system trusts, and small images trust nobody.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(authority);
    Ok((config, token))
}

fn address(host: Option<&str>, port: Option<&str>) -> Result<http::Uri> {
    let wanted = |name: &str| {
        let reason = format!("{name} is not set, so this is no pod; give a kubeconfig instead");
        Error::invalid("service account", reason)
    };
    let host = host.ok_or_else(|| wanted(HOST))?;
    let port = port.ok_or_else(|| wanted(PORT))?;
    let host = match host.parse::<std::net::Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => host.to_owned(),
    };
    let parsed = port.parse::<u16>().ok().and_then(|port| {
        let uri: http::Uri = format!("https://{host}:{port}").parse().ok()?;
        uri.host().is_some_and(|host| !host.is_empty()).then_some(uri)
    });
    parsed.ok_or_else(|| {
        let reason = format!("{HOST}={host} and {PORT}={port} are no address of an API server");
        Error::invalid("service account", reason)
    })
}

/// A file of the account, without the white space around it.
fn text(path: &Path) -> Result<String> {
    let invalid = |why: String| {
        Error::invalid(format!("service account {}", path.display()), format!("{why}; {NEXT}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    match text.trim() {
        "" => Err(invalid("it is empty".into())),
        text => Ok(text.to_owned()),
    }
}

/// The token, as new as its file.
pub(crate) struct Token {
    path: PathBuf,
    /// What was read last.
    kept: Mutex<HeaderValue>,
}

impl Token {
    fn open(path: PathBuf) -> Result<Self> {
        let first = header(&path)?;
        Ok(Self { path, kept: Mutex::new(first) })
    }

    /// The header that a request shows.
    pub(crate) fn header(&self) -> HeaderValue {
        let read = header(&self.path);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(header) => *kept = header,
            Err(error) => tracing::debug!(%error, "going on with the token that was read before"),
        }
        kept.clone()
    }
}

fn header(path: &Path) -> Result<HeaderValue> {
    let token = text(path)?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
        let what = format!("service account {}", path.display());
        Error::invalid(what, format!("it holds no token; {NEXT}"))
    })?;
    // So that no log shows it.
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(host: Option<&str>, port: Option<&str>) -> std::result::Result<String, String> {
        address(host, port).map(|uri| uri.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_those_of_the_environment() {
        assert_eq!(of(Some("10.0.0.1"), Some("443")).unwrap(), "https://10.0.0.1:443/");
        assert_eq!(of(Some("fd00::1"), Some("6443")).unwrap(), "https://[fd00::1]:6443/");
        assert_eq!(of(Some("api.local"), Some("1")).unwrap(), "https://api.local:1/");
        assert!(of(None, Some("443")).unwrap_err().contains(HOST));
        assert!(of(Some("10.0.0.1"), None).unwrap_err().contains(PORT));
        for (host, port) in [("10.0.0.1", "tcp://10.0.0.1:443"), ("", "443"), ("a b", "443")] {
            assert!(of(Some(host), Some(port)).unwrap_err().contains(PORT), "{host} {port}");
        }
    }

    #[test]
    fn a_token_is_as_new_as_its_file_and_outlives_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::open(path.clone()).is_err());
        std::fs::write(&path, "one\n").unwrap();
        let token = Token::open(path.clone()).unwrap();
        assert_eq!(token.header(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(token.header(), "Bearer two");
        for broken in ["", " \n", "th\nree"] {
            std::fs::write(&path, broken).unwrap();
            assert_eq!(token.header(), "Bearer two");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(token.header(), "Bearer two");
        assert!(token.header().is_sensitive());
    }
}
