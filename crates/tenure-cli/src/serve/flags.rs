//! Flags for what the file has in tables of its own: who is let in, and how much is taken on. Each has a
//! variable, and each wins over the file.

use std::path::PathBuf;
use std::time::Duration;

use tenure::{Error, Result};
use tenure_server::auth::{JwtSettings, MtlsSettings};

use super::settings::{LimitSettings, Settings};
use crate::duration::parse_duration;
use crate::json::millis;

/// `[auth.jwt]`.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Signed tokens (JWT)")]
pub(super) struct JwtFlags {
    /// What `iss` of a signed token must be.
    #[arg(long, env = "TENURE_JWT_ISSUER", value_name = "TEXT")]
    jwt_issuer: Option<String>,
    /// What `aud` of a signed token must be, or have among others.
    #[arg(long, env = "TENURE_JWT_AUDIENCE", value_name = "TEXT")]
    jwt_audience: Option<String>,
    /// Where to get public keys. One of the three sources of keys is given.
    #[arg(long, env = "TENURE_JWT_JWKS_URL", value_name = "URL")]
    jwt_jwks_url: Option<String>,
    /// A file with public keys.
    #[arg(long, env = "TENURE_JWT_JWKS_FILE", value_name = "FILE")]
    jwt_jwks_file: Option<PathBuf>,
    /// A file with a secret of at least 32 bytes that both sides know.
    #[arg(long, env = "TENURE_JWT_HS256_SECRET_FILE", value_name = "FILE")]
    jwt_hs256_secret_file: Option<PathBuf>,
    /// The claim that names the tenant; a token without it is refused then.
    #[arg(long, env = "TENURE_JWT_TENANT_CLAIM", value_name = "CLAIM")]
    jwt_tenant_claim: Option<String>,
}

impl JwtFlags {
    fn is_given(&self) -> bool {
        let texts = [&self.jwt_issuer, &self.jwt_audience, &self.jwt_tenant_claim];
        texts.into_iter().any(Option::is_some) || self.has_keys()
    }

    fn has_keys(&self) -> bool {
        self.jwt_jwks_url.is_some()
            || self.jwt_jwks_file.is_some()
            || self.jwt_hs256_secret_file.is_some()
    }

    fn apply(self, settings: &mut Settings) -> Result<()> {
        if !self.is_given() {
            return Ok(());
        }
        let has_keys = self.has_keys();
        let file = settings.auth.jwt.take();
        let (issuer, audience, tenant_claim, keys) = match file {
            None => (None, None, None, (None, None, None)),
            Some(jwt) => {
                let keys = (jwt.jwks_url, jwt.jwks_file, jwt.hs256_secret_file);
                (Some(jwt.issuer), Some(jwt.audience), jwt.tenant_claim, keys)
            }
        };
        // There is one source of keys: another one takes its place.
        let (jwks_url, jwks_file, hs256_secret_file) = match has_keys {
            true => (self.jwt_jwks_url, self.jwt_jwks_file, self.jwt_hs256_secret_file),
            false => keys,
        };
        let missing = |flag: &'static str| {
            Error::invalid(flag, "signed tokens need it; give it, or set it in the file")
        };
        settings.auth.jwt = Some(JwtSettings {
            issuer: self.jwt_issuer.or(issuer).ok_or_else(|| missing("--jwt-issuer"))?,
            audience: self.jwt_audience.or(audience).ok_or_else(|| missing("--jwt-audience"))?,
            hs256_secret_file,
            jwks_file,
            jwks_url,
            tenant_claim: self.jwt_tenant_claim.or(tenant_claim),
        });
        Ok(())
    }
}

/// `[auth.mtls]`.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Client certificates")]
pub(super) struct MtlsFlags {
    /// The authorities whose certificates clients may show (PEM).
    #[arg(long, env = "TENURE_MTLS_CLIENT_CA", value_name = "FILE")]
    mtls_client_ca: Option<PathBuf>,
    /// Turn connections without a certificate away.
    #[arg(long, env = "TENURE_MTLS_REQUIRED")]
    mtls_required: bool,
}

impl MtlsFlags {
    fn apply(self, settings: &mut Settings) -> Result<()> {
        let file = settings.auth.mtls.take();
        let required = self.mtls_required || file.as_ref().is_some_and(|file| file.required);
        let client_ca = self.mtls_client_ca.or(file.map(|file| file.client_ca));
        settings.auth.mtls = match client_ca {
            Some(client_ca) => Some(MtlsSettings { client_ca, required }),
            None if required => {
                let reason = "it needs the authorities to believe; add --mtls-client-ca FILE";
                return Err(Error::invalid("--mtls-required", reason));
            }
            None => None,
        };
        Ok(())
    }
}

/// `[limits]`.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitFlags {
    /// Requests that are worked on at once, waits and streams not counted [default: 4096].
    #[arg(long, env = "TENURE_LIMIT_REQUESTS", value_name = "N")]
    limit_requests: Option<usize>,
    /// Open streams: watches, sessions, exchanges, reflection [default: 50000].
    #[arg(long, env = "TENURE_LIMIT_STREAMS", value_name = "N")]
    limit_streams: Option<usize>,
    /// The same of one client [default: 20000].
    #[arg(long, env = "TENURE_LIMIT_STREAMS_PER_CLIENT", value_name = "N")]
    limit_streams_per_client: Option<usize>,
    /// Waits for leases and slots [default: 50000].
    #[arg(long, env = "TENURE_LIMIT_WAITERS", value_name = "N")]
    limit_waiters: Option<usize>,
    /// The same of one client [default: 20000].
    #[arg(long, env = "TENURE_LIMIT_WAITERS_PER_CLIENT", value_name = "N")]
    limit_waiters_per_client: Option<usize>,
    /// Open connections [default: 20000].
    #[arg(long, env = "TENURE_LIMIT_CONNECTIONS", value_name = "N")]
    limit_connections: Option<usize>,
    /// The largest message taken [default: 8388608].
    #[arg(long, env = "TENURE_LIMIT_MESSAGE_BYTES", value_name = "BYTES")]
    limit_message_bytes: Option<usize>,
    /// The longest wait granted; longer ones are answered as if they were over [default: 1h].
    #[arg(long, env = "TENURE_LIMIT_WAIT_MAX", value_name = "DURATION", value_parser = parse_duration)]
    limit_wait_max: Option<Duration>,
    /// How long a request may take, waits apart, and its body to arrive [default: 15s].
    #[arg(long, env = "TENURE_LIMIT_REQUEST_TIMEOUT", value_name = "DURATION", value_parser = parse_duration)]
    limit_request_timeout: Option<Duration>,
    /// How long a connection has for its first request, and for the handshake of TLS before that
    /// [default: 10s].
    #[arg(long, env = "TENURE_LIMIT_HEADER_TIMEOUT", value_name = "DURATION", value_parser = parse_duration)]
    limit_header_timeout: Option<Duration>,
}

impl LimitFlags {
    fn apply(self, settings: &mut Settings) {
        let file = std::mem::take(&mut settings.limits);
        settings.limits = LimitSettings {
            requests: self.limit_requests.or(file.requests),
            streams: self.limit_streams.or(file.streams),
            streams_per_client: self.limit_streams_per_client.or(file.streams_per_client),
            waiters: self.limit_waiters.or(file.waiters),
            waiters_per_client: self.limit_waiters_per_client.or(file.waiters_per_client),
            connections: self.limit_connections.or(file.connections),
            message_bytes: self.limit_message_bytes.or(file.message_bytes),
            wait_max_ms: self.limit_wait_max.map(millis).or(file.wait_max_ms),
            request_timeout_ms: self.limit_request_timeout.map(millis).or(file.request_timeout_ms),
            header_timeout_ms: self.limit_header_timeout.map(millis).or(file.header_timeout_ms),
        };
    }
}

/// All of them.
#[derive(clap::Args, Default)]
pub(super) struct Flags {
    #[command(flatten)]
    jwt: JwtFlags,
    #[command(flatten)]
    mtls: MtlsFlags,
    #[command(flatten)]
    limits: LimitFlags,
}

impl Flags {
    /// Puts what was given in the place of what the file says.
    pub(super) fn apply(self, settings: &mut Settings) -> Result<()> {
        self.jwt.apply(settings)?;
        self.mtls.apply(settings)?;
        self.limits.apply(settings);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    /// What a file and a command line make together.
    fn merged(file: &str, line: &[&str]) -> Result<Settings> {
        let mut settings: Settings = toml::from_str(file).unwrap();
        let line = std::iter::once("tenure").chain(line.iter().copied());
        <Line as clap::Parser>::parse_from(line).flags.apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_rest_of_the_file_stays() {
        let file = r#"
            [auth.jwt]
            issuer = "https://id.example"
            audience = "tenure"
            jwks_file = "keys.json"
            [auth.mtls]
            client_ca = "ca.pem"
            required = true
            [limits]
            streams = 5
            wait_max_ms = 1000
        "#;
        assert_eq!(merged(file, &[]).unwrap(), toml::from_str(file).unwrap());
        let line = ["--jwt-audience", "other", "--jwt-jwks-url", "https://id.example/keys"];
        let settings = merged(file, &line).unwrap();
        let jwt = settings.auth.jwt.unwrap();
        assert_eq!((&*jwt.issuer, &*jwt.audience), ("https://id.example", "other"));
        assert_eq!((jwt.jwks_file, jwt.jwks_url.is_some()), (None, true));
        let settings = merged(file, &["--mtls-client-ca", "b.pem", "--limit-wait-max", "2s"]);
        let settings = settings.unwrap();
        let mtls = settings.auth.mtls.unwrap();
        assert_eq!((mtls.client_ca, mtls.required), ("b.pem".into(), true));
        assert_eq!((settings.limits.wait_max_ms, settings.limits.streams), (Some(2000), Some(5)));
    }

    #[test]
    fn flags_alone_will_do_and_what_is_missing_is_named() {
        let secret = "--jwt-hs256-secret-file=secret";
        let jwt = merged("", &["--jwt-issuer=a", "--jwt-audience=b", secret]).unwrap().auth.jwt;
        assert_eq!(jwt.unwrap().hs256_secret_file, Some("secret".into()));
        let told = merged("", &["--jwt-issuer=a", secret]).unwrap_err().to_string();
        assert!(told.contains("--jwt-audience"), "{told}");
        let told = merged("", &["--mtls-required"]).unwrap_err().to_string();
        assert!(told.contains("--mtls-client-ca"), "{told}");
        assert_eq!(merged("", &[]).unwrap(), Settings::default());
    }
}
