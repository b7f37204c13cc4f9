//! The address of a store: `nats://user:password@host:4222,host2/BUCKET?replicas=3`.

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tenure::{Error, Result};

use crate::options::{Options, Sync};

/// The bucket of a URL that names none.
const BUCKET: &str = "tenure";
const FORM: &str = "write nats://[user:password@|token@]host[:port][,host…][/BUCKET][?replicas=3]";
const PARAMETERS: &str = "replicas, creds, tls, ca, cert, key, sync and monitor";

/// Who somebody claims to be.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    None,
    Token(String),
    Password(String, String),
}

/// Where a store is.
pub(crate) struct Target {
    pub(crate) servers: Vec<String>,
    pub(crate) login: Login,
    pub(crate) bucket: String,
}

impl Target {
    /// Servers and bucket without a word of the login, for messages.
    pub(crate) fn shown(&self) -> String {
        format!("{}/{}", self.servers.join(","), self.bucket)
    }
}

/// Takes a URL apart; its parameters go on top of the options.
pub(crate) fn parse(url: &str, options: Options) -> Result<(Target, Options)> {
    let invalid = |reason: String| Error::invalid("NATS URL", format!("{reason}; {FORM}"));
    let rest = url
        .strip_prefix("nats://")
        .ok_or_else(|| invalid("it does not begin with nats://".into()))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, bucket) = rest.split_once('/').unwrap_or((rest, ""));
    let bucket = if bucket.is_empty() { BUCKET } else { bucket };
    if !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
        let why = "a bucket's name has letters, digits, '-' and '_' only";
        return Err(invalid(format!("bucket {bucket:?}: {why}")));
    }
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (self::login(login)?, hosts),
        None => (Login::None, authority),
    };
    let servers: Vec<String> =
        hosts.split(',').filter(|host| !host.is_empty()).map(ToOwned::to_owned).collect();
    if servers.is_empty() {
        return Err(invalid("the host is missing".into()));
    }
    for server in &servers {
        server.parse::<async_nats::ServerAddr>().map_err(|error| invalid(error.to_string()))?;
    }
    let options = parameters(query, options)?;
    Ok((Target { servers, login, bucket: bucket.to_owned() }, options))
}

fn login(text: &str) -> Result<Login> {
    Ok(match text.split_once(':') {
        Some((user, password)) => Login::Password(unescape(user)?, unescape(password)?),
        None => Login::Token(unescape(text)?),
    })
}

fn parameters(query: &str, mut options: Options) -> Result<Options> {
    let (mut certificate, mut key) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = unescape(value)?;
        let bad = |wanted: &str| {
            Err(Error::invalid(format!("NATS URL parameter {name}={value}"), wanted.to_owned()))
        };
        match name {
            "replicas" => match value.parse() {
                Ok(replicas @ (1 | 3 | 5)) => options.replicas = Some(replicas),
                _ => return bad("it is 1, 3 or 5"),
            },
            "tls" => match value.as_str() {
                "true" | "require" => options.tls = true,
                "false" => options.tls = false,
                _ => return bad("it is true or false"),
            },
            "sync" => match sync(&value) {
                Some(sync) => options.sync = Some(sync),
                None => return bad("it is always, or an interval such as 2m, 10s or 500ms"),
            },
            "creds" => options.credentials = Some(value.into()),
            "ca" => options.root_certificates = Some(value.into()),
            "cert" => certificate = Some(value),
            "key" => key = Some(value),
            "monitor" => options.monitor = Some(value),
            _ => {
                let reason = format!("there are {PARAMETERS}");
                return Err(Error::invalid(format!("NATS URL parameter {name:?}"), reason));
            }
        }
    }
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(options.client_certificate(certificate, key)),
        (None, None) => Ok(options),
        _ => Err(Error::invalid("NATS URL", "cert and key belong together; give both")),
    }
}

/// `always`, or an interval as the servers' own configuration writes it.
fn sync(text: &str) -> Option<Sync> {
    if text == "always" {
        return Some(Sync::Always);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let interval = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        _ => return None,
    };
    Some(Sync::Every(interval))
}

/// Undoes `%XX`. A lone `%` is refused: it is likely to be part of a password that was not encoded.
fn unescape(text: &str) -> Result<String> {
    let broken = || Error::invalid("NATS URL", "a '%' is followed by two hexadecimal digits");
    let is_whole = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_whole) {
        return Err(broken());
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| broken())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_a_url_can_say() {
        let url = "nats://me:p%40ss@a:1,b/things?replicas=3&tls=true&sync=30s&creds=/x%20y";
        let (target, options) = parse(url, Options::new()).unwrap();
        assert_eq!(target.servers, ["a:1", "b"]);
        assert!(target.login == Login::Password("me".into(), "p@ss".into()));
        assert_eq!((target.bucket.as_str(), options.replicas), ("things", Some(3)));
        assert_eq!(options.sync, Some(Sync::Every(Duration::from_secs(30))));
        assert_eq!(options.credentials, Some("/x y".into()));
        assert!(options.tls && !target.shown().contains("ss"));
        let (target, _) = parse("nats://token@h", Options::new()).unwrap();
        assert!(target.login == Login::Token("token".into()) && target.bucket == "tenure");
    }

    #[test]
    fn mistakes_are_explained() {
        for (url, expected) in [
            ("nats:x", "nats://"),
            ("nats:///b", "host is missing"),
            ("nats://h/a.b", "letters, digits"),
            ("nats://h?replicas=2", "1, 3 or 5"),
            ("nats://h?sync=often", "always, or an interval"),
            ("nats://h?colour=red", "there are replicas"),
            ("nats://h?cert=a", "cert and key"),
            ("nats://u:%zz@h", "hexadecimal"),
            ("nats://u:half%4@h", "hexadecimal"),
            ("nats://u:%ff@h", "hexadecimal"),
        ] {
            let error = parse(url, Options::new()).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }
}
