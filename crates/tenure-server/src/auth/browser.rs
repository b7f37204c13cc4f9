//! Pages of other sites.
//!
//! A browser sends a page's requests to any address, this server's too, from inside of whatever wall it
//! stands behind and with whatever certificate it has. Programs say neither `Origin` nor
//! `Sec-Fetch-Site`, browsers always say one of them with what matters. So a request with either must come
//! from a page of this very server. Without authentication the server must also have been called by an
//! address or as `localhost`: a name could be one that somebody else has pointed here.

use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};

use crate::Fault;
use crate::fault::ASK_FOR_IT;

const SITE: &str = "sec-fetch-site";

/// Refuses requests of pages that are not this server's own.
pub(crate) fn check(uri: &Uri, headers: &HeaderMap, auth: bool) -> Result<(), Fault> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let (origin, site) = (text(ORIGIN.as_str()), text(SITE));
    if origin.is_none() && site.is_none() {
        return Ok(());
    }
    // HTTP/2 has it in the address, HTTP/1.1 in a header.
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| text(HOST.as_str())).unwrap_or("");
    let of_ours = |origin: &str| origin.split_once("://").is_some_and(|(_, from)| from == host);
    let same = site.is_none_or(|site| matches!(site, "same-origin" | "none"));
    if same && origin.is_none_or(of_ours) && (auth || is_plain(host)) {
        return Ok(());
    }
    Err(Fault::Denied {
        subject: format!("a page of {}", origin.unwrap_or("another site")),
        action: "ask this server for",
        resource: uri.path().to_owned(),
        advice: ASK_FOR_IT.into(),
    })
}

/// An address, or this machine's own name for itself.
fn is_plain(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(host: &str, origin: Option<&str>, site: Option<&str>, auth: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        if let Some(site) = site {
            headers.insert(SITE, site.parse().unwrap());
        }
        check(&Uri::from_static("/v1/leases/revoke"), &headers, auth).is_ok()
    }

    #[test]
    fn programs_are_let_through_and_pages_of_other_sites_are_not() {
        let here = "127.0.0.1:8368";
        assert!(allowed("tenure.internal:8368", None, None, false));
        for auth in [false, true] {
            assert!(!allowed(here, Some("https://evil.example"), None, auth));
            assert!(!allowed(here, Some("null"), None, auth));
            assert!(!allowed(here, None, Some("cross-site"), auth));
            assert!(!allowed(here, None, Some("same-site"), auth));
            assert!(allowed(here, Some("http://127.0.0.1:8368"), Some("same-origin"), auth));
            assert!(allowed("localhost:8368", Some("http://localhost:8368"), None, auth));
            assert!(allowed("[::1]:8368", None, Some("none"), auth));
        }
    }

    #[test]
    fn a_name_that_was_pointed_here_is_no_way_in_where_nobody_is_asked() {
        let (host, origin) = ("evil.example:8368", Some("http://evil.example:8368"));
        assert!(!allowed(host, origin, Some("same-origin"), false));
        assert!(!allowed(host, None, Some("same-origin"), false));
        // With a token, which no browser adds by itself, a name of one's own is fine.
        assert!(allowed(host, origin, Some("same-origin"), true));
    }
}
