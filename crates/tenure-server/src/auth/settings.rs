//! Which ways of finding out who asks are on, and whether a server may be reached that way.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use tenure::{Error, Result};

/// How callers are found out. All that are set work side by side. There are no secrets in here, only
/// the files that have them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    /// The file that lists tokens and certificates.
    pub token_file: Option<PathBuf>,
    /// Signed tokens of somebody else.
    pub jwt: Option<JwtSettings>,
    /// Client certificates.
    pub mtls: Option<MtlsSettings>,
}

impl AuthSettings {
    /// Whether anything is set, so that callers have to say who they are.
    pub fn is_on(&self) -> bool {
        self.token_file.is_some() || self.jwt.is_some() || self.mtls.is_some()
    }
}

/// Whose signed tokens to believe. Exactly one of the three sources of keys is set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtSettings {
    /// What `iss` must be.
    pub issuer: String,
    /// What `aud` must be, or have among others.
    pub audience: String,
    /// A file with the secret that both sides know, of at least 32 bytes: HS256.
    pub hs256_secret_file: Option<PathBuf>,
    /// A file with public keys: RS256 and ES256.
    pub jwks_file: Option<PathBuf>,
    /// Where to get public keys: RS256 and ES256.
    pub jwks_url: Option<String>,
    /// The claim that names the tenant. A token without it is refused. If this is not set, `tenant` is
    /// looked at, and a token without it belongs to no tenant.
    pub tenant_claim: Option<String>,
}

/// Which client certificates to believe.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MtlsSettings {
    /// A file with the certificates of those who issue them.
    pub client_ca: PathBuf,
    /// Whether a connection without a certificate is turned away in the handshake; otherwise it may
    /// show a token.
    #[serde(default)]
    pub required: bool,
}

/// Refuses to be reachable from elsewhere without TLS and without asking who comes, unless that was
/// said to be meant.
pub fn check_exposure(address: SocketAddr, tls: bool, auth: bool, insecure: bool) -> Result<()> {
    // An IPv4 address may come in the clothes of an IPv6 one.
    if insecure || address.ip().to_canonical().is_loopback() || (tls && auth) {
        return Ok(());
    }
    let certificate = "--tls-cert FILE --tls-key FILE";
    let who = "--token-file FILE (or --jwt-issuer and what goes with it, or --mtls-client-ca FILE)";
    let (missing, add) = match (tls, auth) {
        (false, false) => ("TLS and authentication", format!("{certificate} and {who}")),
        (false, _) => ("TLS", certificate.to_owned()),
        _ => ("authentication", who.to_owned()),
    };
    let reason = format!(
        "it can be reached from other machines, and that needs {missing}; add {add}, listen on \
         127.0.0.1, or say --insecure if the network itself keeps strangers out"
    );
    Err(Error::invalid(format!("listen address {address}"), reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_open_to_everybody() {
        let local = ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
        let others =
            ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "192.168.0.1:1", "[fe80::1]:1", "8.8.8.8:1"];
        for bits in 0..8 {
            let (tls, auth, insecure) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
            for address in local {
                assert!(check_exposure(address.parse().unwrap(), tls, auth, insecure).is_ok());
            }
            for address in others {
                let told = check_exposure(address.parse().unwrap(), tls, auth, insecure);
                assert_eq!(told.is_ok(), insecure || (tls && auth), "{address} {bits:b}");
                let Err(told) = told.map_err(|error| error.to_string()) else { continue };
                assert_eq!(told.contains("--tls-cert"), !tls, "{told}");
                assert_eq!(told.contains("--token-file"), !auth, "{told}");
                assert!(told.contains(address) && told.contains("--insecure"), "{told}");
            }
        }
    }

    #[test]
    fn settings_are_read_from_toml_and_unknown_ones_are_named() {
        let text = r#"
            token_file = "tokens.toml"
            [jwt]
            issuer = "https://id.example"
            audience = "tenure"
            jwks_url = "https://id.example/keys"
            [mtls]
            client_ca = "ca.pem"
        "#;
        let settings: AuthSettings = toml::from_str(text).unwrap();
        assert!(settings.is_on() && !AuthSettings::default().is_on());
        assert!(!settings.mtls.unwrap().required);
        assert_eq!(settings.jwt.unwrap().jwks_url.as_deref(), Some("https://id.example/keys"));
        for wrong in ["tokens = 1", "[jwt]\nissuer = \"a\"", "[mtls]\nclient_ca = \"a\"\nca = 1"] {
            let error = toml::from_str::<AuthSettings>(wrong).unwrap_err().to_string();
            assert!(
                ["tokens", "audience", "`ca`"].iter().any(|word| error.contains(word)),
                "{error}"
            );
        }
    }
}
