//! A server with TLS on a free port of loopback, people who issue certificates, and a client.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use tenure::random::SystemRandom;
use tenure::store::Store;
use tenure::store::memory::MemoryStore;
use tenure_client::{Options, ServerStore};
use tenure_proto::v1;
use tenure_proto::v1::store_client::StoreClient;
use tenure_server::auth::{AuthSettings, Authenticator, MtlsSettings, tls, tokens};
use tenure_server::{Server, Shutdown};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// Somebody who issues certificates.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Ca {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key, in PEM.
    pub(crate) fn issue(&self, common: &str, names: Vec<SanType>) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common);
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn for_server(&self) -> (String, String) {
        let name = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        self.issue("server", vec![name("localhost"), address])
    }

    pub(crate) fn for_client(&self, uri: &str) -> Identity {
        let (certificate, key) = self.issue("client", vec![SanType::URI(uri.try_into().unwrap())]);
        Identity::from_pem(certificate, key)
    }
}

/// A running server and its files. It ends when this is dropped.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) ca: Ca,
    pub(crate) address: SocketAddr,
    pub(crate) authenticator: Authenticator,
    shutdown: Shutdown,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

impl Rig {
    /// With the token file's text, and what else is set.
    pub(crate) async fn start(
        list: Option<&str>,
        more: impl FnOnce(&Path, &mut AuthSettings),
    ) -> Self {
        Self::start_with(list, more, Authenticator::new).await
    }

    pub(crate) async fn start_with(
        list: Option<&str>,
        more: impl FnOnce(&Path, &mut AuthSettings),
        make: impl FnOnce(AuthSettings) -> tenure::Result<Authenticator>,
    ) -> Self {
        capture();
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::new();
        let mut settings = AuthSettings::default();
        if let Some(list) = list {
            write(dir.path().join("tokens.toml"), list);
            settings.token_file = Some(dir.path().join("tokens.toml"));
        }
        write(dir.path().join("ca.pem"), &ca.pem);
        let (certificate, key) = ca.for_server();
        write(dir.path().join("server.pem"), &certificate);
        write(dir.path().join("server.key"), &key);
        more(dir.path(), &mut settings);
        let config = tls::server_config(
            &dir.path().join("server.pem"),
            &dir.path().join("server.key"),
            settings.mtls.as_ref(),
        );
        let authenticator = make(settings).unwrap();
        let shutdown = Shutdown::default();
        let server = Server::builder(MemoryStore::new().into_store())
            .authenticator(authenticator.clone())
            .tls(config.unwrap())
            .shutdown(shutdown.clone())
            .grace(Duration::from_secs(1))
            .build();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(server.unwrap().serve(listener));
        Self { dir, ca, address, authenticator, shutdown }
    }

    /// The file that lists who may come in.
    pub(crate) fn list(&self, text: &str) {
        write(self.dir.path().join("tokens.toml"), text);
    }

    /// Somebody with or without a token.
    pub(crate) async fn client(&self, token: Option<&str>) -> Client {
        self.connect(token, None).await.unwrap()
    }

    /// The server as a store, to run the library on.
    pub(crate) async fn store(&self, token: &str) -> Store {
        self.store_with(|options| options.token(token)).await
    }

    pub(crate) async fn store_with(&self, more: impl FnOnce(Options) -> Options) -> Store {
        let options = Options::new(&format!("https://{}", self.address)).unwrap();
        let options = more(options.ca(self.ca.pem.as_str()));
        ServerStore::open(options).await.unwrap().into_store()
    }

    /// Somebody with or without a token and a certificate.
    pub(crate) async fn connect(
        &self,
        token: Option<&str>,
        identity: Option<Identity>,
    ) -> Result<Client, tonic::transport::Error> {
        let mut tls = ClientTlsConfig::new()
            .domain_name("localhost")
            .ca_certificate(Certificate::from_pem(&self.ca.pem));
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let url = format!("https://{}", self.address);
        let endpoint = Endpoint::from_shared(url)?.tls_config(tls)?;
        let channel = endpoint.connect_timeout(Duration::from_secs(5)).connect().await?;
        let store = StoreClient::new(channel.clone());
        Ok(Client { store, channel, token: token.map(Into::into) })
    }
}

pub(crate) fn write(path: PathBuf, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// Client certificates of the rig's own issuer count.
pub(crate) fn mtls(dir: &Path, required: bool) -> Option<MtlsSettings> {
    Some(MtlsSettings { client_ca: dir.join("ca.pem"), required })
}

/// A token, and the entry that lists it.
pub(crate) fn token(name: &str, permissions: &[&str]) -> (String, String) {
    let (token, sum) = tokens::mint(&SystemRandom);
    let entry =
        format!("[[token]]\nname = {name:?}\nsha256 = {sum:?}\npermissions = {permissions:?}\n");
    (token, entry)
}

/// A client of the objects, which is all that permissions need to be tried on.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) store: StoreClient<Channel>,
    pub(crate) channel: Channel,
    pub(crate) token: Option<String>,
}

pub(crate) fn key(kind: &str, id: &str) -> Option<v1::Key> {
    Some(v1::Key { kind: kind.into(), id: id.into() })
}

impl Client {
    pub(crate) fn with<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    /// The same connection with another token.
    pub(crate) fn as_with(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    pub(crate) async fn get(&self, kind: &str, id: &str) -> Result<bool, Status> {
        let request = self.with(v1::GetRequest { key: key(kind, id) });
        Ok(self.store.clone().get(request).await?.into_inner().object.is_some())
    }

    pub(crate) async fn list(&self, kind: &str, prefix: &str) -> Result<(), Status> {
        let (kind, prefix) = (kind.into(), prefix.into());
        let request = self.with(v1::ListRequest { kind, prefix, ..v1::ListRequest::default() });
        self.store.clone().list(request).await.map(drop)
    }

    pub(crate) async fn watch(&self, kind: Option<&str>, prefix: &str) -> Result<(), Status> {
        let (kind, prefix) = (kind.map(Into::into), prefix.into());
        let request = self.with(v1::WatchRequest { kind, prefix, after: None });
        self.store.clone().watch(request).await.map(drop)
    }

    /// Puts objects in one commit, each expecting anything.
    pub(crate) async fn put(&self, keys: &[(&str, &str)]) -> Result<(), Status> {
        self.put_expecting(keys, None).await
    }

    pub(crate) async fn put_expecting(
        &self,
        keys: &[(&str, &str)],
        expect: Option<v1::Expect>,
    ) -> Result<(), Status> {
        self.put_saying(keys, expect, "{}").await
    }

    pub(crate) async fn put_saying(
        &self,
        keys: &[(&str, &str)],
        expect: Option<v1::Expect>,
        payload: &'static str,
    ) -> Result<(), Status> {
        let put = |(kind, id): &(&str, &str)| {
            let (key, payload) = (key(kind, id), payload.into());
            v1::write::Write::Put(v1::Put { key, expect, payload, ..v1::Put::default() })
        };
        self.commit(keys.iter().map(put).collect()).await
    }

    pub(crate) async fn delete(
        &self,
        kind: &str,
        id: &str,
        expect: Option<v1::Expect>,
    ) -> Result<(), Status> {
        let delete = v1::Delete { key: key(kind, id), expect };
        self.commit(vec![v1::write::Write::Delete(delete)]).await
    }

    pub(crate) async fn commit(&self, writes: Vec<v1::write::Write>) -> Result<(), Status> {
        let writes = writes.into_iter().map(|write| v1::Write { write: Some(write) }).collect();
        let request = v1::CommitRequest { checks: vec![], writes };
        self.store.clone().commit(self.with(request)).await.map(drop)
    }
}

/// Waits until it is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let patience = tokio::time::timeout(Duration::from_secs(30), async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    patience.await.unwrap_or_else(|_| panic!("never came to pass: {what}"));
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Everything our own code logs, at every level, of all tests of this program.
pub(crate) fn capture() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("audit=trace,tenure=trace,tenure_server=trace")
            .with_ansi(false)
            .with_writer(|| Log)
            .finish();
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

/// All lines so far that have all these words in them.
pub(crate) fn logged(words: &[&str]) -> Vec<String> {
    let log = Arc::new(String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned());
    let fits = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(fits).map(Into::into).collect()
}
