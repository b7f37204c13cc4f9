use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

fn text(pem: String) -> Pem {
    Pem::Text(pem.into_bytes())
}

/// An authority, and certificates that it signed.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key.
    fn issue(&self, name: &str) -> (Pem, Pem) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (text(certificate.pem()), text(key.serialize_pem()))
    }

    fn ca(&self) -> Pem {
        text(self.pem.clone())
    }

    /// A server with this name that speaks `h2` and wants certificates of these clients.
    async fn serve(&self, name: &str, clients: Option<&Self>) -> u16 {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(clients.ca().certificates("CA").unwrap());
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let (certificate, key) = self.issue(name);
        let chain = certificate.certificates("certificate").unwrap();
        let mut config = builder.with_single_cert(chain, key.private_key("key").unwrap()).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"hello").await;
                }
            }
        });
        port
    }
}

/// Connects and listens to what the server says.
async fn hello(tls: &ClientTls, port: u16) -> Result<Option<Vec<u8>>, String> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut stream = tls.connect("localhost", tcp).await.map_err(|error| error.to_string())?;
    let mut said = [0; 5];
    let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut said).await;
    read.map_err(|error| error.to_string())?;
    Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
}

#[tokio::test]
async fn a_server_must_have_a_certificate_of_an_authority_we_trust_and_the_name() {
    let authority = Authority::new("servers");
    let (right, wrong) =
        (authority.serve("localhost", None).await, authority.serve("other.example", None).await);
    let tls = ClientTls::new("tests").ca(authority.ca()).alpn(&[b"h2"]);
    assert_eq!(hello(&tls, right).await.unwrap().as_deref(), Some(&b"h2"[..]));
    assert!(hello(&tls, wrong).await.unwrap_err().contains("not valid for name"));
    assert!(hello(&tls.clone().server_name("other.example"), wrong).await.is_ok());
    let strange = ClientTls::new("tests").ca(Authority::new("others").ca());
    let error = hello(&strange, right).await.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
}

#[tokio::test]
async fn less_is_checked_where_less_is_asked_for() {
    let authority = Authority::new("servers");
    let port = authority.serve("other.example", None).await;
    let tls = ClientTls::new("tests").check(Check::Certificate);
    assert!(hello(&tls.clone().ca(authority.ca()), port).await.is_ok());
    assert!(hello(&tls.ca(Authority::new("others").ca()), port).await.is_err());
    let tls = ClientTls::new("tests").check(Check::Nothing);
    assert!(hello(&tls, port).await.is_ok());
}

#[tokio::test]
async fn a_client_shows_its_certificate() {
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    let port = authority.serve("localhost", Some(&clients)).await;
    let tls = ClientTls::new("tests").ca(authority.ca());
    assert!(hello(&tls, port).await.is_err());
    let (certificate, key) = clients.issue("somebody");
    assert!(hello(&tls.clone().identity(certificate.clone(), key), port).await.is_ok());
    let (_, other) = clients.issue("somebody else");
    let error = hello(&tls.clone().identity(certificate, other), port).await.unwrap_err();
    assert!(error.contains("client certificate"), "{error}");
    let (certificate, key) = authority.issue("stranger");
    assert!(hello(&tls.identity(certificate, key), port).await.is_err());
}

#[test]
fn the_name_to_prove_is_the_host_unless_another_is_given() {
    let shown = |tls: &ClientTls, host: &str| format!("{:?}", tls.name(host).unwrap());
    let tls = ClientTls::new("tests");
    assert!(shown(&tls, "one.example").contains("one.example"));
    assert!(shown(&tls, "[::1]").contains("IpAddress"));
    let named = tls.clone().server_name("other.example");
    assert!(shown(&named, "127.0.0.1").contains("other.example"));
    let error = tls.name("not a name").unwrap_err().to_string();
    assert!(error.contains("\"not a name\" for TLS to tests"), "{error}");
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let says = |tls: ClientTls| tls.config().unwrap_err().to_string();
    let tls = ClientTls::new("tests");
    assert!(says(tls.clone().ca(Pem::Text(b"nothing".to_vec()))).contains("no certificate"));
    assert!(says(tls.clone().ca(Pem::File("/nowhere".into()))).contains("/nowhere"));
    let (certificate, _) = Authority::new("others").issue("a");
    let tls = tls.check(Check::Nothing).identity(certificate, Pem::Text(b"secret".to_vec()));
    let said = says(tls.clone());
    assert!(said.contains("client key") && !said.contains("secret"), "{said}");
    assert!(!format!("{tls:?}").contains("secret"));
}

#[test]
fn files_are_read_each_time_and_what_is_of_no_use_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let tls = ClientTls::new("tests").ca(Pem::File(file.clone()));
    assert!(tls.config().unwrap_err().to_string().contains("ca.pem"));
    let renew = || {
        std::fs::write(&file, Authority::new("others").pem).unwrap();
        tls.config().unwrap()
    };
    let (first, second) = (renew(), renew());
    assert!(!Arc::ptr_eq(&first, &second));
    std::fs::write(&file, "half of a certifica").unwrap();
    assert!(Arc::ptr_eq(&second, &tls.config().unwrap()));
    // Clones share what they know, until they are told something else.
    assert!(Arc::ptr_eq(&second, &tls.clone().config().unwrap()));
    assert!(tls.clone().alpn(&[b"h2"]).config().is_err());
}
