//! Turns the failure of a connection into advice.
//!
//! Only where the connection is refused there is no server. Everything else is a mistake in the address, a
//! certificate, or a file that was not named. The layers below report failures as text only, so the text is
//! what is matched. Tests provoke each of these with real servers.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::connect::NO_HTTP2;

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How HTTP/2 begins, with settings of which there are none.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// What a probe has found.
const SPEAKS_TLS: &str = "it speaks TLS";
const SPEAKS_OTHERWISE: &str = "it does not speak as a server of Tenure does";

/// What is wrong with a server that failed with this text, and what to do; `None` if nothing listens there.
pub(crate) fn explain(server: &str, why: &str) -> Option<String> {
    let (scheme, place) = server.split_once("://").unwrap_or(("http", server));
    let has = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if has(&["Connection refused"]) {
        return None;
    }
    Some(if has(&["UnknownIssuer", "self-signed"]) {
        format!(
            "the certificate of {place} is by an authority that is not known here; name it with --ca FILE or \
             TENURE_CA (in a program, Options::ca)"
        )
    } else if has(&["not valid for name"]) {
        format!(
            "{place} is not who its certificate says ({why}); use a name that is in the certificate"
        )
    } else if has(&["CaUsedAsEndEntity"]) {
        format!(
            "the certificate of {place} is an authority's own, which no server may show; make one that is not \
             (with openssl, -addext basicConstraints=critical,CA:FALSE), or have the authority sign one"
        )
    } else if has(&["peer certificate"]) {
        format!("the certificate of {place} is not accepted ({why}); renew it")
    } else if scheme == "https" && has(&["InvalidContentType", "corrupt message"]) {
        format!("{place} does not speak TLS; write http://{place}")
    } else if has(&[SPEAKS_TLS]) {
        format!("{place} speaks TLS; write https://{place}")
    } else if has(&[SPEAKS_OTHERWISE, NO_HTTP2]) {
        format!("what listens on {place} is no server of Tenure; is the port right?")
    } else if has(&["dns error", "failed to lookup"]) {
        format!("the name in {place} is not known; is it spelled right?")
    } else if why.is_empty() || has(&["timed out", "in time"]) {
        format!(
            "{place} does not answer; is the address right, and is the server stuck or out of reach?"
        )
    } else {
        format!("{place} cannot be spoken to ({why}); is it a server of Tenure?")
    })
}

/// Connects to a server without TLS that was reached and not understood, and tells what listens there.
pub(crate) async fn probe(server: &str, why: &str) -> Option<&'static str> {
    let place = server.strip_prefix("http://")?;
    let unreached = ["Connection refused", "dns error", "failed to lookup", "timed out", "in time"];
    if why.is_empty() || unreached.iter().any(|word| why.contains(word)) {
        return None;
    }
    let probing = async {
        let mut there = TcpStream::connect(place).await?;
        there.write_all(GREETING).await?;
        let mut answer = [0; 4];
        there.read_exact(&mut answer).await.map(|_| answer)
    };
    match tokio::time::timeout(PROBE_TIMEOUT, probing).await {
        // An alert of TLS, or a handshake.
        Ok(Ok([0x15 | 0x16, ..])) => Some(SPEAKS_TLS),
        // The settings with which HTTP/2 begins: it may well be one of ours, and have another trouble.
        Ok(Ok([.., 4])) => None,
        Ok(Ok(_)) => Some(SPEAKS_OTHERWISE),
        Ok(Err(_)) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_nobody_listens_there_is_no_server() {
        let server = "http://a:1";
        let refused = "tcp connect error: transport error: Connection refused (os error 111)";
        assert_eq!(explain(server, refused), None);
        for other in ["", "connection reset", "operation timed out", "dns error: nothing"] {
            let told = explain(server, other).expect("an explanation");
            assert!(told.contains("a:1") && !told.contains("tenure serve"), "{told}");
        }
    }
}
