//! Durations as people write them.

use std::time::Duration;

/// `30s`, `5m`, `1h30m` or `500ms`; a bare 0 is none at all.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "write it as 30s, 5m, 1h30m or 500ms".to_owned())?;
    Duration::try_from(parsed).map_err(|_| "it must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, ms) in [("30s", 30_000), ("1h30m", 5_400_000), ("500ms", 500), ("0", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert!(parse_duration("30").is_err() && parse_duration("-1s").is_err());
    }
}
