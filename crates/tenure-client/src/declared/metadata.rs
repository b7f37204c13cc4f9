//! Leases in the metadata of a call: `tenure-lease: SCOPE;token=7;valid=8123`, one for each.
//!
//! The scope is percent-encoded where it has characters that a header or this line gives a meaning to.
//! `valid` is how many milliseconds the lease was still held for without a further renewal when the call
//! was made. Parameters that are not known are passed over, so that there can be more of them one day.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tenure::{Error, Result};
use tenure_net::address;

use super::context::LeaseContext;

/// The name of the header.
pub(super) const LEASE_HEADER: &str = "tenure-lease";
/// Leases of one call at most: more do not fit into the headers that servers accept.
const MAX_LEASES: usize = 16;
/// The longest id of a lease.
const MAX_ID: usize = 512;

/// What is encoded in a scope: all but letters, digits, and signs that mean nothing in a header.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b':')
    .remove(b'@')
    .remove(b'#')
    .remove(b'+')
    .remove(b'~');

/// What a caller told about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) id: String,
    pub(super) token: u64,
    pub(super) valid: Duration,
}

/// Puts the leases of a context into the headers, outermost first.
pub(super) fn write(context: &LeaseContext, headers: &mut HeaderMap) -> Result<()> {
    headers.remove(LEASE_HEADER);
    let leases = context.leases();
    if leases.len() > MAX_LEASES {
        let (max, got) = (MAX_LEASES as u64, leases.len() as u64);
        return Err(Error::LimitExceeded { limit: "leases of a call", max, got });
    }
    for lease in leases {
        let valid = lease.remaining().as_millis();
        let text = format!(
            "{};token={};valid={valid}",
            utf8_percent_encode(lease.id(), ENCODED),
            lease.token()
        );
        let value = HeaderValue::try_from(text).map_err(|error| {
            Error::invalid(format!("lease {:?}", lease.id()), error.to_string())
        })?;
        headers.append(LEASE_HEADER, value);
    }
    Ok(())
}

/// The leases in the headers; none if there are none.
pub(super) fn read(headers: &HeaderMap) -> Result<Vec<Told>> {
    let mut leases = Vec::new();
    for value in headers.get_all(LEASE_HEADER) {
        let text = value.to_str().map_err(|_| malformed("…", "it is not plain text"))?;
        // Whatever is between may have joined several headers into one.
        for one in text.split(',') {
            leases.push(parse(one.trim())?);
        }
        if leases.len() > MAX_LEASES {
            let (max, got) = (MAX_LEASES as u64, leases.len() as u64);
            return Err(Error::LimitExceeded { limit: "leases of a call", max, got });
        }
    }
    Ok(leases)
}

fn malformed(text: &str, reason: &str) -> Error {
    let shown: String = text.chars().take(80).collect();
    Error::invalid(
        format!("metadata {LEASE_HEADER} {shown:?}"),
        format!("{reason}; write SCOPE;token=NUMBER;valid=MILLISECONDS"),
    )
}

fn parse(text: &str) -> Result<Told> {
    let wrong = |reason: &str| malformed(text, reason);
    let mut parts = text.split(';').map(str::trim);
    let id = parts
        .next()
        .and_then(|id| address::decode("scope", id).ok())
        .ok_or_else(|| wrong("its scope is badly encoded"))?;
    if id.is_empty() || id.len() > MAX_ID || id.chars().any(char::is_control) {
        return Err(wrong("it names no scope"));
    }
    let (mut token, mut valid) = (None, None);
    for part in parts {
        let (name, number) =
            part.split_once('=').ok_or_else(|| wrong("a parameter has no value"))?;
        let slot = match name {
            "token" => &mut token,
            "valid" => &mut valid,
            _ => continue,
        };
        let number = number.parse::<u64>().map_err(|_| wrong("a parameter is no number"))?;
        if slot.replace(number).is_some() {
            return Err(wrong("a parameter is given twice"));
        }
    }
    let token = token.filter(|token| *token > 0).ok_or_else(|| wrong("it has no token"))?;
    Ok(Told { id, token, valid: Duration::from_millis(valid.unwrap_or(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_scope_may_contain_survives_the_way() {
        for id in ["a.b/k", "a/with, comma;and=100%", "größe/ключ 1", "a/k#read-7", "a/ x "] {
            let text = format!("{};token=7;valid=1500;later=x", utf8_percent_encode(id, ENCODED));
            assert!(HeaderValue::try_from(&text).is_ok(), "{text}");
            let valid = Duration::from_millis(1500);
            assert_eq!(parse(&text).unwrap(), Told { id: id.into(), token: 7, valid });
        }
    }

    #[test]
    fn several_come_in_their_order_also_joined_into_one() {
        let mut headers = HeaderMap::new();
        headers.append(LEASE_HEADER, HeaderValue::from_static("a/1;token=1, a/2;token=2"));
        headers.append(LEASE_HEADER, HeaderValue::from_static("a/3;token=3"));
        let ids: Vec<_> = read(&headers).unwrap().into_iter().map(|told| told.id).collect();
        assert_eq!(ids, ["a/1", "a/2", "a/3"]);
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_the_right_way() {
        for bad in [
            "",
            ",",
            ";token=1",
            "a/k",
            "a/k;token",
            "a/k;token=x",
            "a/k;token=0",
            "a/k;token=1;token=2",
            "a/k;token=-1",
            "a%/k;token=1",
            "a%zz;token=1",
            "%ff;token=1",
            "a%0Ab;token=1",
        ] {
            let mut headers = HeaderMap::new();
            headers.append(LEASE_HEADER, HeaderValue::try_from(bad).unwrap());
            let error = read(&headers).expect_err(bad);
            assert_eq!(error.code(), "invalid", "{bad:?}: {error}");
            assert!(error.to_string().contains("SCOPE;token=NUMBER"), "{error}");
        }
        let mut headers = HeaderMap::new();
        for _ in 0..=MAX_LEASES {
            headers.append(LEASE_HEADER, HeaderValue::from_static("a/k;token=1"));
        }
        assert_eq!(read(&headers).unwrap_err().code(), "limit_exceeded");
    }
}
