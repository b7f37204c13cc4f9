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
        let server = next(&self.servers(), self.last.as_ref()).ok_or("there is no server")?;
        self.last = Some(server.clone());
        let patience = self.options.connect_timeout;
        let connected = tokio::time::timeout(patience, self.connect(&server, inbox)).await;
        let connected = connected.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")));
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
        let address = (server.host().to_owned(), server.port());
        let mut tcp = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        tcp.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut came = BytesMut::new();
        let Said::Info(info) = hear(&mut tcp, &mut came, inbox).await? else {
            return Err("it does not begin as a NATS server does".into());
        };
        let mut io: Box<dyn Io> = match info.tls_required || self.options.tls {
            false => Box::new(tcp),
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
        match &self.login {
            Login::None => {}
            Login::Token(token) => hello["auth_token"] = json!(token),
            Login::Password(user, password) => {
                (hello["user"], hello["pass"]) = (json!(user), json!(password));
            }
        }
        if let Some(credentials) = &self.credentials {
            let (claim, signature) = credentials.sign(info.nonce.as_bytes())?;
            hello["jwt"] = json!(claim);
            hello["sig"] = json!(URL_SAFE_NO_PAD.encode(signature));
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

/// The one after the last, around.
fn next(servers: &[ServerAddr], last: Option<&ServerAddr>) -> Option<ServerAddr> {
    let place = |last| servers.iter().position(|server| server == last);
    let after = last.and_then(place).map_or(0, |place| place + 1);
    servers.get(after).or(servers.first()).cloned()
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
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = &options.root_certificates {
        roots.add_parsable_certificates(certificates(file)?);
    }
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
    use super::*;

    #[test]
    fn all_servers_have_their_turn() {
        let servers: Vec<ServerAddr> =
            ["a", "b:7", "c"].iter().map(|s| s.parse().unwrap()).collect();
        let mut last = None;
        let mut tried = Vec::new();
        for _ in 0..4 {
            last = next(&servers, last.as_ref());
            tried.extend(last.as_ref().map(|server| server.host().to_owned()));
        }
        assert_eq!(tried, ["a", "b", "c", "a"]);
        // One that is not known any more.
        let gone: ServerAddr = "d".parse().unwrap();
        assert_eq!(next(&servers, Some(&gone)), servers.first().cloned());
        assert_eq!(next(&[], Some(&gone)), None);
    }
}
