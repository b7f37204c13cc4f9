//! Parameters of an address that this program sees to itself.
//!
//! An address is a URL or a row of `key=value` pairs, as everybody knows them from libpq. What is not
//! taken out is left to the driver as it is written, quotes and blanks included: it may be a password.

use percent_encoding::percent_decode_str;

/// Offers every parameter with its decoded value to `take`, and gives the address without those that
/// it took.
pub(crate) fn take_parameters(address: &str, take: impl FnMut(&str, String) -> bool) -> String {
    let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| address.starts_with(scheme));
    if is_url { from_url(address, take) } else { from_pairs(address, take) }
}

fn from_url(url: &str, mut take: impl FnMut(&str, String) -> bool) -> String {
    // A password may hold a question mark. It ends with the first `@`, as it does for the driver.
    let credentials = url.find('@').unwrap_or(0);
    let Some(at) = url[credentials..].find('?') else { return url.to_owned() };
    let (place, query) = url.split_at(credentials + at);
    let is_left = |pair: &&str| {
        !pair.split_once('=').is_some_and(|(name, value)| {
            let decoded = percent_decode_str(value).decode_utf8();
            take(name, decoded.map_or_else(|_| value.to_owned(), |text| text.into_owned()))
        })
    };
    let left: Vec<_> = query[1..].split('&').filter(is_left).collect();
    let separator = if left.is_empty() { "" } else { "?" };
    format!("{place}{separator}{}", left.join("&"))
}

fn from_pairs(pairs: &str, mut take: impl FnMut(&str, String) -> bool) -> String {
    let (mut rest, mut left) = (pairs.trim(), Vec::new());
    while let Some(Pair { text, name, value, after }) = first_pair(rest) {
        if !take(name, value) {
            left.push(text);
        }
        rest = after.trim_start();
    }
    // What is no pair is for the driver to complain of.
    left.extend(Some(rest).filter(|rest| !rest.is_empty()));
    left.join(" ")
}

struct Pair<'a> {
    /// All of it, as it is written.
    text: &'a str,
    name: &'a str,
    value: String,
    after: &'a str,
}

/// A value is quoted, and ends with its quote, or ends with the first blank. A backslash makes a
/// character of any that follows it.
fn first_pair(text: &str) -> Option<Pair<'_>> {
    let (name, value) = text.split_once('=')?;
    let (name, written) = (name.trim_end(), value.trim_start());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return None;
    }
    let quoted = written.starts_with('\'');
    let mut value = String::new();
    let mut end = (!quoted).then_some(written.len());
    let mut characters = written.char_indices().skip(usize::from(quoted));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => {
                end = Some(at + 1);
                break;
            }
            blank if !quoted && blank.is_whitespace() => {
                end = Some(at);
                break;
            }
            other => value.push(other),
        }
    }
    let after = &written[end?..];
    Some(Pair { text: &text[..text.len() - after.len()], name, value, after })
}
