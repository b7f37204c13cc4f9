//! Who asks, and what they may do.
//!
//! Without settings everybody may do everything, which is for loopback only: [`check_exposure`]. With
//! them, a caller shows a token that is listed in a file ([`tokens`]), a token that somebody we trust has
//! signed, or a client certificate; what it may do is in [`Permissions`]. Probes need no credentials.

mod access;
pub(crate) mod audit;
pub(crate) mod browser;
mod caller;
mod certificate;
mod fetch;
mod jwks;
mod jwt;
mod keys;
mod permission;
mod reloaded;
mod settings;
pub mod tls;
pub mod tokens;
mod verified;

pub use caller::{Action, Caller};
pub use permission::{Permission, Permissions};
pub use settings::{AuthSettings, JwtSettings, MtlsSettings, check_exposure};

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, header};
use tenure::clock::{SharedClock, SystemClock};
use tenure::{Error, Result};

use self::access::{Access, Who};
use self::audit::Failures;
use self::jwt::Jwt;
use self::reloaded::Reloaded;
use crate::Fault;

/// The longest token that is looked at.
const TOKEN_BYTES: usize = 16 * 1024;

/// Finds out who asks. Cheap to clone. The default asks nobody: everybody may do everything.
#[derive(Clone, Default)]
pub struct Authenticator {
    methods: Option<Arc<Methods>>,
}

struct Methods {
    list: Option<Arc<Reloaded<Access>>>,
    jwt: Option<Jwt>,
    certificates: bool,
    failures: Failures,
    clock: SharedClock,
}

impl Authenticator {
    /// One that works by these settings, of which at least one is set.
    pub fn new(settings: AuthSettings) -> Result<Self> {
        Self::with_clock(settings, SystemClock::shared())
    }

    /// The same, by another clock.
    pub fn with_clock(settings: AuthSettings, clock: SharedClock) -> Result<Self> {
        let wrong = |reason: &str| Err(Error::invalid("auth settings", reason));
        if !settings.is_on() {
            return wrong("no way to find out who asks is set; set token_file, jwt or mtls");
        }
        if settings.mtls.is_some() && settings.token_file.is_none() {
            return wrong(
                "mtls needs a token_file with the permissions of [[certificate]] subjects",
            );
        }
        let list = settings.token_file.map(|path| Access::open(&path, &clock)).transpose()?;
        let jwt = settings.jwt.map(|jwt| Jwt::new(jwt, &clock)).transpose()?;
        let methods = Methods {
            list: list.map(Arc::new),
            jwt,
            certificates: settings.mtls.is_some(),
            failures: Failures::default(),
            clock,
        };
        Ok(Self { methods: Some(Arc::new(methods)) })
    }

    /// Whether callers have to say who they are.
    pub fn is_on(&self) -> bool {
        self.methods.is_some()
    }

    /// How often somebody was turned away since the start.
    pub fn failures(&self) -> u64 {
        self.methods.as_ref().map_or(0, |methods| methods.failures.count())
    }

    /// The caller of this path, if it may use the path at all. What it may do there is checked with each
    /// thing that it does.
    pub async fn admit(
        &self,
        path: &str,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<Caller, Fault> {
        if !self.is_on() {
            return Ok(Caller::anybody().at(peer.address));
        }
        match Demand::of(path) {
            Demand::Nothing => Ok(Caller::nobody().at(peer.address)),
            Demand::Name => self.caller(headers, peer).await,
            Demand::Permission(action, resource) => {
                let caller = self.caller(headers, peer).await?;
                if caller.may(action, resource) {
                    return Ok(caller);
                }
                audit::denied(&caller, action, resource);
                Err(caller.denial(action, resource))
            }
        }
    }

    /// The caller behind a request: from its headers, and from the certificate its connection showed.
    pub async fn caller(&self, headers: &HeaderMap, peer: &Peer) -> Result<Caller, Fault> {
        let Some(methods) = &self.methods else {
            return Ok(Caller::anybody().at(peer.address));
        };
        methods.identify(headers, peer).await.map(|it| it.at(peer.address)).map_err(|refusal| {
            let Refusal { subject, fault } = refusal;
            if let Fault::Unauthenticated(reason) = &fault {
                methods.failures.add(&methods.clock, subject.as_deref(), peer.address, reason);
            }
            fault
        })
    }
}

impl Methods {
    /// A token counts before a certificate; a wrong one is not made good by the other.
    async fn identify(&self, headers: &HeaderMap, peer: &Peer) -> Result<Caller, Refusal> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        match (given.next(), given.next(), &peer.certificate) {
            (Some(_), Some(_), _) => {
                Err(Refusal::of("there is more than one authorization header"))
            }
            (Some(given), None, _) => self.bearer(given).await,
            (None, _, Some(certificate)) if self.certificates => self.certificate(certificate),
            _ if self.certificates => Err(Refusal::of(
                "this server wants to know who asks; connect with a client certificate, or send the \
                 header authorization: Bearer TOKEN",
            )),
            _ => Err(Refusal::of(
                "this server wants to know who asks; send the header authorization: Bearer TOKEN",
            )),
        }
    }

    async fn bearer(&self, given: &http::HeaderValue) -> Result<Caller, Refusal> {
        let token = given.to_str().ok().and_then(|text| text.split_once(' '));
        let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some(token) = token.map(|(_, token)| token.trim()) else {
            return Err(Refusal::of("the authorization header must read Bearer TOKEN"));
        };
        if token.len() > TOKEN_BYTES {
            return Err(Refusal::of("the token is too long"));
        }
        if let Some(list) = &self.list {
            let who = Who::Token(tokens::sum(token));
            if let Some(entry) = list.current().find(&who) {
                return Ok(Caller::listed(&entry.name, entry, list, who));
            }
        }
        match &self.jwt {
            // Apart, so that calls without one do not carry along what it takes to fetch keys.
            Some(jwt) if !token.starts_with(tokens::PREFIX) => Box::pin(jwt.caller(token)).await,
            _ => Err(Refusal::of("the token is not known; it may have been taken back")),
        }
    }

    fn certificate(
        &self,
        shown: &rustls::pki_types::CertificateDer<'_>,
    ) -> Result<Caller, Refusal> {
        let Some(subject) = certificate::subject(shown) else {
            return Err(Refusal::of("the client certificate has no name that could be read"));
        };
        access::check_subject(&subject).map_err(Refusal::of)?;
        let who = Who::Certificate(Arc::clone(&subject));
        let list = self.list.as_ref().ok_or_else(|| Refusal::of("no certificates are listed"))?;
        let current = list.current();
        let Some(entry) = current.find(&who) else {
            let reason = format!("no [[certificate]] in the server's token file fits {subject}");
            return Err(Refusal::of(reason).by(&subject));
        };
        Ok(Caller::listed(&subject, entry, list, who))
    }
}

impl fmt::Debug for Authenticator {
    /// Which ways are on; nothing that anybody could come in with.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(methods) = &self.methods else { return f.write_str("Authenticator(off)") };
        f.debug_struct("Authenticator")
            .field("list", &methods.list)
            .field("jwt", &methods.jwt.is_some())
            .field("certificates", &methods.certificates)
            .finish_non_exhaustive()
    }
}

/// Why somebody is turned away, and who it is as far as that is proved.
struct Refusal {
    subject: Option<String>,
    fault: Fault,
}

impl Refusal {
    fn of(reason: impl Into<String>) -> Self {
        Self { subject: None, fault: Fault::Unauthenticated(reason.into()) }
    }

    fn by(mut self, subject: &str) -> Self {
        self.subject = Some(subject.into());
        self
    }
}

impl From<Error> for Refusal {
    /// Nobody's fault but ours.
    fn from(error: Error) -> Self {
        Self { subject: None, fault: error.into() }
    }
}

/// What a path demands of its callers: the one place that says so.
enum Demand {
    /// Probes come without credentials, and learn nothing but whether the server works.
    Nothing,
    /// It must be somebody we know.
    Name,
    /// It must be allowed this.
    Permission(Action, &'static str),
}

impl Demand {
    fn of(path: &str) -> Self {
        match path {
            "/healthz" | "/readyz" => Self::Nothing,
            "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => Self::Nothing,
            "/metrics" => Self::Permission(Action::ServerObserve, "metrics"),
            _ => Self::Name,
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it connects from.
    pub address: SocketAddr,
    /// The certificate it showed and proved, if mutual TLS is on.
    pub certificate: Option<rustls::pki_types::CertificateDer<'static>>,
}
