//! The settings of a server, as its TOML file has them. Unknown keys are errors: a setting that is
//! misspelled must not be one that is silently not there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tenure::{Error, Result};
use tenure_server::auth::{AuthSettings, Authenticator, tls};
use tenure_server::{Builder, ServerLimits};

/// Where it listens unless told otherwise.
const LISTEN: &str = "127.0.0.1:8368";
/// How long what was begun gets to finish.
const GRACE: Duration = Duration::from_secs(10);

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    pub(super) listen: Option<String>,
    pub(super) store: Option<String>,
    pub(super) insecure: bool,
    pub(super) grace_ms: Option<u64>,
    pub(super) tls: Option<Tls>,
    pub(super) auth: AuthSettings,
    pub(super) limits: LimitSettings,
}

/// The server's certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// How much the server takes on; what is left out has the server's own default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LimitSettings {
    pub(super) requests: Option<usize>,
    pub(super) streams: Option<usize>,
    pub(super) streams_per_client: Option<usize>,
    pub(super) waiters: Option<usize>,
    pub(super) waiters_per_client: Option<usize>,
    pub(super) connections: Option<usize>,
    pub(super) message_bytes: Option<usize>,
    pub(super) wait_max_ms: Option<u64>,
    pub(super) request_timeout_ms: Option<u64>,
    pub(super) header_timeout_ms: Option<u64>,
}

impl Settings {
    /// The settings in a file.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let wrong = |reason: String| Error::invalid(format!("settings {}", path.display()), reason);
        let text = std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("the file cannot be read: {error}")))?;
        // Its line is named, not shown: there may be a password in it.
        let line = |at: usize| 1 + text.get(..at).map_or(0, |before| before.matches('\n').count());
        toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(0, |span| line(span.start));
            wrong(format!("line {line}: {}", error.message()))
        })
    }

    pub(super) fn listen(&self) -> &str {
        self.listen.as_deref().unwrap_or(LISTEN)
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace_ms.map_or(GRACE, Duration::from_millis)
    }

    /// With TLS and callers who say who they are, as far as that is set.
    pub(super) fn secure(&self, mut builder: Builder) -> Result<Builder> {
        if let Some(files) = &self.tls {
            builder =
                builder.tls(tls::server_config(&files.cert, &files.key, self.auth.mtls.as_ref())?);
        } else if self.auth.mtls.is_some() {
            let reason = "certificates of clients need TLS; add --tls-cert FILE and --tls-key FILE";
            return Err(Error::invalid("auth.mtls", reason));
        }
        if self.auth.is_on() {
            builder = builder.authenticator(Authenticator::new(self.auth.clone())?);
        }
        Ok(builder)
    }
}

impl From<LimitSettings> for ServerLimits {
    fn from(set: LimitSettings) -> Self {
        let usual = Self::default();
        Self {
            requests: set.requests.unwrap_or(usual.requests),
            streams: set.streams.unwrap_or(usual.streams),
            streams_per_client: set.streams_per_client.unwrap_or(usual.streams_per_client),
            waiters: set.waiters.unwrap_or(usual.waiters),
            waiters_per_client: set.waiters_per_client.unwrap_or(usual.waiters_per_client),
            connections: set.connections.unwrap_or(usual.connections),
            message_bytes: set.message_bytes.unwrap_or(usual.message_bytes),
            wait_max: set.wait_max_ms.map_or(usual.wait_max, Duration::from_millis),
            request_timeout: set
                .request_timeout_ms
                .map_or(usual.request_timeout, Duration::from_millis),
            header_timeout: set
                .header_timeout_ms
                .map_or(usual.header_timeout, Duration::from_millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_is_understood_and_a_misspelled_key_is_named() {
        let text = r#"
            listen = "0.0.0.0:8368"
            store = "postgres://db/app"
            grace_ms = 5000
            [tls]
            cert = "cert.pem"
            key = "key.pem"
            [auth]
            token_file = "tokens.toml"
            [limits]
            waiters_per_client = 7
        "#;
        let settings: Settings = toml::from_str(text).unwrap();
        assert_eq!(settings.grace(), Duration::from_secs(5));
        assert_eq!(ServerLimits::from(settings.limits).waiters_per_client, 7);
        assert!(settings.auth.is_on());
        let told = toml::from_str::<Settings>("listn = \"x\"").unwrap_err().to_string();
        assert!(told.contains("listn") && told.contains("listen"), "{told}");
    }
}
