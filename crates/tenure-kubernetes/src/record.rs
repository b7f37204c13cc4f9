//! What a Lease says as an object of the contract, and how an object is written as a Lease.
//!
//! The fields that electors and `kubectl` know carry what they always carry: who holds it, for how
//! long, since when, renewed when, and how often the holder changed. What the contract needs beyond
//! that is in annotations. They count only for the tenure they were written in: an elector that takes
//! a Lease over leaves our annotations where they are, so they name the holder and the transition
//! they belong to. Times are labels; no decision looks at them.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure::lease::{LEASE, LeaseRecord, Owner};
use tenure::{Key, Labels, Object, Result};

use crate::wire::Lease;

/// The id, for people, and for names that do not tell it.
pub(crate) const ID: &str = "tenure.dev/id";
/// The payload, as text or, if it is none, in base64.
const RECORD: &str = "tenure.dev/record";
const RECORD_BASE64: &str = "tenure.dev/record-base64";
/// The numbers of the object.
const OBJECT: &str = "tenure.dev/object";
/// On an idle Lease: how the last tenure ended.
const ENDED: &str = "tenure.dev/ended";
const EXPIRED: &str = "expired";
const RELEASED: &str = "released";

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const NAMESPACE: &str = "tenure.dev/namespace";
const KEY: &str = "tenure.dev/key";
const GROUP: &str = "tenure.dev/group";

/// The holder of something whose payload does not say who that is.
const SOMEBODY: &str = "tenure";
/// The start of an owner who is none of ours.
const ELSEWHERE: &str = "elsewhere";
/// An object without a life of its own: electors must not take it for expired.
const FOR_EVER: i32 = i32::MAX;

/// Microseconds in a second.
const MICROS: i64 = 1_000_000;
/// What is further ahead of our wall clock, in microseconds, is another clock's, and says nothing.
const AHEAD: i64 = 60 * MICROS;

/// A number that is at least this stands for the resourceVersion that the write will get.
pub(crate) const UNDRAWN: u64 = u64::MAX - 16;

/// The numbers of an object, as the annotation keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers {
    /// Whose tenure they are about.
    holder: String,
    transitions: i32,
    version: u64,
    /// The token; absent where it is the resourceVersion of this very write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// The revision of the creation; likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
    created_at_ms: i64,
    updated_at_ms: i64,
    /// The life granted at the last put, in seconds; absent for an object that does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: Labels,
}

/// A Lease that is held, read.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) object: Object,
    /// How long it lives without a renewal; `None` if it does not expire.
    pub(crate) life: Option<Duration>,
}

/// The object of a Lease; `None` if nobody holds it. `first` is the revision at which this tenure was
/// first seen: it stands for numbers that are not written down yet, also after somebody else has
/// edited the Lease in between.
pub(crate) fn read(lease: &Lease, id: &str, first: u64) -> Result<Option<Held>> {
    let Some(holder) = lease.holder() else { return Ok(None) };
    let revision = lease.revision()?;
    let ours = numbers(lease, holder).zip(payload(lease));
    let Some((numbers, payload)) = ours else {
        return Ok(Some(foreign(lease, id, holder, revision)));
    };
    let object = Object {
        key: Key::new(LEASE, id),
        name: None,
        labels: numbers.labels,
        payload,
        version: numbers.version,
        revision,
        created_revision: numbers.created.unwrap_or(first),
        token: numbers.token.unwrap_or(first),
        created_at_ms: numbers.created_at_ms,
        updated_at_ms: numbers.updated_at_ms,
        ttl: numbers.ttl.map(Duration::from_secs),
        expires_in: None,
    };
    let life = numbers.ttl.and_then(|_| duration(lease));
    Ok(Some(Held { object, life }))
}

/// Whether a holder of ours has it.
pub(crate) fn is_ours(lease: &Lease) -> bool {
    let numbers = lease.holder().and_then(|holder| numbers(lease, holder));
    numbers.is_some() && payload(lease).is_some()
}

fn numbers(lease: &Lease, holder: &str) -> Option<Numbers> {
    let numbers: Numbers = serde_json::from_str(lease.metadata.annotations.get(OBJECT)?).ok()?;
    let same = numbers.holder == holder
        && Some(numbers.transitions) == lease.spec.lease_transitions
        && numbers.version > 0;
    same.then_some(numbers)
}

fn payload(lease: &Lease) -> Option<Bytes> {
    let annotations = &lease.metadata.annotations;
    if let Some(text) = annotations.get(RECORD) {
        return Some(text.clone().into());
    }
    STANDARD.decode(annotations.get(RECORD_BASE64)?).ok().map(Bytes::from)
}

fn duration(lease: &Lease) -> Option<Duration> {
    let seconds = lease.spec.lease_duration_seconds?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// A Lease that somebody else's elector holds. It has no token, so each of its renewals counts as
/// one: whatever it is, a later holder of ours has a greater one. Without a duration it is held until
/// somebody empties it.
fn foreign(lease: &Lease, id: &str, holder: &str, revision: u64) -> Held {
    let (name, start) = owner(holder);
    // Somebody who made it by hand may have left it out. Not the renewal's time instead: a tenure is told
    // from another by this record, which must not change while it lasts.
    let created = lease.metadata.other.get("creationTimestamp").and_then(|time| time.as_str());
    let acquired = lease.spec.acquire_time.as_deref().or(created).map_or(0, label_ms);
    let nonce = format!("{}-{}", lease.uid(), lease.spec.lease_transitions.unwrap_or_default());
    let record = LeaseRecord {
        holder: name,
        start,
        nonce,
        acquired_at_ms: acquired,
        metadata: BTreeMap::new(),
    };
    let life = duration(lease);
    let object = Object {
        key: Key::new(LEASE, id),
        name: None,
        labels: Labels::new(),
        // A record of strings and numbers; there is nothing in it that can fail.
        payload: serde_json::to_vec(&record).unwrap_or_default().into(),
        version: 1,
        revision,
        created_revision: revision,
        token: revision,
        created_at_ms: acquired,
        updated_at_ms: acquired,
        ttl: life,
        expires_in: None,
    };
    Held { object, life }
}

/// A holder's identity as an owner. Identities are any text; owners are not.
fn owner(identity: &str) -> (String, String) {
    if let Some((name, start)) = identity.split_once('#')
        && Owner::from_parts(name, start).is_ok()
    {
        return (name.into(), start.into());
    }
    let plain = |c: char| if c == '#' || c.is_control() { '_' } else { c };
    let mut name = String::new();
    for c in identity.chars().map(plain) {
        if name.len() + c.len_utf8() > 200 {
            break;
        }
        name.push(c);
    }
    (name, ELSEWHERE.into())
}

/// Writes an object into a Lease: the one it replaces, or a new one.
pub(crate) fn write(base: &Lease, existed: bool, object: &Object, wall_ms: i64) -> Lease {
    let mut lease = base.clone();
    let begins = object.token >= UNDRAWN;
    let holder = identity(&object.payload);
    let before = lease.spec.lease_transitions.unwrap_or_default();
    let transitions = match (existed, begins) {
        (false, _) => 0,
        (true, true) => before.saturating_add(1),
        (true, false) => before,
    };
    renew(&mut lease, wall_ms);
    if begins {
        lease.spec.acquire_time = lease.spec.renew_time.clone();
    }
    lease.spec.holder_identity = Some(holder.clone());
    lease.spec.lease_transitions = Some(transitions);
    lease.spec.lease_duration_seconds = Some(object.ttl.map_or(FOR_EVER, seconds));
    let drawn = |number: u64| (number < UNDRAWN).then_some(number);
    let numbers = Numbers {
        holder,
        transitions,
        version: object.version,
        token: drawn(object.token),
        created: drawn(object.created_revision),
        created_at_ms: object.created_at_ms,
        updated_at_ms: object.updated_at_ms,
        ttl: object.ttl.map(|ttl| ttl.as_secs()),
        labels: object.labels.clone(),
    };
    note(&mut lease, &numbers, &object.payload);
    describe(&mut lease, &object.key.id);
    lease
}

/// Prolongs the tenure of an object that was read from this Lease.
pub(crate) fn touch(base: &Lease, object: &Object, life: Duration, wall_ms: i64) -> Lease {
    let mut lease = base.clone();
    renew(&mut lease, wall_ms);
    lease.spec.lease_duration_seconds = Some(seconds(life));
    if let Some(mut numbers) = lease.holder().and_then(|holder| numbers(&lease, holder)) {
        // From here on the resourceVersion is another, so the numbers have to be written down.
        (numbers.token, numbers.created) = (Some(object.token), Some(object.created_revision));
        note(&mut lease, &numbers, &object.payload);
    }
    lease
}

/// Ends a tenure: nobody holds the Lease. It stays, so that its transitions go on counting.
pub(crate) fn empty(base: &Lease, expired: bool, wall_ms: i64) -> Lease {
    let mut lease = base.clone();
    renew(&mut lease, wall_ms);
    lease.spec.holder_identity = Some(String::new());
    // As other electors leave it: the field must be greater than zero.
    lease.spec.lease_duration_seconds = Some(1);
    for gone in [RECORD, RECORD_BASE64, OBJECT] {
        lease.metadata.annotations.remove(gone);
    }
    let how = if expired { EXPIRED } else { RELEASED };
    lease.metadata.annotations.insert(ENDED.into(), how.into());
    lease
}

/// Whether a holder of ours let go of it, or was let go, and nobody has taken it since.
pub(crate) fn is_idle(lease: &Lease) -> bool {
    lease.holder().is_none() && lease.metadata.annotations.contains_key(ENDED)
}

/// Whether the tenure before this idle Lease ended by expiry, as far as it tells.
pub(crate) fn ended_by_expiry(lease: &Lease) -> bool {
    lease.metadata.annotations.get(ENDED).is_some_and(|how| how == EXPIRED)
}

fn note(lease: &mut Lease, numbers: &Numbers, payload: &Bytes) {
    let annotations = &mut lease.metadata.annotations;
    annotations.remove(ENDED);
    let text = serde_json::to_string(numbers).unwrap_or_default();
    annotations.insert(OBJECT.into(), text);
    match std::str::from_utf8(payload) {
        Ok(text) => {
            annotations.remove(RECORD_BASE64);
            annotations.insert(RECORD.into(), text.into());
        }
        Err(_) => {
            annotations.remove(RECORD);
            annotations.insert(RECORD_BASE64.into(), STANDARD.encode(payload));
        }
    }
}

/// Labels to select by and the id in full, for people.
fn describe(lease: &mut Lease, id: &str) {
    lease.metadata.annotations.insert(ID.into(), id.into());
    let labels = &mut lease.metadata.labels;
    labels.insert(MANAGED_BY.into(), SOMEBODY.into());
    let Some((namespace, key)) = id.split_once('/') else { return };
    let slot = key.strip_prefix("slot-").is_some_and(|index| index.parse::<u32>().is_ok());
    let group = slot.then_some(namespace);
    for (label, value) in [(NAMESPACE, Some(namespace)), (KEY, Some(key)), (GROUP, group)] {
        if let Some(value) = value.filter(|value| is_label_value(value)) {
            labels.insert(label.into(), value.into());
        }
    }
}

fn is_label_value(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63 && text.chars().all(inner) && text.starts_with(edge) && text.ends_with(edge)
}

/// The holder as people read it.
fn identity(payload: &[u8]) -> String {
    let record: Option<LeaseRecord> = serde_json::from_slice(payload).ok();
    record.map_or_else(|| SOMEBODY.into(), |record| format!("{}#{}", record.holder, record.start))
}

fn seconds(life: Duration) -> i32 {
    i32::try_from(life.as_secs()).unwrap_or(FOR_EVER).max(1)
}

/// A new renewTime. It is at least one whole second later than the one before, even if the wall clock
/// stands still or steps back: electors built on client-go see a renewal by the record being another
/// one, and they read its times in whole seconds. With a life under three seconds it runs ahead of the
/// clock, but not by more than [`AHEAD`].
fn renew(lease: &mut Lease, wall_ms: i64) {
    let wall = wall_ms.saturating_mul(1000);
    let before = lease.spec.renew_time.as_deref().and_then(|time| time.parse::<Timestamp>().ok());
    let next = before.map(|time| time.as_second() + 1);
    let micros = match next {
        Some(next) if wall.div_euclid(MICROS) < next && next * MICROS <= wall + AHEAD => {
            next * MICROS
        }
        _ => wall,
    };
    lease.spec.renew_time = Some(micro_time(micros));
}

fn micro_time(micros: i64) -> String {
    let time = Timestamp::from_microsecond(micros).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn label_ms(time: &str) -> i64 {
    time.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond)
}
