//! The deadline of a call as gRPC writes it: `grpc-timeout: 250m`, at most eight digits and a unit.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

const HEADER: &str = "grpc-timeout";
/// The units, finest first, in nanoseconds.
const UNITS: [(char, u128); 6] = [
    ('n', 1),
    ('u', 1_000),
    ('m', 1_000_000),
    ('S', 1_000_000_000),
    ('M', 60_000_000_000),
    ('H', 3_600_000_000_000),
];
const DIGITS: u128 = 100_000_000;

/// The deadline that the call has; `None` if it has none that can be understood.
pub(super) fn read(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let unit = text.chars().last()?;
    let number = &text[..text.len() - unit.len_utf8()];
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let total = number.parse::<u128>().ok()? * nanos;
    Some(Duration::new(
        u64::try_from(total / 1_000_000_000).ok()?,
        u32::try_from(total % 1_000_000_000).ok()?,
    ))
}

/// Sees to it that the call does not outlast `left`; a shorter deadline of its own stays.
pub(super) fn shorten(headers: &mut HeaderMap, left: Duration) {
    if read(headers).is_some_and(|own| own <= left) {
        return;
    }
    // More hours than eight digits can tell are no deadline at all.
    let Some((unit, nanos)) = UNITS.iter().find(|(_, nanos)| left.as_nanos() / nanos < DIGITS)
    else {
        return;
    };
    let text = format!("{}{unit}", left.as_nanos() / nanos);
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(HEADER, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(own: Option<&str>, left: Duration) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(own) = own {
            headers.insert(HEADER, HeaderValue::try_from(own).unwrap());
        }
        shorten(&mut headers, left);
        headers.get(HEADER).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_lesser_of_both_is_sent() {
        let second = Duration::from_secs(1);
        assert_eq!(shortened(None, second).as_deref(), Some("1000000u"));
        assert_eq!(shortened(Some("5S"), second).as_deref(), Some("1000000u"));
        assert_eq!(shortened(Some("900m"), second).as_deref(), Some("900m"));
        assert_eq!(shortened(None, second * 86_400).as_deref(), Some("86400000m"));
        assert_eq!(shortened(Some("2H"), second * 86_400).as_deref(), Some("2H"));
        assert_eq!(shortened(None, Duration::MAX), None);
    }

    #[test]
    fn what_was_written_is_read_and_nonsense_is_not() {
        for left in [0, 1, 99_999_999, 100_000_000, 3_600_000_000_001, 86_400_000_000_000_000] {
            let left = Duration::from_nanos(left);
            let mut headers = HeaderMap::new();
            shorten(&mut headers, left);
            let read = read(&headers).unwrap();
            assert!(read <= left && left - read <= left / 1_000_000, "{left:?} {read:?}");
        }
        for bad in ["", "1", "S", "x1S", "1x", "123456789S", "-1S", "1ä"] {
            let mut headers = HeaderMap::new();
            headers.insert(HEADER, HeaderValue::from_bytes(bad.as_bytes()).unwrap());
            assert_eq!(read(&headers), None, "{bad}");
        }
    }
}
