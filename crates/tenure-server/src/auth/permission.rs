//! What permissions mean: `action:resource`, for instance `leases:hold:billing.*`. Pure.
//!
//! An action is one of [`Action`], or all of a noun (`leases:*`). The permission to hold a scope includes
//! the one to see who holds it, because a caller cannot wait for what it cannot see. A resource is a scope or group for
//! leases and slots, and `kind/id` for objects. Names are namespaces with dots, and a key or an id after
//! the slash, so patterns go by names rather than by letters:
//!
//! | pattern | covers | does not cover |
//! |---|---|---|
//! | `billing/close` | just that | `billing/close2` |
//! | `billing` or `billing/*` | the group `billing` and everything in it | `billing.eu/a`, `billingx/a` |
//! | `billing.*` | all that, and everything below: `billing.eu/a` | `billingx/a` |
//! | `billing/2026-*` | what begins so | `billing/2025-01` |
//! | `bill*` | what begins so, `billingx/a` too: no separator was asked for | `bi/a` |
//! | `*` | everything | |
//!
//! Somebody who asks for everything that begins with something (a list, a watch) needs one permission
//! that covers all of it.

use std::fmt;
use std::str::FromStr;

use tenure::{Error, Result};

use super::Action;

/// Permissions of one caller at most; a list beyond that is a mistake.
const MOST: usize = 1_000;

/// All that somebody may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permissions(Vec<Permission>);

impl Permissions {
    /// Parses all of them, or says which is wrong.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self> {
        if texts.len() > MOST {
            let (max, got) = (MOST as u64, texts.len() as u64);
            return Err(Error::LimitExceeded { limit: "permissions", max, got });
        }
        texts.iter().map(|text| text.as_ref().parse()).collect::<Result<_>>().map(Self)
    }

    /// Parses those that are permissions and leaves out the rest, for lists that others write into too.
    pub(super) fn parse_known<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self(texts.filter_map(|text| text.parse().ok()).take(MOST).collect())
    }

    /// Whether one of them covers this action on this resource; a resource that ends in `*` is
    /// everything that begins so.
    pub fn allow(&self, action: Action, resource: &str) -> bool {
        self.0.iter().any(|permission| permission.allows(action, resource))
    }

    /// Whether there is anything that this action may be done to.
    pub fn allow_some(&self, action: Action) -> bool {
        self.0.iter().any(|permission| permission.is_about(action))
    }
}

/// One line of it, for instance `objects:read:order/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    actions: Actions,
    pattern: Pattern,
}

impl Permission {
    fn allows(&self, action: Action, resource: &str) -> bool {
        self.is_about(action) && self.pattern.covers(resource)
    }

    fn is_about(&self, action: Action) -> bool {
        match self.actions {
            Actions::All => true,
            Actions::Noun(noun) => action.noun() == noun,
            Actions::One(Action::LeasesHold) if action == Action::LeasesRead => true,
            Actions::One(one) => action == one,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Actions {
    All,
    /// All actions on one sort of thing.
    Noun(&'static str),
    One(Action),
}

impl Actions {
    fn parse(noun: &str, verb: &str) -> Option<Self> {
        let known = Action::ALL.into_iter().find(|action| action.noun() == noun)?;
        if verb == "*" {
            return Some(Self::Noun(known.noun()));
        }
        let name = format!("{noun}:{verb}");
        Action::ALL.into_iter().find(|action| action.name() == name).map(Self::One)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// `*`
    Everything,
    /// `name` and `name/*`: the name and what is in it.
    In(String),
    /// `name.*`: the name, what is in it, and all below.
    Below(String),
    /// `text*`
    Begins(String),
    /// `name/key`
    Exactly(String),
}

impl Pattern {
    fn parse(text: &str) -> std::result::Result<Self, &'static str> {
        let Some(stem) = text.strip_suffix('*') else {
            return Ok(match text {
                _ if text.contains('*') => return Err("'*' may only come last"),
                "" => return Err("it names no resource; write '*' for all of them"),
                _ if text.contains('/') => Self::Exactly(text.into()),
                _ => Self::In(text.into()),
            });
        };
        if stem.contains('*') {
            return Err("'*' may come only once, and last");
        }
        let name = |end: char| {
            stem.strip_suffix(end).filter(|name| !name.is_empty() && !name.contains('/'))
        };
        Ok(match (name('/'), name('.')) {
            _ if stem.is_empty() => Self::Everything,
            (Some(name), _) => Self::In(name.into()),
            (_, Some(name)) => Self::Below(name.into()),
            _ => Self::Begins(stem.into()),
        })
    }

    /// Whether it covers a resource, or everything that begins with it.
    fn covers(&self, resource: &str) -> bool {
        let (asked, whole) = match resource.strip_suffix('*') {
            Some(stem) => (stem, false),
            None => (resource, true),
        };
        match self {
            Self::Everything => true,
            Self::Exactly(text) => whole && asked == text,
            Self::Begins(text) => asked.starts_with(text.as_str()),
            Self::In(name) => match asked.strip_prefix(name.as_str()) {
                Some("") => whole,
                Some(rest) => rest.starts_with('/'),
                None => false,
            },
            Self::Below(name) => match asked.strip_prefix(name.as_str()) {
                Some("") => whole,
                Some(rest) => rest.starts_with(['/', '.']),
                None => false,
            },
        }
    }
}

impl FromStr for Permission {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |reason: &str| Error::invalid(format!("permission {text:?}"), reason);
        if text.chars().any(char::is_control) {
            return Err(wrong("it contains a control character"));
        }
        if text == "*" {
            return Ok(Self { actions: Actions::All, pattern: Pattern::Everything });
        }
        let mut parts = text.splitn(3, ':');
        let (Some(noun), Some(verb)) = (parts.next(), parts.next()) else {
            return Err(wrong("write it as action:resource, for instance leases:hold:billing.*"));
        };
        let Some(actions) = Actions::parse(noun, verb) else {
            let known: Vec<_> = Action::ALL.iter().map(|action| action.name()).collect();
            return Err(wrong(&format!(
                "there is no action {noun}:{verb}; use {}",
                known.join(", ")
            )));
        };
        let pattern = match parts.next() {
            Some(pattern) => Pattern::parse(pattern).map_err(wrong)?,
            // There is but one server.
            None if noun == Action::ServerObserve.noun() => Pattern::Everything,
            None => {
                return Err(wrong(&format!(
                    "it names no resource; write {text}:* for all of them"
                )));
            }
        };
        Ok(Self { actions, pattern })
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.actions {
            Actions::All => return f.write_str("*"),
            Actions::Noun(noun) => write!(f, "{noun}:*:")?,
            Actions::One(action) => write!(f, "{}:", action.name())?,
        }
        match &self.pattern {
            Pattern::Everything => f.write_str("*"),
            Pattern::In(name) => write!(f, "{name}/*"),
            Pattern::Below(name) => write!(f, "{name}.*"),
            Pattern::Begins(text) => write!(f, "{text}*"),
            Pattern::Exactly(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn allows(permission: &str, action: Action, resource: &str) -> bool {
        Permissions::parse(&[permission]).unwrap().allow(action, resource)
    }

    #[test]
    fn patterns_go_by_names() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("billing/close", &["billing/close"], &["billing/close2", "billing/close*", "billing"]),
            (
                "billing/*",
                &["billing", "billing/a", "billing/a/b", "billing/*", "billing/a*"],
                &["billing*", "billing.eu/a", "billing.*", "billingx/a", "bill/a", "*", ""],
            ),
            ("billing", &["billing", "billing/slot-0", "billing/*"], &["billing*", "billing.eu/a"]),
            (
                "billing.*",
                &["billing", "billing/a", "billing.eu", "billing.eu/a", "billing.*", "billing/*"],
                &["billingx/a", "billing*", "billingx*", "bill*", "other/a", "*"],
            ),
            (
                "billing/2026-*",
                &["billing/2026-", "billing/2026-01", "billing/2026-1*"],
                &["billing/2026", "billing/202*", "billing/*"],
            ),
            ("billing/a.*", &["billing/a.b", "billing/a.*"], &["billing/a", "billing/a/b"]),
            ("billing/a/*", &["billing/a/b"], &["billing/a", "billing/ab"]),
            ("bill*", &["bill", "billingx/a", "billing*"], &["bi/a", "bi*", "*"]),
            (".*", &[".", ".a"], &["a"]),
            ("*", &["", "a", "a/b", "*", "a*"], &[]),
        ];
        for (pattern, covered, not) in table {
            let permission = format!("leases:hold:{pattern}");
            for resource in *covered {
                assert!(allows(&permission, Action::LeasesHold, resource), "{pattern} {resource}");
            }
            for resource in *not {
                assert!(!allows(&permission, Action::LeasesHold, resource), "{pattern} {resource}");
            }
        }
    }

    #[test]
    fn an_action_allows_itself_a_noun_all_of_its_own_and_a_star_everything() {
        for granted in Action::ALL {
            for asked in Action::ALL {
                let one = format!("{}:*", granted.name());
                let seen = (granted, asked) == (Action::LeasesHold, Action::LeasesRead);
                assert_eq!(allows(&one, asked, "a/b"), granted == asked || seen, "{one} {asked:?}");
                let noun = format!("{}:*:*", granted.noun());
                assert_eq!(allows(&noun, asked, "a/b"), granted.noun() == asked.noun(), "{noun}");
            }
            assert!(allows("*", granted, "*"));
            assert!(!Permissions::default().allow(granted, "a/b"));
        }
        assert!(allows("server:observe", Action::ServerObserve, "metrics"));
        assert!(!allows("server:observe", Action::LeasesRead, "metrics"));
    }

    #[test]
    fn what_is_no_permission_is_named() {
        let wrong = [
            "",
            "leases",
            "leases:hold",
            "leases:hold:",
            "leases:steal:a",
            "lease:hold:a",
            "*:*:*",
            "**",
            "leases:hold:a*b",
            "leases:hold:a**",
            "*:read:a",
            "objects:read",
            "leases:hold:a\n",
            "read",
            " leases:hold:a",
            "LEASES:hold:a",
        ];
        for text in wrong {
            let error = Permissions::parse(&["leases:read:*", text]).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        let many = vec!["*"; MOST + 1];
        assert!(matches!(Permissions::parse(&many), Err(Error::LimitExceeded { .. })));
    }

    #[test]
    fn words_of_others_are_left_out() {
        let known = Permissions::parse_known("openid leases:read:a/* email".split(' '));
        assert_eq!(known, Permissions::parse(&["leases:read:a/*"]).unwrap());
    }

    fn name() -> impl Strategy<Value = String> {
        "[ab./]{0,5}"
    }

    proptest! {
        /// A caller that may ask for everything with a prefix may ask for each of it, and a
        /// permission that covers some name covers only names that begin with its own.
        #[test]
        fn a_prefix_is_allowed_only_if_all_of_it_is(stem in name(), rest in name(), star: bool,
            asked in name()) {
            let pattern = if star { format!("{stem}*") } else { stem.clone() };
            prop_assume!(!pattern.is_empty());
            let text = format!("leases:hold:{pattern}");
            if allows(&text, Action::LeasesHold, &format!("{asked}*")) {
                let one = format!("{asked}{rest}");
                prop_assert!(allows(&text, Action::LeasesHold, &one), "{} {}", text, one);
            }
            if allows(&text, Action::LeasesHold, &asked) {
                let own = stem.trim_end_matches(['.', '/']);
                prop_assert!(asked.starts_with(own), "{} {}", text, asked);
            }
        }

        #[test]
        fn what_is_printed_means_the_same(stem in "[ab./]{1,5}", star: bool) {
            let text = format!("objects:*:{stem}{}", if star { "*" } else { "" });
            let parsed: Permission = text.parse().unwrap();
            prop_assert_eq!(parsed.to_string().parse::<Permission>().unwrap(), parsed);
        }
    }
}
