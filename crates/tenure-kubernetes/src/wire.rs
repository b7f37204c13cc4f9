//! A `coordination.k8s.io/v1` Lease as the API server speaks of it.
//!
//! Only the fields that matter here have names. Everything else is carried along untouched: a PUT
//! replaces the whole object, and what others wrote into it is not ours to lose.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tenure::{Error, Result};

use crate::BACKEND;

/// One Lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lease {
    /// Absent from the items of a list, present everywhere else.
    #[serde(default = "api_version")]
    pub(crate) api_version: String,
    #[serde(default = "kind")]
    pub(crate) kind: String,
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: Spec,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

fn api_version() -> String {
    "coordination.k8s.io/v1".into()
}

fn kind() -> String {
    "Lease".into()
}

/// What all objects have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resource_version: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

/// What electors read and write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder_identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_duration_seconds: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) acquire_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) renew_time: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease_transitions: Option<i32>,
    #[serde(flatten)]
    pub(crate) other: Map<String, Value>,
}

impl Lease {
    /// One that is not on the server yet.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: Metadata { name: name.into(), ..Metadata::default() },
            spec: Spec::default(),
            other: Map::new(),
        }
    }

    /// Who holds it, if anybody does.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    /// Its resourceVersion as a number. Tokens are compared, so a server whose resourceVersions are
    /// not numbers cannot be used at all.
    pub(crate) fn revision(&self) -> Result<u64> {
        revision(self.metadata.resource_version.as_deref().unwrap_or_default())
    }

    /// Whether somebody has deleted it, and it stays only until its finalizers are done.
    pub(crate) fn is_going(&self) -> bool {
        self.metadata.other.contains_key("deletionTimestamp")
    }

    pub(crate) fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// A resourceVersion as a number.
pub(crate) fn revision(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::Refused {
        backend: BACKEND,
        reason: format!(
            "resourceVersion {text:?} is not a number, so fencing tokens could not be ordered; \
             use an API server whose resourceVersions are etcd's revisions"
        ),
    })
}

/// A page of Leases.
#[derive(Debug, Deserialize)]
pub(crate) struct LeaseList {
    pub(crate) metadata: ListMetadata,
    #[serde(default)]
    pub(crate) items: Vec<Lease>,
}

/// What a page says about itself.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListMetadata {
    #[serde(default)]
    pub(crate) resource_version: String,
    #[serde(default, rename = "continue")]
    pub(crate) continue_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_name_here_is_carried_along() {
        let text = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "7",
                "ownerReferences": [{"name": "o"}], "creationTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"holderIdentity": "h", "strategy": "OldestEmulationVersion", "later": 1},
        });
        let lease: Lease = serde_json::from_value(text.clone()).unwrap();
        assert_eq!((lease.holder(), lease.revision().unwrap(), lease.uid()), (Some("h"), 7, "u"));
        assert_eq!(serde_json::to_value(&lease).unwrap(), text);
    }

    #[test]
    fn a_resource_version_that_is_no_number_is_refused() {
        let error = revision("a1b2").unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
}
