//! The Leases of the stand-in and the rules by which an API server changes them.
//!
//! The rules are those of the Lease resource: a PUT may create, unless it names the uid of an object
//! that is gone; an update must name the resourceVersion it was made from; one that changes nothing is
//! not stored; one that has finalizers stays when it is deleted, until they are gone. resourceVersions
//! rise over all objects. Who wrote what is noted as far as the managers' names go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::validate::validate;

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
    namespaces: BTreeSet<String>,
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
            namespaces: BTreeSet::from(["default".into()]),
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

/// A refusal that says what kind of thing it is about.
fn status_of(code: u16, reason: &str, message: &str, kind: &str, name: &str) -> Answer {
    let (code, mut body) = status(code, reason, message);
    body["details"] = json!({"kind": kind, "name": name});
    (code, body)
}

pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
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

    pub(super) fn create_namespace(&mut self, namespace: &str) {
        self.namespaces.insert(namespace.to_owned());
    }

    pub(super) fn create(&mut self, namespace: &str, lease: Value, manager: &str) -> Answer {
        let name = text(&lease, "name").to_owned();
        if !self.namespaces.contains(namespace) {
            return no_namespace(namespace);
        }
        if let Err(refusal) = validate(namespace, &lease) {
            return refusal;
        }
        if !text(&lease, "resourceVersion").is_empty() {
            return status(500, "", "resourceVersion should not be set on objects to be created");
        }
        if self.leases.contains_key(&(namespace.into(), name.clone())) {
            let message = format!("leases.coordination.k8s.io {name:?} already exists");
            return status_of(409, "AlreadyExists", &message, "leases", &name);
        }
        (201, self.store(namespace, &name, managed(lease, None, manager), None))
    }

    pub(super) fn replace(
        &mut self,
        namespace: &str,
        name: &str,
        lease: Value,
        manager: &str,
    ) -> Answer {
        if text(&lease, "name") != name {
            return status(400, "BadRequest", "the name of the object does not match the URL");
        }
        if let Err(refusal) = validate(namespace, &lease) {
            return refusal;
        }
        let before = self.leases.get(&(namespace.into(), name.into())).cloned();
        let (uid, version) = (text(&lease, "uid"), text(&lease, "resourceVersion"));
        let Some(before) = before else {
            if !uid.is_empty() {
                return conflict(name, "Precondition failed: UID in precondition");
            }
            if !self.namespaces.contains(namespace) {
                return no_namespace(namespace);
            }
            return (201, self.store(namespace, name, managed(lease, None, manager), None));
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
        let mut stored = self.shaped(
            namespace,
            name,
            lease,
            Some(&before),
            &before["metadata"]["resourceVersion"],
        );
        stored["metadata"]["managedFields"] = before["metadata"]["managedFields"].clone();
        if stored == before {
            return (200, before);
        }
        let stored = managed(stored, Some(&before), manager);
        if is_going(&stored) && !has_finalizers(&stored) {
            self.remove(namespace, name);
            return (200, stored);
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
        if has_finalizers(before) {
            let mut going = before.clone();
            if !is_going(&going) {
                self.revision += 1;
                let metadata = &mut going["metadata"];
                metadata["resourceVersion"] = self.revision.to_string().into();
                metadata["deletionTimestamp"] = "2024-01-01T00:00:00Z".into();
                metadata["deletionGracePeriodSeconds"] = 0.into();
                self.leases.insert(key, going.clone());
                self.log(namespace, "MODIFIED", going.clone());
            }
            return (200, going);
        }
        self.remove(namespace, name);
        (200, json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}))
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(mut last) = self.leases.remove(&key) else { return };
        self.revision += 1;
        last["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.log(namespace, "DELETED", last);
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
                for field in ["uid", "creationTimestamp", "deletionTimestamp"] {
                    match &before["metadata"][field] {
                        Value::Null => drop(metadata.as_object_mut().map(|m| m.remove(field))),
                        value => metadata[field] = value.clone(),
                    }
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

fn is_going(lease: &Value) -> bool {
    !text(lease, "deletionTimestamp").is_empty()
}

fn has_finalizers(lease: &Value) -> bool {
    lease["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Notes who wrote it, beside those who wrote before.
fn managed(mut lease: Value, before: Option<&Value>, manager: &str) -> Value {
    let entries = before.and_then(|before| before["metadata"]["managedFields"].as_array());
    let others = entries.into_iter().flatten().filter(|entry| entry["manager"] != manager);
    let mut entries: Vec<Value> = others.cloned().collect();
    entries.push(json!({"manager": manager, "operation": "Update",
        "apiVersion": "coordination.k8s.io/v1", "time": "2024-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}));
    lease["metadata"]["managedFields"] = entries.into();
    lease
}

fn not_found(name: &str) -> Answer {
    let message = format!("leases.coordination.k8s.io {name:?} not found");
    status_of(404, "NotFound", &message, "leases", name)
}

fn no_namespace(name: &str) -> Answer {
    let message = format!("namespaces {name:?} not found");
    status_of(404, "NotFound", &message, "namespaces", name)
}

fn conflict(name: &str, why: &str) -> Answer {
    let message =
        format!("Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: {why}");
    status(409, "Conflict", &message)
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
