//! The names of Leases: ids as DNS subdomains and back, without a loss either way.
//!
//! A simple scope stays readable, so that anybody can name the Lease it is kept in:
//!
//! | id | Lease |
//! |---|---|
//! | `billing.nightly/close` | `billing.nightly.close` |
//! | `lease/my-controller` | `my-controller` |
//! | `tenants/ACME_1` | `tenants.x---41-43-4d-45-5f1` |
//!
//! A part that is not a DNS label is escaped (`x--`, then every byte that is neither a lower-case
//! letter nor a digit as `-` and two hex digits), an id that is no scope as a whole (`i--`), and one
//! whose name would be too long is hashed (`h--`); an annotation then tells the id. Names that others
//! chose and that are nobody's image have ids too: `name=…`. So every Lease has exactly one id and
//! every id exactly one Lease.

use sha2::{Digest, Sha256};

/// The longest name of an object.
const MAX_BYTES: usize = 253;
/// Scopes in this namespace are Leases by their bare name, as `kubectl get lease/my-controller`.
const BARE: &str = "lease";
/// Begins the id of a name that is no id's image.
const LITERAL: &str = "name=";
const PART: &str = "x--";
const WHOLE: &str = "i--";
const HASH: &str = "h--";

/// How the Leases of one store are named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    /// Names that all begin with this; it may be empty.
    pub(crate) fn new(prefix: &str) -> Option<Self> {
        let usable =
            prefix.is_empty() || (prefix.len() <= 100 && is_subdomain(&format!("{prefix}a")));
        usable.then(|| Self { prefix: prefix.into() })
    }

    /// The name of an id's Lease.
    pub(crate) fn encode(&self, id: &str) -> String {
        let literal = id.strip_prefix(LITERAL).filter(|name| structural(name).is_none());
        let name = match literal {
            Some(name) if self.fits(name) && !name.starts_with(HASH) => name.to_owned(),
            _ => plain(id),
        };
        let name = if self.fits(&name) { name } else { hashed(id) };
        format!("{}{name}", self.prefix)
    }

    /// The id of a Lease, given its name and what its annotation says about the id. `None` if it is
    /// not one of this store's.
    pub(crate) fn decode(&self, name: &str, told: Option<&str>) -> Option<String> {
        let name = name.strip_prefix(&self.prefix)?;
        if name.starts_with(HASH) {
            // Without the annotation there is no telling; nobody but us writes such names.
            return told.filter(|id| hashed(id) == name).map(str::to_owned);
        }
        Some(structural(name).unwrap_or_else(|| format!("{LITERAL}{name}")))
    }

    fn fits(&self, name: &str) -> bool {
        self.prefix.len() + name.len() <= MAX_BYTES
            && is_subdomain(&format!("{}{name}", self.prefix))
    }
}

/// The id whose image this name is.
fn structural(name: &str) -> Option<String> {
    let id = match (name.strip_prefix(WHOLE), name.rsplit_once('.')) {
        (Some(whole), _) => unescape(whole)?,
        (None, None) => format!("{BARE}/{}", unpart(name)?),
        (None, Some((namespace, key))) => {
            let parts: Option<Vec<String>> = namespace.split('.').map(unpart).collect();
            format!("{}/{}", parts?.join("."), unpart(key)?)
        }
    };
    // There are other spellings that would read as the same id; only one is its name.
    (plain(&id) == name).then_some(id)
}

/// The name of an id, however long.
fn plain(id: &str) -> String {
    let Some((namespace, key)) = id.split_once('/').filter(|(namespace, key)| {
        !key.is_empty() && namespace.split('.').all(|part| !part.is_empty())
    }) else {
        return format!("{WHOLE}{}", escape(id));
    };
    if namespace == BARE {
        return part(key);
    }
    let mut name: Vec<String> = namespace.split('.').map(part).collect();
    name.push(part(key));
    name.join(".")
}

fn part(text: &str) -> String {
    let marked = [PART, WHOLE, HASH].iter().any(|mark| text.starts_with(mark));
    if is_label(text) && !marked { text.to_owned() } else { format!("{PART}{}", escape(text)) }
}

fn unpart(label: &str) -> Option<String> {
    match label.strip_prefix(PART) {
        Some(escaped) => unescape(escaped),
        None => Some(label.to_owned()),
    }
}

fn escape(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("-{byte:02x}"),
    };
    text.bytes().map(byte).collect()
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'-' {
            bytes.push(*first);
            continue;
        }
        let (hex, tail) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

fn hashed(id: &str) -> String {
    let digest = Sha256::digest(id.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{HASH}{hex}")
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether the API server takes it as a name.
fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_BYTES && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(prefix: &str) -> Names {
        Names::new(prefix).unwrap()
    }

    #[test]
    fn simple_scopes_are_readable_and_electors_leases_are_reachable() {
        let names = names("");
        for (id, name) in [
            ("billing.nightly/close", "billing.nightly.close"),
            ("lease/my-controller", "my-controller"),
            ("tenants/ACME_1", "tenants.x---41-43-4d-45-5f1"),
            ("52ae3b.example/com", "52ae3b.example.com"),
            ("no-scope", "i--no-2dscope"),
            ("name=lease.x", "lease.x"),
            ("a/x--b", "a.x--x-2d-2db"),
            ("name=x--zz-", "i--name-3dx-2d-2dzz-2d"),
        ] {
            assert_eq!(names.encode(id), name);
            assert_eq!(names.decode(name, None).as_deref(), Some(id));
        }
    }

    #[test]
    fn a_long_id_is_hashed_and_told_by_its_annotation() {
        let names = names("app-");
        let id = format!("a/{}", "é".repeat(150));
        let name = names.encode(&id);
        assert!(name.len() <= MAX_BYTES && name.starts_with("app-h--"), "{name}");
        assert_eq!(names.decode(&name, Some(&id)), Some(id.clone()));
        // An annotation that says something else is not believed, nor is one that is missing.
        assert_eq!(names.decode(&name, Some("a/b")), None);
        assert_eq!(names.decode(&name, None), None);
    }

    #[test]
    fn a_prefix_keeps_others_out() {
        let names = names("app-");
        assert_eq!(names.encode("lease/x"), "app-x");
        assert_eq!(names.decode("x", None), None);
        assert_eq!(names.decode("app-x", None).as_deref(), Some("lease/x"));
        // What is left of somebody's name may be odd; it keeps a name of its own all the same.
        assert_eq!(names.decode("app--y", None).as_deref(), Some("name=-y"));
        assert_eq!(names.encode("name=-y"), "app--y");
        assert!(Names::new("App").is_none() && Names::new("-a").is_none());
    }

    fn any_id() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z.-]{1,6}/[a-z-]{1,8}",
            "(x--|i--|h--|name=|lease/|lease\\.)?[a-z0-9./#=_A-Zé-]{1,40}",
            "\\PC{1,200}",
        ]
    }

    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,4}",
            "(x--|i--|lease\\.)(-[0-9a-f]{2}|[a-z0-9]){1,12}",
        ]
    }

    fn any_prefix() -> impl Strategy<Value = &'static str> {
        prop_oneof![Just(""), Just("app-"), Just("team.app.")]
    }

    proptest! {
        #[test]
        fn every_id_has_a_name_of_its_own(id in any_id(), prefix in any_prefix()) {
            let names = names(prefix);
            let name = names.encode(&id);
            prop_assert!(is_subdomain(&name), "{name}");
            // Decoding gives back exactly this id, so no two ids share a name.
            prop_assert_eq!(names.decode(&name, Some(&id)), Some(id));
        }

        #[test]
        fn every_lease_has_an_id_of_its_own(name in any_name(), prefix in any_prefix()) {
            let names = names(prefix);
            let name = format!("{prefix}{name}");
            prop_assume!(is_subdomain(&name) && !name[prefix.len()..].starts_with(HASH));
            let id = names.decode(&name, None);
            prop_assert_eq!(id.map(|id| names.encode(&id)), Some(name));
        }
    }
}
