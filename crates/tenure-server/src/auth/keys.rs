//! Keys that signed tokens are checked with. A key has one algorithm, which comes from what the key is
//! and never from the token: a public key cannot be taken for a shared secret.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header};
use serde::Deserialize;
use tenure::{Error, Result};

/// As many bytes as HS256 computes with; a shorter secret could be guessed.
const SECRET_BYTES: usize = 32;
/// Keys of one set that are looked at.
const MOST: usize = 1_000;

/// All keys of one issuer.
pub(super) enum KeySet {
    /// One secret that both sides know.
    Secret(DecodingKey),
    /// Public keys, each with its id.
    Public(Vec<PublicKey>),
}

pub(super) struct PublicKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

/// Why no key fits a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is none with this id; a newer set may have it.
    Unknown,
    /// No set of this sort has one.
    Never(&'static str),
}

impl KeySet {
    /// The secret in a file, without the line break at its end.
    pub(super) fn secret(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() < SECRET_BYTES {
            let reason = format!(
                "it has {} bytes and needs {SECRET_BYTES}; make one with `openssl rand -hex 32`",
                bytes.len()
            );
            return Err(Error::invalid("HS256 secret", reason));
        }
        Ok(Self::Secret(DecodingKey::from_secret(bytes)))
    }

    /// The usable keys of a JWKS document. Those for other algorithms or other uses are left out.
    pub(super) fn public(document: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<serde_json::Value>,
        }
        let wrong = |reason: String| Error::invalid("JWKS document", reason);
        let document: Document =
            serde_json::from_slice(document).map_err(|error| wrong(error.to_string()))?;
        if document.keys.len() > MOST {
            return Err(wrong(format!(
                "it has {} keys, at most {MOST} are read",
                document.keys.len()
            )));
        }
        let keys: Vec<_> = document.keys.into_iter().filter_map(public_key).collect();
        if keys.is_empty() {
            return Err(wrong("it has no RSA or P-256 key for RS256 or ES256 signatures".into()));
        }
        Ok(Self::Public(keys))
    }

    /// The key for a token that begins like this, and the only algorithm it is good for.
    pub(super) fn find(
        &self,
        header: &Header,
    ) -> std::result::Result<(Algorithm, &DecodingKey), Missing> {
        let keys = match self {
            Self::Secret(key) if header.alg == Algorithm::HS256 => {
                return Ok((Algorithm::HS256, key));
            }
            Self::Secret(_) => return Err(Missing::Never("it is not signed with HS256")),
            Self::Public(keys) => keys,
        };
        if !matches!(header.alg, Algorithm::RS256 | Algorithm::ES256) {
            return Err(Missing::Never("it is signed with neither RS256 nor ES256"));
        }
        let fits = |key: &&PublicKey| {
            key.algorithm == header.alg && (header.kid.is_none() || key.id == header.kid)
        };
        let mut fitting = keys.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok((key.algorithm, &key.key)),
            (None, _) => Err(Missing::Unknown),
            _ => Err(Missing::Never("several keys would fit; it must name one by its kid")),
        }
    }
}

fn public_key(value: serde_json::Value) -> Option<PublicKey> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if jwk.common.public_key_use.as_ref().is_some_and(|usage| *usage != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        _ => return None,
    };
    if jwk.common.key_algorithm.is_some_and(|other| other != named) {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(PublicKey { id: jwk.common.key_id, algorithm, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RSA: &str =
        r#""kty":"RSA","n":"sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri","e":"AQAB""#;
    const P256: &str = r#""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0""#;

    fn set(keys: &[String]) -> Result<KeySet> {
        KeySet::public(format!("{{\"keys\":[{}]}}", keys.join(",")).as_bytes())
    }

    fn header(alg: Algorithm, kid: Option<&str>) -> Header {
        Header { kid: kid.map(Into::into), ..Header::new(alg) }
    }

    #[test]
    fn a_key_is_found_by_its_id_and_only_for_its_own_algorithm() {
        let keys = [format!("{{{RSA},\"kid\":\"a\"}}"), format!("{{{P256},\"kid\":\"b\"}}")];
        let set = set(&keys).unwrap();
        let find = |alg, kid| set.find(&header(alg, kid)).map(|(alg, _)| alg);
        assert_eq!(find(Algorithm::RS256, Some("a")), Ok(Algorithm::RS256));
        assert_eq!(find(Algorithm::ES256, Some("b")), Ok(Algorithm::ES256));
        assert_eq!(find(Algorithm::RS256, Some("b")), Err(Missing::Unknown));
        assert_eq!(find(Algorithm::RS256, Some("c")), Err(Missing::Unknown));
        assert_eq!(find(Algorithm::RS256, None), Ok(Algorithm::RS256));
        for alg in [Algorithm::HS256, Algorithm::RS512, Algorithm::PS256, Algorithm::EdDSA] {
            assert!(matches!(find(alg, Some("a")), Err(Missing::Never(_))), "{alg:?}");
        }
        let secret = KeySet::secret(&[7; 32]).unwrap();
        assert!(secret.find(&header(Algorithm::HS256, Some("any"))).is_ok());
        for alg in [Algorithm::RS256, Algorithm::HS384] {
            assert!(secret.find(&header(alg, None)).is_err(), "{alg:?}");
        }
    }

    #[test]
    fn keys_for_something_else_are_left_out() {
        let others = [
            format!("{{{RSA},\"use\":\"enc\"}}"),
            format!("{{{RSA},\"alg\":\"RS512\"}}"),
            format!("{{{P256},\"alg\":\"ES384\"}}"),
            r#"{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}"#.into(),
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#
                .into(),
            r#"{"kty":"new"}"#.into(),
            "{}".into(),
        ];
        for other in &others {
            assert!(set(std::slice::from_ref(other)).is_err(), "{other}");
        }
        let mut all = others.to_vec();
        all.push(format!("{{{RSA},\"use\":\"sig\",\"alg\":\"RS256\"}}"));
        assert!(set(&all).unwrap().find(&header(Algorithm::RS256, None)).is_ok());
        // Two that would fit, and a token that does not say which.
        let two = [format!("{{{RSA},\"kid\":\"a\"}}"), format!("{{{RSA},\"kid\":\"b\"}}")];
        let two = set(&two).unwrap();
        assert!(matches!(two.find(&header(Algorithm::RS256, None)), Err(Missing::Never(_))));
        assert!(KeySet::public(b"{").is_err());
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert!(KeySet::secret(&[b'a'; 31]).is_err());
        assert!(KeySet::secret(&[&[b'a'; 31][..], b"\n"].concat()).is_err());
        assert!(KeySet::secret(&[b'a'; 32]).is_ok());
    }
}
