//! What a request brings: who asks, a body, parameters, a key. What is wrong with them is said in the
//! one format of errors, with the name of the field.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tenure::{Error, Key};

use crate::api::{AcquireTerms, Api, View};
use crate::auth::Caller;
use crate::{Fault, body_timeout, drain};

/// A body that is too large is read for so long, and so many bytes, before it is answered: a client that is
/// busy sending does not read the answer.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const DRAIN_BYTES: u64 = 64 * 1024 * 1024;

/// Who asks, and what they see.
pub(super) struct Requester {
    pub(super) view: View,
}

impl FromRequestParts<Api> for Requester {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Fault> {
        let caller = parts.extensions.get::<Caller>();
        let nobody = || Fault::Unauthenticated("a request without a caller".into());
        Ok(Self { view: api.view(caller.ok_or_else(nobody)?)? })
    }
}

impl Requester {
    /// Works on something that changes nothing.
    pub(super) fn read<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        self.view.read(Box::pin(work))
    }

    /// Works on something that may have happened even if there is no answer.
    pub(super) fn write<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        self.view.write(Box::pin(work))
    }

    /// Acquires something.
    pub(super) fn acquire<T>(
        &self,
        asked: &AcquireTerms,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        self.view.acquiring(asked, Box::pin(work))
    }
}

/// The error that names a thing and what is wrong with it.
pub(super) fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Fault {
    Error::invalid(what, reason).into()
}

/// A body of JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Api> for Json<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Fault> {
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse().ok());
        let asks_first = request.headers().contains_key(EXPECT);
        let most = api.room().limits().message_bytes;
        // It arrives in time or breaks off: see `body_timeout`.
        let body = request.into_body();
        let bytes = match announced.filter(|announced| *announced > most) {
            None => read(body, most).await?,
            Some(got) => {
                if !asks_first {
                    drain::discard(body, DRAIN_TIMEOUT, DRAIN_BYTES).await;
                }
                return Err(too_large(most, got));
            }
        };
        parse(&bytes).map(Self)
    }
}

async fn read(body: Body, most: usize) -> Result<Bytes, Fault> {
    match Limited::new(body, most).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(most, most + 1)),
        Err(error) => Err(body_timeout::fault(error)
            .unwrap_or_else(|reason| invalid("body", format!("it broke off: {reason}")))),
    }
}

fn too_large(max: usize, got: usize) -> Fault {
    let (max, got) = (max as u64, got as u64);
    Error::LimitExceeded { limit: "message_bytes", max, got }.into()
}

/// Reads JSON; only what fails is read again to find out where.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let place = serde_path_to_error::deserialize::<_, T>(&mut reader).err();
        let place = place.map(|error| error.path().to_string());
        // Where the body as a whole is not what it should be, there is no place to name.
        let place = place.filter(|place| !place.is_empty() && !matches!(&**place, "." | "?"));
        invalid(place.unwrap_or_else(|| "body".into()), error.to_string())
    })
}

/// Parameters after the question mark.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Api> for Params<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Fault> {
        match Query::<T>::from_request_parts(parts, api).await {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => Err(invalid("parameters", rejection.body_text())),
        }
    }
}

/// Kind and id in the path.
pub(super) struct PathKey(pub(super) Key);

impl FromRequestParts<Api> for PathKey {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Fault> {
        match Path::<(String, String)>::from_request_parts(parts, api).await {
            Ok(Path((kind, id))) => Ok(Self(Key { kind, id })),
            Err(rejection) => Err(invalid("path", rejection.body_text())),
        }
    }
}

/// The kind in the path.
pub(super) struct PathKind(pub(super) String);

impl FromRequestParts<Api> for PathKind {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Fault> {
        match Path::<String>::from_request_parts(parts, api).await {
            Ok(Path(kind)) => Ok(Self(kind)),
            Err(rejection) => Err(invalid("path", rejection.body_text())),
        }
    }
}
