//! The Leases of the stand-in and the rules by which an API server changes them.
//!
//! The rules are those of the Lease resource: a PUT may create, unless it names the uid of an object
//! that is gone; an update must name the resourceVersion it was made from; one that changes nothing is
//! not stored. resourceVersions rise over all objects.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

/// An answer: the HTTP status and the body.
pub(super) type Answer = (u16, Value);

/// One change, for watchers.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) namespace: String,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

/// All that the server knows.
#[derive(Debug)]
pub(super) struct State {
    pub(super) revision: u64,
    uids: u64,
    leases: BTreeMap<(String, String), Value>,
    pub(super) log: VecDeque<Change>,
    /// Watches from before this revision, and pages of lists from before it, are gone.
    pub(super) compacted: u64,
    pages: BTreeMap<String, (u64, Vec<Value>)>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            // As on a cluster that has been in use: the first Lease is not revision 1.
            revision: 1000,
            uids: 0,
            leases: BTreeMap::new(),
            log: VecDeque::new(),
            compacted: 0,
            pages: BTreeMap::new(),
        }
    }
}

/// A Status body, as every refusal has.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Answer {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, body)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

impl State {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Answer {
        match self.leases.get(&(namespace.into(), name.into())) {
            Some(lease) => (200, lease.clone()),
            None => not_found(name),
        }
    }

    pub(super) fn names(&self, namespace: &str) -> Vec<String> {
        let here = self.leases.keys().filter(|(place, _)| place == namespace);
        here.map(|(_, name)| name.clone()).collect()
    }

    pub(super) fn create(&mut self, namespace: &str, lease: Value) -> Answer {
        let name = text(&lease, "name").to_owned();
        if let Err(refusal) = validate(&lease) {
            return refusal;
        }
        if !text(&lease, "resourceVersion").is_empty() {
            return status(
                400,
                "BadRequest",
                "resourceVersion should not be set on objects to be created",
            );
        }
        if self.leases.contains_key(&(namespace.into(), name.clone())) {
            let message = format!("leases.coordination.k8s.io {name:?} already exists");
            return status(409, "AlreadyExists", &message);
        }
        (201, self.store(namespace, &name, lease, None))
    }

    pub(super) fn replace(&mut self, namespace: &str, name: &str, lease: Value) -> Answer {
        if text(&lease, "name") != name {
            return status(400, "BadRequest", "the name of the object does not match the URL");
        }
        if let Err(refusal) = validate(&lease) {
            return refusal;
        }
        let before = self.leases.get(&(namespace.into(), name.into())).cloned();
        let (uid, version) = (text(&lease, "uid"), text(&lease, "resourceVersion"));
        let Some(before) = before else {
            if !uid.is_empty() {
                return conflict(name, "Precondition failed: UID in precondition");
            }
            return (201, self.store(namespace, name, lease, None));
        };
        if !uid.is_empty() && uid != text(&before, "uid") {
            return conflict(name, "Precondition failed: UID in precondition");
        }
        if version.is_empty() {
            return status(
                422,
                "Invalid",
                "metadata.resourceVersion: must be specified for an update",
            );
        }
        if version != text(&before, "resourceVersion") {
            return conflict(name, "the object has been modified");
        }
        let stored = self.shaped(
            namespace,
            name,
            lease,
            Some(&before),
            &before["metadata"]["resourceVersion"],
        );
        if stored == before {
            return (200, before);
        }
        (200, self.store(namespace, name, stored, Some(&before)))
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str, options: &Value) -> Answer {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(before) = self.leases.get(&key) else { return not_found(name) };
        let wanted = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if wanted[field].as_str().is_some_and(|wanted| wanted != text(before, field)) {
                return conflict(name, "Precondition failed");
            }
        }
        let Some(mut last) = self.leases.remove(&key) else { return not_found(name) };
        self.revision += 1;
        last["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.log(namespace, "DELETED", last);
        (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
    }

    /// One page. The pages of one list show one revision.
    pub(super) fn list(
        &mut self,
        namespace: &str,
        selector: Option<&str>,
        limit: usize,
        behind: Option<&str>,
    ) -> Answer {
        let (revision, mut rest) = match behind {
            Some(token) => match self.pages.remove(token) {
                Some((revision, rest)) if revision >= self.compacted => (revision, rest),
                _ => return status(410, "Expired", "The provided continue parameter is too old"),
            },
            None => {
                let all = self.leases.iter().filter(|((place, _), lease)| {
                    place == namespace && selector.is_none_or(|selector| selects(selector, lease))
                });
                (self.revision, all.map(|(_, lease)| lease.clone()).collect())
            }
        };
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let later = rest.split_off(limit.clamp(1, 1 << 20).min(rest.len()));
        if !later.is_empty() {
            self.uids += 1;
            let token = format!("page-{}", self.uids);
            metadata["continue"] = token.clone().into();
            self.pages.insert(token, (revision, later));
        }
        let list = json!({
            "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1",
            "metadata": metadata, "items": rest,
        });
        (200, list)
    }

    /// Forgets all history up to now.
    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
        self.pages.clear();
    }

    /// Writes something that is no Lease: only the revision shows it.
    pub(super) fn write_elsewhere(&mut self) {
        self.revision += 1;
    }

    fn store(
        &mut self,
        namespace: &str,
        name: &str,
        lease: Value,
        before: Option<&Value>,
    ) -> Value {
        self.revision += 1;
        let version = self.revision.to_string().into();
        let stored = self.shaped(namespace, name, lease, before, &version);
        self.leases.insert((namespace.into(), name.into()), stored.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.log(namespace, kind, stored.clone());
        stored
    }

    /// What is the server's to say: uid, creation, resourceVersion.
    fn shaped(
        &mut self,
        namespace: &str,
        name: &str,
        mut lease: Value,
        before: Option<&Value>,
        version: &Value,
    ) -> Value {
        let metadata = &mut lease["metadata"];
        metadata["name"] = name.into();
        metadata["namespace"] = namespace.into();
        metadata["resourceVersion"] = version.clone();
        match before {
            Some(before) => {
                for field in ["uid", "creationTimestamp"] {
                    metadata[field] = before["metadata"][field].clone();
                }
            }
            None => {
                self.uids += 1;
                metadata["uid"] = format!("00000000-0000-4000-8000-{:012}", self.uids).into();
                metadata["creationTimestamp"] = "2024-01-01T00:00:00Z".into();
            }
        }
        lease
    }

    fn log(&mut self, namespace: &str, kind: &'static str, object: Value) {
        let change = Change { revision: self.revision, namespace: namespace.into(), kind, object };
        self.log.push_back(change);
    }
}

fn not_found(name: &str) -> Answer {
    status(404, "NotFound", &format!("leases.coordination.k8s.io {name:?} not found"))
}

fn conflict(name: &str, why: &str) -> Answer {
    let message =
        format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: {why}");
    status(409, "Conflict", &message)
}

/// What the server demands of a Lease.
fn validate(lease: &Value) -> Result<(), Answer> {
    let invalid = |what: &str| Err(status(422, "Invalid", what));
    let label = |label: &str| {
        let inner = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let edge = |c: char| c.is_ascii_alphanumeric();
        label.bytes().all(inner) && label.starts_with(edge) && label.ends_with(edge)
    };
    let name = text(lease, "name");
    if name.is_empty() || name.len() > 253 || !name.split('.').all(label) {
        return invalid(&format!("metadata.name: {name:?} is no lowercase RFC 1123 subdomain"));
    }
    let spec = &lease["spec"];
    if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
        return invalid("spec.leaseDurationSeconds: must be greater than 0");
    }
    if spec["leaseTransitions"].as_i64().is_some_and(|count| count < 0) {
        return invalid("spec.leaseTransitions: must be greater than or equal to 0");
    }
    let none = Map::new();
    let annotations = lease["metadata"]["annotations"].as_object().unwrap_or(&none);
    let bytes = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(bytes).sum::<usize>() > 256 * 1024 {
        return invalid("metadata.annotations: Too long: may not be more than 262144 bytes");
    }
    let labels = lease["metadata"]["labels"].as_object().unwrap_or(&none);
    let value_fits = |value: &Value| {
        let value = value.as_str().unwrap_or("/");
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let edge = |c: char| c.is_ascii_alphanumeric();
        value.len() <= 63
            && value.chars().all(inner)
            && (value.is_empty() || (value.starts_with(edge) && value.ends_with(edge)))
    };
    match labels.iter().find(|(_, value)| !value_fits(value)) {
        Some((key, value)) => invalid(&format!("metadata.labels: {key}: {value}")),
        None => Ok(()),
    }
}

/// Selectors of the form `a=b,c=d`.
fn selects(selector: &str, lease: &Value) -> bool {
    selector.split(',').all(|part| match part.split_once('=') {
        Some((key, value)) => {
            lease["metadata"]["labels"][key].as_str() == Some(value.trim_start_matches('='))
        }
        None => !lease["metadata"]["labels"][part].is_null(),
    })
}
