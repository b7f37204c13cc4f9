//! The file that lists who may come in with a token or a certificate, and what they may do.
//!
//! ```toml
//! [[token]]
//! name = "billing"
//! sha256 = "…"                              # of the token; `tenure token` prints both
//! tenant = "acme"                           # optional
//! permissions = ["leases:*:billing.*", "objects:read:order/*"]
//!
//! [[certificate]]
//! subject = "spiffe://prod/billing/*"       # exact, or the beginning of it and a `*`
//! permissions = ["leases:*:billing.*"]
//! ```

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tenure::clock::SharedClock;
use tenure::{Error, Result};

use super::permission::Permissions;
use super::reloaded::Reloaded;
use super::tokens::{Sum, parse_sum};

/// The longest name of a caller or a tenant.
const NAME_BYTES: usize = 256;
/// With the separator, what the store takes as a prefix.
const TENANT_BYTES: usize = 63;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<TokenLine>,
    #[serde(default)]
    certificate: Vec<CertificateLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenLine {
    name: String,
    sha256: String,
    tenant: Option<String>,
    permissions: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateLine {
    subject: String,
    tenant: Option<String>,
    permissions: Vec<String>,
}

/// One that may come in.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) tenant: Option<Arc<str>>,
    pub(super) permissions: Permissions,
}

/// What somebody showed.
#[derive(Clone)]
pub(super) enum Who {
    /// A token with this sum.
    Token(Sum),
    /// A certificate with this subject.
    Certificate(Arc<str>),
}

/// All that may come in.
pub(super) struct Access {
    tokens: HashMap<Sum, Entry>,
    subjects: HashMap<String, Entry>,
    /// Without their `*`, the longest first.
    beginnings: Vec<(String, Entry)>,
}

impl Access {
    /// The list in this file, as it changes.
    pub(super) fn open(path: &Path, clock: &SharedClock) -> Result<Reloaded<Self>> {
        let name = format!("token file {}", path.display());
        Reloaded::open(&[path], Arc::clone(clock), move |files| {
            let bytes = files.first().map_or(&[][..], |file| file);
            let text =
                std::str::from_utf8(bytes).map_err(|_| Error::invalid(&name, "not UTF-8"))?;
            Self::parse(text).map_err(|reason| Error::invalid(&name, reason))
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| explain(&error, text))?;
        let mut access =
            Self { tokens: HashMap::new(), subjects: HashMap::new(), beginnings: Vec::new() };
        for line in file.token {
            let wrong = |reason: String| format!("token {:?}: {reason}", line.name);
            let sum = parse_sum(&line.sha256).ok_or_else(|| {
                wrong("sha256 is not 64 hexadecimal digits; take what `tenure token` prints".into())
            })?;
            let entry = entry(&line.name, line.tenant.as_deref(), &line.permissions);
            if let Some(other) = access.tokens.insert(sum, entry.map_err(wrong)?) {
                return Err(wrong(format!("its sha256 is that of token {:?} too", other.name)));
            }
        }
        for line in file.certificate {
            let wrong = |reason: String| format!("certificate {:?}: {reason}", line.subject);
            let entry = entry(&line.subject, line.tenant.as_deref(), &line.permissions);
            let entry = entry.map_err(wrong)?;
            let twice = || wrong("it is listed twice".into());
            match line.subject.strip_suffix('*') {
                _ if line.subject.trim_end_matches('*').contains('*')
                    || line.subject.ends_with("**") =>
                {
                    return Err(wrong("'*' may only come last, and once".into()));
                }
                Some(begin) if access.beginnings.iter().any(|(other, _)| other == begin) => {
                    return Err(twice());
                }
                Some(begin) => access.beginnings.push((begin.into(), entry)),
                None if access.subjects.contains_key(&line.subject) => return Err(twice()),
                None => drop(access.subjects.insert(line.subject.clone(), entry)),
            }
        }
        access.beginnings.sort_by_key(|(begin, _)| std::cmp::Reverse(begin.len()));
        Ok(access)
    }

    /// The one that fits best.
    pub(super) fn find(&self, who: &Who) -> Option<&Entry> {
        match who {
            Who::Token(sum) => self.tokens.get(sum),
            Who::Certificate(subject) => self.subjects.get(&**subject).or_else(|| {
                let fits = |(begin, _): &&(String, Entry)| subject.starts_with(begin.as_str());
                self.beginnings.iter().find(fits).map(|(_, entry)| entry)
            }),
        }
    }
}

fn entry(
    name: &str,
    tenant: Option<&str>,
    permissions: &[String],
) -> std::result::Result<Entry, String> {
    check_subject(name)?;
    let tenant = tenant.map(|tenant| check_tenant(tenant).map(|()| tenant.into())).transpose()?;
    let permissions = Permissions::parse(permissions).map_err(|error| error.to_string())?;
    Ok(Entry { name: name.into(), tenant, permissions })
}

/// A name that can stand in a log.
pub(super) fn check_subject(name: &str) -> std::result::Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES || name.chars().any(char::is_control) {
        return Err(format!(
            "its name must have 1 to {NAME_BYTES} bytes and no control characters"
        ));
    }
    Ok(())
}

/// Names that cannot be mistaken for part of another tenant's names.
pub(super) fn check_tenant(tenant: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if tenant.is_empty() || tenant.len() > TENANT_BYTES || !tenant.chars().all(plain) {
        return Err(format!(
            "tenant {tenant:?} must be 1 to {TENANT_BYTES} of the letters a to z, digits, '-' and '_'"
        ));
    }
    Ok(())
}

/// What is wrong and in which line. Not as `toml` shows it: that quotes the line, and somebody may have
/// put a token there.
fn explain(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(0, |before| before.matches('\n').count()) + 1;
    let message = error.message();
    // "invalid type: string "…", expected …" quotes the value.
    let quoted = message.find(": string \"").zip(message.rfind("\", expected"));
    match quoted.and_then(|(from, to)| Some((message.get(..from)?, message.get(to + 1..)?))) {
        Some((before, after)) => format!("line {line}: {before}: a text{after}"),
        None => format!("line {line}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Action;
    use super::*;

    const SUM: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_best_fit_is_found() {
        let text = format!(
            r#"
            [[token]]
            name = "billing"
            sha256 = "{SUM}"
            tenant = "acme"
            permissions = ["leases:hold:billing.*"]
            [[certificate]]
            subject = "spiffe://prod/*"
            permissions = ["objects:read:*"]
            [[certificate]]
            subject = "spiffe://prod/billing/*"
            permissions = ["leases:hold:*"]
            [[certificate]]
            subject = "spiffe://prod/billing/root"
            permissions = ["*"]
            "#
        );
        let access = Access::parse(&text).unwrap();
        let found = access.find(&Who::Token(super::super::tokens::sum("abc"))).unwrap();
        assert_eq!((&*found.name, found.tenant.as_deref()), ("billing", Some("acme")));
        assert!(access.find(&Who::Token([0; 32])).is_none());
        let may = |subject: &str, action| {
            let found = access.find(&Who::Certificate(subject.into()));
            found.is_some_and(|entry| entry.permissions.allow(action, "a/b"))
        };
        assert!(may("spiffe://prod/web", Action::ObjectsRead));
        assert!(!may("spiffe://prod/web", Action::LeasesHold));
        assert!(may("spiffe://prod/billing/1", Action::LeasesHold));
        assert!(!may("spiffe://prod/billing/1", Action::ObjectsRead), "the longest alone counts");
        assert!(may("spiffe://prod/billing/root", Action::ObjectsWrite));
        assert!(!may("spiffe://test/web", Action::ObjectsRead));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_repeated() {
        let token = |rest: &str| format!("[[token]]\nname = \"a\"\nsha256 = \"{SUM}\"\n{rest}");
        let wrong = [
            (token("permissions = []\npermission = 1"), "permission"),
            (token("permissions = [\"leases:steal:*\"]"), "leases:steal:*"),
            (token("permissions = []\ntenant = \"a~b\""), "a~b"),
            (token(""), "permissions"),
            (format!("{}\n{}", token("permissions = []"), token("permissions = []")), "\"a\" too"),
            ("[[user]]".into(), "user"),
            ("[[token]]\nname = \"\"\nsha256 = \"ab\"\npermissions = []".into(), "64 hexadecimal"),
            ("[[certificate]]\nsubject = \"a*b\"\npermissions = []".into(), "a*b"),
            ("[[certificate]]\nsubject = \"a\"\npermissions = []\n".repeat(2), "twice"),
            ("[[certificate]]\nsubject = \"a*\"\npermissions = []\n".repeat(2), "twice"),
        ];
        for (text, named) in wrong {
            let error = Access::parse(&text).err().unwrap();
            assert!(error.contains(named), "{error}\n{text}");
        }
        for secret in
            ["tnr_topsecret", "[[token]]\nsha256 = tnr_topsecret", "token = \"tnr_topsecret\""]
        {
            let error = Access::parse(secret).err().unwrap();
            assert!(error.starts_with("line ") && !error.contains("topsecret"), "{error}");
        }
    }
}
