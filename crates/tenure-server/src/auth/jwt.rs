//! Tokens that somebody we trust has signed.
//!
//! `sub` is the caller's name, `tenant` (or another claim) its tenant, and `permissions` (an array of
//! texts) or `scope` (words in one text) what it may do. `iss` and `aud` must be ours and `exp` must be
//! there; clocks may disagree by a minute.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tenure::clock::SharedClock;
use tenure::{Error, Result};

use super::access::{check_subject, check_tenant};
use super::jwks::Jwks;
use super::keys::{KeySet, Missing};
use super::permission::Permissions;
use super::reloaded::Reloaded;
use super::verified::Verified;
use super::{Caller, JwtSettings, Refusal, tokens};

/// How far clocks may disagree.
const LEEWAY_SECONDS: u64 = 60;

type Claims = Map<String, Value>;

/// Checks signed tokens of one issuer.
pub(super) struct Jwt {
    settings: JwtSettings,
    keys: Keys,
    verified: Verified,
    clock: SharedClock,
}

enum Keys {
    File(Reloaded<Arc<KeySet>>),
    Jwks(Jwks),
}

impl Jwt {
    pub(super) fn new(settings: JwtSettings, clock: &SharedClock) -> Result<Self> {
        let wrong = |what: &str| Error::invalid("jwt settings", what);
        if settings.issuer.is_empty() || settings.audience.is_empty() {
            return Err(wrong("issuer and audience must not be empty"));
        }
        let sources = (&settings.hs256_secret_file, &settings.jwks_file, &settings.jwks_url);
        let keys = match sources {
            (Some(path), None, None) => Keys::File(open(path, clock, KeySet::secret)?),
            (None, Some(path), None) => Keys::File(open(path, clock, KeySet::public)?),
            (None, None, Some(url)) => Keys::Jwks(Jwks::new(url, clock)?),
            _ => return Err(wrong("set one of hs256_secret_file, jwks_file and jwks_url")),
        };
        Ok(Self { settings, keys, verified: Verified::default(), clock: Arc::clone(clock) })
    }

    /// Who was signed for.
    pub(super) async fn caller(&self, token: &str) -> std::result::Result<Caller, Refusal> {
        let sum = tokens::sum(token);
        if let Some((caller, keys)) = self.verified.find(&sum) {
            if caller.check().is_ok() && Arc::ptr_eq(&keys, &self.current_keys().await?) {
                return Ok(caller);
            }
            self.verified.forget(&sum);
        }
        let (caller, keys, until) = self.check(token).await?;
        self.verified.keep(sum, &caller, keys, self.clock.uptime(), until);
        Ok(caller)
    }

    /// Who was signed for, with which keys, and until when.
    async fn check(
        &self,
        token: &str,
    ) -> std::result::Result<(Caller, Arc<KeySet>, Duration), Refusal> {
        let Ok(header) = decode_header(token) else {
            return Err(Refusal::of("the token is neither listed nor a JWT that can be read"));
        };
        // What it calls critical we would have to understand, and we understand nothing of the kind.
        if header.crit.is_some() {
            return Err(Refusal::of("the token is a JWT with critical extensions"));
        }
        let keys = self.keys_for(&header).await?;
        let (algorithm, key) = keys.find(&header).map_err(|missing| match missing {
            Missing::Unknown => {
                Refusal::of("the token is a JWT signed with a key that is not known")
            }
            Missing::Never(reason) => Refusal::of(format!("the token is a JWT, but {reason}")),
        })?;
        let claims = self.verified(token, algorithm, key)?;
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        let refuse = |reason: String| {
            Refusal::of(format!("the token is a JWT that says too little or too much: {reason}"))
        };
        check_subject(subject).map_err(refuse)?;
        let known = |reason: String| refuse(reason).by(subject);
        let tenant = self.tenant(&claims).map_err(known)?;
        let permissions = permissions(&claims).map_err(known)?;
        let until = self.until(&claims);
        let caller = Caller::signed(subject, tenant, permissions, &self.clock, until);
        // It may be over by our clock since it was checked by the system's.
        caller.check().map_err(|fault| Refusal { subject: Some(subject.into()), fault })?;
        Ok((caller, keys, until))
    }

    async fn current_keys(&self) -> Result<Arc<KeySet>> {
        match &self.keys {
            Keys::File(file) => Ok(Arc::clone(&file.current())),
            Keys::Jwks(remote) => remote.keys().await,
        }
    }

    /// The keys, or newer ones if there are any and the token needs them.
    async fn keys_for(&self, header: &Header) -> std::result::Result<Arc<KeySet>, Refusal> {
        let keys = self.current_keys().await?;
        let Keys::Jwks(remote) = &self.keys else { return Ok(keys) };
        if !matches!(keys.find(header), Err(Missing::Unknown)) {
            return Ok(keys);
        }
        remote.refresh().await;
        Ok(remote.keys().await?)
    }

    fn verified(
        &self,
        token: &str,
        algorithm: Algorithm,
        key: &DecodingKey,
    ) -> std::result::Result<Claims, Refusal> {
        let mut rules = Validation::new(algorithm);
        rules.leeway = LEEWAY_SECONDS;
        rules.validate_nbf = true;
        rules.set_issuer(&[&self.settings.issuer]);
        rules.set_audience(&[&self.settings.audience]);
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let decoded = decode::<Claims>(token, key, &rules);
        decoded.map(|token| token.claims).map_err(|error| {
            let reason = match error.kind() {
                ErrorKind::ExpiredSignature => "has expired; get a new one".into(),
                ErrorKind::ImmatureSignature => "is not valid yet".into(),
                ErrorKind::InvalidIssuer => "comes from another issuer".into(),
                ErrorKind::InvalidAudience => "is meant for another audience".into(),
                ErrorKind::MissingRequiredClaim(claim) => format!("has no claim {claim}"),
                ErrorKind::InvalidSignature => "is not signed by whom it should be".into(),
                _ => "cannot be read".into(),
            };
            Refusal::of(format!("the token is a JWT that {reason}"))
        })
    }

    fn tenant(&self, claims: &Claims) -> std::result::Result<Option<Arc<str>>, String> {
        let named = self.settings.tenant_claim.as_deref();
        let claim = named.unwrap_or("tenant");
        match claims.get(claim) {
            Some(Value::String(tenant)) => {
                check_tenant(tenant)?;
                Ok(Some(tenant.as_str().into()))
            }
            // The setting keeps tenants apart. A token without the claim would see all of them.
            None if named.is_some() => {
                Err(format!("it has no claim {claim}, which names the tenant"))
            }
            None => Ok(None),
            Some(_) => Err(format!("its claim {claim} is no text")),
        }
    }

    /// When it is over, by a clock that nobody sets.
    fn until(&self, claims: &Claims) -> Duration {
        let seconds = claims.get("exp").and_then(Value::as_f64).unwrap_or_default();
        let end = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let now = Duration::from_millis(self.clock.wall_ms().unsigned_abs());
        let left = end.saturating_add(Duration::from_secs(LEEWAY_SECONDS)).saturating_sub(now);
        self.clock.uptime().saturating_add(left)
    }
}

fn open(
    path: &Path,
    clock: &SharedClock,
    load: fn(&[u8]) -> Result<KeySet>,
) -> Result<Reloaded<Arc<KeySet>>> {
    let name = format!("key file {}", path.display());
    Reloaded::open(&[path], Arc::clone(clock), move |files| {
        let keys = load(files.first().map_or(&[][..], |file| file));
        keys.map(Arc::new).map_err(|error| Error::invalid(name.clone(), error.to_string()))
    })
}

/// The array is written for us, so all of it must make sense; scopes may be meant for others too.
fn permissions(claims: &Claims) -> std::result::Result<Permissions, String> {
    match (claims.get("permissions"), claims.get("scope")) {
        (Some(Value::Array(texts)), _) => {
            let texts: Option<Vec<_>> = texts.iter().map(Value::as_str).collect();
            let texts = texts.ok_or("its permissions are not all texts")?;
            Permissions::parse(&texts).map_err(|error| error.to_string())
        }
        (Some(_), _) => Err("its permissions are no array".into()),
        (None, Some(Value::String(words))) => Ok(Permissions::parse_known(words.split(' '))),
        (None, Some(_)) => Err("its scope is no text".into()),
        (None, None) => Ok(Permissions::default()),
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::jwk::Jwk;
    use jsonwebtoken::{EncodingKey, encode, get_current_timestamp};
    use tenure::clock::{Clock as _, ManualClock};

    use super::*;
    use crate::Fault;

    struct World {
        dir: tempfile::TempDir,
        clock: ManualClock,
        jwt: Jwt,
        key: EncodingKey,
    }

    impl World {
        fn new() -> Self {
            let pair = rcgen::KeyPair::generate().unwrap();
            let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("keys");
            std::fs::write(&path, document(&key)).unwrap();
            let settings = JwtSettings {
                issuer: "us".into(),
                audience: "tenure".into(),
                hs256_secret_file: None,
                jwks_file: Some(path),
                jwks_url: None,
                tenant_claim: None,
            };
            let clock = ManualClock::new();
            // The claims are checked by the system's clock: ours shows the same.
            clock.step_wall(get_current_timestamp() as i64 * 1000 - clock.wall_ms());
            let shared: SharedClock = Arc::new(clock.clone());
            let jwt = Jwt::new(settings, &shared).unwrap();
            Self { dir, clock, jwt, key }
        }

        fn token(&self, life: u64) -> String {
            let claims = serde_json::json!({
                "iss": "us", "aud": "tenure", "sub": "a", "permissions": ["*"],
                "exp": get_current_timestamp() + life,
            });
            encode(&Header::new(Algorithm::ES256), &claims, &self.key).unwrap()
        }

        async fn refusal(&self, token: &str) -> String {
            match self.jwt.caller(token).await.map_err(|refusal| refusal.fault) {
                Err(Fault::Unauthenticated(reason)) => reason,
                other => panic!("it was not refused: {other:?}"),
            }
        }
    }

    fn document(key: &EncodingKey) -> String {
        let jwk = Jwk::from_encoding_key(key, Algorithm::ES256).unwrap();
        serde_json::json!({ "keys": [jwk] }).to_string()
    }

    #[tokio::test]
    async fn a_token_that_is_known_is_refused_once_it_is_over() {
        let world = World::new();
        let token = world.token(600);
        for _ in 0..3 {
            assert_eq!(world.jwt.caller(&token).await.ok().unwrap().subject(), "a");
        }
        assert!(world.jwt.verified.find(&tokens::sum(&token)).is_some());
        world.clock.advance(Duration::from_secs(600 + LEEWAY_SECONDS + 1));
        assert!(world.refusal(&token).await.contains("expired"));
        assert!(world.jwt.verified.find(&tokens::sum(&token)).is_none());
    }

    #[tokio::test]
    async fn a_token_that_is_known_is_refused_once_its_key_is_gone() {
        let world = World::new();
        let token = world.token(600);
        assert!(world.jwt.caller(&token).await.is_ok());
        let other = World::new();
        std::fs::write(world.dir.path().join("keys"), document(&other.key)).unwrap();
        assert!(world.jwt.caller(&token).await.is_ok(), "looked again too soon");
        world.clock.advance(super::super::reloaded::EVERY);
        assert!(world.refusal(&token).await.contains("not signed by"));
        // And let in again when it is back.
        std::fs::write(world.dir.path().join("keys"), document(&world.key)).unwrap();
        world.clock.advance(super::super::reloaded::EVERY);
        assert!(world.jwt.caller(&token).await.is_ok());
    }
}
