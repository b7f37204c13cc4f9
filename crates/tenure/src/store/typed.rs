//! Typed reads and writes: protobuf messages and serde types as payloads.
//!
//! The numbers of an object always come from its row. What a payload says about its own version is
//! ignored on reading and blanked on writing, so an old payload is as good as a new one and writing
//! the same thing twice stays a write that changes nothing.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Expect, Put, Query, RetryPolicy, Store, WriteResult};
use crate::{Error, Key, Object, Result};

/// What every stored message carries about itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(default)]
pub struct ObjectMeta {
    /// Stable identity.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Unique within the kind; empty for none.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Wall-clock label of the creation.
    #[prost(int64, tag = "3")]
    pub created_at_ms: i64,
    /// All labels.
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// The row's version when it was read; 0 for an object not stored yet.
    #[prost(uint64, tag = "5")]
    pub resource_version: u64,
}

/// How a payload is encoded.
pub trait Codec<T> {
    /// To bytes.
    fn encode(value: &T) -> Result<Bytes>;
    /// From bytes.
    fn decode(bytes: &[u8]) -> Result<T>;
}

/// Payloads as protobuf.
#[derive(Debug)]
pub struct Protobuf;

/// Payloads as JSON.
#[derive(Debug)]
pub struct Json;

impl<T: prost::Message + Default> Codec<T> for Protobuf {
    fn encode(value: &T) -> Result<Bytes> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(bytes: &[u8]) -> Result<T> {
        T::decode(bytes).map_err(|error| Error::invalid("protobuf payload", error.to_string()))
    }
}

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(value: &T) -> Result<Bytes> {
        let bytes = serde_json::to_vec(value);
        bytes.map(Bytes::from).map_err(|error| Error::invalid("JSON payload", error.to_string()))
    }

    fn decode(bytes: &[u8]) -> Result<T> {
        let value = serde_json::from_slice(bytes);
        value.map_err(|error| Error::invalid("JSON payload", error.to_string()))
    }
}

/// A type that is kept as objects of one kind.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> tenure::Result<()> {
/// use serde::{Deserialize, Serialize};
/// use tenure::store::{Json, ObjectMeta, Typed, memory::MemoryStore};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// struct Order { metadata: ObjectMeta, state: String }
///
/// impl Typed for Order {
///     const KIND: &'static str = "order";
///     type Codec = Json;
///     fn metadata(&self) -> ObjectMeta { self.metadata.clone() }
///     fn set_metadata(&mut self, metadata: ObjectMeta) { self.metadata = metadata }
/// }
///
/// let store = MemoryStore::new().into_store();
/// let metadata = ObjectMeta { id: "1001".into(), ..Default::default() };
/// let order = store.put_typed(&Order { metadata, state: "new".into() }).await?;
/// assert_eq!(order.metadata.resource_version, 1);
///
/// let order = store
///     .update_typed::<Order>("1001", Default::default(), |order| {
///         order.state = "paid".into();
///         Ok(())
///     })
///     .await?;
/// assert_eq!(order.metadata.resource_version, 2);
/// # Ok(())
/// # }
/// ```
pub trait Typed: Clone + Send {
    /// The kind of its objects.
    const KIND: &'static str;
    /// How its payload is encoded.
    type Codec: Codec<Self>;
    /// Its metadata; the default if it has none yet.
    fn metadata(&self) -> ObjectMeta;
    /// Sets its metadata.
    fn set_metadata(&mut self, metadata: ObjectMeta);
}

/// The value an object holds, with the numbers of its row.
fn hydrate<T: Typed>(object: &Object) -> Result<T> {
    let mut value = T::Codec::decode(&object.payload).map_err(|error| match error {
        Error::Invalid { what, reason } => {
            Error::Invalid { what: format!("{what} of {}", object.key), reason }
        }
        other => other,
    })?;
    value.set_metadata(ObjectMeta {
        id: object.key.id.clone(),
        name: object.name.clone().unwrap_or_default(),
        created_at_ms: object.created_at_ms,
        labels: object.labels.clone(),
        resource_version: object.version,
    });
    Ok(value)
}

fn dehydrate<T: Typed>(value: &T) -> Result<(Put, u64)> {
    let metadata = value.metadata();
    let mut bare = value.clone();
    bare.set_metadata(ObjectMeta { created_at_ms: 0, resource_version: 0, ..metadata.clone() });
    let mut put = Put::new(Key::new(T::KIND, metadata.id), T::Codec::encode(&bare)?);
    put.name = Some(metadata.name).filter(|name| !name.is_empty());
    put.labels = metadata.labels;
    Ok((put, metadata.resource_version))
}

fn rehydrate<T: Typed>(mut value: T, result: WriteResult) -> T {
    let metadata = ObjectMeta {
        created_at_ms: result.created_at_ms,
        resource_version: result.version,
        ..value.metadata()
    };
    value.set_metadata(metadata);
    value
}

impl Store {
    /// Reads one value by id.
    pub async fn get_typed<T: Typed>(&self, id: &str) -> Result<Option<T>> {
        let object = self.get(&Key::new(T::KIND, id)).await?;
        object.as_ref().map(hydrate).transpose()
    }

    /// Reads one value by name.
    pub async fn get_typed_by_name<T: Typed>(&self, name: &str) -> Result<Option<T>> {
        let object = self.get_by_name(T::KIND, name).await?;
        object.as_ref().map(hydrate).transpose()
    }

    /// Reads every value that a query selects; its kind is the type's.
    pub async fn list_typed<T: Typed>(&self, query: Query) -> Result<Vec<T>> {
        let query = Query { kind: T::KIND.to_owned(), ..query };
        self.list_all(&query).await?.iter().map(hydrate).collect()
    }

    /// Writes a value: creates it if its `resource_version` is 0, else replaces that very version.
    /// Returns it with its new numbers. A time to live the object had ends with this write.
    pub async fn put_typed<T: Typed>(&self, value: &T) -> Result<T> {
        let (put, version) = dehydrate(value)?;
        let expect = if version == 0 { Expect::Absent } else { Expect::Version(version) };
        let result = self.put_if(put, expect).await?;
        Ok(rehydrate(value.clone(), result))
    }

    /// Reads a value, changes it and writes it back, again and again while others are faster; see
    /// [`Store::update_with_retry`].
    pub async fn update_typed<T: Typed>(
        &self,
        id: &str,
        policy: RetryPolicy,
        mut change: impl FnMut(&mut T) -> Result<()>,
    ) -> Result<T> {
        let mut changed = None;
        let key = Key::new(T::KIND, id);
        let written = self
            .update_with_retry(&key, policy, |object| {
                let mut value: T = hydrate(object)?;
                change(&mut value)?;
                let (mut put, _) = dehydrate(&value)?;
                if put.key != key {
                    return Err(Error::invalid(
                        format!("change of {key} into {}", put.key),
                        "an update keeps the id; create a new object instead",
                    ));
                }
                put.ttl = object.ttl;
                changed = Some(value);
                Ok(put)
            })
            .await?;
        changed.map(|value| rehydrate(value, written)).ok_or_else(|| self.no_result())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::WriteCondition;
    use crate::store::memory::MemoryStore;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Sandbox {
        #[prost(message, optional, tag = "1")]
        metadata: Option<ObjectMeta>,
        #[prost(string, repeated, tag = "2")]
        providers: Vec<String>,
    }

    impl Typed for Sandbox {
        const KIND: &'static str = "sandbox";
        type Codec = Protobuf;
        fn metadata(&self) -> ObjectMeta {
            self.metadata.clone().unwrap_or_default()
        }
        fn set_metadata(&mut self, metadata: ObjectMeta) {
            self.metadata = Some(metadata);
        }
    }

    #[tokio::test]
    async fn the_version_comes_from_the_row_not_from_the_payload() {
        let store = MemoryStore::new().into_store();
        let lie = ObjectMeta { id: "other".into(), resource_version: 99, ..Default::default() };
        let payload = Sandbox { metadata: Some(lie), providers: vec!["p".into()] };
        let put = Put::new(Key::new("sandbox", "a"), prost::Message::encode_to_vec(&payload));
        store.put_if(put.name("box").label("x", "y"), WriteCondition::MustCreate).await.unwrap();

        let read: Sandbox = store.get_typed_by_name("box").await.unwrap().unwrap();
        let meta = read.metadata();
        assert_eq!((meta.id.as_str(), meta.name.as_str(), meta.resource_version), ("a", "box", 1));
        assert_eq!(meta.labels["x"], "y");
        assert!(meta.created_at_ms > 0);
    }

    #[tokio::test]
    async fn writing_the_same_value_again_bumps_nothing() {
        let store = MemoryStore::new().into_store();
        let metadata = Some(ObjectMeta { id: "a".into(), ..Default::default() });
        let first = store.put_typed(&Sandbox { metadata, providers: vec![] }).await.unwrap();
        let again = store.put_typed(&first).await.unwrap();
        assert_eq!(again.metadata().resource_version, 1);
        let read: Sandbox = store.get_typed("a").await.unwrap().unwrap();
        assert_eq!(store.put_typed(&read).await.unwrap().metadata().resource_version, 1);
    }
}
