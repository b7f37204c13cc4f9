//! Where the keys of signed tokens are fetched from: one URL that nobody else can answer for.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use tenure_net::fetch::Fetch;
use tenure_net::tls::ClientTls;

/// From the name's address to the last byte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Sets of keys have a few thousand.
const MAX_BYTES: usize = 1024 * 1024;
/// What TLS is for, in errors.
const PURPOSE: &str = "the keys of signed tokens";

/// Where to get them.
pub(super) struct Source {
    uri: Uri,
    fetch: Fetch,
}

impl Source {
    /// Refuses a URL that others could answer in its place.
    pub(super) fn new(uri: Uri) -> Result<Self, String> {
        let host = uri.host().ok_or("it names no host")?;
        let host = host.trim_matches(['[', ']']);
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("a name and password in it would end up in logs; leave them out".into());
        }
        let local = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        let tls = ClientTls::new(PURPOSE);
        match uri.scheme_str() {
            // A machine without trusted certificates is told so now, not with the first token.
            Some("https") => drop(tls.config().map_err(|error| error.to_string())?),
            Some("http") if local => {}
            Some("http") => {
                let reason = "over plain http anybody on the way could put in keys of their own; \
                              use https";
                return Err(reason.into());
            }
            _ => return Err("it must begin with https://".into()),
        }
        Ok(Self { uri, fetch: Fetch::new(tls, TIMEOUT, MAX_BYTES) })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The document.
    pub(super) async fn get(&self) -> Result<Bytes, String> {
        self.fetch.get(&self.uri).await.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_nobody_can_answer_for_others_are_taken() {
        let take = |url: &str| Source::new(url.parse().unwrap());
        for good in ["http://127.0.0.1:8/a", "http://[::1]/a", "http://localhost/a"] {
            assert!(take(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example/a", "ftp://127.0.0.1/a", "http://u:p@127.0.0.1/a", "/a"] {
            assert!(take(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_taken_whole_or_not_at_all() {
        use axum::routing;
        let large = || async { vec![b'a'; MAX_BYTES + 1] };
        let most = || async { vec![b'a'; MAX_BYTES] };
        let moved = || async { axum::response::Redirect::temporary("/most") };
        let routes = axum::Router::new()
            .route("/large", routing::get(large))
            .route("/most", routing::get(most))
            .route("/moved", routing::get(moved));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let fetch = async |path: &str| {
            let uri = format!("http://{address}{path}").parse().unwrap();
            Source::new(uri).unwrap().get().await
        };
        assert_eq!(fetch("/most").await.unwrap().len(), MAX_BYTES);
        assert!(fetch("/large").await.is_err());
        assert!(fetch("/moved").await.unwrap_err().contains("307"));
        assert!(fetch("/none").await.unwrap_err().contains("404"));
    }
}
