//! The addresses of servers, as people write them: `https://a:8368,https://b:8368`.
//!
//! The scheme may be left out after the first, `https://a:8368,b:8368`, and the port where it is ours. The
//! Python client reads the same: both are told by one variable of the environment.

use std::net::Ipv6Addr;

use tenure::{Error, Result};

/// Servers named at most.
const SERVERS: usize = 32;
/// Where a server listens unless told otherwise.
const PORT: u16 = 8368;
/// What to write instead.
const WRITE: &str = "write http://HOST:PORT or https://HOST:PORT, more separated by commas";

/// Each server as `SCHEME://HOST:PORT`. What is no address is an error that names it.
pub(crate) fn parse(text: &str) -> Result<Vec<String>> {
    refuse_login(text)?;
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let Some(first) = parts.first() else {
        return Err(wrong(text, WRITE));
    };
    if parts.len() > SERVERS {
        return Err(wrong(text, "it names more than 32 servers"));
    }
    let (scheme, _) = split(first)?;
    let scheme = scheme.ok_or_else(|| wrong(first, WRITE))?;
    parts.into_iter().map(|part| one(part, &scheme)).collect()
}

/// One server, of which the others have this scheme.
fn one(part: &str, scheme: &str) -> Result<String> {
    let (own, rest) = split(part)?;
    if own.is_some_and(|own| own != scheme) {
        let reason = format!("the first one is {scheme}; give all of them the same scheme");
        return Err(wrong(part, &reason));
    }
    let (host, port) = host_and_port(rest.trim_end_matches('/')).map_err(|why| wrong(part, why))?;
    Ok(format!("{scheme}://{host}:{port}"))
}

/// The scheme, if there is one, and what follows it.
fn split(part: &str) -> Result<(Option<String>, &str)> {
    let Some((scheme, rest)) = part.split_once("://") else { return Ok((None, part)) };
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "http" | "https" => Ok((Some(scheme), rest)),
        _ => Err(wrong(part, WRITE)),
    }
}

/// A host, with its brackets if it is an address of IPv6, and a port: ours unless another is given.
fn host_and_port(text: &str) -> std::result::Result<(&str, u16), &'static str> {
    let brackets = "an address of IPv6 is written in brackets: http://[::1]:8368";
    let (host, port) = match text.starts_with('[') {
        true => {
            let end = text.find(']').ok_or(brackets)?;
            text[1..end].parse::<Ipv6Addr>().map_err(|_| brackets)?;
            text.split_at(end + 1)
        }
        false => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(brackets);
    }
    let of_a_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if !host.starts_with('[') && (host.is_empty() || !host.chars().all(of_a_name)) {
        return Err(WRITE);
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port != 0).ok_or(WRITE)?
        }
        _ => return Err(WRITE),
    };
    Ok((host, port))
}

/// Nobody's password is told, so only what comes after it is.
fn refuse_login(text: &str) -> Result<()> {
    match text.rsplit_once('@') {
        None => Ok(()),
        Some((_, host)) => Err(wrong(host, "a login does not belong in it; give a token instead")),
    }
}

fn wrong(address: &str, reason: &str) -> Error {
    Error::invalid(format!("server address {address:?}"), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_list_are_the_same_servers() {
        let both = [
            "https://a:8368,https://b:8368",
            "https://a:8368,b:8368",
            "https://a, b,",
            "HTTPS://a,b/",
        ];
        for text in both {
            assert_eq!(parse(text).unwrap(), ["https://a:8368", "https://b:8368"], "{text}");
        }
        assert_eq!(parse("http://a:1,b").unwrap(), ["http://a:1", "http://b:8368"]);
    }

    #[test]
    fn addresses_of_ipv6_have_brackets() {
        assert_eq!(parse("https://[::1]/").unwrap(), ["https://[::1]:8368"]);
        let all = ["http://[::1]:9", "http://[fe80::1]:8368", "http://b:2"];
        assert_eq!(parse("http://[::1]:9,[fe80::1],http://b:2").unwrap(), all);
        for bad in ["http://::1", "http://[::1", "http://[a]:1", "http://[::1]9"] {
            let told = parse(bad).unwrap_err().to_string();
            assert!(told.contains("[::1]") || told.contains("HOST:PORT"), "{told}");
        }
    }

    #[test]
    fn what_is_no_address_is_named_with_what_is() {
        let bad = [
            ("a:1", "a:1"),
            ("tcp://a", "tcp://a"),
            ("http://", "http://"),
            (" , ", " , "),
            ("http://a b", "http://a b"),
            ("http://a,http://http://b", "http://http://b"),
            ("http://a,b:0", "b:0"),
            ("http://a,b:port", "b:port"),
            ("http://a,b:", "b:"),
            ("http://a:70000", "http://a:70000"),
            ("http://a/path", "http://a/path"),
            ("http://a,tcp://b", "tcp://b"),
        ];
        for (text, named) in bad {
            let told = parse(text).unwrap_err().to_string();
            let expected = format!("invalid server address {named:?}: write http://HOST:PORT");
            assert!(told.starts_with(&expected), "{text}: {told}");
        }
    }

    #[test]
    fn mixed_schemes_are_refused_and_passwords_not_told() {
        let told = parse("https://a,b,http://c:1").unwrap_err().to_string();
        assert!(told.contains("\"http://c:1\"") && told.contains("is https"), "{told}");
        let told = parse("http://u:se,cret@a:1").unwrap_err().to_string();
        assert!(told.contains("\"a:1\"") && told.contains("token"), "{told}");
        assert!(!told.contains("se") || !told.contains("cret"), "{told}");
    }
}
