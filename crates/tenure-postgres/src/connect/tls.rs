//! Encryption of the connection, by the settings that everybody knows from libpq.
//!
//! | `sslmode` | encrypted | the server is who it says |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer` (default) | if the server can | not checked |
//! | `require` | yes | its certificate is checked if `sslrootcert` is given |
//! | `verify-ca` | yes | its certificate is checked |
//! | `verify-full` | yes | its certificate and its name are checked |
//!
//! `sslrootcert` names a file of certificates to trust instead of the system's, `sslcert` and `sslkey`
//! the certificate and key to show to the server. These files are read for each connection, since
//! certificates are replaced while a program runs. If a file is of no use, perhaps because it is just being
//! written, what it held before counts.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tenure::{Error, Result};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::connect::address::take_parameters;

/// What is checked about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Certificate,
    CertificateAndName,
}

/// The settings about encryption, taken out of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    mode: Option<String>,
    root: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
}

impl Settings {
    /// Takes them out of an address; what is left is the driver's.
    pub(crate) fn take_from(address: &str) -> (Self, String) {
        let mut settings = Self::default();
        let rest = take_parameters(address, |name, value| settings.take(name, value));
        (settings, rest)
    }

    fn take(&mut self, name: &str, value: String) -> bool {
        let place = match name {
            "sslmode" => &mut self.mode,
            "sslrootcert" => &mut self.root,
            "sslcert" => &mut self.certificate,
            "sslkey" => &mut self.key,
            _ => return false,
        };
        *place = Some(value);
        true
    }

    /// The driver's mode, and how it encrypts.
    pub(crate) fn tls(self) -> Result<(SslMode, Tls)> {
        let (mode, check) = match (self.mode.as_deref(), &self.root) {
            (Some("disable"), _) => (SslMode::Disable, Check::Nothing),
            (None | Some("prefer" | "allow"), _) => (SslMode::Prefer, Check::Nothing),
            (Some("require"), None) => (SslMode::Require, Check::Nothing),
            (Some("require" | "verify-ca"), _) => (SslMode::Require, Check::Certificate),
            (Some("verify-full"), _) => (SslMode::Require, Check::CertificateAndName),
            (Some(other), _) => {
                return Err(Error::invalid(
                    format!("sslmode {other:?} of a Postgres address"),
                    "it is disable, prefer, require, verify-ca or verify-full",
                ));
            }
        };
        let last = Mutex::new(MakeRustlsConnect::new(self.config(check)?));
        Ok((mode, Tls { settings: self, check, last }))
    }

    fn names_files(&self) -> bool {
        self.root.is_some() || self.certificate.is_some()
    }

    fn config(&self, check: Check) -> Result<ClientConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new(check, &provider, self.root.as_deref())?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid("encryption", error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match (&self.certificate, &self.key) {
            (None, None) => Ok(builder.with_no_client_auth()),
            (Some(certificate), Some(key)) => {
                let chain = certificates("sslcert", certificate)?;
                let private =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| invalid(key, error))?;
                let config = builder.with_client_auth_cert(chain, private);
                config.map_err(|error| invalid(certificate, error))
            }
            _ => Err(Error::invalid("a Postgres address", "give both sslcert and sslkey")),
        }
    }
}

/// How connections are encrypted.
pub(crate) struct Tls {
    settings: Settings,
    check: Check,
    /// What was of use last.
    last: Mutex<MakeRustlsConnect>,
}

impl Tls {
    /// For the next connection.
    pub(crate) fn connector(&self) -> MakeRustlsConnect {
        let made = self.settings.names_files().then(|| self.settings.config(self.check));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match made {
            Some(Ok(config)) => *last = MakeRustlsConnect::new(config),
            Some(Err(error)) => {
                tracing::warn!(%error, "going on with the certificates that were read before");
            }
            None => {}
        }
        last.clone()
    }
}

fn invalid(what: &str, error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what:?} for TLS to Postgres"), error.to_string())
}

fn certificates(what: &str, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(file).map_err(|error| invalid(file, error))?;
    let all: Vec<_> = all.collect::<std::result::Result<_, _>>().map_err(|e| invalid(file, e))?;
    match all.is_empty() {
        true => Err(invalid(file, format!("{what} holds no certificate"))),
        false => Ok(all),
    }
}

/// Checks what the mode asks for, and in any case that the server has the key of its certificate.
#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
    trusted: Option<Arc<WebPkiServerVerifier>>,
}

impl Verifier {
    fn new(check: Check, provider: &Arc<CryptoProvider>, root: Option<&str>) -> Result<Self> {
        let provider = Arc::clone(provider);
        if check == Check::Nothing {
            return Ok(Self { check, provider, trusted: None });
        }
        let mut roots = RootCertStore::empty();
        let all = match root {
            Some(file) => certificates("sslrootcert", file)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(all);
        let builder =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let trusted = builder.build().map_err(|_| {
            let reason = "no certificate to trust was found; name a file with sslrootcert";
            Error::invalid("TLS to Postgres", reason)
        })?;
        Ok(Self { check, provider, trusted: Some(trusted) })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        match trusted.verify_server_cert(certificate, chain, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.check == Check::Certificate => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_taken_out_of_urls_and_pairs() {
        let url = "postgres://u:p@h/d?sslmode=verify-full&connect_timeout=3&sslrootcert=%2Fa%20b";
        let (settings, rest) = Settings::take_from(url);
        assert_eq!(rest, "postgres://u:p@h/d?connect_timeout=3");
        assert_eq!(settings.mode.as_deref(), Some("verify-full"));
        assert_eq!(settings.root.as_deref(), Some("/a b"));
        let (settings, rest) = Settings::take_from("host=h sslmode=disable user=u");
        assert_eq!((rest.as_str(), settings.mode.as_deref()), ("host=h user=u", Some("disable")));
        let (settings, rest) = Settings::take_from("postgres://u@h/d?sslmode=require");
        assert_eq!(rest, "postgres://u@h/d");
        assert!(matches!(settings.tls(), Ok((SslMode::Require, _))));
    }

    #[test]
    fn a_password_is_left_as_it_is() {
        for (address, rest, mode) in [
            ("password='a  b' sslmode=require user=u", "password='a  b' user=u", Some("require")),
            ("password='a sslmode=disable' user=u", "password='a sslmode=disable' user=u", None),
            (r"password='it\'s  x' sslmode = 'require'", r"password='it\'s  x'", Some("require")),
            (r"password=a\ sslmode=disable user=u", r"password=a\ sslmode=disable user=u", None),
            // Only URLs are percent-encoded.
            ("password=p sslmode=a%20b", "password=p", Some("a%20b")),
            ("postgres://u:a?b&sslmode=disable@h/d", "postgres://u:a?b&sslmode=disable@h/d", None),
            // What is no pair is for the driver to complain of.
            ("user=u oops", "user=u oops", None),
            ("user=u password='open  end", "user=u password='open  end", None),
        ] {
            let (settings, left) = Settings::take_from(address);
            assert_eq!((left.as_str(), settings.mode.as_deref()), (rest, mode), "{address}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let says = |address: &str| {
            let (settings, _) = Settings::take_from(address);
            settings.tls().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(says("sslmode=never").contains("verify-full"));
        assert!(says("sslmode=require sslcert=x").contains("sslkey"));
        assert!(says("sslmode=verify-ca sslrootcert=/nowhere").contains("/nowhere"));
    }
}
