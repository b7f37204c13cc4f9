//! Streams of events: text that any HTTP client can read line by line.
//!
//! A stream ends with an event that says why: `error` with the error, or `leaving` when the server goes
//! and the client should go on elsewhere. While nothing happens there is a comment now and then, so that
//! both ends notice when the other is gone.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{BoxStream, StreamExt};
use serde::Serialize;

use crate::Fault;
use crate::api::View;
use crate::limits::Taken;

const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// An event with this name and data.
pub(super) fn event(name: &str, data: &impl Serialize) -> Event {
    // None of our types can fail to become JSON.
    let event = Event::default().event(name);
    event.json_data(data).unwrap_or_else(|_| Event::default().event("error").data("{}"))
}

/// Sends events until they end, fail, the server leaves, or its caller is not known any more. Room is kept until then.
pub(super) fn stream(
    view: &View,
    room: Taken,
    events: BoxStream<'static, Result<Event, Fault>>,
) -> Response {
    let (shutdown, caller) = (view.api().shutdown().clone(), view.caller().clone());
    let leaving = Box::pin(async move {
        tokio::select! {
            () = shutdown.leaving() => Event::default().event("leaving").data("{}"),
            fault = caller.gone() => event("error", &fault),
        }
    });
    let start = (events, leaving, false);
    let told = futures::stream::unfold(start, |(mut events, mut leaving, over)| async move {
        if over {
            return None;
        }
        let (event, over) = tokio::select! {
            biased;
            last = &mut leaving => (last, true),
            next = events.next() => match next? {
                Ok(event) => (event, false),
                Err(fault) => (event("error", &fault), true),
            },
        };
        Some((event, (events, leaving, over)))
    });
    let told = told.map(move |event| {
        let _room = &room;
        Ok::<_, Infallible>(event)
    });
    Sse::new(told).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)).into_response()
}
