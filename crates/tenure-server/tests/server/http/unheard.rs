//! Whoever is refused in HTTP/2 before it has sent its body hears the answer.
//!
//! Spoken frame by frame: what is asked here is whether the server resets a stream, and clients hide that.

use std::time::Duration;

use tenure::random::SystemRandom;
use tenure::store::memory::MemoryStore;
use tenure_server::ServerLimits;
use tenure_server::auth::{AuthSettings, Authenticator, tokens};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::place::{PATIENCE, Place};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

struct Http2(TcpStream);

impl Http2 {
    async fn open(place: &Place) -> Self {
        let mut stream = TcpStream::connect(place.address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut this = Self(stream);
        this.write(SETTINGS, 0, 0, &[]).await;
        this
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    async fn read(&mut self) -> Frame {
        let reading = async {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut payload).await.unwrap();
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            Frame { kind: head[3], flags: head[4], stream }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("a frame in time")
    }

    /// Begins a request whose body is still to come.
    async fn begin(&mut self, path: &str, length: &str) {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        // POST over http by the numbers of the static table, the rest spelt out.
        let block = [
            vec![0x83, 0x86, 0x04],
            text(path),
            vec![0x01],
            text("tenure"),
            vec![0x00],
            text("content-length"),
            text(length),
        ];
        self.write(HEADERS, END_HEADERS, 1, &block.concat()).await;
    }

    /// What the server sends on the stream until it has answered a ping, which comes after all that it
    /// sent before.
    async fn sent(&mut self) -> Vec<Frame> {
        self.write(PING, 0, 0, &[7; 8]).await;
        let mut sent = Vec::new();
        loop {
            let frame = self.read().await;
            if frame.kind == PING && frame.flags & ACK != 0 {
                return sent;
            }
            if frame.stream == 1 {
                sent.push(frame);
            }
        }
    }

    /// Until the answer is whole.
    async fn answered(&mut self) -> Vec<Frame> {
        let mut sent = Vec::new();
        loop {
            let frame = self.read().await;
            if frame.stream == 1 {
                let last = frame.kind == RST_STREAM || frame.flags & END_STREAM != 0;
                sent.push(frame);
                if last {
                    return sent;
                }
            }
        }
    }
}

async fn guarded() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("tokens.toml");
    let (_, sum) = tokens::mint(&SystemRandom);
    let entry = format!("[[token]]\nname = \"a\"\nsha256 = {sum:?}\npermissions = []\n");
    std::fs::write(&list, entry).unwrap();
    let settings = AuthSettings { token_file: Some(list), ..AuthSettings::default() };
    let authenticator = Authenticator::new(settings).unwrap();
    let store = MemoryStore::new().into_store();
    Place::guarded(store, ServerLimits::default(), authenticator).await
}

#[tokio::test]
async fn whoever_is_refused_sends_its_small_body_and_hears_the_answer() {
    // Not known, and where there is nothing: neither reads a body.
    for (place, path) in
        [(guarded().await, "/v1/leases/acquire"), (Place::memory().await, "/v1/no")]
    {
        let mut client = Http2::open(&place).await;
        client.begin(path, "6").await;
        // Time enough for a server that does not wait to answer, and to reset the stream.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut sent = client.sent().await;
        client.write(DATA, 0, 1, b"abc").await;
        client.write(DATA, END_STREAM, 1, b"def").await;
        if !sent.iter().any(|frame| frame.flags & END_STREAM != 0) {
            sent.extend(client.answered().await);
        }
        sent.extend(client.sent().await);
        assert!(sent.iter().any(|frame| frame.kind == HEADERS), "{path}: no answer");
        assert!(sent.iter().all(|frame| frame.kind != RST_STREAM), "{path}: it is reset");
    }
}

#[tokio::test]
async fn whoever_announces_much_or_sends_nothing_is_not_waited_for() {
    let place = guarded().await;
    for length in ["100000000", "6"] {
        let mut client = Http2::open(&place).await;
        client.begin("/v1/leases/acquire", length).await;
        let sent = client.answered().await;
        assert!(sent.iter().any(|frame| frame.kind == HEADERS), "no answer to {length}");
    }
}

/// A third of these were lost on the way when the stream was reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_hears_every_refusal() {
    let place = guarded().await;
    let url = format!("http://{}/v1/leases/acquire", place.address);
    for attempt in 0..40 {
        let body = r#"{"scope": "a/b", "owner": "me"}"#;
        let arguments = ["-s", "--http2-prior-knowledge", "-d", body, &url];
        let told = tokio::process::Command::new("curl").args(arguments).output().await.unwrap();
        let said = String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success(), "attempt {attempt}: {}", told.status);
        assert!(said.contains("unauthenticated"), "attempt {attempt}: {said}");
    }
}
