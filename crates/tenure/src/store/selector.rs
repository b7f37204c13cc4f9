//! Selecting by labels: `app=web,tier!=test,zone in (a,b),owner,!old`.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Labels, Result};

/// One demand on an object's labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// `key in (a,b)`; one value is `key=value`.
    In(String, Vec<String>),
    /// `key notin (a,b)`; one value is `key!=value`. An object without the label matches.
    NotIn(String, Vec<String>),
    /// `key`.
    Exists(String),
    /// `!key`.
    Absent(String),
}

/// All of the requirements must hold; none selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// Only objects with this label.
    pub fn equals(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(vec![Requirement::In(key.into(), vec![value.into()])])
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(key, values) if values.len() == 1 => write!(f, "{key}={}", values[0]),
            Self::In(key, values) => write!(f, "{key} in ({})", values.join(",")),
            Self::NotIn(key, values) if values.len() == 1 => write!(f, "{key}!={}", values[0]),
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", values.join(",")),
            Self::Exists(key) => f.write_str(key),
            Self::Absent(key) => write!(f, "!{key}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(Requirement::to_string).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = split_outside_parentheses(text);
        parts.iter().map(|part| parse_requirement(part)).collect::<Result<_>>().map(Self)
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    if parts == [""] { Vec::new() } else { parts }
}

fn parse_requirement(part: &str) -> Result<Requirement> {
    let bad = |reason: &str| Error::invalid(format!("label selector {part:?}"), reason);
    let key = |key: &str| {
        let key = key.trim();
        let odd =
            key.is_empty() || key.contains(|c: char| c.is_whitespace() || "()=!,".contains(c));
        if odd { Err(bad("a label key is missing or malformed")) } else { Ok(key.to_owned()) }
    };
    if let Some((left, right)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(left)?, vec![right.trim().to_owned()]));
    }
    if let Some((left, right)) = part.split_once('=') {
        let right = right.strip_prefix('=').unwrap_or(right);
        return Ok(Requirement::In(key(left)?, vec![right.trim().to_owned()]));
    }
    if let Some(absent) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(key(absent)?));
    }
    if let Some((left, list)) = part.split_once('(') {
        let list = list.strip_suffix(')').ok_or_else(|| bad("a parenthesis is not closed"))?;
        let values = list.split(',').map(|v| v.trim().to_owned()).collect();
        let mut words = left.split_whitespace();
        let name = key(words.next().unwrap_or_default())?;
        return match (words.next(), words.next()) {
            (Some("in"), None) => Ok(Requirement::In(name, values)),
            (Some("notin"), None) => Ok(Requirement::NotIn(name, values)),
            _ => Err(bad("write `key in (a,b)` or `key notin (a,b)`")),
        };
    }
    Ok(Requirement::Exists(key(part)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn parses_matches_and_prints() {
        let text = "app=web,tier!=test,zone in (a,b),owner,!old,x notin (1,2)";
        let selector: Selector = text.parse().unwrap();
        assert_eq!(selector.to_string(), text);
        let good = labels(&[("app", "web"), ("zone", "b"), ("owner", "me")]);
        assert!(selector.matches(&good));
        for (key, value) in
            [("app", "db"), ("tier", "test"), ("zone", "c"), ("old", ""), ("x", "2")]
        {
            let mut bad = good.clone();
            bad.insert(key.into(), value.into());
            assert!(!selector.matches(&bad), "{key}={value}");
        }
        assert!("".parse::<Selector>().unwrap().matches(&good));
        assert_eq!("a==b".parse::<Selector>().unwrap(), Selector::equals("a", "b"));
    }

    #[test]
    fn malformed_selectors_are_named() {
        for bad in ["=x", "a in (b", "a of (b)", "a,,b", "a b", "(x)"] {
            let error = bad.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains("label selector"), "{bad}: {error}");
        }
    }
}
