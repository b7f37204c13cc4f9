//! What answers about objects look like. They borrow: an object becomes text once, on its way out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tenure::store::{Batch, Cause, Committed, Event, Page, Touched, WriteResult, Written};
use tenure::{Labels, Object};
use tenure_proto::convert::{ms_down, ms_up};
use utoipa::ToSchema;

use super::error::ErrorBody;
use crate::Fault;

/// An object.
#[derive(Serialize, ToSchema)]
#[schema(as = Object)]
pub(super) struct ObjectView<'a> {
    kind: &'a str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    labels: &'a Labels,
    /// Where it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    /// Where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    version: u64,
    revision: u64,
    created_revision: u64,
    token: u64,
    created_at_ms: i64,
    updated_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
}

impl<'a> From<&'a Object> for ObjectView<'a> {
    fn from(object: &'a Object) -> Self {
        let text = std::str::from_utf8(&object.payload).ok();
        Self {
            kind: &object.key.kind,
            id: &object.key.id,
            name: object.name.as_deref(),
            labels: &object.labels,
            payload: text,
            payload_base64: text.is_none().then(|| STANDARD.encode(&object.payload)),
            version: object.version,
            revision: object.revision,
            created_revision: object.created_revision,
            token: object.token,
            created_at_ms: object.created_at_ms,
            updated_at_ms: object.updated_at_ms,
            ttl_ms: object.ttl.map(ms_up),
            expires_in_ms: object.expires_in.map(ms_down),
        }
    }
}

/// A page of objects.
#[derive(Serialize, ToSchema)]
#[schema(as = Page)]
pub(super) struct PageView<'a> {
    objects: Vec<ObjectView<'a>>,
    /// Give this as `after` to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
    /// A watch from here misses nothing.
    revision: u64,
}

impl<'a> From<&'a Page> for PageView<'a> {
    fn from(page: &'a Page) -> Self {
        Self {
            objects: page.objects.iter().map(ObjectView::from).collect(),
            next: page.next.as_deref(),
            revision: page.revision,
        }
    }
}

/// An object's numbers after a put.
#[derive(Serialize, ToSchema)]
#[schema(as = WriteResult)]
pub(super) struct ResultView {
    version: u64,
    revision: u64,
    created_revision: u64,
    token: u64,
    created_at_ms: i64,
    updated_at_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

impl From<WriteResult> for ResultView {
    fn from(result: WriteResult) -> Self {
        Self {
            version: result.version,
            revision: result.revision,
            created_revision: result.created_revision,
            token: result.token,
            created_at_ms: result.created_at_ms,
            updated_at_ms: result.updated_at_ms,
            ttl_ms: result.ttl.map(ms_up),
        }
    }
}

/// What one write did.
#[derive(Serialize, ToSchema)]
#[schema(as = Written)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum WrittenView {
    /// Created or changed.
    Put(ResultView),
    /// It was like that already.
    Unchanged(ResultView),
    /// Deleted, at this revision.
    Deleted {
        /// The revision of the delete.
        revision: u64,
    },
    /// There was nothing to delete.
    Absent,
}

impl From<Written> for WrittenView {
    fn from(written: Written) -> Self {
        match written {
            Written::Put(result) => Self::Put(result.into()),
            Written::Unchanged(result) => Self::Unchanged(result.into()),
            Written::Deleted { revision } => Self::Deleted { revision },
            Written::Absent => Self::Absent,
        }
    }
}

/// What a commit did.
#[derive(Serialize, ToSchema)]
#[schema(as = Committed)]
pub(super) struct CommittedView {
    /// Absent if nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    /// One for each write, in their order.
    writes: Vec<WrittenView>,
}

impl From<Committed> for CommittedView {
    fn from(committed: Committed) -> Self {
        let writes = committed.writes.into_iter().map(WrittenView::from).collect();
        Self { revision: committed.revision, writes }
    }
}

/// What became of touches: one for each, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = TouchedAll)]
pub(super) struct TouchedAllView {
    touched: Vec<TouchedView>,
}

/// What became of one: a life, or an error.
#[derive(Serialize, ToSchema)]
#[schema(as = Touched)]
#[serde(untagged)]
pub(super) enum TouchedView {
    /// To be given with the next touch.
    Life {
        /// The revision it has now.
        revision: u64,
        /// The life granted.
        ttl_ms: u64,
    },
    /// `{"error": …}`
    #[schema(value_type = ErrorBody)]
    Error(Fault),
}

impl From<Vec<tenure::Result<Touched>>> for TouchedAllView {
    fn from(touched: Vec<tenure::Result<Touched>>) -> Self {
        let view = |touched: tenure::Result<Touched>| match touched {
            Ok(life) => TouchedView::Life { revision: life.revision, ttl_ms: ms_up(life.ttl) },
            Err(error) => TouchedView::Error(error.into()),
        };
        Self { touched: touched.into_iter().map(view).collect() }
    }
}

/// What happened: all of one commit, or of several in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = Batch)]
pub(super) struct BatchView<'a> {
    /// Everything up to here has been told.
    pub(super) revision: u64,
    /// In order.
    pub(super) events: Vec<EventView<'a>>,
}

/// One change to one object.
#[derive(Serialize, ToSchema)]
#[schema(as = Event)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum EventView<'a> {
    /// Created or changed.
    Put {
        /// What it is now.
        object: ObjectView<'a>,
    },
    /// Gone.
    Deleted {
        /// Its kind.
        kind: &'a str,
        /// Its id.
        id: &'a str,
        /// `deleted`, `expired` or `unspecified`.
        cause: &'static str,
        /// What it was, where the store remembers.
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<ObjectView<'a>>,
    },
}

/// Why something went away.
pub(super) fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "deleted",
        Cause::Expired => "expired",
        Cause::Unspecified => "unspecified",
    }
}

impl<'a> From<&'a Event> for EventView<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Put(object) => Self::Put { object: (&**object).into() },
            Event::Delete { key, cause: why, last } => Self::Deleted {
                kind: &key.kind,
                id: &key.id,
                cause: cause(*why),
                last: last.as_deref().map(ObjectView::from),
            },
        }
    }
}

impl<'a> From<&'a Batch> for BatchView<'a> {
    fn from(batch: &'a Batch) -> Self {
        let events = batch.events.iter().map(EventView::from).collect();
        Self { revision: batch.revision, events }
    }
}

/// From where on a watch sees everything.
#[derive(Serialize, ToSchema)]
#[schema(as = Start)]
pub(super) struct StartView {
    pub(super) revision: u64,
}
