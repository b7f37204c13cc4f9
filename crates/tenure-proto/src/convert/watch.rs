//! What watchers ask for and see.

use std::sync::Arc;

use tenure::store::{Batch, Cause, Event, WatchRequest};
use tenure::{Error, Object};

use super::need;
use super::object::key;
use crate::v1;

impl From<&WatchRequest> for v1::WatchRequest {
    fn from(request: &WatchRequest) -> Self {
        Self { kind: request.kind.clone(), prefix: request.prefix.clone(), after: request.after }
    }
}

impl From<v1::WatchRequest> for WatchRequest {
    fn from(request: v1::WatchRequest) -> Self {
        Self { kind: request.kind, prefix: request.prefix, after: request.after }
    }
}

impl From<Cause> for v1::Cause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Deleted => Self::Deleted,
            Cause::Expired => Self::Expired,
            Cause::Unspecified => Self::Unspecified,
        }
    }
}

impl From<v1::Cause> for Cause {
    fn from(cause: v1::Cause) -> Self {
        match cause {
            v1::Cause::Deleted => Self::Deleted,
            v1::Cause::Expired => Self::Expired,
            v1::Cause::Unspecified => Self::Unspecified,
        }
    }
}

impl From<&Batch> for v1::WatchResponse {
    fn from(batch: &Batch) -> Self {
        Self {
            revision: batch.revision,
            events: batch.events.iter().map(v1::Event::from).collect(),
        }
    }
}

impl From<&Event> for v1::Event {
    fn from(event: &Event) -> Self {
        let event = match event {
            Event::Put(object) => v1::event::Event::Put((&**object).into()),
            Event::Delete { key, cause, last } => v1::event::Event::Deleted(v1::Deleted {
                key: Some(key.into()),
                cause: v1::Cause::from(*cause).into(),
                last: last.as_ref().map(|last| (&**last).into()),
            }),
        };
        Self { event: Some(event) }
    }
}

impl TryFrom<v1::WatchResponse> for Batch {
    type Error = Error;

    fn try_from(response: v1::WatchResponse) -> Result<Self, Error> {
        Ok(Self {
            revision: response.revision,
            events: response.events.into_iter().map(Event::try_from).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<v1::Event> for Event {
    type Error = Error;

    fn try_from(event: v1::Event) -> Result<Self, Error> {
        Ok(match need(event.event, "event")? {
            v1::event::Event::Put(object) => Self::Put(Arc::new(object.try_into()?)),
            v1::event::Event::Deleted(deleted) => Self::Delete {
                cause: deleted.cause().into(),
                key: key(deleted.key)?,
                last: deleted.last.map(|last| Object::try_from(last).map(Arc::new)).transpose()?,
            },
        })
    }
}
