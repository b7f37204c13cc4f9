//! What an API server demands of a Lease before it looks at what is there.
//!
//! A body that is no Lease at all is a bad request (400); a Lease that breaks a rule is invalid (422).

use serde_json::{Map, Value};

use super::state::{Answer, status, text};

/// Whether this Lease may be written to this namespace.
pub(super) fn validate(namespace: &str, lease: &Value) -> Result<(), Answer> {
    is_a_lease(namespace, lease).map_err(|what| status(400, "BadRequest", &what))?;
    is_valid(lease).map_err(|what| status(422, "Invalid", &what))
}

fn is_a_lease(namespace: &str, lease: &Value) -> Result<(), String> {
    if lease["kind"] != "Lease" || lease["apiVersion"] != "coordination.k8s.io/v1" {
        return Err(format!("{} cannot be handled as a Lease", lease["kind"]));
    }
    if ![namespace, ""].contains(&text(lease, "namespace")) {
        return Err(
            "the namespace of the object does not match the namespace on the request".into()
        );
    }
    let spec = &lease["spec"];
    for field in ["leaseDurationSeconds", "leaseTransitions"] {
        let number = &spec[field];
        let fits = number.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
        if !number.is_null() && !fits {
            return Err(format!("spec.{field}: {number} is no int32"));
        }
    }
    for field in ["acquireTime", "renewTime"] {
        let time = &spec[field];
        if !time.is_null() && !time.as_str().is_some_and(is_micro_time) {
            return Err(format!(
                "spec.{field}: parsing time {time} as 2006-01-02T15:04:05.000000Z07:00"
            ));
        }
    }
    match ["holderIdentity", "strategy"].iter().find(|field| {
        let value = &spec[**field];
        !value.is_null() && !value.is_string()
    }) {
        Some(field) => Err(format!("spec.{field} is no text")),
        None => Ok(()),
    }
}

/// `2006-01-02T15:04:05.000000` and where: all six digits, no more and no fewer.
fn is_micro_time(text: &str) -> bool {
    let like = |pattern: &str, text: &str| {
        pattern.len() == text.len()
            && pattern.bytes().zip(text.bytes()).all(|(p, t)| match p {
                b'0' => t.is_ascii_digit(),
                p => p == t,
            })
    };
    let Some((time, place)) = text.split_at_checked("0000-00-00T00:00:00.000000".len()) else {
        return false;
    };
    like("0000-00-00T00:00:00.000000", time)
        && (place == "Z" || like("+00:00", place) || like("-00:00", place))
}

fn is_valid(lease: &Value) -> Result<(), String> {
    let name = text(lease, "name");
    if !is_subdomain(name) {
        return Err(format!("metadata.name: {name:?} is no lowercase RFC 1123 subdomain"));
    }
    let spec = &lease["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        return Err("spec.leaseDurationSeconds: must be greater than 0".into());
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        return Err("spec.leaseTransitions: must be greater than or equal to 0".into());
    }
    let none = Map::new();
    let annotations = lease["metadata"]["annotations"].as_object().unwrap_or(&none);
    let bytes = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(bytes).sum::<usize>() > 256 * 1024 {
        return Err("metadata.annotations: Too long: may not be more than 262144 bytes".into());
    }
    let labels = lease["metadata"]["labels"].as_object().unwrap_or(&none);
    if let Some(key) = annotations.keys().chain(labels.keys()).find(|key| !is_key(key)) {
        return Err(format!("metadata: {key:?} is no key of a label or annotation"));
    }
    let fits = |value: &Value| value.as_str().is_some_and(|text| text.is_empty() || is_name(text));
    if let Some((key, value)) = labels.iter().find(|(_, value)| !fits(value)) {
        return Err(format!("metadata.labels: {key}: {value}"));
    }
    for owner in lease["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().is_none_or(str::is_empty) {
                return Err(format!("metadata.ownerReferences.{field}: must not be empty"));
            }
        }
    }
    Ok(())
}

/// What names of Leases are.
fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let edge = |c: char| c.is_ascii_alphanumeric();
        label.bytes().all(inner) && label.starts_with(edge) && label.ends_with(edge)
    };
    !name.is_empty() && name.len() <= 253 && name.split('.').all(label)
}

/// What values of labels are, and the second half of their keys.
fn is_name(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63 && text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_all_six_digits() {
        for good in ["2024-01-01T00:00:00.000000Z", "2024-01-01T00:00:00.123456+01:00"] {
            assert!(is_micro_time(good), "{good}");
        }
        for bad in ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5Z", "nonsense", "", "Ü"] {
            assert!(!is_micro_time(bad), "{bad}");
        }
    }

    #[test]
    fn keys_are_names_behind_a_domain() {
        for good in ["tenure.dev/id", "a", "A_b.c"] {
            assert!(is_key(good), "{good}");
        }
        for bad in ["", "a b", "a/b/c", "-a", "Big/a", "/a", "a/"] {
            assert!(!is_key(bad), "{bad}");
        }
    }
}
