//! Objects and events as JSON, for programs. Field names are the contract's.

use base64::Engine as _;
use serde_json::{Value, json};
use tenure::Object;
use tenure::store::{Cause, Event, WriteResult};

/// An object. A payload that is UTF-8 is `payload`, any other `payload_base64`.
pub(crate) fn object(object: &Object) -> Value {
    let mut value = json!({
        "kind": object.key.kind,
        "id": object.key.id,
        "name": object.name,
        "labels": object.labels,
        "version": object.version,
        "revision": object.revision,
        "created_revision": object.created_revision,
        "token": object.token,
        "created_at_ms": object.created_at_ms,
        "updated_at_ms": object.updated_at_ms,
        "ttl_ms": object.ttl.map(millis),
        "expires_in_ms": object.expires_in.map(millis),
    });
    match std::str::from_utf8(&object.payload) {
        Ok(text) => value["payload"] = text.into(),
        Err(_) => {
            let engine = base64::engine::general_purpose::STANDARD;
            value["payload_base64"] = engine.encode(&object.payload).into();
        }
    }
    value
}

/// The numbers of a write.
pub(crate) fn written(kind: &str, id: &str, result: &WriteResult, changed: bool) -> Value {
    json!({
        "kind": kind,
        "id": id,
        "changed": changed,
        "version": result.version,
        "revision": result.revision,
        "created_revision": result.created_revision,
        "token": result.token,
        "created_at_ms": result.created_at_ms,
        "updated_at_ms": result.updated_at_ms,
        "ttl_ms": result.ttl.map(millis),
    })
}

/// One event of a watch.
pub(crate) fn event(revision: u64, event: &Event) -> Value {
    match event {
        Event::Put(put) => json!({ "revision": revision, "event": "put", "object": object(put) }),
        Event::Delete { key, cause, last } => json!({
            "revision": revision,
            "event": cause_word(*cause),
            "kind": key.kind,
            "id": key.id,
            "last": last.as_ref().map(|last| object(last)),
        }),
    }
}

/// The word for why an object went.
pub(crate) fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "deleted",
        Cause::Expired => "expired",
        Cause::Unspecified => "gone",
    }
}

pub(crate) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
