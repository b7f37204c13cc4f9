//! Opening a connection: TCP, TLS where it is wanted, and who we are.

use std::collections::HashSet;
use std::sync::Arc;

use async_nats::{Client, ServerAddr};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::BytesMut;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tenure::random::{Random, SystemRandom, below};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::parse::{self, Info, Nonsense, Said};
use crate::credentials::Credentials;
use crate::options::Options;
use crate::url::{Login, Target};

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection that a server has taken, with what came on it already.
pub(crate) struct Connected {
    pub(crate) io: Box<dyn Io>,
    pub(crate) came: BytesMut,
    pub(crate) max_payload: usize,
}

/// Where to connect to, and as whom.
pub(crate) struct Dial {
    given: Vec<ServerAddr>,
    /// Knows the servers that the given ones know.
    library: Client,
    login: Login,
    credentials: Option<Arc<Credentials>>,
    options: Options,
    name: String,
    /// The server that was tried last.
    last: Option<ServerAddr>,
}

impl Dial {
    pub(crate) fn new(
        target: &Target,
        options: &Options,
        credentials: Option<Arc<Credentials>>,
        library: &Client,
    ) -> Self {
        Self {
            given: target.servers.iter().filter_map(|server| server.parse().ok()).collect(),
            library: library.clone(),
            login: target.login.clone(),
            credentials,
            options: options.clone(),
            name: format!("tenure {} requests", target.bucket),
            last: None,
        }
    }

    /// Where answers go, with a number behind it.
    pub(crate) fn inbox(&self) -> String {
        format!("{}.", self.library.new_inbox())
    }

    /// Connects to another server than the last time, if there is one.
    pub(crate) async fn next(&mut self, inbox: &str) -> Result<Connected, String> {
        let servers = self.servers();
        let server = another(&servers, self.last.as_ref(), &SystemRandom);
        let server = server.ok_or("there is no server")?;
        self.last = Some(server.clone());
        let connected = self.connect(&server, inbox).await;
        connected.map_err(|why| format!("{}:{}: {why}", server.host(), server.port()))
    }

    /// Those that were given, and those that they know of.
    fn servers(&self) -> Vec<ServerAddr> {
        let told = self.library.server_info().connect_urls;
        let told = told.iter().filter_map(|server| server.parse().ok());
        let mut seen = HashSet::new();
        let mut all: Vec<ServerAddr> = self.given.iter().cloned().chain(told).collect();
        all.retain(|server| seen.insert((server.host().to_owned(), server.port())));
        all
    }

    async fn connect(&self, server: &ServerAddr, inbox: &str) -> Result<Connected, String> {
        let tcp = self.reach(server).await?;
        self.in_time(self.greet(server, tcp, inbox)).await
    }

    /// The first of its addresses that answers.
    async fn reach(&self, server: &ServerAddr) -> Result<TcpStream, String> {
        let place = (server.host().to_owned(), server.port());
        let looking = async { tokio::net::lookup_host(place).await.map_err(|e| e.to_string()) };
        let mut why = "it has no address".to_owned();
        for address in self.in_time(looking).await? {
            let connecting =
                async { TcpStream::connect(address).await.map_err(|error| error.to_string()) };
            match self.in_time(connecting).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let patience = self.options.connect_timeout;
        let done = tokio::time::timeout(patience, work).await;
        done.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")))
    }

    async fn greet(
        &self,
        server: &ServerAddr,
        mut tcp: TcpStream,
        inbox: &str,
    ) -> Result<Connected, String> {
        tcp.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut came = BytesMut::new();
        let Said::Info(info) = hear(&mut tcp, &mut came, inbox).await? else {
            return Err("it does not begin as a NATS server does".into());
        };
        let mut io: Box<dyn Io> = match info.tls_required || self.options.tls {
            false => Box::new(tcp),
            // Nothing that came unencrypted may pass for something that did not.
            true if !came.is_empty() => return Err("it goes on before it is encrypted".into()),
            true => Box::new(self.encrypt(server, tcp).await?),
        };
        let hello = self.hello(&info)?;
        let begin = format!("CONNECT {hello}\r\nSUB {inbox}* 1\r\nPING\r\n");
        io.write_all(begin.as_bytes()).await.map_err(|error| error.to_string())?;
        io.flush().await.map_err(|error| error.to_string())?;
        loop {
            match hear(&mut io, &mut came, inbox).await? {
                Said::Pong => break,
                Said::Error(why) => return Err(why),
                Said::Info(info) if info.ldm => return Err("it is about to end".into()),
                _ => {}
            }
        }
        Ok(Connected { io, came, max_payload: info.max_payload })
    }

    /// Who we are, and what we understand.
    fn hello(&self, info: &Info) -> Result<serde_json::Value, String> {
        let mut hello = json!({
            "verbose": false, "pedantic": false, "lang": "rust", "version": env!("CARGO_PKG_VERSION"),
            "name": self.name, "protocol": 1, "headers": true, "no_responders": true, "echo": false,
            "tls_required": info.tls_required || self.options.tls,
        });
        match (&self.credentials, &self.login) {
            (Some(credentials), _) => {
                let (claim, signature) = credentials.sign(info.nonce.as_bytes())?;
                hello["jwt"] = json!(claim);
                hello["sig"] = json!(URL_SAFE_NO_PAD.encode(signature));
            }
            (None, Login::None) => {}
            (None, Login::Token(token)) => hello["auth_token"] = json!(token),
            (None, Login::Password(user, password)) => {
                (hello["user"], hello["pass"]) = (json!(user), json!(password));
            }
        }
        Ok(hello)
    }

    async fn encrypt(
        &self,
        server: &ServerAddr,
        tcp: TcpStream,
    ) -> Result<impl Io + 'static, String> {
        let options = self.options.clone();
        // Files are read each time: certificates end before programs do.
        let made = tokio::task::spawn_blocking(move || trust(&options)).await;
        let config = made.map_err(|error| error.to_string())??;
        let name = ServerName::try_from(server.host().to_owned()).map_err(|e| e.to_string())?;
        let encrypting = TlsConnector::from(Arc::new(config)).connect(name, tcp);
        encrypting.await.map_err(|error| error.to_string())
    }
}

/// Any but the last, if there is another: those who leave one server do not all go to the same one.
fn another(
    servers: &[ServerAddr],
    last: Option<&ServerAddr>,
    random: &dyn Random,
) -> Option<ServerAddr> {
    let others: Vec<&ServerAddr> = servers.iter().filter(|server| Some(*server) != last).collect();
    let place = below(random, u64::try_from(others.len()).unwrap_or(1).max(1));
    let other = others.get(usize::try_from(place).unwrap_or(0)).copied();
    other.or(servers.first()).cloned()
}

/// The next thing that the server says.
async fn hear(
    io: &mut (impl AsyncRead + Unpin),
    came: &mut BytesMut,
    inbox: &str,
) -> Result<Said, String> {
    loop {
        match parse::next(came, inbox) {
            Ok(Some(said)) => return Ok(said),
            Ok(None) => {}
            Err(Nonsense) => return Err("what it says makes no sense".into()),
        }
        if io.read_buf(came).await.map_err(|error| error.to_string())? == 0 {
            return Err("it has closed the connection".into());
        }
    }
}

/// Whom to trust, and what to show.
fn trust(options: &Options) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(match &options.root_certificates {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    });
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &options.client_certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let key = PrivateKeyDer::from_pem_file(key).map_err(|e| format!("{}: {e}", key.display()))?;
    builder.with_client_auth_cert(certificates(certificate)?, key).map_err(|e| e.to_string())
}

fn certificates(file: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let named = |error| format!("{}: {error}", file.display());
    CertificateDer::pem_file_iter(file).map_err(named)?.map(|one| one.map_err(named)).collect()
}

#[cfg(test)]
mod tests {
    use tenure::random::SeededRandom;

    use super::*;

    #[test]
    fn another_server_is_any_but_the_last() {
        let servers: Vec<ServerAddr> =
            ["a", "b:7", "c"].iter().map(|s| s.parse().unwrap()).collect();
        let random = SeededRandom::new(7);
        let from = |last| -> HashSet<String> {
            let one = |_| another(&servers, last, &random).unwrap().host().to_owned();
            (0..100).map(one).collect()
        };
        assert_eq!(from(None).len(), 3);
        let others = from(servers.first());
        assert!(others.len() == 2 && !others.contains("a"), "{others:?}");
        let alone = &servers[..1];
        assert_eq!(another(alone, servers.first(), &random).as_ref(), servers.first());
        assert_eq!(another(&[], servers.first(), &random), None);
    }
}
